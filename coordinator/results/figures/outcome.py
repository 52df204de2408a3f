"""The Result of a run, made from what a coordinator has recorded."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import statistics
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from coordinator.record.round_result import CURVES, PREFIXES, RoundResult
from coordinator.results.figures.device_figures import FIELDS, by_round
from coordinator.results.figures.insight import Insight
from coordinator.results.figures.kinds import by_kind
from coordinator.results.figures.result import VERDICTS, DeviceResult, Result, unmeasured
from coordinator.results.figures.uplift import uplift
from coordinator.rounds import RoundPhase
from coordinator.serving.devices import admission
from coordinator.serving.server import Server
from edge_sdk.methods.contract.base import Method
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import ByClass
from edge_sdk.protocol.messages import FOREVER, Hello
from edge_sdk.protocol.transforms import encodings_in_use

PACKAGES = ("edge-sdk", "numpy", "msgpack", "paho-mqtt", "torch", "onnxruntime", "scikit-learn")


def round_results(server: Server) -> tuple[RoundResult, ...]:
    """The completed rounds, with the accuracies that devices reported for each."""
    record, summed = server.record, by_round()
    return tuple(
        dataclasses.replace(
            entry,
            sums={name: entry.sums[name] for name in summed if entry.sums.get(name)},
            **{name: getattr(record, name).get(entry.round, {}) for name in (*CURVES, "instruments")},
        )
        for entry in record.rounds
    )


def device_result(server: Server, name: str) -> DeviceResult:
    """The result of one device that joined, as far as a coordinator knows it."""
    record, hello = server.record, server.hellos[name]
    return DeviceResult(
        id=name,
        number=server.numbers[name],
        board=hello.board,
        model=hello.model,
        runtime=hello.runtime,
        note=_note(hello, server.method),
        learns=admission.learns(hello, server.method),
        samples=hello.samples,
        test_samples=hello.test_samples,
        class_counts=hello.class_counts,
        accuracy=record.last_accuracy(name),
        metrics=record.metrics.get(name, {}),
        bytes_up=record.bytes_up[name],
        bytes_down=record.bytes_down[name],
        rounds_done=record.rounds_done[name],
        waited_s=float(record.waiting.total_s[name]),
        joining=record.joining.get(name, {}),
        declined=dict(sorted(record.declined.get(name, {}).items())),
        silent=record.sums["silent"][name],
        busy_s=float(record.sums["busy_s"][name]),
        energy_j=float(record.sums["energy_j"][name]),
        joules_source=record.joules_source.get(name, ""),
        sums={of: count for of, found in record.sums.items() if of not in FIELDS and (count := found[name])},
    )


def run_result(server: Server, devices: tuple[DeviceResult, ...], transport: str, time: Mapping[str, float]) -> Result:
    """The result of a run, as far as a coordinator knows it."""
    record, spec = server.record, server.spec
    lifted = uplift(record.control)
    found = Result(
        federation=spec.federation,
        method=spec.method,
        seed=spec.seed,
        rounds=record.done if spec.rounds == FOREVER else spec.rounds,
        completed=server.rounds.phase is RoundPhase.DONE,
        rounds_done=record.done,
        devices=devices,
        history=round_results(server),
        updates={name: record.updates[name] for name in VERDICTS},
        refused_frames={sender: dict(kinds) for sender, kinds in sorted(record.refused_frames.items())},
        refused_by_devices={device: dict(kinds) for device, kinds in sorted(record.refused_by_devices.items())},
        refused_devices=tuple(record.refused_devices[name] for name in sorted(record.refused_devices)),
        warnings=server.warnings,
        scalars={way: record.scalars[way] for way in ("up", "down")},
        time=dict(time),
        versions=versions(),
        transport=transport,
        one_model=server.method.global_model,
        models=server.method.measured_models,
        class_names=spec.class_names,
        encoding=encodings_in_use(spec, server.method.every_exchange),
        reason=server.rounds.reason,
        missed=tuple(record.missed),
        stopped=record.stopped,
        privacy=server.method.promise(server.hellos.values()),
        uplift=lifted.to_json() if lifted else {},
        kinds=by_kind(record, spec.class_names) if spec.rounds == FOREVER else {},
        card={"measured": len(sample)} if (sample := server.rounds.policy.closed_with) else {},
    )
    return dataclasses.replace(found, metrics=means(found), warnings=(*found.warnings, *unmeasured(found)))


def means(result: Result) -> dict[str, float]:
    """The mean of each metric over the learning devices that measured it; of a model that all share, its last version.

    Who measured that version is decided by the model's accuracy.
    """
    last = {PREFIXES[model]: result.of_last_version(model) for model in result.models if PREFIXES[model]}
    found: dict[str, list[float]] = {}
    for device in result.devices:
        for name, value in device.metrics.items() if device.learns else ():
            if all(device.id in those for prefix, those in last.items() if those and name.startswith(prefix)):
                found.setdefault(name, []).append(value)
    return {f"{name}_mean": statistics.fmean(values) for name, values in sorted(found.items())}


def _note(hello: Hello, method: Method[Any]) -> str:
    """The note on a device's model: its own note, and this method's terms without effect on it."""
    inert = sorted(method.terms & set(hello.inert_terms))
    effects = [f"{', '.join(inert)} had no effect: the layers that it would train are frozen"] if inert else []
    return "; ".join([*filter(None, [hello.note]), *effects])


@cache
def versions() -> Mapping[str, str]:
    """The versions of Python, the platform and packages that a result may depend on; looked up once per process."""
    found = {"python": platform.python_version(), "platform": f"{sys.platform}-{platform.machine()}"}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def final_prototypes(server: Server) -> Insight:
    """An Insight with the rows of the first role that has any: prototypes, mean features or rows of last layers."""
    # of the last round: some methods send no rows in the closing exchange
    at = ExchangeId(max(0, server.spec.rounds - 1), 0)
    common = server.method.shown(server.method_state, at)
    for role in sorted(common):
        payload = common[role]
        if isinstance(payload, ByClass):
            rows = payload.vectors.astype(np.float32)
            return Insight(prototype_classes=payload.classes.astype(np.int64), prototypes=rows)
    return Insight()
