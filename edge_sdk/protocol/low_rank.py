"""A payload kind for matrices as products of thin ones, cut from their singular value decomposition.

Its size depends on its numbers, up to a fixed bound, because a matrix that would not shrink travels whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.protocol.encodings import FLOAT_ENCODINGS
from edge_sdk.protocol.frames.schema import Blob, Counts, Vector, wire
from edge_sdk.protocol.knowledge import MAX_MAGNITUDE, Expect, Payload, Slot, unfit

MAX_ARRAYS = 4096
"""The maximum number of arrays of one model, which bounds the tensors that describe them."""


@wire("low-rank")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LowRank(Payload):
    """Arrays of a model one after the other, each whole or as U (a, n), s (n,) and V (n, b) of U diag(s) V."""

    coded: ClassVar[tuple[str, ...]] = ("values",)
    encodings: ClassVar[tuple[str, ...]] = FLOAT_ENCODINGS
    """Without int8, because one scale would have to serve directions, singular values and biases."""
    heights: Counts  # (t,) a of each array
    widths: Counts  # (t,) b of each array; 1 for a vector
    ranks: Counts  # (t,) n of each array, or 0 if it travels whole
    values: Vector  # all numbers, array after array
    layout: Annotated[bytes, Blob(16, 16)]

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless sizes, layout and the magnitude of the products are possible."""
        count = len(self.heights)
        if not 0 < count == len(self.widths) == len(self.ranks) <= MAX_ARRAYS:
            raise unfit(f"LowRank: {count} heights, {len(self.widths)} widths, {len(self.ranks)} ranks")
        for a, b, n in self.shapes:
            if a < 1 or b < 1 or n < 0 or (n and n * (a + b + 1) >= a * b):
                raise unfit(f"LowRank: rank {n} for an array of {a} by {b}")
        numbers = sum(stored(*shape) for shape in self.shapes)
        if numbers != self.values.size:
            raise unfit(f"LowRank: {self.values.size} numbers, expected {numbers}")
        whole = sum(a * b for a, b, _ in self.shapes)
        if expect.weight_count not in (0, whole):
            raise unfit(f"LowRank: arrays of {whole} numbers together, expected {expect.weight_count}")
        if expect.layout not in (b"", self.layout):
            raise unfit(f"LowRank: layout {self.layout.hex()}, expected {expect.layout.hex()}: another architecture")
        most = max(_largest(parts) for parts in self.parts())
        if not most <= MAX_MAGNITUDE:
            raise unfit(f"LowRank: numbers of up to {most:g}, at most {MAX_MAGNITUDE:g} is legal")

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Return (a, b, n) of each array."""
        return list(zip(self.heights.tolist(), self.widths.tolist(), self.ranks.tolist(), strict=True))

    def parts(self) -> Iterator[tuple[Floats, ...]]:
        """Yield of each array itself (a, b), or U (a, n), s (n,) and V (n, b)."""
        begin = 0
        for a, b, n in self.shapes:
            found = []
            for shape in ((a, n), (n,), (n, b)) if n else ((a, b),):
                end = begin + prod(shape)
                found.append(self.values[begin:end].reshape(shape))
                begin = end
            yield tuple(found)

    @classmethod
    def most_bytes(cls, expect: Expect) -> tuple[int, ...]:
        """Return the bytes of the shapes of as many arrays as are legal, and of all weights."""
        return (4 * MAX_ARRAYS, 4 * MAX_ARRAYS, 4 * MAX_ARRAYS, 4 * expect.weight_count)

    @classmethod
    def scalars(cls, slot: Slot) -> Mapping[str, int]:
        """Return the number of all weights, the maximum; the three numbers per array are not counted."""
        del slot
        return {"P": 1}


def stored(a: int, b: int, n: int) -> int:
    """Return the count of numbers for an array of a by b at rank n; rank 0 stands for the whole array."""
    return n * (a + b + 1) if n else a * b


def _largest(parts: Sequence[Floats]) -> float:
    """Return a bound on the numbers of an array; NaN if a number is."""
    if len(parts) == 1:
        return float(np.abs(parts[0]).max())
    u, s, v = (np.abs(part.astype(np.float64)) for part in parts)
    return float(u.max() * s.sum() * v.max())


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Return the shape as a matrix: (out, in k k) of a convolution, (n, 1) of a vector."""
    return shape[0] if shape else 1, prod(shape[1:])


def rank_of(singular: NDArray[np.float64], energy: float) -> int:
    """Return the fewest n whose first n squares sum to more than this share of all; all of them if no n does."""
    squares = np.cumsum(singular**2)
    enough = np.flatnonzero(squares > energy * squares[-1])
    return int(enough[0]) + 1 if len(enough) else len(singular)


def factorised(array: NDArray[np.floating], energy: float) -> tuple[int, Floats]:
    """Return the rank and the numbers of one array (a, b), cut to this share of its energy; rank 0: it is whole."""
    a, b = array.shape
    if min(a, b) > 1:
        u, s, v = np.linalg.svd(array.astype(np.float64), full_matrices=False)
        n = rank_of(s, energy)
        if stored(a, b, n) < a * b:
            return n, np.concatenate([u[:, :n].ravel(), s[:n], v[:n].ravel()]).astype(np.float32)
    return 0, array.astype(np.float32).ravel()


def joined(matrices: Sequence[tuple[int, int]], found: Sequence[tuple[int, Floats]], layout: bytes) -> LowRank:
    """Return the payload of arrays whose shapes, ranks and numbers these are."""
    heights, widths = (np.array(each, np.int32) for each in zip(*matrices, strict=True))
    return LowRank(
        heights=heights,
        widths=widths,
        ranks=np.array([n for n, _ in found], np.int32),
        values=np.concatenate([numbers for _, numbers in found]),
        layout=layout,
    )


def expanded(payload: LowRank) -> NDArray[np.float64]:
    """Return all weights, flat: (p,)."""
    arrays = []
    for parts in payload.parts():
        if len(parts) == 1:
            arrays.append(parts[0].astype(np.float64))
        else:
            u, s, v = (part.astype(np.float64) for part in parts)
            arrays.append((u * s) @ v)
    return np.concatenate([array.ravel() for array in arrays])
