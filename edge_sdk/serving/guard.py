"""The held-out samples of a device on which models are compared, and the right answers of a model on them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.device.training.workbench import Workbench, slices
from edge_sdk.models.base import ahead
from edge_sdk.reductions.sign_test import LEAST_SAMPLES, Right


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Samples with labels that the device does not train on."""

    name: str
    """The part of LocalData: validation, local_test or test; or public."""
    metric: str
    """The name of the accuracy on it, or empty if it is not measured before joining."""
    x: Floats  # (n, c, h, w), preprocessed
    y: Ints  # (n,)

    @property
    def words(self) -> str:
        """Describes the samples in lines for the owner."""
        if self.name == "public":
            return f"{len(self.y)} public samples with labels"
        return f"{len(self.y)} held-out samples" + (" of all classes (test)" if self.name == "test" else " of its own")


def held_out_of(bench: Workbench) -> tuple[HeldOut, ...]:
    """Return the parts with at least LEAST_SAMPLES: the device's own, `test`, and the public samples with labels."""
    names = {"validation_accuracy": "validation", "local_accuracy": "local_test"}
    parts = [
        HeldOut(name, metric, *bench.held_out[metric]) for metric, name in names.items() if metric in bench.held_out
    ]
    if bench.test is not None and bench.data.test is not None:
        parts.append(HeldOut("test", "accuracy", bench.test, bench.data.test.y))
    if (labelled := bench.labelled_public()) is not None:
        parts.append(HeldOut("public", "", *labelled))
    return tuple(part for part in parts if len(part.y) >= LEAST_SAMPLES)


def compared_on(parts: Sequence[HeldOut]) -> tuple[HeldOut, ...]:
    """Return the parts that models are compared on: the first of the device's own, `test` and the public samples."""
    own = [part for part in parts if part.name not in ("test", "public")]
    return (*own[:1], *parts[len(own) :])


def missing_classes(parts: Sequence[HeldOut], classes: int) -> int:
    """Return the number of the `classes` without a sample in any part."""
    return classes - len(np.unique(np.concatenate([part.y for part in parts])))


class Asked(Protocol):
    """What is compared: a workbench, or a copy of its model."""

    def logits(self, x: Floats) -> Floats:
        """Return the logits: (n, c, h, w) -> (n, k)."""


def right_on(model: Asked, held: HeldOut) -> Generator[None, None, Right]:
    """Return which samples are classified correctly, with a pause after each batch; NaN is never right."""
    found = np.zeros(len(held.y), np.bool_)
    for part in slices(len(held.y)):
        yield from ahead(model, held.x[part])
        rows = model.logits(held.x[part])
        found[part] = (rows.argmax(axis=1) == held.y[part]) & np.isfinite(rows).all(axis=1)
        yield
    return found
