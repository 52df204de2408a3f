from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cosine_suite import SCALE, CosineSuite
from model_suite import BATCH, CLASSES, SHAPE, ModelSuite, WeightSuite, samples

from edge_sdk.errors import ModelError, StoreError
from edge_sdk.models.linear_head import LinearHead
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.models.optim import pack_optim, unpack_optim
from edge_sdk.objectives import CrossEntropy, Optim, Seen, logit_gradient


class TestNumpyModel(ModelSuite, WeightSuite):
    def make(self, seed: int = 0) -> NumpyModel:
        return NumpyModel(CLASSES, SHAPE, seed=seed)


class TestCosineNumpyModel(CosineSuite):
    def make(self, seed: int = 0) -> NumpyModel:
        model = NumpyModel(CLASSES, SHAPE, seed=seed, head="cosine")
        model.set_scale(SCALE, trains=True)
        return model


@pytest.mark.parametrize(
    "wrong",
    [
        *({"input_shape": shape} for shape in ((1, 0, 28), (1, 1, 1, 28), 784, (1, -2, 3), (1, 2.0, 3))),
        *({"seed": seed} for seed in (-7, 1.5, "1", None)),
        *({"classes": classes} for classes in (0, "10", 2.0, True)),
    ],
    ids=str,
)
def test_settings_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=f"^model 'softmax': {next(iter(wrong))} .*: expected "):
        NumpyModel(**{"classes": CLASSES, "input_shape": SHAPE, "seed": 1, **wrong})


def test_the_head_starts_within_torchs_bounds() -> None:
    rows = LinearHead(100, 50, seed=0).rows
    assert rows.dtype == np.float32
    assert 0.09 < np.abs(rows).max() <= 0.1
    assert abs(rows.mean()) < 0.005
    np.testing.assert_array_equal(rows, LinearHead(100, 50, seed=0).rows)


def test_one_sgd_step_by_hand() -> None:
    """Zero rows: softmax is uniform, so the step is lr * mean over the batch of (onehot - 1/k) [x, 1]."""
    x, y = samples()
    head = LinearHead(36, CLASSES, seed=0)
    head.set_values(np.zeros(CLASSES * 37, np.float32))
    f, labels = x[:BATCH].reshape(BATCH, -1), y[:BATCH]
    gradient = logit_gradient((CrossEntropy(),), Seen(head.logits(f), labels, 0))
    head.step(head.slopes(f, gradient), Optim(kind="sgd", learning_rate=0.5))
    pull = np.eye(CLASSES)[labels] - 1 / CLASSES  # (b, k)
    expected = 0.5 * pull.T @ np.column_stack([f, np.ones(BATCH)]) / BATCH
    np.testing.assert_allclose(head.rows, expected, atol=1e-6)


@pytest.mark.parametrize("beta2", [0.999, 0.9])
def test_stored_settings_are_read_back(beta2: float) -> None:
    optim = Optim(learning_rate=0.01, beta2=beta2)
    packed = pack_optim(optim)
    assert packed.shape == ((3,) if beta2 == 0.999 else (5,))  # three numbers, as states have that lack the betas
    assert unpack_optim(packed) == optim
    with pytest.raises(StoreError, match=r"remove FEDERATION\.db in the state folder"):
        unpack_optim(packed[:2])


def test_the_first_adam_step_has_the_size_of_the_learning_rate() -> None:
    head = LinearHead(3, 2, seed=0)
    before = head.rows.copy()
    f = np.array([[1, -2, 3]], np.float32)
    head.step(head.slopes(f, np.array([[0.5, -0.5]], np.float32)), Optim(learning_rate=0.01))
    expected = -0.01 * np.sign(np.outer([1, -1], [1, -2, 3, 1]))
    np.testing.assert_allclose(head.rows - before, expected, atol=1e-6)
