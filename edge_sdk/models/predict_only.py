"""Models without anything to train: any function that predicts takes part where logits of public samples travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import Preprocess
from edge_sdk.errors import ModelError, StoreError
from edge_sdk.models.base import Batches, FitReport, ModelSpec
from edge_sdk.models.checks import LEAST_PROBABILITY, check_width, lacks, sum_to_one
from edge_sdk.objectives import Objective, Optim
from edge_sdk.objectives.optim import Part

if TYPE_CHECKING:  # of the tools, not of a base install
    from typing_extensions import Self


class PredictOnly:
    """A teacher: a function that returns logits or probabilities, and does not learn.

    It takes part in the methods in which logits alone are a contribution (`edge-sdk methods`: teaches).
    """

    def __init__(
        self,
        function: Callable[[Floats], Any],
        classes: int,
        *,
        gives: Literal["auto", "logits", "probabilities"] = "auto",
        preprocess: Preprocess | None = None,
        name: str = "teacher",
        runtime: str = "python",
        flops_per_sample: int = 0,
        note: str = "predict-only: teaches, does not learn",
    ) -> None:
        """Wrap a function.

        function: maps samples f4 (n, c, h, w), as `preprocess` makes them, to one number for each class (n, k).  The
        same sample must always give the same numbers.
        gives: what the numbers are.  Probabilities become logits: their logarithms, minus the mean over the classes.
        With "auto" they count as probabilities if those of the first call are not negative and sum to 1.

        Raises ModelError for unsuitable arguments.
        """
        if not callable(function):
            raise ModelError(f"{name}: found {type(function).__name__}: give a function from samples to (n, classes)")
        if gives not in ("auto", "logits", "probabilities"):
            raise ModelError(f"{name}: gives {gives!r}: expected auto, logits or probabilities")
        self._function, self._gives, self._found = function, gives, False
        self.spec = ModelSpec(
            name=name,
            runtime=runtime,
            classes=classes,
            preprocess=preprocess or Preprocess(),
            flops_per_sample=flops_per_sample,
            activation_bytes_per_sample=4 * classes,
            calls_per_pass=1,
            note=note,
        )

    def logits(self, x: Floats) -> Floats:
        """Return the logits before softmax: (n, c, h, w) -> (n, k).

        Raises ModelError where the function fails, or gives other things than n rows of k finite numbers, or where it
        is open whether they are probabilities.
        """
        if not len(x):
            return np.zeros((0, self.spec.classes), np.float32)
        try:
            found = np.asarray(self._function(x))
        except ModelError:
            raise
        except Exception as error:  # a function of the app's may raise anything
            text = " ".join(str(error).split())
            raise ModelError(
                f"model {self.spec.name!r}: its function failed: {type(error).__name__}: {text}"
            ) from error
        check_width(self.spec.name, found.shape, len(x), self.spec.classes)
        if found.dtype.kind not in "fiu" or not np.isfinite(found).all():
            raise ModelError(f"model {self.spec.name!r} answers with {found.dtype} numbers that are not all finite")
        probable = sum_to_one(found)
        if self._gives == "auto":
            self._gives = self._found_to_give(probable)
        if self._gives == "logits":
            return found.astype(np.float32)
        if not probable.all():
            raise ModelError(
                f"model {self.spec.name!r}: rows that sum to 1 were expected of gives='probabilities'"
                + (": pass gives='logits' if these are logits" if self._found else "")
            )
        logs = np.log(np.maximum(found, LEAST_PROBABILITY))
        centred: Floats = (logs - logs.mean(axis=1, keepdims=True)).astype(np.float32)
        return centred

    def _found_to_give(self, probable: NDArray[np.bool_]) -> Literal["logits", "probabilities"]:
        """Return what a function gives whose first answers are, or are not, probabilities: (n,)."""
        self._found = True
        if not probable.all() and probable.mean() > 0.5:
            raise ModelError(
                f"model {self.spec.name!r}: {probable.sum()} of {len(probable)} answers are probabilities, the others "
                "are not: pass gives='logits' or gives='probabilities'"
            )
        return "probabilities" if probable.all() else "logits"

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

    def serving_copy(self) -> Self:
        """Return the model itself: it never changes."""
        return self

    def state_bytes(self) -> bytes:
        """Return no bytes: the model never changes."""
        return b""

    def load_state(self, state: bytes) -> None:
        """Raise StoreError for the state of a model that does change."""
        if state:
            raise StoreError(f"model {self.spec.name!r} keeps no state, {len(state)} bytes are stored: remove them")
