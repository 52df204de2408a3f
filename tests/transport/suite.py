"""What every transport must do; a test class inherits this and says how links are made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from edge_sdk.errors import LocalProtocolError
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Transport, TransportEvent, Will
from edge_sdk.transport.chunks import CHUNK_BYTES

PATIENCE_S = 60.0
QUIET_S = 0.2

LinkFactory = Callable[[str], Transport]


def until(transport: Transport, wanted: type[TransportEvent], timeout_s: float = PATIENCE_S) -> TransportEvent:
    """The next event of a kind; others on the way are skipped."""
    end_s = time.monotonic() + timeout_s
    while (left_s := end_s - time.monotonic()) > 0:
        event = transport.poll(left_s)
        if isinstance(event, wanted):
            return event
    raise AssertionError(f"no {wanted.__name__} within {timeout_s} s")


def frames(transport: Transport, count: int) -> list[tuple[str, bytes]]:
    """The next frames, as (topic, frame)."""
    found = (until(transport, Incoming) for _ in range(count))
    return [(event.topic, event.frame) for event in found if isinstance(event, Incoming)]


class TransportSuite:
    """Inherit, and override the fixture `link` and, where they apply, `sever` and `limit_bytes`."""

    limit_bytes: int | None = None
    """The largest frame that the links of this class take; None: there is no limit to test."""

    @pytest.fixture
    def link(self) -> LinkFactory:
        """A factory of links to one and the same broker; it closes them after the test."""
        raise NotImplementedError

    def sever(self, transport: Transport) -> None:  # noqa: ARG002  for those who override it
        """Cut the link as a power failure would."""
        pytest.skip("this transport has no link to cut")

    @staticmethod
    def up(link: LinkFactory, name: str, *patterns: str, will: Will | None = None) -> Transport:
        """A link that is connected and subscribed."""
        transport = link(name)
        transport.connect(patterns, will)
        assert until(transport, Connected) == Connected()
        return transport

    def test_says_connected_once_and_then_nothing(self, link: LinkFactory) -> None:
        transport = self.up(link, "a", "t/a")
        assert transport.poll(QUIET_S) is None

    def test_connects_without_subscriptions(self, link: LinkFactory) -> None:
        self.up(link, "a")

    @pytest.mark.parametrize("size", [1, 1500, 65_536, 65_537, 3_000_000])
    def test_frames_arrive_byte_for_byte(self, link: LinkFactory, size: int) -> None:
        sender, receiver = self.up(link, "a"), self.up(link, "b", "t/b")
        frame = os.urandom(size)
        sender.send("t/b", frame)
        assert frames(receiver, 1) == [("t/b", frame)]
        assert receiver.poll(0) is None

    def test_a_short_frame_overtakes_a_long_one(self, link: LinkFactory) -> None:
        sender, receiver = self.up(link, "a"), self.up(link, "b", "t/+")
        sender.send("t/long", os.urandom(4_000_000))
        sender.send("t/short", b"1")
        assert {topic for topic, _ in frames(receiver, 2)} == {"t/long", "t/short"}

    def test_long_frames_of_several_senders_do_not_mix(self, link: LinkFactory) -> None:
        senders, receiver = [self.up(link, name) for name in "abc"], self.up(link, "r", "t/+")
        sent = {f"t/{n}": os.urandom(500_000) for n in range(3)}
        for sender, (topic, frame) in zip(senders, sent.items(), strict=True):
            sender.send(topic, frame)
        assert dict(frames(receiver, 3)) == sent

    def test_frames_of_one_sender_arrive_in_order(self, link: LinkFactory) -> None:
        sender, receiver = self.up(link, "a"), self.up(link, "b", "t/b")
        sent = [n.to_bytes(2, "big") + bytes(2000) for n in range(100)]
        for frame in sent:
            sender.send("t/b", frame)
        assert [frame for _, frame in frames(receiver, 100)] == sent

    def test_a_plus_stands_for_one_level(self, link: LinkFactory) -> None:
        sender, receiver = self.up(link, "a"), self.up(link, "b", "t/up/+/+/upd")
        for topic in ("t/up/3/x/upd", "t/up/upd", "t/up/3/x/bye", "t/up/3/x/y/upd", "t/up/4/y/upd"):
            sender.send(topic, topic.encode())
        assert [topic for topic, _ in frames(receiver, 2)] == ["t/up/3/x/upd", "t/up/4/y/upd"]
        assert receiver.poll(QUIET_S) is None

    def test_other_topics_are_not_delivered(self, link: LinkFactory) -> None:
        sender, receiver, other = self.up(link, "a"), self.up(link, "b", "t/b", "t/c"), self.up(link, "d", "t/d")
        for topic in ("t/x", "t", "t/b/c", "t/c"):
            sender.send(topic, b"1")
        assert frames(receiver, 1) == [("t/c", b"1")]
        assert other.poll(QUIET_S) is None

    def test_both_ways_at_once(self, link: LinkFactory) -> None:
        one, two = self.up(link, "a", "t/a"), self.up(link, "b", "t/b")
        for n in range(20):
            one.send("t/b", bytes([n]))
            two.send("t/a", bytes([n]))
        assert frames(one, 20) == [("t/a", bytes([n])) for n in range(20)]
        assert frames(two, 20) == [("t/b", bytes([n])) for n in range(20)]

    def test_a_retained_frame_reaches_a_late_subscriber_until_it_is_cleared(self, link: LinkFactory) -> None:
        sender, early = self.up(link, "a"), self.up(link, "b", "t/st/+")
        sender.send("t/st/a", b"old", retain=True)
        sender.send("t/st/a", b"new", retain=True)
        sender.send("t/st/c", b"passing")
        frames(early, 3)
        late = self.up(link, "late", "t/st/+")
        assert frames(late, 1) == [("t/st/a", b"new")]
        assert late.poll(QUIET_S) is None
        sender.send("t/st/a", b"", retain=True)
        assert frames(early, 1) == [("t/st/a", b"")]
        assert self.up(link, "later", "t/st/+").poll(QUIET_S) is None

    def test_a_cut_link_publishes_the_will_and_keeps_it(self, link: LinkFactory) -> None:
        watcher = self.up(link, "w", "t/st/+")
        victim = self.up(link, "v", will=Will("t/st/v", b"lost"))
        self.sever(victim)
        assert frames(watcher, 1) == [("t/st/v", b"lost")]
        assert frames(self.up(link, "late", "t/st/+"), 1) == [("t/st/v", b"lost")]

    def test_a_cut_link_comes_back_and_delivers(self, link: LinkFactory) -> None:
        sender, victim = self.up(link, "a"), self.up(link, "v", "t/v")
        self.sever(victim)
        assert not until(victim, Disconnected).final
        until(victim, Connected)
        sender.send("t/v", b"again")
        assert frames(victim, 1) == [("t/v", b"again")]

    def test_closing_publishes_no_will_and_loses_nothing_sent(self, link: LinkFactory) -> None:
        watcher = self.up(link, "w", "t/+", "t/st/+")
        leaver = self.up(link, "v", will=Will("t/st/v", b"lost"))
        for n in range(20):
            leaver.send("t/bye", bytes([n]))
        leaver.send("t/bye", bytes(2 * CHUNK_BYTES))
        leaver.close()
        sent = [*(bytes([n]) for n in range(20)), bytes(2 * CHUNK_BYTES)]
        assert frames(watcher, 21) == [("t/bye", frame) for frame in sent]
        assert watcher.poll(QUIET_S) is None

    def test_sending_without_a_link_is_harmless(self, link: LinkFactory) -> None:
        receiver, sender = self.up(link, "b", "t/b"), link("a")
        sender.send("t/b", b"too early")
        sender.connect([])
        until(sender, Connected)
        sender.send("t/b", b"in time")
        sender.close()
        sender.send("t/b", b"too late")
        sender.close()
        assert frames(receiver, 1) == [("t/b", b"in time")]
        assert receiver.poll(QUIET_S) is None

    def test_a_frame_above_the_limit_is_refused_and_the_link_stands(self, link: LinkFactory) -> None:
        if self.limit_bytes is None:
            pytest.skip("this transport has no limit")
        sender, receiver = self.up(link, "a"), self.up(link, "b", "t/b")
        with pytest.raises(LocalProtocolError, match=f"{self.limit_bytes + 1} bytes for t/b"):
            sender.send("t/b", bytes(self.limit_bytes + 1))
        sender.send("t/b", bytes(self.limit_bytes))
        assert len(frames(receiver, 1)[0][1]) == self.limit_bytes
        assert sender.poll(QUIET_S) is None

    def test_polling_waits_no_longer_than_asked(self, link: LinkFactory) -> None:
        transport = self.up(link, "a")

        def poll_s() -> float:
            began_s = time.monotonic()
            assert transport.poll(0) is None
            assert transport.poll(0.1) is None
            return time.monotonic() - began_s

        took_s = poll_s()
        assert took_s > 0.09
        assert took_s < 1.0 or min(poll_s() for _ in range(5)) < 1.0  # a busy machine may keep it from running once
