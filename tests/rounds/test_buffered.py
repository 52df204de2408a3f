"""The rules of buffers: who gets which version, what counts, and what a repeated or a reordered message changes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coordinator import rounds
from coordinator.rounds import RoundPhase, RoundPolicy
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.messages import FOREVER


def policy(**changes: Any) -> RoundPolicy:
    common = {"expected": 4, "quorum": 4, "rounds": 50, "exchanges": 1, "buffer": 2, "max_staleness": 3}
    return RoundPolicy(**{**common, **changes})


class Coordinator:
    """Carries commands out at once, and notes what happened."""

    def __init__(self, policy_: RoundPolicy) -> None:
        self.state = rounds.resumed(policy_, ExchangeId(0, 0), frozenset())
        self.asked: list[tuple[str, int]] = []
        self.verdicts: list[tuple[str, int, str]] = []
        self.buffers: list[dict[str, int]] = [{}]
        self.now_s = self.opens_at_s = 0.0
        self.skips: list[str] = []

    def feed(self, event: rounds.RoundEvent) -> None:
        self.state, commands = rounds.advance_rounds(self.state, event)
        for command in commands:
            if isinstance(command, rounds.Invite):
                self.asked += [(device, command.place.round) for device in command.devices]
            elif isinstance(command, rounds.Persist):
                self.feed(rounds.Persisted(command.device, command.place, command.upload, self.now_s))
            elif isinstance(command, rounds.Fold):
                self.buffers[-1][command.device] = command.place.round
            elif isinstance(command, rounds.SendReceipt):
                self.verdicts.append((command.device, command.place.round, command.verdict))
            elif isinstance(command, rounds.Reduce):
                self.buffers.append({})
                self.feed(rounds.Finished(self.now_s))
            elif isinstance(command, rounds.Skip):
                self.skips.append(command.reason)
                self.opens_at_s = self.now_s + 10.0
            elif isinstance(command, rounds.Rest):
                waits = self.now_s < self.opens_at_s
                self.feed(rounds.Rested(self.now_s, self.opens_at_s if waits else None, "the pace"))

    def wait_until(self, now_s: float) -> None:
        """Let the clock of the rounds tick whenever something is due, until `now_s`."""
        while (due_s := rounds.rounds_due_s(self.state)) is not None and due_s <= now_s:
            self.now_s = max(self.now_s, due_s)
            self.feed(rounds.RoundTick(self.now_s))
        self.now_s = now_s

    def join(self, *devices: str) -> None:
        for device in devices:
            self.feed(rounds.Joined(device, self.now_s))

    def upload(self, device: str, version: int) -> None:
        self.feed(rounds.Received(device, ExchangeId(version, 0), f"{device}{version}", self.now_s))

    def restart(self) -> None:
        """Lose all but what is durable."""
        now = self.state
        self.state = rounds.resumed(
            now.policy, now.place, frozenset(now.folded), counted_to=now.counted_to, ahead=now.ahead
        )
        self.join("a", "b", "c", "d")

    @property
    def version(self) -> int:
        return self.state.place.round


def ready(**changes: Any) -> Coordinator:
    found = Coordinator(policy(**changes))
    found.join("a", "b", "c", "d")
    return found


def test_two_answers_of_four_make_a_version_and_the_others_count_with_their_age() -> None:
    one = ready()
    assert one.asked == [("a", 0), ("b", 0), ("c", 0), ("d", 0)]
    one.upload("a", 0)
    assert one.asked[4:] == []  # it has computed the newest version
    one.upload("b", 0)
    assert one.asked[4:] == [("a", 1), ("b", 1)]
    one.upload("c", 0)
    assert one.asked[6:] == [("c", 1)]  # at once
    one.upload("a", 1)
    assert one.buffers == [{"a": 0, "b": 0}, {"c": 0, "a": 1}, {}]


def test_a_second_answer_waits_for_the_next_buffer() -> None:
    one = ready(buffer=3)
    for device in "abc":
        one.upload(device, 0)
    one.upload("d", 0)
    one.upload("d", 1)
    assert ("d", 1, "accepted") in one.verdicts
    assert one.buffers[1:] == [{"d": 0}]
    one.upload("a", 1)
    one.upload("b", 1)
    assert one.buffers[1:] == [{"d": 0, "a": 1, "b": 1}, {"d": 1}]


def test_too_old_an_upload_is_late_and_its_device_gets_work() -> None:
    one = ready(max_staleness=0)
    for version in range(2):
        one.upload("a", version)
        one.upload("b", version)
    one.upload("d", 0)
    assert one.verdicts == [("d", 0, "late")]
    assert one.asked[-1] == ("d", 2)


def test_uploads_of_the_first_version_do_not_age_where_weights_began_apart() -> None:
    one = ready(first_ageing=1)
    one.upload("a", 0)
    one.upload("b", 0)
    one.upload("c", 0)
    assert one.verdicts == [("c", 0, "late")]


def test_only_busy_devices_compute_and_nobody_is_left_out() -> None:
    one = ready(busy=2)
    assert len(one.asked) == 2
    for _ in range(12):
        device, version = next(each for each in one.asked if each[0] in one.state.work)
        one.upload(device, one.state.work[device].version)
        assert len(one.state.work) <= 2
        del version
    assert {device for device, _ in one.asked} == set("abcd")


def test_a_device_that_joins_again_gets_the_newest_version_and_its_old_upload_still_counts() -> None:
    one = ready()
    one.upload("a", 0)
    one.upload("b", 0)
    one.join("c")
    assert one.asked[-1] == ("c", 1)
    one.upload("c", 0)
    assert one.buffers[1] == {"c": 0}
    assert one.state.work["c"].version == 1


def test_a_buffer_closes_at_the_deadline_with_what_it_has() -> None:
    one = ready(deadline_s=10.0)
    one.upload("a", 0)
    one.now_s = 10.0
    one.feed(rounds.RoundTick(10.0))
    assert one.version == 1
    assert one.buffers[0] == {"a": 0}


def test_after_a_restart_uploads_that_waited_count_and_no_upload_counts_twice() -> None:
    waited = rounds.Persisted("d", ExchangeId(4, 0), "d4", 0.0)
    one = Coordinator(policy())
    one.state = rounds.resumed(
        policy(), ExchangeId(4, 0), frozenset("d"), counted_to={"a": 3, "d": 4, "b": 2}, ahead=(waited,)
    )
    one.join("a", "b", "c", "d")
    assert one.buffers == [{}]  # d's first one is in it: its second one is for the next
    one.upload("d", 4)
    one.upload("b", 2)
    assert [verdict for _, _, verdict in one.verdicts] == ["duplicate", "duplicate"]
    one.upload("b", 3)
    assert one.buffers == [{"b": 3}, {"d": 4}]


def service(**changes: Any) -> Coordinator:
    return ready(rounds=FOREVER, quorum=2, paced=True, forever=True, patience=0, **changes)


def test_the_pace_says_who_gets_work_and_what_comes_counts_at_any_time() -> None:
    one = service()
    one.opens_at_s = 3600.0
    for device in "ab":
        one.upload(device, 0)
    assert (one.state.phase, one.version, len(one.asked)) == (RoundPhase.RESTING, 1, 4)
    for device in "cd":
        one.upload(device, 0)  # a full buffer is aggregated, and again nobody gets work
    assert (one.state.phase, one.version, len(one.asked)) == (RoundPhase.RESTING, 2, 4)
    assert one.buffers == [{"a": 0, "b": 0}, {"c": 0, "d": 0}, {}]
    one.wait_until(3600.0)
    assert one.asked[4:] == [("a", 2), ("b", 2), ("c", 2), ("d", 2)]


def test_a_device_that_joins_again_while_versions_rest_gets_its_work_once_they_open() -> None:
    one = service()
    one.opens_at_s = 3600.0
    for device in "ab":
        one.upload(device, 0)
    one.join("c")
    assert len(one.asked) == 4
    one.wait_until(3600.0 + one.state.policy.retry_s)
    assert set(one.asked[4:]) == {("a", 1), ("b", 1), ("c", 1)}  # d still has its first work


def test_a_buffer_that_nobody_fills_is_skipped_and_tried_again() -> None:
    one = service(deadline_s=10.0)
    one.wait_until(100.0)
    assert one.skips[0] == "0 uploads came of the 1 needed; silent: a, b, c, d"
    assert len(one.skips) > 2
    assert one.state.phase is not RoundPhase.FAILED
    one.upload("a", 0)
    one.upload("b", 0)
    assert one.version == 1


@given(st.permutations(["a", "b", "c", "d"]), st.lists(st.integers(0, 3), max_size=12))
def test_any_order_within_a_buffer_and_any_repetition_fills_it_alike(order: list[str], again: list[int]) -> None:
    one = ready(buffer=4)
    for version in range(3):
        for at, device in enumerate(order):
            one.upload(device, version)
            for each in again:
                if each <= at and one.version == version:
                    one.upload(order[each], version)
    assert one.buffers == [dict.fromkeys("abcd", version) for version in range(3)] + [{}]
    assert one.state.phase is RoundPhase.COLLECTING


@given(st.data())
def test_any_run_counts_every_version_of_a_device_once_and_fills_every_buffer(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([ready, service]))
    one = kind(buffer=data.draw(st.integers(1, 4)), busy=4, max_staleness=data.draw(st.integers(0, 4)))
    sent: list[tuple[str, int]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        if kind is service:
            one.wait_until(one.now_s + data.draw(st.sampled_from([0.0, 1.0])))
            one.opens_at_s = one.now_s + data.draw(st.sampled_from([0.0, 0.5]))
        if data.draw(st.integers(0, 9)) == 0:
            one.restart()
        at_work = sorted((device, work.version) for device, work in one.state.work.items())
        if not at_work + sent:
            continue
        device, version = data.draw(st.sampled_from(at_work + sent[-3:]))
        if data.draw(st.booleans()) and data.draw(st.booleans()):
            one.join(device)
            continue
        sent.append((device, version))
        one.upload(device, version)
        assert one.state.work or one.state.folded or one.state.phase is RoundPhase.RESTING
    counted = [(device, version) for buffer in one.buffers for device, version in buffer.items()]
    assert len(counted) == len(set(counted))
    assert all(len(buffer) == one.state.policy.buffer for buffer in one.buffers[:-1])
    for now, buffer in enumerate(one.buffers):
        assert all(0 <= now - version <= max(1, one.state.policy.max_staleness) for version in buffer.values())
