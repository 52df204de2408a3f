"""Writes docs/reference/boards.md and scenarios.md from the profiles and the classes that read them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from field_tables import fields_table  # beside this script

from coordinator.federation_table import FederationTable
from edge_sdk.boards import profiles
from edge_sdk.boards.profiles import Board, Link, load_board, load_link
from edge_sdk.tools.boards_command import System, systems
from edge_sim.config.device_conditions import DeviceConditions
from edge_sim.config.scenario import ScenarioTable
from edge_sim.config.settings import FaultsTable

PAGES = Path(__file__).parent / "reference"

HEAD = """\
# Boards and links

The hardware and the links of simulated devices. A profile is one TOML file in `firmware_profiles/boards/` or
`firmware_profiles/links/`; a `[[fleet]]` row names one (`board = "rpi4"`, `link = "lte-cat1"`), or a file of your own
beside the federation's (`board = "my-board.toml"`), whose own link may be a file beside the board's. `edge-sdk boards`
lists them, `edge-sdk boards --measure` makes one of the machine that it runs on. A device on a board without a profile
takes that of `generic`, with one message. `docs/gen_fleet.py` writes this page.

Every figure has its unit in its name, and every group of figures is marked as *measured*, from a *datasheet*, or an
*estimate*; `source_url` has its source. A profile that lacks a field, a unit or a source is refused, in one line.
Measure your board before you rely on an estimate.

## How time is computed

Training and inference take, each, `max(flops / flops_per_s, bytes / memory_bytes_per_s) + calls * call_s`: the
roofline, and what Python and the runtime add for each layer. The FLOPs, bytes and calls are those of the model at hand,
counted once when it is built: FLOPs of its linear and convolution layers; bytes that its layers write and read, and its
weights; calls of layers. A training step counts as three forward passes. A message takes
`latency_s + (message + headers) / (rate * (1 - loss)) + packets * loss / (1 - loss) * resend_s`, on average over
losses, so that a run repeats bit for bit. The bytes that a device makes durable in an exchange, at a round's start its
model with the optimiser's moments, take their size / `disk_bytes_per_s`.

**How well.** `benchmarks/simulation/virtual_time.py` times nets that no fit has seen.
With the x86 profile, on a machine that was
busy with other work, predictions of training steps were typically off by a factor of 1.5, of inference passes by 1.9
(twelve nets from 0.01 to 24 MFLOP a sample); by FLOPs alone, one net would be 23 times as fast as another. Profiles of
other boards are scaled from that one, and are further off. Comparisons between methods on one fleet suffer least.

**What it leaves out.** The coordinator's own computing takes no virtual time. Devices on one access point do not slow
each other down. The radio's idle draw is in the board's.

## Measure your own

```sh
pip install 'edge-sdk[toml]'
edge-sdk boards --measure --name lab-pi --write . --state /path/to/state --broker mqtt://lab:1883
```

This times training and inference of small and large nets through the code that trains on a device (torch where it is
installed, else numpy), fits the figures of speed, reads memory and clock, times the disk, and with `--broker` the link,
as `lab-pi-link`. It prints the error of the fit, and warns if other programs keep the machine busy. Power and heat
cannot be measured from inside: they come from the nearest profile, marked as estimates, until you replace them by your
meter's figures.
"""

POLICY = ("quorum", "participants", "over_selection", "deadline_s", "retry_s", "join_grace_s", "patience")
"""Keys of [federation]."""

SCENARIOS = """\
# Scenarios

The faults of a simulated fleet, and the coordinator's reactions. All of it follows from `federation.seed`: the same
file gives the same run, bit for bit on one type of processor (kernels of torch and numpy round differently by
instruction set). The session, the rounds, the codec and the ledger are those of a deployment; only power, links,
clocks and time are simulated. How to use it: [simulate a fleet](../how-to/simulate-a-fleet.md). `docs/gen_fleet.py`
writes this page.

The devices alone, with which a run is compared, have no faults, and so have runs over a broker (`--broker embedded`,
real boards), where faults are real.

## [[fleet]]: what happens to these devices

{fleet}

A device is off because of its hours, a power cut, an empty battery or its end. Its computation is lost; when it
restarts, it continues from its store, as a board does. Meanwhile it draws no power. A run ends without the devices that
are off.

Built-in `byzantine` functions, all of `edge_sim.byzantine`: `flip_signs`, `flip_ten` (times -10), `magnify` (times
10), `noise`, `swap_classes`, `little_is_enough`, `rubbish`, which sends random bytes instead of uploads, and
`inflate_counts`, which flips signs and claims the maximum number of samples, when the device joins and in every
upload: [hostile devices](../how-to/hostile-devices.md). Your own takes the knowledge of an upload and a random
generator, and returns knowledge with the same roles, payload kinds and kinds of arrays. One that cannot be called in
this way is refused before the run; one that raises or returns something else ends it, with one line.

## [scenario]: what happens to all

{scenario}

## [faults]: single frames

{faults}

## [federation]: what the coordinator does about it

{policy}

A round with `participants` draws them by a hash of seed, round and device, and closes with that number of answers. With
`over_selection` it asks `participants / rate` devices, where rate = (answered + 2) / (asked + 2), at least 0.1. Devices
that miss the deadline count as not answered. If enough others answered first, a device counts once its answer comes
later, or once it is away by the next round. The closing exchange asks all devices.

## Warnings and refusals before a run

- a model in a runtime that the board's profile does not name;
- a device whose memory does not hold its model, with the sum: runtime, weights, gradients, moments and a copy of them
  (with two more where weights are shared), activations of a batch, samples; 128 MiB are left to the system;
- a deadline that no device can meet: training, on a cold board, and the messages around it;
- an unknown board or link; an invalid window, time or function;
- `charge_w` without a battery; a loss of the broker or the coordinator after `until_days`.

The report of a run remarks on settings without effect: a loss after the run was over, and keys of `[run]` that its
engine does not read.
"""

SYSTEMS = """\
## Operating systems

What installs edge-sdk on a board, with versions that were tried together: those of `aarch64` with Python 3.11 and of
`armv7l` on the emulated boards of [arm64](../results/arm64.md), those of other Pythons as far as pip finds builds of
them all. No line was tried on a Jetson. [Put it on a board](../how-to/put-it-on-a-board.md) says what comes next.
"""

FIELDS = """\
## Fields

Groups of `verified` for a board: {board_groups}; for a link: {link_groups}.
"""


def boards_page() -> str:
    """docs/reference/boards.md."""
    boards, links = [load_board(name) for name in profiles.boards()], [load_link(name) for name in profiles.links()]
    groups = (", ".join(f"`{name}`" for name in names) for names in (profiles.BOARD_GROUPS, profiles.LINK_GROUPS))
    fields = FIELDS.format(**dict(zip(("board_groups", "link_groups"), groups, strict=True)))
    return "\n".join(
        [
            HEAD,
            "## Boards\n",
            *map(_board, boards),
            "## Links\n",
            *map(_link, links),
            SYSTEMS,
            *(_system(system, boards) for system in systems().values()),
            fields,
            "### Of a board\n",
            *fields_table(Board),
            "\n### Of a link\n",
            *fields_table(Link),
            "\n### Of an operating system\n",
            *fields_table(System),
            "",
        ]
    )


def scenarios_page() -> str:
    """docs/reference/scenarios.md."""
    tables = {
        "fleet": fields_table(DeviceConditions),
        "scenario": fields_table(ScenarioTable),
        "faults": fields_table(FaultsTable),
        "policy": fields_table(FederationTable, *POLICY),
    }
    return SCENARIOS.format(**{name: "\n".join(rows) for name, rows in tables.items()})


def pages() -> dict[str, str]:
    """Texts by file name."""
    return {"boards.md": boards_page(), "scenarios.md": scenarios_page()}


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


def _system(each: System, boards: list[Board]) -> str:
    names = ", ".join(f"`{board.name}`" for board in boards if each.name in board.systems)
    gpu = f"\nTraining on the GPU: {each.gpu}" if each.gpu else ""
    lines = "\n".join((*each.install, *([f"{each.onnx}  # with ONNX Runtime"] if each.onnx else [])))
    return (
        f"### {each.name}\n\n{each.title}: {each.arch}, its own Python is {each.python}. Boards: {names}.\n"
        f"{each.limits} {each.note}".rstrip()
        + f"{gpu}\nSource: <{each.source_url}>.\n\n```sh\n{lines}\n```\n"
    )


def _profile(each: Board | Link, rows: tuple[tuple[str, str], ...]) -> str:
    lines = [f"| {group} | {figures} | {each.verified[group]} |" for group, figures in rows]
    head = f"### {each.name}\n\n{each.title}. {each.note}\nSource: <{each.source_url}>.\n"
    return "\n".join([head, "| | figures | |", "|---|---|---|", *lines, ""])


if __name__ == "__main__":
    for name, text in pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")
