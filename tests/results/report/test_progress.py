"""What a run says of itself where nobody sees a terminal."""

from __future__ import annotations

from io import StringIO

import pytest

from coordinator.record.run_record import RunRecord
from coordinator.results.report.progress import Progress
from edge_sdk.protocol.exchange_id import ExchangeId
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
    progress.opened(ExchangeId(0, 0), ["a"])
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


def test_the_time_that_is_left_counts_from_the_first_round_that_opened_after_a_resume() -> None:
    out, watch, record = StringIO(), Watch(), RunRecord()
    progress = Progress("run", out, clock=watch)
    for _ in range(5):
        record.round_done(1, 1, 0.0)
    watch.now_s = 100.0  # building the devices, and the end of the round that was open
    progress.round_done(record.round_done(1, 1, 100.0), 10, record)
    progress.opened(ExchangeId(6, 0), ["a"])
    watch.now_s = 102.0
    progress.round_done(record.round_done(1, 1, 102.0), 10, record)
    first, second = out.getvalue().splitlines()
    assert "left" not in first
    assert "about 6.0 s left" in second


def test_the_global_model_is_named_beside_the_devices_own_with_the_round_of_each() -> None:
    out, record = StringIO(), RunRecord()
    progress = Progress("run", out)
    done = record.round_done(1, 1, 1.0)
    record.measured("a", 1, {"accuracy": 0.25})
    progress.round_done(done, 10, record)
    record.measured("a", 1, {"accuracy": 0.5}, "global")
    progress.round_done(done, 10, record)
    record.measured("a", 2, {"accuracy": 0.75})
    progress.round_done(done, 10, record)
    own, both, apart = out.getvalue().splitlines()
    assert ", accuracy 25.0% after round 1, " in own
    assert ", own models 25.0%, global model 50.0% after round 1, " in both
    assert ", own models 75.0% after round 2, global model 50.0% after round 1, " in apart


def test_many_devices_that_measure_the_result_are_announced() -> None:
    out, record = StringIO(), RunRecord()
    progress = Progress("run", out)
    progress.round_done(record.round_done(1, 1, 1.0), 1, record)
    progress.opened(ExchangeId(1, 0), [f"device-{number}" for number in range(1000)])
    assert out.getvalue().splitlines()[-1] == "run: 1,000 devices measure the result"


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
