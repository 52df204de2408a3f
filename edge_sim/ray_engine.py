"""The engine of Ray actors: each computes for its share of the devices, wherever the cluster has room for it.

An actor holds the samples and models of its devices for the whole run (room.py).  This side holds a model of each, too,
which is what its agent reads and writes; a state goes out only after something was written there, and comes back with
each Fit.  So nothing that counts is lost with an actor but what it was just computing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from edge_sdk import __version__
from edge_sdk.errors import MissingExtra, RunFailed, UsageError
from edge_sdk.protocol.leaves import one_line
from edge_sdk.workbench import Workbench
from edge_sim import meter_totals
from edge_sim.config import RunTable
from edge_sim.engine import LOST, Answer, Asked, Together, served
from edge_sim.fleet import Fleet
from edge_sim.mirror import Mirror
from edge_sim.ray_address import LOCAL
from edge_sim.room import Answered, Errand, Furniture, Room, pack
from edge_sim.workers import divided

try:
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
except ImportError:
    raise MissingExtra("ray", "ray", 'engine = "ray"') from None

LOCAL_WORKERS = 2
ACTOR_CPUS = 0.9
"""Of one CPU; what is left has room for the tasks of ray_fold.py, one at a time."""
START_S = 180.0
"""How long an actor may take to find a place and to load torch."""
FAREWELL_S = 5.0
_STDERR = 2


@dataclass(slots=True, eq=False)
class Worker:
    """One actor."""

    actor: Any
    begun: Any
    """Reference to what begin returns."""


class RayEngine(Together):
    """Divides the devices among some actors for the whole run."""

    def __init__(self, table: RunTable, fleet: Fleet, address: str) -> None:
        """address: as ray_address found it.  Raises UsageError where there is no Ray, or none of that size."""
        super().__init__()
        self._fleet, self._stacked = fleet, frozenset(table.stacked or ())
        self._mirrors: dict[int, Mirror] = {}
        self._costs: dict[int, float] = {}
        self._owner: dict[int, int] = {}
        self._furniture: list[Any] = []
        self._workers: list[Worker] = []
        self._own = connect(address, table.workers)
        self._count = min(self._places(table), len(fleet.devices))

    def attach(self, number: int, bench: Workbench) -> None:
        """See Engine."""
        spec = bench.model.spec
        bench.model = self._mirrors[number] = Mirror(bench.model)
        self._costs[number] = max(spec.flops_per_sample, 1) * len(bench.data.train)  # about what a round costs

    def ready(self) -> None:
        """See Engine.  Divides the devices, and sends each share once."""
        self._owner = divided(self._costs, self._count)
        self._furniture = [ray.put(self._share(owner)) for owner in range(self._count)]
        self._workers = [self._worker(owner) for owner in range(self._count)]

    def serve(self, asked: Sequence[Asked]) -> list[Answer]:
        """See Together."""
        shares: dict[int, list[int]] = {}
        for at, each in enumerate(asked):
            if each.request.computes:
                shares.setdefault(self._owner[each.job.number], []).append(at)
        sent = {owner: self._send(owner, [asked[at] for at in share]) for owner, share in shares.items()}
        # what only moves numbers is done here, while the actors are at it
        answers = [None if each.request.computes else served(each) for each in asked]
        for owner, share in shares.items():
            found = self._found(owner, sent[owner])
            for place, at in enumerate(share):
                answers[at] = LOST if found is None else self._taken(asked[at], found[place])
        return answers

    def close(self) -> None:
        """See Engine."""
        for worker in self._workers:
            with contextlib.suppress(RayError):
                self.peak_bytes += ray.get(worker.actor.peak_bytes.remote(), timeout=FAREWELL_S)
            ray.kill(worker.actor)
        self._workers = []
        if self._own:
            ray.shutdown()

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the actors' processes."""
        return tuple(ray.get([worker.actor.pid.remote() for worker in self._workers]))

    # -- who and where ----------------------------------------------------------------------------------------------

    def _places(self, table: RunTable) -> int:
        """How many actors there can be.  Raises UsageError where more are wanted."""
        cores = int(ray.cluster_resources().get("CPU", 0))
        if table.workers > cores or not cores:
            self.close()
            raise UsageError(
                f"run.workers: {table.workers or 1}, but Ray has {cores} CPUs; start more of it, or ask for fewer"
            )
        return table.workers or cores

    def _share(self, owner: int) -> bytes:
        own = [number for number, whose in self._owner.items() if whose == owner]
        return pack(
            Furniture(
                devices=tuple(self._fleet.devices[number] for number in own),
                spec=self._fleet.federation.spec,
                stacked=self._stacked,
                modules=tuple(sys.path),
            )
        )

    def _worker(self, owner: int) -> Worker:
        actor = ray.remote(Room).options(num_cpus=ACTOR_CPUS, max_restarts=0, scheduling_strategy="SPREAD").remote()
        return Worker(actor, actor.begin.remote(__version__, self._furniture[owner]))

    def _replace(self, owner: int) -> None:
        """A new actor, which knows nothing."""
        self._workers[owner] = self._worker(owner)
        for number, whose in self._owner.items():
            if whose == owner:
                self._mirrors[number].ahead = True

    # -- errands ----------------------------------------------------------------------------------------------------

    def _send(self, owner: int, asked: Sequence[Asked]) -> Any:
        """A reference to what they come to."""
        return self._workers[owner].actor.serve.remote(pack([self._errand(each) for each in asked]))

    def _errand(self, asked: Asked) -> Errand:
        job, mirror = asked.job, self._mirrors[asked.job.number]
        return Errand(
            number=job.number,
            request=asked.request,
            round=job.round,
            exchange=job.exchange,
            state=mirror.state_bytes() if mirror.ahead else None,
            trains=mirror.trains,
        )

    def _found(self, owner: int, sent: Any) -> list[Answered] | None:
        """What an actor came to; None where it is gone, and there is a new one.  Raises RunFailed."""
        try:
            ray.get(self._workers[owner].begun, timeout=START_S)
            found: list[Answered] = pickle.loads(ray.get(sent))  # noqa: S301  # packed by our own actor
        except RayActorError:
            self._replace(owner)
            return None
        except RayTaskError as error:
            raise RunFailed(f"a Ray worker stopped: {one_line(str(error.cause))}") from error
        except GetTimeoutError:
            raise RunFailed(
                f"Ray found no place for a worker within {START_S:g} s: set run.workers to fewer, and go on with "
                "--resume"
            ) from None
        except RayError as error:
            raise RunFailed(f"Ray: {one_line(str(error))}; when that is mended, go on with --resume") from error
        return found

    def _taken(self, asked: Asked, found: Answered) -> Answer:
        mirror = self._mirrors[asked.job.number]
        mirror.ahead = False
        if found.state is not None:
            mirror.learned(found.state)
        meter_totals.add(asked.bench.meter, found.spent)
        return found.answer


def connect(address: str, workers: int) -> bool:
    """Reach a Ray, or start one; whether it is this run's own to leave.  Raises UsageError.

    address: as ray_address found it.  workers: of a Ray that is started; 0: LOCAL_WORKERS.
    """
    if ray.is_initialized():  # by a script that has its own wishes
        return False
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {"num_cpus": workers or LOCAL_WORKERS, "include_dashboard": False}
    try:
        with contextlib.nullcontext() if address == LOCAL else _hushed():
            ray.init(**options)
    except Exception as error:  # noqa: BLE001  # Ray raises many kinds, all of them about its cluster
        raise UsageError(f"run.ray_address: no Ray at {address}: {one_line(str(error))}") from None
    return True


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Without what is written straight to standard error: Ray's own core complains there for minutes.

    It does so before it reads how much it is to say; what comes of it stands in the exception.
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
