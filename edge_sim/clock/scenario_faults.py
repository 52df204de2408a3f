"""The faults of a simulated run, scheduled on the virtual clock.  The federation's seed determines all of them.

A device is off while at least one cause keeps it off: its daily hours, a drop-out, a power cut, an empty battery,
or a defect.  This module knows the fleet and its devices by protocols, so that virtual_fleet.py can import it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from coordinator.serving.server import Server
from edge_sdk.errors import RunFailed
from edge_sdk.transport.memory.hub import Hub
from edge_sim.clock.clock import VirtualClock
from edge_sim.config.device_conditions import DAY_S, read_window
from edge_sim.config.scenario import ScenarioTable
from edge_sim.fleet.fleet import Device
from edge_sim.fleet.hardware import Hardware

_POWER_CUTS, _DEFECT, _EXCHANGE = 21, 22, 23
"""Purposes of a device's random numbers; a generator's seed is the federation's seed, followed by one of these."""
_EMPTY = 1e-6
"""A battery whose charge is at most this share of its capacity counts as empty."""


class SwitchableDevice(Protocol):
    """The interface of a device that its faults need: its state, and its power switch."""

    device: Device
    hardware: Hardware
    powered: bool
    excused: bool
    """Whether the run may end without this device, because a fault keeps it off."""
    faults: DeviceFaults | None

    @property
    def clock(self) -> VirtualClock:
        """The clock of the run."""

    @property
    def over(self) -> bool:
        """Whether its part in the run has ended."""

    def power_on(self) -> None:
        """Start the device again from its store."""

    def power_off(self) -> None:
        """Stop the device; its unfinished computation is lost."""


class FaultyFleet(Protocol):
    """The interface of a fleet that the faults of a scenario need."""

    clock: VirtualClock

    @property
    def hub(self) -> Hub:
        """The broker, or the coordinator's side of it."""

    @property
    def devices(self) -> Sequence[SwitchableDevice]:
        """The devices in this process."""

    def powered(self) -> tuple[int, int]:
        """(number of devices switched on, number of devices) of the run."""

    @property
    def server(self) -> Server:
        """The coordinator."""

    def lose_coordinator(self, at_s: float, for_s: float) -> None:
        """Cut the coordinator's power for some seconds."""


def schedule_faults(fleet: FaultyFleet, scenario: ScenarioTable, seed: int) -> None:
    """Schedule all faults on the fleet's clock, before the clock runs.

    Faults of the broker and the coordinator before the present time are skipped: a resumed run has had them.
    """
    clock = fleet.clock
    schedule_broker_faults(clock, fleet.hub, scenario)
    for at_s in scenario.coordinator_lost_at_s:
        if at_s >= clock.now_s:
            fleet.lose_coordinator(at_s, scenario.coordinator_lost_for_s)
    forever = fleet.server.rounds.policy.forever
    clock.at(scenario.until_s + scenario.ending_s * forever, lambda: _give_up(fleet, scenario))
    for device in fleet.devices:
        give_faults(device, scenario, seed)


def give_faults(device: SwitchableDevice, scenario: ScenarioTable, seed: int) -> None:
    """Schedule the faults of a device that may have any."""
    conditions = device.device.conditions
    chances = conditions.slow_share or conditions.dropout or conditions.power_cuts_per_day
    if chances or conditions.available is not None or conditions.fails_after_s is not None or device.hardware.battery:
        device.faults = DeviceFaults(device, scenario, seed)
        device.faults.begin()


def schedule_broker_faults(clock: VirtualClock, hub: Hub, scenario: ScenarioTable) -> None:
    """Schedule the restarts of the broker."""
    for at_s in scenario.broker_lost_at_s:
        if at_s >= clock.now_s:
            clock.at(at_s, lambda: hub.restart(scenario.broker_lost_for_s))


def _give_up(fleet: FaultyFleet, scenario: ScenarioTable) -> None:
    rounds, (powered, count) = fleet.server.rounds, fleet.powered()
    raise RunFailed(
        f"the simulated fleet was not finished after {scenario.until_days:g} virtual days (scenario.until_days): the "
        f"coordinator is {rounds.phase.value} in round {rounds.place.round} of {rounds.policy.rounds}, and "
        f"{powered} of {count} devices are switched on"
    )


class DeviceFaults:
    """The faults of one device: it switches the device off and on, and slows some exchanges down."""

    def __init__(self, device: SwitchableDevice, scenario: ScenarioTable, seed: int) -> None:
        self._device, self._clock = device, device.clock
        self._scenario, self._seed = scenario, seed
        self._conditions = device.device.conditions
        self._causes: set[str] = set()
        """The causes that keep the device off at present."""
        self._attempts: Counter[tuple[int, int]] = Counter()
        """How often each (round, exchange) of the newest rounds was computed."""
        self.slowed = 1.0
        """The factor on the computing time of the last computed exchange."""
        self.why_off = ""
        self.off_at_s: float | None = None
        """Why and when it last went off; empty and None if it never did."""
        self._checks = 0
        """Number of battery checks that were scheduled; only the last one is carried out."""

    def begin(self) -> None:
        """Schedule the faults that do not depend on the course of the run."""
        if self._conditions.available is not None:
            self._keep_hours(self._conditions.available)
        if self._conditions.fails_after_s is not None:
            fails_at_s = self._rng(_DEFECT).exponential(self._conditions.fails_after_s)
            self._clock.at(fails_at_s, lambda: self._off("broken"))
        if self._conditions.power_cuts_per_day:
            self._next_cut(self._rng(_POWER_CUTS), 0.0)

    # -- from exchange to exchange ----------------------------------------------------------------------------------

    def slow_factor(self, place: tuple[int, int]) -> float:
        """Return the factor on the computing time of an exchange.  place: (round, exchange)."""
        slow = self._conditions.slow_share and self._draw(place)[0] < self._conditions.slow_share
        self.slowed = self._conditions.slow_factor if slow else 1.0
        return self.slowed

    def computing(self, place: tuple[int, int], took_s: float) -> None:
        """Note that the device begins to compute an exchange for `took_s` seconds; it may drop out meanwhile."""
        if self._conditions.dropout:
            _, dropped, when = self._draw(place)
            if dropped < self._conditions.dropout:
                lost_at_s = self._clock.now_s + when * took_s
                self._clock.at(lost_at_s, lambda: self._cut("drop-out", self._conditions.dropout_s))
        if place not in self._attempts:  # a restart goes back at most to the start of the round
            self._attempts = Counter({at: count for at, count in self._attempts.items() if at[0] >= place[0] - 1})
        self._attempts[place] += 1
        self.schedule_battery_check()

    def _draw(self, place: tuple[int, int]) -> tuple[float, float, float]:
        """Draw three numbers in [0, 1) for one attempt at an exchange: for slowness, drop-out, and its time."""
        slow, dropped, when = self._rng(_EXCHANGE, *place, self._attempts[place]).random(3)
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
        """Schedule the next cut of a Poisson process; cuts before the start of a resumed run are skipped."""
        gap_s = DAY_S / self._conditions.power_cuts_per_day
        at_s = last_s + rng.exponential(gap_s)
        while at_s < self._clock.now_s:
            at_s += rng.exponential(gap_s)

        def cut() -> None:
            self._cut("power cut", self._conditions.power_cut_s)
            self._next_cut(rng, at_s)

        if at_s <= self._scenario.until_s:
            self._clock.at(at_s, cut)

    def schedule_battery_check(self) -> None:
        """Schedule a check for the time at which the battery will be empty under the present load."""
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
            self.schedule_battery_check()
            return
        self._off("battery")
        full_at_s = hardware.full_at_s(now_s)
        if full_at_s is not None and full_at_s <= self._scenario.until_s:
            self._clock.at(full_at_s, lambda: self._on("battery"))

    # -- the switch -------------------------------------------------------------------------------------------------

    def _cut(self, cause: str, for_s: float) -> None:
        if cause not in self._causes:
            self._off(cause)
            self._clock.at(self._clock.now_s + for_s, lambda: self._on(cause))

    def _off(self, cause: str) -> None:
        self._causes.add(cause)
        self.why_off, self.off_at_s = cause, self._clock.now_s
        self._device.excused = True
        if self._device.powered:
            self._device.power_off()

    def _on(self, cause: str) -> None:
        self._causes.discard(cause)
        if self._causes:
            return
        self._device.excused = False
        if not self._device.powered and not self._device.over:
            self._device.power_on()
            self.schedule_battery_check()

    def _rng(self, purpose: int, *rest: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, purpose, self._device.device.kit.number, *rest])
