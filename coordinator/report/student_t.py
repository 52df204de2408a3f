"""Student's t without scipy, which a base install does not have."""

from __future__ import annotations

import math

_HALVINGS = 80
"""Of an angle below pi/2: more than a float can tell apart."""


def two_sided(angle: float, freedom: int) -> float:
    """P(|T| < sqrt(freedom) tan(angle)) of Student's t with `freedom` degrees: Abramowitz and Stegun 26.7.3, 26.7.4."""
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def quantile(confidence: float, freedom: int) -> float:
    """The t that |T| stays below with this probability: 12.706 for 0.95 and one degree of freedom."""
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(low)
