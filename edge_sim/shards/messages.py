"""The messages between the coordinator's process and the shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from edge_sdk.errors import RunFailed
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.transport.memory.hub import Faults, Publication
from edge_sim.config.scenario import ScenarioTable
from edge_sim.config.settings import RunTable
from edge_sim.fleet.fleet import Device
from edge_sim.shards.frame_memory import Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSetup:
    """The setup that a shard receives once."""

    devices: tuple[Device, ...]
    """The shard's devices, with their samples."""
    spec: FederationSpec
    scenario: ScenarioTable
    faults: Faults | None
    faults_seed: int
    run: RunTable
    """How it computes; `memory_bytes` is this shard's part."""
    modules: tuple[str, ...]
    """The module search path of the simulation: a script's folder may contain factories of models."""
    functions: Mapping[str, bytes]
    """The functions that were given for models, as `sent_functions` makes them."""

    @property
    def named(self) -> str:
        """The devices, in words for an error."""
        first, more = self.devices[0].kit.id, len(self.devices) - 1
        return f"{first} and {more} more devices" if more else first


class ShardLost(RunFailed):
    """The process of a shard has ended; its devices' stores are lost."""


class Sent(NamedTuple):
    """A frame on its way between processes."""

    number: int
    """The device that sends or receives it, or EVERYBODY for all devices."""
    given: Publication


EVERYBODY = -1


class ShardProgress(NamedTuple):
    """The progress of a shard."""

    sent: list[Sent]
    """The frames that its devices have published."""
    now_s: float
    """Time of the last event of any of its devices."""
    next_s: float
    """Time of its devices' next event."""
    over: bool
    """Whether all of its devices are over or excused."""


class ProgressMessage(NamedTuple):
    """A ShardProgress for the pipe, without the frames in shared memory."""

    progress: ShardProgress
    placed: dict[int, Placed]
    """The places of these frames in memory, by their index among the sent frames."""
