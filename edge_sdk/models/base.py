"""What a device brings: the Model protocol, and the values that it speaks in."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgpack
import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import Preprocess
from edge_sdk.errors import StoreError
from edge_sdk.objectives import Objective, Optim
from edge_sdk.objectives.optim import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What a model says of itself; travels in Hello (but for preprocess and cost)."""

    name: str
    runtime: str
    """numpy, torch or onnx."""
    classes: int
    feature_dim: int = 0
    """Width of the features; 0: it has none to give."""
    capabilities: frozenset[str] = frozenset({"predict"})
    """Of edge_sdk.methods.base.CAPABILITIES."""
    terms: frozenset[str] = frozenset()
    """Names of the loss terms that it can minimise; empty: it can only predict."""
    inert_terms: frozenset[str] = frozenset()
    """Those of `terms` that it takes without effect, because what they would train is frozen; a report says so."""
    preprocess: Preprocess = field(default_factory=Preprocess)
    parameters: int = 0
    """Trainable scalars."""
    layout: bytes = b""
    """Names the order and the shapes of the trainable scalars, 16 bytes; empty: they cannot be shared."""
    batch_norm: bool = False
    """Whether it keeps running statistics of batches, which are no trainable scalars and are not shared."""
    flops_per_sample: int = 0
    """Floating-point operations of one forward pass."""
    activation_bytes_per_sample: int = 0
    """What the layers of one forward pass write."""
    calls_per_pass: int = 0
    """Layers that one forward pass runs through."""
    note: str = ""
    """What a report should say of it, such as where a frozen extractor comes from."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batches:
    """Mini-batches of equal size, already chosen: the samples, and for each step which of them."""

    inputs: Floats  # (n, c, h, w), preprocessed
    labels: Ints | None  # (n,)
    indices: Ints  # (steps, b)
    stochastic: bool = True
    """Whether dropout and batch statistics behave as in training.  False on public samples: the forward pass that is
    differentiated must be the one whose logits were sent, and running statistics must not see samples twice."""
    seed: int = 0
    """For whatever is random inside the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """What a fit did."""

    steps: int
    loss: float
    """Of the last step, before it."""
    extra_flops: int = 0
    """Floating-point operations beyond a training pass over its batches."""


def layout_digest(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> bytes:
    """The layout of weights that are these named arrays one after the other, each in C order: 16 bytes."""
    return hashlib.sha256(repr([(name, tuple(shape)) for name, shape in shapes]).encode()).digest()[:16]


COSINE_SCALE = 20.0
"""s of a cosine head, unless a method says otherwise: what FedNH's authors start a ResNet from."""
NORM_LEAST = 1e-12
"""What lengths are divided by at least."""


class Model(Protocol):
    """Any architecture in any runtime.  x: f4 (n, c, h, w), as `spec.preprocess` makes it.

    A model that lacks a capability raises Unsupported from the methods that need it.
    """

    @property
    def spec(self) -> ModelSpec:
        """What this model is and can do."""

    def logits(self, x: Floats) -> Floats:
        """(n, c, h, w) -> (n, k), before softmax, as in inference."""

    def features(self, x: Floats) -> Floats:
        """(n, c, h, w) -> (n, d), the input of the last layer, as in inference."""

    def head(self, f: Floats) -> Floats:
        """(n, d) -> (n, k): logits = head(features(x))."""

    def fit(self, batches: Batches, objective: Objective, optim: Optim, part: Part = "all") -> FitReport:
        """One optimiser step per row of `batches.indices`; what does not belong to `part` stays, its moments, too."""

    def head_rows(self) -> Floats:
        """The last layer's weights with the bias as last column: (k, d + 1)."""

    def set_head_rows(self, classes: Ints, rows: Floats) -> None:
        """Overwrite the rows of some classes: classes (m,), rows (m, d + 1); optimiser moments are reset."""

    def weights(self) -> Floats:
        """All trainable scalars, flat: (p,)."""

    def set_weights(self, values: Floats) -> None:
        """Overwrite all trainable scalars; optimiser moments are reset."""

    def head_mask(self) -> NDArray[np.bool_]:
        """Which of the weights are those of the last layer, the scale of a cosine head not included: (p,)."""

    def state_bytes(self) -> bytes:
        """Weights, buffers and optimiser moments, to survive a restart."""

    def load_state(self, state: bytes) -> None:
        """Back to what state_bytes gave, exactly.  Raises StoreError where it does not fit this model."""


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Named arrays as bytes, for state that stays on this machine."""
    head: bytes = msgpack.packb({name: [a.dtype.str, list(a.shape)] for name, a in arrays.items()})
    values = [np.ascontiguousarray(a).data for a in arrays.values()]
    return b"".join((len(head).to_bytes(4, "little"), head, *values))  # copies the arrays once


def unpack_arrays(state: bytes) -> dict[str, NDArray[Any]]:
    """The arrays that pack_arrays stored, writable.  Raises StoreError for anything else."""
    try:
        at = 4 + int.from_bytes(state[:4], "little")
        found: dict[str, NDArray[Any]] = {}
        for name, (dtype, shape) in msgpack.unpackb(state[4:at]).items():
            array = np.frombuffer(state, np.dtype(dtype), math.prod(shape), at).reshape(shape).copy()
            found[name], at = array, at + array.nbytes
    except Exception as error:
        raise StoreError(
            f"saved model state does not read ({type(error).__name__}): remove the state folder"
        ) from error
    return found
