"""Devices that a mean leaves out are counted and named."""

from __future__ import annotations

import dataclasses

import synthetic

from coordinator.results.comparison.compare import Comparison, MethodRuns, Trial
from coordinator.results.comparison.compare_table import compare_table
from coordinator.results.figures.result import Result, unmeasured


def some_missing(never: int, early: int, count: int = 8) -> Result:
    """The first devices never told anything, and the next nothing after the last round."""
    whole = synthetic.result(count=count, rounds=3)
    names = [device.id for device in whole.devices]
    absent = {1: names[:never], 2: names[:never], 3: names[: never + early]}
    history = [
        dataclasses.replace(entry, accuracy={d: a for d, a in entry.accuracy.items() if d not in absent[entry.round]})
        for entry in whole.history
    ]
    devices = [dataclasses.replace(d, accuracy=None if d.id in names[:never] else d.accuracy) for d in whole.devices]
    return dataclasses.replace(whole, devices=tuple(devices), history=tuple(history))


def test_both_kinds_are_counted_and_named() -> None:
    assert unmeasured(some_missing(0, 0)) == ()
    never, early = unmeasured(some_missing(2, 1))
    assert never.startswith("2 of 8 devices")
    assert never.endswith("device-0, device-1")
    assert early.startswith("1 of 8 devices")
    assert "after round 3" in early
    assert early.endswith("device-2")
    (many,) = unmeasured(some_missing(13, 0, count=20))
    assert many.endswith("device-08, device-09 and 3 more")


def test_a_teacher_is_not_missed_but_who_never_came_is() -> None:
    result = some_missing(2, 0)
    first, second, *others = result.devices
    devices = (dataclasses.replace(first, learns=False), dataclasses.replace(second, joined=False), *others)
    (never,) = unmeasured(dataclasses.replace(result, devices=devices))
    assert never.startswith("1 of 7 devices")
    assert never.endswith("device-1")


def test_where_nobody_measures_there_is_nothing_to_miss() -> None:
    assert unmeasured(some_missing(8, 0)) == ()


def test_a_comparison_says_it_of_each_run() -> None:
    runs = (("fedal", some_missing(0, 0)), ("fedmd", some_missing(1, 0)))
    comparison = Comparison(tuple(MethodRuns(name, (Trial(0, run),)) for name, run in runs), "fedal")
    (told,) = unmeasured(runs[1][1])
    (said,) = (line for line in compare_table(comparison).notes if told in line)
    assert all(part in said for part in ("fedmd", "seed 0"))
