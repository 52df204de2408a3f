"""Slots (FedKF's T1): the running sum is that of the newest upload of everybody, to the bit, through faults and age."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from method_specs import spec_of
from properties import examples

from coordinator.ledger import Ledger, Row, Slots
from coordinator.record import remarks
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.fedavg import FedAvg
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec, storage
from edge_sdk.protocol.frames.codec import Limits
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import Upload
from edge_sdk.reductions import Contribution
from edge_sdk.reductions.weighted_sum import Change, WeightedSum, changed
from edge_sim.config import settings

LAYOUT = bytes(16)


def weights(values: Any, count: int = 1) -> Weights:
    return Weights(values=np.array(values, np.float32), layout=LAYOUT, count=count)


def coming(number: int, now: Weights | None, before: Weights | None = None) -> Contribution:
    roles = [{} if each is None else {"weights": each} for each in (now, before)]
    return Contribution(number=number, samples=9, knowledge=roles[0], before=roles[1])


# -- the sum --------------------------------------------------------------------------------------------------------

C1, C2, C2_AGAIN, C3 = weights([1, 1], 10), weights([3, -1], 30), weights([2, 0], 30), weights([4, 2], 60)


def test_the_worked_table_as_the_reference_reads_it() -> None:
    """methods.md C.6: only devices ever seen are averaged."""
    first = reduce(Change.add, [coming(1, C1), coming(2, C2)], Change())
    slots = changed(None, first, LAYOUT)
    np.testing.assert_allclose(slots.mean().values, [2.5, -0.5], rtol=1e-7)
    second = reduce(Change.add, [coming(2, C2_AGAIN, C2), coming(3, C3)], Change())
    np.testing.assert_allclose(second.now.mean().values, [10 / 3, 4 / 3], rtol=1e-7)
    np.testing.assert_allclose(changed(slots, second, LAYOUT).mean().values, [3.1, 1.3], rtol=1e-7)


def test_the_worked_table_as_the_paper_reads_it() -> None:
    """methods.md C.6: every slot starts with w_0 = 0, and counts."""
    zero = [weights([0, 0], count) for count in (10, 30, 60)]
    start = changed(None, reduce(Change.add, [coming(i + 1, each) for i, each in enumerate(zero)], Change()), LAYOUT)
    first = reduce(Change.add, [coming(1, C1, zero[0]), coming(2, C2, zero[1])], Change())
    slots = changed(start, first, LAYOUT)
    np.testing.assert_allclose(slots.mean().values, [1.0, -0.2], rtol=1e-7)
    second = reduce(Change.add, [coming(2, C2_AGAIN, C2), coming(3, C3, zero[2])], Change())
    np.testing.assert_allclose(changed(slots, second, LAYOUT).mean().values, [3.1, 1.3], rtol=1e-7)


@examples(40)
@given(st.integers(0, 2**32 - 1))
def test_any_history_of_answers_and_expiries_leaves_the_bits_of_what_is_left(seed: int) -> None:
    rng = np.random.default_rng(seed)
    held: dict[int, Weights] = {}
    slots = None
    for _ in range(6):
        answering = set(rng.choice(6, rng.integers(1, 4), replace=False).tolist())
        expiring = {number for number in held if number not in answering and rng.random() < 0.2}
        ups = []
        for number in answering | expiring:
            magnitudes = 10 ** rng.uniform(-12, 6, 20)
            new = weights(rng.choice([-1, 1], 20) * magnitudes, int(rng.integers(1, 10**6)))
            ups.append(coming(number, new if number in answering else None, held.get(number)))
            held.pop(number, None)
            if number in answering:
                held[number] = new
        parts = np.split(rng.permutation(len(ups)), [int(rng.integers(0, len(ups) + 1))])
        merged = reduce(Change.merge, [reduce(Change.add, [ups[i] for i in part], Change()) for part in parts])
        slots = changed(slots, merged, LAYOUT)
        afresh = reduce(lambda total, each: total.add(*each), held.items(), WeightedSum())
        assert slots.mean().values.tobytes() == afresh.mean().values.tobytes()
        assert (slots.count, slots.slots) == (afresh.count, len(held))
        assert storage.deserialise(type(slots), storage.serialise(slots)).mean() == slots.mean()


# -- the methods that take it ---------------------------------------------------------------------------------------


def after(spec: Any, state: Any, round_: int, *ups: Contribution) -> Any:
    method = method_of(spec)
    return method.finish(spec, state, ExchangeId(round_, 0), reduce(method.add, ups, method.zero()))


def test_fedavg_with_slots_and_without() -> None:
    for cached, expected in ((True, [3.1, 1.3]), (False, [10 / 3, 4 / 3])):
        spec = spec_of("fedavg", start="equal", cached=cached)
        state = after(spec, method_of(spec).begin(spec), 0, coming(1, C1), coming(2, C2))
        before = C2 if cached else None
        state = after(spec, state, 1, coming(2, C2_AGAIN, before), coming(3, C3))
        np.testing.assert_allclose(state.weights.values, [10 / 3, 4 / 3], rtol=1e-7)
        for round_, down in ((2, [10 / 3, 4 / 3]), (spec.rounds, expected)):  # devices go on from the round's own mean
            common = method_of(spec).common(state, ExchangeId(round_, 0))
            np.testing.assert_allclose(common["weights"].values, down, rtol=1e-7)


def test_models_that_began_differently_get_no_slot() -> None:
    """With start = first, round 0 only finds a common start."""
    spec = spec_of("fedgkd", cached=True, buffer=2)
    state = after(spec, method_of(spec).begin(spec), 0, coming(1, C1), coming(2, C2))
    assert state.models[-1].values.tolist() == [1, 1]
    assert state.slots is None
    state = after(spec, state, 1, coming(2, C2_AGAIN))
    state = after(spec, state, 2, coming(3, C3))
    assert state.models[-1].values.tolist() == [4, 2]
    result = method_of(spec).common(state, ExchangeId(spec.rounds, 0))
    np.testing.assert_allclose(result["weights"].values, [10 / 3, 4 / 3], rtol=1e-7)


def test_an_age_out_of_range_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"^method\.max_slot_age: .*from 0 .*-1$"):
        FedAvg.read({"max_slot_age": -1})


# -- on disk --------------------------------------------------------------------------------------------------------


def test_a_checkpoint_moves_uploads_of_contributors_into_slots_and_drops_old_ones(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    for round_, devices in enumerate(("ab", "bc", "c")):
        ledger.commit(Row(ExchangeId(round_, 0), device, f"{device}{round_}".encode()) for device in (*devices, "late"))
        ledger.close_exchange(ExchangeId(round_, 0), tuple(devices), now=False)
        filled = ledger.contributors(ExchangeId(round_, 0))
        assert filled == tuple(devices)  # not on record yet
        for _ in range(2):  # a disk that refused once is asked again
            ledger.checkpoint(round_ + 1, b"", {}, Slots(filled, oldest=round_ - 1))
    ledger.close()
    again = Ledger(tmp_path / "ledger.db")
    assert [again.slot(device) for device in ("a", "b", "c", "late")] == [None, b"b1", b"c2", None]
    assert again.slots_before(2) == ("b",)
    assert again.uploads(ExchangeId(2, 0)) == {}
    assert again.free_bytes() > 0
    again.close()


def test_slots_without_room_are_warned_of() -> None:
    assert remarks.slot_room(FedAvg(), 20, 10**6, 10**9) is None
    assert remarks.slot_room(FedAvg(), 20, 10**6, None) is None
    warning = remarks.slot_room(FedAvg(), 1000, 10**6, 10**9)
    assert warning is not None
    assert re.match("W8: .*1000 devices .*1,000,000 weights", warning)
    assert re.search("8.0 GB; 1.0 GB .*free", warning)


# -- whole runs -----------------------------------------------------------------------------------------------------


def made(pictures: Path, method: str = "fedavg", **params: Any) -> fleets.Run:
    """Four devices, of which three are too slow for the deadline of a round now and then."""
    tables = fleets.tables(pictures, method, devices=4, rounds=5, quorum=2, deadline_s=2.0)
    tables["method"] = {"cached": True, **params}
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    for number, device in enumerate(run.devices[1:]):
        device.hardware.compute = slow_now_and_then([0.1] * (2 * number + 1) + [3.0])  # type: ignore[method-assign]
    return run


def slow_now_and_then(durations_s: list[float]) -> Callable[..., float]:
    """How long a device computes: these times, over and over."""
    times_s = itertools.cycle(durations_s)
    return lambda *_, **__: next(times_s)


def watched(run: fleets.Run) -> list[tuple[int, tuple[str, ...]]]:
    """A list that fills with (round, who contributed)."""
    seen: list[tuple[int, tuple[str, ...]]] = []
    checkpoint = run.server.ledger.checkpoint

    def noting(round_: int, *arguments: Any, **more: Any) -> None:
        seen.append((round_ - 1, run.server.ledger.contributors(ExchangeId(round_ - 1, 0))))
        checkpoint(round_, *arguments, **more)

    run.server.ledger.checkpoint = noting  # type: ignore[method-assign]  # to listen
    return seen


def run_and_replay(run: fleets.Run, max_age: int = 0) -> tuple[fleets.Run, np.ndarray, int]:
    """A finished run, with the mean over slots as a literal loop makes it, and how many rounds somebody missed."""
    seen, sent = watched(run), run.tap()
    run.run()
    ups = {(m.device, m.round): m for m in sent if isinstance(m, Upload) and not m.closing}
    held: dict[str, tuple[int, Weights]] = {}
    for round_, devices in seen:
        if round_ > 0:  # start = first
            held |= {device: (round_, ups[device, round_].knowledge["weights"]) for device in devices}
            held = {d: each for d, each in held.items() if not max_age or each[0] >= round_ - max_age}
    rows = np.array([up.values for _, up in held.values()], np.float64)
    mean = np.average(rows, axis=0, weights=[up.count for _, up in held.values()])
    assert {d for d in run.server.hellos if run.server.ledger.slot(d)} == set(held)
    return run, mean, sum(len(devices) < 4 for _, devices in seen)


@pytest.mark.parametrize("max_age", [0, 1])
def test_a_run_averages_the_newest_upload_of_everybody(pictures: Path, max_age: int) -> None:
    run, mean, partial = run_and_replay(made(pictures, max_slot_age=max_age), max_age)
    assert run.result.completed
    assert partial >= 4
    np.testing.assert_allclose(run.server.method_state.slots.mean().values, mean, atol=1e-6)
    np.testing.assert_allclose(run.devices[0].participant.context.bench.model.weights(), mean, atol=1e-6)
    frame = run.server.ledger.slot("device-00")
    assert isinstance(codec.decode(frame, Limits(2**24, 2**24)).message, Upload)


def test_slots_change_the_result_and_not_what_is_trained(pictures: Path) -> None:
    runs = [run_and_replay(made(pictures, max_slot_age=age), age)[0] for age in (0, 1)]
    runs.append(made(pictures, cached=False))
    runs[-1].run()
    assert runs[-1].server.ledger.slot("device-00") is None
    assert len({run.server.method_state.weights.values.tobytes() for run in runs}) == 1
    assert len({run.devices[0].participant.context.bench.model.weights().tobytes() for run in runs}) > 1
    ages = [run.server.method_state.slots.mean().values.tobytes() for run in runs[:2]]
    assert ages[0] != ages[1]


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedgkd"])
def test_a_coordinator_that_loses_power_goes_on_to_the_same_bits(pictures: Path, method: str) -> None:
    def built() -> fleets.Run:
        tables = fleets.tables(pictures, method, devices=4, rounds=5)
        tables["method"] = {"cached": True}
        return fleets.Run(settings.parse(tables, Path("test.toml")))

    clean = built()
    clean.run()
    for share in (0.3, 0.55, 0.8):
        run = built()
        run.power_cut("coordinator", share * clean.clock.now_s, 0.1)
        run.run()
        assert run.coordinator_bytes == clean.coordinator_bytes
        assert run.model_bytes == clean.model_bytes


def test_a_round_that_is_finished_twice_counts_once(pictures: Path, tmp_path: Path) -> None:
    """The process dies after the last exchange closed and before the checkpoint: the next one does it again."""
    first = made(pictures)

    class PowerCutError(BaseException):
        """Not to be caught by anything."""

    def dies(*_: object) -> None:
        raise PowerCutError

    checkpoint = first.server.ledger.checkpoint
    first.server.ledger.checkpoint = lambda begun, *rest, **more: (
        dies() if begun == 4 else checkpoint(begun, *rest, **more)
    )
    with pytest.raises(PowerCutError):
        first.run()
    state = first.coordinator_bytes
    first.server.ledger.copy_to(tmp_path / "ledger.db")
    second = fleets.Run(first.fleet, ledger=Ledger(None, tmp_path / "ledger.db"))
    assert second.server.rounds.place.round == 4
    assert second.coordinator_bytes == state


def test_the_operator_hears_of_slots_without_room_when_the_first_device_joins(pictures: Path) -> None:
    run = made(pictures)
    run.server.ledger.free_bytes = lambda: 100  # type: ignore[method-assign]  # a small disk
    run.run()
    assert [each for each in run.result.warnings if each.startswith("W8")] == [remarks.slot_room(FedAvg(), 4, 68, 100)]
