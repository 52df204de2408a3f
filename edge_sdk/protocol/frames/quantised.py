"""Arrays of floats in the forms in which they are sent: as f4, as f2, or as int8 codes with scales.

On the wire a quantised array is a tensor with a fourth part, `["i1", [shape], codes, scales]`.  The scales are f4,
one for each row, or a single one for the whole array.  The numbers are `codes * scales`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import LocalProtocolError, RemoteProtocolError
from edge_sdk.protocol.frames.leaves import Decoder, Encoder, Plain, Tensor, leaf

CODE_MOST = 127
"""Codes are symmetric, in [-127, 127]; -128 is not used."""
SCALE_MOST = 2.0**121
"""With a slightly larger scale, the largest code times the scale would be infinite in f4."""


@dataclass(frozen=True, slots=True, eq=False)
class Quantised:
    """A quantised array: int8 codes and f4 scales.  Two are equal if all their numbers are equal."""

    codes: NDArray[np.int8]  # (n, m) or (p,)
    scales: NDArray[np.float32]  # (n,) or (1,)

    __hash__ = None  # type: ignore[assignment]  # as for every class with an __eq__ and mutable parts

    def __eq__(self, other: object) -> bool:
        if type(other) is not Quantised:
            return NotImplemented
        return np.array_equal(self.codes, other.codes) and np.array_equal(self.scales, other.scales)


@dataclass(frozen=True)
class Coded:
    """The rule of a field: a finite array of floats with `ndim` dimensions, each at least 1, as f4, f2 or Quantised."""

    ndim: int


def coded(rule: Coded) -> tuple[Encoder, Decoder]:
    """Return the encoder and the decoder of a field with this rule."""
    encode_floats, decode_floats = leaf(Tensor(("f4", "f2"), rule.ndim))
    encode_codes, decode_codes = leaf(Tensor(("i1",), rule.ndim))
    encode_scales, decode_scales = leaf(Tensor(("f4",), 1))

    def encode(value: Any, path: str) -> Plain:
        if type(value) is not Quantised:
            return encode_floats(value, path)
        plain = [*encode_codes(value.codes, path), encode_scales(value.scales, path)[2]]
        try:
            _check(value.codes, value.scales, path)
        except RemoteProtocolError as error:  # a sender keeps the rules that receivers check
            raise LocalProtocolError(str(error)) from None
        return plain

    def decode(value: Plain, path: str) -> NDArray[Any] | Quantised:
        if type(value) is not list or len(value) != 4:
            return decode_floats(value, path)  # type: ignore[no-any-return]  # a Decoder of any leaf
        codes = decode_codes(value[:3], path)
        raw = value[3]
        extent = len(raw) // 4 if isinstance(raw, (bytes, memoryview)) else 0
        scales = decode_scales(["f4", [extent], raw], f"{path}: scales")
        _check(codes, scales, path)
        return Quantised(codes, scales)

    return encode, decode


def _check(codes: NDArray[np.int8], scales: NDArray[np.float32], path: str) -> None:
    if len(scales) not in (1, len(codes) if codes.ndim > 1 else 1):
        raise RemoteProtocolError("tensor", f"{path}: {len(scales)} scales, expected 1 or one for each row")
    if codes.min() < -CODE_MOST:
        raise RemoteProtocolError("tensor", f"{path}: code -128, expected {-CODE_MOST} to {CODE_MOST}")
    if scales.min() < 0 or scales.max() > SCALE_MOST:
        raise RemoteProtocolError("tensor", f"{path}: a scale outside [0, {SCALE_MOST:g}]")
