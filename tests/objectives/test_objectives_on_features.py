"""Terms on features and on the head: numbers by hand, and gradients against differences in f8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.objectives import (
    ClassContrast,
    FeatureGradient,
    FeatureMatch,
    HeadLabels,
    HeadProximal,
    ModelContrast,
    Seen,
    Shapes,
    Term,
)

SEEDS = st.integers(0, 2**32 - 1)


def differences(value: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences at every entry."""
    found = np.empty_like(at)
    for place in np.ndindex(at.shape):
        shift = np.zeros_like(at)
        shift[place] = step
        found[place] = (value(at + shift) - value(at - shift)) / (2 * step)
    return found


@settings(deadline=None)
@given(SEEDS)
def test_slopes_on_features_are_those_of_the_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    z, near, away = rng.normal(size=(3, 5, 4))
    labels = rng.integers(0, 3, 5)
    terms: tuple[Term, ...] = (
        ModelContrast(near=near[None], away=away[None], temperature=0.5, weight=0.7),
        ClassContrast(temperature=0.5, weight=0.7),
    )
    for term in terms:
        found = term.slope(Seen(labels=labels, features=z))
        expected = differences(lambda f, term=term: term.value(Seen(labels=labels, features=f)), z)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_allclose((found * z).sum(axis=1), 0, atol=1e-6)  # a longer feature has the same direction


@settings(deadline=None)
@given(SEEDS)
def test_slopes_of_a_match_are_those_of_its_value(seed: int) -> None:
    rng = np.random.default_rng(seed)
    z, targets, wide = rng.normal(size=(5, 4)), rng.normal(size=(1, 5, 4)), rng.normal(size=(1, 5, 3))
    for term in (
        FeatureGradient(gradient=targets, weight=0.7),
        FeatureMatch(targets=targets, weight=0.7),
        FeatureMatch(targets=wide, projection=rng.normal(size=(3, 4)), weight=0.7),
    ):
        expected = differences(lambda f, term=term: term.value(Seen(features=f)), z)
        np.testing.assert_allclose(term.slope(Seen(features=z)), expected, atol=1e-5)


def test_a_match_of_other_sizes_does_not_fit() -> None:
    shapes = Shapes(steps=1, batch=5, classes=3, feature_dim=4, parameters=0)
    fits = FeatureMatch(targets=np.zeros((1, 5, 3)), projection=np.zeros((3, 4)))
    assert fits.misfit(shapes) == ""
    for other in (replace(fits, projection=None), replace(fits, projection=np.zeros((3, 2)))):
        assert "targets of shape (1, 5, 3)" in other.misfit(shapes)


@settings(deadline=None)
@given(SEEDS)
def test_slopes_on_the_head_are_those_of_the_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k, d = 3, 4
    terms = (
        HeadLabels(features=rng.normal(size=(2, d)), labels=rng.integers(0, k, 2), weight=0.7),
        HeadProximal(rows=rng.normal(size=(k, d + 1)), weight=0.7),
    )
    for term in terms:
        logits = rng.normal(size=(len(term.asks()), k))
        found = term.slope(Seen(head=lambda _f, z=logits: z))
        expected = differences(lambda z, term=term: term.value(Seen(head=lambda _f: z)), logits)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_contrast_of_models_by_hand() -> None:
    """z = (3, 4), the mean's (4, 3), the former (0, 1): cosines .96 and .8, margin -.32 at tau = .5: ln(1 + e^-.32)."""
    z = np.array([[3, 4], [0, 2]], np.float32)
    near, away = np.array([[[4, 3], [1, 0]]], np.float32), np.array([[[0, 1], [0, 5]]], np.float32)
    one = ModelContrast(near=near[:, :1], away=away[:, :1])
    assert one.value(Seen(features=z[:1])) == pytest.approx(0.545893, abs=1e-6)
    # the second sample is like its former model only: cosines 0 and 1, ln(1 + e^2) = 2.126928
    both = ModelContrast(near=near, away=away, weight=5.0)
    assert both.value(Seen(features=z)) == pytest.approx(5 * (0.545893 + 2.126928) / 2, abs=1e-5)


def test_the_contrast_of_classes_by_hand() -> None:
    """Unit features (1, 0), (0, 1), (1, 0) of classes 0, 0, 1 at tau = 1; the third is alone of its class.

    The first: others are like it by 0 and 1, its partner has e^0 / (e^0 + e^1), -log of it is 1.313262; the second: 0
    and 0, log 2.  The third adds nothing, and counts.
    """
    z, labels = np.array([[2, 0], [0, 3], [1, 0]], np.float32), np.array([0, 0, 1])
    term = ClassContrast(temperature=1.0)
    assert term.value(Seen(labels=labels, features=z)) == pytest.approx((1.313262 + np.log(2)) / 3, abs=1e-6)
    alone = Seen(labels=labels[:1], features=z[:1])
    assert term.value(alone) == 0
    assert (term.slope(alone) == 0).all()


def test_a_head_is_held_near_its_anchor() -> None:
    """Rows (1, 0; .5) and (0, 1; 0) from zeros: half of 1 + .25 + 1."""
    rows = np.array([[1, 0, 0.5], [0, 1, 0]], np.float32)
    term = HeadProximal(rows=np.zeros((2, 3), np.float32))
    seen = Seen(head=lambda f: f @ rows[:, :-1].T + rows[:, -1])
    assert term.value(seen) == pytest.approx(1.125)
    slopes = term.slope(seen)
    np.testing.assert_allclose(slopes.T @ np.hstack([term.asks(), np.ones((3, 1))]), rows)


def test_a_head_that_is_told_labels() -> None:
    """Logits (1.5, 0) of label 0 and (0, 0) of label 1: ln(1 + e^-1.5) and ln 2."""
    term = HeadLabels(features=np.array([[1.5, 0], [0, 0]], np.float32), labels=np.array([0, 1]))
    assert term.value(Seen(head=lambda f: f)) == pytest.approx((0.201413 + 0.693147) / 2, abs=1e-6)
