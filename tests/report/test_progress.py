"""What a run says of itself where nobody sees a terminal."""

from __future__ import annotations

from io import StringIO

import pytest

from coordinator.report.progress import Progress
from coordinator.run_record import RunRecord


class Watch:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lines_of(rounds: int, *, each_s: float, brief: bool = False, until: int | None = None) -> list[str]:
    out, watch, record = StringIO(), Watch(), RunRecord()
    progress = Progress("run", out, brief=brief, clock=watch)
    for _ in range(until or rounds):
        watch.now_s += each_s
        progress.round_done(record.round_done(contributors=1, exchanges=1, now_s=watch.now_s), rounds, record)
    return out.getvalue().splitlines()


def test_about_ten_lines_and_the_time_that_is_left() -> None:
    told = lines_of(40, each_s=1.0)
    assert len(told) == 10
    assert told[4] == "run:  50% round 20/40, 0 B exchanged, about 20.0 s left"
    assert told[-1] == "run: 100% round 40/40, 0 B exchanged"


def test_brief_is_the_last_line() -> None:
    assert lines_of(40, each_s=100.0, brief=True) == ["run: 100% round 40/40, 0 B exchanged"]


def test_a_long_run_says_something_every_minute() -> None:
    told = lines_of(10**9, each_s=1.0, until=200)
    assert [line.split(",")[0] for line in told] == [f"run:   0% round {n}/1000000000" for n in (60, 120, 180)]


@pytest.mark.parametrize(("expected", "lines"), [(3, 3), (20, 20), (21, 11), (1000, 10), (1007, 11)])
def test_a_small_fleet_is_named_whole_and_a_large_one_now_and_then(expected: int, lines: int) -> None:
    out = StringIO()
    progress = Progress("run", out)
    for count in range(1, expected + 1):
        progress.joined(f"device-{count}", count, expected)
    told = out.getvalue().splitlines()
    assert len(told) == lines
    assert told[-1] == f"run: device-{expected} joined ({expected} of {expected})"
