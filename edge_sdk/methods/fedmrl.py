"""FedMRL: a small shared model beside each device's own, and a last layer that reads the features of both.

Yi, Yu, Ren, Wang, Liu and Li, "Federated Model Heterogeneous Matryoshka Representation Learning", NeurIPS 2024
(arXiv:2406.00488), Algorithm 1.  f (d numbers), g (d_1 <= d): features of the device's own model and of the proxy (the
paper's homogeneous small model); h_f, h_g: their last layers; P: the device's projector.

    receive   the proxy <- the mean of proxies
    train     on each mini-batch, with r = P (g, f, 1):
                CE(y, h_f(r)) + CE(y, h_g(r_1 .. r_{d_1}))          all of f, h_f, g, h_g and P take one step
    share     the proxy; the device's own model and P never leave it
    reduce    the mean of proxies, as FedAvg's of models (averaging.py)

The device predicts by h_f(P (g, f, 1)).

Each model's step is that of two terms: its last layer on given vectors r, and a gradient at its features, which is the
loss's own, because r is linear in them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.methods.contract.averaging import Averaging
from edge_sdk.methods.contract.base import Exchange, OnDevice, Stage
from edge_sdk.methods.contract.description import ProxyFamily, Range, Start, Weighting
from edge_sdk.methods.contract.requests import Evaluate, FitBoth, ReadSplice, Report, WriteSplice
from edge_sdk.methods.fml import DISCLOSES_PROXY
from edge_sdk.objectives import (
    FEATURES,
    HEAD,
    LABELS,
    Coupling,
    FeatureGradient,
    HeadLabels,
    Objective,
    Seen,
    layer_of,
    needed,
    softmax,
    spliced,
)

_STREAM = 0x6D726C
"""Separates the draw of P from other draws of a device."""


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedMRL."""

    projector: Literal["random", "own"] = "random"
    """P at first: `random`, as linear layers begin; `own`, r = f, so that a trained model begins with what it knows."""
    projector_rate: Annotated[float, Range(0, 1000)] = 0.0
    """The learning rate of P (SGD); 0 takes that of the federation."""
    proxy: ProxyFamily = "mlp"
    """The family of the proxy in a simulated fleet; real devices bring theirs (App(proxy=...))."""
    proxy_features: Annotated[int, Range(0, 65536)] = 0
    """d_1, the width of its features in a simulated fleet; 0 takes federation.feature_dim, or else the family's."""
    weighting: Weighting = "samples"
    """The mean over devices: by their `samples` or `uniform`."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's proxy, with `equal` from equal weights."""


class FedMRL(Averaging[Params]):
    """Averages proxies, whose features the devices' own last layers read beside their own."""

    name = "fedmrl"
    title = "FedMRL: a small shared model, whose features each device's last layer reads beside its own"
    citation = "Yi et al. 2024, NeurIPS, arXiv:2406.00488"
    closing = Exchange()
    global_model = False
    global_of = "proxy"
    needs = frozenset({"predict", "logit-gradients", "features", "head-rows", "proxy"})
    terms = frozenset({"head-labels", "feature-gradient"})
    discloses = DISCLOSES_PROXY

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Take over the mean; where instruments are read, measure it under the device's P of the round before."""
        yield from super().receive(device)
        job = device.job
        if job.instruments and job.round and job.learns and (yield ReadSplice()) is not None:
            measured = yield Evaluate(job.round, recorded=False)
            yield Report({f"arrival_{name}": value for name, value in measured.items() if name == "accuracy"})

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train both models and P, and predict with all three from now on."""
        device.down = {}
        job, optim = device.job, device.job.optim
        splicing = Splicing(
            rate=self.params.projector_rate or optim.learning_rate,
            projector=(yield ReadSplice()),
            begins=self.params.projector,
            seed=(job.spec.seed, _STREAM, job.number),
        )
        trained: Splicing = yield FitBoth(source=device.batches, coupling=splicing, optim=optim, proxy_optim=optim)
        if trained.projector is not None:
            yield WriteSplice(trained.projector)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Splicing(Coupling):
    """The two losses of FedMRL, and P."""

    rate: float
    projector: Floats | None = None  # (d, d_1 + d + 1), the bias as last column, or None until drawn
    begins: Literal["random", "own"] = "random"
    seed: tuple[int, ...] = ()

    @property
    def on_features(self) -> bool:
        """Return True: both models' features are spliced."""
        return True

    def objectives(self, own: Seen, proxy: Seen) -> tuple[Objective, Objective]:
        """Return each model's part of the loss: its last layer on r, and its features towards a smaller loss."""
        g, f, P = self._parts(own, proxy)
        r, labels, at = spliced(P, g, f), needed(own.labels, LABELS), g.shape[1]
        slopes = _slopes(own, proxy, r, at) @ P[:, :-1]  # (b, d_1 + d)
        return (
            (HeadLabels(features=r, labels=labels), FeatureGradient(gradient=slopes[None, :, at:])),
            (HeadLabels(features=r[:, :at], labels=labels), FeatureGradient(gradient=slopes[None, :, :at])),
        )

    def after(self, own: Seen, proxy: Seen) -> Splicing:
        """Return the coupling with P after a step on the loss."""
        g, f, P = self._parts(own, proxy)
        inputs = np.hstack([g, f, np.ones((len(f), 1), np.float32)])  # (b, d_1 + d + 1)
        slope = _slopes(own, proxy, spliced(P, g, f), g.shape[1]).T @ inputs
        return replace(self, projector=P - np.float32(self.rate / len(f)) * slope)

    def _parts(self, own: Seen, proxy: Seen) -> tuple[Floats, Floats, Floats]:
        """Return g (b, d_1), f (b, d) and P; at first P is drawn, or r = f."""
        g, f = needed(proxy.features, FEATURES), needed(own.features, FEATURES)
        if self.projector is not None:
            return g, f, self.projector
        d_1, d = g.shape[1], f.shape[1]
        if self.begins == "own":
            return g, f, np.eye(d, d_1 + d + 1, d_1, dtype=np.float32)
        bound = (d_1 + d) ** -0.5
        drawn = np.random.default_rng(self.seed).uniform(-bound, bound, (d, d_1 + d + 1))
        return g, f, drawn.astype(np.float32)


def _slopes(own: Seen, proxy: Seen, r: Floats, at: int) -> Floats:
    """Return d L / d r of each sample, divided by nothing: (b, d)."""
    own_layer, proxy_layer = layer_of(needed(own.head, HEAD), r.shape[1]), layer_of(needed(proxy.head, HEAD), at)
    slopes = _errors(own_layer, r, own) @ own_layer[:, :-1]
    slopes[:, :at] += _errors(proxy_layer, r[:, :at], own) @ proxy_layer[:, :-1]
    return slopes


def _errors(layer: Floats, r: Floats, seen: Seen) -> Floats:
    """Return softmax - onehot of a last layer's predictions: (b, k)."""
    found = softmax(r @ layer[:, :-1].T + layer[:, -1])
    found[np.arange(len(r)), needed(seen.labels, LABELS)] -= 1
    return found
