"""The (epsilon, delta)-differential privacy of Gaussian noise, exactly, from the standard library alone.

A release whose L2 sensitivity is mu times the deviation of the noise on it is mu-GDP; the mu of many is
the root of the sum of their squares, and

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)

Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration and Optimal
Denoising", ICML 2018, theorem 8; Dong, Roth and Su, "Gaussian Differential Privacy", JRSS-B 2022, corollaries 1 and 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

_FAR = 25.0
"""Beyond it the tail of the normal distribution comes from its asymptotic series (relative error below 1e-7)."""
_HALVINGS = 100


def delta(epsilon: float, mu: float) -> float:
    """Return the minimum delta at an epsilon of at least 0; mu must be above 0."""
    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    # e^epsilon Phi(-far) = e^(-near^2 / 2) times Phi(-far) e^(far^2 / 2); neither factor overflows
    return 0.5 * math.erfc(near / math.sqrt(2)) - math.exp(-near * near / 2) * _scaled_tail(far)


def epsilon(most: float, mu: float) -> float:
    """Return the minimum epsilon at a delta of at most `most`, in (0, 1)."""
    low, high = 0.0, 1.0
    while delta(high, mu) > most:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle, mu) > most else (low, middle)
    return high


def largest_mu(epsilon_: float, most: float) -> float:
    """Return the largest mu whose delta at this epsilon is at most `most`; 1 / mu is the noise at sensitivity 1."""
    low, high = 0.0, 1.0
    while delta(epsilon_, high) <= most:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if delta(epsilon_, middle) > most else (middle, high)
    return low


def composed(mus: Iterable[float]) -> float:
    """Return the mu of several releases together."""
    return math.sqrt(math.fsum(mu * mu for mu in mus))


def _scaled_tail(x: float) -> float:
    """Return Phi(-x) e^(x^2 / 2) for an x of at least 0."""
    if x < _FAR:
        return 0.5 * math.erfc(x / math.sqrt(2)) * math.exp(x * x / 2)
    return (1 - 1 / x**2 + 3 / x**4) / (x * math.sqrt(2 * math.pi))
