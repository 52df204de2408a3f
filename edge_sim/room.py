"""Where a share of a fleet's devices is computed, away from the simulation: their samples and models stay here.

What goes in and comes out is packed by us: so arrays arrive writable, and what devices share arrives once.
"""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass
from typing import Any

from edge_sdk import __version__
from edge_sdk.errors import UsageError
from edge_sdk.meter import Meter
from edge_sdk.methods.requests import Fit, Request
from edge_sdk.models.cosine_head import scaled
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.workbench import Workbench
from edge_sim import fleet as fleets
from edge_sim.engine import Asked, Exact, Together, job_at
from edge_sim.fleet import Device
from edge_sim.memory import peak_bytes
from edge_sim.meter_totals import Spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Furniture:
    """All that a room is given, once."""

    devices: tuple[Device, ...]
    spec: FederationSpec
    stacked: frozenset[str]
    """Names of models (torch_cohort.py)."""
    modules: tuple[str, ...]
    """Where Python finds them, if that is a folder here, too: factories of models may lie beside a script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """One request of one device."""

    number: int
    request: Request
    round: int
    exchange: int
    state: bytes | None
    """What its model must be first; None: what it is here."""
    trains: bool
    """With a state: whether the scale of a cosine head trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """Its answer."""

    answer: Any
    spent: Spent
    state: bytes | None
    """What a Fit made of the model."""


class Room:
    """The devices of one share, and what serves them."""

    def __init__(self) -> None:
        self._benches: dict[int, Workbench] = {}
        self._engine: Together = Exact()

    def begin(self, version: str, furniture: bytes) -> None:
        """Build the devices' models.  version: of edge-sdk, on the other side.  Raises UsageError for another one."""
        if version != __version__:
            raise UsageError(f"edge-sdk {__version__} is installed there, {version} here; install the same everywhere")
        given: Furniture = pickle.loads(furniture)  # noqa: S301  # packed by the simulation itself
        sys.path += [each for each in given.modules if each not in sys.path]
        if any(fleets.needs_torch(device.kit.family) for device in given.devices):
            from edge_sim.torch_threads import one_thread  # noqa: PLC0415  # torch only where a device has it

            one_thread()
        if given.stacked:
            from edge_sim.torch_cohort import Cohort  # noqa: PLC0415  # what is stacked has torch

            self._engine = Cohort(given.stacked)
        self._spec = given.spec
        self._benches = {device.kit.number: _bench(device) for device in given.devices}

    def serve(self, errands: bytes) -> bytes:
        """Answer a batch of requests: packed Errand -> packed Answered, in order."""
        found: list[Errand] = pickle.loads(errands)  # noqa: S301  # packed by the simulation itself
        asked = [self._asked(errand) for errand in found]
        answers = self._engine.serve(asked)
        return pack([_answered(each, answer) for each, answer in zip(asked, answers, strict=True)])

    def peak_bytes(self) -> int:
        """Resident at most."""
        return peak_bytes()

    def pid(self) -> int:
        """Of this process."""
        return os.getpid()

    def _asked(self, errand: Errand) -> Asked:
        bench = self._benches[errand.number]
        bench.meter = Meter()
        if errand.state is not None:
            bench.model.load_state(errand.state)
            if "cosine-head" in bench.model.spec.capabilities:
                scaled(bench.model).set_scale(None, trains=errand.trains)
        samples = len(bench.data.train)
        job = job_at(self._spec, errand.number, errand.round, errand.exchange, samples)
        return Asked(bench, errand.request, job)


def pack(value: object) -> bytes:
    """A value as bytes, for another process of the same run."""
    return pickle.dumps(value, protocol=5)


def _bench(device: Device) -> Workbench:
    return Workbench(device.kit.model(device.public), device.data, device.public, discloses_classes=True)


def _answered(asked: Asked, answer: object) -> Answered:
    state = asked.bench.model.state_bytes() if isinstance(asked.request, Fit) else None
    return Answered(answer=answer, spent=asked.bench.meter, state=state)
