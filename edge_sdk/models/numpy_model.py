"""The numpy runtime: a linear softmax model, and what it shares with frozen extractors.

It is the oracle that other runtimes are compared with: every term's gradient comes from the reference in
edge_sdk.objectives, and every optimiser step follows torch's defaults to the letter.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import Preprocess
from edge_sdk.models import onnx_file, onnx_training
from edge_sdk.models.base import Batches, FitReport, ModelSpec, layout_digest, pack_arrays, unpack_arrays
from edge_sdk.models.checks import (
    check_fit,
    check_rows,
    check_samples,
    check_weights,
    check_whole_number,
    input_shape_of,
    lacks,
    require,
    with_steps,
)
from edge_sdk.models.cosine_head import CosineHead, make_head
from edge_sdk.models.linear_head import LinearHead, clipped, with_more
from edge_sdk.models.trained_body import ArrangedBody, Back, TrainedBody
from edge_sdk.objectives import (
    FEATURES,
    CrossEntropy,
    HeadTerm,
    Objective,
    On,
    Optim,
    Seen,
    feature_gradient,
    logit_gradient,
    names_on,
    needed,
    objective_loss,
    weight_gradient,
)
from edge_sdk.objectives.optim import Part

if TYPE_CHECKING:  # of the tools, not of a base install
    from typing_extensions import Self

    from edge_sdk.models.onnx_training.numpy_body import NumpyParts

BY_SLOPE: tuple[On, ...] = ("logits", "features", "head", "weights")
"""The inputs of terms that a head can minimise by slope alone."""
_BODY = "body."
"""The prefix of a body's arrays in stored state."""


class HeadModel(ABC):
    """A feature function under a trainable LinearHead; its spec lists its further capabilities.

    Under a body that does not learn, a term on features counts in the loss and changes nothing: the spec must list it
    among the inert terms.
    """

    def __init__(
        self,
        spec: ModelSpec,
        head: LinearHead,
        learning: ArrangedBody[TrainedBody] | None = None,
    ) -> None:
        """spec: with a frozen body.  learning: what gives the features, if it learns."""
        self.spec = spec if learning is None else learning.described(spec)
        self._head = head
        self._learned = learning

    @property
    def _body(self) -> TrainedBody | None:
        """The body, if it learns."""
        return None if self._learned is None else self._learned.body

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
        """Take one optimiser step of `part` per row of `batches.indices`.

        A body that does not learn has at most a scale to train.  Raises Unsupported for a term that the model cannot
        minimise, UsageError for an unknown optimiser.
        """
        check_fit(self.spec, batches, objective)
        loss = 0.0
        on_weights = any(term.on == "weights" for term in objective)
        plain = self._is_plain(objective, part)
        for step, index in enumerate(batches.indices):
            labels = None if batches.labels is None else batches.labels[index]
            logits = self._at_once(batches.inputs[index], labels, optim) if plain else None
            if logits is not None:
                if step == len(batches.indices) - 1:
                    loss = objective_loss(objective, Seen(logits, labels, step))
                continue
            raw, back = self._passed(batches.inputs, index, part)
            f = self._head.features(raw)  # (b, d)
            weights = self._values() if on_weights else None  # (p,)
            seen = Seen(self.head(f), labels, step, f, self.head, weights)
            if step == len(batches.indices) - 1:
                loss = objective_loss(objective, seen)
            pull = None if weights is None else weight_gradient(objective, seen, weights)
            self._step(seen, raw, back, pull, objective, optim, part)
        return FitReport(steps=len(batches.indices), loss=loss)

    def preparing(self, batches: Batches, objective: Objective, part: Part) -> Iterator[None]:
        """Make what the first step of a fit needs, with pauses at which a device may stop."""
        if self._body is None or part == "head" or not batches.indices.size:
            return
        plain = self._is_plain(objective, part) and batches.labels is not None
        yield from self._body.preparing(batches.inputs[batches.indices[0]], len(self._head.rows) if plain else None)

    def _is_plain(self, objective: Objective, part: Part) -> bool:
        """Return whether a step is on the cross-entropy alone, of all weights under a linear head."""
        return part == "all" and type(self._head) is LinearHead and _is_cross_entropy(objective)

    def _at_once(self, x: Floats, labels: Ints | None, optim: Optim) -> Floats | None:
        """Take one step on the cross-entropy, and return its logits (b, k), or None if it cannot."""
        if self._body is None or labels is None:
            return None
        found = self._body.at_once(x, labels, self._head.rows)
        if found is None:
            return None
        logits, rows, body = found
        shortened = clipped(optim, {"rows": rows, "body": body})
        self._head.step(shortened, optim)
        self._body.step(shortened["body"], optim)
        return logits

    def _passed(self, x: Floats, index: Ints, part: Part) -> tuple[Floats, Back | None]:
        """Return a body's features (b, d) of a mini-batch, and its backward pass if the step changes it."""
        if self._body is None or part == "head":
            return self.feature_rows(x, index), None
        return self._body.forward(x[index])

    def _step(  # noqa: PLR0917  # all that a step is made of
        self,
        seen: Seen,
        raw: Floats,
        back: Back | None,
        pull: Floats | None,
        objective: Objective,
        optim: Optim,
        part: Part,
    ) -> None:
        """Take one optimiser step; raw (b, d): what the body gave, pull (p,): the gradient of terms on weights."""
        f, gradient = needed(seen.features, FEATURES), logit_gradient(objective, seen)
        slopes: dict[str, Floats] = {}
        on_body, on_head = self._parted(pull)
        if back is not None:
            at_f = gradient @ self._head.linear_rows()[:, :-1] + feature_gradient(objective, seen, f)
            slopes["body"] = with_more(back(self._head.back(raw, at_f)), on_body)
        for term in objective:
            if isinstance(term, HeadTerm):  # more rows that the head is asked about
                f, gradient = np.vstack([f, term.asks()]), np.vstack([gradient, term.slope(seen)])
        slopes |= self._head.slopes(f, gradient, on_head, part)
        shortened = clipped(optim, slopes)
        self._head.step(shortened, optim)
        if self._body is not None and "body" in shortened:
            self._body.step(shortened["body"], optim)

    def _parted(self, values: Floats | None) -> tuple[Floats | None, Floats | None]:
        """Return the body's and the head's part of an array (p,), in the order of each."""
        if values is None or self._learned is None:
            return None, values
        return self._learned.parted(values, self._head.values())

    def directional(self, x: Floats, direction: Floats, of_what: Literal["features", "logits"]) -> Floats:
        """Return the derivative of features (n, d) or logits (n, k) in a direction (p,) of the trainable scalars.

        Raises Unsupported for a model whose weights are not shared, ModelError for a body without such derivatives.
        """
        require(self.spec, "guidance-gradients")
        on_body, on_head = self._parted(direction)
        raw = self.feature_rows(x, np.arange(len(x)))
        still = np.zeros_like(raw)
        moved = still if self._body is None or on_body is None else self._body.directional(x, on_body)
        return self._head.directional(raw, moved, direction if on_head is None else on_head, of_what)

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
        """Set the cosine head's scale, or keep it if None, and whether later fits that train the body change it."""
        if not isinstance(self._head, CosineHead):
            raise lacks(self.spec, "cosine-head")
        self._head.set_scale(value, trains=trains)

    def weights(self) -> Floats:
        """Return the weights (p,), a copy.  Raises Unsupported if the model's features are frozen weights."""
        require(self.spec, "weights")
        return self._values()

    def _values(self) -> Floats:
        """Return all trainable scalars: (p,), a copy."""
        head = self._head.values()
        return head if self._learned is None else self._learned.joined(head)

    def head_mask(self) -> NDArray[np.bool_]:
        """Return which weights are the head's, without a scale: (p,).  Raises Unsupported if they cannot be shared."""
        require(self.spec, "weights")
        mask = self._head.mask()
        return mask if self._learned is None else self._learned.mask(mask)

    def set_weights(self, values: Floats) -> None:
        """Overwrite the weights (p,), and reset the moments.  Raises Unsupported, or ModelError for another size."""
        require(self.spec, "weights")
        check_weights(self.spec, values)
        on_body, on_head = self._parted(values)
        self._head.set_values(values if on_head is None else on_head)
        if self._body is not None and on_body is not None:
            self._body.set_values(on_body)

    def serving_copy(self) -> Self:
        """Return a copy with weights of its own, and the same feature function."""
        twin = copy.copy(self)
        twin.separate()
        return twin

    def separate(self) -> None:
        """Stop sharing weights with the model that this one was copied from, which continues to train."""
        self._head = copy.copy(self._head)
        self._head.separate()
        if self._learned is not None:
            self._learned = self._learned.separated()

    def state_bytes(self) -> bytes:
        """Return the weights and their moments."""
        body = {} if self._body is None else self._body.arrays()
        return pack_arrays({**self._head.arrays(), **{_BODY + name: array for name, array in body.items()}})

    def load_state(self, state: bytes) -> None:
        """Restore exactly what state_bytes gave.  Raises StoreError if it does not fit this model."""
        self._load(unpack_arrays(state))

    def _load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        if self._body is None:
            self._head.load(arrays)
            return
        own = {name.removeprefix(_BODY): array for name, array in arrays.items() if name.startswith(_BODY)}
        self._body.check(own)
        self._head.load({name: array for name, array in arrays.items() if not name.startswith(_BODY)})
        self._body.load(own)


def _is_cross_entropy(objective: Objective) -> bool:
    """Return whether an objective is the mean cross-entropy and nothing else; a class of its own may differ."""
    return len(objective) == 1 and type(objective[0]) is CrossEntropy and objective[0].weight == 1


class NumpyModel(HeadModel):
    """Softmax regression, or a small net, on numpy alone: a device trains it without any machine-learning library."""

    def __init__(
        self,
        classes: int,
        input_shape: tuple[int, ...],
        *,
        seed: int,
        preprocess: Preprocess | None = None,
        name: str = "softmax",
        head: Literal["linear", "cosine"] = "linear",
        hidden: Sequence[int] = (),
    ) -> None:
        """Take samples of `input_shape`, (c, h, w), (t, d) or (d,), from `preprocess`; head: of logits, or of cosines.

        hidden: the widths of dense layers with ReLU in front of the head, on the flattened samples.  Their weights
        average with those of the same nn.Sequential in torch.  Raises ModelError for numbers out of range.
        """
        check_whole_number(name, "classes", classes, 1)
        shape = input_shape_of(name, input_shape)
        check_whole_number(name, "seed", seed, 0)
        preprocess = with_steps(preprocess, shape)
        self._input_shape: tuple[int, int, int] | None = shape
        self._parts: NumpyParts | None = None
        if hidden:
            parts = onnx_training.dense_parts(hidden, classes, shape, seed=seed, name=name, head=head)
            self._set_parts(parts, preprocess, name, "")
            return
        width = prod(shape)
        layer = make_head(head, width, classes, seed)
        spec = head_spec(name, "numpy", layer, preprocess, flops=2 * width * classes, note="")
        spec = replace(
            spec,
            capabilities=spec.capabilities | {"weights", "guidance-gradients"},
            parameters=layer.values().size,
            shapes=layer.shapes,
            layout=layout_digest([(layer.kind, layer.rows.shape)]),
        )
        super().__init__(spec, layer)

    @classmethod
    def from_onnx(
        cls,
        file: str | PathLike[str] | bytes,
        classes: int | None = None,
        *,
        seed: int = 0,
        features: str | None = None,
        output: str | None = None,
        preprocess: Preprocess | None = None,
        input_shape: tuple[int, ...] | None = None,
        layout: Literal["auto", "NCHW", "NHWC"] = "auto",
        name: str = "onnx",
        head: Literal["linear", "cosine"] = "linear",
        train: str = "all",
    ) -> Self:
        """Return the net in an .onnx file, whose layers numpy trains: for boards that have no ONNX Runtime.

        The arguments are those of OnnxModel; train: all layers, the last ones (`last-2`), or those from a name on.
        Raises ModelError for files that numpy does not compute here, or whose last layer it does not find.
        """
        parts = onnx_training.file_parts(
            file,
            classes,
            seed=seed,
            features=features,
            output=output,
            input_shape=input_shape,
            layout=layout,
            name=name,
            head=head,
            train=train,
        )
        made = cls.__new__(cls)
        made._input_shape = None  # noqa: SLF001  # its own: the file checks the samples
        made._set_parts(parts, preprocess, name, parts.learning.body.report.remark())  # noqa: SLF001  # likewise
        return made

    def _set_parts(self, parts: NumpyParts, preprocess: Preprocess | None, name: str, note: str) -> None:
        """Take over a body and a head that learn."""
        k, d = parts.head.rows.shape
        spec = head_spec(
            name, "numpy", parts.head, preprocess, flops=parts.learning.body.flops + 2 * k * (d - 1), note=note
        )
        super().__init__(spec, parts.head, parts.learning)
        self._parts = parts

    @property
    def has_new_head(self) -> bool:
        """Whether it is of a file that has no last layer of these classes."""
        return self._parts is not None and self._parts.layer is None

    def onnx_bytes(self, _x: Floats) -> bytes:
        """Return the model as an .onnx file: as it was read, or from `samples` (n, c, h, w) to `logits` (n, k)."""
        if self._parts is not None and self._body is not None:
            return self._parts.written(self._body, self._head)
        whole = onnx_file.samples_graph("samples", needed(self._input_shape, "samples have a shape"))
        unit = isinstance(self._head, CosineHead)
        return onnx_file.with_new_head(whole, "samples", self._head.linear_rows(), unit=unit, output="logits").content()

    def feature_rows(self, x: Floats, index: Ints) -> Floats:
        """Return what the head takes of some samples: x (n, c, h, w), index (m,) -> (m, d)."""
        if self._body is not None:
            return self._body.rows(x[index])
        check_samples(self.spec.name, x, self._input_shape)
        out: Floats = x.reshape(len(x), self.spec.feature_dim)[index]
        return out


def head_spec(
    name: str,
    runtime: str,
    head: LinearHead,
    preprocess: Preprocess | None,
    *,
    flops: int,
    note: str,
    bytes_per_sample: int = 0,
    calls: int = 1,
) -> ModelSpec:
    """Return the description of a model with this head under a frozen body, without its weights."""
    classes, width = head.rows.shape[0], head.rows.shape[1] - 1
    return ModelSpec(
        name=name,
        runtime=runtime,
        classes=classes,
        feature_dim=width,
        capabilities=head.abilities | {"predict", "logit-gradients", "features", "head-rows", "head-weights"},
        terms=names_on(*BY_SLOPE),
        inert_terms=names_on("features"),
        preprocess=preprocess or Preprocess(),
        flops_per_sample=flops,
        activation_bytes_per_sample=bytes_per_sample + 4 * classes,
        calls_per_pass=calls,
        note=note,
    )
