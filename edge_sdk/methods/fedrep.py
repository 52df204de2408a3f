"""FedRep (client half): Collins et al. 2021, ICML, Algorithm 1.

take over    the body; the last layer stays the device's own
train        CE(y, f(x)): first the last layer on the body that came, then the body under the last layer
share        the body
"""

from __future__ import annotations

from edge_sdk.methods.base import Job, Stage
from edge_sdk.methods.fedper import FedPerClient
from edge_sdk.methods.requests import Fit, Private
from edge_sdk.objectives import CrossEntropy
from edge_sdk.protocol.contracts.fedrep import FEDREP, FedRepParams


def in_turn(params: FedRepParams, job: Job) -> Stage[None]:
    """The last layer on the round's first batches, the body on those that follow."""
    batches = job.private_batches(params.head_steps + job.local_steps).indices
    head, body = Private(batches[: params.head_steps]), Private(batches[params.head_steps :])
    yield Fit(source=head, objective=(CrossEntropy(),), optim=job.optim, part="head")
    yield Fit(source=body, objective=(CrossEntropy(),), optim=job.optim, part="body")


METHOD = FedPerClient(FEDREP, in_turn)
