"""What FedHKD's noise promises: the (epsilon, delta)-differential privacy of a Gaussian mechanism, exactly.

A release whose L2 sensitivity is mu times the deviation of the noise on it is mu-GDP; the mu of many is
the root of the sum of their squares, and

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)

Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration and Optimal
Denoising", ICML 2018, theorem 8; Dong, Roth and Su, "Gaussian Differential Privacy", JRSS-B 2022, corollaries 1 and 2.
"""

from __future__ import annotations

import math

_FAR = 25.0
"""Beyond it the tail of the normal distribution comes from its asymptotic series (relative error below 1e-7)."""
_HALVINGS = 100


def delta(epsilon: float, mu: float) -> float:
    """Return the least delta at an epsilon of at least 0; mu must be above 0."""
    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    # e^epsilon Phi(-far) = e^(-near^2 / 2) times Phi(-far) e^(far^2 / 2); neither factor overflows
    return 0.5 * math.erfc(near / math.sqrt(2)) - math.exp(-near * near / 2) * _scaled_tail(far)


def epsilon(most: float, mu: float) -> float:
    """Return the least epsilon at a delta of at most `most`, in (0, 1)."""
    low, high = 0.0, 1.0
    while delta(high, mu) > most:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle, mu) > most else (low, middle)
    return high


def _scaled_tail(x: float) -> float:
    """Return Phi(-x) e^(x^2 / 2) for an x of at least 0."""
    if x < _FAR:
        return 0.5 * math.erfc(x / math.sqrt(2)) * math.exp(x * x / 2)
    return (1 - 1 / x**2 + 3 / x**4) / (x * math.sqrt(2 * math.pi))


def promise(mu: float, most: float, rounds: int, *, shares_weights: bool) -> str:
    """Describe what noise of mu in each round guarantees at a delta of `most`, and what it does not (W2)."""
    one, every = ((each, epsilon(most, each)) for each in (mu, mu * math.sqrt(rounds)))
    weights = "the weights leave without noise" if shares_weights else "so do figures that the device measures"
    return (
        "W2: the noise protects the hyper-knowledge tensor only, given the models that made it: "
        f"mu = {one[0]:.3g}, epsilon = {one[1]:.3g} at delta = {most:g} for one round, "
        f"mu = {every[0]:.3g}, epsilon = {every[1]:.3g} for all {rounds}; a round as a whole has no epsilon, for "
        f"models are trained on the same data without noise, and {weights}"
    )


def published_promise(sigma: float, width: int, most: float, rounds: int) -> str:
    """Describe what the paper's noise on mean features of this width gives, and what it does not (W2).

    A record moves a mean of n features by at most 2 zeta sqrt(d) / n; the noise has the deviation 2 zeta sigma / n.
    The paper leaves sqrt(d) out.
    """
    told = "mean predictions, counts and which classes pass leave without noise, so a round has no epsilon"
    if not width:
        return f"W2: published noise: {told}; set federation.feature_dim to see that of the mean features"
    mu = math.sqrt(width) / sigma
    one, every = epsilon(most, mu), epsilon(most, mu * math.sqrt(rounds))
    claimed = math.sqrt(2 * math.log(1.25 / most)) / sigma
    return (
        f"W2: published noise: the mean features of {width} numbers alone, given the models that made them, have "
        f"epsilon = {one:.3g} at delta = {most:g} for one round, {every:.3g} for all {rounds} (the paper's formula "
        f"says {claimed:.3g}); {told}"
    )
