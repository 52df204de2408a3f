"""Decides between two batches whether a device may train now, and counts the cost of training."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import suppress

from edge_sdk.boards import profiles
from edge_sdk.policy.energy import EnergyCounter, PowerMeter, TrainingCost
from edge_sdk.policy.policy import CONDITIONS, UNKNOWN, Objection, Policy
from edge_sdk.policy.sensors import LinuxSensors, Sensors
from edge_sdk.protocol.frames.leaves import one_line

log = logging.getLogger(__name__)

CHECK_S = 0.1
"""Seconds between two readings of the sensors during training, which stops within this time plus one batch."""
CHECK_AGAIN_S = 0.5
"""Seconds between two readings during a pause."""
SETTLE_S = 2.0
"""Conditions must hold this long before training resumes (debounce)."""


class TrainingGate:
    """A policy, applied to the training of one device.  Times are those of the caller's clock."""

    def __init__(
        self,
        policy: Policy,
        sensors: Sensors,
        energy: EnergyCounter,
        warn: Callable[[str], None] = log.warning,
    ) -> None:
        """warn: receives one line for each condition whose sensor the machine lacks."""
        self.policy = policy
        self._sensors, self._energy, self._warn = sensors, energy, warn
        self._unknown: set[str] = set()
        self._check_at_s = float("-inf")
        self._objection: Objection | None = None
        self._held_since_s: float | None = None
        """When all conditions began to hold again, while training still waits for SETTLE_S."""
        self._round = -1
        self._round_cost = TrainingCost()
        self._unreported = TrainingCost()
        self._batch_s = 0.0
        """When the last batch began."""
        self._read_at_s: float | None = None
        """When the energy was last read, or None while the device does not train."""

    def objection(self, now_s: float, round_: int) -> Objection | None:
        """Return why the device may not train now, or None if it may.  round_: the current round, counted from 0."""
        if round_ != self._round:
            self._round, self._round_cost, self._check_at_s = round_, TrainingCost(), now_s
            if self._objection is not None and self._objection.round is not None:
                self._objection = None
        if now_s >= self._check_at_s:
            self._objection = self._settled(self._budget() or self._condition(), now_s)
            self._check_at_s = now_s + (CHECK_S if self._objection is None else CHECK_AGAIN_S)
        return self._objection

    def begin(self, now_s: float) -> None:
        """Note that a batch begins."""
        self._batch_s = now_s
        if self._read_at_s is None:
            self._energy.begin(now_s)
            self._read_at_s = now_s

    def end(self, now_s: float) -> None:
        """Note that the batch is computed, and count its time."""
        self._count(TrainingCost(max(0.0, now_s - self._batch_s)))
        if self._read_at_s is not None and now_s >= self._read_at_s + CHECK_S:
            self._count_energy(now_s)

    def rest(self, now_s: float) -> None:
        """Note that training pauses until the next batch begins."""
        if self._read_at_s is not None:
            self._count_energy(now_s)
            self._read_at_s = None

    def take_cost(self) -> TrainingCost:
        """Return the cost of training since the last call; call `rest` first."""
        cost, self._unreported = self._unreported, TrainingCost()
        source = self._energy.source if cost.energy_j else ""
        celsius: float | None = None
        with suppress(Exception):  # sensors of the app's own must not end the training
            celsius = self._sensors.temperature_c()
        return TrainingCost(cost.busy_s, cost.energy_j, source, celsius)

    def _count_energy(self, now_s: float) -> None:
        before_j = self._energy.joules
        self._energy.advance(now_s)
        self._count(TrainingCost(energy_j=self._energy.joules - before_j))
        self._read_at_s = now_s

    def _count(self, cost: TrainingCost) -> None:
        self._round_cost, self._unreported = _sum(self._round_cost, cost), _sum(self._unreported, cost)

    def _settled(self, found: Objection | None, now_s: float) -> Objection | None:
        """Keep the last objection until none was found for SETTLE_S."""
        if found is not None:
            self._held_since_s = None
            return found
        if self._objection is None:
            return None
        if self._held_since_s is None:
            self._held_since_s = now_s
        return self._objection if now_s - self._held_since_s < SETTLE_S else None

    def _condition(self) -> Objection | None:
        for name, check in CONDITIONS.items():
            why = "this machine has no sensor for it"
            try:
                found = check(self.policy, self._sensors, self._objection is not None)
            except Exception as error:  # noqa: BLE001  # sensors of the app's own must not end the training
                found, why = UNKNOWN, f"its sensor failed with {type(error).__name__}: {error}"
            if isinstance(found, Objection):
                return found
            if found is UNKNOWN and name not in self._unknown:
                self._unknown.add(name)
                self._warn(one_line(f"policy: {name} is ignored: {why}"))
        return None

    def _budget(self) -> Objection | None:
        time_s, energy_j, spent = self.policy.round_time_s, self.policy.round_energy_j, self._round_cost
        if time_s is not None and spent.busy_s >= time_s:
            return Objection("time-budget", f"the round's {time_s:g} s of training are used up", self._round)
        if energy_j is not None and spent.energy_j >= energy_j:
            return Objection("energy-budget", f"the round's {energy_j:g} J are used up", self._round)
        return None


def _sum(left: TrainingCost, right: TrainingCost) -> TrainingCost:
    return TrainingCost(left.busy_s + right.busy_s, left.energy_j + right.energy_j)


def training_gate(
    policy: Policy, sensors: Sensors | None, meter: PowerMeter | None, board: str, warn: Callable[[str], None]
) -> TrainingGate:
    """Return the gate of a policy.  sensors: by default Linux's files.  board: its name, or "" to detect it."""
    found = sensors or LinuxSensors(warn=warn)
    here = functools.cache(lambda: profiles.board_here(warn, board))  # cached, so that it warns only once
    return TrainingGate(policy, found, EnergyCounter(found, meter, lambda: here().busy_w, warn), warn)


# -- Which pauses of training the coordinator should know of ----------------------------------------------------------

TELL_AFTER_S = 5.0
"""A pause within an exchange is reported after this many seconds; a shorter one only delays the upload."""
PAUSED = Objection("paused", "paused by its owner")


class PauseReport:
    """Decides when to report an objection to the coordinator.

    At once, if the exchange has not begun or the rest of the round is cancelled; otherwise after TELL_AFTER_S.
    """

    def __init__(self) -> None:
        self._since_s: float | None = None

    def to_tell(self, objection: Objection | None, now_s: float, *, fresh: bool) -> Objection | None:
        """Return the objection to report, or None if the device takes part.  fresh: the exchange has not begun."""
        if objection is None:
            self._since_s = None
            return None
        if self._since_s is None:
            self._since_s = now_s
        at_once = fresh or objection.round is not None
        return objection if at_once or now_s - self._since_s >= TELL_AFTER_S else None
