"""A second run under one name: nothing of the first one ends, moves or counts for anybody in the second."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from notes import Notes
from one_world import ROUNDS, STATUS, World

from coordinator.deploy import LEDGER, open_ledger
from coordinator.rounds import RoundPhase
from edge_sdk.device.refused_assigns import AssignStamps
from edge_sdk.device.session import SessionPhase
from edge_sdk.errors import RunFailed, UsageError
from edge_sdk.policy.policy import Objection
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.messages import Assign, CoordinatorStatus, Receipt, Upload, Welcome
from edge_sdk.transport.base import Connected, Disconnected, Incoming, SendRefused


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_end_of_an_earlier_run_ends_no_device_of_a_later_one(world: World) -> None:
    first = world.device("attic")
    world.until(lambda: first.over)
    first.participant.raise_if_failed()
    _, finished = world.last(CoordinatorStatus)
    world.agents.clear()
    world.begin()
    second = world.device("cellar")
    world.until(lambda: second.participant.context.session.phase is SessionPhase.WORKING, computing=False)
    world.publish(STATUS, finished)  # an attacker, or a broker that was set back
    world.turn(computing=False)
    assert not second.over
    world.until(lambda: second.over)
    second.participant.raise_if_failed()
    assert world.server.record.rounds_done["cellar"] == ROUNDS


def test_living_devices_of_an_earlier_run_join_the_next_one_at_once(world: World) -> None:
    agent = world.device()
    world.until(lambda: agent.participant.context.session.phase is SessionPhase.WORKING, computing=False)
    first = world.server.ledger.run
    world.begin()  # no clock passes
    world.until(lambda: agent.over)
    agent.participant.raise_if_failed()
    assert world.server.ledger.run != first
    assert world.server.rounds.phase is RoundPhase.DONE
    assert world.server.ledger.epoch == 1


def test_an_upload_to_an_earlier_run_never_counts_in_a_later_one(world: World) -> None:
    agent = world.device()
    world.until(lambda: any(isinstance(message, Upload) for _, message in world.sent))
    world.begin()
    agent.participant.handle(
        Connected(), world.now_s
    )  # after a reconnect: it says Hello, and sends again what has no receipt
    world.turn(hearing=False)
    assert world.server.rounds.phase is RoundPhase.COLLECTING
    assert world.server.rounds.place == (0, 0)
    assert not world.server.rounds.folded
    assert world.server.record.refused_frames == {}  # an honest device that has not heard of the new run yet


def test_an_upload_to_an_earlier_run_of_a_device_on_the_roster_is_no_fault_before_it_joins(tmp_path: Path) -> None:
    world = World(tmp_path, roster=("attic",))
    agent = world.device()
    world.until(lambda: any(isinstance(message, Upload) for _, message in world.sent))
    frame = agent.participant.context.store.upload(*agent.participant.context.session.exchange_id)
    world.begin()
    assert frame is not None
    world.publish(topics.up("app", "attic", "upd"), frame)
    world.turn(hearing=False, computing=False)
    assert world.server.record.refused_frames == {}
    world.until(lambda: agent.over)
    agent.participant.raise_if_failed()


def test_a_stranger_that_uploads_is_asked_for_a_hello_and_joins(world: World) -> None:
    agent = world.device()
    world.until(lambda: agent.participant.context.session.phase is SessionPhase.WORKING, computing=False)
    world.begin()
    world.turn(computing=False, hearing=False)  # the device hears nothing of the new coordinator
    for event in iter(lambda: agent.participant.context.transport.poll(0.0), None):
        del event
    world.turn(hearing=False)
    world.turn(hearing=False, computing=False)  # its upload comes as that of a stranger
    asked = world.sent[-1]
    assert asked[0] == topics.down("app", "attic", "join")
    assert isinstance(asked[1], CoordinatorStatus)
    assert (asked[1].greet, asked[1].run) == (True, world.server.ledger.run)
    assert world.server.record.refused_frames == {"attic": {"stranger": 1}}
    world.until(lambda: agent.over)
    agent.participant.raise_if_failed()


def test_what_is_of_another_run_moves_no_device(world: World) -> None:
    agent = world.device()
    world.until(lambda: agent.participant.context.session.phase is SessionPhase.WORKING, computing=False)
    other, epoch = bytes(16), world.server.ledger.epoch
    later = Assign(federation="app", device="attic", round=1, exchange=0, run=other)
    closing = Receipt(federation="app", device="attic", round=0, exchange=0, verdict="accepted", run=other)
    world.publish(topics.down("app", "attic", "task"), codec.encode(later, codec.Stamp(epoch, 99)))
    world.publish(topics.down("app", "attic", "rcpt"), codec.encode(closing, codec.Stamp(epoch, 99)))
    earlier = Assign(federation="app", device="attic", round=1, exchange=0, run=world.server.ledger.run)
    world.publish(topics.down("app", "attic", "task"), codec.encode(earlier, codec.Stamp(epoch - 1, 99)))
    world.turn(computing=False)
    assert agent.participant.context.session.exchange_id == (0, 0)
    assert agent.participant.incoming.refused == {"replayed": 3}


def test_what_is_of_another_federation_moves_no_device(world: World) -> None:
    """It came on the device's own topic, and is right in all else."""
    agent = world.device()
    world.until(lambda: agent.participant.context.session.phase is SessionPhase.WORKING, computing=False)
    own = world.server.ledger
    later = Assign(federation="other", device="attic", round=1, exchange=0, run=own.run)
    world.publish(topics.down("app", "attic", "task"), codec.encode(later, codec.Stamp(own.epoch, 99)))
    world.turn(computing=False)
    assert agent.participant.context.session.exchange_id == (0, 0)
    assert agent.participant.incoming.refused == {"topic": 1}


def test_a_device_without_its_closing_exchange_reports_no_success(tmp_path: Path) -> None:
    world = World(tmp_path, devices=2, quorum=1)
    slow, quick = world.device("attic"), world.device("cellar")
    world.until(lambda: slow.participant.context.session.exchange_id == (ROUNDS - 1, 0))  # its upload is sent
    del world.agents["attic"]  # it hears and computes nothing for a while
    world.until(lambda: quick.over)
    quick.participant.raise_if_failed()
    world.now_s += 1000.0
    world.until(lambda: world.server.over)
    world.agents["attic"] = slow
    world.turn(computing=False)
    assert slow.over
    with pytest.raises(RunFailed):
        slow.participant.raise_if_failed()


def test_one_that_comes_after_a_failed_run_is_told_why(world: World) -> None:
    agent = world.device()
    world.until(lambda: agent.participant.context.session.phase is SessionPhase.WORKING, computing=False)
    agent.participant.handle(Disconnected("the link was lost"), world.now_s)
    agent.participant.context.transport.close()
    for _ in range(10):
        world.now_s += 1000.0
        world.server.tick(world.now_s)
    assert world.server.rounds.phase is RoundPhase.FAILED
    news: list[str] = []
    agent.on_link(news.append)
    agent.participant.connect()
    stranger = world.device("cellar")
    stranger.on_link(news.append)
    world.turn(computing=False)
    with pytest.raises(RunFailed, match="attic"):
        agent.participant.raise_if_failed()
    assert not stranger.over
    assert any("attic" in line for line in news)


def test_a_broker_that_takes_nothing_from_a_device_is_told_to_the_app(world: World) -> None:
    agent = world.device()
    news: list[str] = []
    agent.on_link(news.append)
    agent.participant.handle(SendRefused("fl/v1/app/up/3/attic/hello", "Not authorized"), world.now_s)
    assert any("Not authorized" in line and "fl/v1/app/up/3/attic/hello" in line for line in news)


def test_uploads_that_are_too_long_for_the_broker_are_told_to_the_app_once_and_to_the_coordinator(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = world.device()
    news: list[str] = []
    told: list[tuple[str, Objection | None]] = []
    agent.on_link(news.append)
    monkeypatch.setattr(agent.participant.uplink, "announce", lambda *status: told.append(status))
    for _ in range(2):
        agent.participant.handle(
            SendRefused("fl/v1/app/up/3/attic/upd", "lab:1883: raise its limit", too_long=True), world.now_s
        )
    assert [line for line in news if "raise its limit; until then" in line] == news
    assert len(news) == 1
    assert told == [("ready", Objection("broker-limit", "broker lab:1883: raise its limit"))] * 2


def test_a_coordinator_that_stopped_before_anybody_joined_leaves_nothing_to_resume(tmp_path: Path) -> None:
    path = tmp_path / "run" / LEDGER
    path.parent.mkdir(parents=True)
    with closing(open_ledger(tmp_path / "run", resume=False, quarantine=False, tell=print)) as begun:
        begun.bind(b"settings")
    with closing(open_ledger(tmp_path / "run", resume=False, quarantine=False, tell=print)) as again:
        assert again.bind(b"other settings")
        again.enrol("attic", None, b"hello")
    with pytest.raises(UsageError, match="--resume"):
        open_ledger(tmp_path / "run", resume=False, quarantine=False, tell=print)


def test_a_run_that_fails_after_an_outage_names_it(world: World) -> None:
    agent = world.device()
    world.until(lambda: agent.participant.context.session.phase is SessionPhase.WORKING, computing=False)
    del world.agents["attic"]
    world.server.handle(Disconnected("the broker went away"), world.now_s)
    world.now_s += 25.0
    world.server.handle(Connected(), world.now_s)
    for _ in range(10):
        world.now_s += 1000.0
        world.server.tick(world.now_s)
    assert "for 25 s" in world.server.rounds.reason


@pytest.mark.parametrize(("newer", "lines"), [(0, 0), (1, 1)])
def test_a_coordinator_whose_rounds_went_back_is_told_once(world: World, newer: int, lines: int) -> None:
    agent = world.device()
    said: list[str] = []
    agent.on_link(said.append)
    world.until(lambda: any(isinstance(message, Assign) for _, message in world.sent), computing=False)
    topic, first = world.last(Assign)
    world.until(lambda: agent.participant.context.session.exchange_id.round == 1, computing=True)
    earlier = codec.decode(first)
    assert isinstance(earlier.message, Assign)
    for _ in range(2):  # a copy of the first frame, or one that the coordinator made after the last
        stamp = earlier.stamp
        world.publish(
            topic, codec.encode(earlier.message, Stamp(stamp.boot_epoch, stamp.sequence + newer * 1000, stamp.key_id))
        )
        world.turn(computing=False)
    assert sum("older backup" in line for line in said) == lines


@pytest.mark.parametrize("starts", [1, 2], ids=["a start later than any", "a start that devices know"])
def test_a_run_folder_that_came_back_from_an_older_copy_is_told_on_both_sides(tmp_path: Path, starts: int) -> None:
    notes, said = Notes(), list[str]()
    world = World(tmp_path, observer=notes)
    agent = world.device()
    agent.on_link(said.append)
    world.until(lambda: agent.participant.context.session.phase is SessionPhase.WORKING, computing=False)
    world.server.ledger.copy_to(tmp_path / "ledger-2.db")
    if starts == 2:  # the original goes on with its second start, which the copy then counts, too
        world.server.close()
        world.runs = 0
        world.begin()
        for _ in range(100):  # in which it sends more than the copy will
            world.server._sender.announce("ready", "")
    world.until(lambda: agent.participant.context.session.exchange_id.round == 1)
    world.server.close()
    world.begin()
    assert world.server.ledger.epoch == 2
    for _ in range(12):
        world.now_s += 20.0
        world.turn(computing=False)
    assert sum("older backup" in line for line in said) == 1
    assert sum("older backup" in line for line in notes.lines) == 1


def test_copies_of_old_frames_tell_of_no_backup() -> None:
    """One after the other, as a broker repeats what it had kept; and one that was late."""
    stamps = AssignStamps()
    for sequence in range(1, 9):
        assert not stamps.shows_loss(Stamp(2, sequence), earlier_round=False)
    assert not any(stamps.shows_loss(Stamp(2, sequence), earlier_round=True) for sequence in range(1, 9))
    assert not any(stamps.shows_loss(Stamp(1, 7), earlier_round=True) for _ in range(9))
    assert not stamps.shows_loss(Stamp(1, 6), earlier_round=True)  # not a later one than the one before
    assert stamps.shows_loss(Stamp(2, 9), earlier_round=True)


def test_an_upload_of_a_round_that_this_run_has_not_reached_is_told_once(tmp_path: Path) -> None:
    notes = Notes()
    world = World(tmp_path, observer=notes)
    world.device()
    world.until(lambda: any(isinstance(message, Upload) for _, message in world.sent))
    topic, first = world.last(Upload)
    upload = codec.decode(first)
    assert isinstance(upload.message, Upload)
    for number in (1, 2):
        ahead = replace(upload.message, round=ROUNDS + number)
        world.publish(topic, codec.encode(ahead, Stamp(upload.stamp.boot_epoch, upload.stamp.sequence + number)))
        world.turn(hearing=False, computing=False)
    assert sum("older backup" in line for line in notes.lines) == 1


def test_an_assign_that_the_broker_kept_is_begun_with_the_welcome(world: World) -> None:
    """A long one would not come again as a whole: its sender repeats the first chunk alone."""
    agent = world.device()
    world.until(lambda: agent.participant.context.session.phase is SessionPhase.WORKING, computing=False)
    topic, assign = world.last(Assign)
    _, welcome = world.last(Welcome)
    again = world.device()
    again.participant.handle(Connected(), world.now_s)
    again.participant.handle(Incoming(topic, assign), world.now_s)
    assert again.participant.context.session.phase is SessionPhase.JOINING
    again.participant.handle(Incoming(topics.down("app", "attic", "join"), welcome), world.now_s)
    assert again.participant.context.session.phase is SessionPhase.WORKING
    assert again.participant.context.session.exchange_id == agent.participant.context.session.exchange_id


def test_an_assign_of_another_run_that_the_broker_kept_is_none(world: World) -> None:
    agent = world.device()
    world.until(lambda: agent.participant.context.session.phase is SessionPhase.WORKING, computing=False)
    topic, assign = world.last(Assign)
    world.begin()
    world.until(lambda: agent.participant.context.session.run == world.server.ledger.run, computing=False)
    _, welcome = world.last(Welcome)
    again = world.device()
    again.participant.handle(Connected(), world.now_s)
    again.participant.handle(Incoming(topic, assign), world.now_s)
    again.participant.handle(Incoming(topics.down("app", "attic", "join"), welcome), world.now_s)
    assert again.participant.context.session.phase is SessionPhase.IDLE
