"""The memory transport keeps the transport contract, too; here without a clock, so that frames arrive at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import pytest
from suite import LinkFactory, TransportSuite, until

from edge_sdk.errors import LocalProtocolError
from edge_sdk.transport.base import Connected, Disconnected, Transport, Will
from edge_sdk.transport.chunks import CHUNK_BYTES
from edge_sdk.transport.memory.hub import Faults, Hub, MemoryTransport
from edge_sim.clock.clock import VirtualClock


class TestMemory(TransportSuite):
    @pytest.fixture
    def link(self) -> Iterator[LinkFactory]:
        self.hub = Hub()
        opened: list[MemoryTransport] = []

        def make(client_id: str) -> MemoryTransport:
            opened.append(self.hub.link(client_id))
            return opened[-1]

        yield make
        for transport in opened:
            transport.close()

    def sever(self, transport: Transport) -> None:
        assert isinstance(transport, MemoryTransport)
        self.hub.drop_link(transport.client_id, 1.0)


class Pair:
    """A sender and a receiver of t/b on a hub with a virtual clock."""

    def __init__(self, faults: Faults | None = None, seed: int = 0) -> None:
        self.clock = VirtualClock()
        self.hub = Hub(self.clock, faults, seed)
        self.sender, self.receiver = self.hub.link("a"), self.hub.link("b")
        self.sender.connect([], Will("t/st/a", b"lost"))
        self.receiver.connect(["t/b", "t/st/+"])
        until(self.receiver, Connected)

    def pass_time(self) -> list[object]:
        """What the receiver has heard in the end: frames and changes of the link."""
        while self.clock.step():
            pass
        heard = []
        while (event := self.receiver.poll(0)) is not None:
            heard.append(getattr(event, "frame", event))
        return heard


def numbered(pair: Pair, count: int) -> list[bytes]:
    sent = [n.to_bytes(2, "big") for n in range(count)]
    for frame in sent:
        pair.sender.send("t/b", frame)
    return sent


def test_only_bytes_travel() -> None:
    pair = Pair()
    with pytest.raises(LocalProtocolError, match=r"^t/b: .*bytes, not bytearray"):
        pair.sender.send("t/b", bytearray(b"1"))  # type: ignore[arg-type]  # the fault under test


def test_a_short_frame_does_not_overtake_a_long_one_of_the_same_sender() -> None:
    pair = Pair()
    pair.sender.transfer_s = lambda size, *, up: 0.1 * size if up else 0.0
    slow, fast = b"n" * 30, b"m"
    pair.sender.send("t/b", slow)
    pair.sender.send("t/b", fast)
    other = pair.hub.link("c")
    other.connect([])
    other.send("t/b", b"of another")
    assert pair.pass_time() == [b"of another", slow, fast]
    assert pair.clock.now_s == pytest.approx(3.0)


def test_a_frame_takes_its_time_on_both_links() -> None:
    clock = VirtualClock()
    hub = Hub(clock)
    sender = hub.link("a", lambda size, *, up: 3.0 * size if up else 100.0)
    receiver = hub.link("b", lambda size, *, up: 100.0 if up else 0.5 * size)
    sender.connect([])
    receiver.connect(["t/b"])
    sender.send("t/b", b"four")
    assert clock.step()
    assert clock.now_s == 4 * 3.5


LONG, OTHER = b"first".ljust(CHUNK_BYTES + 1), b"other".ljust(CHUNK_BYTES + 1)
"""Two frames that travel in chunks over MQTT."""


def over_slow_link(times_s: Mapping[float, bytes], *, lost_at_s: float | None = None) -> list[tuple[float, object]]:
    """What a receiver hears, and when, of frames that are sent at these times over a link that takes 10 s for each."""
    pair = Pair()
    pair.sender.transfer_s = lambda _size, *, up: 10.0 if up else 0.0
    for time_s, frame in times_s.items():
        pair.clock.at(time_s, partial(pair.sender.send, "t/b", frame))
    if lost_at_s is not None:
        pair.clock.at(lost_at_s, lambda: pair.hub.drop_link("a", 0.5))
    heard = []
    while pair.clock.step():
        while (event := pair.receiver.poll(0)) is not None:
            heard.append((pair.clock.now_s, getattr(event, "frame", event)))
    return heard


def test_a_long_frame_is_not_sent_again_while_the_link_is_busy_with_it() -> None:
    assert over_slow_link({0.0: LONG, 4.0: LONG, 9.0: LONG}) == [(10.0, LONG)]
    assert over_slow_link({0.0: LONG, 4.0: LONG, 12.0: LONG}) == [(10.0, LONG), (22.0, LONG)]  # it may have got lost


def test_other_frames_are_sent_meanwhile() -> None:
    assert over_slow_link({0.0: LONG, 4.0: OTHER, 6.0: LONG}) == [(10.0, LONG), (14.0, OTHER), (16.0, LONG)]
    assert over_slow_link({0.0: b"short", 4.0: b"short"}) == [(10.0, b"short"), (14.0, b"short")]


def test_a_long_frame_is_sent_again_over_a_new_connection() -> None:
    heard = over_slow_link({0.0: LONG, 4.0: LONG}, lost_at_s=2.0)
    assert heard == [(10.0, LONG), (12.0, b"lost"), (14.0, LONG)]


@pytest.mark.parametrize(
    ("faults", "expected"),
    [(Faults(drop=0.3), 0.7), (Faults(duplicate=0.3), 1.3), (Faults(drop=0.3, duplicate=0.3), 0.91)],
    ids=["drop", "duplicate", "both"],
)
def test_faults_come_as_often_as_asked(faults: Faults, expected: float) -> None:
    pair = Pair(faults)
    numbered(pair, 4000)
    assert len(pair.pass_time()) / 4000 == pytest.approx(expected, abs=0.05)


def test_held_up_frames_are_overtaken_and_none_is_lost() -> None:
    pair = Pair(Faults(delay=0.5, delay_s=2.0))
    sent = numbered(pair, 200)
    heard = pair.pass_time()
    assert sorted(heard) == sent
    assert heard != sent
    assert 1.5 < pair.clock.now_s <= 2.0


def test_the_same_seed_brings_the_same_faults() -> None:
    faults = Faults(drop=0.2, duplicate=0.2, delay=0.3)

    def heard(seed: int) -> list[object]:
        pair = Pair(faults, seed)
        numbered(pair, 50)
        return pair.pass_time()

    assert heard(1) == heard(1)
    assert heard(1) != heard(2)


def test_a_disconnected_receiver_misses_frames_and_comes_back() -> None:
    pair = Pair()
    pair.hub.drop_link("b", 5.0)
    pair.sender.send("t/b", b"missed")
    pair.clock.at(6.0, lambda: pair.sender.send("t/b", b"heard"))
    assert pair.pass_time() == [Disconnected("the link was lost"), Connected(), b"heard"]


def test_a_frame_under_way_is_lost_with_the_link() -> None:
    clock = VirtualClock()
    hub = Hub(clock)
    sender, receiver = hub.link("a"), hub.link("b", lambda _size, *, up: 0.0 if up else 2.0)
    sender.connect([])
    receiver.connect(["t/b"])
    sender.send("t/b", b"under way")
    clock.at(1.0, lambda: hub.drop_link("b", 10.0))
    while clock.step():
        pass
    assert [type(receiver.poll(0)).__name__ for _ in range(4)] == ["Connected", "Disconnected", "Connected", "NoneType"]


def test_a_power_cut_publishes_the_will_and_is_final() -> None:
    pair = Pair()
    pair.hub.drop_link("a", 5.0)
    pair.hub.cut_power("a")
    pair.sender.send("t/b", b"too late")
    assert pair.pass_time() == [b"lost"]  # once, and the link that would be back after 5 s is not
    assert not pair.sender.online


def test_a_second_client_with_the_same_id_takes_the_place_of_the_first() -> None:
    pair = Pair()
    again = pair.hub.link("b")
    again.connect(["t/b"])
    pair.sender.send("t/b", b"1")
    (lost,) = pair.pass_time()
    assert isinstance(lost, Disconnected)
    assert [getattr(event, "frame", event) for event in iter(lambda: again.poll(0), None)] == [Connected(), b"1"]
