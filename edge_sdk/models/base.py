"""The Model protocol, which a device's model implements, and its values."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgpack
import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import Preprocess
from edge_sdk.errors import ModelError, StoreError
from edge_sdk.objectives import Objective, Optim
from edge_sdk.objectives.optim import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The description of a model.  It is sent in the Hello, without preprocess, shapes and cost."""

    name: str
    runtime: str
    """The runtime: numpy, torch, onnx, scikit-learn, or python for any function."""
    classes: int
    feature_dim: int = 0
    """The width of the features, or 0 if the model gives none."""
    capabilities: frozenset[str] = frozenset({"predict"})
    """The model's capabilities, from edge_sdk.methods.contract.base.CAPABILITIES."""
    terms: frozenset[str] = frozenset()
    """The names of the loss terms that the model can minimise, or empty if it can only predict."""
    inert_terms: frozenset[str] = frozenset()
    """Those of `terms` without effect, because the part that they would train is frozen.  Reports list them."""
    preprocess: Preprocess = field(default_factory=Preprocess)
    parameters: int = 0
    """The number of trainable scalars."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """The shapes of the arrays of trainable scalars, in the order of the weights, or empty if unknown."""
    layout: bytes = b""
    """Identifies the order and shapes of the trainable scalars, 16 bytes, or empty if they cannot be shared."""
    batch_norm: bool = False
    """Whether the model keeps running statistics of batches, which are not trainable scalars and are not shared."""
    least_batch: int = 1
    """The minimum number of samples in a training batch: 2 if a BatchNorm gets one number per sample, otherwise 1."""
    flops_per_sample: int = 0
    """Floating-point operations of one forward pass."""
    activation_bytes_per_sample: int = 0
    """The bytes that the layers of one forward pass write."""
    calls_per_pass: int = 0
    """The number of layers in one forward pass."""
    note: str = ""
    """A remark for reports, such as the source of a frozen extractor."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batches:
    """Mini-batches of equal size: the samples, and for each step the indices of its samples."""

    inputs: Floats  # (n, c, h, w), preprocessed
    labels: Ints | None  # (n,)
    indices: Ints  # (steps, b)
    stochastic: bool = True
    """Whether dropout and batch statistics behave as in training.  False on public samples: the forward pass that is
    differentiated must be the one whose logits were sent, and running statistics must not see samples twice."""
    seed: int = 0
    """The seed of random numbers inside the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """The result of a fit."""

    steps: int
    """The number of steps that were taken."""
    loss: float
    """The loss of the last step, before the step."""
    extra_flops: int = 0
    """Floating-point operations beyond a training pass over its batches."""
    instruments: Mapping[str, float] = field(default_factory=dict)
    """Values that terms report of the last step, by name, such as the loss of a generator."""


def layout_digest(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> bytes:
    """Return the layout of weights that are these named arrays one after the other, each in C order: 16 bytes."""
    return hashlib.sha256(repr([(name, tuple(shape)) for name, shape in shapes]).encode()).digest()[:16]


COSINE_SCALE = 20.0
"""s, the default scale of a cosine head; FedNH's authors start a ResNet from it."""
NORM_LEAST = 1e-12
"""The least length that a vector is divided by."""


class Model(Protocol):
    """A model of any architecture in any runtime.

    x is always f4 (n, c, h, w), as `spec.preprocess` makes it.

    A model that lacks a capability raises Unsupported from the methods that need it.
    """

    @property
    def spec(self) -> ModelSpec:
        """The description of this model."""

    def logits(self, x: Floats) -> Floats:
        """Return the logits before softmax, as in inference: (n, c, h, w) -> (n, k)."""

    def features(self, x: Floats) -> Floats:
        """Return the features, the input of the last layer, as in inference: (n, c, h, w) -> (n, d)."""

    def head(self, f: Floats) -> Floats:
        """Return logits = head(features(x)): (n, d) -> (n, k)."""

    def fit(self, batches: Batches, objective: Objective, optim: Optim, part: Part = "all") -> FitReport:
        """Take one optimiser step per row of `batches.indices`.  Other parts keep their values and moments.

        A model may also have the methods `fits_at_once(objective, *, stochastic)`, `weights_are_finite()`,
        `step_norms(batches, objective, part)` and `preparing(batches, objective, part)`.  The functions with these
        names call them.
        """

    def head_rows(self) -> Floats:
        """Return the last layer's weights with the bias as last column, 0 in a layer without one: (k, d + 1)."""

    def set_head_rows(self, classes: Ints, rows: Floats) -> None:
        """Overwrite the rows of some classes, and reset the optimiser's moments: classes (m,), rows (m, d + 1)."""

    def weights(self) -> Floats:
        """Return all trainable scalars, flat: (p,)."""

    def set_weights(self, values: Floats) -> None:
        """Overwrite all trainable scalars, and reset the optimiser's moments."""

    def head_mask(self) -> NDArray[np.bool_]:
        """Return which weights belong to the last layer, without the scale of a cosine head: (p,)."""

    def state_bytes(self) -> bytes:
        """Return weights, buffers and optimiser moments, for a restart."""

    def load_state(self, state: bytes) -> None:
        """Restore exactly what `state_bytes` returned.  Raises StoreError if it does not fit this model."""


def outputs(model: Model, x: Floats) -> tuple[Floats, Floats]:
    """Return logits (n, k) and features (n, d) of samples: in one pass, if the model has a method `outputs` for it."""
    own: Callable[[Floats], tuple[Floats, Floats]] | None = getattr(model, "outputs", None)
    return own(x) if own is not None else (model.logits(x), model.features(x))


def fits_at_once(model: Model, objective: Objective, *, stochastic: bool) -> bool:
    """Return whether a fit of several steps is as one fit for each.

    Then no step uses `Batches.seed`, and the fit ends with a step whose loss is not finite.  stochastic: that of the
    batches.  A model declares this in a method of this name; one without it gets single steps.
    """
    own: Callable[..., bool] | None = getattr(model, "fits_at_once", None)
    return own is not None and own(objective, stochastic=stochastic)


def preparing(model: Model, batches: Batches, objective: Objective, part: Part) -> Iterator[None]:
    """Let a model make what the first step of a fit needs, with pauses at which a device may stop.

    A model that takes long for it has a generator of this name.
    """
    own: Callable[..., Iterator[None]] | None = getattr(model, "preparing", None)
    if own is not None:
        yield from own(batches, objective, part)


def ahead(model: object, x: Floats) -> Iterator[None]:
    """Let a model compute what its next answer about samples x (n, c, h, w) takes, with pauses; the bits are the same.

    A model that takes long for many samples has a generator of this name.
    """
    own: Callable[[Floats], Iterator[None]] | None = getattr(model, "ahead", None)
    if own is not None:
        yield from own(x)


def step_norms(model: Model, batches: Batches, objective: Objective, part: Part) -> list[float] | None:
    """Return how far a step with each term alone would change the weights, by SGD with rate 1; L2 norms.

    batches: one mini-batch.  None if the model has no method of this name, or not for these terms; then one takes the
    steps and restores the model, with the same bits.
    """
    own: Callable[..., list[float] | None] | None = getattr(model, "step_norms", None)
    return None if own is None else own(batches, objective, part)


def lent_weights(model: Model) -> Floats:
    """Return all trainable scalars, read-only: (p,); the model's own memory if a method of this name gives it."""
    lends = _definer(model, "lent_weights")
    own: Any = model  # a class, or one around the model, with `weights` of its own decides what leaves
    found = own.lent_weights() if lends and lends is _definer(model, "weights") else model.weights()
    values: Floats = found.view()  # the model may write to its own array
    values.flags.writeable = False
    return values


def _definer(model: Model, name: str) -> type | None:
    """Return the class that defines a method of a model."""
    return next((each for each in type(model).__mro__ if name in vars(each)), None)


def weights_are_finite(model: Model) -> bool:
    """Return whether a model with a method of this name has found its weights to be finite, without a copy of them."""
    own: Callable[[], bool] | None = getattr(model, "weights_are_finite", None)
    return own is not None and own()


class Served(Protocol):
    """A model that predicts and is never trained: several threads may ask it at the same time."""

    def logits(self, x: Floats) -> Floats:
        """Return the logits before softmax: (n, c, h, w) -> (n, k)."""

    def state_bytes(self) -> bytes:
        """Return the weights and buffers, without optimiser moments."""

    def load_state(self, state: bytes) -> None:
        """Restore exactly what state_bytes gave, before any other call.  Raises StoreError if it does not fit."""


def serving_copy(model: Model | Served) -> Served:
    """Return a copy that later training does not change, by the model's own `serving_copy()` if it has one.

    Raises ModelError for a model without that method that cannot be copied otherwise.
    """
    own: Callable[[], Served] | None = getattr(model, "serving_copy", None)
    if own is not None:
        return own()
    try:
        return copy.deepcopy(model)
    except Exception as error:  # a model of the user's may raise anything
        raise ModelError(
            f"{type(model).__name__} cannot be copied for predict() ({type(error).__name__}: {error}): "
            "give it a method serving_copy(), as docs/how-to/serve-the-model.md describes"
        ) from error


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return named arrays as bytes, for state that stays on this machine."""
    head: bytes = msgpack.packb({name: (a.dtype.str, a.shape) for name, a in arrays.items()})
    values = [np.ascontiguousarray(a).data for a in arrays.values()]
    return b"".join((len(head).to_bytes(4, "little"), head, *values))  # copies the arrays once


def unpack_arrays(state: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays that pack_arrays stored, writable.  Raises StoreError for anything else."""
    try:
        at = 4 + int.from_bytes(state[:4], "little")
        found: dict[str, NDArray[Any]] = {}
        for name, (dtype, shape) in msgpack.unpackb(state[4:at]).items():
            array = np.frombuffer(state, np.dtype(dtype), math.prod(shape), at).reshape(shape).copy()
            found[name], at = array, at + array.nbytes
    except Exception as error:
        raise StoreError(
            f"saved model state cannot be read ({type(error).__name__}): remove FEDERATION.db in the state folder"
        ) from error
    return found
