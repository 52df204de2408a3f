"""Times steps of models of known cost, and fits a board's speed: the figures whose predictions come closest."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from edge_sdk.boards.profiles import Effort
from edge_sdk.device.training.meter import Meter
from edge_sdk.models.base import Batches, Model
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import CrossEntropy, Optim

_FIRST_STEP, _LAST_STEP = 8.0, 1.01
"""The first and the last factor by which the search changes a figure."""
_LEAST_CALL_S = 1e-9


@dataclass(frozen=True, slots=True)
class Timed:
    """Some computing, and the measured time."""

    effort: Effort
    took_s: float
    training: bool
    """Whether it is training; otherwise it is inference."""
    what: str = ""
    """A description for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The figures of a board's speed, named as in its profile."""

    train_flops_per_s: float
    infer_flops_per_s: float
    memory_bytes_per_s: float
    call_s: float

    def predicted_s(self, each: Timed) -> float:
        """Predict the time of some computing as `Board.compute_s` does."""
        flops_per_s = self.train_flops_per_s if each.training else self.infer_flops_per_s
        roofline_s = max(each.effort.flops / flops_per_s, each.effort.bytes / self.memory_bytes_per_s)
        return roofline_s + each.effort.calls * self.call_s


def fit(samples: Sequence[Timed]) -> Speed:
    """Return the figures with the minimum mean square of log(predicted / measured).

    They are found by a pattern search over the logarithms of the figures, from several starting points, so that the
    same samples give the same figures.  samples: training and inference, of large and of small layers.
    """
    fastest = max(each.effort.flops / each.took_s for each in samples)
    smallest_s = min(each.took_s / each.effort.calls for each in samples)
    moved = max(each.effort.bytes / each.took_s for each in samples)
    starting_points = [
        (fastest * high, fastest * high, moved * wide, smallest_s * small)
        for high in (1.0, 3.0)
        for wide in (1.0, 4.0)
        for small in (0.1, 0.8)
    ]
    found = min(_descend(begin, lambda figures: _loss(figures, samples)) for begin in starting_points)
    train, infer, memory, call_s = found[1]
    return Speed(
        train_flops_per_s=train, infer_flops_per_s=infer, memory_bytes_per_s=memory, call_s=max(call_s, _LEAST_CALL_S)
    )


def typical_factor(speed: Speed, samples: Sequence[Timed]) -> float:
    """Return the typical factor between prediction and measurement: exp of the root mean square of the logarithm."""
    return math.exp(math.sqrt(_loss(_figures(speed), samples)))


def _figures(speed: Speed) -> tuple[float, ...]:
    return speed.train_flops_per_s, speed.infer_flops_per_s, speed.memory_bytes_per_s, speed.call_s


def _loss(figures: tuple[float, ...], samples: Sequence[Timed]) -> float:
    train, infer, memory, call_s = figures
    speed = Speed(train_flops_per_s=train, infer_flops_per_s=infer, memory_bytes_per_s=memory, call_s=call_s)
    return sum(math.log(speed.predicted_s(each) / each.took_s) ** 2 for each in samples) / len(samples)


def _descend(begin: tuple[float, ...], loss: Callable[[tuple[float, ...]], float]) -> tuple[float, tuple[float, ...]]:
    """Change one figure at a time by a factor, as long as that reduces the loss; then make the factor smaller."""
    best, figures, step = loss(begin), begin, _FIRST_STEP
    while step > _LAST_STEP:
        moved = False
        for place in range(len(figures)):
            for factor in (step, 1 / step):
                tried = (*figures[:place], figures[place] * factor, *figures[place + 1 :])
                value = loss(tried)
                if value < best:
                    best, figures, moved = value, tried, True
        if not moved:
            step = math.sqrt(step)
    return best, figures


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
