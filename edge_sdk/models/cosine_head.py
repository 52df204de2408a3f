"""A numpy head that compares directions: s * (w / |w|) . (f / |f|), for boards without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.errors import ModelError
from edge_sdk.models.base import COSINE_SCALE, NORM_LEAST, Model
from edge_sdk.models.checks import check_state, require
from edge_sdk.models.linear_head import ArrayOptimiser, LinearHead, row_slopes, step_values, with_more
from edge_sdk.models.optim import unpack_optim
from edge_sdk.objectives import Optim
from edge_sdk.objectives.optim import Part

_SCALE = "scale."
"""The prefix of the scale's arrays in stored state."""


class CosineHead(LinearHead):
    """A head whose logits are the scale times the cosine of features and rows; the bias column has no effect.

    The rows are the last layer; the scale counts as part of the body, as in FedNH.
    """

    kind = "cosine-rows"
    abilities = frozenset({"cosine-head"})

    def __init__(self, features: int, classes: int, seed: int, scale: float = COSINE_SCALE) -> None:
        super().__init__(features, classes, seed)
        self.rows[:, -1] = 0
        self.scale = np.array([scale], np.float32)
        self._scale_trains = True
        self._scale_optimiser: ArrayOptimiser | None = None

    def separate(self) -> None:
        """Take rows and a scale of its own, and no moments."""
        super().separate()
        self.scale, self._scale_optimiser = self.scale.copy(), None

    def features(self, f: Floats) -> Floats:
        """Divide each feature by its length: (n, d) -> (n, d)."""
        return unit(f)

    def linear_rows(self) -> Floats:
        """Return rows of the length of the scale, with bias 0 as last column: (k, d + 1)."""
        rows = np.zeros_like(self.rows)
        rows[:, :-1] = self.scale * unit(self.rows[:, :-1])
        return rows

    def logits(self, f: Floats) -> Floats:
        """Return the logits of unit features: (n, d) -> (n, k)."""
        out: Floats = f @ (self.scale * unit(self.rows[:, :-1])).T
        return out

    def back(self, f: Floats, slopes: Floats) -> Floats:
        """Take slopes back through the division by lengths: nothing moves along a feature."""
        directions = unit(f)
        along = (slopes * directions).sum(axis=1, keepdims=True)  # (b, 1)
        out: Floats = (slopes - along * directions) / _lengths(f)
        return out

    def directional(
        self, f: Floats, moved: Floats, direction: Floats, of_what: Literal["features", "logits"]
    ) -> Floats:
        """Return LinearHead's derivatives through both divisions by lengths; the scale is the direction's last."""
        turned = self.back(f, moved)  # a projection across a feature is its own transpose
        if of_what == "features":
            return turned
        rows, along = self.rows[:, :-1], direction[:-1].reshape(self.rows.shape)[:, :-1]
        to_rows, to_features = unit(rows), unit(f)
        across = (along - (along * to_rows).sum(axis=1, keepdims=True) * to_rows) / _lengths(rows)
        on_directions = turned @ to_rows.T + to_features @ across.T
        out: Floats = self.scale * on_directions + direction[-1] * (to_features @ to_rows.T)
        return out

    def slopes(
        self, f: Floats, gradient: Floats, on_values: Floats | None = None, part: Part = "all"
    ) -> dict[str, Floats]:
        """Return LinearHead's slopes through the division by lengths: nothing moves along a row."""
        at_linear = row_slopes(f, gradient)[:, :-1]  # (k, d)
        directions = unit(self.rows[:, :-1])
        along = (at_linear * directions).sum(axis=1, keepdims=True)  # (k, 1)
        on_rows, on_scale = (None, None) if on_values is None else np.split(on_values, [self.rows.size])
        found = {}
        if part != "body":
            across = np.zeros_like(self.rows)
            across[:, :-1] = self.scale * (at_linear - along * directions) / _lengths(self.rows[:, :-1])
            found["rows"] = with_more(across, on_rows)
        if part != "head" and self._scale_trains:
            found["scale"] = with_more(np.array([along.sum()], np.float32), on_scale)
        return found

    def step(self, slopes: Mapping[str, Floats], optim: Optim) -> None:
        """Take one optimiser step down what `slopes` gave."""
        super().step(slopes, optim)
        if "scale" in slopes:
            no_decay = np.zeros(1, np.float32)
            self._scale_optimiser = step_values(self._scale_optimiser, optim, self.scale, slopes["scale"], no_decay)

    def set_rows(self, rows: Floats, classes: Ints) -> None:
        """Replace the directions of some classes (m, d + 1), and reset the moments."""
        super().set_rows(np.hstack([rows[:, :-1], np.zeros((len(rows), 1), np.float32)]), classes)
        self._scale_optimiser = None

    def set_scale(self, value: float | None, *, trains: bool) -> None:
        """Set the scale, or keep it if None, and whether steps of the body change it."""
        self._scale_trains = trains
        if value is not None:
            self.scale[:] = value

    def values(self) -> Floats:
        """Return the rows, then the scale: (p,)."""
        return np.append(super().values(), self.scale)

    def set_values(self, values: Floats) -> None:
        """Replace the trainable scalars (p,), and reset the moments."""
        super().set_values(values[:-1])
        self.scale, self._scale_optimiser = values[-1:].copy(), None

    def mask(self) -> NDArray[np.bool_]:
        """Return a mask of all scalars except the scale: (p,)."""
        return np.append(super().mask(), False)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that a restart needs."""
        scale = {"value": self.scale, **(self._scale_optimiser.arrays() if self._scale_optimiser else {})}
        return {**super().arrays(), **{_SCALE + name: array for name, array in scale.items()}}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `arrays` gave.  Raises StoreError if it does not fit."""
        own = {name.removeprefix(_SCALE): array for name, array in arrays.items() if name.startswith(_SCALE)}
        optimiser = ArrayOptimiser(unpack_optim(own["optim"]), self.scale.shape) if "optim" in own else None
        check_state(own, {"value": self.scale, **(optimiser.arrays() if optimiser else {})})
        super().load({name: array for name, array in arrays.items() if not name.startswith(_SCALE)})
        if optimiser is not None:
            optimiser.load(own)
        self.scale, self._scale_optimiser = own["value"], optimiser


class Scaled(Protocol):
    """The interface of a model with a cosine head, in addition to Model."""

    def set_scale(self, value: float | None, *, trains: bool) -> None:
        """Set the scale, or keep it if None, and whether later fits that train the body change it."""


def scaled(model: Model) -> Scaled:
    """Return the model as Scaled.  Raises Unsupported if it has no cosine head."""
    require(model.spec, "cosine-head")
    return cast("Scaled", model)


def check_head(kind: str) -> None:
    """Raise ModelError unless this is one of the kinds of heads."""
    if kind not in ("linear", "cosine"):
        raise ModelError(f"head {kind!r}: expected linear or cosine")


def make_head(kind: Literal["linear", "cosine"], features: int, classes: int, seed: int) -> LinearHead:
    """Make a new head from `seed`.  Raises ModelError for an unknown kind."""
    check_head(kind)
    return (CosineHead if kind == "cosine" else LinearHead)(features, classes, seed)


def unit(rows: Floats) -> Floats:
    """Divide each row by its length: (n, d) -> (n, d); a row of zeros stays zero."""
    out: Floats = rows / _lengths(rows)
    return out


def _lengths(rows: Floats) -> Floats:
    lengths: Floats = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(NORM_LEAST))
    return lengths
