"""The optimiser's settings, the schedule of its learning rate, and the part of the model that a fit trains."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import numpy as np

from edge_sdk.protocol.messages import FederationSpec, TrainSpec

ScheduleKind: TypeAlias = Literal["constant", "step", "exponential", "cosine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How a learning rate falls from round to round; the rate stays the same within a round.

    Any optimiser can follow one: that of devices (`Optim`), and one that a method has on the coordinator.
    """

    kind: ScheduleKind = "constant"
    """`step` multiplies by `factor` after every `every_rounds` rounds, `exponential` after each round.  `cosine`
    follows half a cosine from the first rate to the floor in `rounds` rounds, and then stays there."""
    first: float
    """The rate of round 0."""
    factor: float = 1.0
    every_rounds: int = 1
    rounds: int = 1
    floor: float = 0.0
    """The minimum rate."""

    def rate(self, round_: int) -> float:
        """Return the learning rate of a round; the first is round 0."""
        if self.kind == "step":
            return max(self.floor, self.first * self.factor ** (round_ // self.every_rounds))
        if self.kind == "exponential":
            return max(self.floor, self.first * self.factor**round_)
        if self.kind == "cosine":
            left = (1 + math.cos(math.pi * min(round_ / self.rounds, 1))) / 2
            return self.floor + (self.first - self.floor) * left
        return self.first

    def first_zero(self, rounds: int) -> int | None:
        """Return the first of `rounds` rounds whose rate is 0 in f4, so that training has no effect, or None."""
        found = bisect_left(range(rounds), 1, key=lambda round_: int(np.float32(self.rate(round_)) == 0))
        return found if found < rounds else None


Part: TypeAlias = Literal["all", "body", "head"]
"""The part of a model that a fit trains: all of it, all before its last layer, or its last layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optim:
    """The optimiser's settings.  Its moments belong to the model and persist between fits.

    A step clips the gradient, then adds the decay, then moves, as torch.optim after torch.nn.utils.clip_grad_norm_.
    """

    kind: str = "adam"
    """The optimiser: sgd or adam (epsilon 1e-8)."""
    learning_rate: float = 1e-3
    momentum: float = 0.0
    """The momentum of sgd."""
    beta1: float = 0.9
    beta2: float = 0.999
    """The decay of adam's first and second moment."""
    weight_decay: float = 0.0
    """The gradient gains this times the weights (L2, as in torch.optim.SGD and Adam)."""
    decay_all: bool = False
    """Whether biases, normalisation parameters and the scale of a cosine head also decay."""
    clip_norm: float = 0.0
    """The maximum L2 norm of the gradient over all trained parameters, before weight decay is added; 0 disables
    clipping."""

    def continues(self, before: Optim) -> bool:
        """Return whether moments from `before` stay valid under these settings; the learning rate may differ."""
        return self._of_moments == before._of_moments

    @property
    def _of_moments(self) -> tuple[object, ...]:
        return self.kind, self.momentum, self.beta1, self.beta2


def schedule_of(train: TrainSpec, rounds: int) -> Schedule:
    """Return the schedule of the devices' learning rate in a federation of this number of rounds."""
    return Schedule(
        kind=cast("ScheduleKind", train.schedule),
        first=train.learning_rate,
        factor=1.0 if train.schedule_factor is None else train.schedule_factor,
        every_rounds=train.schedule_every_rounds or 1,
        rounds=train.schedule_rounds or rounds,
        floor=train.schedule_floor,
    )


def optim_of(spec: FederationSpec, round_: int) -> Optim:
    """Return the optimiser that a federation prescribes for a round.  The closing exchange has the last round's."""
    train = spec.train
    return Optim(
        kind=train.optimiser,
        learning_rate=schedule_of(train, spec.rounds).rate(min(round_, spec.rounds - 1)),
        momentum=train.momentum,
        beta1=train.beta1,
        beta2=train.beta2,
        weight_decay=train.weight_decay,
        decay_all=train.decay_all,
        clip_norm=train.clip_norm,
    )
