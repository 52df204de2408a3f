"""What goes wrong in a scenario, put on the virtual clock: all of it follows from the seed.

A device is off for as long as anything keeps it off: its hours, a power cut, an empty battery, its end.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from edge_sdk.errors import RunFailed
from edge_sim.availability import DAY_S, read_window
from edge_sim.scenario import ScenarioTable

if TYPE_CHECKING:
    from edge_sim.virtual import VirtualDevice, VirtualFleet

_CUTS, _END, _LUCK = 21, 22, 23
"""What a device's random numbers are for: after the seed in the seed of a generator."""
_EMPTY = 1e-6
"""Share of a battery's capacity that counts as none."""


def impose(fleet: VirtualFleet, scenario: ScenarioTable, seed: int) -> None:
    """Put everything that will go wrong on the fleet's clock, before it runs."""
    clock = fleet.clock
    for at_s in scenario.broker_lost_at_s:
        if at_s >= clock.now_s:
            clock.at(at_s, lambda: fleet.hub.restart(scenario.broker_lost_for_s))
    for at_s in scenario.coordinator_lost_at_s:
        if at_s >= clock.now_s:
            fleet.power_cut("coordinator", at_s, scenario.coordinator_lost_for_s)
    clock.at(scenario.until_s, lambda: _give_up(fleet, scenario))
    for device in fleet.devices:
        device.fate = Fate(device, scenario, seed)
        device.fate.begin()


def _give_up(fleet: VirtualFleet, scenario: ScenarioTable) -> None:
    rounds = fleet.server.rounds
    raise RunFailed(
        f"the simulated fleet was not done after {scenario.until_days:g} virtual days (scenario.until_days): the "
        f"coordinator is {rounds.phase.value} in round {rounds.place.round} of {rounds.policy.rounds}, and "
        f"{sum(device.powered for device in fleet.devices)} of {len(fleet.devices)} devices are switched on"
    )


class Fate:
    """What becomes of one device."""

    def __init__(self, device: VirtualDevice, scenario: ScenarioTable, seed: int) -> None:
        self._device, self._clock = device, device.clock
        self._scenario, self._seed = scenario, seed
        self._hardships = device.device.hardships
        self._keeping_off: set[str] = set()
        self._attempts: Counter[tuple[int, int]] = Counter()
        self._checks = 0
        """Looks at the battery that were planned: only the last one counts."""

    def begin(self) -> None:
        """Plan what can be planned."""
        if self._hardships.available is not None:
            self._keep_hours(self._hardships.available)
        if self._hardships.fails_after_s is not None:
            lives_s = self._rng(_END).exponential(self._hardships.fails_after_s)
            self._clock.at(lives_s, lambda: self._off("broken"))
        if self._hardships.power_cuts_per_day:
            self._next_cut(self._rng(_CUTS), 0.0)

    # -- from exchange to exchange ----------------------------------------------------------------------------------

    def slow_factor(self, place: tuple[int, int]) -> float:
        """How many times as long this exchange takes as it should."""
        slow = self._hardships.slow_share and self._draw(place)[0] < self._hardships.slow_share
        return self._hardships.slow_factor if slow else 1.0

    def computing(self, place: tuple[int, int], took_s: float) -> None:
        """An exchange is computed, which takes so long."""
        if self._hardships.dropout:
            _, dropped, when = self._draw(place)
            if dropped < self._hardships.dropout:
                lost_at_s = self._clock.now_s + when * took_s
                self._clock.at(lost_at_s, lambda: self._cut("drop-out", self._hardships.dropout_s))
        self._attempts[place] += 1
        self.look_at_battery()

    def _draw(self, place: tuple[int, int]) -> tuple[float, float, float]:
        """In [0, 1): whether it is slow, whether it drops out, and when; new at each attempt at an exchange."""
        slow, dropped, when = self._rng(_LUCK, *place, self._attempts[place]).random(3)
        return float(slow), float(dropped), float(when)

    # -- at its own times -------------------------------------------------------------------------------------------

    def _keep_hours(self, available: str) -> None:
        window, starts_s = read_window(available, "fleet.available"), self._scenario.starts_s
        if not window.holds(self._clock.now_s + starts_s):
            self._off("hours")

        def plan() -> None:
            at_s, opens = window.next_edge(self._clock.now_s, starts_s)
            if at_s <= self._scenario.until_s:
                self._clock.at(at_s, lambda: pass_edge(opens))

        def pass_edge(opens: bool) -> None:
            (self._on if opens else self._off)("hours")
            plan()

        plan()

    def _next_cut(self, rng: np.random.Generator, last_s: float) -> None:
        """Cuts come by a Poisson process; those of before a resumed run began are passed over."""
        gap_s = DAY_S / self._hardships.power_cuts_per_day
        at_s = last_s + rng.exponential(gap_s)
        while at_s < self._clock.now_s:
            at_s += rng.exponential(gap_s)

        def strike() -> None:
            self._cut("power cut", self._hardships.power_cut_s)
            self._next_cut(rng, at_s)

        if at_s <= self._scenario.until_s:
            self._clock.at(at_s, strike)

    def look_at_battery(self) -> None:
        """Be there when it runs out, if all goes on as it does now."""
        empty_at_s = self._device.hardware.empty_at_s(self._clock.now_s)
        if empty_at_s is not None and empty_at_s <= self._scenario.until_s:
            self._checks += 1
            mine = self._checks
            self._clock.at(empty_at_s, lambda: self._check_battery() if mine == self._checks else None)

    def _check_battery(self) -> None:
        hardware, now_s = self._device.hardware, self._clock.now_s
        left = hardware.left_share(now_s)
        if left is None or not self._device.powered:
            return
        if left > _EMPTY:
            self.look_at_battery()
            return
        self._off("battery")
        full_at_s = hardware.full_at_s(now_s)
        if full_at_s is not None and full_at_s <= self._scenario.until_s:
            self._clock.at(full_at_s, lambda: self._on("battery"))

    # -- the switch -------------------------------------------------------------------------------------------------

    def _cut(self, cause: str, for_s: float) -> None:
        if cause not in self._keeping_off:
            self._off(cause)
            self._clock.at(self._clock.now_s + for_s, lambda: self._on(cause))

    def _off(self, cause: str) -> None:
        self._keeping_off.add(cause)
        self._device.excused = True
        if self._device.powered:
            self._device.power_off()

    def _on(self, cause: str) -> None:
        self._keeping_off.discard(cause)
        if self._keeping_off:
            return
        self._device.excused = False
        if not self._device.powered and not self._device.over:
            self._device.power_on()
            self.look_at_battery()

    def _rng(self, purpose: int, *rest: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, purpose, self._device.device.kit.number, *rest])
