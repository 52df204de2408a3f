"""Runs in shards for tests: the shards are in this process, so that a whole run takes a moment."""

from __future__ import annotations

import os
import pickle
from collections import deque
from functools import partial
from typing import Any

import fleets

from coordinator.ledger import Ledger
from coordinator.trace import recording_server
from coordinator.trace.log import TraceWriter
from edge_sdk.errors import EdgeError
from edge_sdk.transport.memory.hub import Faults
from edge_sim.config.settings import Config, RunTable
from edge_sim.fleet.fleet import Fleet, build_fleet
from edge_sim.shards.messages import ShardSetup
from edge_sim.shards.shard import Shard
from edge_sim.shards.sharded_fleet import ShardedFleet


class ShardHere:
    """A shard in this process, which gets and gives copies, as one of another process does."""

    pid = os.getpid()

    def __init__(self, setup: ShardSetup) -> None:
        self._shard = Shard(pickle.loads(pickle.dumps(setup)))
        self._answers: deque[Any] = deque([None])

    def ask(self, name: str, *arguments: object) -> None:
        given = pickle.loads(pickle.dumps(arguments))
        try:
            self._answers.append(pickle.loads(pickle.dumps(getattr(self._shard, name)(*given))))
        except EdgeError as error:
            self._answers.append(error)

    def answer(self) -> Any:
        found = self._answers.popleft()
        if isinstance(found, EdgeError):
            raise found
        return found

    def drain(self) -> None:
        self._answers.clear()

    def close(self) -> int:
        return 0


class ShardsHere:
    """A Carrier of such shards."""

    def start(self, setup: ShardSetup) -> ShardHere:
        return ShardHere(setup)

    def close(self) -> None:
        pass


class ShardedRun(fleets.FinishedRun, ShardedFleet):
    """A run in shards of this process."""

    def __init__(
        self,
        fleet: Fleet | Config,
        *,
        count: int = 2,
        faults: Faults | None = None,
        seed: int = 0,
        trace: TraceWriter | None = None,
        **more: Any,
    ) -> None:
        self.fleet = build_fleet(fleet) if isinstance(fleet, Config) else fleet
        new_server = partial(recording_server.server, trace)
        given = {"carrier": ShardsHere(), "run": RunTable(), "new_server": new_server, **more}
        super().__init__(self.fleet, count, ledger=Ledger(None), faults=faults, faults_seed=seed, **given)

    def finished(self) -> ShardedRun:
        """Run to the end."""
        self.run()
        self.states = {device.kit.id: model.state_bytes() for device, model in self.models()}
        self.close()
        return self
