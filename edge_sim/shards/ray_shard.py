"""Shards as actors on Ray, wherever the cluster has room for them.

This code, not Ray, pickles the messages: so arrays arrive writable, and an array that several devices share is
sent once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

from edge_sdk.errors import MissingExtra, RunFailed, UsageError
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.version import __version__
from edge_sim.config.settings import AUTO, RunTable
from edge_sim.engines.memory import peak_bytes
from edge_sim.shards.messages import ShardLost, ShardSetup
from edge_sim.shards.shard import Shard, tried

LOCAL_CPUS = 2
ACTOR_CPUS = 0.9
"""CPUs that an actor reserves; the rest is left for the tasks of ray_fold.py, one at a time."""
START_S = 180.0
"""Maximum seconds for an actor to be placed and to load torch."""
FAREWELL_S = 5.0
"""Maximum seconds for an actor to report its memory at the end."""
_STDERR = 2


class ShardActor:
    """The actor: it holds a Shard."""

    def __init__(self) -> None:
        self._shard: Shard | None = None

    def begin(self, version: str, setup: bytes) -> bytes:
        """Build the devices of a pickled ShardSetup; return the result of `tried`, pickled.

        version: of edge-sdk in the simulation; must equal the version here.
        """
        return to_pickle(tried(partial(self._begin, version, setup)))

    def _begin(self, version: str, setup: bytes) -> None:
        if version != __version__:
            raise UsageError(
                f"the cluster has edge-sdk {__version__}, this machine {version}; install the same on both"
            )
        given: ShardSetup = pickle.loads(setup)  # noqa: S301  # pickled by the simulation itself
        sys.path += [each for each in given.modules if each not in sys.path]
        self._shard = Shard(given)

    def call(self, name: str, arguments: bytes) -> bytes:
        """Call a method of the Shard with pickled arguments; return the result of `tried`, pickled."""
        given = pickle.loads(arguments)  # noqa: S301  # likewise
        return to_pickle(tried(lambda: getattr(self._shard, name)(*given)))

    def peak_bytes(self) -> int:
        """Return the largest resident memory of this process, in bytes."""
        return peak_bytes()

    def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()


class RayShard:
    """An AskedShard in an actor."""

    def __init__(self, setup: ShardSetup) -> None:
        ray = _ray()
        kind = ray.remote(ShardActor).options(num_cpus=ACTOR_CPUS, max_restarts=0, scheduling_strategy="SPREAD")
        self._ray, self._named, self._actor = ray, setup.named, kind.remote()
        self._asked: deque[Any] = deque([self._actor.begin.remote(__version__, to_pickle(setup))])
        self._timeout_s: float | None = START_S

    @property
    def pid(self) -> int:
        """Implement AskedShard."""
        found: int = self._ray.get(self._actor.pid.remote())
        return found

    def ask(self, name: str, *arguments: object) -> None:
        """Implement AskedShard."""
        self._asked.append(self._actor.call.remote(name, to_pickle(arguments)))

    def answer(self) -> Any:
        """Implement AskedShard.  Raises RunFailed also if Ray finds no place for the actor."""
        raised, found = pickle.loads(self._value(self._asked.popleft()))  # noqa: S301  # pickled by our own actor
        if raised:
            raise found
        return found

    def drain(self) -> None:
        """Implement AskedShard."""
        while self._asked:
            with contextlib.suppress(Exception):
                self.answer()

    def close(self) -> int:
        """Implement AskedShard."""
        from ray.exceptions import RayError  # late: find_ray_address must set Ray's variables before the import

        held_bytes = 0
        with contextlib.suppress(RayError):
            held_bytes = self._ray.get(self._actor.peak_bytes.remote(), timeout=FAREWELL_S)
        self._ray.kill(self._actor)
        return held_bytes

    def _value(self, reference: Any) -> Any:
        """Return the value of a reference.  Raises ShardLost if the actor has ended, and RunFailed."""
        from ray.exceptions import GetTimeoutError, RayActorError, RayError  # likewise

        try:
            found = self._ray.get(reference, timeout=self._timeout_s)
        except RayActorError:
            self._asked.clear()
            raise ShardLost(f"the Ray actor that held {self._named} ended: find the cause on its node") from None
        except GetTimeoutError:
            raise RunFailed(
                f"Ray found no place for a process within {START_S:g} s: set run.processes to fewer, and continue with "
                "--resume"
            ) from None
        except RayError as error:
            raise RunFailed(f"Ray: {one_line(str(error))}; when that is repaired, continue with --resume") from error
        self._timeout_s = None
        return found


class RayCluster:
    """A Carrier: the shards are actors on a Ray."""

    def __init__(self, table: RunTable) -> None:
        """Connect to the Ray of run.cluster, or start one.  Raises UsageError if none is found, or CPUs are too few."""
        wanted = 0 if table.processes in (None, AUTO) else int(table.processes or 0)
        address = find_ray_address(table.cluster or LOCAL)
        self._ray = _ray()
        self._own = connect(address, wanted - 1)
        cores = int(self._ray.cluster_resources().get("CPU", 0))
        if wanted - 1 > cores or not cores:
            self.close()
            raise UsageError(
                f"run.processes: {wanted or 2} need {max(wanted - 1, 1)} CPUs beside this process, and Ray has "
                f"{cores}; start more of it, or ask for fewer"
            )
        self.count = wanted or cores + 1
        """Number of shards, including the coordinator's process."""

    def start(self, setup: ShardSetup) -> RayShard:
        """Implement Carrier."""
        return RayShard(setup)

    def close(self) -> None:
        """Implement Carrier."""
        if self._own:
            self._ray.shutdown()


def to_pickle(value: object) -> bytes:
    """Encode a value for another process of the same run."""
    return pickle.dumps(value, protocol=5)


def _ray() -> Any:
    """Import Ray, after `find_ray_address` has set the variables that Ray reads on import."""
    try:
        import ray  # an extra, and slow to load
    except ImportError:
        raise MissingExtra("ray", "ray", "run.cluster") from None
    return ray


def connect(address: str, cpus: int) -> bool:
    """Connect to a Ray, or start one; return whether this run must shut it down.  Raises UsageError.

    address: from find_ray_address.  cpus: of a Ray started here, or below 1 for LOCAL_CPUS.
    """
    ray = _ray()
    if ray.is_initialized():  # by the user's script, with its own settings
        return False
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {"num_cpus": cpus if cpus > 0 else LOCAL_CPUS, "include_dashboard": False}
    try:
        with contextlib.nullcontext() if address == LOCAL else _without_stderr():
            ray.init(**options)
    except Exception as error:  # noqa: BLE001  # Ray raises many types, all about its cluster
        raise UsageError(f"run.cluster: no Ray at {address}: {one_line(str(error))}") from None
    return True


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Discard what is written to file descriptor 2: Ray's core writes complaints there for minutes.

    It does so before it reads its logging level; the exception has the reason of a failure.
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


# -- The address of a run's Ray, and the variables that Ray reads when it is imported ---------------------------------

LOCAL = "local"
"""The word for a Ray of this run only, on this machine."""
REACH_S = 5.0
"""Maximum seconds for an address to answer; Ray itself would try for minutes."""


def find_ray_address(cluster: str) -> str:
    """Return the address that run.cluster stands for.  Raises UsageError if nothing listens there.

    Call it before `import ray`: Ray reads on import the variable that binds a local Ray to loopback, and without it the
    ports are open to the network.  A process that has used one Ray can use no other.
    """
    address = os.environ.get("RAY_ADDRESS", cluster) if cluster == "auto" else cluster
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray sends usage statistics
    if address == LOCAL:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # on every system: loopback only
    else:
        _reach(address)
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")  # for a listener that is not a Ray; else many minutes
    return address


def _reach(address: str) -> None:
    """Raise UsageError unless a process listens at HOST:PORT."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return  # the address is `auto`
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"run.cluster: nothing answers at {address} ({error}); start Ray there (ray start --head), or "
            f'write "{LOCAL}" for a Ray of this run only'
        ) from None
