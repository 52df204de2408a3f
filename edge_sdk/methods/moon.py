"""MOON (client half): Li, He and Song 2021, CVPR, arXiv:2103.16257, equations 3 and 4.

    train    CE(y, f(x)) + mu log(1 + exp((cos(z, z_former) - cos(z, z_mean)) / tau))        z = R(x)

z_former: features by this device's model as it was trained last; z_mean: by the mean that came.  Both are asked for
before training, on the batches to come: no second model is held in memory.  In round 0 nothing came, and the term is
left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from edge_sdk.methods.base import Job, Stage, Step
from edge_sdk.methods.fedavg import FedAvgClient, FedAvgState
from edge_sdk.methods.requests import Features, Private
from edge_sdk.objectives import CrossEntropy, Floats, ModelContrast, Objective
from edge_sdk.protocol.contracts.moon import MOON, MoonParams
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import FederationSpec


class MoonClient:
    """FedAvg's round, with a look at the model that the mean overwrites."""

    contract = MOON

    def init(self, spec: FederationSpec) -> FedAvgState:
        """Nothing beside the model, which between two exchanges is the former one."""
        return FedAvgState()

    def step(self, state: FedAvgState, down: Mapping[str, Payload], job: Job) -> Step[FedAvgState]:
        """Ask for the former features, then do as FedAvg."""
        params: MoonParams = self.contract.read(job.spec.params)
        steps = job.local_steps
        former: Floats | None = None
        if "weights" in down and params.mu and steps and not job.closing:
            former = yield Features(job.private_batches(steps))  # (steps, b, d)

        def contrasting(_params: MoonParams, _down: Mapping[str, Payload], source: Private) -> Stage[Objective]:
            if former is None:
                return (CrossEntropy(),)
            mean: Floats = yield Features(source)
            term = ModelContrast(near=mean, away=former, temperature=params.temperature, weight=params.mu)
            return (CrossEntropy(), term)

        return (yield from FedAvgClient(MOON, contrasting).step(state, down, job))


METHOD = MoonClient()
