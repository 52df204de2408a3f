"""The discrete Gaussian, drawn exactly from random bytes of the operating system, and the privacy that it gives.

Noise in floating point has gaps from which an attacker can read what it hides (Mironov, CCS 2012).  Canonne, Kamath and
Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, algorithms 1 to 3.

The (epsilon, delta)-differential privacy of Gaussian noise is exact, from the standard library alone.  A release whose
L2 sensitivity is mu times the deviation of the noise on it is mu-GDP; the mu of many is the root of the sum of their
squares, and

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)

Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration and Optimal
Denoising", ICML 2018, theorem 8; Dong, Roth and Su, "Gaussian Differential Privacy", JRSS-B 2022, corollaries 1 and 2.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Iterable
from typing import TypeAlias

Below: TypeAlias = Callable[[int], int]
"""Returns a uniform whole number from 0 up to its argument, without it."""
_DOMAIN = b"edge-sdk release 1"
_SECRET_BYTES = 32
_BLOCK_BYTES = 512


class KeyedStream:
    """Uniform whole numbers that follow from a secret and their use.  They cannot be predicted without the secret.

    The same secret and use give the same numbers, so a repeated release has the same noise.
    """

    def __init__(self, secret: bytes, use: bytes) -> None:
        """secret: at least 32 bytes.  use: names what the numbers are for, such as a digest of the data.

        Raises ValueError for a shorter secret.
        """
        if len(secret) < _SECRET_BYTES:
            raise ValueError(f"noise needs a secret of {_SECRET_BYTES} bytes, found {len(secret)}")
        self._key, self._block, self._left = hashlib.sha256(_DOMAIN + secret + use).digest(), 0, b""

    def below(self, most: int) -> int:
        """Return a uniform whole number from 0 up to `most`, without it."""
        bits = (most - 1).bit_length()
        while True:
            drawn = int.from_bytes(self._take(-(-bits // 8)), "little") & ((1 << bits) - 1)
            if drawn < most:
                return drawn

    def _take(self, count: int) -> bytes:
        while len(self._left) < count:
            key = self._key + self._block.to_bytes(8, "little")
            self._left, self._block = self._left + hashlib.shake_256(key).digest(_BLOCK_BYTES), self._block + 1
        taken, self._left = self._left[:count], self._left[count:]
        return taken


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
