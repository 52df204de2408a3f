"""Work to time: steps of models whose cost is known, through the very code that trains on a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from edge_sdk.device.meter import Meter
from edge_sdk.models.base import Batches, Model
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import CrossEntropy, Optim
from edge_sdk.tools.measure.fit import Timed

CLASSES = 10
_LEAST_REPEATS, _MOST_REPEATS = 5, 200

Workload: TypeAlias = tuple[str, Callable[[], Model], tuple[int, int, int], int]
"""A name, a model, the shape of its samples (c, h, w), and the size of a batch."""


def numpy_loads() -> tuple[Workload, ...]:
    """For a machine without torch: the last layer of a frozen extractor, narrow and wide."""
    return tuple(
        (f"softmax of {width}", lambda width=width: NumpyModel(CLASSES, (1, 1, width), seed=0), (1, 1, width), batch)
        for width, batch in ((64, 32), (784, 32), (3072, 64), (12_288, 64), (12_288, 256))
    )


def timed(loads: Sequence[Workload], budget_s: float) -> Iterator[Timed]:
    """Each load's training step and inference pass, timed for `budget_s` seconds each: the shortest."""
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
    """The shortest time of some work, repeated for about `budget_s` seconds, after two times that do not count.

    Whatever else a machine does makes work longer, never shorter.
    """
    for _ in range(2):
        work()
    times_s: list[float] = []
    while len(times_s) < _LEAST_REPEATS or (sum(times_s) < budget_s and len(times_s) < _MOST_REPEATS):
        begun_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - begun_s)
    return min(times_s)
