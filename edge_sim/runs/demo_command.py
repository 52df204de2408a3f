"""The command `edge-sdk demo`: a whole federation in memory, on a base install, explained to app developers."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from coordinator.record.units import human_bytes, human_seconds, percent
from coordinator.results.figures.result import DeviceResult, Result
from coordinator.results.report.summary import summary, summary_text
from coordinator.results.report.tables import Column, Table, plain_text
from edge_sim.config import settings
from edge_sim.models.families import FAMILIES
from edge_sim.runs.runner import run

FILE = Path(__file__).parents[1] / "quickstart.toml"
"""The settings of the demo's federation."""
COLUMNS = (
    Column("device"),
    Column("its own model"),
    Column("knows", optional=1),
    Column("alone", right=True),
    Column("with the others", right=True),
)


def command(args: argparse.Namespace) -> int:
    """Run the federation, and print its setup, its results and the next steps."""
    config = settings.load_config(FILE, [f"federation.seed={args.seed}"])
    if args.json:
        sys.stdout.write(summary_text(summary(run(config))))
        return 0
    honest = config.federation.quorum or config.federation.devices
    sys.stdout.write(
        f"{honest} devices learn to read the digits 0 to 9.  Each has pictures of only 3 digits, and its own kind of\n"
        "model.  No picture and no model leaves a device: devices send what they predict for pictures without\n"
        f"labels that all of them have (method {config.federation.method}).  One more device is broken: it sends\n"
        "random bytes.\n\n"
    )
    sys.stdout.flush()
    begun_s = time.monotonic()
    result = run(config)
    sys.stdout.write(plain_text(_table(result)))
    sys.stdout.writelines(f"{line}\n" for line in _said(result, time.monotonic() - begun_s))
    return 0 if result.completed else 1


def _broken(result: Result) -> list[DeviceResult]:
    """Return the devices whose messages were refused."""
    return [device for device in result.devices if device.id in result.refused_frames]


def _table(result: Result) -> Table:
    left_out = _broken(result)
    return Table(columns=COLUMNS, rows=tuple(_row(device) for device in result.devices if device not in left_out))


def _row(device: DeviceResult) -> tuple[str, ...]:
    accuracies = (device.standalone_accuracy, device.accuracy)
    known = " ".join(map(str, device.classes))
    shown = ("-" if each is None else percent(each) for each in accuracies)
    return (device.id, FAMILIES[device.model].description, known, *shown)


def _said(result: Result, took_s: float) -> Iterator[str]:
    left_out = _broken(result)
    honest = [device for device in result.devices if device not in left_out]
    alone, together = (
        sum(value or 0.0 for value in values) / len(honest)
        for values in (
            [device.standalone_accuracy for device in honest],
            [device.accuracy for device in honest],
        )
    )
    yield f"Digits read correctly, of all ten: {percent(alone)} alone, {percent(together)} with the others' knowledge."
    rounds = result.rounds_done
    sent, received = (
        sum(values) / len(honest) / rounds
        for values in ([device.bytes_up for device in honest], [device.bytes_down for device in honest])
    )
    yield f"A device sent {human_bytes(sent)} and received {human_bytes(received)} in each of {rounds} rounds."
    for device in left_out:
        count = sum(result.refused_frames[device.id].values())
        yield (
            f"{device.id} was refused: {count} of its messages were invalid.  None of its data was used,\n"
            "and the others continued without it."
        )
    yield (
        f"\nAll of this ran here in {human_seconds(took_s)}: a coordinator, {len(result.devices)} devices, real "
        "messages, no broker."
    )
    yield f"Its settings: {FILE}"
    yield "\nNext:"
    yield "  edge-sdk new my-app          a project of your own: your data, your model, a coordinator, a test"
    yield "  edge-sdk methods             what devices can exchange, and what each method asks of a model"
    yield "  edge-sdk simulate --help     your fleet on this machine, before you buy it"
