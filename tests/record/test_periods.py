"""Rounds without an end: hours and days in place of rounds, of each a bounded number, and the same after a restart."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

from coordinator.ledger import Ledger, Rolled
from coordinator.record import saved_record
from coordinator.record.periods import KEPT, PeriodKey, Periods
from coordinator.record.run_record import RunRecord
from coordinator.results.page.values import progress_state
from coordinator.results.report.progress_file import About, ProgressFile, read_running, running_text
from edge_sdk.protocol.messages import FOREVER

DAY = date(2026, 3, 1)
KEEP = 50


def lived(record: RunRecord, rounds: int, every_s: float = 600.0, ledger: Ledger | None = None) -> RunRecord:
    """A stub run: two devices, a round every ten minutes; each measures the round before."""
    for _ in range(rounds):
        number = record.done
        for device in ("a", "b"):
            record.bytes_up[device] += 100
            record.measured(device, number, {"accuracy": 0.5 + number / 1e6})
            record.instrument(number + 1, device, {"norm": 1.0})
        record.skips += number % 10 == 0
        record.round_done(2, 1, 60.0 * number)
        at_s = every_s * number
        record.roll_up(at_s, DAY + timedelta(days=int(at_s // 86_400)), keep=KEEP)
        if ledger is not None:
            keys = record.periods.unsaved
            written = {(key.kind, key.number): record.periods.kept[key].to_json() for key in keys}
            rolled = Rolled(written, {**record.periods.oldest()}, record.rolled + 1)
            ledger.checkpoint(
                record.done, b"", saved_record.to_json(record), None, saved_record.new_history(record), rolled=rolled
            )
        record.saved()
    return record


def test_days_sum_up_their_rounds() -> None:
    record = lived(RunRecord(), 300)
    days = record.periods.newest("day", 10)
    assert [str(key) for key in days] == ["2026-03-01", "2026-03-02", "2026-03-03"]
    assert [each.rounds for each in days.values()] == [144, 144, 12]
    assert [each.first for each in days.values()] == [1, 145, 289]
    assert sum(each.bytes_up for each in days.values()) == 300 * 200
    assert sum(each.skipped for each in days.values()) == record.skips == 30
    assert days[PeriodKey("day", DAY.toordinal())].accuracy == 0.5 + 143 / 1e6
    hours = record.periods.newest("hour", 2)
    assert [str(key) for key in hours] == ["1970-01-03 00:00 UTC", "1970-01-03 01:00 UTC"]


def test_months_sum_up_their_days_and_are_told(tmp_path: Path) -> None:
    record = lived(RunRecord(), 100, every_s=86_400.0)
    months = record.periods.months()
    assert {name: each.rounds for name, each in months.items()} == {
        "2026-03": 31,
        "2026-04": 30,
        "2026-05": 31,
        "2026-06": 8,
    }
    assert sum(each.bytes_up for each in months.values()) == 100 * 200
    assert sum(each.skipped for each in months.values()) == record.skips
    assert months["2026-06"].accuracy == 0.5 + 99 / 1e6
    about = About(federation="cams", method="fedproto", seed=0, rounds=FOREVER, expected=2)
    ProgressFile(tmp_path, about, say=str).round_done(record.rounds[-1], FOREVER, record)
    found = read_running(tmp_path)
    assert "  2026-04        30 rounds, 3 skipped, " in running_text(tmp_path, found)
    assert progress_state(found, "here").head["text"] == "fedproto, round 100, as its progress.json shows"
    assert [each["period"] for each in progress_state(found, "here").ledger["months"]] == [*months]


def test_what_is_kept_is_bounded() -> None:
    record = lived(RunRecord(), 3000)
    assert record.done == 3000
    assert KEEP <= len(record.rounds) <= KEEP + KEEP // 10
    assert min(record.accuracy) > record.rolled
    assert len(record.instruments) <= KEEP + KEEP // 10 + 1
    assert len(record.periods.newest("hour", 10**6)) == KEPT["hour"]
    assert record.rounds[-1].round == 3000
    assert record.last_accuracy("a") == 0.5 + 2999 / 1e6


def test_ten_years_of_days_are_the_most() -> None:
    record = lived(RunRecord(), KEPT["day"] + 40, every_s=86_400.0)
    assert len(record.periods.newest("day", 10**6)) == KEPT["day"]


def test_a_restart_knows_what_was_rolled_up(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    record = lived(RunRecord(), 400, ledger=ledger)
    found = ledger.last_checkpoint()
    assert found is not None
    again = saved_record.from_json(found.record, found.history, Periods.restored(found.periods))
    assert again.periods.kept == record.periods.kept
    assert (again.done, again.rolled, again.wall_s) == (record.done, record.rolled, record.wall_s)
    assert [entry.round for entry in again.rounds] == [entry.round for entry in record.rounds]
    for each in (record, again):
        lived(each, 40)
    assert again.periods.kept == record.periods.kept
    assert again.rounds[-1] == record.rounds[-1]


def test_record_and_ledger_do_not_grow_with_rounds(tmp_path: Path) -> None:
    ledger, sizes = Ledger(tmp_path / "ledger.db"), []
    record = RunRecord()
    for _ in range(4):
        lived(record, 250, every_s=40.0, ledger=ledger)
        pages = ledger._rows("SELECT COUNT(*) FROM history")[0][0]
        sizes.append((len(json.dumps(saved_record.to_json(record))), pages))
    assert sizes[-1][0] < sizes[0][0] + 200  # a digit more in some numbers
    assert max(rows for _, rows in sizes) <= KEEP + KEEP // 10 + 2
