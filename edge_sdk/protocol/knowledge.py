"""The payload kinds: the only things that devices trade.

Each kind states its own shape and can check itself against what the federation expects (`Expect`).  A kind that
does not fit is refused before any arithmetic sees it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.schema import Blob, ClassIds, Count, Counts, Digest, Matrix, Vector, wire


@dataclass(frozen=True, kw_only=True)
class Expect:
    """What a payload must fit: the federation's sizes and the batch at hand."""

    classes: int
    rows: int = 0
    """Samples in the public batch (for logits)."""
    feature_dim: int = 0
    """Width of the features; 0: not agreed on, any width."""
    weight_count: int = 0
    """Scalars in the shared weights; 0: not agreed on."""
    batch: bytes = b""
    """Digest of the public batch; empty: do not compare."""


def _require(fits: bool, message: str) -> None:
    if not fits:
        raise RemoteProtocolError("knowledge", message)


def _check_batch(name: str, batch: bytes, values: NDArray[Any], expect: Expect) -> None:
    _require(
        not expect.batch or batch == expect.batch,
        f"{name}: made on public batch {batch.hex()}, expected {expect.batch.hex()}: "
        "logits of different samples would be averaged",
    )
    _require(
        values.shape == (expect.rows, expect.classes),
        f"{name}: shape {values.shape}, expected {(expect.rows, expect.classes)}",
    )


def _check_rows(name: str, classes: NDArray[Any], counts: NDArray[Any], rows: int, expect: Expect) -> None:
    _require(len(classes) == rows == len(counts), f"{name}: {len(classes)} classes, {rows} rows, {len(counts)} counts")
    _require(bool((np.diff(classes) > 0).all()), f"{name}: class ids must ascend without repeats")
    _require(
        int(classes[0]) >= 0 and int(classes[-1]) < expect.classes, f"{name}: class id outside 0..{expect.classes - 1}"
    )
    _require(bool((counts > 0).all()), f"{name}: a class without samples must be left out")


def _check_width(name: str, width: int, expect: Expect) -> None:
    _require(expect.feature_dim in (0, width), f"{name}: width {width}, expected {expect.feature_dim}")


@wire("logits")
@dataclass(frozen=True, slots=True, kw_only=True)
class PublicLogits:
    """Logits before softmax on one public batch, from one device or averaged over `contributors` of them."""

    values: Matrix  # (b, k)
    batch: Digest
    contributors: Count = 1

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless shape and batch are the expected ones."""
        _check_batch("PublicLogits", self.batch, self.values, expect)


@wire("logit-gradients")
@dataclass(frozen=True, slots=True, kw_only=True)
class LogitGradients:
    """The gradient of some loss with respect to this device's logits, per sample, divided by nothing."""

    values: Matrix  # (b, k)
    batch: Digest

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless shape and batch are the expected ones."""
        _check_batch("LogitGradients", self.batch, self.values, expect)


@wire("class-rows")
@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRows:
    """One vector per class that the sender holds: prototypes, header rows or class-mean logits."""

    classes: ClassIds  # (m,) ascending
    rows: Matrix  # (m, d)
    counts: Counts  # (m,) samples behind each row

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless classes, width and counts are possible."""
        _check_rows("ClassRows", self.classes, self.counts, len(self.rows), expect)
        _check_width("ClassRows", self.rows.shape[1], expect)


@wire("hyper-knowledge")
@dataclass(frozen=True, slots=True, kw_only=True)
class HyperKnowledge:
    """Class-mean features with class-mean soft predictions (FedHKD)."""

    classes: ClassIds  # (m,) ascending
    features: Matrix  # (m, d)
    soft: Matrix  # (m, k) rows on the simplex
    counts: Counts  # (m,)

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless classes, widths, counts and probabilities are possible."""
        _check_rows("HyperKnowledge", self.classes, self.counts, len(self.features), expect)
        _check_width("HyperKnowledge", self.features.shape[1], expect)
        _require(self.soft.shape == (len(self.classes), expect.classes), f"HyperKnowledge: soft is {self.soft.shape}")
        soft = self.soft.astype(np.float64)
        _require(bool((soft >= -1e-6).all()), "HyperKnowledge: a probability is negative")
        _require(bool((abs(soft.sum(axis=1) - 1) < 1e-2).all()), "HyperKnowledge: probabilities do not sum to 1")


@wire("weights")
@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All shared parameters as one flat tensor; `layout` names their order and shapes."""

    values: Vector  # (p,)
    layout: Annotated[bytes, Blob(16, 16)]

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless there are as many weights as agreed on."""
        _require(
            expect.weight_count in (0, self.values.size), f"Weights: {self.values.size}, expected {expect.weight_count}"
        )


Payload: TypeAlias = PublicLogits | LogitGradients | ClassRows | HyperKnowledge | Weights
KINDS: tuple[type[Payload], ...] = (PublicLogits, LogitGradients, ClassRows, HyperKnowledge, Weights)


def payload_bytes(payload: Payload) -> int:
    """Bytes of the tensors in a payload, without framing."""
    values = (getattr(payload, field.name) for field in dataclasses.fields(payload))
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))
