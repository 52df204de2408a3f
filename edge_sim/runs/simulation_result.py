"""The Result of a simulation, and the insight into its models, which only a simulation in memory has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from coordinator.record.round_result import RoundResult
from coordinator.results.figures.insight import Insight, principal_components
from coordinator.results.figures.intervals import half_width
from coordinator.results.figures.outcome import device_result, final_prototypes, run_result
from coordinator.results.figures.result import DeviceResult, Result
from coordinator.serving.server import Server
from edge_sdk.arrays import Floats, Ints
from edge_sdk.models.base import Model
from edge_sdk.objectives import softmax
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
        class_counts=_class_counts(device, known),
        standalone_accuracy=alone.accuracy,
        standalone_steps=alone.steps,
        joules_source="profile" if spent.energy_j else "",
        **spent._asdict(),
    )


def _class_counts(device: Device, known: DeviceResult) -> tuple[int, ...]:
    """Return how many training samples of each class a device has: what an honest one declared, if it did."""
    declared = known.class_counts if device.conditions.byzantine is None else ()
    return declared or device.held.class_counts(device.kit.classes)


MOST_PREDICTING, MOST_DRAWN = 100, 6
"""The first devices used: for the mean prediction, and for the drawn features."""
PER_CLASS = 15
"""Number of test samples of each class for the features."""
_BATCH = 256


Trained: TypeAlias = tuple[Device, Model]
"""A device, and its model at the end of the run."""


def model_insight(server: Server, models: Iterable[Trained], dataset: Dataset) -> tuple[Insight, tuple[str, ...]]:
    """Return predictions, features and prototypes of a run's models at its end, and a remark on left-out models.

    A model with non-finite outputs is left out: pictures cannot show it, and it would spoil the means.

    If no device received rows by class but all end with one model, its last layer gives the prototypes.
    models: of all devices, in the order of their numbers; only as many as needed are consumed.
    """
    found = final_prototypes(server)
    learning = list(islice((each for each in models if each[1].spec.terms), MOST_PREDICTING))
    predictions, silent = _predictions(learning, dataset)
    found = replace(found, predictions=predictions)
    if found.prototypes is None and (rows := _last_layer([model for _, model in learning])) is not None:
        found = replace(found, prototype_classes=np.arange(len(rows)), prototypes=rows)
    drawn, undrawn = _features(learning[:MOST_DRAWN], dataset)
    if drawn is not None:
        features, classes, devices = drawn
        points, explained = principal_components(features)
        found = replace(found, points=points, point_classes=classes, point_devices=devices, explained=explained)
    return found, _remark([device for device, _ in learning if device in {*silent, *undrawn}])


def _remark(left_out: Sequence[Device]) -> tuple[str, ...]:
    """Return one line about the devices whose models are left out, if any."""
    if not left_out:
        return ()
    more = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
    return (f"no picture of models shows {left_out[0].kit.id}{more}: its outputs are not finite",)


def _predictions(trained: Sequence[Trained], dataset: Dataset) -> tuple[Floats | None, list[Device]]:
    """Return (k, k), and the devices left out because their predictions are not finite.

    Row c is the mean of softmax(logits) over the other devices and the public samples of class c.
    """
    labels = dataset.public_labels
    if labels is None or dataset.public is None:
        return None, []
    each, left_out = [], []
    for device, model in trained:
        logits = _in_batches(model, dataset.public.samples, "logits")  # (n, k)
        if not np.isfinite(logits).all():
            left_out.append(device)
            continue
        sums = np.zeros((dataset.classes, dataset.classes))
        np.add.at(sums, labels, softmax(logits))
        each.append(sums / np.maximum(np.bincount(labels, minlength=dataset.classes), 1)[:, None])
    return np.mean(each, axis=0).astype(np.float32) if each else None, left_out


def _last_layer(models: Sequence[Model]) -> Floats | None:
    """Return the rows (k, d) of the last layer that all of these models share, without biases, or None."""
    if len(models) < 2 or not all("head-rows" in model.spec.capabilities for model in models):
        return None
    first, *others = (model.head_rows() for model in models)
    alike = np.isfinite(first).all() and all(np.array_equal(first, each) for each in others)
    return first[:, :-1] if alike else None


def _features(trained: Sequence[Trained], dataset: Dataset) -> tuple[tuple[Floats, Ints, Ints] | None, list[Device]]:
    """Return features (n, d) of some test samples on each device, their classes (n,) and device numbers (n,).

    They are None if models have no features, or features of different widths, which cannot be drawn together.  The
    list holds the devices left out because their features are not finite.
    """
    models = [model for _, model in trained]
    widths = {model.spec.feature_dim if "features" in model.spec.capabilities else 0 for model in models}
    if len(widths) != 1 or widths == {0}:
        return None, []
    truth = dataset.test.y
    chosen = np.concatenate([np.flatnonzero(truth == label)[:PER_CLASS] for label in np.unique(truth)])
    found = [(device, _in_batches(model, dataset.test.x[chosen], "features")) for device, model in trained]
    finite = [(device, features) for device, features in found if np.isfinite(features).all()]
    left_out = [device for device, features in found if not np.isfinite(features).all()]
    if not finite:
        return None, left_out
    classes = np.tile(truth[chosen].astype(np.int64), len(finite))
    numbers = np.repeat(np.array([device.kit.number for device, _ in finite], np.int64), len(chosen))
    return (np.concatenate([features for _, features in finite]), classes, numbers), left_out


def _in_batches(model: Model, samples: np.ndarray, what: str) -> Floats:
    x = model.spec.preprocess(samples)
    ask = model.logits if what == "logits" else model.features
    with np.errstate(all="ignore"):  # a model that is left out gives a remark, not numpy's warnings
        return np.concatenate([ask(x[start : start + _BATCH]) for start in range(0, len(x), _BATCH)])


def sample_line(fleet: Fleet) -> str:
    """Return the remark of a run on its sample of measured devices, or empty if all are measured."""
    count, of = len(fleet.measured), len(fleet.devices)
    drawn = f'{count:,} of {of:,} devices are measured, drawn by the seed (run.measured = "all": all)'
    return drawn if count else ""


def expected_error(fleet: Fleet) -> str:
    """Return what interval a sample may give, in words for the line before a run, or empty if all are measured."""
    count, of = len(fleet.measured), len(fleet.devices)
    if not count:
        return ""
    return (
        f"; their mean is within {half_width(10.0, count, of):.1f} points of that of all where accuracies have a "
        "standard deviation of 10 points (95 %)"
    )


def measuring_line(fleet: Fleet, measured: int, *, alone: bool) -> str:
    """Return what it costs to measure all of many devices, and how to measure `measured`, or empty if few are.

    alone: whether all train alone, too.
    """
    count, every = len(fleet.devices), fleet.federation.spec.train.evaluate_every
    if fleet.measured or count <= measured:
        return ""
    when = "each round" if every == 1 else f"every {every:,} rounds"
    trained = ", and first trained alone for comparison (run.standalone = false: not)" if alone else ""
    return (
        f"all {count:,} devices are measured after {when} on {len(fleet.dataset.test):,} test samples, which can "
        f"take longer than training (run.measured = {measured}: fewer devices; train.evaluate_every: fewer rounds)"
        f"{trained}"
    )
