"""[train] class_weights and label_noise_q: in every method's cross-entropy, and in every runtime."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.device.training.learner import balanced
from edge_sdk.errors import UsageError
from edge_sdk.objectives import CrossEntropy, LabelLoss, Seen
from edge_sim.runs import runner


def test_balanced_weights_have_the_mean_1_and_give_each_class_the_same_say() -> None:
    counts = np.array([90, 10, 0, 50])
    weights = balanced(counts)
    assert (counts * weights).sum() == pytest.approx(counts.sum())
    assert counts[[0, 1, 3]] * weights[[0, 1, 3]] == pytest.approx([50, 50, 50])
    assert weights[2] == 1


@pytest.mark.parametrize("q", [0.0, 0.3, 0.7, 1.0])
def test_the_slope_is_that_of_the_value(q: float) -> None:
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(4, 3)), np.array([0, 2, 1, 2])
    term = LabelLoss(class_weights=np.array([1.0, 2.0, 0.5]), q=q, weight=0.7)
    slope, step = term.slope(Seen(logits, labels)), 1e-5
    for at in np.ndindex(4, 3):
        shift = np.zeros((4, 3))
        shift[at] = step
        rise = term.value(Seen(logits + shift, labels)) - term.value(Seen(logits - shift, labels))
        assert slope[at] == pytest.approx(rise / (2 * step), abs=1e-6)


def test_at_q_0_with_equal_weights_it_is_the_cross_entropy() -> None:
    seen = Seen(np.random.default_rng(2).normal(size=(5, 4)).astype(np.float32), np.array([0, 1, 2, 3, 0]))
    term = LabelLoss(class_weights=np.ones(4, np.float32))
    assert term.value(seen) == pytest.approx(CrossEntropy().value(seen))
    assert term.slope(seen) == pytest.approx(CrossEntropy().slope(seen))


def tables(model: str, **train: object) -> dict:
    return {
        "federation": {"name": "rare", "method": "fedavg", "rounds": 8, "devices": 2},
        "train": {"learning_rate": 0.01, "local_steps": 20, **train},
        "data": {"train_samples": 300, "test_samples": 200, "public": 0},
        "partition": {"kind": "iid"},
        "fleet": [{"count": 2, "model": model}],
        "run": {"standalone": "off"},
    }


@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_a_federation_learns_with_them_in_numpy_and_torch(model: str) -> None:
    plain = runner.run(tables(model))
    robust = runner.run(tables(model, class_weights="balanced", label_noise_q=0.3))
    before, after = (
        [np.mean([*entry.global_accuracy.values()]) for entry in found.history if entry.global_accuracy]
        for found in (plain, robust)
    )
    assert before != after
    assert after[-1] > before[-1] - 0.1


def test_a_method_with_losses_of_its_own_refuses_them() -> None:
    plain = tables("softmax", class_weights="balanced")
    plain["federation"]["method"] = "fml"
    with pytest.raises(UsageError, match="have no effect under fml"):
        runner.run(plain)
