"""What a run says of itself where nobody sees a terminal."""

from __future__ import annotations

from io import StringIO

import pytest

from coordinator.record.run_record import RunRecord
from coordinator.results.report.progress import Progress
from edge_sdk.protocol.messages import FOREVER


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
    assert all(part in told[4] for part in ("run:", "50%", "20/40", "20.0 s left"))
    assert all(part in told[-1] for part in ("run:", "100%", "40/40"))
    assert "left" not in told[-1]


def test_brief_is_the_last_line() -> None:
    (only,) = lines_of(40, each_s=100.0, brief=True)
    assert "40/40" in only


def test_a_long_run_says_something_every_minute() -> None:
    told = lines_of(10**9 - 1, each_s=1.0, until=200)
    assert len(told) == 3
    assert all(f" {number}/999999999" in line for number, line in zip((60, 120, 180), told, strict=True))


@pytest.mark.parametrize(("expected", "lines"), [(3, 3), (20, 20), (21, 11), (1000, 10), (1007, 11)])
def test_a_small_fleet_is_named_whole_and_a_large_one_now_and_then(expected: int, lines: int) -> None:
    out = StringIO()
    progress = Progress("run", out)
    for count in range(1, expected + 1):
        progress.joined(f"device-{count}", count, expected)
    told = out.getvalue().splitlines()
    assert len(told) == lines
    assert f"device-{expected} joined" in told[-1]
    assert f"({expected} of {expected})" in told[-1]


@pytest.mark.parametrize(
    ("device", "message", "line"),
    [
        ("a", "its last layer has another width", "refused a: its last layer has another width"),
        ("device-1", "device-10 came first", "refused device-1: device-10 came first"),
        ("1", "device-1 came first", "refused 1: device-1 came first"),
        ("pi", "pi: its model has 3 classes", "refused pi: its model has 3 classes"),
        ("pi", "another device takes part as pi, and came first", "refused another device takes part as pi, and came"),
    ],
)
def test_a_refusal_names_the_device_once(device: str, message: str, line: str) -> None:
    out = StringIO()
    Progress("run", out).turned_away(device, message)
    assert out.getvalue().startswith(f"run: {line}")


def test_rounds_without_an_end_have_no_share_and_no_time_left() -> None:
    told = lines_of(FOREVER, each_s=1.0, until=100)
    assert told[0].startswith("run: round 1,")
    assert len(told) == 11  # the first ten, and then one a minute
    assert not any("left" in line or "/" in line for line in told)
