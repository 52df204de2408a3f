"""One worker process of this machine, as the simulation sees it: the process, and the pipe to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import Any, TypeAlias

from edge_sim.engines.memory import as_bytes
from edge_sim.engines.remote.messages import RemoteAnswer, RemoteRequest

WorkerMessage: TypeAlias = "tuple[WorkerProcess, list[RemoteAnswer] | Exception | None]"
"""What came from a worker: answers to its oldest batch; an exception: it could not start; None: it has ended."""


class WorkerProcess:
    """A process that runs torch_worker.py, and a thread that reads its answers.

    Because of the thread neither side waits until the other one reads.
    """

    def __init__(self, descriptor: int, setup: object, received: SimpleQueue[WorkerMessage]) -> None:
        """descriptor: file descriptor of the parameter buffer.  setup: the first thing that the worker is sent.

        received: the queue that its answers are put in.
        """
        self._pipe, theirs = Pipe()
        command = [sys.executable, "-m", "edge_sim.engines.remote.torch_worker", str(theirs.fileno()), str(descriptor)]
        self._process = subprocess.Popen(  # noqa: S603  # our own module
            command, pass_fds=(theirs.fileno(), descriptor), stdin=subprocess.DEVNULL
        )
        theirs.close()
        self._setup: object | None = setup
        """None once it is sent."""
        self._received = received
        self._reader = threading.Thread(target=self._read, name=f"worker-{self.pid}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, requests: Sequence[RemoteRequest]) -> None:
        """Send a batch.  To a process that has ended nothing is sent; the reading thread notices that end, too."""
        with contextlib.suppress(OSError):
            if self._setup is not None:
                self._pipe.send(self._setup)
                self._setup = None
            self._pipe.send(requests)

    def close(self) -> int:
        """End the process, which has nothing to save; return its largest resident memory in bytes."""
        os.kill(self._process.pid, signal.SIGTERM)
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._reader.join()
        self._pipe.close()
        return as_bytes(usage.ru_maxrss)

    def _read(self) -> None:
        found: list[RemoteAnswer] | Exception | None = None
        try:
            while True:
                found = self._pipe.recv()
                self._received.put((self, found))
        except (EOFError, OSError):
            self._received.put((self, None))


def worker_pipe(descriptor: int) -> Connection[Any, Any]:
    """Open the worker's end of the pipe."""
    return Connection(descriptor)
