"""Models that give the derivatives of their outputs in a direction of their weights (FedL2G)."""

from __future__ import annotations

from typing import Literal, Protocol, cast

from edge_sdk.arrays import Floats
from edge_sdk.models.base import Model
from edge_sdk.models.checks import require


class Directed(Protocol):
    """The interface of a model with the capability `guidance-gradients`, in addition to Model."""

    def directional(self, x: Floats, direction: Floats, of_what: Literal["features", "logits"]) -> Floats:
        """Return the derivative of features (n, d) or logits (n, k) in a direction (p,) of the trainable scalars.

        x: (n, c, h, w); it is that of inference mode.
        """


def directed(model: Model) -> Directed:
    """Return the model as Directed.  Raises Unsupported if it gives no such derivatives."""
    require(model.spec, "guidance-gradients")
    return cast("Directed", model)
