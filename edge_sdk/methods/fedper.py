"""FedPer: devices of one architecture average all weights but those of their last layers.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019 (arXiv:1912.00818), Algorithm 1, with one
personal layer.

    receive   the body: all weights in front of the last layer, which stays the device's own
    train     CE(y, f(x)), all of the model
    share     the body
    reduce    the mean of bodies, as FedAvg's of whole models (averaging.py)

The model is measured after training, in the form in which it is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.methods.contract.averaging import BODY_DOWN, BODY_UP, DISCLOSES_BODY, Averaging
from edge_sdk.methods.contract.base import Exchange
from edge_sdk.methods.contract.description import Start, Weighting


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedPer, with the last layer as the only personal one."""

    weighting: Weighting = "samples"
    """The mean over devices: by their `samples`, as in the paper, or `uniform`."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's body, with `equal` from equal weights."""


class FedPer(Averaging[Params]):
    """Shares its body, and keeps its last layer."""

    name = "fedper"
    title = "FedPer: one architecture, averaged but for its last layer"
    citation = "Arivazhagan et al. 2019, arXiv:1912.00818"
    exchanges = (Exchange(down=BODY_DOWN, up=BODY_UP),)
    closing = Exchange()
    global_model = False
    body = True
    needs = frozenset({"predict", "logit-gradients", "head-rows", "weights"})
    discloses = DISCLOSES_BODY
