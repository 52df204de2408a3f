"""The predictions and features of the devices' models, which only a simulation in memory can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coordinator.record.insight import Insight, principal_components
from coordinator.serving import final_prototypes
from edge_sdk.arrays import Floats, Ints
from edge_sdk.models.base import Model
from edge_sdk.objectives import softmax
from edge_sim.clock.virtual_fleet import VirtualDevice, VirtualFleet
from edge_sim.data.datasets import Dataset

MOST_PREDICTING, MOST_DRAWN = 100, 6
"""Numbers of devices, counted from the first: for the mean prediction, and for the drawn features."""
PER_CLASS = 15
"""Number of test samples of each class for the features."""
_BATCH = 256


def model_insight(virtual: VirtualFleet, dataset: Dataset) -> Insight:
    """Return predictions, features and prototypes of a run's models at its end."""
    found = final_prototypes.final_prototypes(virtual.server)
    learning = [device for device in virtual.devices if device.agent.bench.model.spec.terms]
    found = replace(found, predictions=_predictions(learning[:MOST_PREDICTING], dataset))
    drawn = _features(learning[:MOST_DRAWN], dataset)
    if drawn is None:
        return found
    features, classes, devices = drawn
    points, explained = principal_components(features)
    return replace(found, points=points, point_classes=classes, point_devices=devices, explained=explained)


def _predictions(devices: Sequence[VirtualDevice], dataset: Dataset) -> Floats | None:
    """Return (k, k); row c is the mean of softmax(logits) over these devices and the public samples of class c."""
    labels = dataset.public_labels
    if labels is None or dataset.public is None or not devices:
        return None
    each = []
    for device in devices:
        model = device.agent.bench.model
        probabilities = softmax(_in_batches(model, dataset.public.samples, "logits"))  # (n, k)
        sums = np.zeros((dataset.classes, dataset.classes))
        np.add.at(sums, labels, probabilities)
        each.append(sums / np.maximum(np.bincount(labels, minlength=dataset.classes), 1)[:, None])
    mean: Floats = np.mean(each, axis=0).astype(np.float32)
    return mean


def _features(devices: Sequence[VirtualDevice], dataset: Dataset) -> tuple[Floats, Ints, Ints] | None:
    """Return features (n, d) of some test samples on each device, their classes (n,) and device numbers (n,).

    Return None where models have no features or features of different widths, which cannot be drawn together.
    """
    models = [device.agent.bench.model for device in devices]
    widths = {model.spec.feature_dim if "features" in model.spec.capabilities else 0 for model in models}
    if len(widths) != 1 or widths == {0}:
        return None
    truth = dataset.test.y
    chosen = np.concatenate([np.flatnonzero(truth == label)[:PER_CLASS] for label in np.unique(truth)])
    features = [_in_batches(model, dataset.test.x[chosen], "features") for model in models]
    classes = np.tile(truth[chosen].astype(np.int64), len(models))
    numbers = np.repeat(np.array([device.device.kit.number for device in devices], np.int64), len(chosen))
    return np.concatenate(features), classes, numbers


def _in_batches(model: Model, samples: np.ndarray, what: str) -> Floats:
    x = model.spec.preprocess(samples)
    ask = model.logits if what == "logits" else model.features
    return np.concatenate([ask(x[start : start + _BATCH]) for start in range(0, len(x), _BATCH)])
