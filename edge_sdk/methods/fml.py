"""FML: a small proxy model beside each device's own, averaged over devices; on a device both learn from each other.

Shen et al., "Federated Mutual Learning", 2020 (arXiv:2006.16765), Algorithm 1.  f: logits of the device's own model;
g: those of the proxy (the paper's meme model).

    receive   the proxy <- the mean of proxies
    train     on each mini-batch, both at the same theta, the other model's predictions constant:
                own     alpha CE(y, f) + (1 - alpha) KL(softmax(g) || softmax(f))
                proxy   beta CE(y, g) + (1 - beta) KL(softmax(f) || softmax(g))
    share     the proxy; the device's own model never leaves it, and may be of any architecture
    reduce    the mean of proxies, as FedAvg's of models (averaging.py)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from edge_sdk.methods.contract.averaging import Averaging
from edge_sdk.methods.contract.base import OnDevice, Stage
from edge_sdk.methods.contract.description import ProxyFamily, Range, Start, Weighting
from edge_sdk.methods.contract.requests import FitBoth
from edge_sdk.objectives import Coupling, CrossEntropy, Distill, Objective, Seen

DISCLOSES_PROXY = (
    "all weights of the proxy, from which training samples can be reconstructed, and the number of samples"
)


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FML."""

    alpha: Annotated[float, Range(0, 1)] = 0.5
    """Weight of the labels in the loss of the device's own model; the proxy's predictions have the rest."""
    beta: Annotated[float, Range(0, 1)] = 0.5
    """Weight of the labels in the loss of the proxy; the own model's predictions have the rest."""
    proxy: ProxyFamily = "mlp"
    """The family of the proxy in a simulated fleet; real devices bring theirs (App(proxy=...))."""
    weighting: Weighting = "samples"
    """The mean over devices: by their `samples` or `uniform`."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's proxy, with `equal` from equal weights."""


class FML(Averaging[Params]):
    """Averages proxies, which learn from the devices' own models and teach them."""

    name = "fml"
    title = "FML: a shared proxy beside each device's own model, and mutual learning of the two"
    citation = "Shen et al. 2020, arXiv:2006.16765"
    global_of = "proxy"
    needs = frozenset({"predict", "logit-gradients", "proxy"})
    terms = frozenset({"cross-entropy", "distill"})
    discloses = DISCLOSES_PROXY

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train both models on this round's mini-batches."""
        device.down = {}
        optim = device.job.optim
        mutual = Mutual(alpha=self.params.alpha, beta=self.params.beta)
        yield FitBoth(source=device.batches, coupling=mutual, optim=optim, proxy_optim=optim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutual(Coupling):
    """The two losses of FML."""

    alpha: float
    beta: float

    def objectives(self, own: Seen, proxy: Seen) -> tuple[Objective, Objective]:
        """Return each model's loss, with the other's predictions as the target."""
        return learning(self.alpha, proxy), learning(self.beta, own)


def learning(share: float, other: Seen) -> Objective:
    """Return share CE(y, f) + (1 - share) KL(softmax(other) || softmax(f)), without terms of weight 0."""
    labels = (CrossEntropy(weight=share),) if share > 0 else ()
    mutual = (Distill(logits=np.asarray(other.logits)[None], weight=1 - share),) if share < 1 else ()
    return (*labels, *mutual)
