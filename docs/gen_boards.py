"""Writes docs/reference/boards.md from the profiles and the classes that read them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from edge_sdk import board
from edge_sdk.board import Board, Link, load_board, load_link

PAGE = Path(__file__).parent / "reference" / "boards.md"

HEAD = """\
# Boards and links

What a simulated device computes with and talks over. A profile is one TOML file in `firmware_profiles/boards/` or
`firmware_profiles/links/`; a `[[fleet]]` row names one (`board = "rpi4"`, `link = "lte-cat1"`), or a file of your own
beside the federation's (`board = "my-board.toml"`). `edge-sdk boards` lists them, `edge-sdk boards --measure` makes one
of the machine that it runs on. This page is written by `docs/gen_boards.py`.

Every figure has its unit in its name, and every group of figures says whether it was *measured*, stands in a
*datasheet*, or is an *estimate*. `source_url` says where. A profile that lacks a field, a unit or a source is refused,
in one line. An estimate is what it says: measure your board before you believe an hour of it.

## How time comes of it

Training and inference take, each, `max(flops / flops_per_s, bytes / memory_bytes_per_s) + calls * call_s`: the
roofline, and what Python and the runtime add for each layer. The FLOPs, bytes and calls are those of the model at hand,
counted once when it is built: FLOPs of its linear and convolution layers; bytes that its layers write and read, and its
weights; calls of layers. A training step counts as three forward passes. A message takes
`latency_s + (message + headers) / (rate * (1 - loss)) + packets * loss / (1 - loss) * resend_s`, on average over what
is lost, so that a run repeats bit for bit.
"""

FIELDS = """\
## Fields

Groups of `verified` for a board: {board_groups}; for a link: {link_groups}.
"""


def page() -> str:
    """The whole page."""
    boards, links = [load_board(name) for name in board.boards()], [load_link(name) for name in board.links()]
    groups = (", ".join(f"`{name}`" for name in names) for names in (board.BOARD_GROUPS, board.LINK_GROUPS))
    fields = FIELDS.format(**dict(zip(("board_groups", "link_groups"), groups, strict=True)))
    return "\n".join(
        [
            HEAD,
            "## Boards\n",
            *map(_board, boards),
            "## Links\n",
            *map(_link, links),
            fields,
            *_fields(Board),
            "",
            *_fields(Link),
            "",
        ]
    )


def _board(each: Board) -> str:
    rows = (
        ("memory", f"{each.ram_bytes / 2**30:g} GiB"),
        ("cpu", f"{each.cores} x {each.cpu_hz / 1e9:g} GHz, {each.arch}"),
        (
            "speed",
            (
                f"training {each.train_flops_per_s / 1e9:g} GFLOP/s, inference {each.infer_flops_per_s / 1e9:g} GFLOP/s"
                f", {each.memory_bytes_per_s / 1e9:g} GB/s, {each.call_s * 1e6:g} us a call"
            ),
        ),
        ("storage", f"{each.disk_bytes_per_s / 1e6:g} MB/s"),
        ("power", f"{each.idle_w:g} W idle, {each.busy_w:g} W busy"),
        (
            "thermal",
            f"{each.throttled_share:.0%} of its speed after {each.throttles_after_s:g} s"
            if each.throttles_after_s
            else "never throttles",
        ),
    )
    return _profile(each, rows)


def _link(each: Link) -> str:
    rows = (
        ("rate", f"{each.up_bytes_per_s / 1e6:g} MB/s up, {each.down_bytes_per_s / 1e6:g} MB/s down"),
        ("latency", f"{each.latency_s * 1e3:g} ms one way"),
        (
            "packets",
            (
                f"{each.packet_bytes} B of {each.packet_bytes + each.packet_overhead_bytes} B"
                f", {each.message_overhead_bytes} B a message"
            ),
        ),
        ("loss", f"{each.loss:.0%}, noticed after {each.resend_s * 1e3:g} ms"),
        ("power", f"{each.radio_w:g} W while it sends or receives"),
    )
    return _profile(each, rows)


def _profile(each: Board | Link, rows: tuple[tuple[str, str], ...]) -> str:
    lines = [f"| {group} | {figures} | {each.verified[group]} |" for group, figures in rows]
    head = f"### {each.name}\n\n{each.title}. {each.note}\nSource: <{each.source_url}>.\n"
    return "\n".join([head, "| | figures | |", "|---|---|---|", *lines, ""])


def _fields(profile: type) -> list[str]:
    """A table of a dataclass's fields, with the words that follow each in its source."""
    source = inspect.getsource(profile)
    rows = []
    for field in dataclasses.fields(profile):
        found = re.search(rf'^    {field.name}: [^\n]*\n    """(.+?)"""', source, re.MULTILINE | re.DOTALL)
        needed = "" if field.default is dataclasses.MISSING else f" (default {field.default!r})"
        rows.append(f"| `{field.name}` | {' '.join(found[1].split()) if found else ''}{needed} |")
    return [f"| {profile.__name__.lower()} | |", "|---|---|", *rows]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
