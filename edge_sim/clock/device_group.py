"""All devices of one process: their costs, states and models, and whether they are over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from edge_sdk.device.participant import Participant
from edge_sdk.device.store import Store
from edge_sdk.methods.contract import brought_code
from edge_sdk.models.base import Model
from edge_sdk.protocol.messages import FederationSpec
from edge_sim.clock.silence import AwaitedExchange, SilentDevice, why_silent
from edge_sim.clock.store_parts import StoreParts
from edge_sim.clock.whole_fleet import Figures, FleetMeasurements, Wanted
from edge_sim.engines.base import Untraced, untraced_of
from edge_sim.fleet.fleet import Device
from edge_sim.fleet.hardware import DeviceCost, Hardware


class SimulatedDevice(SilentDevice, Protocol):
    """The interface of a device that a group needs."""

    device: Device
    hardware: Hardware
    powered: bool
    excused: bool

    @property
    def participant(self) -> Participant:
        """Its present participant."""

    @property
    def dormant(self) -> bool:
        """Whether it has had no work yet, and so has no participant; reading `participant` makes one."""

    @property
    def sleeps(self) -> bool:
        """Whether it has no participant, with or without earlier work; reading `participant` makes one."""

    @property
    def store(self) -> Store:
        """The store of a device that has had work."""

    @property
    def over(self) -> bool:
        """Whether its part in the run has ended."""


class DeviceGroup:
    """Devices of a run, in the order of their numbers."""

    def __init__(
        self,
        devices: Sequence[SimulatedDevice],
        spec: FederationSpec,
        settle: Callable[[Participant], None],
        kept: Mapping[str, str] | None = None,
    ) -> None:
        """settle: waits until no computation uses a participant's model.

        kept: in a resumed run, the part of the checkpoint with each device's store, by id.
        """
        self._devices = tuple(devices)
        self._parts = StoreParts(devices[0].device.kit.number if devices else 0, kept or {})
        self._by_number = {each.device.kit.number: each for each in devices}
        self._measurements = FleetMeasurements(spec, lambda number: self._by_number[number].participant, settle)
        self._brought = sorted({name for each in devices for name in each.device.kit.brought})
        self._running = list(devices)
        """Devices that are not known to be over."""

    def all_over(self) -> bool:
        """Whether all are over or excused; called after every event, so it skips those known to be over."""
        while self._running and (self._running[-1].over or self._running[-1].excused):
            self._running.pop()
        if not self._running:  # rare: recheck all, as an excused device may have come back
            self._running = [device for device in self._devices if not (device.over or device.excused)]
        return not self._running

    def powered(self) -> int:
        """Number of devices that are switched on."""
        return sum(each.powered for each in self._devices)

    def spent(self, now_s: float) -> dict[str, DeviceCost]:
        """Return the cost of the run so far for each device, by id."""
        return {each.device.kit.id: each.hardware.spent(now_s) for each in self._devices}

    def board_figures(self, now_s: float, names: Collection[str]) -> dict[str, dict[str, float]]:
        """Return the present figures of the boards of these devices, as BoardFigures."""
        found = {}
        for each in self._devices:
            if each.device.kit.id not in names:
                continue
            board, heat = each.hardware, each.hardware.heat(now_s)
            figures = {"busy_s": board.busy_s(now_s), "air_s": board.air_s, "energy_j": board.used_j(now_s)}
            found[each.device.kit.id] = figures | ({} if heat is None else {"heat": heat})
        return found

    def hardware(self, now_s: float) -> dict[str, dict[str, Any]]:
        """Return the state of each board as plain values, by id."""
        return {each.device.kit.id: each.hardware.to_json(now_s) for each in self._devices}

    def why_silent(self, number: int, exchange: AwaitedExchange) -> str:
        """Describe why a device has not answered."""
        return why_silent(self._by_number[number], exchange)

    def unfinished_s(self, now_s: float) -> float:
        """Return the longest computing time of a board whose result is not stored yet."""
        return max((each.hardware.unfinished_s(now_s) for each in self._devices), default=0.0)

    def dormant(self) -> list[str]:
        """Return the ids of the devices that have had no work yet, and so keep nothing."""
        return [each.device.kit.id for each in self._devices if each.dormant]

    def _awake(self) -> Iterator[SimulatedDevice]:
        return (each for each in self._devices if not each.dormant)

    def copy_stores(self, folder: Path, last: Path) -> None:
        """Write the stores of the devices that have had work into a folder of a checkpoint.

        last: the folder of the last checkpoint, whose unchanged files are taken over.
        """
        self._parts.save(folder, last, {each.device.kit.id: each.store for each in self._awake()})

    def untraced(self) -> Untraced:
        """Return the models that this process trains untraced, with the reasons."""
        return untraced_of(each.participant.context.bench for each in self._devices if not each.sleeps)

    def measure(self, rounds: int, state: Any, wanted: Sequence[Wanted]) -> list[Figures]:
        """Implement MeasureAll for these devices."""
        with brought_code.as_model_error(self._brought, f" after round {rounds}"):
            return self._measurements.measure(rounds, state, wanted)

    def models(self) -> Iterator[tuple[Device, Model]]:
        """Yield each device that has had work, and its model."""
        for each in self._awake():
            yield each.device, each.participant.context.bench.model
