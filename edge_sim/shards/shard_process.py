"""The process of a shard, seen from the coordinator's process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Pipe
from typing import Any

from edge_sim.engines.memory import as_bytes
from edge_sim.shards.messages import (
    NOWHERE,
    FrameReader,
    ProgressMessage,
    ShardLost,
    ShardProgress,
    ShardSetup,
    shared_memory,
)


class ShardProcesses:
    """A Carrier: the shards are processes of this machine."""

    def start(self, setup: ShardSetup) -> ShardProcess:
        """Implement Carrier."""
        return ShardProcess(setup)

    def close(self) -> None:
        """Implement Carrier."""


class ShardProcess:
    """An AskedShard in a process of this machine."""

    def __init__(self, setup: ShardSetup) -> None:
        self._named = setup.named
        self._pipe, theirs = Pipe()
        memory = shared_memory()
        self._frames = FrameReader(memory)
        command = [sys.executable, "-m", "edge_sim.shards.shard_main", str(theirs.fileno()), str(memory)]
        passed = (theirs.fileno(),) if memory == NOWHERE else (theirs.fileno(), memory)
        self._process = subprocess.Popen(  # noqa: S603  # our own module
            command, pass_fds=passed, stdin=subprocess.DEVNULL
        )
        theirs.close()
        self._unanswered = 1
        self._send(setup)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def ask(self, name: str, *arguments: object) -> None:
        """Call a method of the Shard; `answer` returns its result."""
        self._unanswered += 1
        self._send((name, arguments))

    def answer(self) -> Any:
        """Wait for the oldest answer.  Raises what the shard raised, or ShardLost."""
        self._unanswered -= 1
        try:
            raised, found = self._pipe.recv()
        except (EOFError, OSError):
            self._unanswered = 0
            raise ShardLost(self._lost()) from None
        if raised:
            raise found
        return self._with_frames(found) if isinstance(found, ProgressMessage) else found

    def drain(self) -> None:
        """Wait for all unread answers, and ignore their errors."""
        while self._unanswered:
            with contextlib.suppress(Exception):
                self.answer()

    def close(self) -> int:
        """End the process, which has nothing to save; return its peak resident memory in bytes."""
        self._pipe.close()
        self._frames.close()
        if self._process.returncode is not None:
            return 0
        os.kill(self._process.pid, signal.SIGTERM)
        return self._waited()

    def _with_frames(self, message: ProgressMessage) -> ShardProgress:
        sent = [
            each._replace(given=each.given._replace(frame=self._frames.take(message.placed[place])))
            if place in message.placed
            else each
            for place, each in enumerate(message.progress.sent)
        ]
        return message.progress._replace(sent=sent)

    def _send(self, value: object) -> None:
        with contextlib.suppress(OSError):  # `answer` reports a process that has ended
            self._pipe.send(value)

    def _waited(self) -> int:
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return as_bytes(usage.ru_maxrss)

    def _lost(self) -> str:
        if self._process.returncode is None:
            self._waited()
        code = self._process.returncode or 0
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"the process that held {self._named} ended {how}: find the cause (memory, signals)"
