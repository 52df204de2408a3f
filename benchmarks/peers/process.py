"""One run of one side in a process of its own, watched, with no network but the loopback where the kernel lets us."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from figures_of import Run, per_device_round
from watch import MARK, Use, Watch, at

HERE = Path(__file__).parent
TIMEOUT_S = 900
LINGER_S = 10.0
"""Seconds that a peer's daemons have to end after their run."""
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": str(HERE),
}


class Failed(Exception):
    """A run that ended without a result, and the end of what it said."""


def measure(python: Path, side: str, task: Path, net: str, devices: int) -> tuple[Run, dict[str, str]]:
    """Run SIDE_side.py; also the versions that it found.  Raises Failed."""
    token = uuid.uuid4().hex
    command = [*fence(), str(python.absolute()), str(HERE / f"{side}_side.py"), str(task), net]
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "said").open("w+") as said:
        environment = os.environ | SETTINGS | {MARK: token, "HOME": folder, "RAY_TMPDIR": folder}
        began_s = time.monotonic()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT)
        watch = Watch(token)
        watch.start()
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = -1
        use = watch.stop()
        _end_all(watch)
        said.seek(0)
        text = said.read()
    if code:
        raise Failed(f"{side} {net} {devices}: ended with {code}\n{text[-1500:]}")
    told = json.loads(next(line for line in reversed(text.splitlines()) if line.startswith('{"ends_s"')))
    return _run(told, use, began_s, devices), told["versions"]


def _run(told: dict[str, Any], use: Use, began_s: float, devices: int) -> Run:
    ends_s, cpu_s = told["ends_s"], told["cpu_s"]
    if use.processes > 1:  # its own clock sees one of them only
        cpu_s = [at(use.times_s, use.cpu_s, end_s) for end_s in ends_s]
    median_ms, mean_ms = per_device_round(ends_s, devices)
    return Run(
        ms=median_ms,
        mean_ms=mean_ms,
        cpu_ms=per_device_round(cpu_s, devices)[1],
        first_round_s=ends_s[0] - began_s,
        first_round_cpu_s=cpu_s[0],
        rss_mib=use.rss_mib,
        pss_mib=use.pss_mib,
        processes=use.processes,
        others_cpu=use.others_cpu,
        accuracy=told["accuracy"],
        loss=told["loss"],
        lost=told["lost"],
    )


def _end_all(watch: Watch) -> None:
    """Wait for what the run left behind, and stop what does not end by itself."""
    until_s = time.monotonic() + LINGER_S
    while (left := watch.alive()) and time.monotonic() < until_s:
        time.sleep(0.2)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@cache
def fence() -> tuple[str, ...]:
    """A command's prefix that leaves it the loopback only; empty where that is not to be had."""
    if not shutil.which("unshare"):
        return ()
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    inner = 'PATH="$1"; shift; ip link set lo up && exec "$@"'
    prefix = ("unshare", "--user", "--map-root-user", "--net", "sh", "-c", inner, "sh", path)
    tried = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    return prefix if tried.returncode == 0 else ()
