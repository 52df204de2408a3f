"""The base class of models without anything to train: they give logits, and raise Unsupported otherwise."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.errors import StoreError
from edge_sdk.models.base import Batches, FitReport, ModelSpec
from edge_sdk.models.checks import lacks
from edge_sdk.objectives import Objective, Optim
from edge_sdk.objectives.optim import Part


class PredictOnly(ABC):
    """A teacher: subclasses give a spec whose capability is `predict` alone, and `logits`."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    @abstractmethod
    def logits(self, x: Floats) -> Floats:
        """Return the logits before softmax: (n, c, h, w) -> (n, k)."""

    def features(self, _x: Floats) -> Floats:
        """Raises Unsupported."""
        raise lacks(self.spec, "features")

    def head(self, _f: Floats) -> Floats:
        """Raises Unsupported."""
        raise lacks(self.spec, "features")

    def fit(self, _batches: Batches, _objective: Objective, _optim: Optim, _part: Part = "all") -> FitReport:
        """Raises Unsupported."""
        raise lacks(self.spec, "logit-gradients")

    def head_rows(self) -> Floats:
        """Raises Unsupported."""
        raise lacks(self.spec, "head-rows")

    def set_head_rows(self, _classes: Ints, _rows: Floats) -> None:
        """Raises Unsupported."""
        raise lacks(self.spec, "head-rows")

    def weights(self) -> Floats:
        """Raises Unsupported."""
        raise lacks(self.spec, "weights")

    def head_mask(self) -> NDArray[np.bool_]:
        """Raises Unsupported."""
        raise lacks(self.spec, "weights")

    def set_weights(self, _values: Floats) -> None:
        """Raises Unsupported."""
        raise lacks(self.spec, "weights")

    def state_bytes(self) -> bytes:
        """Return no bytes: the model never changes."""
        return b""

    def load_state(self, state: bytes) -> None:
        """Raise StoreError for the state of a model that does change."""
        if state:
            raise StoreError(f"model {self.spec.name!r} keeps no state, {len(state)} bytes are stored: remove them")
