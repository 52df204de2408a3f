"""What releases with noise promise: the accountant, the sampler, the sensitivity, and where no epsilon is printed."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest

from edge_sdk.errors import UsageError
from edge_sdk.privacy.noise import composed, discrete_gaussian, epsilon, largest_mu
from edge_sdk.privacy.release import (
    ALL_VERSIONS,
    GRID,
    NOTHING_PROMISED,
    SHARES,
    Assumptions,
    Guarantee,
    contributions,
    means_of,
    noised,
    promised,
    sums_by_class,
)

D, K = 16, 3


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 0, -1.0, "8", None, True])
def test_an_epsilon_that_promises_nothing(wrong: float) -> None:
    with pytest.raises(UsageError, match=r"^privacy: epsilon .*: expected a finite number above 0, as in Guarantee\("):
        Guarantee(wrong, 1e-5)


@pytest.mark.parametrize("wrong", [math.nan, 0, 1, 2.0, -1e-5, "1e-5", None])
def test_a_delta_that_promises_nothing(wrong: float) -> None:
    with pytest.raises(UsageError, match=r"^privacy: delta .*: expected a number above 0 and below 1, as in Guarantee"):
        Guarantee(8.0, wrong)


def test_the_noise_of_known_settings() -> None:
    for (eps, most), sigma in {(1, 1e-5): 3.731, (0.5, 0.01): 3.147, (8, 1e-5): 0.600, (2, 1e-5): 1.994}.items():
        assert 1 / largest_mu(eps, most) == pytest.approx(sigma, rel=1e-3)
        assert epsilon(most, largest_mu(eps, most)) == pytest.approx(eps, rel=1e-9)


@pytest.mark.parametrize("part", range(4))
def test_the_accountant_agrees_with_dp_accounting(part: int) -> None:
    """V2: within 1 % on 200 settings, of one release and of many together."""
    privacy = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    from dp_accounting import pld  # it needs scipy, which a base install lacks

    rng = np.random.default_rng(part)
    for _ in range(50):
        sigma, count = float(rng.uniform(0.6, 8)), int(rng.choice([1, 2, 5, 20]))
        most = 10.0 ** -rng.uniform(3, 8)
        event = privacy.SelfComposedDpEvent(privacy.GaussianDpEvent(sigma), count)
        other = pld.PLDAccountant(value_discretization_interval=1e-3).compose(event).get_epsilon(most)
        assert epsilon(most, composed([1 / sigma] * count)) == pytest.approx(other, rel=0.01, abs=2e-3)


def test_the_discrete_gaussian_has_its_probabilities() -> None:
    below, count, variance = random.Random(5).randrange, 20_000, 3
    found = np.array([discrete_gaussian(variance, below) for _ in range(count)])
    values = np.arange(-5, 6)
    weights = np.exp(-(values**2) / (2 * variance))
    shares = weights / np.exp(-(np.arange(-60, 61) ** 2) / (2 * variance)).sum()
    expected = count * shares
    seen = np.array([(found == each).sum() for each in values])
    assert (((seen - expected) ** 2) / expected).sum() < 31.3  # chi-square, 11 degrees, one in a thousand
    assert discrete_gaussian(10**12) != discrete_gaussian(10**12)


def test_one_record_changes_the_sums_by_a_norm_of_one_at_most() -> None:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(2000, D)) * 10.0 ** rng.integers(-3, 4, (2000, 1))
    norms = np.linalg.norm(contributions(features, 1.0) / GRID, axis=1)
    assert norms.max() <= 1
    assert norms.max() > 0.99
    assert sum(share**2 for share in SHARES) == pytest.approx(1)


def test_every_label_set_gives_sums_of_the_same_shape() -> None:
    """V5: a class without records is released like any other."""
    added = contributions(np.ones((6, D)), 1.0)
    for labels in ([0] * 6, [0, 0, 1, 1, 2, 2]):
        found = noised(sums_by_class(added, np.array(labels), K), Guarantee(1.0, 1e-5))
        assert found.shape == (K, D + 1)
        assert (found != 0).all()


@pytest.mark.parametrize("eps", [0.5, 1.0, 4.0, 8.0])
def test_the_variance_of_the_noise_is_rounded_up_to_a_whole_number(eps: float) -> None:
    """Rounded down, it would keep less than was promised."""
    guarantee, drawn = Guarantee(eps, 1e-5), list[int]()
    noised(np.zeros((1, 2), np.int64), guarantee, lambda variance: drawn.append(variance) or 0)
    assert drawn[0] - 1 < (GRID / guarantee.mu) ** 2 <= drawn[0]
    assert len(drawn) == 2


def test_means_come_back_and_a_class_of_few_is_left_out() -> None:
    features = 2.0 * np.eye(D)[[0] * 400 + [1] * 400 + [2] * 3]
    labels = np.repeat([0, 1, 2], [400, 400, 3])
    added = contributions(features, 2.0)
    sums = noised(sums_by_class(added, labels, K), Guarantee(8.0, 1e-5))
    classes, means, counts = means_of(sums, 2.0, 50)
    assert classes.tolist() == [0, 1]
    assert means == pytest.approx(2 * np.eye(D)[:2], abs=0.1)
    assert counts == pytest.approx([400, 400], abs=15)


def test_no_epsilon_is_printed_where_an_assumption_fails() -> None:
    """V3: all 64 combinations of what a guarantee rests on."""
    names = [field.name for field in dataclasses.fields(Assumptions)]
    for holds in itertools.product([False, True], repeat=len(names)):
        setting = Assumptions(**dict(zip(names, holds, strict=True)))
        for guarantee in (None, Guarantee(4.0, 1e-5)):
            told = promised(setting, guarantee)
            if all(holds) and guarantee:
                assert "epsilon = 4 " in told
            else:
                assert told.startswith(NOTHING_PROMISED)
                assert "epsilon" not in told


def test_a_promise_is_about_one_version_of_the_data() -> None:
    told = promised(Assumptions(frozen_extractor=True), Guarantee(2.0, 1e-5))
    assert "for one version of the data; changed data are released again, and a device's own budget" in told
    assert promised(Assumptions(frozen_extractor=True), Guarantee(2.0, 1e-5), ALL_VERSIONS).endswith("its ledger")


# -- V2: a black-box audit, and five planted bugs -------------------------------------------------------------------

RUNS = 20_000
CLAIM = Guarantee(1.0, 1e-5)
CLIP = 1.0


def honest(features: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Many releases of the same records of one class: (RUNS, d + 1)."""
    return _released(features, rng, 1 / CLAIM.mu)


def _released(features: np.ndarray, rng: np.random.Generator, sigma: float, clip: float = CLIP) -> np.ndarray:
    sums = contributions(features, clip).sum(axis=0) / GRID * (clip / CLIP)
    return sums + sigma * rng.normal(size=(RUNS, len(sums)))


def half_noise(features: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return _released(features, rng, 0.5 / CLAIM.mu)


def noise_over_root_d(features: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return _released(features, rng, 1 / CLAIM.mu / math.sqrt(D))


def no_clip(features: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return _released(features, rng, 1 / CLAIM.mu, clip=1e6)


def reused_seed(features: np.ndarray, _rng: np.random.Generator) -> np.ndarray:
    same = np.random.default_rng(7).normal(size=D + 1) / CLAIM.mu
    return _released(features, np.random.default_rng(7), 0.0) + same


def uncomposed_rounds(features: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.mean([honest(features, rng) for _ in range(16)], axis=0)


def lower_bound(release: object) -> float:
    """The largest epsilon that an attacker demonstrates, with 95 % confidence: Clopper and Pearson's bounds."""
    beta = pytest.importorskip("scipy.stats").beta
    rng = np.random.default_rng(1)
    features = np.ones((4, D))
    features[-1] *= 100.0  # the record that is there or not
    direction = contributions(features[-1:], CLIP)[0].astype(float)
    direction /= np.linalg.norm(direction)
    out, inside = (release(features[:n], rng) @ direction for n in (3, 4))  # type: ignore[operator]
    calibrate, test_out = np.split(out, 2)
    found = 0.0
    for share in (0.5, 0.1, 0.02, 0.005, 0.0):
        threshold = np.quantile(calibrate, 1 - share)
        hits, false = int((inside > threshold).sum()), int((test_out > threshold).sum())
        if not hits:
            continue
        low = beta.ppf(0.05 / 10, hits, RUNS - hits + 1)
        high = beta.ppf(1 - 0.05 / 10, false + 1, len(test_out) - false)
        found = max(found, math.log(max(low - CLAIM.delta, 1e-12) / high))
    return found


def test_the_audit_finds_nothing_beyond_the_claim() -> None:
    assert lower_bound(honest) <= CLAIM.epsilon


@pytest.mark.parametrize("bug", [half_noise, noise_over_root_d, no_clip, reused_seed, uncomposed_rounds])
def test_the_audit_catches_a_planted_bug(bug: object) -> None:
    assert lower_bound(bug) > CLAIM.epsilon


# -- V6: membership inference ---------------------------------------------------------------------------------------


def advantage(release: object) -> float:
    """The most hits less false alarms of an attacker who knows all records but the last, and decides if that is there.

    The threshold is chosen on one half of the releases, and judged on the other one.
    """
    rng = np.random.default_rng(2)
    features = np.ones((4, D))
    features[-1] *= 100.0
    direction = contributions(features[-1:], CLIP)[0].astype(float)
    out, inside = (release(features[:n], rng) @ direction for n in (3, 4))  # type: ignore[operator]
    half = RUNS // 2
    at = np.quantile(np.concatenate([out[:half], inside[:half]]), np.linspace(0.02, 0.98, 49))
    gains = [float((inside[:half] > each).mean() - (out[:half] > each).mean()) for each in at]
    best = at[int(np.argmax(gains))]
    return float((inside[half:] > best).mean() - (out[half:] > best).mean())


def test_membership_inference_stays_below_its_bound() -> None:
    """At most 2 Phi(mu / 2) - 1 for the mu behind a printed epsilon (Dong, Roth and Su, eq. 6), plus four deviations."""
    most = math.erf(CLAIM.mu / 2 / math.sqrt(2)) + 4 / math.sqrt(RUNS)
    assert most < (math.exp(CLAIM.epsilon) - 1 + 2 * CLAIM.delta) / (math.exp(CLAIM.epsilon) + 1)  # by epsilon alone
    assert advantage(honest) <= most
    assert min(advantage(bug) for bug in (half_noise, no_clip, noise_over_root_d)) > most


@pytest.mark.long
def test_the_audit_of_the_exact_sampler() -> None:
    def exact(features: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        below = random.Random(int(rng.integers(2**31))).randrange
        sums = contributions(features, CLIP).sum(axis=0)[None, :]
        runs = [noised(sums, CLAIM, lambda variance: discrete_gaussian(variance, below)) for _ in range(RUNS)]
        return np.concatenate(runs)

    assert lower_bound(exact) <= CLAIM.epsilon
