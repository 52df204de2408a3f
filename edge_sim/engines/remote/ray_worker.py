"""The worker that runs as a Ray actor: what goes in and out is pickled by us, and not by Ray.

So arrays arrive writable, and an array that several devices share is sent once.  Ray itself is not imported here.
"""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass

from edge_sdk.errors import UsageError
from edge_sdk.methods.requests import Fit
from edge_sdk.models.base import Model
from edge_sdk.models.cosine_head import scaled
from edge_sdk.version import __version__
from edge_sim.engines.base import DeviceRequest
from edge_sim.engines.memory import peak_bytes
from edge_sim.engines.remote.messages import WorkerSetup, to_pickle
from edge_sim.engines.remote.worker import WorkerDevices


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """The state of a model that was changed in the simulation."""

    state: bytes
    """Model.state_bytes()."""
    trains: bool
    """Whether the scale of a cosine head trains, which `state` does not tell."""


class StateModels:
    """A WorkerModels: states are sent where a model was changed, and sent back after each Fit."""

    def attach(self, number: int, model: Model) -> None:
        """Implement WorkerModels."""

    def load(self, number: int, model: Model, state: ModelState | None) -> None:  # noqa: ARG002  # WorkerModels asks
        """Implement WorkerModels; None: the model here is the newest."""
        if state is None:
            return
        model.load_state(state.state)
        if "cosine-head" in model.spec.capabilities:
            scaled(model).set_scale(None, trains=state.trains)

    def save(self, number: int, asked: DeviceRequest) -> bytes | None:  # noqa: ARG002  # WorkerModels asks
        """Implement WorkerModels; None: the request did not train."""
        return asked.bench.model.state_bytes() if isinstance(asked.request, Fit) else None


class RayWorker:
    """The class of the actors."""

    def __init__(self) -> None:
        self._devices: WorkerDevices | None = None

    def begin(self, version: str, setup: bytes) -> None:
        """Build the devices' models from a pickled WorkerSetup.

        version: of edge-sdk in the simulation.  Raises UsageError where it is not the version here.
        """
        if version != __version__:
            raise UsageError(f"edge-sdk {__version__} is installed there, {version} here; install the same everywhere")
        given: WorkerSetup = pickle.loads(setup)  # noqa: S301  # pickled by the simulation itself
        sys.path += [each for each in given.modules if each not in sys.path]
        if any(device.kit.needs_torch for device in given.devices):
            from edge_sim.engines.torch_threads import use_one_thread  # torch only where a device has it

            use_one_thread()
        self._devices = WorkerDevices(given, StateModels())

    def serve(self, requests: bytes) -> bytes:
        """Compute a pickled list of RemoteRequest; return a pickled list of RemoteAnswer, in their order."""
        if self._devices is None:
            raise TypeError("begin comes before serve")
        return to_pickle(self._devices.serve(pickle.loads(requests)))  # noqa: S301  # likewise

    def peak_bytes(self) -> int:
        """Return the largest resident memory of this process, in bytes."""
        return peak_bytes()

    def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()
