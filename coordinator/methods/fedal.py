"""FedAL (coordinator half).

Han, Shi and Huang, "FedAL: Black-Box Federated Knowledge Distillation Enabled by Adversarial Learning", IEEE JSAC
2024, Algorithm 1.  Each iteration: the mean of the others' logits for each device; one ascent step of the discriminator
on the contributors; and for each contributor the gradient of U_n at its logits, which it descends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Annotated, Any, cast

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregate import Bag, InBag, mean_in_order
from coordinator.methods.base import At
from edge_sdk.errors import EmptyRound, MissingExtra, RunFailed
from edge_sdk.protocol.contracts.fedal import FEDAL, FedALParams
from edge_sdk.protocol.contracts.fedmd_lf import TransferParams
from edge_sdk.protocol.knowledge import LogitGradients, Payload, PublicLogits
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Count, Tensor, wire
from edge_sdk.protocol.wires import Contract

Layer = Annotated[NDArray[np.float32], Tensor(("f4",), 1)]


@wire("fedal-feedback")
@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What the last iteration has for one device."""

    mean: PublicLogits | None = None
    adversarial: LogitGradients | None = None


@wire("fedal-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class FedALCoordinatorState:
    """The discriminator, flat, and the feedback that waits to go out."""

    discriminator: tuple[Layer, ...] = ()  # weights and biases in turn, flattened
    moments: tuple[Layer, ...] = ()
    steps: Count = 0
    mean_u: float = 0.0
    feedback: Mapping[str, Feedback] = field(default_factory=dict)
    """By device number."""


class FedALCoordinator(InBag):
    """Trains the discriminator; everything that goes down is personal."""

    def __init__(self, contract: Contract[Any] = FEDAL) -> None:
        """Of FedAL, or of FedMD-LF, which has no discriminator."""
        self.contract = contract

    def init(self, spec: FederationSpec) -> FedALCoordinatorState:
        """A seeded discriminator with one output for each slot."""
        params = self.contract.read(spec.params)
        if params.adversarial == 0:
            return FedALCoordinatorState()
        module = _discriminator()
        _check_device(params.device)
        layers = module.initial_weights(spec.classes, params.max_devices, spec.seed)
        return FedALCoordinatorState(discriminator=tuple(layer.reshape(-1) for layer in layers))

    def common(self, state: FedALCoordinatorState, at: At) -> Mapping[str, Payload]:
        """Nothing: the target leaves each device out, so it differs."""
        return {}

    def personal(self, state: FedALCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """The feedback of the iteration before; none for the first exchange, and none for a device that missed it."""
        feedback = state.feedback.get(str(number)) if at.exchange > 0 else None
        if feedback is None:
            return {}
        roles = {"mean": feedback.mean, "adversarial": feedback.adversarial}
        return {role: payload for role, payload in roles.items() if payload is not None}

    def finish(
        self, spec: FederationSpec, state: FedALCoordinatorState, at: At, aggregate: Bag
    ) -> FedALCoordinatorState:
        """One iteration of the transfer stage; the last exchange of a round only confirms."""
        params = self.contract.read(spec.params)
        if not len(aggregate):
            raise EmptyRound(f"round {at.round}, exchange {at.exchange}: nothing arrived")
        if at.exchange == params.tau:
            return _without_feedback(state)
        ups = [(up.number, cast("PublicLogits", up.knowledge["logits"])) for up in aggregate]
        means = _targets(ups, params)
        if params.adversarial == 0:
            gradients: dict[int, LogitGradients] = {}
        else:
            state, gradients = _adversarial(state, ups, params, spec)
        feedback = {
            str(number): Feedback(mean=means.get(number), adversarial=gradients.get(number)) for number, _ in ups
        }
        return FedALCoordinatorState(
            discriminator=state.discriminator,
            moments=state.moments,
            steps=state.steps,
            mean_u=state.mean_u,
            feedback=feedback,
        )


def _without_feedback(state: FedALCoordinatorState) -> FedALCoordinatorState:
    return FedALCoordinatorState(
        discriminator=state.discriminator, moments=state.moments, steps=state.steps, mean_u=state.mean_u
    )


def _targets(ups: list[tuple[int, PublicLogits]], params: TransferParams) -> dict[int, PublicLogits]:
    """For each contributor the mean it learns from: of the others (equations 4-6), or of all (line 15)."""
    batch = ups[0][1].batch
    if params.target == "all":
        mean = PublicLogits(values=mean_in_order(up.values for _, up in ups), batch=batch, contributors=len(ups))
        return {number: mean for number, _ in ups}
    if len(ups) < 2:
        return {}  # there are no others to learn from
    total = np.sum([up.values for _, up in ups], axis=0, dtype=np.float64)  # (b, k), in number order
    others = len(ups) - 1
    return {
        number: PublicLogits(values=((total - up.values) / others).astype(np.float32), batch=batch, contributors=others)
        for number, up in ups
    }


def _adversarial(
    state: FedALCoordinatorState, ups: list[tuple[int, PublicLogits]], params: FedALParams, spec: FederationSpec
) -> tuple[FedALCoordinatorState, dict[int, LogitGradients]]:
    """Train the discriminator by one step, and differentiate."""
    module = _discriminator()
    slots = np.array([number for number, _ in ups], np.int64)  # (n,)
    if int(slots.max()) >= params.max_devices:
        raise RunFailed(
            f"device number {slots.max()}: the discriminator has {params.max_devices} slots; raise max_devices"
        )
    how = module.Training(
        temperature=params.discriminator_temperature,
        rate=params.discriminator_rate,
        optimiser=params.discriminator_optimiser,
        device=params.device,
    )
    shapes = module.layer_shapes(spec.classes, params.max_devices)
    weights = [flat.reshape(shape) for flat, shape in zip(state.discriminator, shapes, strict=True)]
    moments = [
        flat.reshape(shape) for flat, shape in zip(state.moments, (shapes + shapes)[: len(state.moments)], strict=True)
    ]
    logits = np.stack([up.values.astype(np.float32) for _, up in ups])  # (n, b, k)
    before = module.State(tuple(weights), tuple(moments), state.steps)
    outcome = module.iterate(before, logits, slots, how)
    gradients = clip(outcome.gradients, params.gradient_clip)
    after = FedALCoordinatorState(
        discriminator=tuple(w.reshape(-1) for w in outcome.state.weights),
        moments=tuple(m.reshape(-1) for m in outcome.state.moments),
        steps=outcome.state.steps,
        mean_u=outcome.mean_u,
    )
    batch = ups[0][1].batch
    return after, {n: LogitGradients(values=gradients[i], batch=batch) for i, (n, _) in enumerate(ups)}


def clip(gradients: NDArray[np.float32], most: float) -> NDArray[np.float32]:
    """Each sample's gradient (..., k), shortened to norm `most`; 0: as it is."""
    if most == 0:
        return gradients
    norms = np.sqrt((gradients.astype(np.float64) ** 2).sum(axis=-1, keepdims=True) + 1e-12)
    clipped: NDArray[np.float32] = (gradients * np.minimum(1.0, most / norms)).astype(np.float32)
    return clipped


def _check_device(name: str) -> None:
    from edge_sdk.models.torch_device import check_device  # noqa: PLC0415  # torch only where a method trains

    check_device(name, "method.device")


def _discriminator() -> ModuleType:
    try:
        from coordinator.methods import torch_discriminator  # noqa: PLC0415  # torch only where a method trains
    except ImportError:
        raise MissingExtra("torch", "coordinator", "FedAL's discriminator") from None
    return torch_discriminator


METHOD = FedALCoordinator()
