"""Processes of the examples: started in an example's folder, read, interrupted, and never left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from undrawn import undrawn

EDGE_SDK = ("-m", "edge_sdk.cli")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@contextmanager
def running(folder: Path, *command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python with a command line in a folder, without pictures; it is killed at the end if it still runs."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    env = {**undrawn(), **ONE_THREAD, **environment}
    with subprocess.Popen([sys.executable, *command], cwd=folder, env=env, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def coordinator_of(url: str, *options: str) -> tuple[str, ...]:
    """The command line of an example's coordinator, whose results go to the folder `run`."""
    return (*EDGE_SDK, "coordinator", "federation.toml", "--broker", url, "--out", "run", *options)


def read_until(process: subprocess.Popen[str], words: str) -> list[str]:
    """Return the lines that it prints, up to the one with these words."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or words not in lines[-1]:
        line = process.stdout.readline()
        assert line, lines
        lines.append(line)
    return lines


def ended_well(process: subprocess.Popen[str], timeout_s: float = 200.0) -> str:
    """Wait for its end, and return what it printed."""
    text, _ = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, text
    return text


def check_interrupted(process: subprocess.Popen[str]) -> str:
    """Interrupt an app that took part, and return what it printed."""
    process.send_signal(signal.SIGINT)
    text = ended_well(process)
    assert "accepted by" in text
    assert "Traceback" not in text
    return text
