"""Ray actors as workers of the remote engine, wherever the cluster has room for them.

The state of a model is sent to an actor only after it was written in the simulation, and comes back with each Fit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_sdk.device.workbench import Workbench
from edge_sdk.errors import MissingExtra, RunFailed, UsageError
from edge_sdk.protocol.leaves import one_line
from edge_sdk.version import __version__
from edge_sim.config.settings import RunTable
from edge_sim.engines.base import DeviceRequest
from edge_sim.engines.remote.messages import RemoteAnswer, RemoteRequest, WorkerSetup, to_pickle
from edge_sim.engines.remote.ray_address import LOCAL
from edge_sim.engines.remote.ray_worker import ModelState, RayWorker
from edge_sim.engines.remote.tracked_model import TrackedModel
from edge_sim.fleet.fleet import Fleet

try:
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
except ImportError:
    raise MissingExtra("ray", "ray", 'engine = "ray"') from None

LOCAL_WORKERS = 2
ACTOR_CPUS = 0.9
"""CPUs that an actor reserves; the rest is for the tasks of ray_fold.py, one at a time."""
START_S = 180.0
"""Longest time that an actor may take to be placed and to load torch."""
FAREWELL_S = 5.0
"""Longest time that an actor may take to report its memory at the end."""
_STDERR = 2


@dataclass(slots=True, eq=False)
class _Actor:
    """One actor, and references to what it has not answered yet."""

    handle: Any
    begun: Any
    """Reference to the result of `begin`; None once that is known."""
    sent: deque[Any] = field(default_factory=deque)


class RayActorPool:
    """Actors that compute models of every runtime."""

    def __init__(self, table: RunTable, fleet: Fleet, address: str) -> None:
        """address: from find_ray_address.  Raises UsageError where there is no Ray, or one with too few CPUs."""
        self._fleet, self._stacked = fleet, frozenset(table.stacked or ())
        self._models: dict[int, TrackedModel] = {}
        self._owners: Mapping[int, int] = {}
        self._setups: list[Any] = []
        self._actors: dict[int, _Actor] = {}
        self.peak_bytes = 0
        self._own = connect(address, table.workers)
        self.count = min(self._most_actors(table), len(fleet.devices))

    @property
    def pids(self) -> tuple[int, ...]:
        """Implement WorkerPool."""
        return tuple(ray.get([self._actors[worker].handle.pid.remote() for worker in sorted(self._actors)]))

    def attach(self, number: int, bench: Workbench) -> bool:
        """Implement WorkerPool."""
        bench.model = self._models[number] = TrackedModel(bench.model)
        return True

    def divide(self, owners: Mapping[int, int]) -> None:
        """Implement WorkerPool: samples are sent to Ray once, also where an actor is replaced later."""
        self._owners = owners
        self._setups = [ray.put(self._setup(worker)) for worker in range(self.count)]

    def start(self, worker: int) -> None:
        """Implement WorkerPool: the new actor knows no model's state."""
        kind = ray.remote(RayWorker).options(num_cpus=ACTOR_CPUS, max_restarts=0, scheduling_strategy="SPREAD")
        handle = kind.remote()
        self._actors[worker] = _Actor(handle, handle.begin.remote(__version__, self._setups[worker]))
        for number, owner in self._owners.items():
            if owner == worker:
                self._models[number].changed = True

    def takes(self, asked: DeviceRequest) -> bool:  # noqa: ARG002  # WorkerPool asks
        """Implement WorkerPool."""
        return True

    def outgoing(self, asked: DeviceRequest) -> ModelState | None:
        """Implement WorkerPool; None: the actor's model is the newest."""
        model = self._models[asked.job.number]
        if not model.changed:
            return None
        model.changed = False
        return ModelState(state=model.state_bytes(), trains=model.trains)

    def incoming(self, asked: DeviceRequest, model: bytes | None) -> None:
        """Implement WorkerPool; None: the request did not train."""
        if model is not None:
            self._models[asked.job.number].learned(model)

    def send(self, worker: int, requests: Sequence[RemoteRequest]) -> None:
        """Implement WorkerPool."""
        actor = self._actors[worker]
        actor.sent.append(actor.handle.serve.remote(to_pickle(requests)))

    def receive(self) -> tuple[int, list[RemoteAnswer] | None]:
        """Implement WorkerPool."""
        busy = {worker: actor for worker, actor in self._actors.items() if actor.sent}
        for worker, actor in busy.items():
            if not _has_begun(actor):
                return worker, None
        oldest = {actor.sent[0]: worker for worker, actor in busy.items()}
        (done,), _ = ray.wait(list(oldest), num_returns=1)
        worker = oldest[done]
        self._actors[worker].sent.popleft()
        try:
            found: list[RemoteAnswer] = pickle.loads(_value(done))  # noqa: S301  # pickled by our own actor
        except RayActorError:
            return worker, None
        return worker, found

    def close(self) -> None:
        """Implement WorkerPool."""
        for actor in self._actors.values():
            with contextlib.suppress(RayError):
                self.peak_bytes += ray.get(actor.handle.peak_bytes.remote(), timeout=FAREWELL_S)
            ray.kill(actor.handle)
        self._actors = {}
        if self._own:
            ray.shutdown()

    def _most_actors(self, table: RunTable) -> int:
        """Return how many actors there can be.  Raises UsageError where more are wanted."""
        cores = int(ray.cluster_resources().get("CPU", 0))
        if table.workers > cores or not cores:
            self.close()
            raise UsageError(
                f"run.workers: {table.workers or 1}, but Ray has {cores} CPUs; start more of it, or ask for fewer"
            )
        return table.workers or cores

    def _setup(self, worker: int) -> bytes:
        own = [number for number, owner in self._owners.items() if owner == worker]
        return to_pickle(
            WorkerSetup(
                devices=tuple(self._fleet.devices[number] for number in own),
                spec=self._fleet.federation.spec,
                stacked=self._stacked,
                modules=tuple(sys.path),
            )
        )


def _has_begun(actor: _Actor) -> bool:
    """Wait until an actor has built its models; False: it has ended.  Raises RunFailed."""
    if actor.begun is None:
        return True
    try:
        _value(actor.begun, START_S)
    except RayActorError:
        return False
    except GetTimeoutError:
        raise RunFailed(
            f"Ray found no place for a worker within {START_S:g} s: set run.workers to fewer, and go on with --resume"
        ) from None
    actor.begun = None
    return True


def _value(reference: Any, timeout_s: float | None = None) -> Any:
    """Return what a reference stands for.

    Raises RayActorError where the actor has ended, GetTimeoutError, and RunFailed for all else.
    """
    try:
        return ray.get(reference, timeout=timeout_s)
    except (RayActorError, GetTimeoutError):
        raise
    except RayTaskError as error:
        raise RunFailed(f"a Ray worker stopped: {one_line(str(error.cause))}") from error
    except RayError as error:
        raise RunFailed(f"Ray: {one_line(str(error))}; when that is repaired, go on with --resume") from error


def connect(address: str, workers: int) -> bool:
    """Connect to a Ray, or start one; return whether it is this run's own to shut down.  Raises UsageError.

    address: from find_ray_address.  workers: CPUs of a Ray that is started; 0: LOCAL_WORKERS.
    """
    if ray.is_initialized():  # by a script with its own settings
        return False
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {"num_cpus": workers or LOCAL_WORKERS, "include_dashboard": False}
    try:
        with contextlib.nullcontext() if address == LOCAL else _without_stderr():
            ray.init(**options)
    except Exception as error:  # noqa: BLE001  # Ray raises many kinds, all of them about its cluster
        raise UsageError(f"run.ray_address: no Ray at {address}: {one_line(str(error))}") from None
    return True


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Discard what is written to file descriptor 2: Ray's core writes complaints there for minutes.

    It does so before it reads its logging level; the reason of a failure stands in the exception.
    """
    sys.stderr.flush()
    kept, nowhere = os.dup(_STDERR), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDERR)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
        os.close(nowhere)
