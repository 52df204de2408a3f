"""FD: devices average their mean predictions by class, and learn from those of the others.

Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under
Non-IID Private Data", 2018 (arXiv:1811.11479), Algorithm 1 without its data augmentation.

    train    CE(y, f(x)) + gamma CE(F^y, f(x))        F^y: the others' mean softmax output for the class of x
    share    the mean softmax output of each class, in one pass in inference mode after training
    reduce   for each device the mean of those of the other holders of its classes      equation 4

The paper divides by M - 1 for M devices that all hold all classes; here M counts the holders of the class that
answered, and a class without another holder is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np

from edge_sdk.methods.contract.base import Down, Exchange, Method, OnDevice, Slot, Stage, Up, as_sent
from edge_sdk.methods.contract.description import Range
from edge_sdk.methods.contract.requests import ClassMeans
from edge_sdk.objectives import ClassTarget, CrossEntropy, Objective
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Count, Packed, wire
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import Bag, mean_over_holders, mean_over_others


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FD; the paper does not state its gamma."""

    gamma: Annotated[float, Range(0, 1000)] = 0.1
    """gamma: weight of the cross-entropy to the others' mean prediction of the class.  0 gives local training."""
    weighting: Literal["uniform", "samples"] = "uniform"
    """The mean over holders: `uniform`, eq. 4, or by their `samples` of the class."""


@wire("fd-coordinator-state")
@dataclass(frozen=True, slots=True)
class State:
    """The class targets for the next round."""

    targets: Mapping[str, ClassRows] = field(default_factory=dict)
    """The targets by device number, for devices that answered and share a class with another holder."""
    everybody: ClassRows | None = None
    """The mean over all holders, for devices that did not answer and so have no predictions in it."""
    rounds: Count = 0
    answered: Annotated[tuple[int, ...], Packed(2**20)] = ()


class FD(Method[Params]):
    """Works with any model that gives logits; each device is left out of its own target."""

    name = "fd"
    title = "FD: mean predictions by class, of the others, as soft labels"
    citation = "Jeong et al. 2018, arXiv:1811.11479"
    exchanges = (
        Exchange(
            down={"targets": Slot(ClassRows, personal=True, optional=True, probabilities=True)},
            up={"predictions": Slot(ClassRows, probabilities=True)},
        ),
    )
    terms = frozenset({"cross-entropy", "class-target"})
    holders_wanted = 3
    discloses = "which classes the device holds, how its model confuses them, and with weighting by samples how many"

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train towards the mean predictions of the other devices."""
        yield from device.fit(loss(self.params, device.received(ClassRows, "targets")))

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Send the mean prediction of each class."""
        means: ClassRows = yield ClassMeans("probabilities")
        return {"predictions": as_sent(means, self.params.weighting)}

    def begin(self, spec: FederationSpec) -> State:
        """Start without predictions: the first round trains without targets."""
        return State(rounds=spec.rounds)

    def down_to(self, state: State, at: ExchangeId, number: int) -> Down:
        """Send the mean of the others; the closing exchange does not need it."""
        if at.round == state.rounds:
            return {}
        return {"targets": state.targets.get(str(number)) if number in state.answered else state.everybody}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Bag) -> State:
        """Compute the mean over holders, once over all of them and once without each of them."""
        ups = uploads.payloads(ClassRows, "predictions")
        others = zip(ups, mean_over_others(list(ups.values())), strict=True)
        return State(
            targets={str(number): rows for number, rows in others if rows is not None},
            everybody=mean_over_holders(list(ups.values())),
            answered=tuple(ups),
            rounds=state.rounds,
        )


def loss(params: Params, targets: ClassRows | None) -> Objective:
    """Return the loss with targets; plain cross-entropy without targets."""
    if targets is None or params.gamma == 0:
        return (CrossEntropy(),)
    rows = targets.rows.astype(np.float32)
    return (CrossEntropy(), ClassTarget(classes=targets.classes.astype(np.int64), rows=rows, weight=params.gamma))
