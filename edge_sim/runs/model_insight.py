"""The predictions and features of the devices' models, which only a simulation in memory can read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeAlias

import numpy as np

from coordinator.record.insight import Insight, principal_components
from coordinator.serving import final_prototypes
from coordinator.serving.server import Server
from edge_sdk.arrays import Floats, Ints
from edge_sdk.models.base import Model
from edge_sdk.objectives import softmax
from edge_sim.data.datasets import Dataset
from edge_sim.fleet.fleet import Device

MOST_PREDICTING, MOST_DRAWN = 100, 6
"""Numbers of devices, counted from the first: for the mean prediction, and for the drawn features."""
PER_CLASS = 15
"""Number of test samples of each class for the features."""
_BATCH = 256


Trained: TypeAlias = tuple[Device, Model]
"""A device, and its model at the end of the run."""


def model_insight(server: Server, models: Iterable[Trained], dataset: Dataset) -> Insight:
    """Return predictions, features and prototypes of a run's models at its end.

    Where nobody was sent rows by class, but all devices end with one model, those of its last layer are the prototypes.
    models: those of all devices, in the order of their numbers; not more are taken than are needed.
    """
    found = final_prototypes.final_prototypes(server)
    learning = list(islice((each for each in models if each[1].spec.terms), MOST_PREDICTING))
    found = replace(found, predictions=_predictions([model for _, model in learning], dataset))
    if found.prototypes is None and (rows := _last_layer([model for _, model in learning])) is not None:
        found = replace(found, prototype_classes=np.arange(len(rows)), prototypes=rows)
    drawn = _features(learning[:MOST_DRAWN], dataset)
    if drawn is None:
        return found
    features, classes, devices = drawn
    points, explained = principal_components(features)
    return replace(found, points=points, point_classes=classes, point_devices=devices, explained=explained)


def _predictions(models: Sequence[Model], dataset: Dataset) -> Floats | None:
    """Return (k, k); row c is the mean of softmax(logits) over these devices and the public samples of class c."""
    labels = dataset.public_labels
    if labels is None or dataset.public is None or not models:
        return None
    each = []
    for model in models:
        probabilities = softmax(_in_batches(model, dataset.public.samples, "logits"))  # (n, k)
        sums = np.zeros((dataset.classes, dataset.classes))
        np.add.at(sums, labels, probabilities)
        each.append(sums / np.maximum(np.bincount(labels, minlength=dataset.classes), 1)[:, None])
    mean: Floats = np.mean(each, axis=0).astype(np.float32)
    return mean


def _last_layer(models: Sequence[Model]) -> Floats | None:
    """Return the rows (k, d) of the last layer that all of these models have, without biases; None: there is none."""
    if len(models) < 2 or not all("head-rows" in model.spec.capabilities for model in models):
        return None
    first, *others = (model.head_rows() for model in models)
    return first[:, :-1] if all(np.array_equal(first, each) for each in others) else None


def _features(trained: Sequence[Trained], dataset: Dataset) -> tuple[Floats, Ints, Ints] | None:
    """Return features (n, d) of some test samples on each device, their classes (n,) and device numbers (n,).

    Return None where models have no features or features of different widths, which cannot be drawn together.
    """
    models = [model for _, model in trained]
    widths = {model.spec.feature_dim if "features" in model.spec.capabilities else 0 for model in models}
    if len(widths) != 1 or widths == {0}:
        return None
    truth = dataset.test.y
    chosen = np.concatenate([np.flatnonzero(truth == label)[:PER_CLASS] for label in np.unique(truth)])
    features = [_in_batches(model, dataset.test.x[chosen], "features") for model in models]
    classes = np.tile(truth[chosen].astype(np.int64), len(models))
    numbers = np.repeat(np.array([device.kit.number for device, _ in trained], np.int64), len(chosen))
    return np.concatenate(features), classes, numbers


def _in_batches(model: Model, samples: np.ndarray, what: str) -> Floats:
    x = model.spec.preprocess(samples)
    ask = model.logits if what == "logits" else model.features
    return np.concatenate([ask(x[start : start + _BATCH]) for start in range(0, len(x), _BATCH)])
