"""From a server's record to the Result of a run."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import sys
from collections.abc import Mapping

from coordinator import admission
from coordinator.report.result import DeviceResult, Result, RoundResult
from coordinator.rounds import Phase
from coordinator.server import Server

PACKAGES = ("edge-sdk", "numpy", "msgpack", "paho-mqtt", "torch", "onnxruntime", "scikit-learn")


def history(server: Server) -> tuple[RoundResult, ...]:
    """Round by round, with the accuracies that devices reported for it."""
    record = server.record
    return tuple(dataclasses.replace(r, accuracy=record.accuracy.get(r.round, {})) for r in record.rounds)


def device_result(server: Server, name: str) -> DeviceResult:
    """What a coordinator knows of one device that joined."""
    record, hello = server.record, server.hellos[name]
    return DeviceResult(
        id=name,
        number=server.numbers[name],
        board=hello.board,
        model=hello.model,
        runtime=hello.runtime,
        note=hello.note,
        learns=admission.learns(hello, server.method.contract),
        samples=hello.samples,
        class_counts=hello.class_counts,
        accuracy=record.last_accuracy(name),
        bytes_up=record.bytes_up[name],
        bytes_down=record.bytes_down[name],
        rounds_done=record.rounds_done[name],
    )


def result(server: Server, devices: tuple[DeviceResult, ...], transport: str, time: Mapping[str, float]) -> Result:
    """The outcome of a run, as far as a coordinator knows it."""
    record, spec = server.record, server.spec
    return Result(
        federation=spec.federation,
        method=spec.method,
        seed=spec.seed,
        rounds=spec.rounds,
        completed=server.rounds.phase is Phase.DONE,
        rounds_done=len(record.rounds),
        devices=devices,
        history=history(server),
        updates={name: record.updates[name] for name in ("accepted", "duplicate", "stale", "refused")},
        refused_frames={sender: dict(kinds) for sender, kinds in sorted(record.refused_frames.items())},
        refused_devices=tuple(record.refused_devices[name] for name in sorted(record.refused_devices)),
        warnings=server.warnings,
        time=dict(time),
        versions=versions(),
        transport=transport,
        reason=server.rounds.reason,
    )


def versions() -> dict[str, str]:
    """Of what a figure may depend on."""
    installed = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions()}
    found = {name: installed[name] for name in PACKAGES if name in installed}
    return {"python": platform.python_version(), "platform": f"{sys.platform}-{platform.machine()}", **found}
