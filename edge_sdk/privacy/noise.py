"""The discrete Gaussian, drawn exactly: whole numbers in, random bytes of the operating system, no rounding anywhere.

Noise in floating point has gaps from which an attacker can read what it hides (Mironov, CCS 2012).  Canonne, Kamath and
Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, algorithms 1 to 3.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable
from typing import TypeAlias

Below: TypeAlias = Callable[[int], int]
"""Returns a uniform whole number from 0 up to its argument, without it."""
_DOMAIN = b"edge-sdk release 1"
_SECRET_BYTES = 32
_BLOCK_BYTES = 512


class KeyedStream:
    """Uniform whole numbers that follow from a secret and from what they are for; without the secret nobody knows them.

    The same secret and use give the same numbers, so that a release that is made again has the same noise.
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
