from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.objectives import (
    BalancedCrossEntropy,
    ClassTarget,
    CrossEntropy,
    Distill,
    LessForgetting,
    LogitGradient,
    LogitMatch,
    PrototypePull,
    Proximal,
    Seen,
    Term,
    at_step,
    log_softmax,
    logit_gradient,
    objective_loss,
    softmax,
    weight_gradient,
)

SEEDS = st.integers(0, 2**32 - 1)
SCALES = st.sampled_from([0.1, 1.0, 10.0])
TEMPERATURES = st.sampled_from([0.5, 1.0, 2.0, 8.0])


def terms(rng: np.random.Generator, b: int, k: int, temperature: float) -> list[Term]:
    """One of each, with knowledge in f8, so that differences of losses keep their digits."""
    teacher, snapshot, gradient = rng.normal(size=(3, 1, b, k))
    return [
        CrossEntropy(weight=0.7),
        BalancedCrossEntropy(counts=rng.integers(1, 9, k).astype(np.float64), gamma=temperature, weight=0.7),
        Distill(logits=teacher, temperature=temperature, weight=1.5),
        LessForgetting(logits=snapshot, temperature=temperature, weight=0.25),
        LogitGradient(gradient=gradient, weight=2.0),
        LogitMatch(logits=teacher, error="squared", weight=0.5),
        LogitMatch(logits=teacher, weight=0.5),
        ClassTarget(classes=np.arange(1, k - 1), rows=rng.dirichlet(np.ones(k), k - 2), weight=0.5),
    ]


@settings(deadline=None)  # a busy machine is no fault
@given(SEEDS, SCALES, TEMPERATURES)
def test_gradients_are_those_of_the_losses(seed: int, scale: float, temperature: float) -> None:
    """Central differences in f8, at every logit."""
    rng = np.random.default_rng(seed)
    b, k, step = 3, 5, 1e-5
    logits, labels = rng.normal(0, scale, (b, k)), rng.integers(0, k, b)
    for term in terms(rng, b, k, temperature):
        expected = np.empty((b, k))
        for at in np.ndindex(b, k):
            shift = np.zeros((b, k))
            shift[at] = step
            rise = term.value(Seen(logits + shift, labels, 0)) - term.value(Seen(logits - shift, labels, 0))
            expected[at] = rise / (2 * step)
        np.testing.assert_allclose(term.slope(Seen(logits, labels, 0)), expected, atol=1e-6)


@settings(deadline=None)  # a busy machine is no fault
@given(SEEDS, TEMPERATURES)
def test_distributions_pull_nothing_towards_all_classes(seed: int, temperature: float) -> None:
    """Cross-entropy and the divergences do not change when all logits of a sample do: gradient rows sum to 0."""
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(4, 3)), rng.integers(0, 3, 4)
    for term in terms(rng, 4, 3, temperature)[:4]:
        np.testing.assert_allclose(term.slope(Seen(logits, labels, 0)).sum(axis=1), 0, atol=1e-7)


@settings(deadline=None)  # a busy machine is no fault
@given(SEEDS, TEMPERATURES)
def test_a_teacher_that_agrees_costs_nothing(seed: int, temperature: float) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (4, 6)).astype(np.float32)
    shifted = logits + rng.normal(size=(4, 1)).astype(np.float32)  # the same distribution
    for term in (Distill(logits=shifted[None], temperature=temperature), LessForgetting(logits=logits[None])):
        assert term.value(Seen(logits, None, 0)) == pytest.approx(0, abs=1e-5)
        np.testing.assert_allclose(term.slope(Seen(logits, None, 0)), 0, atol=1e-6)


def test_softmax_neither_overflows_nor_loses_its_temperature() -> None:
    extreme = np.array([[1e30, 0, -1e30]], np.float32)
    np.testing.assert_array_equal(softmax(extreme), [[1, 0, 0]])
    logits = np.array([[2.0, 0.0]], np.float32)
    assert softmax(logits)[0, 0] == pytest.approx(1 / (1 + np.exp(-2)))
    assert softmax(logits, 2.0)[0, 0] == pytest.approx(1 / (1 + np.exp(-1)))
    assert log_softmax(logits, 2.0).dtype == np.float32


def test_the_divergence_of_two_coins() -> None:
    """Teacher (3/4, 1/4), student (1/2, 1/2): KL = 3/4 ln(3/2) + 1/4 ln(1/2); no factor of temperature squared."""
    teacher = np.log(np.array([[3.0, 1.0]], np.float32))
    student = np.zeros((1, 2), np.float32)
    expected = 0.75 * np.log(1.5) + 0.25 * np.log(0.5)
    assert Distill(logits=teacher[None]).value(Seen(student, None, 0)) == pytest.approx(expected)
    twice_as_hot = Distill(logits=2 * teacher[None], temperature=2.0)
    assert twice_as_hot.value(Seen(2 * student, None, 0)) == pytest.approx(expected)
    np.testing.assert_allclose(twice_as_hot.slope(Seen(student, None, 0)), [[-0.125, 0.125]])


def test_the_gradient_of_fedal_for_its_first_client() -> None:
    """FedAL's g_n = (p_n - p_target) + adversarial + (p_n - p_snapshot) at E = 1, with f_1 = (2, 0), the others' mean
    (0, 1), the snapshot (1, 0), and the adversarial gradient that an untrained two-client discriminator gives.

    sigma(2) = .880797, sigma(-1) = .268941, sigma(1) = .731059, so g = .611856 + .113081 + .149738 = .874675.
    """

    def row(*values: float) -> np.ndarray:
        return np.array([[values]], np.float32)  # (1, 1, k)

    objective = (
        Distill(logits=row(0, 1)),
        LogitGradient(gradient=row(0.113081, -0.113081)),
        LessForgetting(logits=row(1, 0)),
    )
    g = logit_gradient(objective, Seen(row(2, 0)[0], None, 0))
    np.testing.assert_allclose(g, [[0.874675, -0.874675]], atol=1e-6)


def test_logits_are_matched_by_the_mean_over_samples_and_classes() -> None:
    """Own (2, 0) and (0, 1), mean (1, 1) and (1, 1): errors 1, 1, 1 and 0, so 3/4 either way."""
    logits, mean = np.array([[2, 0], [0, 1]], np.float32), np.ones((1, 2, 2), np.float32)
    absolute, squared = LogitMatch(logits=mean), LogitMatch(logits=mean, error="squared")
    assert [term.value(Seen(logits)) for term in (absolute, squared)] == [0.75, 0.75]
    np.testing.assert_array_equal(absolute.slope(Seen(logits)), [[0.25, -0.25], [-0.25, 0]])
    np.testing.assert_array_equal(squared.slope(Seen(logits)), [[0.5, -0.5], [-0.5, 0]])


def test_a_balanced_loss_by_hand() -> None:
    """Logits (1, 0, 5), samples (1, 3, 0), label 0: e / (e + 3), the absent class takes no part."""
    seen = Seen(np.array([[1, 0, 5]], np.float32), np.array([0]))
    counts = np.array([1, 3, 0], np.float32)
    balanced = BalancedCrossEntropy(counts=counts)
    assert balanced.value(seen) == pytest.approx(0.743668, abs=1e-6)
    assert balanced.slope(seen)[0] == pytest.approx(np.array([0.475367 - 1, 1 - 0.475367, 0]), abs=1e-6)
    assert BalancedCrossEntropy(counts=counts, gamma=0.0).value(seen) == CrossEntropy().value(seen)
    assert CrossEntropy().value(seen) == pytest.approx(4.024745, abs=1e-6)


def test_the_batch_divides_once() -> None:
    gradient = np.ones((1, 4, 2), np.float32)
    logits = np.arange(8, dtype=np.float32).reshape(4, 2)
    term = LogitGradient(gradient=gradient)
    np.testing.assert_array_equal(term.slope(Seen(logits, None, 0)), np.full((4, 2), 0.25))
    assert term.value(Seen(logits, None, 0)) == 7


def test_an_objective_is_the_sum_of_its_terms() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(3, 4)), rng.integers(0, 4, 3)
    parts = tuple(terms(rng, 3, 4, 2.0))
    losses = [term.value(Seen(logits, labels, 0)) for term in parts]
    assert objective_loss(parts, Seen(logits, labels, 0)) == pytest.approx(sum(losses))
    gradients = [term.slope(Seen(logits, labels, 0)) for term in parts]
    np.testing.assert_allclose(logit_gradient(parts, Seen(logits, labels, 0)), sum(gradients), atol=1e-7)


def test_a_term_reads_the_knowledge_of_its_step() -> None:
    knowledge = np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32)
    whole = (CrossEntropy(), Distill(logits=knowledge), LogitGradient(gradient=knowledge))
    logits, labels = np.zeros((2, 4), np.float32), np.array([1, 3])
    alone = [objective_loss(at_step(whole, step), Seen(logits, labels, 0)) for step in range(3)]
    assert alone == [objective_loss(whole, Seen(logits, labels, step)) for step in range(3)]
    assert len(set(alone)) == 3


def test_public_samples_have_no_cross_entropy() -> None:
    logits = np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match="needs labels"):
        CrossEntropy().value(Seen(logits, None, 0))
    with pytest.raises(ValueError, match="needs labels"):
        CrossEntropy().slope(Seen(logits, None, 0))


# -- terms on features ----------------------------------------------------------------------------------------------

PULL = PrototypePull(
    classes=np.array([0, 2]), rows=np.array([[1.0, 0.0, 0.0, 2.0], [0.0, 4.0, 0.0, 0.0]]), weight=0.5
)  # d = 4
FEATURES = np.array([[2.0, 0.0, 0.0, 0.0], [9.0, 9.0, 9.0, 9.0], [0.0, 1.0, 0.0, 0.0]])  # (3, 4)
LABELS = np.array([0, 1, 2])


def test_the_pull_by_hand() -> None:
    """Squared distances 1 + 4 and 9; class 1 has no prototype, and its sample still counts: 0.5 (5 + 9) / (3 * 4)."""
    value = 0.5 * (5 + 9) / 12
    assert PULL.value(Seen(np.zeros((3, 3)), LABELS, 0, FEATURES)) == pytest.approx(value)
    per_entry = 2 * 0.5 / 12
    expected = per_entry * np.array([[1, 0, 0, -2], [0, 0, 0, 0], [0, -3, 0, 0]])
    np.testing.assert_allclose(PULL.slope(Seen(labels=LABELS, features=FEATURES)), expected, atol=1e-7)


def test_the_reduction_is_the_mean_over_all_entries() -> None:
    """The weight that means the same on the squared L2 norm, averaged over samples, is d times smaller."""
    everybody = PrototypePull(classes=np.arange(3), rows=np.zeros((3, 4)))
    squared_norms = (FEATURES**2).sum(axis=1)
    loss = everybody.value(Seen(np.zeros((3, 3)), LABELS, 0, FEATURES))
    assert loss == pytest.approx(squared_norms.mean() / 4)


@settings(deadline=None)  # a busy machine is no fault
@given(SEEDS, SCALES)
def test_the_pull_on_features_is_that_of_its_loss(seed: int, scale: float) -> None:
    """Central differences in f8, at every feature; some labels have no prototype."""
    rng = np.random.default_rng(seed)
    b, k, d, step = 5, 4, 3, 1e-5
    classes = np.flatnonzero(rng.random(k) < 0.6) if seed % 2 else np.arange(1, k)
    classes = classes if len(classes) else np.array([k - 1])
    term = PrototypePull(classes=classes, rows=rng.normal(0, scale, (len(classes), d)), weight=1.5)
    features, labels, logits = rng.normal(0, scale, (b, d)), rng.integers(0, k, b), np.zeros((b, k))
    expected = np.empty((b, d))
    for at in np.ndindex(b, d):
        shift = np.zeros((b, d))
        shift[at] = step
        rise = term.value(Seen(logits, labels, 0, features + shift)) - term.value(
            Seen(logits, labels, 0, features - shift)
        )
        expected[at] = rise / (2 * step)
    np.testing.assert_allclose(term.slope(Seen(labels=labels, features=features)), expected, atol=1e-6)


def test_the_pull_leaves_the_head_alone_and_serves_every_step() -> None:
    logits = np.ones((3, 3))
    np.testing.assert_array_equal(logit_gradient((PULL,), Seen(logits, LABELS, 0)), np.zeros((3, 3)))
    assert at_step((PULL,), 7) == (PULL,)
    both = (CrossEntropy(), PULL)
    alone = CrossEntropy().value(Seen(logits, LABELS, 0)) + PULL.value(Seen(logits, LABELS, 0, FEATURES))
    assert objective_loss(both, Seen(logits, LABELS, 0, FEATURES)) == pytest.approx(alone)


def test_the_pull_needs_labels_and_features() -> None:
    with pytest.raises(ValueError, match="needs labels"):
        PULL.value(Seen(np.zeros((3, 3)), None, 0, FEATURES))
    with pytest.raises(ValueError, match="term on features needs"):
        PULL.value(Seen(np.zeros((3, 3)), LABELS, 0))


# -- terms on predictions of a class, and on weights ----------------------------------------------------------------


def test_a_class_target_is_one_soft_label() -> None:
    """FD: CE(f, y) + g CE(f, F) is (1 + g) CE with the label (onehot + g F) / (1 + g): methods.md F.4."""
    logits, labels = np.array([[0.3, -0.2]]), np.array([0])
    term = ClassTarget(classes=np.array([0]), rows=np.array([[0.6, 0.4]]), weight=0.5)
    expected = -1.5 * (np.array([0.866667, 0.133333]) * log_softmax(logits)[0]).sum()
    assert objective_loss((CrossEntropy(), term), Seen(logits, labels, 0)) == pytest.approx(expected, abs=1e-6)


def test_a_sample_without_a_class_target_adds_nothing_and_counts() -> None:
    term = ClassTarget(classes=np.array([1]), rows=np.array([[0.0, 1.0]]))
    logits = np.zeros((4, 2))
    assert term.value(Seen(logits, np.array([0, 0, 1, 0]), 0)) == pytest.approx(np.log(2) / 4)
    assert (term.slope(Seen(logits, np.array([0, 0, 1, 0]), 0))[[0, 1, 3]] == 0).all()


def test_the_proximal_term_by_hand() -> None:
    """mu / 2 times the sum of squares, not their mean, and mu once: 0.5 / 2 (1 + 9)."""
    term = Proximal(anchor=np.array([1.0, 2.0, 0.0]), weight=0.5)
    weights = np.array([2.0, -1.0, 0.0])
    assert term.value(Seen(np.zeros((3, 2)), None, 0, weights=weights)) == pytest.approx(2.5)
    np.testing.assert_allclose(
        weight_gradient((CrossEntropy(), term), Seen(weights=weights), weights), [0.5, -1.5, 0.0]
    )
    assert (logit_gradient((term,), Seen(np.zeros((3, 2)))) == 0).all()
    with pytest.raises(ValueError, match="term on weights needs"):
        term.value(Seen(np.zeros((3, 2)), None, 0))
