"""A secure lab whose service changes: devices take no generation but the coordinator's, whoever sends which."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import fleets
import labs
import pytest
from test_hostile import ROGUE, TAMPERED, WIDE, Sent, record

from coordinator.ledger import Ledger
from edge_sdk.device.store import MemoryStore
from edge_sdk.identity.folder import open_identity
from edge_sdk.identity.signatures import Role
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import Welcome

SECOND, FORGED = 0.005, 5.0
"""The learning rates of the second generation, and of those that nobody began."""


def service(folder: Path, pictures: Path, ledger: str, rate: float, stores: dict[str, MemoryStore]) -> fleets.Run:
    tables = fleets.tables(pictures, "fedavg", 2, rounds="forever", every="1min")
    tables["train"]["learning_rate"] = rate
    tables["scenario"] = {"until_days": 0.003}
    config = fleets.settings.parse(tables, Path("test.toml"))
    run = fleets.Run(config, secured=folder, ledger=Ledger(folder / ledger), stores=stores)
    for device in stores:
        run.slow_down(device, 1.0)
    return run


class Stopped(Exception):
    """The coordinator was stopped."""


def stop() -> None:
    raise Stopped


def forged(welcome: Welcome, devices: list[Path]) -> dict[str, bytes]:
    """A generation that nobody began, as those send it who have no key of the coordinator."""
    train = dataclasses.replace(welcome.spec.train, learning_rate=FORGED)
    spec = dataclasses.replace(welcome.spec, train=train)
    frame = codec.encode(dataclasses.replace(welcome, spec=spec, run=b"\x07" * len(welcome.run)))
    found = {kind: TAMPERED[kind](frame, random.Random(1)) for kind in ("strip", "foreign coordinator")}
    insider = open_identity(devices[1], Role.DEVICE)  # a device that takes part
    signer = insider.started()
    found["insider"] = codec.encode(codec.decode(frame, WIDE).message, signer.stamp(), signer.sign)
    return found


def lived(folder: Path, pictures: Path, devices: list[Path], *, attacked: bool) -> fleets.Run:
    """Two rounds of a generation, and then the second one to its end, with or without an attack on it."""
    ledger = f"ledger-{attacked}.db"
    stores = {path.name: MemoryStore() for path in devices}
    run = service(folder, pictures, ledger, 0.05, stores)
    earlier: list[Sent] = record(run)
    run.clock.at(70.0, stop)
    with pytest.raises(Stopped):
        run.run()
    run.server.close()
    run = service(folder, pictures, ledger, SECOND, stores)
    if attacked:
        welcome = next(m for m in (codec.decode(frame, WIDE).message for _, frame in earlier) if isinstance(m, Welcome))
        topic = next(topic for topic, _ in earlier if topic.endswith("/join") and welcome.device in topic)
        rogue, sent = run.hub.link(ROGUE), [*earlier, *((topic, each) for each in forged(welcome, devices).values())]
        rogue.connect([])
        for number, (where, frame) in enumerate(sent):
            run.clock.at(0.5 + 0.05 * number, lambda where=where, frame=frame: rogue.send(where, frame, retain=True))
    return run.finished()


def test_forged_and_replayed_generations_are_refused_counted_and_change_nothing(tmp_path: Path, pictures: Path) -> None:
    devices = labs.enrolled(labs.made(tmp_path), "device-00", "device-01")
    clean = lived(tmp_path, pictures, devices, attacked=False)
    run = lived(tmp_path, pictures, devices, attacked=True)
    assert run.result.completed
    assert run.result.rounds_done == clean.result.rounds_done > 4
    assert run.model_bytes == clean.model_bytes
    assert run.coordinator_bytes == clean.coordinator_bytes
    by_devices, by_coordinator = run.server.record.refused_by_devices, run.result.refused_frames
    assert by_devices["device-00"]["signature"] >= 3
    assert all(by_devices[path.name]["replayed"] for path in devices)
    assert all(by_coordinator[path.name]["replayed"] for path in devices)
    assert not clean.server.record.refused_by_devices
