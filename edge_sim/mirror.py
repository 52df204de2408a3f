"""A device's model here, of which somebody elsewhere keeps a copy and trains that.

What was learned there comes back as a state; what changes here is noticed, so that a state goes out only then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_sdk.models.base import Batches, FitReport, Model, ModelSpec
from edge_sdk.objectives import Floats, Ints, Objective, Optim
from edge_sdk.objectives.optim import Part


class Mirror:
    """Any model, which it stands in for; see Model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.ahead = True
        """Whether the copy elsewhere, if there is one at all, is older."""
        self.trains = True
        """What a cosine head was told of its scale, which its state does not tell."""

    def learned(self, state: bytes) -> None:
        """Take over what the copy has come to."""
        self._model.load_state(state)
        self.ahead = False

    @property
    def spec(self) -> ModelSpec:
        """See Model."""
        return self._model.spec

    # -- what asks ------------------------------------------------------------------------------------------------

    def logits(self, x: Floats) -> Floats:
        """See Model."""
        return self._model.logits(x)

    def features(self, x: Floats) -> Floats:
        """See Model."""
        return self._model.features(x)

    def head(self, f: Floats) -> Floats:
        """See Model."""
        return self._model.head(f)

    def head_rows(self) -> Floats:
        """See Model."""
        return self._model.head_rows()

    def weights(self) -> Floats:
        """See Model."""
        return self._model.weights()

    def head_mask(self) -> NDArray[np.bool_]:
        """See Model."""
        return self._model.head_mask()

    def state_bytes(self) -> bytes:
        """See Model."""
        return self._model.state_bytes()

    # -- what changes ---------------------------------------------------------------------------------------------

    def fit(self, batches: Batches, objective: Objective, optim: Optim, part: Part = "all") -> FitReport:
        """See Model."""
        self.ahead = True
        return self._model.fit(batches, objective, optim, part)

    def set_head_rows(self, classes: Ints, rows: Floats) -> None:
        """See Model."""
        self.ahead = True
        self._model.set_head_rows(classes, rows)

    def set_scale(self, value: float | None, *, trains: bool) -> None:
        """See Model."""
        self.ahead, self.trains = True, trains
        self._model.set_scale(value, trains=trains)

    def set_weights(self, values: Floats) -> None:
        """See Model."""
        self.ahead = True
        self._model.set_weights(values)

    def load_state(self, state: bytes) -> None:
        """See Model."""
        self.ahead = True
        self._model.load_state(state)
