"""Why a simulated device has not answered.  The simulation knows; a coordinator could only guess."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from coordinator.record.observer import RunObserver
from coordinator.record.units import human_seconds
from edge_sdk.device.participant import Participant
from edge_sdk.protocol.exchange_id import FIRST, ExchangeId
from edge_sdk.transport.memory.hub import Hub
from edge_sim.clock.clock import VirtualClock
from edge_sim.clock.scenario_faults import SwitchableDevice

_WHY_OFF: Mapping[str, str] = {
    "hours": "these are not its hours",
    "drop-out": "its power failed while it computed",
    "power cut": "its power was cut",
    "battery": "its battery is empty",
    "broken": "it is broken",
}
_POWER_CUT = _WHY_OFF["power cut"]


class SilentDevice(SwitchableDevice, Protocol):
    """The interface of a device whose silence is explained."""

    @property
    def participant(self) -> Participant:
        """Its present participant."""

    @property
    def online(self) -> bool:
        """Whether it is connected to the broker."""


@dataclass(frozen=True, slots=True)
class AwaitedExchange:
    """The coordinator's knowledge of an exchange that a device has not answered."""

    at: ExchangeId
    opened_s: float
    now_s: float
    broker_away: bool


class SilenceCauses(RunObserver):
    """Explains why a device has not answered in the open exchange."""

    def __init__(self, clock: VirtualClock, hub: Hub, ask: Callable[[str, AwaitedExchange], str]) -> None:
        """ask: calls DeviceGroup.why_silent in the device's process."""
        self._clock, self._hub, self._ask = clock, hub, ask
        self._at, self._opened_s = FIRST, 0.0

    def opened(self, at: ExchangeId, devices: Collection[str]) -> None:  # noqa: ARG002  # an observer's method
        """Note which exchange is open, and since when."""
        if at != self._at:
            self._at, self._opened_s = at, self._clock.now_s

    def __call__(self, name: str) -> str:
        """Describe the cause of a device's silence."""
        return self._ask(name, AwaitedExchange(self._at, self._opened_s, self._clock.now_s, self._hub.down))


def why_silent(device: SilentDevice, exchange: AwaitedExchange) -> str:
    """Describe why a device has not answered."""
    faults, participant, now_s = device.faults, device.participant, exchange.now_s
    if not device.powered:
        return f"it is off: {_why_off(device)}"
    if exchange.broker_away:
        return "the broker is away"
    if not device.online:
        return "its link is lost"
    computed_s = device.hardware.unfinished_s(now_s)
    if participant.work.busy and computed_s:
        slow = faults.slowed if faults is not None else 1.0
        heat = device.hardware.heat(now_s)
        words = f"it has computed for {human_seconds(computed_s)} and is not done"
        return words + f", {slow:g} times as slow as usual" * (slow > 1) + ", slowed by heat" * (heat == 1.0)
    if faults is not None and faults.off_at_s is not None and faults.off_at_s >= exchange.opened_s:
        return f"it was off meanwhile: {_why_off(device)}"
    link = device.device.kit.link_name
    if participant.context.session.exchange_id == exchange.at:
        return f"its upload is on its way, over {link}"
    return f"its task has not reached it, over {link}"


def _why_off(device: SilentDevice) -> str:
    return _WHY_OFF[device.faults.why_off] if device.faults is not None and device.faults.why_off else _POWER_CUT
