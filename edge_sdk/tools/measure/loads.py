"""The workloads that are timed: steps of models whose cost is known, with the code that also trains on a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from edge_sdk.device.training.meter import Meter
from edge_sdk.models.base import Batches, Model
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import CrossEntropy, Optim
from edge_sdk.tools.measure.fit import Timed

CLASSES = 10
_LEAST_REPEATS, _MOST_REPEATS = 5, 200

Workload: TypeAlias = tuple[str, Callable[[], Model], tuple[int, int, int], int]
"""A name, a function that makes a model, the shape of its samples (c, h, w), and the size of a batch."""


def numpy_loads() -> tuple[Workload, ...]:
    """Return workloads for a machine without torch: training a last layer alone, for narrow and wide features."""
    return tuple(
        (f"softmax of {width}", lambda width=width: NumpyModel(CLASSES, (1, 1, width), seed=0), (1, 1, width), batch)
        for width, batch in ((64, 32), (784, 32), (3072, 64), (12_288, 64), (12_288, 256))
    )


def timed(loads: Sequence[Workload], budget_s: float) -> Iterator[Timed]:
    """Time a training step and an inference pass of each workload, for about `budget_s` seconds each."""
    for name, make, shape, batch in loads:
        model, rng = make(), np.random.default_rng(0)
        x = rng.normal(size=(batch, *shape)).astype(np.float32)  # (b, c, h, w)
        batches = Batches(inputs=x, labels=np.arange(batch) % CLASSES, indices=np.arange(batch)[None])
        optim = Optim(learning_rate=1e-3)
        train, infer = Meter(), Meter()
        train.trained(model.spec, batch, "all")
        infer.inferred(model.spec, batch)
        trained_s = shortest_s(lambda: model.fit(batches, (CrossEntropy(),), optim), budget_s)  # noqa: B023  # called here
        yield Timed(train.train, trained_s, training=True, what=f"training {name}, batch {batch}")
        inferred_s = shortest_s(lambda: model.logits(x), budget_s)  # noqa: B023
        yield Timed(infer.infer, inferred_s, training=False, what=f"inference {name}, batch {batch}")


def shortest_s(work: Callable[[], object], budget_s: float) -> float:
    """Return the shortest time of some work that is repeated for about `budget_s` seconds, after two warm-ups.

    The shortest counts, because other programs on the machine can only make work take longer.
    """
    for _ in range(2):
        work()
    times_s: list[float] = []
    while len(times_s) < _LEAST_REPEATS or (sum(times_s) < budget_s and len(times_s) < _MOST_REPEATS):
        begun_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - begun_s)
    return min(times_s)
