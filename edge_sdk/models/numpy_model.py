"""The numpy runtime: a linear softmax model, and what it shares with frozen extractors.

It is the oracle that other runtimes are compared with: every term's gradient comes from the reference in
edge_sdk.objectives, and every optimiser step follows torch's defaults to the letter.
"""

from __future__ import annotations

import copy
import time
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
from edge_sdk.errors import ModelError
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
from edge_sdk.models.numpy_forms import OwnForm, OwnForms, SamplesBack, SlopesBack, added, own_terms
from edge_sdk.models.trained_body import ArrangedBody, Back, TrainedBody
from edge_sdk.objectives import (
    FEATURES,
    CrossEntropy,
    HeadTerm,
    Objective,
    On,
    Optim,
    Seen,
    Term,
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
BETWEEN_ANSWERS_S = 0.05
"""Seconds of predicting between two pauses, unless the samples that a body computes together take longer."""
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
        self.spec = spec
        if learning is not None:
            described = learning.described(spec)
            self.spec = replace(described, terms=described.terms | own_terms(learning.body))
        self._head = head
        self._learned = learning
        self._forms = OwnForms()
        self._ahead: tuple[Floats, Floats] | None = None
        """Samples, and what the body gave for them, for the next answer about them."""

    @property
    def _body(self) -> TrainedBody | None:
        """The body, if it learns."""
        return None if self._learned is None else self._learned.body

    @property
    def learning_body(self) -> TrainedBody:
        """The body, which learns.  Raises Unsupported if it does not."""
        if self._body is None:
            raise lacks(self.spec, "weights")
        return self._body

    @abstractmethod
    def feature_rows(self, x: Floats, index: Ints) -> Floats:
        """Return the features of some samples: x (n, c, h, w), index (m,) -> (m, d), a copy."""

    def features(self, x: Floats) -> Floats:
        """Return the features: (n, c, h, w) -> (n, d)."""
        known, self._ahead = self._ahead, None
        if known is not None and _is_same(known[0], x):
            return self._head.features(known[1])
        return self._head.features(self.feature_rows(x, np.arange(len(x))))

    def rows_together(self) -> int:
        """Return how many samples the body computes together, or 0 if it is too quick for pauses.

        A multiple of them gives the same bits, independently of later samples.
        """
        return 0 if self._body is None else self._body.together

    def ahead(self, x: Floats) -> Iterator[None]:
        """Compute what the body gives for samples (n, c, h, w), with pauses; `features` or `logits` of them is next."""
        together = self.rows_together()
        if not together or len(x) <= together:
            return
        found, begin, size = list[Floats](), 0, together
        while begin < len(x):
            begun = time.monotonic()
            found.append(self.feature_rows(x, np.arange(begin, min(begin + size, len(x)))))
            begin += size
            if time.monotonic() - begun < BETWEEN_ANSWERS_S / 2:
                size *= 2
            yield
        self._ahead = x, np.concatenate(found)

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
        self._ahead = None
        loss, size = 0.0, batches.indices.shape[1]
        own = self._forms.of(objective)
        for term, form in own:
            form.begin(self, term, batches)
        shared = tuple(term for term in objective if term.on != "own")
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
                loss = objective_loss(shared, seen)
            pull = None if weights is None else weight_gradient(objective, seen, weights)
            slopes = self._slopes(seen, raw, back, pull, objective, part)
            if own:
                # the next pass overwrites what this one gave
                slopes = {name: each.copy() for name, each in slopes.items()}
                value, slopes = self._with_own(own, slopes, size, part)
                loss += value if step == len(batches.indices) - 1 else 0.0
            self._step(slopes, optim)
        return FitReport(
            steps=len(batches.indices),
            loss=loss,
            extra_flops=len(batches.indices) * sum(form.extra_flops(self, term, size) for term, form in own),
            instruments={name: value for _, form in own for name, value in form.instruments().items()},
        )

    def _with_own(
        self, own: Sequence[tuple[Term, OwnForm]], slopes: dict[str, Floats], size: int, part: Part
    ) -> tuple[float, dict[str, Floats]]:
        """Return the loss of terms on something of their own, and slopes with theirs added."""
        loss = 0.0
        for term, form in own:
            value, more = form.slopes(self, term, size, part)
            loss, slopes = loss + value, added(slopes, more)
        return loss, slopes

    def preparing(self, batches: Batches, objective: Objective, part: Part) -> Iterator[None]:
        """Make what the first step of a fit needs, with pauses at which a device may stop."""
        if self._body is None or part == "head" or not batches.indices.size:
            return
        plain = self._is_plain(objective, part) and batches.labels is not None
        yield from self._body.preparing(batches.inputs[batches.indices[0]], len(self._head.rows) if plain else None)
        for term, form in self._forms.of(objective):
            yield from form.preparing(self, term, batches)

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

    def _slopes(  # noqa: PLR0917  # all that a step is made of
        self,
        seen: Seen,
        raw: Floats,
        back: Back | None,
        pull: Floats | None,
        objective: Objective,
        part: Part,
    ) -> dict[str, Floats]:
        """Return the slope of each array; raw (b, d): of the body, pull (p,): the gradient of terms on weights."""
        f, gradient = needed(seen.features, FEATURES), logit_gradient(objective, seen)
        slopes: dict[str, Floats] = {}
        on_body, on_head = self._parted(pull)
        if back is not None:
            at_f = gradient @ self._head.linear_rows()[:, :-1] + feature_gradient(objective, seen, f)
            slopes["body"] = with_more(back(self._head.back(raw, at_f)), on_body)
        for term in objective:
            if isinstance(term, HeadTerm):  # more rows that the head is asked about
                f, gradient = np.vstack([f, term.asks()]), np.vstack([gradient, term.slope(seen)])
        return slopes | self._head.slopes(f, gradient, on_head, part)

    def _step(self, slopes: Mapping[str, Floats], optim: Optim) -> None:
        """Take one optimiser step down the slope of each array."""
        shortened = clipped(optim, slopes)
        self._head.step(shortened, optim)
        if self._body is not None and "body" in shortened:
            self._body.step(shortened["body"], optim)

    def weights_pass(self, x: Floats, part: Part) -> tuple[Floats, SlopesBack]:
        """Return the logits (b, k) of samples, and their backward pass to the arrays that a step of `part` changes."""
        body = self.learning_body
        raw, back = (body.rows(x), None) if part == "head" else body.forward(x)
        f = self._head.features(raw)

        def slopes(at_logits: Floats) -> dict[str, Floats]:
            found = self._head.slopes(f, at_logits, None, part)
            if back is None:
                return found
            return {"body": back(self._head.back(raw, at_logits @ self._head.linear_rows()[:, :-1])), **found}

        return self.head(f), slopes

    def samples_pass(self, x: Floats) -> tuple[Floats, Floats, SamplesBack]:
        """Return the logits (b, k) and features (b, d) of samples, and their backward pass to the samples.

        It is that of inference.
        """
        raw, back = self.learning_body.to_samples(x)
        f = self._head.features(raw)

        def slopes(at_logits: Floats, at_features: Floats | None = None) -> Floats:
            at_f = with_more(at_logits @ self._head.linear_rows()[:, :-1], at_features)
            return back(self._head.back(raw, at_f))

        return self.head(f), f, slopes

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
        self._ahead = None
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
        self._head, self._forms, self._ahead = copy.copy(self._head), OwnForms(), None
        self._head.separate()
        if self._learned is not None:
            self._learned = self._learned.separated()

    def state_bytes(self) -> bytes:
        """Return the weights and their moments."""
        body = {} if self._body is None else self._body.arrays()
        own = {_BODY + name: array for name, array in body.items()}
        return pack_arrays({**self._head.arrays(), **own, **self._forms.arrays()})

    def load_state(self, state: bytes) -> None:
        """Restore exactly what state_bytes gave.  Raises StoreError if it does not fit this model."""
        self._load(unpack_arrays(state))

    def _load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._ahead = None
        if self._body is None:
            self._head.load(arrays)
            return
        forms, arrays = self._forms.restored(self, arrays)
        own = {name.removeprefix(_BODY): array for name, array in arrays.items() if name.startswith(_BODY)}
        self._body.check(own)
        self._head.load({name: array for name, array in arrays.items() if not name.startswith(_BODY)})
        self._body.load(own)
        self._forms = forms


def _is_same(x: Floats, y: Floats) -> bool:
    """Return whether two arrays are the same part of memory: a slice is a new object each time."""
    return x.ctypes.data == y.ctypes.data and (x.shape, x.strides) == (y.shape, y.strides)


def _is_cross_entropy(objective: Objective) -> bool:
    """Return whether an objective is the mean cross-entropy and nothing else; a class of its own may differ."""
    return len(objective) == 1 and type(objective[0]) is CrossEntropy and objective[0].weight == 1


class NumpyModel(HeadModel):
    """Softmax regression or a small net on numpy alone.  A device trains it without any machine-learning library."""

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
        """Make a model with random weights, drawn from `seed`.

        input_shape: of a sample after `preprocess`: (c, h, w), (t, d) or (d,).
        head: "linear" for logits, "cosine" for scaled cosines.
        hidden: the widths of dense layers with ReLU in front of the head, on the flattened samples.  Their weights can
        be averaged with those of the same nn.Sequential in torch.

        Raises ModelError for numbers out of range.
        """
        check_whole_number(name, "classes", classes, 1)
        shape = input_shape_of(name, input_shape)
        check_whole_number(name, "seed", seed, 0)
        preprocess = with_steps(preprocess, shape)
        if preprocess.kind == "tokens":
            raise ModelError(
                f"model {name!r}: takes amounts, and ids of tokens are names: give edge_sdk.SequenceModel, or a net "
                "that begins with an embedding"
            )
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
