"""FedSSA: what each half does in a round, and its numbers by hand (d = 2 and a bias)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import fleets
import numpy as np
import pytest
from method_specs import FakeDevice, first_step, job, rows_of, spec_of
from payload_bytes import payload_bytes

from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.contract.requests import Fit, WriteHead
from edge_sdk.methods.fedssa import DeviceState, FedSSA, Params, State, fused, inflation, mu
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import storage
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.messages import FederationSpec, Upload
from edge_sdk.protocol.wires import expectation, frame_limits
from edge_sdk.reductions import Contribution
from edge_sdk.reductions.class_rows import mean_over_holders
from edge_sim.config import settings

SPEC = spec_of("fedssa", feature_dim=2)
A = rows_of([0, 1], [[1, 0, 0.1], [0, 1, 0]])
B = rows_of([0, 2], [[3, 2, 0.3], [-1, -1, 0.2]])
HEADER = rows_of([0, 1, 2], [[2, 1, 0.2], [0, 1, 0], [-1, -1, 0.2]], [2, 1, 1])


def near(expected: object) -> object:
    return pytest.approx(np.array(expected), abs=1e-6)


# -- the worked example ---------------------------------------------------------------------------------------------


def reduced(*ups: ClassRows, header: ClassRows | None = None) -> State:
    return finished(SPEC, State(header=header, rounds=5), dict(enumerate(ups)))


def finished(spec: FederationSpec, state: State, ups: dict[int, ClassRows]) -> State:
    bag = FedSSA().zero()
    for number, rows in ups.items():
        bag = FedSSA().add(bag, Contribution(number=number, samples=9, knowledge={"header": rows}))
    return method_of(spec).finish(spec, state, ExchangeId(0, 0), bag)


def test_the_global_header() -> None:
    assert reduced(A, B).header == HEADER


def test_a_class_without_holder_keeps_its_row() -> None:
    after = reduced(A, header=HEADER).header
    assert after is not None
    assert after.rows[:2] == near(A.rows)
    assert after.rows[2] == near([-1, -1, 0.2])


def test_mu_after_one_round() -> None:
    params = Params()
    assert [mu(params, t) for t in range(4)] == pytest.approx([0.5, 0.353553, 0, 0], abs=1e-6)


@pytest.mark.parametrize(
    ("fusion", "a", "b"),
    [
        (
            "literal",
            [[2.353553, 1, 0.235355], [0, 1.353553, 0]],
            [[3.060660, 1.707107, 0.306066], [-1.353553, -1.353553, 0.270711]],
        ),
        (
            "convex",
            [[1.738796, 0.738796, 0.173880], [0, 1, 0]],
            [[2.261204, 1.261204, 0.226120], [-1, -1, 0.2]],
        ),
    ],
)
def test_the_fused_rows(fusion: str, a: list[list[float]], b: list[list[float]]) -> None:
    params = Params(fusion=fusion)
    assert fused(HEADER.rows[[0, 1]], A.rows, params, 1) == near(a)
    assert fused(HEADER.rows[[0, 2]], B.rows, params, 1) == near(b)


def test_rows_of_other_classes_stay_local_through_the_client_half() -> None:
    own = [[1, 0, 0.1], [0, 1, 0], [7, 7, 7]]
    device = FakeDevice(head=own)
    counts = (4, 5, 0)
    device.run(first_step({"header": HEADER}, job(SPEC, 1, class_counts=counts)))
    (write,) = [request for request in device.requests if isinstance(request, WriteHead)]
    assert write.classes.tolist() == [0, 1]
    assert write.rows == near([[1.738796, 0.738796, 0.173880], [0, 1, 0]])
    assert device.head[2].tolist() == [8, 8, 8]  # as it was, and trained


@pytest.mark.parametrize(
    ("mu0", "third"),
    [(0.5, [1.089631, 1.089631, 1.976186]), (0.0, [-1, -1, 0.2])],
    ids=["fused", "case A of Table 3"],
)
def test_all_rows_are_taken_in_where_asked_for(mu0: float, third: list[float]) -> None:
    spec = spec_of("fedssa", feature_dim=2, takes="all", down="all", mu0=mu0)
    device = FakeDevice(head=[[1, 0, 0.1], [0, 1, 0], [7, 7, 7]])
    device.run(first_step({"header": HEADER}, job(spec, 1, class_counts=(4, 5, 0))))
    (write,) = [request for request in device.requests if isinstance(request, WriteHead)]
    assert write.classes.tolist() == [0, 1, 2]
    assert write.rows[2] == near(third)


def test_without_history_the_rows_of_classes_seen_are_replaced() -> None:
    """Case B of Table 3."""
    spec = spec_of("fedssa", feature_dim=2, mu0=0.0)
    device = FakeDevice(head=[[1, 0, 0.1], [0, 1, 0], [7, 7, 7]])
    device.run(first_step({"header": HEADER}, job(spec, 0, class_counts=(4, 5, 0))))
    (write,) = [request for request in device.requests if isinstance(request, WriteHead)]
    assert write.classes.tolist() == [0, 1]
    assert write.rows == near(HEADER.rows[:2])


def after(
    spec: FederationSpec,
    state: State,
    slots: dict[int, ClassRows],
    gone: Sequence[int] = (),
    **ups: ClassRows,
) -> State:
    """A round of devices d0, d1 ..., each with what its slot holds; `gone`: slots that expired."""
    bag = FedSSA().zero()
    for name, rows in ups.items():
        number = int(name[1:])
        before = {"header": slots[number]} if number in slots else {}
        up = Contribution(number=number, samples=9, knowledge={"header": rows}, before=before)
        bag, slots[number] = FedSSA().add(bag, up), rows
    for number in gone:
        up = Contribution(number=number, samples=0, knowledge={}, before={"header": slots.pop(number)})
        bag = FedSSA().add(bag, up)
    return method_of(spec).finish(spec, storage.deserialise(State, storage.serialise(state)), ExchangeId(0, 0), bag)


CACHED = spec_of("fedssa", feature_dim=2, cached=True)
EMPTY = State(header=None, rounds=5)


def test_cached_rows_count_on_while_their_device_pauses() -> None:
    slots: dict[int, ClassRows] = {}
    state = after(CACHED, EMPTY, slots, d2=A, d10=B)
    assert state.header == HEADER
    state = after(CACHED, state, slots, d2=rows_of([0, 1], [[5, 4, 1], [0, 1, 0]]))
    assert state.header.rows == near([[4, 3, 0.65], [0, 1, 0], [-1, -1, 0.2]])
    assert reduced(A, B).slots is None


def test_an_expired_slot_counts_no_more_and_a_class_that_it_alone_had_keeps_its_row() -> None:
    slots: dict[int, ClassRows] = {}
    state = after(CACHED, EMPTY, slots, d0=A, d1=B)
    state = after(CACHED, state, slots, gone=[1], d0=A)
    assert state.header.rows == near([[1, 0, 0.1], [0, 1, 0], [-1, -1, 0.2]])


def test_slots_leave_no_trace_of_what_they_held_before() -> None:
    """As if the newest rows had all come at once, bit for bit, whoever came when."""
    spec = spec_of("fedssa", feature_dim=2, cached=True, weighting="samples")
    rng = np.random.default_rng(3)

    def drawn() -> ClassRows:
        return rows_of([0, 2], (10.0 ** rng.uniform(-8, 3, (2, 3))).tolist(), rng.integers(1, 99, 2).tolist())

    slots: dict[int, ClassRows] = {}
    state = EMPTY
    for number in (10, 1, 11, 10, 9, 1, 2, 10):
        state = after(spec, state, slots, **{f"d{number}": drawn()})
    at_once = after(spec, EMPTY, {}, **{f"d{number}": rows for number, rows in slots.items()})
    assert storage.serialise(state) == storage.serialise(at_once)
    literal = mean_over_holders([slots[number] for number in sorted(slots)])
    assert state.header.rows == pytest.approx(literal.rows, rel=1e-6, abs=1e-10)
    assert state.header.counts.tolist() == literal.counts.tolist()


def test_a_run_with_slots_forgets_no_device(pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedssa", devices=4, rounds=4, quorum=3, deadline_s=2.0)
    tables["method"] = {"cached": True}
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    run.power_cut("device-03", 0.3, 100.0)
    run.finished()
    assert run.server.method_state.slots.slots == 4


@pytest.mark.parametrize(
    ("mu0", "t_stable", "factor"), [(0.5, 2, 2.03), (0.5, 10, 18), (0.5, 45, 2.2e5), (0.5, 100, 6e11), (1.0, 10, 158)]
)
def test_how_far_literal_fusion_inflates(mu0: float, t_stable: int, factor: float) -> None:
    params = Params(mu0=mu0, t_stable=t_stable, fusion="literal")
    assert inflation(params, 1000) == pytest.approx(factor, rel=0.04)
    assert inflation(params, 1) == pytest.approx(1 + mu0)
    warned = FedSSA(params).warnings(spec_of("fedssa", rounds=1000))
    assert [text[:3] for text in warned] == (["W11"] if factor > 10 else [])
    assert FedSSA(Params(mu0=mu0, t_stable=t_stable)).warnings(spec_of("fedssa", rounds=1000)) == ()


# -- the client half ------------------------------------------------------------------------------------------------


def test_a_round_fuses_trains_measures_and_shares_its_own_rows() -> None:
    device = FakeDevice()
    state, up = device.run(first_step({"header": HEADER}, job(SPEC, 3)))
    assert device.kinds == [
        "read head", "write head [0, 2]", "fit private: cross-entropy", "read head", "evaluate 4"
    ]  # fmt: skip
    # mu = 0: the shared rows as they are; a fit of the fake device adds 1
    assert up == {"header": rows_of([0, 2], HEADER.rows[[0, 2]] + 1, [1, 1])}
    assert state == DeviceState((0, 2))
    assert storage.deserialise(DeviceState, storage.serialise(state)) == state


def test_the_private_steps_are_those_of_local_training() -> None:
    device = FakeDevice()
    device.run(first_step({}, job(SPEC, 2)))
    (fit,) = [request for request in device.requests if isinstance(request, Fit)]
    np.testing.assert_array_equal(fit.source.indices, job(SPEC, 2).private_batches(2).indices)


def test_without_a_header_or_with_rows_of_others_only_nothing_is_overwritten() -> None:
    spec = spec_of("fedssa", feature_dim=2, down="all")
    for down in ({}, {"header": rows_of([1], [[1, 1, 1]])}):
        device = FakeDevice()
        device.run(first_step(down, job(spec, 0)))
        assert not any(kind.startswith("write") for kind in device.kinds)


@pytest.mark.parametrize("down", [{}, {"header": rows_of([2], [[1, 1, 1]])}], ids=["nothing", "another class"])
def test_a_row_that_nobody_trained_is_drawn_as_the_coordinator_draws_it(down: dict[str, ClassRows]) -> None:
    spec = spec_of("fedssa", feature_dim=2, mu0=0.0)
    device = FakeDevice()
    device.run(first_step(down, job(spec, 0, class_counts=(4, 5, 0))))
    (write,) = [request for request in device.requests if isinstance(request, WriteHead)]
    assert write.classes.tolist() == [0, 1]
    np.testing.assert_array_equal(write.rows, method_of(spec).begin(spec).header.rows[:2])


def test_a_device_gets_the_rows_of_the_classes_that_it_brought() -> None:
    state, at = finished(SPEC, method_of(SPEC).begin(SPEC), {0: A, 7: B}), ExchangeId(1, 0)
    method = method_of(SPEC)
    assert method.common(state, at) == {}
    sent = {number: method.personal(state, at, number)["header"].classes.tolist() for number in (0, 7, 3)}
    assert sent == {0: [0, 1], 7: [0, 2], 3: [0, 1, 2]}  # 3 brought nothing yet
    np.testing.assert_array_equal(method.personal(state, at, 7)["header"].rows, state.header.rows[[0, 2]])
    state = finished(SPEC, state, {0: B})
    assert method.personal(state, at, 0)["header"].classes.tolist() == [0, 1, 2]
    assert method.personal(state, ExchangeId(SPEC.rounds, 0), 0) == {}


def test_seen_and_all_lead_to_the_same_models(pictures: Path) -> None:
    """Also where a device answers late and another not at all in a round."""
    runs = []
    for down in ("seen", "all"):
        tables = fleets.tables(pictures, "fedssa", devices=5, rounds=5, participants=3)
        tables["method"] = {"down": down}
        runs.append(fleets.Run(settings.parse(tables, Path("test.toml"))).finished())
    assert runs[0].model_bytes == runs[1].model_bytes
    assert sum(each.scalars_down for each in runs[0].result.history) < 0.7 * sum(
        each.scalars_down for each in runs[1].result.history
    )


@pytest.mark.torch
def test_heads_without_bias_take_part_and_their_bias_does_not_travel(pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedssa", devices=3, rounds=3)
    tables["method"] = {"bias": False}
    tables["fleet"] = [{"count": 2, "model": "unbiased:model"}, {"count": 1, "model": "softmax"}]
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    sent = run.tap()
    run.finished()
    assert run.result.completed
    rows = [each.knowledge["header"].rows for each in sent if isinstance(each, Upload) and not each.closing]
    assert {each.shape for each in rows} == {(2, fleets.WIDTH)}
    tables["method"] = {}
    refused = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()
    assert {each["reason"] for each in refused.result.refused_devices} == {"capability"}


def test_closing_measures_the_trained_model_as_it_is() -> None:
    device = FakeDevice()
    state, up = device.run(method_of(SPEC).step(DeviceState((0, 2)), {}, job(SPEC, 5)))
    assert (device.kinds, state, up) == (["evaluate 5"], DeviceState((0, 2)), {})


def test_counts_are_told_only_where_they_weigh() -> None:
    spec = spec_of("fedssa", weighting="samples")
    _, up = FakeDevice().run(first_step({}, job(spec, 0)))
    assert up["header"].counts.tolist() == [4, 5]


def test_other_classes_than_it_joined_with_need_a_new_start() -> None:
    with pytest.raises(UsageError, match=r"classes \[1\] .*\[0, 2\].*state folder"):
        FakeDevice().run(method_of(SPEC).step(DeviceState((1,)), {}, job(SPEC, 2)))


# -- the coordinator half -------------------------------------------------------------------------------------------


def test_round_0_begins_with_a_random_header_of_all_classes_from_the_seed() -> None:
    spec = spec_of("fedssa", feature_dim=2, down="all")
    one, two = method_of(spec).begin(spec), method_of(spec).begin(spec)
    assert one == two
    header = method_of(spec).common(one, ExchangeId(0, 0))["header"]
    assert (header.classes.tolist(), header.rows.shape) == ([0, 1, 2], (3, 3))
    assert 0 < np.abs(header.rows).max() <= 2**-0.5
    assert FedSSA().common(FedSSA().begin(spec_of("fedssa")), ExchangeId(0, 0)) == {}


def test_the_closing_exchange_brings_nothing() -> None:
    assert FedSSA().common(method_of(SPEC).begin(SPEC), ExchangeId(SPEC.rounds, 0)) == {}


def test_bytes_are_those_of_the_table() -> None:
    """K = 10, d = 500: K (d + 1) numbers of 4 bytes each way, 2 (d + 1) for two classes; beside them 4 bytes of class
    id and 4 of count each, which the kind always carries."""
    spec = spec_of("fedssa", classes=10, feature_dim=500, down="all")
    header = method_of(spec).common(method_of(spec).begin(spec), ExchangeId(0, 0))["header"]
    assert header.rows.nbytes == 20_040
    assert header.rows[:2].nbytes == 4_008
    assert payload_bytes(header) == 20_040 + 10 * (4 + 4)
    limits = frame_limits(FedSSA().every_exchange, expectation(spec))
    assert limits.frame_bytes - frame_limits((), expectation(spec)).frame_bytes == payload_bytes(header)


def test_of_a_hundred_classes_a_device_gets_the_ten_that_it_holds() -> None:
    """The paper counts 10 rows of 500 numbers each way, 20 kB, of a head of 200 kB."""
    spec = spec_of("fedssa", classes=100, feature_dim=500, bias=False)
    method, held = method_of(spec), list(range(30, 40))
    state = finished(spec, method.begin(spec), {0: rows_of(held, np.ones((10, 500)))})
    (header,) = method.personal(state, ExchangeId(1, 0), 0).values()
    assert header.rows.nbytes == 20_000
    assert state.header.rows.nbytes == 200_000


@pytest.mark.parametrize(
    "table",
    [
        {"mu0": 1.1},
        {"t_stable": 0},
        {"fusion": "sum"},
        {"weighting": "mean"},
        {"takes": "own"},
        {"cached": 1},
        {"down": "own"},
    ],
)
def test_impossible_parameters_are_refused(table: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=f"method.{next(iter(table))}"):
        FedSSA.read(table)


def test_rows_of_all_classes_can_only_be_taken_in_where_they_come() -> None:
    with pytest.raises(UsageError, match=r"^method\.down: expected all where takes is all, found 'seen'$"):
        FedSSA.read({"takes": "all"})


def test_mu_falls_to_nothing_and_never_rises() -> None:
    params = Params(mu0=1.0, t_stable=7)
    mus = [mu(params, t) for t in range(20)]
    assert all(a >= b for a, b in pairwise(mus))
    assert mus[7:] == [0.0] * 13
    assert mus[3] == pytest.approx(math.cos(3 * math.pi / 14))
