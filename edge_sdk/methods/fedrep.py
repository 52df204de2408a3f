"""FedRep: FedPer, with head and body trained in turn.

Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for Personalized Federated Learning", ICML
2021 (arXiv:2102.07078), Algorithm 1.

    receive   the body; the last layer stays the device's own
    train     CE(y, f(x)): first the last layer on the body that came, then the body under the last layer
    share     the body
    reduce    the mean of bodies, as FedAvg's of whole models (averaging.py)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from edge_sdk.methods.contract.averaging import BODY_DOWN, BODY_UP, DISCLOSES_BODY, Averaging
from edge_sdk.methods.contract.base import Exchange, OnDevice, Stage
from edge_sdk.methods.contract.description import Range, Start, Weighting
from edge_sdk.methods.contract.requests import Fit, Private
from edge_sdk.objectives import CrossEntropy


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedRep."""

    head_steps: Annotated[int, Range(1, paper="10 epochs")] = 10
    """Steps of the last layer alone, before the `local_steps` of the body; the paper takes ten epochs."""
    weighting: Weighting = "uniform"
    """The mean over devices: `uniform`, as in Algorithm 1, or by their `samples`."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's body, with `equal` from equal weights."""


class FedRep(Averaging[Params]):
    """Shares its body, and keeps its last layer."""

    name = "fedrep"
    title = "FedRep: averaged but for the last layer, which is trained first, and the body under it"
    citation = "Collins et al. 2021, ICML, arXiv:2102.07078"
    exchanges = (Exchange(down=BODY_DOWN, up=BODY_UP),)
    closing = Exchange()
    global_model = False
    body = True
    needs = frozenset({"predict", "logit-gradients", "head-rows", "weights"})
    discloses = DISCLOSES_BODY

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train the last layer on the round's first batches, then the body on the batches that follow."""
        job, head_steps = device.job, self.params.head_steps
        batches = job.private_batches(head_steps + job.local_steps).indices
        head, body = Private(batches[:head_steps]), Private(batches[head_steps:])
        yield Fit(source=head, objective=(CrossEntropy(),), optim=job.optim, part="head")
        yield Fit(source=body, objective=(CrossEntropy(),), optim=job.optim, part="body")
