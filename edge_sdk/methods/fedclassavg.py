"""FedClassAvg: devices with any extractor average their last layers, stay near the mean, and sort their features.

Jang, Ha, Jung and Yoon, "FedClassAvg: Local Representation Learning for Personalized Federated Learning on
Heterogeneous Neural Networks", ICPP 2022 (arXiv:2210.14226), Algorithm 1.

    receive   the whole last layer C^t; the extractor stays the device's own
    train     CE(y, f(x)) + supervised contrast of R(x) + (rho / 2) |C - C^t|^2
    share     the whole last layer
    reduce    the mean of last layers over the devices that answered (lg_fedavg.py)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from edge_sdk.methods.contract.base import OnDevice, Stage
from edge_sdk.methods.contract.description import Range, Weighting
from edge_sdk.methods.lg_fedavg import LastLayer
from edge_sdk.objectives import ClassContrast, CrossEntropy, HeadProximal, Objective, Term
from edge_sdk.protocol.knowledge import ClassRows


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedClassAvg."""

    rho: Annotated[float, Range(0, 1000, paper="0.1")] = 0.1
    """rho: (rho / 2) |C - C^t|^2 over the rows of the last layer; 0 disables the pull."""
    contrast: Annotated[float, Range(0, 1000, paper="1")] = 1.0
    """Weight of the supervised contrast of features.  0 with rho 0: LG-FedAvg."""
    temperature: Annotated[float, Range(0.05, 100)] = 0.07
    """tau, the temperature of the contrast."""
    weighting: Weighting = "samples"
    """The mean over devices: by their `samples` or `uniform`."""


class FedClassAvg(LastLayer[Params]):
    """LG-FedAvg with another loss."""

    name = "fedclassavg"
    title = "FedClassAvg: the last layer averaged and held there, features of a class drawn together"
    citation = "Jang et al. 2022, ICPP, arXiv:2210.14226"
    needs = LastLayer.needs | {"features"}
    terms = frozenset({"cross-entropy", "class-contrast", "head-proximal"})

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train with the contrast of features and the pull of the last layer towards the mean."""
        yield from device.fit(loss(self.params, device.received(ClassRows, "header")))


def loss(params: Params, header: ClassRows | None) -> Objective:
    """Return the loss; in round 0 no last layer was received, and the proximal term is left out."""
    terms: list[Term] = [CrossEntropy()]
    if params.contrast:
        terms.append(ClassContrast(temperature=params.temperature, weight=params.contrast))
    if params.rho and header is not None:
        terms.append(HeadProximal(rows=header.rows.astype(np.float32), weight=params.rho))
    return tuple(terms)
