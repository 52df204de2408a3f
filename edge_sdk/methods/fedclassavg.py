"""FedClassAvg (client half): Jang et al. 2022, ICPP, arXiv:2210.14226, Algorithm 1.

take over    the whole last layer C^t; the extractor stays the device's own
train        CE(y, f(x)) + supervised contrast of R(x) + (rho / 2) |C - C^t|^2
share        the whole last layer
"""

from __future__ import annotations

import numpy as np

from edge_sdk.methods.lg_fedavg import LGFedAvgClient
from edge_sdk.objectives import ClassContrast, CrossEntropy, HeadProximal, Objective, Term
from edge_sdk.protocol.contracts.fedclassavg import FEDCLASSAVG, FedClassAvgParams
from edge_sdk.protocol.knowledge import ClassRows


def sorting(params: FedClassAvgParams, header: ClassRows | None) -> Objective:
    """In round 0 no last layer came, and nothing holds the device's own."""
    terms: list[Term] = [CrossEntropy()]
    if params.contrast:
        terms.append(ClassContrast(temperature=params.temperature, weight=params.contrast))
    if params.rho and header is not None:
        terms.append(HeadProximal(rows=header.rows.astype(np.float32), weight=params.rho))
    return tuple(terms)


METHOD = LGFedAvgClient(FEDCLASSAVG, sorting)
