"""FedKF: devices learn from their own data, and without data from a teacher, the mean of all devices' newest weights.

Zhou et al., "Handling Data Heterogeneity in Federated Learning via Knowledge Fusion", IEEE Internet of Things Journal
2023 (arXiv:2207.11447), Algorithm 1.

    train     CE(y, f(x)) + gamma KL(teacher(x_G) || f(x_G))      equation 7; x_G is made up by a generator that stays
                                                                  on the device
    reduce    w^S, the mean over devices that answered (ACA), from which all continue; w^T, the mean over all slots
              (OCA), which is their teacher and the result        s5 to s7

Nothing came in round 0, which is plain training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from edge_sdk.methods.contract.averaging import DISCLOSES, DOWN, UP, Averaging, over_slots, slots, write_weights
from edge_sdk.methods.contract.base import Down, Exchange, OnDevice, Slot, Stage
from edge_sdk.methods.contract.description import Range, SlotAge, Start, Weighting
from edge_sdk.methods.contract.requests import Evaluate, MeasuredModel
from edge_sdk.methods.parts.fedkf_term import DataFree
from edge_sdk.objectives import CrossEntropy, Objective
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Count, wire
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import Change, SlotSum

LEAST_CLASS_ENTROPY = 0.3
"""The entropy of generated samples over classes, of 1, below which the generator counts as collapsed (W19)."""


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedKF."""

    gamma: Annotated[float, Range(0, 1000, paper="1, and 0.001 for CIFAR-10 with alpha = 1")] = 1.0
    """gamma, the weight of the teacher's predictions on generated samples.  0: FedAvg with slots."""
    certain: Annotated[float, Range(0, 1000, paper="0.1 or 0.01")] = 0.1
    """lambda_1: the weight of the generator's loss for samples on which the teacher is certain."""
    active: Annotated[float, Range(0, 1000, paper="0.1")] = 0.1
    """lambda_2: the weight of the generator's loss for samples with large features."""
    raw_loss: bool = False
    """Whether the generator's loss sums over classes and features, as in the paper; if not, it is scale-free, as in
    its code."""
    adversarial: bool = False
    """Whether the generator also looks for samples on which device and teacher differ, as the code does for CIFAR."""
    generator: Literal["board", "paper"] = "board"
    """The generator's size.  `board` has an eighth of the channels of `paper`."""
    noise_dim: Annotated[int, Range(1, 4096, paper="1000 or 100")] = 32
    """The number of noise values behind a sample; the paper's code takes 1000 for CIFAR and 100 for EMNIST."""
    generator_rate: Annotated[float, Range(1e-6, 1, paper="0.001")] = 0.001
    """Learning rate of the generator's Adam."""
    warm: bool = True
    """Whether a device's generator is kept from round to round, as in the code; the paper's restarts in each."""
    weighting: Weighting = "samples"
    """How devices are weighted in both means: by their `samples`, or `uniform`."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's model, with `equal` from equal weights."""
    max_slot_age: SlotAge = 0
    """Rounds after which the upload of an absent device no longer counts; 0 keeps it."""
    slots: Literal["seen", "all"] = "seen"
    """Whose slots are in w^T: those of devices that answered, as in the code, or of `all` devices that have joined, as
    in the paper, where a slot begins with w_0.  Here w_0 is the first mean, from which all devices continue."""


@wire("fedkf-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The mean w^S and the slots, whose mean is w^T, or None before the first round: the coordinator has no model."""

    student: Weights | None = None
    rounds: Count
    slots: SlotSum | None = None
    first: Weights | None = None
    """With `slots` = all: w_0, with which a slot begins."""
    unseen: Count = 0
    """With `slots` = all: what the devices without an upload in a slot weigh together."""


class FedKF(Averaging[Params]):
    """Keeps two means: devices continue from one, and learn from the other."""

    name = "fedkf"
    title = "FedKF: FedAvg, with the mean of everybody's newest weights as teacher, on samples that devices make up"
    citation = "Zhou et al. 2023, IEEE IoT Journal, arXiv:2207.11447"
    exchanges = (Exchange(down={**DOWN, "teacher": Slot(Weights, optional=True)}, up=UP),)
    needs = frozenset({"predict", "logit-gradients", "features", "weights"})
    terms = frozenset({"cross-entropy", "data-free"})
    discloses = DISCLOSES
    cautions = ("W7: a generator with more weights than the model; refused without pictures",)

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        self.caching = slots(self.params, self.params.max_slot_age)

    def warnings(self, spec: FederationSpec) -> tuple[str, ...]:
        """Return warning W7."""
        if self.params.generator != "paper":
            return ()
        linear = 128 * (self.params.noise_dim + 1)
        text = (
            f"method.generator = paper: on each device a generator of {linear:,} weights for every 16 pixels, and "
            "222,000 more, which can cost more than the model; board has an eighth of its channels (W7)"
        )
        return (text,)

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Take over w^S; if w^T is measured first, take over w^S after that."""
        if "teacher" not in device.down or not device.job.evaluates_last:
            yield from super().receive(device)

    def measure(self, device: OnDevice[Any]) -> Stage[None]:
        """Measure w^T, which is the result so far."""
        yield from write_weights(device, "teacher")
        yield Evaluate(device.job.round, model="global")
        if "teacher" in device.down:
            yield from write_weights(device)

    def arrives(self, *, closing: bool) -> MeasuredModel:  # of Method
        """Return that w^T, the mean over slots, is measured."""
        return "global"

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train on equation 7; if no teacher was received, the two means are equal."""
        teacher = device.received(Weights, "teacher" if "teacher" in device.down else "weights")
        yield from device.fit(loss(teacher, self.params, device.job.spec.train.batch_size))

    def without_effect(self, spec: FederationSpec, newest: Mapping[str, float]) -> tuple[str, ...]:
        """Warn of a generator whose samples cover only few classes, because they teach nothing about the others."""
        found = newest.get("generated_class_entropy", 1.0)
        if found >= LEAST_CLASS_ENTROPY:
            return ()
        return (f"the generated samples are of few classes (entropy {found:.2f} of 1); lower method.certain",)

    def begin(self, spec: FederationSpec) -> State:
        """Start without weights: devices begin with their own."""
        return State(rounds=spec.rounds)

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send both means, or one if they are equal; at the end send the mean over all slots."""
        teacher = self.teacher(state)
        if state.student is None or teacher is None or at.round == state.rounds:
            return {"weights": teacher}
        if np.array_equal(state.student.values, teacher.values):
            return {"weights": teacher}
        return {"weights": state.student, "teacher": teacher}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Change) -> State:
        """Compute both means; in the first round give all devices a common start."""
        student = self.mean(uploads.now, state.student)
        slots_now = self.slots_after(state.slots, at, uploads, student.layout)
        after = State(student=student, rounds=state.rounds, slots=slots_now)
        if self.params.slots == "seen":
            return after
        joined = self.registered.samples if self.params.weighting == "samples" else self.registered.devices
        seen = slots_now.count if slots_now else 0
        return replace(after, first=state.first or student, unseen=max(joined - seen, 0))

    def teacher(self, state: State) -> Weights | None:
        """Return w^T: the mean over slots, in which a device without an upload counts with w_0."""
        if not state.slots or not state.unseen or state.first is None:
            return over_slots(state.slots, state.student)
        total = state.slots.sum().add(0, replace(state.first, count=state.unseen))
        return Weights(values=total.mean_values(), layout=state.slots.layout)


def loss(teacher: Weights | None, params: Params, samples: int = 0) -> Objective:
    """Return equation 7; before the first mean there is no teacher, and its term is left out.

    samples: B, the noise vectors of a step, also on a device with fewer samples; 0 takes its number of samples.
    """
    if teacher is None or params.gamma == 0:
        return (CrossEntropy(),)
    imitation = DataFree(
        teacher=np.asarray(teacher.values, np.float32),
        generator=params.generator,
        noise_dim=params.noise_dim,
        samples=samples,
        rate=params.generator_rate,
        certain=params.certain,
        active=params.active,
        raw=params.raw_loss,
        adversarial=params.adversarial,
        warm=params.warm,
        weight=params.gamma,
    )
    return (CrossEntropy(), imitation)
