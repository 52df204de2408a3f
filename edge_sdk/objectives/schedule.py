"""Schedules of learning rates: the rate of each round, as one pure function."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

ScheduleKind: TypeAlias = Literal["constant", "step", "exponential", "cosine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How a learning rate falls from round to round; the rate stays the same within a round.

    Any optimiser can follow one: that of devices (`Optim`), and one that a method has on the coordinator.
    """

    kind: ScheduleKind = "constant"
    """`step`: times `factor` after every `every_rounds` rounds; `exponential`: times `factor` after each round;
    `cosine`: along half a cosine, from the first rate to the floor in `rounds` rounds, and there it stays."""
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
