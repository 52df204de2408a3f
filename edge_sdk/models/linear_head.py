"""The trainable linear head in numpy, for softmax regression and frozen extractors, and its optimiser."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.models.checks import check_state
from edge_sdk.models.optim import CLIP_EPSILON, EPSILON, adam_scales, moment_count, pack_optim, unpack_optim
from edge_sdk.objectives import Optim
from edge_sdk.objectives.optim import Part

_BLOCK = 1 << 15
"""The scalars of a flat array that are changed at once."""


class ArrayOptimiser:
    """SGD (with momentum) or Adam on one f4 array, with the same steps as torch.optim by default."""

    def __init__(self, optim: Optim, shape: tuple[int, ...]) -> None:
        self.optim = optim
        """The settings of the next step; moments stay valid while it `continues` the settings that made them."""
        self.steps = 0
        self.moments = [np.zeros(shape, np.float32) for _ in range(moment_count(optim))]
        self._change = np.empty(_BLOCK if len(shape) == 1 else math.prod(shape), np.float32)
        """The change of one block in a step of SGD; allocating it again in each step would be slow."""

    def step(self, values: Floats, gradient: Floats, decayed: NDArray[Any]) -> None:
        """Change `values` in place; decayed: 1 where weight decay is for them, else 0."""
        self.steps += 1
        if values.ndim > 1:
            self._move(values, gradient, decayed, self.moments)
            return
        for begin in range(0, len(values), _BLOCK):  # (p,): what is made on the way stays in a processor's cache
            part = slice(begin, begin + _BLOCK)
            self._move(values[part], gradient[part], decayed[part], [each[part] for each in self.moments])

    def _move(self, values: Floats, gradient: Floats, decayed: NDArray[Any], moments: list[Floats]) -> None:
        if self.optim.weight_decay:
            share = 1 if self.optim.decay_all else decayed
            gradient = gradient + np.float32(self.optim.weight_decay) * share * values
        if self.optim.kind == "adam":
            first, second = moments
            first += (gradient - first) * (1 - self.optim.beta1)
            second *= self.optim.beta2
            second += (1 - self.optim.beta2) * gradient * gradient
            rate, root = adam_scales(self.optim, self.steps)
            values -= rate * first / (np.sqrt(second) / root + EPSILON)
            return
        if moments:
            moments[0] *= self.optim.momentum
            moments[0] += gradient
            gradient = moments[0]
        change = self._change[: values.size].reshape(values.shape)
        values -= np.multiply(gradient, np.float32(self.optim.learning_rate), out=change)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that a restart needs."""
        moments = {f"moment{i}": moment for i, moment in enumerate(self.moments)}
        return {"optim": pack_optim(self.optim), "steps": np.array(self.steps, np.int64), **moments}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `arrays` of an equal optimiser gave."""
        self.steps = int(arrays["steps"])
        self.moments = [arrays[f"moment{i}"] for i in range(len(self.moments))]


class LinearHead:
    """A linear head (n, d) -> (n, k) with `rows` (k, d + 1), bias as last column; its moments persist between fits."""

    kind = "rows"
    abilities: frozenset[str] = frozenset()
    """The capabilities beyond those of every head."""

    def __init__(self, features: int, classes: int, seed: int) -> None:
        """Draw weights and bias from U(-1/sqrt d, 1/sqrt d), like torch's Linear."""
        bound = features**-0.5
        rng = np.random.default_rng(seed)
        self.rows: Floats = rng.uniform(-bound, bound, (classes, features + 1)).astype(np.float32)
        self._optimiser: ArrayOptimiser | None = None

    def separate(self) -> None:
        """Stop sharing rows with the head that this one was copied from, which continues to train; drop the moments."""
        self.rows, self._optimiser = self.rows.copy(), None

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the arrays in `values`."""
        beside = self.values().size - self.rows.size
        return (self.rows.shape, (beside,)) if beside else (self.rows.shape,)

    def features(self, f: Floats) -> Floats:
        """Return the features as they are multiplied by the rows: (n, d) -> (n, d)."""
        return f

    def linear_rows(self) -> Floats:
        """Return the factors of the features, with the bias as last column: (k, d + 1), a copy."""
        rows: Floats = self.rows.copy()
        return rows

    def logits(self, f: Floats) -> Floats:
        """Return the logits: (n, d) -> (n, k)."""
        out: Floats = f @ self.rows[:, :-1].T + self.rows[:, -1]
        return out

    def back(self, _f: Floats, slopes: Floats) -> Floats:
        """Return the slopes of a body's features (b, d), given those of what `features` makes of them."""
        return slopes

    def directional(
        self, f: Floats, moved: Floats, direction: Floats, of_what: Literal["features", "logits"]
    ) -> Floats:
        """Return how features (b, d) or logits (b, k) move, given how a body's features f (b, d) do, and the scalars.

        moved (b, d): of f; direction (p,): of the trainable scalars.
        """
        if of_what == "features":
            return moved
        along = direction.reshape(self.rows.shape)
        out: Floats = moved @ self.rows[:, :-1].T + f @ along[:, :-1].T + along[:, -1]
        return out

    def slopes(
        self, f: Floats, gradient: Floats, on_values: Floats | None = None, part: Part = "all"
    ) -> dict[str, Floats]:
        """Return the slope of each array that a step of `part` changes.

        f (b, d), gradient (b, k): at the logits, as a batch mean.  on_values (p,): a gradient at the trainable scalars
        themselves, to be added.
        """
        return {} if part == "body" else {"rows": with_more(row_slopes(f, gradient), on_values)}

    def step(self, slopes: Mapping[str, Floats], optim: Optim) -> None:
        """Take one optimiser step down what `slopes` gave."""
        if "rows" in slopes:
            self._optimiser = step_values(self._optimiser, optim, self.rows, slopes["rows"], self._decayed())

    def _decayed(self) -> Floats:
        """Return 1 for weights and 0 for the bias: (d + 1,)."""
        share: Floats = np.ones(self.rows.shape[1], np.float32)
        share[-1] = 0
        return share

    def set_rows(self, rows: Floats, classes: Ints) -> None:
        """Replace the rows of some classes (m, d + 1), and reset the moments."""
        self.rows[classes] = rows
        self._optimiser = None

    def values(self) -> Floats:
        """Return all trainable scalars: (p,), a copy."""
        return self.rows.flatten()

    def set_values(self, values: Floats) -> None:
        """Replace the trainable scalars (p,), and reset the moments."""
        self.rows = values.reshape(self.rows.shape).copy()
        self._optimiser = None

    def mask(self) -> NDArray[np.bool_]:
        """Return which scalars belong to the last layer proper: (p,)."""
        return np.ones(self.rows.size, np.bool_)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that a restart needs."""
        return {"rows": self.rows, **(self._optimiser.arrays() if self._optimiser else {})}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `arrays` gave.  Raises StoreError if it does not fit."""
        optimiser = None
        if "optim" in arrays:
            optimiser = ArrayOptimiser(unpack_optim(arrays["optim"]), self.rows.shape)
        check_state(arrays, {"rows": self.rows, **(optimiser.arrays() if optimiser else {})})
        if optimiser is not None:
            optimiser.load(arrays)
        self.rows, self._optimiser = arrays["rows"], optimiser


def row_slopes(f: Floats, gradient: Floats) -> Floats:
    """Return the gradient at rows, bias as last column: f (b, d), gradient (b, k) at the logits -> (k, d + 1)."""
    slopes = np.empty((gradient.shape[1], f.shape[1] + 1), np.float32)
    slopes[:, :-1] = gradient.T @ f
    slopes[:, -1] = gradient.sum(axis=0)
    return slopes


def with_more(slopes: Floats, more: Floats | None) -> Floats:
    """Return the sum of both gradients; more: flat, or None for zero."""
    return slopes if more is None else slopes + more.reshape(slopes.shape)


def clipped(optim: Optim, slopes: Mapping[str, Floats]) -> Mapping[str, Floats]:
    """Return the slopes of all that a step trains, shortened together to the norm that is allowed."""
    if not optim.clip_norm:
        return slopes
    norm = math.sqrt(sum(float(np.square(each).sum()) for each in slopes.values()))
    share = np.float32(min(1.0, optim.clip_norm / (norm + CLIP_EPSILON)))
    return {name: each * share for name, each in slopes.items()}


def step_values(
    optimiser: ArrayOptimiser | None, optim: Optim, values: Floats, gradient: Floats, decayed: NDArray[Any]
) -> ArrayOptimiser:
    """Take one step on `values`, in place; make a new optimiser unless the old one's moments fit."""
    if optimiser is None or not optim.continues(optimiser.optim):
        optimiser = ArrayOptimiser(optim, values.shape)
    optimiser.optim = optim
    optimiser.step(values, gradient, decayed)
    return optimiser
