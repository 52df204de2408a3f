"""The discrete Gaussian, drawn exactly: whole numbers in, random bytes of the operating system, no rounding anywhere.

Noise in floating point has gaps from which an attacker can read what it hides (Mironov, CCS 2012).  Canonne, Kamath and
Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, algorithms 1 to 3.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import TypeAlias

Below: TypeAlias = Callable[[int], int]
"""Returns a uniform whole number from 0 up to its argument, without it."""


def discrete_gaussian(variance: int, below: Below = secrets.randbelow) -> int:
    """Draw a whole number with probability in proportion to exp(-x^2 / (2 variance)); variance: at least 1."""
    scale = math.isqrt(variance) + 1
    while True:
        drawn = _discrete_laplace(scale, below)
        if _with_exp((abs(drawn) * scale - variance) ** 2, 2 * variance * scale * scale, below):
            return drawn


def _discrete_laplace(scale: int, below: Below) -> int:
    """Draw a whole number with probability in proportion to exp(-|x| / scale)."""
    while True:
        rest = below(scale)
        if not _with_exp(rest, scale, below):
            continue
        whole = 0
        while _with_exp(1, 1, below):
            whole += 1
        magnitude, negative = rest + scale * whole, below(2)
        if magnitude or not negative:  # zero counts once, not twice
            return -magnitude if negative else magnitude


def _with_exp(above: int, under: int, below: Below) -> bool:
    """Return True with the probability exp(-above / under)."""
    while above > under:
        if not _with_exp(1, 1, below):
            return False
        above -= under
    tries = 1
    while below(under * tries) < above:
        tries += 1
    return tries % 2 == 1
