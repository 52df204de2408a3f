"""The cost of resuming a simulation after an interrupt, kept apart from the cost of the run.

In virtual time the interrupt never happened, and yet devices and coordinator reconnect as after a power cut: they say
hello, resend unanswered messages, and recompute unstored results.  All this is counted apart, so that rounds and
devices have the bytes, seconds and joules of an uninterrupted run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from coordinator.rounds import RoundPhase
from coordinator.serving.server import Server
from edge_sdk.device.session import SessionPhase, SessionState
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Limits
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import Assign, Hello, Message, Receipt, Upload, Welcome
from edge_sim.fleet.fleet import Device
from edge_sim.fleet.hardware import Hardware

_ANY_SIZE = Limits(2**30, 2**30)
"""Without limits: this process sent all the frames that are read here."""
NOTHING: Mapping[str, float] = {"times": 0, "bytes_up": 0, "bytes_down": 0, "virtual_s": 0.0, "joules": 0.0}


class RunningDevice(Protocol):
    """A device of the simulation."""

    device: Device
    hardware: Hardware
    powered: bool

    @property
    def session(self) -> SessionState:
        """The state of its session."""

    @property
    def over(self) -> bool:
        """Whether its part in the run has ended."""


def resumption_point(server: Server, lost_s: float) -> dict[str, Any]:
    """Return, for a checkpoint, the messages already sent in the open exchange, and the work to be recomputed.

    lost_s: the longest computing time of a board whose result is not stored yet.
    """
    rounds = server.rounds
    asked = sorted(rounds.invited) if rounds.phase is RoundPhase.COLLECTING else []
    return {
        "place": list(rounds.place),
        "asked": asked,
        "lost_s": lost_s,
    }


class Resumption:
    """Watches a resumed simulation until all devices are back where the checkpoint left them."""

    def __init__(
        self,
        at: Mapping[str, Any],
        before: Mapping[str, float],
        server: Callable[[], Server],
        devices: Sequence[RunningDevice],
        now_s: float,
    ) -> None:
        """at: the result of `resumption_point`.  before: the cost of earlier resumptions of this run."""
        self.cost = {**NOTHING, **before}
        """Bytes, virtual seconds and joules of all resumptions."""
        self.cost["times"] += 1
        self._server, self._devices = server, devices
        self._begun_s, self._lost_s = now_s, float(at["lost_s"])
        self._place = ExchangeId(*at["place"])
        self._known = frozenset(server().hellos)
        self._folded = frozenset(server().rounds.folded)
        self._asked = set(at["asked"])
        self._seen: set[tuple[object, ...]] = set()
        """Kind, device and exchange of the frames since the resumption."""
        self._on_its_way: dict[bytes, deque[bool]] = {}
        """Copies of frames to the coordinator in order, and whether each repeats an already counted one."""
        self._air_s = [device.hardware.air_s for device in devices]
        self._from_the_start = server().record.started_s is None
        """Whether no exchange was open at the checkpoint: then everything is repeated, and the earlier counts are the
        loss."""
        self._all_back_at_s: float | None = None

    # -- frames -----------------------------------------------------------------------------------------------------

    def heard(self, sent: Frame) -> None:
        """Remove a resent frame from the record's counts."""
        if self._listened:
            return
        frame = bytes(sent)
        message = codec.decode(frame, _ANY_SIZE).message
        device = getattr(message, "device", "")
        again = self._repeats(message, device)
        if isinstance(message, (Hello, Upload)):
            self._on_its_way.setdefault(frame, deque()).append(again)
        elif again:
            self._take_out("down", device, frame, message.down if isinstance(message, Assign) else {})

    def arrived(self, came: Frame) -> None:
        """Remove a frame that the coordinator has just counted, in the same round."""
        frame = bytes(came)
        copies = self._on_its_way.get(frame)
        if copies and copies.popleft():
            self._take_out("up", getattr(codec.decode(frame, _ANY_SIZE).message, "device", ""), frame, {})

    def _take_out(self, way: str, device: str, frame: bytes, knowledge: Mapping[str, Payload]) -> None:
        self.cost[f"bytes_{way}"] += len(frame)
        self._server().record.sent_again(way, device, len(frame), knowledge)

    def _repeats(self, message: Message, device: str) -> bool:
        if not isinstance(message, (Hello, Welcome, Assign, Upload, Receipt)):
            return False
        place = ExchangeId(getattr(message, "round", 0), getattr(message, "exchange", 0))
        first = (type(message), device, place) not in self._seen
        self._seen.add((type(message), device, place))
        if isinstance(message, (Hello, Welcome)):
            return first and device in self._known
        if isinstance(message, Assign):
            return first and device in self._asked and place == self._place
        if place == self._place:
            return device in self._folded or not first  # the repeated Assign asks for an upload already on its way
        return place < self._place

    # -- time -------------------------------------------------------------------------------------------------------

    def look(self, now_s: float) -> None:
        """End once all devices are back; called after every event."""
        server = self._server()
        if self._all_back_at_s is not None or not (server.over or self._all_back(server)):
            return
        self._all_back_at_s = now_s
        took_s = self._begun_s if self._from_the_start else now_s - self._begun_s + self._lost_s
        self.cost["virtual_s"] += took_s
        for device, before_s in zip(self._devices, self._air_s, strict=True):
            if device.powered:
                air_s = before_s if self._from_the_start else device.hardware.air_s - before_s
                self.cost["joules"] += device.hardware.set_aside(took_s, air_s)
        if server.record.started_s is not None and not self._from_the_start:
            server.record.started_s += took_s

    @property
    def _listened(self) -> bool:
        """Whether resending is over: all devices are back, and the interrupted round is long over."""
        return self._all_back_at_s is not None and self._server().rounds.place.round > self._place.round + 1

    def _all_back(self, server: Server) -> bool:
        rounds = server.rounds
        if rounds.phase is RoundPhase.GATHERING:
            return False
        return all(not device.powered or device.over or self._is_back(device, rounds.place) for device in self._devices)

    def _is_back(self, device: RunningDevice, place: ExchangeId) -> bool:
        """Whether a device computes or reports the open exchange, or has no part in it."""
        state, name, rounds = device.session, device.device.kit.id, self._server().rounds
        if state.phase is SessionPhase.WORKING:
            return state.exchange_id == place
        if state.phase is SessionPhase.REPORTING:
            return state.exchange_id == place and name not in self._folded
        return state.phase is SessionPhase.IDLE and (name not in rounds.invited or name in rounds.folded)
