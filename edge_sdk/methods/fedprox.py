"""FedProx (client half): Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, equation 2.

train    CE(y, f(x)) + (mu / 2) |w - w^t|^2        over all trainable scalars; w^t: the weights of the round's start
"""

from __future__ import annotations

from collections.abc import Mapping

from edge_sdk.methods.base import Stage
from edge_sdk.methods.fedavg import FedAvgClient
from edge_sdk.methods.requests import Private, ReadWeights
from edge_sdk.objectives import CrossEntropy, Objective, Proximal
from edge_sdk.protocol.contracts.fedprox import FEDPROX, FedProxParams
from edge_sdk.protocol.knowledge import Payload, Weights


def proximal(params: FedProxParams, _down: Mapping[str, Payload], _source: Private) -> Stage[Objective]:
    """The anchor is read back from the model: it is there in round 0, too, when nothing came down."""
    if params.mu == 0:
        return (CrossEntropy(),)
    anchor: Weights = yield ReadWeights()
    return (CrossEntropy(), Proximal(anchor=anchor.values, weight=params.mu))


METHOD = FedAvgClient(FEDPROX, proximal)
