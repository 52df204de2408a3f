"""The numpy runtime: a linear softmax model, and the trainable linear head that frozen extractors share.

It is the oracle that other runtimes are compared with: every term's gradient comes from the reference in
edge_sdk.objectives, and every optimiser step follows torch's defaults to the letter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.data import Preprocess
from edge_sdk.models.base import Batches, FitReport, ModelSpec, layout_digest, pack_arrays, unpack_arrays
from edge_sdk.models.checks import (
    ALL_TERMS,
    check_fit,
    check_rows,
    check_samples,
    check_state,
    check_weights,
    require,
)
from edge_sdk.models.optim import BETA1, BETA2, EPSILON, adam_scales, moment_count, pack_optim, unpack_optim
from edge_sdk.objectives import (
    Floats,
    HeadMatch,
    Ints,
    Objective,
    Optim,
    Seen,
    logit_gradient,
    names_on,
    objective_loss,
    weight_gradient,
)


class ArrayOptimiser:
    """SGD (with momentum) or Adam on one f4 array, step for step what torch.optim does by default."""

    def __init__(self, optim: Optim, shape: tuple[int, ...]) -> None:
        self.optim = optim
        self.steps = 0
        self.moments = [np.zeros(shape, np.float32) for _ in range(moment_count(optim))]

    def step(self, values: Floats, gradient: Floats) -> None:
        """Change `values` in place."""
        self.steps += 1
        if self.optim.kind == "adam":
            first, second = self.moments
            first += (gradient - first) * (1 - BETA1)
            second *= BETA2
            second += (1 - BETA2) * gradient * gradient
            rate, root = adam_scales(self.optim, self.steps)
            values -= rate * first / (np.sqrt(second) / root + EPSILON)
            return
        if self.moments:
            self.moments[0] *= self.optim.momentum
            self.moments[0] += gradient
            gradient = self.moments[0]
        values -= self.optim.learning_rate * gradient

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything that a restart must bring back."""
        moments = {f"moment{i}": moment for i, moment in enumerate(self.moments)}
        return {"optim": pack_optim(self.optim), "steps": np.array(self.steps, np.int64), **moments}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `arrays` of an equal optimiser gave."""
        self.steps = int(arrays["steps"])
        self.moments = [arrays[f"moment{i}"] for i in range(len(self.moments))]


class LinearHead:
    """features (n, d) -> logits (n, k) by `rows` (k, d + 1), the bias as last column; moments live on between fits."""

    def __init__(self, features: int, classes: int, seed: int) -> None:
        """U(-1/sqrt d, 1/sqrt d) for weights and bias, the family that torch's Linear starts from."""
        bound = features**-0.5
        rng = np.random.default_rng(seed)
        self.rows: Floats = rng.uniform(-bound, bound, (classes, features + 1)).astype(np.float32)
        self._optimiser: ArrayOptimiser | None = None

    def logits(self, f: Floats) -> Floats:
        """(n, d) -> (n, k)."""
        out: Floats = f @ self.rows[:, :-1].T + self.rows[:, -1]
        return out

    def step(self, f: Floats, gradient: Floats, optim: Optim, on_rows: Floats | None = None) -> None:
        """One optimiser step down a gradient at the logits: f (b, d), gradient (b, k), as a batch mean.

        on_rows (k, d + 1): a gradient at the rows themselves, to be added.
        """
        if self._optimiser is None or self._optimiser.optim != optim:
            self._optimiser = ArrayOptimiser(optim, self.rows.shape)
        slopes = np.empty_like(self.rows)  # (k, d + 1)
        slopes[:, :-1] = gradient.T @ f
        slopes[:, -1] = gradient.sum(axis=0)
        if on_rows is not None:
            slopes += on_rows
        self._optimiser.step(self.rows, slopes)

    def reset(self, rows: Floats, classes: Ints | slice = slice(None)) -> None:
        """Start from other rows (k, d + 1), or those of some classes (m, d + 1), without moments."""
        self.rows[classes] = rows
        self._optimiser = None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything that a restart must bring back."""
        return {"rows": self.rows, **(self._optimiser.arrays() if self._optimiser else {})}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Back to what `arrays` gave.  Raises StoreError where it does not fit."""
        optimiser = None
        if "optim" in arrays:
            optimiser = ArrayOptimiser(unpack_optim(arrays["optim"]), self.rows.shape)
        check_state(arrays, {"rows": self.rows, **(optimiser.arrays() if optimiser else {})})
        if optimiser is not None:
            optimiser.load(arrays)
        self.rows, self._optimiser = arrays["rows"], optimiser


class HeadModel(ABC):
    """A fixed feature function under a trainable LinearHead; what it may do beyond that, its spec says.

    A term on features counts in the loss and moves nothing: its spec must list it among the inert ones.
    """

    def __init__(self, spec: ModelSpec, head: LinearHead) -> None:
        self.spec = spec
        self._head = head

    @abstractmethod
    def feature_rows(self, x: Floats, index: Ints) -> Floats:
        """The features of some samples: x (n, c, h, w), index (m,) -> (m, d), a copy."""

    def features(self, x: Floats) -> Floats:
        """(n, c, h, w) -> (n, d)."""
        return self.feature_rows(x, np.arange(len(x)))

    def head(self, f: Floats) -> Floats:
        """(n, d) -> (n, k)."""
        return self._head.logits(f)

    def logits(self, x: Floats) -> Floats:
        """(n, c, h, w) -> (n, k), before softmax."""
        return self.head(self.features(x))

    def fit(self, batches: Batches, objective: Objective, optim: Optim) -> FitReport:
        """One optimiser step of the head per row of `batches.indices`.

        Raises Unsupported for a term that the model cannot minimise, UsageError for an unknown optimiser.
        """
        check_fit(self.spec, batches, objective)
        loss, rows = 0.0, self._head.rows
        on_weights = any(term.on == "weights" for term in objective)
        for step, index in enumerate(batches.indices):
            f = self.feature_rows(batches.inputs, index)  # (b, d)
            labels = None if batches.labels is None else batches.labels[index]
            seen = Seen(self.head(f), labels, step, f, self.head, rows.ravel())
            if step == len(batches.indices) - 1:
                loss = objective_loss(objective, seen)
            pull = weight_gradient(objective, seen, rows.ravel()).reshape(rows.shape) if on_weights else None
            gradient = logit_gradient(objective, seen)
            for term in objective:
                if isinstance(term, HeadMatch):  # more rows that the head is asked about
                    f, gradient = np.vstack([f, term.features]), np.vstack([gradient, term.slope(seen)])
            self._head.step(f, gradient, optim, pull)
        return FitReport(steps=len(batches.indices), loss=loss)

    def head_rows(self) -> Floats:
        """(k, d + 1), a copy."""
        rows: Floats = self._head.rows.copy()
        return rows

    def set_head_rows(self, classes: Ints, rows: Floats) -> None:
        """Overwrite the rows of some classes: classes (m,), rows (m, d + 1), and reset the moments.

        Raises ModelError for other shapes.
        """
        check_rows(self.spec, classes, rows)
        self._head.reset(rows, classes)

    def weights(self) -> Floats:
        """(p,), a copy.  Raises Unsupported where the features belong to the model, too, and are frozen."""
        require(self.spec, "weights")
        flat: Floats = self._head.rows.flatten()
        return flat

    def head_mask(self) -> NDArray[np.bool_]:
        """All of them: (p,).  Raises Unsupported where the weights cannot be shared."""
        require(self.spec, "weights")
        return np.ones(self.spec.parameters, np.bool_)

    def set_weights(self, values: Floats) -> None:
        """Overwrite (p,) and reset the moments.  Raises Unsupported, or ModelError for another size."""
        require(self.spec, "weights")
        check_weights(self.spec, values)
        self._head.reset(values.reshape(self._head.rows.shape))

    def state_bytes(self) -> bytes:
        """The head and its moments."""
        return pack_arrays(self._head.arrays())

    def load_state(self, state: bytes) -> None:
        """Back to what state_bytes gave, exactly.  Raises StoreError where it does not fit this model."""
        self._head.load(unpack_arrays(state))


class NumpyModel(HeadModel):
    """Softmax regression on the flattened input: what a device can train without any machine-learning library."""

    def __init__(
        self,
        classes: int,
        input_shape: tuple[int, int, int],
        *,
        seed: int,
        preprocess: Preprocess | None = None,
        name: str = "softmax",
    ) -> None:
        """Of samples (c, h, w) = `input_shape`, as `preprocess` makes them."""
        width = prod(input_shape)
        head = LinearHead(width, classes, seed)
        spec = ModelSpec(
            name=name,
            runtime="numpy",
            classes=classes,
            feature_dim=width,
            capabilities=frozenset({"predict", "logit-gradients", "features", "head-rows", "weights"}),
            terms=ALL_TERMS,
            inert_terms=names_on("features"),
            preprocess=preprocess or Preprocess(),
            parameters=head.rows.size,
            layout=layout_digest([("rows", head.rows.shape)]),
            flops_per_sample=2 * width * classes,
        )
        super().__init__(spec, head)
        self._input_shape = input_shape

    def feature_rows(self, x: Floats, index: Ints) -> Floats:
        """The flattened samples: x (n, c, h, w), index (m,) -> (m, c * h * w)."""
        check_samples(self.spec.name, x, self._input_shape)
        out: Floats = x.reshape(len(x), self.spec.feature_dim)[index]
        return out
