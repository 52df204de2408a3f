"""FedGKD (client half): Yao et al. 2024, arXiv:2107.00051, equation 6.

    train    CE(y, f(x)) + (gamma / 2) T^2 KL(teacher || f) on the device's own samples

The teacher is a model of the same architecture: it takes the device's place for one pass over the round's batches, so
that no second model is held in memory.  Before the first mean there is none, and the term is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from edge_sdk.methods.base import Stage
from edge_sdk.methods.fedavg import FedAvgClient, take_over
from edge_sdk.methods.requests import Logits, Private
from edge_sdk.objectives import CrossEntropy, Distill, Floats, Objective
from edge_sdk.protocol.contracts.fedgkd import FEDGKD, FedGKDParams
from edge_sdk.protocol.knowledge import Payload


def distilled(params: FedGKDParams, down: Mapping[str, Payload], source: Private) -> Stage[Objective]:
    """The teacher's logits on the batches to come; where none came, the mean itself is the teacher."""
    if "weights" not in down or params.gamma == 0:
        return (CrossEntropy(),)
    yield from take_over(down, "teacher")
    logits: Floats = yield Logits(source)  # (steps, b, k)
    if "teacher" in down:
        yield from take_over(down)
    weight = params.gamma / 2 * params.temperature**2
    return (CrossEntropy(), Distill(logits=logits, temperature=params.temperature, weight=weight))


METHOD = FedAvgClient(FEDGKD, distilled)
