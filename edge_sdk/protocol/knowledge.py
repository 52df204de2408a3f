"""The payload kinds: the only things that devices trade.

Each kind states its own shape and can check itself against what the federation expects (`Expect`).  A kind that
does not fit is refused before any arithmetic sees it.
"""

from __future__ import annotations

import dataclasses
import operator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.schema import LATER, Blob, ClassIds, Counts, Digest, Integer, Matrix, Shares, Vector, wire
from edge_sdk.protocol.value_range import all_within, min_max

MAX_MAGNITUDE = 1e6
"""Numbers beyond this are finite and still ruin what is computed from them: differences, squares and sums overflow in
f4.  A device whose model has run away is refused rather than averaged in."""


@dataclass(frozen=True, kw_only=True)
class Expect:
    """What a payload must fit: the federation's sizes, the batch at hand, and what its sender may claim."""

    classes: int
    rows: int = 0
    """Samples in the public batch (for logits)."""
    feature_dim: int = 0
    """Width of the features; 0: not agreed on, any width."""
    weight_count: int = 0
    """Scalars in the shared weights; 0: not agreed on."""
    head_count: int = 0
    """How many of these belong to the last layer: classes * (features + 1)."""
    layout: bytes = b""
    """Of the shared weights; empty: not agreed on."""
    batch: bytes = b""
    """Digest of the public batch; empty: do not compare."""
    samples: int = 0
    """The most samples that may stand behind all counts together, such as what a device declared when it joined; 0:
    any.  Counts are claims: whoever weighs with them bounds them first."""
    probabilities: bool = False
    """Whether class rows are predictions: as wide as there are classes, and each on the simplex."""
    contributors: int = 0
    """The most devices that may stand behind averaged logits, 1 for an upload; 0: any."""


class _ByValue:
    """Payloads are equal when their numbers are; arrays alone would make `==` ambiguous."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # as for every class with an __eq__ and mutable parts

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]  # every payload is one
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)


def _same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b)


def _unfit(message: str) -> RemoteProtocolError:
    return RemoteProtocolError("knowledge", message)


def _check_batch(name: str, batch: bytes, values: NDArray[Any], expect: Expect) -> None:
    if expect.batch and batch != expect.batch:
        raise _unfit(
            f"{name}: made on public batch {batch.hex()}, expected {expect.batch.hex()}: "
            "logits of different samples would be averaged"
        )
    if values.shape != (expect.rows, expect.classes):
        raise _unfit(f"{name}: shape {values.shape}, expected {(expect.rows, expect.classes)}")
    _check_magnitude(name, values)


def _check_magnitude(name: str, values: NDArray[Any]) -> None:
    if not all_within(values, MAX_MAGNITUDE):
        low, high = min_max(values)
        told = f"numbers from {low:g} to {high:g}, at most {MAX_MAGNITUDE:g} is legal: the sender's model ran away"
        raise _unfit(f"{name}: {told}")


def _check_rows(name: str, classes: NDArray[Any], counts: NDArray[Any], rows: int, expect: Expect) -> None:
    if not 0 < len(classes) == rows == len(counts):
        raise _unfit(f"{name}: {len(classes)} classes, {rows} rows, {len(counts)} counts")
    ids = classes.tolist()
    if not all(map(operator.lt, ids, ids[1:])):
        raise _unfit(f"{name}: class ids must ascend without repeats")
    if ids[0] < 0 or ids[-1] >= expect.classes:
        raise _unfit(f"{name}: class id outside 0..{expect.classes - 1}")
    samples = counts.tolist()
    if min(samples) < 1:
        raise _unfit(f"{name}: a count below 1: a class without samples must be left out")
    if expect.samples and (total := sum(samples)) > max(expect.samples, rows):  # rows that all weigh 1 are no claim
        raise _unfit(f"{name}: counts of {total} samples together, at most {expect.samples} were declared")


def _check_width(name: str, width: int, expect: Expect) -> None:
    if expect.feature_dim not in (0, width):
        raise _unfit(f"{name}: width {width}, expected {expect.feature_dim}")


def _check_simplex(name: str, soft: NDArray[Any], rows: int, expect: Expect) -> None:
    shape = (rows, expect.classes)
    if soft.shape != shape:
        raise _unfit(f"{name}: probabilities of shape {soft.shape}, expected {shape}")
    exact = soft.astype(np.float64)
    if not (exact >= -1e-6).all():
        raise _unfit(f"{name}: a probability is negative")
    if not (abs(exact.sum(axis=1) - 1) < 1e-2).all():
        raise _unfit(f"{name}: probabilities do not sum to 1")


@wire("logits")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicLogits(_ByValue):
    """Logits before softmax on one public batch, from one device or averaged over `contributors` of them."""

    values: Matrix  # (b, k)
    batch: Digest
    contributors: Annotated[int, Integer(1, 2**31 - 1)] = 1

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless shape, batch, magnitude and contributors are possible."""
        _check_batch("PublicLogits", self.batch, self.values, expect)
        if not 1 <= self.contributors <= (expect.contributors or self.contributors):
            most = expect.contributors or "any number"
            raise _unfit(f"PublicLogits: {self.contributors} contributors, expected 1 to {most}")


@wire("logit-gradients")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogitGradients(_ByValue):
    """The gradient of some loss with respect to this device's logits, per sample, divided by nothing."""

    values: Matrix  # (b, k)
    batch: Digest

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless shape, batch and magnitude are possible."""
        _check_batch("LogitGradients", self.batch, self.values, expect)


@wire("class-rows")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassRows(_ByValue):
    """One vector per class that the sender holds: prototypes, header rows or class-mean logits."""

    classes: ClassIds  # (m,) ascending
    rows: Matrix  # (m, d)
    counts: Counts  # (m,) samples behind each row

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless classes, width, counts and magnitude are possible."""
        _check_rows("ClassRows", self.classes, self.counts, len(self.rows), expect)
        if expect.probabilities:
            _check_simplex("ClassRows", self.rows, len(self.classes), expect)
            return
        _check_width("ClassRows", self.rows.shape[1], expect)
        _check_magnitude("ClassRows", self.rows)


@wire("hyper-knowledge")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HyperKnowledge(_ByValue):
    """Class-mean features with class-mean soft predictions (FedHKD)."""

    classes: ClassIds  # (m,) ascending
    features: Matrix  # (m, d)
    soft: Shares  # (m, k) rows on the simplex
    counts: Counts  # (m,)

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless classes, widths, counts and probabilities are possible."""
        _check_rows("HyperKnowledge", self.classes, self.counts, len(self.features), expect)
        _check_width("HyperKnowledge", self.features.shape[1], expect)
        _check_magnitude("HyperKnowledge", self.features)
        _check_simplex("HyperKnowledge", self.soft, len(self.classes), expect)


@wire("weights")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights(_ByValue):
    """All shared parameters as one flat tensor; `layout` names their order and shapes."""

    values: Vector  # (p,)
    layout: Annotated[bytes, Blob(16, 16)]
    count: Annotated[int, Integer(1, 2**31 - 1)] = field(default=1, metadata=LATER)
    """What they weigh in a mean: the sender's samples, or 1."""

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless there are as many weights as agreed on, of a possible magnitude."""
        if expect.weight_count not in (0, self.values.size):
            raise _unfit(f"Weights: {self.values.size}, expected {expect.weight_count}")
        if self.count > (expect.samples or self.count):
            raise _unfit(f"Weights: count of {self.count} samples, at most {expect.samples} were declared")
        if expect.layout not in (b"", self.layout):
            told = f"of layout {self.layout.hex()}, expected {expect.layout.hex()}: another architecture"
            raise _unfit(f"Weights: {told}")
        _check_magnitude("Weights", self.values)


Payload: TypeAlias = PublicLogits | LogitGradients | ClassRows | HyperKnowledge | Weights
KINDS: tuple[type[Payload], ...] = (PublicLogits, LogitGradients, ClassRows, HyperKnowledge, Weights)


def payload_bytes(payload: Payload) -> int:
    """Bytes of the tensors in a payload, without framing."""
    values = (getattr(payload, field.name) for field in dataclasses.fields(payload))
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))
