"""When a model counts as worse than the served one: beyond the allowed drop, and beyond chance."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from edge_sdk.data import LocalData, Samples
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.reductions.sign_test import at_least, is_worse
from edge_sdk.serving.guard import HeldOut, compared_on, held_out_of, missing_classes, right_on


def pair(samples: int, lost: int, won: int) -> tuple[np.ndarray, np.ndarray]:
    """What two models classify correctly: the second loses some and wins some."""
    before = np.arange(samples) >= won
    after = before.copy()
    after[:won] = True
    after[samples - lost :] = False
    return before, after


@pytest.mark.parametrize(
    ("samples", "lost", "won", "worse"),
    [
        (1000, 0, 0, False),
        (1000, 20, 0, False),  # two points are allowed
        (1000, 25, 0, True),
        (1000, 60, 30, True),
        (1000, 0, 500, False),
        (20, 6, 0, False),  # one time in 64 by chance
        (20, 7, 0, True),  # one time in 128
        (20, 7, 3, False),
        (100, 30, 20, False),
    ],
)
def test_a_drop_counts_only_beyond_chance(samples: int, lost: int, won: int, worse: bool) -> None:
    assert is_worse(*pair(samples, lost, won), 0.02) == worse


def test_the_allowed_drop_is_the_owners() -> None:
    before, after = pair(1000, 60, 0)
    assert is_worse(before, after, 0.05)
    assert not is_worse(before, after, 0.06)


def test_chances_of_a_fair_coin() -> None:
    assert at_least(0, 7) == 1
    assert at_least(5, 5) == 1 / 32
    assert at_least(2, 3) == 1 / 2


def test_models_of_equal_quality_are_rarely_refused() -> None:
    rng = np.random.default_rng(0)
    refused = [is_worse(*(rng.random((2, 50)) < 0.8), 0.02) for _ in range(400)]
    assert np.mean(refused) < 0.01


def parts(**counts: int) -> dict[str, Samples]:
    return {
        name: Samples(np.full((count, 4), len(name), np.float32), np.arange(count) % 3)
        for name, count in counts.items()
    }


def held(**counts: int) -> tuple[str, ...]:
    train = Samples(np.ones((6, 4), np.float32), np.arange(6) % 2)
    bench = Workbench(NumpyModel(3, (1, 1, 4), seed=0), LocalData(train=train, **parts(**counts)))
    return tuple(part.name for part in compared_on(held_out_of(bench)))


def test_the_parts_that_models_are_compared_on() -> None:
    """One of the device's own, and that of all classes."""
    assert held(validation=9, local_test=9, test=9) == ("validation", "test")
    assert held(local_test=9, test=9) == ("local_test", "test")
    assert held(validation=6, test=9) == ("test",)
    assert held(validation=9, local_test=9, test=6) == ("validation",)
    assert held(validation=6) == ()


def test_classes_without_a_held_out_sample_are_counted() -> None:
    part = HeldOut("validation", "validation_accuracy", np.zeros((4, 1, 1, 4), np.float32), np.array([0, 0, 3, 3]))
    other = HeldOut("test", "accuracy", np.zeros((2, 1, 1, 4), np.float32), np.array([1, 3]))
    assert missing_classes((part,), 5) == 3
    assert missing_classes((part, other), 5) == 2


def test_numbers_that_are_not_finite_are_never_right() -> None:
    given = HeldOut("test", "accuracy", np.zeros((3, 1, 1, 4), np.float32), np.array([0, 0, 1]))
    rows = np.array([[np.nan, 1], [2, 1], [0, np.inf]], np.float32)
    running = right_on(SimpleNamespace(logits=lambda _x: rows), given)
    next(running)
    with pytest.raises(StopIteration) as found:
        next(running)
    assert found.value.value.tolist() == [False, True, False]
