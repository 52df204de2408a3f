"""The profiles of boards and links: how fast a board computes, and how fast a link transfers data.

Each profile is a TOML file in firmware_profiles, or any file whose path ends in .toml.  For each group of figures a
profile says whether they were measured, are taken from a data sheet, or are an estimate.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from edge_sdk.boards.toml_fields import check_range, check_source, check_verified, read_profile
from edge_sdk.errors import UsageError

RUNTIMES = ("numpy", "onnx", "torch")
DEVICE_TREE_MODEL = Path("/proc/device-tree/model")
BOARD_GROUPS = ("memory", "cpu", "speed", "storage", "power", "thermal")
"""The groups of figures of a board that come from one source each."""
LINK_GROUPS = ("rate", "latency", "packets", "loss", "power")
SUFFIX = ".toml"
_X86_NAMES = frozenset({"x86_64", "amd64", "i386", "i686"})


class Effort(NamedTuple):
    """The effort of some computing, the same on every board."""

    flops: float = 0
    bytes: float = 0
    """Bytes moved between memory and processor: activations and weights."""
    calls: float = 0
    """Calls of a layer; each call costs some time, even for a small layer."""

    def __sub__(self, before: Effort) -> Effort:
        return Effort(self.flops - before.flops, self.bytes - before.bytes, self.calls - before.calls)


NOTHING = Effort()


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The profile of a board."""

    name: str
    title: str
    arch: str
    ram_bytes: int
    cpu_hz: int
    cores: int
    train_flops_per_s: float
    """f32 operations per second in layers that are large enough: forward, backward and update."""
    infer_flops_per_s: float
    """f32 operations per second of the same layers in the forward pass."""
    memory_bytes_per_s: float
    """The rate of layers that compute little: bytes of activations and weights, read and written."""
    call_s: float
    """The additional time of each call of a layer, for Python and the runtime."""
    disk_bytes_per_s: float
    """The rate of durable writes."""
    idle_w: float
    """Power when idle."""
    busy_w: float
    """Power while computing, without the radio, whose power is in the link's profile."""
    throttles_after_s: float
    """Seconds of computing until the board is hot, and of rest until it is cold again; 0: it never throttles."""
    throttled_share: float
    """The share of its speed that is left when the board is hot, in (0, 1]."""
    runtimes: tuple[str, ...]
    """The RUNTIMES that can be used on it."""
    link: str
    """Its usual link: a name of `links()`, or, in a profile from a file, a .toml file beside it."""
    verified: Mapping[str, str]
    """For each of BOARD_GROUPS the source of the figures: one of PROVENANCE."""
    source_url: str
    flash_bytes: int = 0
    """Storage on the board; 0: none, it boots from a card."""
    battery_wh: float = 0.0
    """Capacity of the battery; 0: none, it has mains power."""
    device_tree_model: str = ""
    """A part of the model name that Linux reports on this board."""
    note: str = ""

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

    name: str
    title: str
    latency_s: float
    """The latency in one direction."""
    up_bytes_per_s: float
    down_bytes_per_s: float
    packet_bytes: int
    """The bytes of a message that one packet carries."""
    packet_overhead_bytes: int
    """The bytes of headers in a packet: IP, TCP and the link's own."""
    message_overhead_bytes: int
    """The bytes that MQTT, and TLS if used, add to a message: topic, headers, acknowledgement."""
    loss: float
    """The share of packets that must be sent again, in [0, 1)."""
    resend_s: float
    """The time until the sender notices a lost packet."""
    radio_w: float
    """The power of the interface while it sends or receives, in addition to that of the idle board."""
    verified: Mapping[str, str]
    """For each of LINK_GROUPS the source of the figures: one of PROVENANCE."""
    source_url: str
    note: str = ""

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
    """Return the board of that name, or in that .toml file.  Raises UsageError if there is none or the file is wrong.

    If the link of a board from a file is a file, too, it is looked for in the same folder.
    """
    board = parse_board(*_text("boards", "board", name))
    return board if name in _shipped("boards") else _with_link(board, Path(name))


def load_link(name: str) -> Link:
    """Return the link of that name, or in that .toml file.  Raises UsageError if there is none or the file is wrong."""
    return parse_link(*_text("links", "link", name))


@lru_cache(maxsize=64)
def parse_board(text: str, where: str) -> Board:
    """Read a board from TOML.  Raises UsageError that names `where`, the key and what is allowed."""
    board = read_profile(Board, text, where)
    check_source(board.source_url, where)
    check_verified(board.verified, BOARD_GROUPS, where)
    if not board.runtimes:
        raise UsageError(f"{where}: runtimes: is empty; name those that it has of {', '.join(RUNTIMES)}")
    unknown = sorted(set(board.runtimes) - set(RUNTIMES))
    if unknown:
        raise UsageError(f"{where}: runtimes: {unknown[0]!r} is not one of {', '.join(RUNTIMES)}")
    rates = ("train_flops_per_s", "infer_flops_per_s", "memory_bytes_per_s", "disk_bytes_per_s")
    check_range(board, ("ram_bytes", "cpu_hz", "cores", *rates, "busy_w"), lambda value: value > 0, "above 0", where)
    rest = ("call_s", "idle_w", "flash_bytes", "battery_wh", "throttles_after_s")
    check_range(board, rest, lambda value: value >= 0, "0 or above", where)
    check_range(board, ("throttled_share",), lambda value: 0 < value <= 1, "above 0, at most 1", where)
    at_least = f"at least idle_w, which is {board.idle_w:g}"
    check_range(board, ("busy_w",), lambda value: value >= board.idle_w, at_least, where)
    return board


@lru_cache(maxsize=64)
def parse_link(text: str, where: str) -> Link:
    """Read a link from TOML.  Raises UsageError that names `where`, the key and what is allowed."""
    link = read_profile(Link, text, where)
    check_source(link.source_url, where)
    check_verified(link.verified, LINK_GROUPS, where)
    positive = ("up_bytes_per_s", "down_bytes_per_s", "packet_bytes")
    check_range(link, positive, lambda value: value > 0, "above 0", where)
    rest = ("latency_s", "packet_overhead_bytes", "message_overhead_bytes", "resend_s", "radio_w")
    check_range(link, rest, lambda value: value >= 0, "0 or above", where)
    check_range(link, ("loss",), lambda value: 0 <= value < 1, "from 0 to below 1", where)
    return link


def detect(model_file: Path = DEVICE_TREE_MODEL, machine: str | None = None) -> str:
    """Return the board that this machine most likely is: a name of `boards()`, or the processor's architecture.

    On a board Linux reports the model's name in the device tree; a PC has no device tree.
    """
    try:
        model = model_file.read_bytes().decode("utf-8", "replace")
    except OSError:
        model = ""
    for board in map(load_board, boards()):
        if board.device_tree_model and board.device_tree_model in model:
            return board.name
    arch = (platform.machine() if machine is None else machine).lower()
    return "x86" if arch in _X86_NAMES else arch or "unknown"


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
            f"{kind} {name!r}: there is none of that name; there are {', '.join(_names(folder))}, "
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
