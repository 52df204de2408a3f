"""What the coordinator notes."""

from __future__ import annotations

import json

from coordinator.record import saved_record
from coordinator.record.run_record import CAME_LATE, PAUSED, SAID_NOTHING, RunRecord
from edge_sdk.protocol.exchange_id import ExchangeId


def test_a_device_that_misses_more_than_a_tenth_is_a_laggard() -> None:
    record = RunRecord()
    for _ in range(5):
        record.round_done(contributors=2, exchanges=6, now_s=0.0)
    record.contributed.update({"steady": 30, "nearly": 27, "slow": 26})
    assert record.laggards() == ("slow",)


def restored(record: RunRecord) -> RunRecord:
    """What a restart makes of the record's JSON, if nothing was saved before."""
    history = {number: json.loads(json.dumps(noted)) for number, noted in saved_record.new_history(record).items()}
    return saved_record.from_json(json.loads(json.dumps(saved_record.to_json(record))), history)


def rounds_noted(record: RunRecord, count: int) -> RunRecord:
    """The record after some more rounds, saved after each of them."""
    for _ in range(count):
        record.saved()
        done = record.round_done(contributors=1, exchanges=1, now_s=1.0)
        record.measured("a", done.round, {"accuracy": 0.5})
        record.instrument(done.round, "a", {"loss": 0.25})
    return record


def test_what_a_checkpoint_writes_does_not_grow_with_the_number_of_rounds() -> None:
    record = rounds_noted(RunRecord(), 10)
    early = len(json.dumps([saved_record.to_json(record), saved_record.new_history(record)]))
    rounds_noted(record, 990)
    assert list(saved_record.new_history(record)) == [1000]
    late = len(json.dumps([saved_record.to_json(record), saved_record.new_history(record)]))
    assert late - early < 10  # digits of the round's number


def test_what_is_noted_late_of_an_earlier_round_is_saved_again() -> None:
    record = rounds_noted(RunRecord(), 3)
    record.saved()
    assert saved_record.new_history(record) == {}
    record.measured("b", 2, {"accuracy": 0.75})
    (noted,) = saved_record.new_history(record).values()
    assert noted["accuracy"] == {"a": 0.5, "b": 0.75}
    assert noted["result"]["contributors"] == 1


def test_a_record_that_holds_its_whole_history_is_read_and_saved_anew() -> None:
    record = RunRecord()
    record.round_done(contributors=3, exchanges=1, now_s=1.0)
    record.measured("a", 1, {"accuracy": 0.5})
    record.instrument(1, "a", {"loss": 0.25})
    (noted,) = saved_record.new_history(record).values()
    older = saved_record.to_json(record) | {
        "rounds": [noted["result"]],
        "accuracy": {"1": noted["accuracy"]},
        "instruments": {"1": noted["instruments"]},
    }
    again = saved_record.from_json(older, {})
    assert (again.rounds, again.accuracy, again.instruments) == (record.rounds, record.accuracy, record.instruments)
    assert saved_record.new_history(again) == saved_record.new_history(record)


def test_where_a_sample_is_measured_other_devices_count_in_no_accuracy() -> None:
    record = RunRecord(sample=frozenset({"a"}))
    record.measured("a", 1, {"accuracy": 0.25})
    record.measured("b", 1, {"accuracy": 0.75})  # it took part, and so measured itself
    assert record.accuracy == {1: {"a": 0.25}}
    assert "b" not in record.metrics


def test_the_newest_accuracies_of_a_simulation_are_of_all_devices_or_of_an_earlier_round() -> None:
    record = RunRecord(whole=(1, 2))
    record.measured("a", 1, {"accuracy": 0.5})  # the other one failed
    record.measured("a", 2, {"accuracy": 0.75})
    assert record.newest_accuracies() == (1, {"a": 0.5})
    record.measured("b", 2, {"accuracy": 0.25})
    assert record.newest_accuracies() == (2, {"a": 0.75, "b": 0.25})


def test_it_survives_as_json() -> None:
    record = RunRecord()
    record.measured("a", 2, {"accuracy": 0.5})
    record.measured("a", 0, {"accuracy": 0.9})  # describes no completed round
    record.refused_frame("b", "checksum")
    record.updates["accepted"] += 3
    record.bytes_up["a"] += 10
    record.contributed["a"] += 2
    record.round_done(contributors=1, exchanges=1, now_s=1.0)
    record.asked, record.answered = 7, 5
    again = restored(record)
    assert (again.rounds, again.accuracy) == (record.rounds, record.accuracy)
    assert saved_record.to_json(again) == saved_record.to_json(record)
    assert again.last_accuracy("a") == 0.5
    assert again.last_accuracy("b") is None


def test_several_late_copies_of_one_upload_give_one_reason() -> None:
    record, at = RunRecord(), ExchangeId(3, 0)
    record.declining["hot"] = "temperature", "71 C"
    record.closed_without(["hot"], ["slow"], at=at)
    for _ in range(3):
        record.came_late("hot", at)
        record.came_late("slow", at)
    assert {each.device: each.reason for each in record.missed} == {
        "hot": f"{CAME_LATE} (at the deadline: declined: 71 C)",
        "slow": CAME_LATE,
    }


def test_a_device_without_the_common_test_still_tells_of_its_own_parts() -> None:
    record = RunRecord()
    record.measured("a", 1, {"accuracy": 0.5, "local_accuracy": 0.6})
    record.measured("a", 2, {"validation_accuracy": 0.7})
    record.measured("a", 2, {})  # an upload in which nothing was measured
    assert record.metrics == {"a": {"validation_accuracy": 0.7}}
    assert record.last_accuracy("a") == 0.5


def test_who_missed_an_exchange_is_listed_with_the_reason() -> None:
    record, at = RunRecord(), ExchangeId(3, 0)
    record.declining["hot"] = "temperature", "71 C"
    record.refused_uploads |= {"liar": (at, "norm 90"), "mended": (ExchangeId(2, 0), "norm 90")}
    record.closed_without(["hot", "held"], ["liar", "mended"], at=at, paused=["held"])
    assert {each.device: each.reason for each in record.missed} == {
        "held": f"declined: {PAUSED[1]}",
        "hot": "declined: 71 C",
        "liar": "refused: norm 90",
        "mended": SAID_NOTHING,
    }
    assert record.declined == {"held": {"paused": 1}, "hot": {"temperature": 1}}


def test_a_round_that_closes_right_after_a_restart_takes_no_negative_time() -> None:
    """All uploads of the open round lay in the ledger: it closes without an exchange being opened again."""
    record = RunRecord()
    record.begun(10.0)
    record.round_done(1, 1, 14.0)
    again = saved_record.from_json(
        json.loads(json.dumps(saved_record.to_json(record))), saved_record.new_history(record)
    )
    assert again.round_done(1, 1, 3.0).wall_s == 0.0
    again.begun(5.0)
    assert again.round_done(1, 1, 7.0).wall_s == 2.0


def test_news_of_a_round_have_each_device_that_was_ever_measured() -> None:
    record = RunRecord()
    record.accuracy.update({1: {"a": 0.1, "b": 0.2, "c": 0.3}, 2: {"b": 0.5}})
    record.bytes_down.update({"a": 1, "b": 1, "c": 1, "teacher": 1})
    assert record.newest_of_each() == {"a": 0.1, "b": 0.5, "c": 0.3}
