"""The command `edge-sdk boards`: all profiles as tables for people, or as JSON, or a profile of this machine."""

from __future__ import annotations

import argparse
import dataclasses
import json
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from edge_sdk import toml
from edge_sdk.at_rest.files import unwritable
from edge_sdk.boards.profiles import (
    SUFFIX,
    Board,
    Link,
    ProfileSource,
    ProfileText,
    boards,
    links,
    load_board,
    load_link,
)
from edge_sdk.errors import UsageError
from edge_sdk.protocol.frames.schema import Items
from edge_sdk.protocol.toml_table import read_table
from edge_sdk.terminal import columns, room_of
from edge_sdk.tools.measure.profile import measure_board, measure_link, profile_toml


def command(args: argparse.Namespace) -> int:
    """List the profiles, or measure this machine's."""
    if args.measure:
        return _measure(args)
    _check_listing(args)
    sys.stdout.write(render_boards(args.json, room_of(sys.stdout)) + "\n")
    return 0


def _check_listing(args: argparse.Namespace) -> None:
    """Raise UsageError for what is only about a profile of this machine, where none is measured."""
    for option in ("name", "write", "state", "broker"):
        if getattr(args, option) is not None:
            raise UsageError(f"--{option}: has no effect without --measure, which makes a profile; add --measure")


def _measure(args: argparse.Namespace) -> int:
    toml.check_writer()
    name = args.default_name if args.name is None else args.name
    profiles: list[Board | Link] = [
        measure_board(name, args.state or Path(), say=lambda line: print(line, file=sys.stderr))  # noqa: T201
    ]
    if args.broker:
        profiles.append(measure_link(f"{name}-link", args.broker, f"doctor-{secrets.token_hex(6)}"))
    for profile in profiles:
        if args.write is None:
            sys.stdout.write(profile_toml(profile))
            continue
        file = args.write / f"{profile.name}.toml"
        try:
            file.write_text(profile_toml(profile), encoding="utf-8")
        except OSError as error:
            fault = f"{file}: cannot be written ({error.strerror}); give --write another folder"
            raise unwritable(error, fault) from None
        sys.stdout.write(f'{file}: in a [[fleet]] row, write {type(profile).__name__.lower()} = "{file.name}"\n')
    return 0


def render_boards(as_json: bool, room: int | None = None) -> str:
    """Return all profiles, as tables or as JSON; room: the width in characters, or None for any."""
    every_board, every_link = [load_board(name) for name in boards()], [load_link(name) for name in links()]
    if as_json:
        board_tables = [dataclasses.asdict(board) for board in every_board]
        link_tables = [dataclasses.asdict(link) for link in every_link]
        system_tables = [dataclasses.asdict(system) for system in systems().values()]
        return json.dumps({"boards": board_tables, "links": link_tables, "systems": system_tables}, indent=2)
    board_head = (
        "board",
        "what",
        "memory",
        "cores",
        "train / infer GFLOP/s",
        "MB/s",
        "power",
        "hot",
        "link",
        "runtimes",
    )
    link_head = ("link", "what", "up / down MB/s", "latency", "loss", "packet", "radio")
    board_rows = [board_head, *map(_board_row, every_board)]
    link_rows = [link_head, *map(_link_row, every_link)]
    texts = (_system_text(system, every_board) for system in systems().values())
    return "\n\n".join([columns(board_rows, room), columns(link_rows, room), *texts])


def _board_row(board: Board) -> tuple[str, ...]:
    return (
        board.name,
        board.title,
        f"{board.ram_bytes / 2**30:g} GiB",
        f"{board.cores} x {board.cpu_hz / 1e9:g} GHz",
        f"{board.train_flops_per_s / 1e9:g} / {board.infer_flops_per_s / 1e9:g} ({board.verified['speed']})",
        f"{board.memory_bytes_per_s / 1e6:g}",
        f"{board.idle_w:g} - {board.busy_w:g} W",
        f"{board.throttled_share:.0%} after {board.throttles_after_s:g} s" if board.throttles_after_s else "never",
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
        f"{link.packet_bytes} B",
        f"{link.radio_w:g} W",
    )


def _system_text(system: System, every_board: list[Board]) -> str:
    """Return facts and commands for the owner of a board with this system."""
    names = ", ".join(board.name for board in every_board if system.name in board.systems)
    about = [
        ("boards", names),
        ("limits", system.limits),
        ("on the GPU", system.gpu),
        ("note", system.note),
    ]
    lines = [f"{system.name}: {system.title}, {system.arch}, Python {system.python}"]
    lines += [f"  {what}: {text}" for what, text in about if text]
    lines += [f"  $ {line}" for line in system.install]
    lines += [f"  $ {system.onnx}  # with ONNX Runtime"] if system.onnx else []
    return "\n".join(lines)


# The operating systems of boards: their Python, the commands that install edge-sdk, and known limitations.
#
# Each is a TOML file in firmware_profiles/systems; a board's profile names those that run on it.


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """An operating system image for boards."""

    name: ProfileText
    title: ProfileText
    arch: ProfileText
    python: ProfileText
    """The version of the Python that the system brings."""
    install: Annotated[tuple[ProfileText, ...], Items(1, 8)]
    """Shell commands that install edge-sdk in ~/edge, in versions that were tested together."""
    onnx: ProfileText
    """The command that adds ONNX Runtime, or empty if this system has none."""
    limits: ProfileText
    """Known limitations, and untested parts."""
    source_url: ProfileSource
    gpu: ProfileText = ""
    """How to train on the board's GPU, or empty if boards with this system have none that trains."""
    note: ProfileText = ""


@cache
def systems() -> Mapping[str, System]:
    """Return all systems by name, sorted.  Raises UsageError naming the file, the key and what is allowed."""
    found = {}
    for entry in sorted((files("firmware_profiles") / "systems").iterdir(), key=lambda each: each.name):
        if entry.name.endswith(SUFFIX):
            where = f"systems/{entry.name}"
            found[entry.name[: -len(SUFFIX)]] = read_table(
                System, toml.loads(entry.read_text(encoding="utf-8"), where), f"{where}: "
            )
    return found
