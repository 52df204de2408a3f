"""The queue around the round machine: what is carried out when, and what waits for a disk that refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator import rounds
from coordinator.rounds import (
    EndRun,
    Fold,
    Invite,
    Joined,
    Reduce,
    RoundCommand,
    RoundDone,
    RoundEvent,
    RoundPhase,
    RoundPolicy,
    RoundState,
)
from coordinator.rounds.queue import DISK_AGAIN_S, RECONNECT_GRACE_S, RoundQueue
from edge_sdk.errors import StoreError
from edge_sdk.protocol.exchange_id import ExchangeId

POLICY = RoundPolicy(expected=2, quorum=2, rounds=1, exchanges=1)


class Disk:
    """Carries commands out, but for those that it is told to refuse."""

    def __init__(self, state: RoundState) -> None:
        self.done: list[RoundCommand] = []
        self.refuses: Callable[[RoundCommand], bool] = lambda _: False
        self.notes: list[str] = []
        self.queue = RoundQueue(state, self.carry_out, self.notes.append)

    def carry_out(self, command: RoundCommand, now_s: float) -> RoundEvent | None:
        if self.refuses(command):
            raise StoreError("ledger.db: disk I/O error")
        self.done.append(command)
        return rounds.Finished(now_s) if isinstance(command, Reduce) else None

    def kinds(self) -> list[type]:
        kinds = [type(each) for each in self.done]
        self.done.clear()
        return kinds


@pytest.fixture
def disk() -> Disk:
    """Two devices have joined, and are at work on the first exchange."""
    disk = Disk(RoundState(policy=POLICY))
    disk.queue.feed(Joined("a", 0.0), Joined("b", 0.0), now_s=0.0)
    assert disk.kinds() == [Invite]
    return disk


def persisted(*devices: str, round_: int = 0) -> list[RoundEvent]:
    return [rounds.Persisted(each, ExchangeId(round_, 0), f"upload of {each}", 1.0) for each in devices]


def refuses(kind: type) -> Callable[[RoundCommand], bool]:
    return lambda command: isinstance(command, kind)


def test_what_follows_from_a_command_comes_before_events_that_wait(disk: Disk) -> None:
    """The upload of the next exchange finds it open."""
    disk.queue.feed(*persisted("a", "b"), *persisted("a", round_=1), now_s=1.0)
    assert disk.kinds() == [Fold, Fold, Reduce, RoundDone, Invite, Fold]


@pytest.mark.parametrize("kind", [Fold, Reduce, RoundDone])
def test_everything_waits_behind_a_command_that_the_disk_refuses(disk: Disk, kind: type) -> None:
    disk.refuses = refuses(kind)
    disk.queue.feed(*persisted("a", "b"), now_s=1.0)
    before, state = disk.kinds(), disk.queue.state
    assert kind not in before
    assert disk.queue.held
    disk.queue.feed(rounds.Left("b", 2.0), now_s=2.0)
    disk.queue.tick(1.0 + DISK_AGAIN_S / 2)
    assert disk.kinds() == []
    assert disk.queue.state is state
    assert disk.queue.next_due_s() == 1.0 + DISK_AGAIN_S
    assert len(disk.notes) == 1
    assert disk.notes[0].startswith("ledger.db: disk I/O error")

    disk.queue.tick(1.0 + DISK_AGAIN_S)  # refused once more
    assert disk.kinds() == []
    disk.refuses = lambda _: False
    disk.queue.tick(1.0 + 2 * DISK_AGAIN_S)
    assert not disk.queue.held
    assert before + disk.kinds() == [Fold, Fold, Reduce, RoundDone, Invite, EndRun]  # b has left
    assert "b" in disk.queue.state.gone


def test_each_fold_has_its_own_upload_when_the_disk_is_back(disk: Disk) -> None:
    disk.refuses = lambda command: isinstance(command, Fold) and command.device == "a"
    disk.queue.feed(*persisted("a", "b"), now_s=1.0)
    assert disk.done == []
    disk.refuses = lambda _: False
    disk.queue.tick(1.0 + DISK_AGAIN_S)
    folded = [(each.device, each.upload) for each in disk.done if isinstance(each, Fold)]
    assert folded == [("a", "upload of a"), ("b", "upload of b")]


def test_a_run_is_over_when_its_last_command_is_carried_out(disk: Disk) -> None:
    disk.queue.feed(*persisted("a", "b"), *persisted("a", round_=1), now_s=1.0)
    disk.refuses = refuses(Fold)
    disk.queue.feed(*persisted("b", round_=1), now_s=2.0)
    assert disk.queue.state.phase is RoundPhase.DONE
    assert not disk.queue.over
    disk.queue.give_up("no reason to fail it", 3.0)
    assert disk.queue.state.phase is RoundPhase.DONE
    disk.refuses = lambda _: False
    disk.queue.tick(2.0 + DISK_AGAIN_S)
    assert disk.queue.over
    assert disk.done[-1] == EndRun("")


@pytest.mark.parametrize("kind", [Fold, Reduce, RoundDone])
def test_a_run_can_be_given_up_while_the_disk_refuses(disk: Disk, kind: type) -> None:
    disk.refuses = refuses(kind)
    disk.queue.feed(*persisted("a", "b"), now_s=1.0)
    disk.queue.give_up("the devices are gone", 2.0)
    assert disk.queue.over
    assert not disk.queue.held
    assert disk.queue.state.phase is RoundPhase.FAILED
    assert disk.done[-1] == EndRun("the devices are gone")


def test_a_run_that_has_failed_says_so_although_the_disk_refuses() -> None:
    disk = Disk(replace(RoundState(policy=POLICY), phase=RoundPhase.FINISHING, gone=frozenset("b")))
    disk.refuses = refuses(RoundDone)
    disk.queue.feed(rounds.Finished(1.0), now_s=1.0)
    assert disk.queue.state.phase is RoundPhase.FAILED
    assert not disk.queue.over
    disk.queue.give_up("the devices are gone", 2.0)
    assert disk.queue.over
    assert disk.done == [EndRun(disk.queue.state.reason)]


@pytest.mark.parametrize("kind", [Fold, None])
def test_the_clock_stands_still_while_the_disk_refuses(disk: Disk, kind: type | None) -> None:
    """A command or a commit is refused for longer than the deadline: whoever has not answered yet keeps its time."""
    due_s, held_s = disk.queue.state.due_s, 4 * POLICY.deadline_s
    if kind is None:
        disk.queue.hold(1.0)
        disk.queue.feed(*persisted("a"), now_s=1.0)
    else:
        disk.refuses = refuses(kind)
        disk.queue.feed(*persisted("a"), now_s=1.0)
        disk.queue.tick(1.0 + DISK_AGAIN_S)
        disk.refuses = lambda _: False
    disk.queue.tick(1.0 + held_s)
    assert not disk.queue.held
    assert disk.kinds() == [Fold]
    assert disk.queue.state.due_s == due_s + held_s
    disk.queue.feed(rounds.RoundTick(due_s + held_s - 1.0), now_s=due_s + held_s - 1.0)
    assert disk.queue.state.misses == 0


def test_the_clock_stands_still_without_a_link(disk: Disk) -> None:
    due_s = disk.queue.state.due_s
    disk.queue.link_lost(1.0)
    disk.queue.link_lost(5.0)  # another reason for the same outage
    assert disk.queue.next_due_s() is None
    disk.queue.tick(due_s + 1.0)
    assert disk.kinds() == []
    disk.queue.link_restored(1.0 + 1000.0)
    assert disk.queue.state.due_s == due_s + 1000.0
    disk.queue.tick(disk.queue.state.due_s)
    assert disk.kinds() == [Invite]  # the first deadline without an answer


def test_devices_have_time_to_come_back_after_the_link_has(disk: Disk) -> None:
    disk.queue.link_lost(disk.queue.state.due_s - 0.5)
    back_s = disk.queue.state.due_s + 60.0
    disk.queue.link_restored(back_s)
    assert disk.queue.state.due_s == back_s + RECONNECT_GRACE_S
