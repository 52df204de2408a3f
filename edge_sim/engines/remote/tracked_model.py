"""The simulation's model of a device whose requests are computed elsewhere, on a copy of the model.

What the copy has learned comes back as a state.  A change of this model is noted, so that a state is sent only then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.models.base import Batches, FitReport, Model, ModelSpec
from edge_sdk.models.cosine_head import scaled
from edge_sdk.objectives import Objective, Optim
from edge_sdk.objectives.optim import Part


class TrackedModel:
    """A Model that passes every call on to another one, and notes whether the call changes it."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.changed = True
        """Whether the copy is older than this model, or there is none yet."""
        self.trains = True
        """Whether the scale of a cosine head trains: the state does not tell."""

    def learned(self, state: bytes) -> None:
        """Take over the state of the copy."""
        self._model.load_state(state)
        self.changed = False

    @property
    def spec(self) -> ModelSpec:
        """Implement Model."""
        return self._model.spec

    # -- calls that read ----------------------------------------------------------------------------------------------

    def logits(self, x: Floats) -> Floats:
        """Implement Model."""
        return self._model.logits(x)

    def features(self, x: Floats) -> Floats:
        """Implement Model."""
        return self._model.features(x)

    def head(self, f: Floats) -> Floats:
        """Implement Model."""
        return self._model.head(f)

    def head_rows(self) -> Floats:
        """Implement Model."""
        return self._model.head_rows()

    def weights(self) -> Floats:
        """Implement Model."""
        return self._model.weights()

    def head_mask(self) -> NDArray[np.bool_]:
        """Implement Model."""
        return self._model.head_mask()

    def state_bytes(self) -> bytes:
        """Implement Model."""
        return self._model.state_bytes()

    # -- calls that write ------------------------------------------------------------------------------------------

    def fit(self, batches: Batches, objective: Objective, optim: Optim, part: Part = "all") -> FitReport:
        """Implement Model."""
        self.changed = True
        return self._model.fit(batches, objective, optim, part)

    def set_head_rows(self, classes: Ints, rows: Floats) -> None:
        """Implement Model."""
        self.changed = True
        self._model.set_head_rows(classes, rows)

    def set_scale(self, value: float | None, *, trains: bool) -> None:
        """Implement Model."""
        self.changed, self.trains = True, trains
        scaled(self._model).set_scale(value, trains=trains)

    def set_weights(self, values: Floats) -> None:
        """Implement Model."""
        self.changed = True
        self._model.set_weights(values)

    def load_state(self, state: bytes) -> None:
        """Implement Model."""
        self.changed = True
        self._model.load_state(state)
