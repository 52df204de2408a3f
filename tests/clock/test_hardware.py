"""Seconds and joules of one board, by hand."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.boards.profiles import Board, Effort, load_board, load_link
from edge_sim.fleet.hardware import FleetTotals, Hardware

NOTHING = Effort()
BOARD = dataclasses.replace(
    load_board("rpi4"),
    train_flops_per_s=100.0,
    infer_flops_per_s=200.0,
    memory_bytes_per_s=1e9,
    call_s=0.0,
    disk_bytes_per_s=50.0,
    idle_w=2.0,
    busy_w=5.0,
    throttles_after_s=10.0,
    throttled_share=0.5,
)
LINK = dataclasses.replace(
    load_link("wifi"),
    up_bytes_per_s=100,
    down_bytes_per_s=200,
    latency_s=1.0,
    packet_bytes=1000,
    packet_overhead_bytes=0,
    message_overhead_bytes=0,
    loss=0.0,
    radio_w=10.0,
)


def hardware(board: Board = BOARD, **own: float) -> Hardware:
    found = Hardware(board, LINK, **own)
    found.power_on(0.0)
    return found


def test_energy_is_idle_computing_and_radio() -> None:
    board = hardware()
    assert board.compute(Effort(flops=300), Effort(flops=200), 5.0) == 4.0
    assert board.transfer_s(100, up=True) == 2.0
    assert board.used_j(5.0) == 2.0 * 5 + 10.0 * 1
    assert board.used_j(7.0) == 2.0 * 7 + (5.0 - 2.0) * 2 + 10.0
    assert board.used_j(20.0) == 2.0 * 20 + (5.0 - 2.0) * 4 + 10.0
    assert (board.busy_s(7.0), board.busy_s(20.0), board.spent(20.0).flops) == (2.0, 4.0, 500)


def test_what_is_saved_takes_its_time() -> None:
    board = hardware()
    assert board.compute(Effort(flops=300), NOTHING, 0.0, saved_bytes=100) == 3.0 + 2.0
    assert board.compute(Effort(flops=300), NOTHING, 9.0, slow_factor=2.0, saved_bytes=100) == 6.0 + 2.0


def test_a_board_that_is_off_draws_nothing_and_its_computing_ends() -> None:
    board = hardware()
    board.compute(Effort(flops=800), NOTHING, 0.0)
    board.power_off(3.0)
    assert (board.busy_s(50.0), board.used_j(50.0)) == (3.0, 5.0 * 3)
    board.power_on(100.0)
    assert board.used_j(101.0) == 5.0 * 3 + 2.0


def test_a_newer_task_ends_the_older() -> None:
    board = hardware()
    board.compute(Effort(flops=500), NOTHING, 0.0)
    board.compute(Effort(flops=100), NOTHING, 2.0)
    assert board.busy_s(10.0) == 3.0


def test_a_hot_board_is_slower_and_rest_cools_it() -> None:
    board = hardware()
    assert board.throttled_s(6.0, 0.0) == 6.0
    assert board.throttled_s(6.0, 6.0) == 4.0 + 2.0 / 0.5  # 4 s until it is hot, the rest at half the speed
    assert board.throttled_s(3.0, 14.0) == 6.0
    assert board.throttled_s(3.0, 24.0) == 1.0 * 3 + 0.0 + 0.0  # after 4 s of rest it is 6 s warm, and stays below 10
    assert board.throttled_s(10.0, 1000.0) == 10.0


def test_a_board_that_never_throttles() -> None:
    board = hardware(dataclasses.replace(BOARD, throttles_after_s=0.0))
    assert board.throttled_s(1e6, 0.0) == 1e6


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=20))
def test_heat_only_ever_slows_and_never_below_its_share(tasks: list[tuple[float, float]]) -> None:
    board, now_s = hardware(), 0.0
    for rest_s, cold_s in tasks:
        now_s += rest_s
        took_s = board.throttled_s(cold_s, now_s)
        assert cold_s - 1e-9 <= took_s <= cold_s / BOARD.throttled_share + 1e-9
        now_s += took_s


def test_a_battery_runs_out_and_is_charged_while_it_is_off() -> None:
    board = hardware(battery_wh=1.0, charge_w=1.0)  # 3600 J
    assert board.empty_at_s(0.0) == 1800.0
    board.compute(Effort(flops=1000), NOTHING, 0.0)
    assert board.empty_at_s(0.0) == 720.0  # as if it went on computing
    assert board.left_j(100.0) == 3600 - 2.0 * 100 - 3.0 * 10
    board.power_off(100.0)
    assert board.full_at_s(100.0) == 330.0
    board.power_on(200.0)
    assert board.left_j(200.0) == pytest.approx(3600 - 230 + 100)
    board.power_off(200.0)
    board.power_on(1e6)
    assert board.left_j(1e6) == pytest.approx(3600)
    assert board.left_share(1e6 + 1800) == pytest.approx(0.0)


def test_on_the_mains_nothing_runs_out() -> None:
    board = hardware()
    assert board.left_j(0.0) is board.left_share(0.0) is board.empty_at_s(0.0) is board.full_at_s(0.0) is None


def test_it_goes_on_from_a_checkpoint() -> None:
    first = hardware(battery_wh=1.0)
    first.compute(Effort(flops=2000), NOTHING, 0.0)
    plain = first.to_json(15.0)
    second = Hardware(BOARD, LINK, battery_wh=1.0)
    second.restore(plain, 15.0)
    second.power_on(15.0)
    for now_s in (15.0, 40.0):
        assert second.used_j(now_s) == pytest.approx(2.0 * now_s)  # what was not stored is computed again
        assert second.left_j(now_s) == pytest.approx(3600 - 2.0 * now_s - 3.0 * 15)  # and the battery gave it
    assert (first.unfinished_s(15.0), second.spent(40.0).flops) == (15.0, 0)


def test_what_is_stored_counts_after_a_checkpoint() -> None:
    first = hardware()
    first.compute(Effort(flops=500), NOTHING, 0.0)
    first.stepped(3)
    first.stored()
    second = Hardware(BOARD, LINK)
    second.restore(first.to_json(15.0), 15.0)
    assert second.spent(15.0) == first.spent(15.0)
    assert (second.spent(15.0).flops, second.spent(15.0).steps, first.unfinished_s(15.0)) == (500, 3, 0.0)


def test_what_is_set_aside_is_in_no_total_and_the_battery_gave_it() -> None:
    board = hardware(battery_wh=1.0)
    board.transfer_s(300, up=True)
    before_j, air_s = board.used_j(20.0), board.air_s
    assert board.set_aside(4.0, air_s) == 2.0 * 4 + 10.0 * air_s
    assert board.used_j(20.0) == before_j - 2.0 * 4 - 10.0 * air_s
    assert board.left_j(20.0) == pytest.approx(3600 - before_j)


def test_the_total_of_a_fleet_has_the_bits_of_a_loop() -> None:
    boards = [Hardware(load_board("rpi4"), load_link("wifi")) for _ in range(7)]
    totals = FleetTotals(boards)
    for now_s in (0.0, 0.3, 1.7, 2.9, 4.1):
        for place, board in enumerate(boards):
            if (place + int(10 * now_s)) % 3 == 0:
                board.power_on(now_s)
                board.transfer_s(1000 + 37 * place, up=True)
                board.compute(Effort(1e8 * (place + 1)), Effort(), now_s)
            elif place == 4:
                board.power_off(now_s)
        each = [board.spent(now_s + 0.1) for board in boards]
        looped = [sum(getattr(one, name) for one in each) for name in ("busy_s", "energy_j", "flops")]
        assert [*totals.total(now_s + 0.1)[:3]] == looped
