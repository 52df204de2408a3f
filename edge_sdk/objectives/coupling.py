"""The base class of couplings: how two models learn from each other on one mini-batch."""

from __future__ import annotations

from abc import ABC, abstractmethod

from edge_sdk.objectives.base import Seen
from edge_sdk.objectives.whole import Objective


class Coupling(ABC):
    """Two objectives for one mini-batch, each from the outputs of both models: a frozen dataclass.

    The other model's outputs are constants, so no gradient passes from one model to the other.
    """

    __slots__ = ()

    @property
    def on_features(self) -> bool:
        """Whether the objectives use features, which both models must give."""
        return False

    @abstractmethod
    def objectives(self, own: Seen, proxy: Seen) -> tuple[Objective, Objective]:
        """Return the objectives of the device's own model and of the proxy, for one step.

        own, proxy: logits (b, k), labels (b,) and perhaps features (b, d), all before either model takes its step.
        """

    def after(self, own: Seen, proxy: Seen) -> Coupling:
        """Return the coupling for the next mini-batch; one that learns nothing returns itself."""
        del own, proxy
        return self
