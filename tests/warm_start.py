"""Processes of `edge-sdk` that are forked from one which has imported it, because importing is most of what many cost.

Each is a process of its own, with its own folder, environment and log; it can be killed, and its exit code is read.
Tests of how a process starts use `python -m edge_sdk.cli` itself.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


class WarmProcess:
    """A command of edge-sdk in a process of its own, with the methods of subprocess.Popen that the tests call."""

    def __init__(self, arguments: Sequence[str], *, cwd: Path, log: Path, env: Mapping[str, str]) -> None:
        self._origin = _origin()
        log.touch()  # a test may read it before the process has begun
        asked = {"arguments": arguments, "cwd": str(cwd), "log": str(log), "env": dict(env)}
        self.pid = self._origin.start(json.dumps(asked))

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._origin.ended.get(self.pid)

    def wait(self, timeout_s: float | None = None) -> int:
        """The exit code, once it has ended.  Raises subprocess.TimeoutExpired."""
        with self._origin.news:
            if not self._origin.news.wait_for(lambda: self.pid in self._origin.ended, timeout_s):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s or 0.0)
        return self._origin.ended[self.pid]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class _Origin:
    """The process that all of this test process are forked from."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).resolve())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.news = threading.Condition()
        self.ended: dict[int, int] = {}
        """Exit codes, by process."""
        self._started: list[int] = []
        threading.Thread(target=self._listen, daemon=True).start()
        atexit.register(self.close)

    def start(self, asked: str) -> int:
        """Fork, and return the number of the process."""
        assert self._process.stdin is not None
        with self.news:
            self._process.stdin.write(asked + "\n")
            assert self.news.wait_for(lambda: self._started, 60.0)
            return self._started.pop()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            pid, *code = map(int, line.split())
            with self.news:
                if code:
                    self.ended[pid] = code[0]
                else:
                    self._started.append(pid)
                    self.ended.pop(pid, None)  # of an earlier process with this number
                self.news.notify_all()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@functools.cache
def _origin() -> _Origin:
    return _Origin()


# -- in the process that is forked ----------------------------------------------------------------------------------


def _serve() -> None:
    """Fork for each line of standard input; return in the new process, which is ready for its command."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal ends the tests, which end this process
    children: set[int] = set()
    while True:
        ready, _, _ = select.select([sys.stdin, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            for child in list(children):
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    children.remove(pid)
                    _tell(pid, os.waitstatus_to_exitcode(status))
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                os._exit(0)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                os.close(woken)
                os.close(wakes)
                _begin(json.loads(line))
                return
            children.add(pid)
            _tell(pid)


def _tell(*numbers: int) -> None:
    os.write(1, (" ".join(map(str, numbers)) + "\n").encode())


def _begin(asked: Mapping[str, Any]) -> None:
    """Become the process that was asked for: its folder, its environment, its log, the path to its modules."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder, env = asked["cwd"], asked["env"]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    nothing, written = (
        os.open(os.devnull, os.O_RDONLY),
        os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
    )
    for source, target in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(source, target)
    sys.path[:0] = [folder, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv[1:] = asked["arguments"]


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file: a process finds what `python -m edge_sdk.cli` would
    import coordinator.deploy  # noqa: F401  # what these processes need
    import edge_sim.fleet.fleet  # noqa: F401  # what their apps need
    from edge_sdk.cli import main

    _serve()
    sys.exit(main())
