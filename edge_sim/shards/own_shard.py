"""The shard that is in the coordinator's process: it computes while the other processes do."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import Any

from edge_sim.shards.messages import ShardLost, ShardSetup
from edge_sim.shards.shard import Shard


class OwnShard:
    """An AskedShard of this process: what it is asked is done when its answer is read.

    It is asked together with all others, and its answer is read first: meanwhile they compute.
    """

    def __init__(self, setup: ShardSetup) -> None:
        self._setup = setup
        self._shard: Shard | None = None
        self._asked: deque[tuple[str, tuple[object, ...]]] = deque()
        self._halfway = False
        """Whether an interrupt ended a call; then the devices' state is incomplete."""

    @property
    def pid(self) -> int:
        """The id of this process."""
        return os.getpid()

    def ask(self, name: str, *arguments: object) -> None:
        """Have a method of the Shard called when `answer` is."""
        self._asked.append((name, arguments))

    def answer(self) -> Any:
        """Build the devices, or do what was asked first; return what that returns.

        Raises what it raises, and ShardLost after an interrupt in the middle of it.
        """
        if self._halfway:
            raise ShardLost("an interrupt came in the middle of what devices of this process did")
        if self._shard is None:
            self._shard = Shard(self._setup)
            return None
        name, arguments = self._asked.popleft()
        try:
            return getattr(self._shard, name)(*arguments)
        except Exception:
            raise
        except BaseException:
            self._halfway = True
            raise

    def drain(self) -> None:
        """Do all that was asked, and pass over what is raised."""
        while self._asked and not self._halfway:
            with suppress(Exception):
                self.answer()

    def close(self) -> int:
        """Return 0: its memory is this process's."""
        return 0
