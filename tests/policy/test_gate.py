"""The gate between two batches, with a fake clock and fake sensors."""

from __future__ import annotations

import pytest

from edge_sdk import Policy
from edge_sdk.boards import profiles
from edge_sdk.policy.energy import EnergyCounter, PowerMeter
from edge_sdk.policy.gate import CHECK_S, SETTLE_S, TELL_AFTER_S, PauseReport, TrainingGate, training_gate
from edge_sdk.policy.sensors import FakeSensors

BATCH_S = 0.02


class Device:
    """Trains on a clock that advances by BATCH_S a batch."""

    def __init__(
        self,
        policy: Policy,
        meter: PowerMeter | None = None,
        profile_w: float = 0.0,
        sensors: FakeSensors | None = None,
    ) -> None:
        self.sensors, self.now_s, self.round, self.told = sensors or FakeSensors(), 0.0, 0, []
        energy = EnergyCounter(self.sensors, meter, lambda: profile_w, self.told.append)
        self.gate = TrainingGate(policy, self.sensors, energy, self.told.append)

    @property
    def reason(self) -> str:
        found = self.gate.objection(self.now_s, self.round)
        return "" if found is None else found.reason

    def train(self, seconds: float) -> float:
        """Train until the time is over or the gate objects; return the seconds of training."""
        end_s, trained_s = self.now_s + seconds, 0.0
        while self.now_s < end_s and not self.reason:
            self.gate.begin(self.now_s)
            self.now_s += BATCH_S
            trained_s += BATCH_S
            self.gate.end(self.now_s)
        self.gate.rest(self.now_s)
        return trained_s

    def wait(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 0.1
            self.gate.objection(self.now_s, self.round)


FAILING = {
    "charging": (Policy(charging=True), "is_charging", False),
    "load": (Policy(idle_below=0.3), "load_share", 0.3),
    "hours": (Policy(hours="11:00-13:00"), "minute", 13 * 60),
    "temperature": (Policy(max_temperature_c=80), "celsius", 84.0),
    "throttled": (Policy(unthrottled=True), "is_throttled", True),
    "memory": (Policy(min_memory_mib=100), "memory_bytes", 50 * 2**20),
    "metered": (Policy(unmetered=True), "is_metered", True),
}


@pytest.mark.parametrize("reason", FAILING)
def test_training_stops_within_200_ms_of_a_condition_failing_and_goes_on_later(reason) -> None:
    policy, sensor, value = FAILING[reason]
    device = Device(policy)
    assert device.train(1.0) == pytest.approx(1.0, abs=2 * BATCH_S)
    before = getattr(device.sensors, sensor)
    setattr(device.sensors, sensor, value)
    assert device.train(10.0) <= 0.2
    assert device.reason == reason
    setattr(device.sensors, sensor, before)
    device.wait(SETTLE_S + 1.0)
    assert device.train(1.0) == pytest.approx(1.0, abs=2 * BATCH_S)


def test_the_time_to_stop_is_a_reading_and_a_batch() -> None:
    assert CHECK_S + BATCH_S <= 0.2


@pytest.mark.parametrize("sensor", ["is_charging", "load_share", "celsius", "is_throttled", "memory_bytes"])
def test_a_missing_sensor_is_ignored_with_one_warning(sensor) -> None:
    device = Device(Policy(charging=True, idle_below=0.5, max_temperature_c=60, unthrottled=True, min_memory_mib=1))
    setattr(device.sensors, sensor, None)
    assert device.train(2.0) == pytest.approx(2.0, abs=2 * BATCH_S)
    assert len(device.told) == 1


def test_a_sensor_of_the_app_that_fails_is_ignored_with_one_warning() -> None:
    class Broken(FakeSensors):
        def temperature_c(self) -> float | None:
            raise OSError("the bus is gone")

        def power_w(self) -> float | None:
            raise OSError("and the meter")

    device = Device(Policy(max_temperature_c=60), sensors=Broken())
    assert device.train(2.0) == pytest.approx(2.0, abs=2 * BATCH_S)
    assert len(device.told) == 1
    assert "the bus is gone" in device.told[0]
    assert device.gate.take_cost().temperature_c is None


@pytest.mark.parametrize(
    ("minute", "allowed"), [(21 * 60 + 59, False), (22 * 60, True), (0, True), (359, True), (360, False), (720, True)]
)
def test_hours_may_reach_over_midnight_and_have_several_spans(minute, allowed) -> None:
    device = Device(Policy(hours="22:00-06:00, 12:00-13:00"))
    device.sensors.minute = minute
    assert (device.reason == "") is allowed


@pytest.mark.parametrize(("hours", "minute", "allowed"), [("00:00-24:00", 1439, True), ("22:00-24:00", 0, False)])
def test_hours_may_reach_to_the_end_of_the_day(hours, minute, allowed) -> None:
    device = Device(Policy(hours=hours))
    device.sensors.minute = minute
    assert (device.reason == "") is allowed


def test_a_temperature_at_the_limit_does_not_make_training_flicker() -> None:
    device = Device(Policy(max_temperature_c=80))
    device.sensors.celsius = 81.0
    device.wait(1.0)
    device.sensors.celsius = 79.0
    device.wait(60.0)
    assert device.reason == "temperature"
    device.sensors.celsius = 76.9
    device.wait(SETTLE_S + 1.0)
    assert device.reason == ""


def test_a_condition_that_holds_for_a_moment_does_not_count() -> None:
    device = Device(Policy(charging=True))
    device.sensors.is_charging = False
    device.wait(1.0)
    for _ in range(10):
        device.sensors.is_charging = not device.sensors.is_charging
        device.wait(SETTLE_S / 2)
        assert device.reason == "charging"


def test_the_time_budget_is_that_of_a_round() -> None:
    device = Device(Policy(round_time_s=1.0))
    assert device.train(10.0) == pytest.approx(1.0, abs=0.2)
    assert device.reason == "time-budget"
    device.wait(100.0)
    found = device.gate.objection(device.now_s, 0)
    assert found is not None
    assert found.round == 0
    device.round = 1
    assert device.train(0.5) == pytest.approx(0.5, abs=2 * BATCH_S)


def test_the_energy_budget_is_that_of_a_round() -> None:
    device = Device(Policy(round_energy_j=5.0), profile_w=10.0)
    assert device.train(10.0) == pytest.approx(0.5, abs=0.2)
    assert device.reason == "energy-budget"
    device.round = 1
    assert device.reason == ""


# -- joules --


def test_watts_of_an_external_meter_are_integrated_while_training_alone() -> None:
    device = Device(Policy(), PowerMeter(watts=lambda: 4.0), profile_w=99.0)
    device.train(2.0)
    device.wait(60.0)
    device.train(1.0)
    cost = device.gate.take_cost()
    assert cost.busy_s == pytest.approx(3.0, abs=4 * BATCH_S)
    assert cost.energy_j == pytest.approx(12.0, rel=0.05)
    assert cost.joules_source == "measured"
    assert cost.temperature_c == 40.0
    assert device.gate.take_cost().energy_j == 0.0


def test_a_counter_of_joules_counts_differences() -> None:
    read: list[float] = []

    def joules() -> float:
        read.append(1000.0 + 6.0 * device.now_s)
        return read[-1]

    device = Device(Policy(), PowerMeter(joules=joules))
    device.train(2.0)
    assert device.gate.take_cost().energy_j == pytest.approx(12.0, rel=0.05)
    assert len(read) <= 2.0 / CHECK_S + 3


@pytest.mark.parametrize("bad", [float("nan"), -3.0, 1e9, "boom"])
def test_a_broken_meter_is_given_up_with_one_warning(bad) -> None:
    def watts() -> float:
        if bad == "boom":
            raise RuntimeError(bad)
        return bad  # type: ignore[return-value]

    device = Device(Policy(), PowerMeter(watts=watts), profile_w=5.0)
    assert device.train(2.0) == pytest.approx(2.0, abs=2 * BATCH_S)
    cost = device.gate.take_cost()
    assert cost.joules_source == "profile"
    assert cost.energy_j == pytest.approx(10.0, rel=0.1)
    assert len(device.told) == 1


@pytest.mark.parametrize(
    ("set_up", "source"),
    [({"watts": 3.0}, "measured"), ({}, "profile")],
)
def test_the_machine_s_own_sensor_comes_before_the_profile(set_up, source) -> None:
    device = Device(Policy(), profile_w=7.0)
    for name, value in set_up.items():
        setattr(device.sensors, name, value)
    device.train(1.0)
    cost = device.gate.take_cost()
    assert cost.joules_source == source
    assert cost.energy_j == pytest.approx(3.0 if set_up else 7.0, rel=0.05)


def test_an_unknown_board_has_no_joules() -> None:
    device = Device(Policy())
    device.train(1.0)
    cost = device.gate.take_cost()
    assert (cost.energy_j, cost.joules_source) == (0.0, "")
    assert cost.busy_s == pytest.approx(1.0, abs=4 * BATCH_S)


# -- what the coordinator is told --


def test_a_pause_before_the_first_batch_is_told_at_once_and_a_later_one_after_a_while() -> None:
    device = Device(Policy(charging=True))
    device.sensors.is_charging = False
    report, found = PauseReport(), device.gate.objection(0.0, 0)
    assert report.to_tell(found, 0.0, fresh=True) is found
    assert report.to_tell(None, 1.0, fresh=False) is None
    assert report.to_tell(found, 2.0, fresh=False) is None
    assert report.to_tell(found, 2.0 + TELL_AFTER_S, fresh=False) is found


def test_a_board_without_a_profile_is_told_once_and_counted_as_the_generic_one(monkeypatch) -> None:
    monkeypatch.setattr(profiles, "detect", lambda: "riscv64")
    told = []
    gate = training_gate(Policy(), FakeSensors(), None, "", told.append)
    assert told == []
    for now_s in range(3):
        gate.begin(float(now_s))
        gate.end(now_s + 0.5)
    (line,) = told
    assert "riscv64" in line
    cost = gate.take_cost()
    assert cost.energy_j > 0.0
    assert cost.joules_source == "profile"
