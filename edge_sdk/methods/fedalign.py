"""FedAlign: FedAvg, with a last block whose Lipschitz constant at a share of its width follows that at its full width.

Mendieta et al., "Local Learning Matters: Rethinking Data Heterogeneity in Federated Learning", CVPR 2022
(arXiv:2111.14213), section 4.

    train    CE(y, f(x)) + mu (CE / L, a constant) L,  L = MSE(lambda_sub, lambda_full)     fedalign_term.py

All else is FedAvg's (averaging.py).  Models need a block with a width switch: the capability `width`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from edge_sdk.methods.contract.averaging import DISCLOSES, Averaging
from edge_sdk.methods.contract.base import OnDevice, Stage
from edge_sdk.methods.contract.description import Range, Start, Weighting
from edge_sdk.methods.parts.fedalign_term import Alignment
from edge_sdk.objectives import CrossEntropy


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedAlign."""

    mu: Annotated[float, Range(0, 1000, paper="0.45")] = 0.45
    """mu, the weight of the alignment, as a share of the cross-entropy.  0 gives FedAvg."""
    width: Annotated[float, Range(0.01, 0.99, paper="0.25")] = 0.25
    """omega, the share of the last block's inner channels at which it is aligned."""
    weighting: Weighting = "samples"
    """The mean over devices: by their `samples` or `uniform`."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's model, with `equal` from equal weights."""


class FedAlign(Averaging[Params]):
    """Changes only the loss that a device minimises."""

    name = "fedalign"
    title = "FedAlign: FedAvg, with a last block that is as smooth at a quarter of its width"
    citation = "Mendieta et al. 2022, CVPR, arXiv:2111.14213"
    needs = frozenset({"predict", "logit-gradients", "weights", "width"})
    terms = frozenset({"cross-entropy", "alignment"})
    discloses = DISCLOSES

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train with the alignment."""
        params = self.params
        terms = (Alignment(width=params.width, weight=params.mu),) if params.mu else ()
        yield from device.fit((CrossEntropy(), *terms))
