"""FedKF (client half): Zhou et al. 2023, arXiv:2207.11447, equation 7 and Algorithm 1.

    train    CE(y, f(x)) + gamma KL(teacher(x_G) || f(x_G)), x_G made up by a generator that stays on the device

The model begins a round as the mean of those who answered in the last one (ACA); the teacher is the mean over all slots
(OCA), and what is measured and left at the end.  Nothing came in round 0, which is plain training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from edge_sdk.methods.base import Stage
from edge_sdk.methods.fedavg import FedAvgClient
from edge_sdk.methods.fedkf_term import DataFree
from edge_sdk.methods.requests import Private
from edge_sdk.objectives import CrossEntropy, Objective
from edge_sdk.protocol.contracts.fedkf import FEDKF, FedKFParams
from edge_sdk.protocol.knowledge import Payload, Weights


def fused(params: FedKFParams, down: Mapping[str, Payload], _source: Private) -> Stage[Objective]:
    """Own data, and the teacher without data; where it did not come, the two means are one."""
    yield from ()
    if "weights" not in down or params.gamma == 0:
        return (CrossEntropy(),)
    teacher = cast("Weights", down.get("teacher", down["weights"]))
    imitation = DataFree(
        teacher=np.asarray(teacher.values, np.float32),
        generator=params.generator,
        noise_dim=params.noise_dim,
        rate=params.generator_rate,
        certain=params.certain,
        active=params.active,
        raw=params.raw_loss,
        adversarial=params.adversarial,
        warm=params.warm,
        weight=params.gamma,
    )
    return (CrossEntropy(), imitation)


METHOD = FedAvgClient(FEDKF, fused, measured="teacher")
