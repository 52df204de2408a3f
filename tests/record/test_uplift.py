"""The control group's plan, and what is said of the uplift."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from coordinator.record.control_group import ControlGroup, drawn
from coordinator.results.figures.uplift import uplift

DEVICES = [f"device-{number:02}" for number in range(20)]


def lived(*, effect: float, periods: int, share: float = 0.2, noise: float = 0.01, seed: int = 0) -> ControlGroup:
    """A group after some periods, in which being alone costs a device `effect`, and all improve with time."""
    rng, group = np.random.default_rng(seed), ControlGroup()
    level = {device: rng.normal(0.6, 0.1) for device in DEVICES}
    for period in range(periods):
        group.begin(drawn(DEVICES, share, group, "cameras"), 10 * period)
        for device in DEVICES:
            alone = device in group.alone
            value = level[device] + 0.02 * period - effect * alone + rng.normal(0, noise)
            group.measured(device, {"local_accuracy": value, "accuracy": 0.0}, alone=alone)
    return group


def test_every_device_has_its_turn_before_any_has_a_second_one() -> None:
    group, turns = ControlGroup(), Counter[str]()
    for period in range(10):
        group.begin(drawn(DEVICES, 0.2, group, "cameras"), period)
        turns.update(group.alone)
        assert max(turns.values()) - min(turns[device] for device in DEVICES) <= 1
    assert set(turns.values()) == {2}


@pytest.mark.parametrize(("devices", "share", "alone"), [(1, 0.5, 0), (2, 0.1, 1), (10, 0.1, 1), (10, 1.0, 9)])
def test_some_device_is_alone_and_some_other_is_not(devices: int, share: float, alone: int) -> None:
    assert len(drawn(DEVICES[:devices], share, ControlGroup(), "cameras")) == alone


def test_the_draw_differs_between_federations() -> None:
    first, other = (drawn(DEVICES, 0.2, ControlGroup(), name) for name in ("cameras", "doors"))
    assert first != other


def test_few_devices_leave_it_open() -> None:
    group = ControlGroup()
    assert uplift(group) is None
    group.begin(("device-00",), 0)
    for device in DEVICES[:8]:
        group.measured(device, {"accuracy": 0.5}, alone=device in group.alone)
    found = uplift(group)
    assert found is not None
    assert found.text == "not yet known: 1 device was measured alone, 3 are needed"
    assert not found.written()


def test_the_first_period_compares_the_groups_and_later_ones_the_pairs() -> None:
    first, later = uplift(lived(effect=0.5, periods=1)), uplift(lived(effect=0.1, periods=5))
    assert first is not None
    assert later is not None
    assert (first.paired, first.alone, first.others) == (0, 4, 16)
    assert first.text.startswith("the federation helps: +")
    assert later.paired >= 12
    assert later.mean == pytest.approx(0.1, abs=0.01)
    assert later.low is not None
    assert later.high is not None
    assert later.high - later.low < 0.03  # although devices differ by far more


def test_time_is_no_uplift() -> None:
    found = uplift(lived(effect=0.0, periods=5))
    assert found is not None
    assert not found.known
    assert found.text.startswith("not yet known whether the federation helps: ")
    harm = uplift(lived(effect=-0.2, periods=5))
    assert harm is not None
    assert harm.text.startswith("the federation does harm: -")


@pytest.mark.parametrize("periods", [1, 5])
def test_the_interval_holds_the_truth_in_about_95_of_100_runs(periods: int) -> None:
    found = [uplift(lived(effect=0.05, periods=periods, seed=seed)) for seed in range(200)]
    held = sum(each is not None and (each.low or 0.0) <= 0.05 <= (each.high or 0.0) for each in found)
    assert 178 <= held <= 200


def test_a_restart_loses_nothing() -> None:
    group = lived(effect=0.1, periods=3)
    again = ControlGroup.from_json(*json.loads(json.dumps([group.to_json(), group.later_to_json()])))
    assert again == group
    assert uplift(again) == uplift(group)
