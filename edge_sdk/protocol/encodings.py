"""The encodings of the floats in a payload: f32, f16 or int8, as pure functions of one array.

The decoded array is f4 in every encoding.  With x the array that was sent and x' the one that is received:

f32           x' = x
f16           |x - x'| <= 2^-11 |x| from 2^-14 to 65504, <= 2^-25 below; larger numbers are refused
int8-row      |x - x'| <= scale / 2, the scale of a row within 2^-16 of its largest |x| / 127
int8-tensor   the same with one scale for the whole array

A scale has 17 significant bits and a code 7, so their product is exact in f4.  The bound therefore holds to the last
bit, and every receiver, in any language, computes the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.errors import LocalProtocolError, RemoteProtocolError
from edge_sdk.protocol.frames.quantised import CODE_MOST, SCALE_MOST, Quantised

Carried: TypeAlias = NDArray[Any] | Quantised
"""The encoded form of an array of floats."""

F16_MOST = 65504.0
SCALE_BITS = 24 - CODE_MOST.bit_length()
"""Significant bits of a scale: the 24 of f4 less the 7 of a code."""
SCALE_LEAST_EXPONENT = -149
"""Scales are multiples of 2^-149, the smallest f4."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """One encoding of f4 arrays of shape (n, m) or (p,)."""

    name: str
    encode: Callable[[Floats], Carried]
    """Raises LocalProtocolError for numbers that the encoding cannot represent."""
    carries: Callable[[Carried], bool]
    """Returns whether an array is in this encoding."""
    decode: Callable[[Any], Floats]
    """Returns the f4 array of an encoded one."""

    def decoded(self, value: Carried) -> Floats:
        """Decode a received array to f4.  Raises RemoteProtocolError if it came in another encoding."""
        if not self.carries(value):
            raise RemoteProtocolError("knowledge", f"found {describe(value)}, the federation's encoding is {self.name}")
        return self.decode(value)


def describe(value: Carried) -> str:
    """Name the encoding of an array in words."""
    if isinstance(value, Quantised):
        return f"int8 with {len(value.scales)} scale{'s' * (len(value.scales) != 1)}"
    return {"f4": "f32", "f2": "f16"}.get(value.dtype.str[1:], str(value.dtype))


def _encode_f16(x: Floats) -> NDArray[np.float16]:
    largest = float(_largest(x, None))
    if largest > F16_MOST:
        raise LocalProtocolError(f"a number of {largest:g}, f16 holds at most {F16_MOST:g}: choose f32 or int8")
    return x.astype(np.float16)


def _encode_rows(x: Floats) -> Quantised:
    if x.ndim < 2:
        raise LocalProtocolError("a flat array has no rows: choose int8-tensor")
    scales = _scales(_largest(x, 1))  # (n,)
    return Quantised(_codes(x, scales[:, None]), scales)


def _encode_tensor(x: Floats) -> Quantised:
    scales = _scales(_largest(x, None).reshape(1))  # (1,)
    return Quantised(_codes(x, scales), scales)


def _largest(x: Floats, axis: int | None) -> Floats:
    """Return the largest magnitude, of all numbers or along an axis, without a copy of x.

    Raises LocalProtocolError if a number is NaN or infinite.
    """
    largest = np.maximum(np.abs(x.max(axis=axis)), np.abs(x.min(axis=axis)))
    if not np.isfinite(largest).all():
        raise LocalProtocolError("holds NaN or Inf; nothing was sent")
    return np.asarray(largest, np.float32)


def _scales(largest: Floats) -> Floats:
    """Return largest / 127, rounded up to SCALE_BITS significant bits, so that no code is beyond 127."""
    wanted = largest.astype(np.float64) / CODE_MOST
    if wanted.max() > SCALE_MOST:
        raise LocalProtocolError(f"a number of {largest.max():g}, int8 holds at most {CODE_MOST * SCALE_MOST:g}")
    _, exponents = np.frexp(wanted)
    units = np.maximum(exponents - SCALE_BITS, SCALE_LEAST_EXPONENT)
    scales: Floats = np.ldexp(np.ceil(np.ldexp(wanted, -units)), units).astype(np.float32)
    return scales


def _codes(x: Floats, scales: Floats) -> NDArray[np.int8]:
    """Return the integers nearest to x / scales, ties to even; in f8 and in blocks, as a copy could take 100 MB."""
    divisors = np.where(scales > 0, scales, 1)  # a scale of 0 means that all numbers are 0
    codes = np.empty(x.shape, np.int8)
    blocks = np.nditer(
        [x, divisors, codes],
        flags=["external_loop", "buffered"],
        op_flags=[["readonly"], ["readonly"], ["writeonly"]],
        op_dtypes=[np.float64, np.float64, np.int8],
    )
    with blocks:
        for values, divisor, out in blocks:
            out[...] = np.rint(values / divisor)
    return codes


def _decode_int8(value: Quantised) -> Floats:
    scales = value.scales if value.codes.ndim < 2 else value.scales[:, None]
    product: Floats = np.multiply(value.codes, scales, dtype=np.float32)
    return product


def _carries_float(code: str) -> Callable[[Carried], bool]:
    return lambda value: isinstance(value, np.ndarray) and value.dtype.str[1:] == code


def _carries_rows(value: Carried) -> bool:
    return isinstance(value, Quantised) and value.codes.ndim > 1 and len(value.scales) == len(value.codes)


def _carries_tensor(value: Carried) -> bool:
    return isinstance(value, Quantised) and len(value.scales) == 1


ENCODINGS: Mapping[str, Encoding] = {
    each.name: each
    for each in (
        Encoding("f32", lambda x: x, _carries_float("f4"), lambda value: value),
        Encoding("f16", _encode_f16, _carries_float("f2"), lambda value: value.astype(np.float32)),
        Encoding("int8-row", _encode_rows, _carries_rows, _decode_int8),
        Encoding("int8-tensor", _encode_tensor, _carries_tensor, _decode_int8),
    )
}
FLOAT_ENCODINGS = ("f32", "f16")
"""The encodings for probabilities, in which rows still sum to 1 within rounding."""
FLAT_ENCODINGS = tuple(name for name in ENCODINGS if name != "int8-row")
"""The encodings for arrays without rows."""
DEFAULT_ENCODING = "f32"
"""The encoding that every device can read and write."""
