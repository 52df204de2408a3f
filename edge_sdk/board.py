"""Boards and links: what a device can compute and how fast it can talk, read from firmware_profiles' data.

One TOML file per board or link; a new file there is a new board here.  Each group of figures says whether it was
measured, stands in a data sheet, or is an estimate.
"""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from edge_sdk.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RUNTIMES = ("numpy", "onnx", "torch")
PROVENANCE = ("measured", "datasheet", "estimate")
DEVICE_TREE_MODEL = Path("/proc/device-tree/model")
_X86_NAMES = frozenset({"x86_64", "amd64", "i386", "i686"})

_Profile = TypeVar("_Profile", "Board", "Link")


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A hardware profile."""

    name: str
    title: str
    arch: str
    ram_bytes: int
    cpu_hz: int
    cores: int
    train_flops_per_s: float
    """Sustained f32 operations per second of a small model: forward, backward and update."""
    infer_flops_per_s: float
    """The same, forward only."""
    idle_w: float
    busy_w: float
    runtimes: tuple[str, ...]
    """Which of RUNTIMES make sense on it."""
    link: str
    """The link that it usually has: a name of `links()`."""
    verified: Mapping[str, str]
    """Where the groups memory, cpu, speed and power come from: one of PROVENANCE each."""
    source_url: str
    flash_bytes: int = 0
    """Storage on the board; 0: none, it boots from a card."""
    device_tree_model: str = ""
    """Part of the model name that Linux gives on this board."""
    note: str = ""

    def compute_s(self, train_flops: float, infer_flops: float) -> float:
        """Seconds that so many operations of training and of inference take."""
        return train_flops / self.train_flops_per_s + infer_flops / self.infer_flops_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A network profile, as the device's own application sees it."""

    name: str
    title: str
    latency_s: float
    """One way."""
    up_bytes_per_s: float
    down_bytes_per_s: float
    loss: float
    """Share of packets that must be sent again, in [0, 1)."""
    verified: Mapping[str, str]
    """Where the groups rate, latency and loss come from: one of PROVENANCE each."""
    source: str
    note: str = ""

    def transfer_s(self, size_bytes: int, *, up: bool) -> float:
        """Seconds until so many bytes are across: latency + size / (rate * (1 - loss))."""
        rate = self.up_bytes_per_s if up else self.down_bytes_per_s
        return self.latency_s + size_bytes / (rate * (1.0 - self.loss))


def boards() -> tuple[str, ...]:
    """The names of all boards, sorted."""
    return _names("boards")


def links() -> tuple[str, ...]:
    """The names of all links, sorted."""
    return _names("links")


def load_board(name: str) -> Board:
    """The board of that name.  Raises UsageError where there is none or its file is wrong."""
    return parse_board(_text("boards", "board", name), f"boards/{name}.toml")


def load_link(name: str) -> Link:
    """The link of that name.  Raises UsageError where there is none or its file is wrong."""
    return parse_link(_text("links", "link", name), f"links/{name}.toml")


def parse_board(text: str, where: str) -> Board:
    """A board from TOML.  Raises UsageError naming `where`, the key and what is allowed."""
    board = _parse(Board, text, where)
    _check_verified(board.verified, ("memory", "cpu", "speed", "power"), where)
    unknown = sorted(set(board.runtimes) - set(RUNTIMES))
    if unknown:
        raise UsageError(f"{where}: runtimes: {unknown[0]!r} is not one of {', '.join(RUNTIMES)}")
    positive = ("ram_bytes", "cpu_hz", "cores", "train_flops_per_s", "infer_flops_per_s", "busy_w")
    _check_range(board, positive, lambda value: value > 0, "above 0", where)
    _check_range(board, ("idle_w", "flash_bytes"), lambda value: value >= 0, "0 or above", where)
    return board


def parse_link(text: str, where: str) -> Link:
    """A link from TOML.  Raises UsageError naming `where`, the key and what is allowed."""
    link = _parse(Link, text, where)
    _check_verified(link.verified, ("rate", "latency", "loss"), where)
    _check_range(link, ("up_bytes_per_s", "down_bytes_per_s"), lambda value: value > 0, "above 0", where)
    _check_range(link, ("latency_s",), lambda value: value >= 0, "0 or above", where)
    _check_range(link, ("loss",), lambda value: 0 <= value < 1, "from 0 to below 1", where)
    return link


def detect(model_file: Path = DEVICE_TREE_MODEL, machine: str | None = None) -> str:
    """The board that this machine most likely is: a name of `boards()`, else the processor's architecture.

    Linux on a board gives the model's name in its device tree; a PC has none.
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


def render_boards(as_json: bool) -> str:
    """All profiles, for people or as JSON."""
    every_board, every_link = [load_board(name) for name in boards()], [load_link(name) for name in links()]
    if as_json:
        board_tables = [dataclasses.asdict(board) for board in every_board]
        link_tables = [dataclasses.asdict(link) for link in every_link]
        return json.dumps({"boards": board_tables, "links": link_tables}, indent=2)
    board_head = ("board", "what", "memory", "cores", "train / infer GFLOP/s", "power", "link", "runtimes")
    link_head = ("link", "what", "up / down MB/s", "latency", "loss")
    board_rows = [board_head, *map(_board_row, every_board)]
    link_rows = [link_head, *map(_link_row, every_link)]
    return f"{_columns(board_rows)}\n\n{_columns(link_rows)}"


def _board_row(board: Board) -> tuple[str, ...]:
    return (
        board.name,
        board.title,
        f"{board.ram_bytes / 2**30:g} GiB",
        f"{board.cores} x {board.cpu_hz / 1e9:g} GHz",
        f"{board.train_flops_per_s / 1e9:g} / {board.infer_flops_per_s / 1e9:g} ({board.verified['speed']})",
        f"{board.idle_w:g} - {board.busy_w:g} W",
        board.link,
        " ".join(board.runtimes),
    )


def _link_row(link: Link) -> tuple[str, ...]:
    return (
        link.name,
        link.title,
        f"{link.up_bytes_per_s / 1e6:g} / {link.down_bytes_per_s / 1e6:g} ({link.verified['rate']})",
        f"{link.latency_s * 1e3:g} ms",
        f"{100 * link.loss:g} %",
    )


def _columns(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _names(folder: str) -> tuple[str, ...]:
    entries = (files("firmware_profiles") / folder).iterdir()
    return tuple(sorted(entry.name[: -len(".toml")] for entry in entries if entry.name.endswith(".toml")))


def _text(folder: str, kind: str, name: str) -> str:
    if name not in _names(folder):
        raise UsageError(f"{kind} {name!r}: there is none of that name; there are {', '.join(_names(folder))}")
    return (files("firmware_profiles") / folder / f"{name}.toml").read_text(encoding="utf-8")


def _parse(profile: type[_Profile], text: str, where: str) -> _Profile:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: is not TOML: {error}") from None
    fields = {field.name: field for field in dataclasses.fields(profile)}
    for key in table:
        if key not in fields:
            raise UsageError(f"{where}: {key}: {_unknown(key, list(fields))}")
    missing = [key for key, field in fields.items() if field.default is dataclasses.MISSING and key not in table]
    if missing:
        raise UsageError(f"{where}: {missing[0]}: is missing; it must be {_TYPES[str(fields[missing[0]].type)][0]}")
    return profile(**{key: _value(str(fields[key].type), value, f"{where}: {key}") for key, value in table.items()})


def _unknown(key: str, allowed: list[str]) -> str:
    """What to say of a key that is not known; most often its unit was left out."""
    full = [name for name in allowed if name.startswith(f"{key}_")]
    if full:
        return f"the unit is missing from the name; write {' or '.join(full)}"
    return f"unknown key; allowed are {', '.join(allowed)}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_TYPES: Mapping[str, tuple[str, Callable[[Any], bool], Callable[[Any], Any]]] = {
    "str": ("a string", lambda value: isinstance(value, str), str),
    "int": ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool), int),
    "float": ("a number", _is_number, float),
    "tuple[str, ...]": (
        "a list of strings",
        lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
        tuple,
    ),
    "Mapping[str, str]": (
        "a table of strings",
        lambda value: isinstance(value, dict) and all(isinstance(each, str) for each in value.values()),
        dict,
    ),
}
"""For a field's type as written above: what it is called, how it is recognised in TOML, how it is kept."""


def _value(annotation: str, value: object, where: str) -> Any:
    expected, fits, keep = _TYPES[annotation]
    if not fits(value):
        raise UsageError(f"{where}: expected {expected}, found {value!r}")
    return keep(value)


def _check_verified(verified: Mapping[str, str], groups: tuple[str, ...], where: str) -> None:
    if set(verified) != set(groups):
        raise UsageError(
            f"{where}: verified: needs exactly {', '.join(groups)}; it has {', '.join(verified) or 'none'}"
        )
    for group, word in verified.items():
        if word not in PROVENANCE:
            raise UsageError(f"{where}: verified.{group}: {word!r} is not one of {', '.join(PROVENANCE)}")


def _check_range(
    profile: Board | Link, keys: tuple[str, ...], fits: Callable[[float], bool], words: str, where: str
) -> None:
    for key in keys:
        if not fits(getattr(profile, key)):
            raise UsageError(f"{where}: {key}: must be {words}, found {getattr(profile, key)!r}")
