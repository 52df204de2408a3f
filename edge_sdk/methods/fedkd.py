"""FedKD: mutual learning with a shared proxy as in FML, weighted by how sure both are, and compressed updates.

Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature Communications 2022
(arXiv:2108.13323).  f, h_f: logits and features of the device's own model (the mentor); g, h_g: of the proxy (the
mentee).  S = CE(y, f) + CE(y, g), a constant.

    receive   the proxy <- theta^t = theta^{t-1} + the update that came
    train     on each mini-batch, both at the same theta, the other model's outputs constant:
                own     CE(y, f) + KL(softmax(g) || softmax(f)) / S + MSE(h_f, W h_g) / S
                proxy   CE(y, g) + KL(softmax(f) || softmax(g)) / S + MSE(h_f, W h_g) / S
              W, which never leaves the device, descends on both
    share     the proxy's change, each matrix cut to the share T_t of its energy     edge_sdk/protocol/low_rank.py
    reduce    the mean of the changes, cut to the same share

In round 0 whole proxies travel, and the common start is made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.contract.base import Down, Exchange, Method, OnDevice, Slot, Stage, Up
from edge_sdk.methods.contract.description import ProxyFamily, Range, Start
from edge_sdk.methods.contract.requests import FitBoth, MeasuredModel, ReadChange, WriteWeights
from edge_sdk.objectives import FEATURES, Coupling, CrossEntropy, Distill, FeatureMatch, Objective, Seen, needed
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Count, Matrix, Packed, Vector, wire
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.low_rank import LowRank, expanded, factorised, joined
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.transforms import Coding
from edge_sdk.reductions import Bag, mean_in_order

_STREAM = 0x66656B64
"""Separates the draw of W from other draws of a device."""


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedKD."""

    energy_start: Annotated[float, Range(0, 1, paper="0.95")] = 0.95
    """T_start, the share of a matrix's energy that travels in the first round."""
    energy_end: Annotated[float, Range(0, 1, paper="0.98")] = 0.98
    """T_end, the share in the last round; in between it moves evenly."""
    match_features: bool = True
    """Whether hidden features are matched; both models must then give features."""
    match_rate: Annotated[float, Range(0, 10)] = 0.01
    """The learning rate of W (SGD)."""
    proxy_rate: Annotated[float, Range(0, 1000)] = 0.0
    """The learning rate of the proxy; 0 takes that of the federation."""
    proxy: ProxyFamily = "mlp"
    """The family of the proxy in a simulated fleet; real devices bring theirs (App(proxy=...))."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's proxy, with `equal` from equal weights."""


@wire("fedkd-state")
@dataclass(frozen=True, slots=True)
class DeviceState:
    """The device's state: theta^t of its last round, and W."""

    round: Count = 0
    base: Vector | None = None  # (p,)
    projection: Matrix | None = None  # (d_own, d_proxy)


@wire("fedkd-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """theta^t, the update that leads to it, and the devices with theta^{t-1}; others need theta^t whole."""

    weights: Weights | None = None
    update: LowRank | None = None
    holders: Annotated[tuple[int, ...], Packed(10**6)] = ()


DOWN = {"update": Slot(LowRank, optional=True), "weights": Slot(Weights, personal=True, optional=True)}


class FedKD(Method[Params]):
    """Trains two models on each other, and averages compressed changes of the shared one."""

    name = "fedkd"
    title = "FedKD: FML with adaptive weights, matched features and compressed updates of the proxy"
    citation = "Wu et al. 2022, Nature Communications, arXiv:2108.13323"
    exchanges = (Exchange(down=DOWN, up={"change": Slot(LowRank)}),)
    closing = Exchange(down=DOWN)
    global_model = True
    global_of = "proxy"
    needs = frozenset({"predict", "logit-gradients", "proxy"})
    terms = frozenset({"cross-entropy", "distill"})
    shares_weights = True
    discloses = "the change of the proxy's weights in each round, from which training samples can be reconstructed"
    device_state = DeviceState
    reduction = Bag

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        if self.params.match_features:
            self.needs, self.terms = self.needs | {"features"}, self.terms | {"feature-match"}

    # -- on the device ----------------------------------------------------------------------------------------------

    def receive(self, device: OnDevice[DeviceState]) -> Stage[None]:
        """Bring the proxy to theta^t, and keep that."""
        base = received_base(device)
        if base is not None:
            yield WriteWeights(base, of="proxy")
            device.state = replace(device.state, round=device.job.round, base=base)

    def train(self, device: OnDevice[DeviceState]) -> Stage[None]:
        """Train both models, and W."""
        job, params, optim = device.job, self.params, device.job.optim
        device.down = {}
        adaptive = Adaptive(
            match=params.match_features,
            rate=params.match_rate,
            projection=device.state.projection,
            seed=(job.spec.seed, _STREAM, job.number),
        )
        rate = params.proxy_rate or optim.learning_rate
        trained: Adaptive = yield FitBoth(
            source=device.batches, coupling=adaptive, optim=optim, proxy_optim=replace(optim, learning_rate=rate)
        )
        device.state = replace(device.state, projection=trained.projection)

    def share(self, device: OnDevice[DeviceState]) -> Stage[Up]:
        """Send the change since theta^t; in round 0 the whole proxy."""
        base = device.state.base if device.job.round and device.state.round == device.job.round else None
        return {"change": (yield ReadChange(base, energy(self.params, device.job.spec, device.job.round), of="proxy"))}

    # -- on the coordinator -----------------------------------------------------------------------------------------

    def begin(self, spec: FederationSpec) -> State:
        """Start without weights."""
        return State()

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send the update to all devices; those that answered in the last round can use it."""
        return {"update": state.update}

    def down_to(self, state: State, at: ExchangeId, number: int) -> Down:
        """Send theta^t whole to a device that cannot compute it from the update."""
        return {} if number in state.holders else {"weights": state.weights}

    def shared_models(self, spec: FederationSpec, state: State, number: int) -> Mapping[MeasuredModel, Up]:
        """Return theta^t whole, which any device can take."""
        return {} if state.weights is None else {"global": {"weights": state.weights}}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Bag) -> State:
        """Average the changes, cut the mean, and follow it as devices do: from what travels."""
        ups = uploads.payloads(LowRank, "change")
        mean = mean_in_order(map(expanded, ups.values()))
        any_up = next(iter(ups.values()))
        if state.weights is None:
            values = mean if self.params.start == "equal" else expanded(ups[min(ups)]).astype(np.float32)
            return replace(state, weights=Weights(values=values, layout=any_up.layout))
        update = compressed(
            mean, [shape[:2] for shape in any_up.shapes], energy(self.params, spec, at.round), any_up.layout
        )
        coding = Coding(spec.encoding)
        received = coding.undo(coding.apply({"update": update}))["update"]
        values = moved(state.weights.values, received)  # type: ignore[arg-type]  # a LowRank, as before
        weights = Weights(values=values, layout=any_up.layout)
        return replace(state, weights=weights, update=update, holders=tuple(sorted(ups)))


def received_base(device: OnDevice[DeviceState]) -> Floats | None:
    """Return theta^t, or None in round 0.  Raises RemoteProtocolError for an update without its base on this device."""
    whole, update = device.received(Weights, "weights"), device.received(LowRank, "update")
    if whole is not None:
        return np.asarray(whole.values, np.float32)
    if update is None:
        return None
    state = device.state
    if state.base is None or state.round + 1 != device.job.round:
        raise RemoteProtocolError("knowledge", f"round {device.job.round}: an update of weights that this device lacks")
    return moved(state.base, update)


def moved(values: Floats, update: LowRank) -> Floats:
    """Return the weights after an update, the same on both sides."""
    found: Floats = (values.astype(np.float64) + expanded(update)).astype(np.float32)
    return found


def energy(params: Params, spec: FederationSpec, round_: int) -> float:
    """Return T_t = T_start + (T_end - T_start) (t + 1) / rounds."""
    return params.energy_start + (params.energy_end - params.energy_start) * (round_ + 1) / spec.rounds


def compressed(values: Floats, matrices: list[tuple[int, int]], share: float, layout: bytes) -> LowRank:
    """Return flat weights as matrices of these shapes, each cut to a share of its energy."""
    ends = np.cumsum([a * b for a, b in matrices])[:-1]
    arrays = [part.reshape(shape) for part, shape in zip(np.split(values, ends), matrices, strict=True)]
    return joined(matrices, [factorised(array, share) for array in arrays], layout)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adaptive(Coupling):
    """The two losses of FedKD, and W."""

    match: bool
    rate: float
    projection: Floats | None = None  # (d_own, d_proxy), None until drawn
    seed: tuple[int, ...] = ()

    @property
    def on_features(self) -> bool:
        """Whether features are matched."""
        return self.match

    def objectives(self, own: Seen, proxy: Seen) -> tuple[Objective, Objective]:
        """Return each model's loss, with the other's predictions as the target."""
        weight = 1 / doubt(own, proxy)
        for_own: Objective = (CrossEntropy(), Distill(logits=proxy.logits[None], weight=weight))
        for_proxy: Objective = (CrossEntropy(), Distill(logits=own.logits[None], weight=weight))
        if own.features is None or proxy.features is None:
            return for_own, for_proxy
        W = self._drawn(own, proxy)
        for_own += (FeatureMatch(targets=(proxy.features @ W.T)[None], weight=weight),)
        for_proxy += (FeatureMatch(targets=own.features[None], projection=W, weight=weight),)
        return for_own, for_proxy

    def after(self, own: Seen, proxy: Seen) -> Adaptive:
        """Return the coupling with W after a step on the match in both losses."""
        if own.features is None or proxy.features is None:
            return self
        W = self._drawn(own, proxy)
        gaps = proxy.features @ W.T - own.features  # (b, d_own)
        slope = gaps.T @ proxy.features * np.float32(2 * 2 / (gaps.size * doubt(own, proxy)))
        return replace(self, projection=W - np.float32(self.rate) * slope)

    def _drawn(self, own: Seen, proxy: Seen) -> Floats:
        """Return W; at first from U(-1/sqrt d_proxy, 1/sqrt d_proxy), as linear layers begin."""
        if self.projection is not None:
            return self.projection
        shape = tuple(needed(each.features, FEATURES).shape[1] for each in (own, proxy))
        bound = shape[1] ** -0.5
        return np.random.default_rng(self.seed).uniform(-bound, bound, shape).astype(np.float32)


def doubt(own: Seen, proxy: Seen) -> float:
    """Return S; the less certain both models are of the labels, the less they learn from each other."""
    return CrossEntropy().value(own) + CrossEntropy().value(proxy)
