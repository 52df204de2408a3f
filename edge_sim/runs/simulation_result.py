"""The Result of a simulation, from the coordinator's record and the simulator's own knowledge."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from coordinator.record.round_result import RoundResult
from coordinator.results.figures.outcome import device_result, run_result
from coordinator.results.figures.result import DeviceResult, Result
from coordinator.serving.server import Server
from edge_sim.config.settings import CPU
from edge_sim.data.datasets import Dataset
from edge_sim.fleet.fleet import Device, Fleet
from edge_sim.fleet.hardware import DeviceCost

NOTHING: Mapping[str, float] = MappingProxyType({})
NOBODY = DeviceResult(id="", number=0)
"""Placeholder for a device that did not train alone."""


def simulation_result(
    server: Server,
    fleet: Fleet,
    *,
    transport: str,
    time: Mapping[str, float],
    standalone: Result | None = None,
    memory: Mapping[str, float] = NOTHING,
    resumed: Mapping[str, float] = NOTHING,
    spent: Mapping[str, DeviceCost] = MappingProxyType({}),
) -> Result:
    """Return the contents of a report.  spent: cost by device id, if metered.

    resumed: the cost of resuming after interrupts.
    """
    alone = {device.id: device for device in standalone.devices} if standalone else {}
    devices = tuple(
        _device(server, device, alone.get(device.kit.id, NOBODY), spent.get(device.kit.id, DeviceCost()))
        for device in fleet.devices
    )
    known = run_result(server, devices, transport, time)
    baseline = {f"standalone_{name}": value for name, value in standalone.metrics.items()} if standalone else {}
    return dataclasses.replace(
        known,
        history=_on_the_boards(known.history) if transport == "memory" else known.history,
        metrics={**known.metrics, **baseline},
        standalone_history=standalone.history if standalone else (),
        memory=memory,
        resumed=resumed,
        versions={**known.versions, "device": _device_name(fleet.device)},
        data=_data(fleet.dataset),
        card={**known.card, **_card(fleet.dataset)},
    )


def _data(dataset: Dataset) -> Mapping[str, Any]:
    """Describe the data set, and the devices' preprocessing if it is not the default."""
    found: dict[str, Any] = {"name": dataset.name, "sha256": dataset.sha256}
    if dataset.scaling.mean:
        found["normalise"] = {key: list(each) for key, each in dataclasses.asdict(dataset.scaling).items()}
    if dataset.augment:
        found["augment"] = dataclasses.asdict(dataset.augment)
    return found


def _card(dataset: Dataset) -> Mapping[str, Any]:
    """The data set's card, as plain values: `private` samples are divided among the devices."""
    samples = dataset.private.x
    counts = {"private": dataset.private.y, "test": dataset.test.y}
    public = {} if dataset.public is None else {"public": len(dataset.public.samples)}
    users = {} if dataset.users is None else {"users": len(np.unique(dataset.users))}
    return {
        "classes": dataset.classes,
        "shape": [*dataset.raw_shape],
        "type": str(samples.dtype),
        "range": [float(samples.min()), float(samples.max())],
        "scale": dataset.scale,
        "samples": {"source": dataset.source_samples, **{name: len(y) for name, y in counts.items()}, **public},
        "by_class": {name: np.bincount(y, minlength=dataset.classes).tolist() for name, y in counts.items()},
        **users,
        "seed": dataset.seed,
    }


def _device_name(device: str) -> str:
    """Describe the device on which models computed, with a GPU's name."""
    if device == CPU:
        return device
    from edge_sdk.models.torch_nets.torch_device import device_name

    return device_name(device)


def _on_the_boards(history: tuple[RoundResult, ...]) -> tuple[RoundResult, ...]:
    """Mark the times of rounds as virtual: in memory the server's clock is the virtual one."""
    return tuple(dataclasses.replace(entry, virtual_s=entry.wall_s, wall_s=0.0) for entry in history)


def _device(server: Server, device: Device, alone: DeviceResult, spent: DeviceCost) -> DeviceResult:
    kit = device.kit
    if kit.id in server.hellos:
        known = device_result(server, kit.id)
    else:
        known = DeviceResult(id=kit.id, number=kit.number, board=kit.board_name, model=kit.family, joined=False)
    return dataclasses.replace(
        known,
        link=kit.link_name,
        samples=device.held.counts.train,
        class_counts=device.held.class_counts(kit.classes),
        standalone_accuracy=alone.accuracy,
        standalone_steps=alone.steps,
        joules_source="profile" if spent.energy_j else "",
        **spent._asdict(),
    )
