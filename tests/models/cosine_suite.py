"""What changes in the suites for a model whose last layer compares directions."""

from __future__ import annotations

import numpy as np
import pytest
from loss_terms import HEAD_TERMS, head_terms
from model_suite import ADAM, CLASSES, ModelSuite, WeightSuite, batches, samples

from edge_sdk.models.base import Model
from edge_sdk.objectives import CrossEntropy

SCALE = 3.0
"""The scale of the models here: logits of a usual size, whose squares and exponentials f4 tells apart."""


class CosineSuite(ModelSuite, WeightSuite):
    """To be inherited once per runtime."""

    def test_features_are_unit_and_logits_are_scaled_cosines(self, model: Model) -> None:
        assert "cosine-head" in model.spec.capabilities
        x, _ = samples()
        f, rows = model.features(x), model.head_rows()
        np.testing.assert_allclose(np.linalg.norm(f, axis=1), 1, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), SCALE, atol=1e-5)
        assert (rows[:, -1] == 0).all()
        assert np.abs(model.logits(x)).max() <= SCALE + 1e-5

    def test_the_scale(self) -> None:
        """It may be set; it trains with the body, never with the head, and only where it is let."""
        for trains in (True, False):
            model = self.make()
            model.set_scale(7.0, trains=trains)
            for part in ("head", "body", "all"):
                before = scale_of(model)
                model.fit(batches(2), (CrossEntropy(),), ADAM, part)
                assert (scale_of(model) != pytest.approx(before, abs=1e-5)) == (trains and part != "head")
        kept = scale_of(model)
        model.set_scale(None, trains=True)
        assert scale_of(model) == kept == pytest.approx(7.0)
        assert model.spec.parameters - model.head_mask().sum() >= 1
        assert not model.head_mask()[-1]

    def test_head_rows_are_replaced_one_by_one(self, model: Model) -> None:
        """By direction alone."""
        old = model.head_rows()
        new = np.random.default_rng(0).normal(size=(2, old.shape[1])).astype(np.float32)
        model.set_head_rows(np.array([3, 0]), new)
        expected = old.copy()
        expected[[3, 0], :-1] = SCALE * new[:, :-1] / np.linalg.norm(new[:, :-1], axis=1, keepdims=True)
        np.testing.assert_allclose(model.head_rows(), expected, atol=1e-5)

    @pytest.mark.parametrize("kind", HEAD_TERMS)
    def test_a_term_on_the_head_moves_the_head_as_the_reference_says(self, kind: str) -> None:
        """Downhill, and nothing else; what the gradient becomes through the lengths, the runtimes' twins compare."""
        model = self.make()
        term = head_terms(np.random.default_rng(5), CLASSES, model.spec.feature_dim)[kind]
        features = model.features(batches(1).inputs)
        losses = [model.fit(batches(1), (term,), ADAM).loss for _ in range(20)]
        assert losses[-1] < losses[0]
        np.testing.assert_array_equal(model.features(batches(1).inputs), features)


def scale_of(model: Model) -> float:
    return float(np.linalg.norm(model.head_rows()[0]))
