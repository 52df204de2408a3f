"""Profiles of boards and links: the speed of computing, and of data transfer.

Each profile is a TOML file in firmware_profiles, or any file whose path ends in .toml.  For each group of figures a
profile says whether they were measured, are taken from a data sheet, or are an estimate.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

from edge_sdk import toml
from edge_sdk.errors import UsageError
from edge_sdk.protocol.frames.leaves import ABOVE_0, BELOW_1
from edge_sdk.protocol.frames.schema import Integer, Items, Real, Text
from edge_sdk.protocol.toml_table import read_table

RUNTIMES = ("numpy", "onnx", "torch")
DEVICE_TREE_MODEL = Path("/proc/device-tree/model")
BOARD_GROUPS = ("memory", "cpu", "speed", "storage", "power", "thermal")
"""The groups of figures of a board that come from one source each."""
LINK_GROUPS = ("rate", "latency", "packets", "loss", "power")
PROVENANCE = ("measured", "datasheet", "estimate")
SUFFIX = ".toml"
GENERIC = "generic"
"""The profile for boards without their own."""
_X86_NAMES = frozenset({"x86_64", "amd64", "i386", "i686"})


ProfileText: TypeAlias = Annotated[str, Text(4096, r"[^\x00]*")]
Positive: TypeAlias = Annotated[int, Integer(1)]
Rate: TypeAlias = Annotated[float, Real(ABOVE_0)]
Amount: TypeAlias = Annotated[float, Real(0.0)]
Runtime: TypeAlias = Annotated[str, Text(16, "|".join(RUNTIMES))]
Provenance: TypeAlias = Annotated[str, Text(16, "|".join(PROVENANCE))]
ProfileSource: TypeAlias = Annotated[str, Text(4096, r"(https://|http://|urn:).*")]
"""The source of the figures; a profile measured on this machine names the measurement as a urn."""


class Effort(NamedTuple):
    """The effort of a computation, the same on every board."""

    flops: float = 0
    bytes: float = 0
    """Bytes moved between memory and processor: activations and weights."""
    calls: float = 0
    """Calls of a layer; each call costs some time, even for a small layer."""


NOTHING = Effort()


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The profile of a board."""

    name: ProfileText
    title: ProfileText
    arch: ProfileText
    ram_bytes: Positive
    cpu_hz: Positive
    cores: Positive
    train_flops_per_s: Rate
    """f32 operations per second in layers that are large enough: forward, backward and update."""
    infer_flops_per_s: Rate
    """f32 operations per second of the same layers in the forward pass."""
    memory_bytes_per_s: Rate
    """The rate of layers that compute little: bytes of activations and weights, read and written."""
    call_s: Amount
    """The additional time of each call of a layer, for Python and the runtime."""
    disk_bytes_per_s: Rate
    """The rate of durable writes."""
    idle_w: Amount
    busy_w: Rate
    """Power while computing, without the radio, whose power is in the link's profile."""
    throttles_after_s: Amount
    """Seconds of computing until the board is hot, and of rest until it is cold again, or 0 if it never throttles."""
    throttled_share: Annotated[float, Real(ABOVE_0, 1.0)]
    """The share of its speed that is left when the board is hot, in (0, 1]."""
    runtimes: Annotated[tuple[Runtime, ...], Items(1, len(RUNTIMES))]
    """The RUNTIMES that can be used on it."""
    link: ProfileText
    """Its usual link: a name of `links()`, or, in a profile from a file, a .toml file beside it."""
    verified: Mapping[str, Provenance]
    """For each of LINK_GROUPS the source of the figures: one of PROVENANCE."""
    source_url: ProfileSource
    flash_bytes: Annotated[int, Integer(0)] = 0
    """Storage on the board, or 0 if it boots from a card."""
    battery_wh: Amount = 0.0
    """Capacity of the battery, or 0 with mains power."""
    device_tree_model: ProfileText = ""
    """A part of the model name that Linux reports on this board."""
    note: ProfileText = ""
    systems: Annotated[tuple[ProfileText, ...], Items(0, 8)] = ()
    """The operating systems that run on it, by their names in firmware_profiles/systems; the first is the usual one."""

    def compute_s(self, train: Effort, infer: Effort = NOTHING) -> float:
        """Return the seconds that this much training and inference take on a cold board.

        The time is max(flops / speed, bytes / memory rate) + calls * call_s for each of them: the roofline model, and
        the overhead of Python.
        """
        return self._kind_s(train, self.train_flops_per_s) + self._kind_s(infer, self.infer_flops_per_s)

    def _kind_s(self, effort: Effort, flops_per_s: float) -> float:
        roofline_s = max(effort.flops / flops_per_s, effort.bytes / self.memory_bytes_per_s)
        return roofline_s + effort.calls * self.call_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The profile of a network link."""

    name: ProfileText
    title: ProfileText
    latency_s: Amount
    """The latency in one direction."""
    up_bytes_per_s: Rate
    down_bytes_per_s: Rate
    packet_bytes: Positive
    """The bytes of a message that one packet carries."""
    packet_overhead_bytes: Annotated[int, Integer(0)]
    """The bytes of headers in a packet: IP, TCP and the link's own."""
    message_overhead_bytes: Annotated[int, Integer(0)]
    """The bytes that MQTT, and TLS if used, add to a message: topic, headers, acknowledgement."""
    loss: Annotated[float, Real(0.0, BELOW_1)]
    """The share of packets that must be sent again, in [0, 1)."""
    resend_s: Amount
    """The time until the sender notices a lost packet."""
    radio_w: Amount
    """The power of the interface while it sends or receives, in addition to that of the idle board."""
    verified: Mapping[str, Provenance]
    """For each of LINK_GROUPS the source of the figures: one of PROVENANCE."""
    source_url: ProfileSource
    note: ProfileText = ""

    def transfer_s(self, size_bytes: int, *, up: bool) -> float:
        """Return the mean time in seconds until a message of `size_bytes` bytes has arrived.

        It is latency + air time + packets * loss / (1 - loss) * resend_s.
        """
        packets = self._packets(size_bytes)
        return self.latency_s + self.air_s(size_bytes, up=up) + packets * self.loss / (1.0 - self.loss) * self.resend_s

    def air_s(self, size_bytes: int, *, up: bool) -> float:
        """Return the time in seconds to transmit a message of `size_bytes` bytes, lost packets included.

        It is (message + packets * overhead) / (rate * (1 - loss)).
        """
        rate = self.up_bytes_per_s if up else self.down_bytes_per_s
        whole = size_bytes + self.message_overhead_bytes + self._packets(size_bytes) * self.packet_overhead_bytes
        return whole / (rate * (1.0 - self.loss))

    def _packets(self, size_bytes: int) -> int:
        return math.ceil((size_bytes + self.message_overhead_bytes) / self.packet_bytes)


def boards() -> tuple[str, ...]:
    """Return the names of all boards in firmware_profiles, sorted."""
    return _names("boards")


def links() -> tuple[str, ...]:
    """Return the names of all links in firmware_profiles, sorted."""
    return _names("links")


def load_board(name: str) -> Board:
    """Return the board of that name, or in that .toml file.  Raises UsageError for an unknown name or a wrong file.

    If the link of a board from a file is a file, too, it is looked for in the same folder.
    """
    board = parse_board(*_text("boards", "board", name))
    return board if name in _shipped("boards") else _with_link(board, Path(name))


def load_link(name: str) -> Link:
    """Return the link of that name, or in that .toml file.  Raises UsageError for an unknown name or a wrong file."""
    return parse_link(*_text("links", "link", name))


@lru_cache(maxsize=64)
def parse_board(text: str, where: str) -> Board:
    """A board from TOML.  Raises UsageError naming `where`, the key and what is allowed."""
    return read_board(toml.loads(text, where), where)


def read_board(table: Mapping[str, Any], where: str) -> Board:
    """A board from a table.  Raises UsageError naming `where`, the key and what is allowed."""
    board = read_table(Board, table, f"{where}: ")
    _check_verified(board.verified, BOARD_GROUPS, where)
    if board.busy_w < board.idle_w:
        raise UsageError(
            f"{where}: busy_w: expected at least idle_w, which is {board.idle_w:g}, found {board.busy_w:g}"
        )
    return board


@lru_cache(maxsize=64)
def parse_link(text: str, where: str) -> Link:
    """A link from TOML.  Raises UsageError naming `where`, the key and what is allowed."""
    link = read_table(Link, toml.loads(text, where), f"{where}: ")
    _check_verified(link.verified, LINK_GROUPS, where)
    return link


def _check_verified(verified: Mapping[str, str], groups: tuple[str, ...], where: str) -> None:
    """Raise UsageError unless each group of figures names its source."""
    if set(verified) != set(groups):
        raise UsageError(f"{where}: verified: expected {', '.join(groups)}, found {', '.join(verified) or 'none'}")


def detect(model_file: Path = DEVICE_TREE_MODEL, machine: str | None = None) -> str:
    """Guess this machine's board: a name of `boards()`, or the processor's architecture.

    On a board Linux reports the model's name in the device tree; a PC has no device tree.
    """
    try:
        model = model_file.read_bytes().decode("utf-8", "replace")
    except OSError:
        model = ""
    for name in boards() if model else ():
        known = toml.loads(*_text("boards", "board", name)).get("device_tree_model")
        if known and known in model:
            return name
    arch = (platform.machine() if machine is None else machine).lower()
    return "x86" if arch in _X86_NAMES else arch or "unknown"


def board_here(say: Callable[[str], None] = lambda _line: None, name: str = "") -> Board:
    """Return this machine's profile, or the generic one with a warning in one line.

    name: the board's name from its owner, or empty to detect it.  say: receives the line.
    """
    found = name or detect()
    if found in boards():
        return load_board(found)
    say(
        f"board {found}: it has no profile, so the figures of {GENERIC} are used; "
        "`edge-sdk boards --measure` makes its own"
    )
    return load_board(GENERIC)


def _with_link(board: Board, file: Path) -> Board:
    """Return a board from a file with the full path of its link.  Raises UsageError if the link cannot be loaded."""
    link = str((file.parent / board.link).resolve()) if board.link.endswith(SUFFIX) else board.link
    try:
        load_link(link)
    except UsageError as error:
        raise UsageError(f"{file}: link: {error}") from None
    return replace(board, link=link)


def _names(folder: str) -> tuple[str, ...]:
    return tuple(_shipped(folder))


@cache
def _shipped(folder: str) -> Mapping[str, str]:
    """Return the profiles in firmware_profiles, as TOML by name, sorted."""
    entries = [entry for entry in (files("firmware_profiles") / folder).iterdir() if entry.name.endswith(SUFFIX)]
    texts = {entry.name[: -len(SUFFIX)]: entry.read_text(encoding="utf-8") for entry in entries}
    return dict(sorted(texts.items()))


def _text(folder: str, kind: str, name: str) -> tuple[str, str]:
    """Return a profile's TOML, and its name for error messages."""
    if name in _shipped(folder):
        return _shipped(folder)[name], f"{folder}/{name}.toml"
    if not name.endswith(SUFFIX):
        raise UsageError(
            f"{kind} {name!r}: no such name; there are {', '.join(_names(folder))}, "
            f"or name a file that ends in {SUFFIX}"
        )
    try:
        return Path(name).read_text(encoding="utf-8"), name
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(
            f"{kind} {name!r}: cannot be read ({why}); the boards and links that come with it: "
            f"{', '.join(_names(folder))}"
        ) from None
