"""A method of your own: FedAvg with a loss term against overconfident models.

Devices with few classes learn to be sure of these, and the mean of sure models that disagree is a bad model.  The term
is the confidence penalty of Pereyra et al., "Regularizing Neural Networks by Penalizing Confident Output
Distributions", 2017 (arXiv:1701.06548): the loss falls with the entropy of the predictions.

    train     CE(y, f(x)) - beta mean H(softmax(f(x)))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.methods import Averaging, OnDevice, Range, Stage, Start, Weighting
from edge_sdk.objectives import CrossEntropy, Seen, Term, log_softmax


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConfidencePenalty(Term):
    """-weight H(softmax(f)), the mean over the mini-batch; H in nats."""

    name: ClassVar[str] = "confidence-penalty"
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """Return the loss: sum p log p = -H."""
        logs = log_softmax(seen.logits)
        return float(self.weight * (np.exp(logs) * logs).sum(axis=1).mean())

    def slope(self, seen: Seen) -> Floats:
        """Return its gradient at the logits, p (log p + H) / b: (b, k)."""
        logs = log_softmax(seen.logits)
        p = np.exp(logs)
        entropy = -(p * logs).sum(axis=1, keepdims=True)
        return p * (logs + entropy) * np.float32(self.weight / len(logs))


@dataclass(frozen=True, kw_only=True)
class Params:
    """The keys of [method.humble], with their ranges."""

    beta: Annotated[float, Range(0, 10, paper="0.1 to 4")] = 0.3
    """beta: times the entropy of the predictions; 0: FedAvg."""
    weighting: Weighting = "samples"
    """The mean over devices: by their `samples` or `uniform`."""
    start: Start = "first"
    """Round 0, as in FedAvg."""


class Humble(Averaging[Params]):
    """Changes only the loss that a device minimises; the rest is inherited from FedAvg."""

    name = "humble"
    title = "Humble: FedAvg, with a penalty for being too sure"
    citation = "Pereyra et al. 2017, arXiv:1701.06548 (the term)"
    terms = frozenset({"cross-entropy", "confidence-penalty"})
    discloses = "all weights of the model, and the number of samples"

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Ask the device to train on both terms; the framework runs it, stops it and starts it again."""
        yield from device.fit((CrossEntropy(), ConfidencePenalty(weight=self.params.beta)))
