"""The numpy runtime: a linear softmax model, and what it shares with frozen extractors.

It is the oracle that other runtimes are compared with: every term's gradient comes from the reference in
edge_sdk.objectives, and every optimiser step follows torch's defaults to the letter.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import Preprocess
from edge_sdk.models import onnx_file
from edge_sdk.models.base import Batches, FitReport, ModelSpec, layout_digest, pack_arrays, unpack_arrays
from edge_sdk.models.checks import (
    check_fit,
    check_input_shape,
    check_rows,
    check_samples,
    check_weights,
    check_whole_number,
    lacks,
    require,
)
from edge_sdk.models.cosine_head import CosineHead, make_head
from edge_sdk.models.linear_head import LinearHead
from edge_sdk.objectives import (
    HeadTerm,
    Objective,
    On,
    Optim,
    Seen,
    logit_gradient,
    names_on,
    objective_loss,
    weight_gradient,
)
from edge_sdk.objectives.optim import Part

if TYPE_CHECKING:  # of the tools, not of a base install
    from typing_extensions import Self

BY_SLOPE: tuple[On, ...] = ("logits", "features", "head", "weights")
"""The inputs of terms that a head can minimise by slope alone."""


class HeadModel(ABC):
    """A fixed feature function under a trainable LinearHead; its spec lists its further capabilities.

    A term on features counts in the loss and changes nothing: the spec must list it among the inert terms.
    """

    def __init__(self, spec: ModelSpec, head: LinearHead) -> None:
        self.spec = spec
        self._head = head

    @abstractmethod
    def feature_rows(self, x: Floats, index: Ints) -> Floats:
        """Return the features of some samples: x (n, c, h, w), index (m,) -> (m, d), a copy."""

    def features(self, x: Floats) -> Floats:
        """Return the features: (n, c, h, w) -> (n, d)."""
        return self._head.features(self.feature_rows(x, np.arange(len(x))))

    def head(self, f: Floats) -> Floats:
        """Return the logits of features: (n, d) -> (n, k)."""
        return self._head.logits(f)

    def logits(self, x: Floats) -> Floats:
        """Return the logits before softmax: (n, c, h, w) -> (n, k)."""
        return self.outputs(x)[0]

    def outputs(self, x: Floats) -> tuple[Floats, Floats]:
        """Return logits (n, k) and features (n, d) in one pass."""
        f = self.features(x)
        return self.head(f), f

    def fit(self, batches: Batches, objective: Objective, optim: Optim, part: Part = "all") -> FitReport:
        """Take one optimiser step of the head per row of `batches.indices`; the body has at most a scale to train.

        Raises Unsupported for a term that the model cannot minimise, UsageError for an unknown optimiser.
        """
        check_fit(self.spec, batches, objective)
        loss = 0.0
        on_weights = any(term.on == "weights" for term in objective)
        for step, index in enumerate(batches.indices):
            f = self._head.features(self.feature_rows(batches.inputs, index))  # (b, d)
            labels = None if batches.labels is None else batches.labels[index]
            weights = self._head.values() if on_weights else None  # (p,)
            seen = Seen(self.head(f), labels, step, f, self.head, weights)
            if step == len(batches.indices) - 1:
                loss = objective_loss(objective, seen)
            pull = None if weights is None else weight_gradient(objective, seen, weights)
            gradient = logit_gradient(objective, seen)
            for term in objective:
                if isinstance(term, HeadTerm):  # more rows that the head is asked about
                    f, gradient = np.vstack([f, term.asks()]), np.vstack([gradient, term.slope(seen)])
            self._head.step(f, gradient, optim, pull, part)
        return FitReport(steps=len(batches.indices), loss=loss)

    def head_rows(self) -> Floats:
        """Return the head's rows: (k, d + 1), a copy."""
        return self._head.linear_rows()

    def set_head_rows(self, classes: Ints, rows: Floats) -> None:
        """Overwrite the rows of some classes: classes (m,), rows (m, d + 1), and reset the moments.

        Raises ModelError for other shapes.
        """
        check_rows(self.spec, classes, rows)
        self._head.set_rows(rows, classes)

    def set_scale(self, value: float | None, *, trains: bool) -> None:
        """Set the scale of the cosine head (None: keep it), and whether later fits that train the body change it."""
        if not isinstance(self._head, CosineHead):
            raise lacks(self.spec, "cosine-head")
        self._head.set_scale(value, trains=trains)

    def weights(self) -> Floats:
        """Return the weights (p,), a copy.  Raises Unsupported if the model's features are frozen weights."""
        require(self.spec, "weights")
        return self._head.values()

    def head_mask(self) -> NDArray[np.bool_]:
        """Return a mask of all weights except a scale: (p,).  Raises Unsupported if they cannot be shared."""
        require(self.spec, "weights")
        return self._head.mask()

    def set_weights(self, values: Floats) -> None:
        """Overwrite the weights (p,), and reset the moments.  Raises Unsupported, or ModelError for another size."""
        require(self.spec, "weights")
        check_weights(self.spec, values)
        self._head.set_values(values)

    def serving_copy(self) -> Self:
        """Return a copy with a head of its own, and the same feature function."""
        twin = copy.copy(self)
        twin.separate()
        return twin

    def separate(self) -> None:
        """Take a head of its own: this model was copied from one that goes on training."""
        self._head = copy.copy(self._head)
        self._head.separate()

    def state_bytes(self) -> bytes:
        """Return the head and its moments."""
        return pack_arrays(self._head.arrays())

    def load_state(self, state: bytes) -> None:
        """Restore exactly what state_bytes gave.  Raises StoreError if it does not fit this model."""
        self._head.load(unpack_arrays(state))


class NumpyModel(HeadModel):
    """Softmax regression on the flattened input: a device can train it without any machine-learning library."""

    def __init__(
        self,
        classes: int,
        input_shape: tuple[int, int, int],
        *,
        seed: int,
        preprocess: Preprocess | None = None,
        name: str = "softmax",
        head: Literal["linear", "cosine"] = "linear",
    ) -> None:
        """Take samples (c, h, w) = `input_shape` from `preprocess`; head: of logits, or of scaled cosines.

        Raises ModelError for numbers out of range.
        """
        check_whole_number(name, "classes", classes, 1)
        check_input_shape(name, input_shape)
        check_whole_number(name, "seed", seed, 0)
        width = prod(input_shape)
        layer = make_head(head, width, classes, seed)
        spec = ModelSpec(
            name=name,
            runtime="numpy",
            classes=classes,
            feature_dim=width,
            capabilities=layer.abilities
            | {"predict", "logit-gradients", "features", "head-rows", "head-weights", "weights"},
            terms=names_on(*BY_SLOPE),
            inert_terms=names_on("features"),
            preprocess=preprocess or Preprocess(),
            parameters=layer.values().size,
            shapes=layer.shapes,
            layout=layout_digest([(layer.kind, layer.rows.shape)]),
            flops_per_sample=2 * width * classes,
            activation_bytes_per_sample=4 * classes,
            calls_per_pass=1,
        )
        super().__init__(spec, layer)
        self._input_shape = input_shape

    def onnx_bytes(self, _x: Floats) -> bytes:
        """Return the model as an .onnx file: input `samples` (n, c, h, w), output `logits` (n, k)."""
        whole = onnx_file.samples_graph("samples", self._input_shape)
        unit = isinstance(self._head, CosineHead)
        return onnx_file.with_new_head(whole, "samples", self._head.linear_rows(), unit=unit, output="logits").content()

    def feature_rows(self, x: Floats, index: Ints) -> Floats:
        """Return the flattened samples: x (n, c, h, w), index (m,) -> (m, c * h * w)."""
        check_samples(self.spec.name, x, self._input_shape)
        out: Floats = x.reshape(len(x), self.spec.feature_dim)[index]
        return out
