"""The payload kinds: the only data that devices exchange.

Each kind declares its shape and checks itself against the federation's expectation (`Expect`), so that a misfit is
refused before any arithmetic uses it.  Kinds are registered by tag in the entry-point group `edge_sdk.payloads`, to
which other packages can add theirs.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol import registry
from edge_sdk.protocol.encodings import DEFAULT_ENCODING, ENCODINGS, FLAT_ENCODINGS
from edge_sdk.protocol.frames.schema import (
    LATER,
    Blob,
    ClassIds,
    Counts,
    Digest,
    Exact,
    ExactRows,
    Integer,
    Matrix,
    Shares,
    Vector,
    open_base,
    registered,
    wire,
)
from edge_sdk.protocol.frames.value_range import all_within, min_max

MAX_MAGNITUDE = 1e6
"""Numbers beyond this are finite, but their differences, squares and sums overflow in f4.  So a device whose model has
run away is refused rather than averaged in."""


PAYLOADS = "edge_sdk.payloads"
_BESIDE_ROWS = 2
"""The number of values beside each row of a class: its id and its count."""


@dataclass(frozen=True, kw_only=True)
class Expect:
    """The expected properties of a payload: the federation's sizes, the current batch, and limits for the sender."""

    classes: int
    rows: int = 0
    """The number of samples in the public batch (for logits)."""
    feature_dim: int = 0
    """The width of the features, or 0 if any width is legal."""
    weight_count: int = 0
    """The number of scalars in the shared weights, or 0 if any is legal."""
    head_count: int = 0
    """The number of those scalars in the last layer: classes * (features + 1)."""
    layout: bytes = b""
    """The layout of the shared weights, or empty if any is legal."""
    numbers: int = 0
    """The count of plain numbers (for scalars), or 0 if any is legal."""
    most_samples: int = 0
    """The maximum number of private samples with a row each, or 0 for any."""
    batch: bytes = b""
    """The digest of the public batch, or empty if it is not compared."""
    samples: int = 0
    """The maximum sum of all counts, such as the samples that a device declared when it joined; 0 for any.  Counts are
    claims, so they are bounded before they become weights."""
    probabilities: bool = False
    """Whether class rows are predictions: one column per class, and each row on the simplex."""
    contributors: int = 0
    """The maximum number of devices behind averaged logits, 1 for an upload, or 0 for any."""


EXAMPLE_SIZES = Expect(classes=10, feature_dim=500, weight_count=2_621_558)
"""The sizes of a CNN on ten classes, for comparable figures."""


@open_base(PAYLOADS)
@dataclass(frozen=True, slots=True, eq=False)
class Payload(ABC):
    """One kind of knowledge: a frozen dataclass, not compared by its fields (eq=False), with a tag (@wire).

    Payloads are equal when their numbers are; arrays alone would make `==` ambiguous.
    """

    __hash__ = None  # type: ignore[assignment]  # as for every class with an __eq__ and mutable parts
    coded: ClassVar[tuple[str, ...]] = ()
    """The fields whose floats travel in the federation's encoding for this kind, annotated as Matrix or Vector.  Ids
    and counts stay exact, and probabilities f4, because methods take logarithms of tiny ones."""
    encodings: ClassVar[tuple[str, ...]] = tuple(ENCODINGS)
    """The encodings that a federation may choose."""

    @abstractmethod
    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError (`unfit`) unless sizes and numbers are possible."""

    @classmethod
    @abstractmethod
    def most_bytes(cls, expect: Expect) -> tuple[int, ...]:
        """Return the bytes of each tensor, in f4 or i4, of the largest one that fits; no size in `expect` is 0."""

    @classmethod
    def scalars(cls, slot: Slot) -> Mapping[str, int]:
        """Return the numbers in a slot's largest payload, as coefficients of the symbols that message_sizes.py names.

        A kind that does not override this returns their number in the example there.
        """
        return {"": sum(cls.most_bytes(slot.expect(EXAMPLE_SIZES))) // 4}

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [field.name for field in dataclasses.fields(self)]
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)


def _same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b)


def unfit(message: str) -> RemoteProtocolError:
    """Return the error for a misfit."""
    return RemoteProtocolError("knowledge", message)


def _check_batch(name: str, batch: bytes, values: NDArray[Any], expect: Expect) -> None:
    if expect.batch and batch != expect.batch:
        raise unfit(
            f"{name}: made on public batch {batch.hex()}, expected {expect.batch.hex()}: "
            "logits of different samples would be averaged"
        )
    if values.shape != (expect.rows, expect.classes):
        raise unfit(f"{name}: shape {values.shape}, expected {(expect.rows, expect.classes)}")
    check_magnitude(name, values)


def check_magnitude(name: str, values: NDArray[Any]) -> None:
    """Raise RemoteProtocolError for numbers beyond MAX_MAGNITUDE."""
    if not all_within(values, MAX_MAGNITUDE):
        low, high = min_max(values)
        problem = f"numbers from {low:g} to {high:g}, at most {MAX_MAGNITUDE:g} is legal: the sender's model ran away"
        raise unfit(f"{name}: {problem}")


class ByClass(Payload):
    """Rows of the classes that the sender holds samples of, ascending; a class without samples is left out."""

    __slots__ = ()
    classes: NDArray[np.int32]  # (m,)
    counts: NDArray[np.int32]  # (m,) samples behind each row

    @property
    @abstractmethod
    def vectors(self) -> NDArray[np.float32]:
        """Return a vector for each class, for plots: (m, d)."""


def check_class_rows(name: str, classes: NDArray[Any], counts: NDArray[Any], rows: int, expect: Expect) -> None:
    """Raise RemoteProtocolError unless classes, counts and the number of rows are possible and agree."""
    if not 0 < len(classes) == rows == len(counts):
        raise unfit(f"{name}: {len(classes)} classes, {rows} rows, {len(counts)} counts")
    ids = classes.tolist()
    if not all(map(operator.lt, ids, ids[1:])):
        raise unfit(f"{name}: class ids must ascend without repeats")
    if ids[0] < 0 or ids[-1] >= expect.classes:
        raise unfit(f"{name}: class id outside 0..{expect.classes - 1}")
    samples = counts.tolist()
    if min(samples) < 1:
        raise unfit(f"{name}: a count below 1: a class without samples must be left out")
    # rows of weight 1 claim nothing, so a sum of ones is always legal
    if expect.samples and (total := sum(samples)) > max(expect.samples, rows):
        raise unfit(f"{name}: counts of {total} samples together, at most {expect.samples} were declared")


def check_row_width(name: str, width: int, expect: Expect) -> None:
    """Raise RemoteProtocolError unless rows are as wide as the federation's features."""
    if expect.feature_dim not in (0, width):
        raise unfit(f"{name}: width {width}, expected {expect.feature_dim}")


def _check_simplex(name: str, soft: NDArray[Any], rows: int, expect: Expect) -> None:
    shape = (rows, expect.classes)
    if soft.shape != shape:
        raise unfit(f"{name}: probabilities of shape {soft.shape}, expected {shape}")
    exact = soft.astype(np.float64)
    if not (exact >= -1e-6).all():
        raise unfit(f"{name}: a probability is negative")
    if not (abs(exact.sum(axis=1) - 1) < 1e-2).all():
        raise unfit(f"{name}: probabilities do not sum to 1")


class ByPublicSample(Payload):
    """A number per class for each sample of one public batch."""

    __slots__ = ()

    @classmethod
    def most_bytes(cls, expect: Expect) -> tuple[int, ...]:
        """Return the bytes of a row for each sample of the public batch."""
        return (4 * expect.rows * expect.classes,)

    @classmethod
    def scalars(cls, slot: Slot) -> Mapping[str, int]:
        """Return the numbers in the batch that the slot names."""
        return {"K": slot.rows}


@wire("logits")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicLogits(ByPublicSample):
    """Logits before softmax on one public batch, from one device or averaged over `contributors` of them."""

    coded: ClassVar[tuple[str, ...]] = ("values",)
    values: Matrix  # (b, k)
    batch: Digest
    contributors: Annotated[int, Integer(1, 2**31 - 1)] = 1

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless shape, batch, magnitude and contributors are possible."""
        _check_batch("PublicLogits", self.batch, self.values, expect)
        if not 1 <= self.contributors <= (expect.contributors or self.contributors):
            most = expect.contributors or "any number"
            raise unfit(f"PublicLogits: {self.contributors} contributors, expected 1 to {most}")


@wire("public-features")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicFeatures(Payload):
    """Features on one public batch, from one device or averaged over several."""

    encodings: ClassVar[tuple[str, ...]] = (DEFAULT_ENCODING,)
    values: ExactRows  # (b, d)
    batch: Digest

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless shape, batch and magnitude are possible."""
        if self.values.shape[1:] and expect.feature_dim in (0, self.values.shape[1]):
            expect = dataclasses.replace(expect, classes=self.values.shape[1])
        _check_batch("PublicFeatures", self.batch, self.values, expect)

    @classmethod
    def most_bytes(cls, expect: Expect) -> tuple[int, ...]:
        """Return the bytes of a row for each sample of the public batch."""
        return (4 * expect.rows * expect.feature_dim,)


@wire("logit-gradients")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogitGradients(ByPublicSample):
    """The gradient of some loss with respect to this device's logits, per sample, divided by nothing."""

    coded: ClassVar[tuple[str, ...]] = ("values",)
    values: Matrix  # (b, k)
    batch: Digest

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless shape, batch and magnitude are possible."""
        _check_batch("LogitGradients", self.batch, self.values, expect)


@wire("class-rows")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassRows(ByClass):
    """One vector per class that the sender holds: prototypes, header rows or class-mean logits."""

    coded: ClassVar[tuple[str, ...]] = ("rows",)
    classes: ClassIds  # (m,) ascending
    rows: Matrix  # (m, d)
    counts: Counts  # (m,) samples behind each row

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless classes, width, counts and magnitude are possible."""
        check_class_rows("ClassRows", self.classes, self.counts, len(self.rows), expect)
        if expect.probabilities:
            _check_simplex("ClassRows", self.rows, len(self.classes), expect)
            return
        check_row_width("ClassRows", self.rows.shape[1], expect)
        check_magnitude("ClassRows", self.rows)

    @property
    def vectors(self) -> NDArray[np.float32]:
        """Return the rows."""
        return self.rows

    @classmethod
    def most_bytes(cls, expect: Expect) -> tuple[int, ...]:
        """Return the bytes of the rows of all classes, their ids and counts."""
        width = expect.classes if expect.probabilities else expect.feature_dim
        return (4 * expect.classes, 4 * expect.classes * width, 4 * expect.classes)

    @classmethod
    def scalars(cls, slot: Slot) -> Mapping[str, int]:
        """Return the numbers for all classes; a remainder slot's rows count in the slot beside it."""
        if slot.remainder:
            return {}
        vectors = {"K K d" if slot.class_times else "K d": slot.times, "K K": int(slot.class_columns)}
        wide = {"K K": 1} if slot.probabilities else vectors
        return {**wide, "K": slot.extra_columns + _BESIDE_ROWS}


@wire("hyper-knowledge")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HyperKnowledge(ByClass):
    """Class-mean features with class-mean soft predictions (FedHKD)."""

    coded: ClassVar[tuple[str, ...]] = ("features",)
    classes: ClassIds  # (m,) ascending
    features: Matrix  # (m, d)
    soft: Shares  # (m, k) rows on the simplex
    counts: Counts  # (m,)

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless classes, widths, counts and probabilities are possible."""
        check_class_rows("HyperKnowledge", self.classes, self.counts, len(self.features), expect)
        check_row_width("HyperKnowledge", self.features.shape[1], expect)
        check_magnitude("HyperKnowledge", self.features)
        _check_simplex("HyperKnowledge", self.soft, len(self.classes), expect)

    @property
    def vectors(self) -> NDArray[np.float32]:
        """Return the features."""
        return self.features

    @classmethod
    def most_bytes(cls, expect: Expect) -> tuple[int, ...]:
        """Return the bytes of the ids, features, predictions and counts of all classes."""
        k = expect.classes
        return (4 * k, 4 * k * expect.feature_dim, 4 * k * k, 4 * k)

    @classmethod
    def scalars(cls, slot: Slot) -> Mapping[str, int]:
        """Return the numbers for all classes."""
        del slot
        return {"K d": 1, "K K": 1, "K": _BESIDE_ROWS}


@wire("weights")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights(Payload):
    """All shared parameters as one flat tensor; `layout` names their order and shapes."""

    coded: ClassVar[tuple[str, ...]] = ("values",)
    encodings: ClassVar[tuple[str, ...]] = FLAT_ENCODINGS
    values: Vector  # (p,)
    layout: Annotated[bytes, Blob(16, 16)]
    count: Annotated[int, Integer(1, 2**31 - 1)] = field(default=1, metadata=LATER)
    """The weight of this upload in a mean: the sender's samples, or 1."""

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless the number of weights and their magnitude are possible."""
        if expect.weight_count not in (0, self.values.size):
            raise unfit(f"Weights: {self.values.size}, expected {expect.weight_count}")
        if self.count > (expect.samples or self.count):
            raise unfit(f"Weights: count of {self.count} samples, at most {expect.samples} were declared")
        if expect.layout not in (b"", self.layout):
            problem = f"of layout {self.layout.hex()}, expected {expect.layout.hex()}: another architecture"
            raise unfit(f"Weights: {problem}")
        check_magnitude("Weights", self.values)

    @classmethod
    def most_bytes(cls, expect: Expect) -> tuple[int, ...]:
        """Return the bytes of all weights."""
        return (4 * expect.weight_count,)

    @classmethod
    def scalars(cls, slot: Slot) -> Mapping[str, int]:
        """Return the number of all weights, or of those in front of the last layer."""
        head = {"K d": -1, "K": -1} if slot.without_head else {}
        return {"P": 1, **head}


@wire("scalars")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scalars(Payload):
    """A few plain numbers beside other knowledge, such as a loss; they are exact in every encoding."""

    encodings: ClassVar[tuple[str, ...]] = (DEFAULT_ENCODING,)
    values: Exact  # (n,)

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless there are as many numbers as the slot says, of a possible magnitude."""
        if expect.numbers not in (0, self.values.size):
            raise unfit(f"Scalars: {self.values.size} numbers, expected {expect.numbers}")
        check_magnitude("Scalars", self.values)

    @classmethod
    def most_bytes(cls, expect: Expect) -> tuple[int, ...]:
        """Return the bytes of the numbers."""
        return (4 * expect.numbers,)

    @classmethod
    def scalars(cls, slot: Slot) -> Mapping[str, int]:
        """Return the number of numbers."""
        return {"": slot.numbers}


def kinds() -> Mapping[str, type[Payload]]:
    """Return every registered kind by its tag.  Raises UsageError, in one line, for an entry that is not a kind."""
    return {tag: registered(Payload, tag) for tag in registry.names(PAYLOADS)}


@dataclass(frozen=True, slots=True)
class Slot:
    """One role in an exchange, with its kind of knowledge."""

    kind: type[Payload]
    personal: bool = False
    """Whether the payload differs from device to device (downlink only)."""
    optional: bool = False
    """Whether the payload may be missing, such as a gradient for a teacher, or the past of a first exchange."""
    rows: int = 0
    """The number of samples of the public batch, for kinds that have one."""
    extra_columns: int = 0
    """The columns of class rows beyond the width of the features: 1 for header rows, whose last column is the bias."""
    without_head: bool = False
    """Whether the weights exclude the last layer."""
    probabilities: bool = False
    """Whether class rows are predictions: one column per class, and each row on the simplex (W14)."""
    times: int = 1
    """The number of vectors in a class row, side by side, each as wide as the features."""
    class_columns: bool = False
    """Whether class rows have one more column for each class."""
    numbers: int = 0
    """The count of plain numbers, for Scalars, or of numbers in a code, for SampleCodes."""
    samples: int = 0
    """The maximum number of private samples, for kinds that have a row for each."""
    class_times: bool = False
    """Whether class rows have `times` vectors for each class."""
    remainder: bool = False
    """Whether class rows hold exactly the classes that the slot beside it lacks."""

    def expect(self, expect: Expect) -> Expect:
        """Return the expectation for this slot, from the federation's `expect`."""
        return _expected(self, expect)

    def columns(self, classes: int) -> int:
        """Return the number of columns of class rows beyond the width of the features."""
        return self.extra_columns + (classes if self.class_columns else 0)


@functools.lru_cache(maxsize=2**12)
def _expected(slot: Slot, expect: Expect) -> Expect:
    """Return the expectation of a slot; kept, as in wires.py, for it is the same for all devices of a kind."""
    times = slot.times * (expect.classes if slot.class_times else 1)
    width = expect.feature_dim * times + slot.columns(expect.classes) if expect.feature_dim else 0
    left_out = expect.head_count if slot.without_head else 0
    count = expect.weight_count - left_out if expect.weight_count else 0
    return dataclasses.replace(
        expect,
        rows=slot.rows or expect.rows,
        feature_dim=width,
        weight_count=count,
        numbers=slot.numbers,
        most_samples=slot.samples,
        probabilities=slot.probabilities,
    )
