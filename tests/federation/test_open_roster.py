"""A federation without a roster: devices that never upload take no seat, keep nobody out, and fill neither disk nor log."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest
from notes import Notes
from one_world import CLASSES, ROUNDS, World

from coordinator.record.run_record import MAX_REFUSED, MAX_STRANGERS
from coordinator.rounds import RoundPhase
from coordinator.serving.membership import MOST_ON_PROBATION
from edge_sdk.device.session import SessionPhase
from edge_sdk.errors import Refused
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import Bye, Hello
from edge_sdk.terminal import EVERY_S, FIRST_LINES, LineBudget

HONEST = ("attic", "cellar", "garage")


class Lines(Notes):
    """Keeps, too, whom the coordinator turned away."""

    def turned_away(self, device: str, message: str) -> None:
        self.lines.append(f"{device}: {message}")


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def world(tmp_path: Path, lines: Lines) -> World:
    return World(tmp_path, devices=3, observer=lines, deadline_s=8.0, patience=1)


def strangers(world: World, count: int, *, leave: bool = False, name: str = "stranger") -> None:
    """Hellos as honest devices say them, and nothing after them; leave: but a Bye."""
    link = world.hub.link("crowd")
    link.connect([])
    model = Hello(federation="app", device="x", classes=CLASSES, capabilities=("predict",), terms=("cross-entropy",))
    for number in range(count):
        device = f"{name}-{number}"
        hello = dataclasses.replace(model, device=device, instance=number.to_bytes(8, "big"))
        link.send(topics.up("app", device, "hello"), codec.encode(hello, codec.Stamp(1, 1)))
        if leave:
            link.send(
                topics.up("app", device, "bye"), codec.encode(Bye(federation="app", device=device), codec.Stamp(1, 2))
            )


def complete(world: World) -> None:
    """Let time pass, a deadline at most, until the honest devices are done."""
    for _ in range(60):
        world.turn()
        if all(agent.over for agent in world.agents.values()) and world.server.over:
            break
        world.now_s += 1.0
    for agent in world.agents.values():
        agent.participant.raise_if_failed()
    assert world.server.rounds.phase is RoundPhase.DONE
    assert {name: world.server.record.rounds_done[name] for name in HONEST} == dict.fromkeys(HONEST, ROUNDS)


def test_a_crowd_that_comes_while_all_seats_are_taken_changes_nothing(
    world: World, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    for name in HONEST:
        world.device(name)
    world.until(lambda: world.server.rounds.place == (1, 0))
    before = len(lines.lines)
    with caplog.at_level(logging.WARNING):
        strangers(world, 400)
        world.turn(computing=False)
    record = world.server.record
    assert set(world.server.numbers) == set(HONEST)
    assert {note["reason"] for note in record.refused_devices.values()} == {"full"}
    assert len(record.refused_devices) == MAX_REFUSED
    assert set(record.bytes_down) | set(record.bytes_up) == set(HONEST)
    assert len(lines.lines) - before <= FIRST_LINES
    complete(world)


@pytest.mark.parametrize("count", [5, 200])
def test_a_crowd_that_comes_first_keeps_nobody_out(world: World, count: int) -> None:
    strangers(world, count)
    world.turn()
    assert len(world.server.numbers) == min(count, len(HONEST) + MOST_ON_PROBATION)
    for name in HONEST:
        world.device(name)
    complete(world)


def test_a_crowd_that_stays_silent_ends_no_run_before_the_devices_are_there(tmp_path: Path, lines: Lines) -> None:
    world = World(tmp_path, devices=3, observer=lines, deadline_s=8.0, patience=1, open=True)
    strangers(world, 5)
    for _ in range(10):
        world.turn()
        world.now_s += 8.0
    assert world.server.rounds.phase is RoundPhase.COLLECTING
    for name in HONEST:
        world.device(name)
    complete(world)


def test_a_crowd_that_says_hello_and_bye_does_not_end_the_run(world: World, lines: Lines) -> None:
    strangers(world, 20, leave=True)
    world.turn()
    assert not world.server.numbers
    assert len(lines.lines) <= FIRST_LINES
    for name in HONEST:
        world.device(name)
    complete(world)


def test_uploads_of_strangers_cost_few_lines(world: World, caplog: pytest.LogCaptureFixture) -> None:
    link = world.hub.link("crowd")
    link.connect([])
    with caplog.at_level(logging.WARNING, logger="coordinator"):
        for number in range(200):
            link.send(topics.up("app", f"stranger-{number}", "upd"), b"?")
        world.turn()
    assert len(caplog.records) == FIRST_LINES
    refused = world.server.record.refused_frames
    assert len(refused) == MAX_STRANGERS + 1
    assert sum(counts["stranger"] for counts in refused.values()) == 200


def test_one_too_many_is_refused_with_the_remedy_and_more_seats_admit_it(tmp_path: Path) -> None:
    for seats in (1, 2):
        folder = tmp_path / str(seats)
        folder.mkdir()
        world = World(folder, devices=1, most_devices=seats)
        first = world.device("attic")
        world.until(lambda world=world: world.server.rounds.place == (1, 0))
        second = world.device("cellar")
        world.turn(computing=False)
        world.turn(computing=False)
        if seats == 2:
            assert second.participant.context.session.phase is not SessionPhase.JOINING
            continue
        with pytest.raises(Refused, match=r"federation\.most_devices") as refused:
            second.participant.raise_if_failed()
        assert refused.value.reason == "full"
        assert not first.over


def test_a_device_that_says_farewell_gives_up_its_seat(tmp_path: Path) -> None:
    world = World(tmp_path, devices=2, quorum=1)
    world.device("attic"), world.device("cellar")
    world.until(lambda: world.server.rounds.place == (1, 0))
    world.agents.pop("cellar").participant.sign_off(leaving="sold")
    third = world.device("garage")
    world.until(lambda: third.participant.context.session.phase is not SessionPhase.JOINING)
    assert third.participant.refusal is None


def test_a_line_a_minute_says_how_many_were_left_out() -> None:
    budget = LineBudget()
    told = [budget.line("refused", now_s) for now_s in range(300)]
    assert sum(line is not None for line in told) == FIRST_LINES + 300 // EVERY_S - 1
    assert told[:FIRST_LINES] == ["refused"] * FIRST_LINES
    assert any(line and "50 more" in line for line in told)
