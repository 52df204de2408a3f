"""The checksum CRC-32 of zlib, also for concatenated bytes from the checksums of both parts.

The package isal, if installed, computes the checksum sixteen times as fast as zlib.  For a frame with a model's weights
the checksum is most of the cost, because both sides compute it.

`crc32_combine` computes the checksum of two concatenated byte strings from their checksums, without reading the bytes.
A checksum is the remainder of the bytes, read as a polynomial over GF(2), on division by a fixed polynomial.  Each bit
appended multiplies the polynomial by x.  This map is linear, so four small tables compute it for a given number of
appended bytes.

In a checksum the highest bit is the coefficient of x^0 and the lowest that of x^31, as in zlib.
"""

from __future__ import annotations

import functools
from typing import TypeAlias

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32", "crc32_combine"]

_DIVISOR = 0xEDB88320
_ONE, _X_TO_8 = 1 << 31, 1 << 23

_Tables: TypeAlias = tuple[list[int], list[int], list[int], list[int]]


def crc32_combine(first: int, second: int, second_bytes: int) -> int:
    """Return the checksum of two concatenated byte strings, from the checksum of each and the second's length."""
    low, middle, upper, high = _tables(second_bytes)
    shifted = low[first & 0xFF] ^ middle[first >> 8 & 0xFF] ^ upper[first >> 16 & 0xFF] ^ high[first >> 24]
    return shifted ^ second


@functools.lru_cache(maxsize=16)
def _tables(count: int) -> _Tables:
    """Return a table for each byte of a checksum, lowest byte first: the byte's 256 values times x^(8 count)."""
    product = _power(count)
    products = [product] + [product := _times_x(product) for _ in range(31)]  # for each bit, the highest first
    bits = products[::-1]
    return _sums(bits[:8]), _sums(bits[8:16]), _sums(bits[16:24]), _sums(bits[24:])


def _sums(bits: list[int]) -> list[int]:
    """Return for each byte value the exclusive or of the entries of `bits` for its set bits; bits: 8 values."""
    sums = [0]
    for bit in bits:
        sums += [bit ^ each for each in sums]
    return sums


def _power(count: int) -> int:
    """Compute x^(8 count) by repeated squaring."""
    power, square = _ONE, _X_TO_8
    while count:
        if count & 1:
            power = _times(power, square)
        square = _times(square, square)
        count >>= 1
    return power


def _times(a: int, b: int) -> int:
    product = 0
    for place in range(31, -1, -1):
        if a >> place & 1:
            product ^= b
        b = _times_x(b)
    return product


def _times_x(a: int) -> int:
    return a >> 1 ^ (_DIVISOR if a & 1 else 0)
