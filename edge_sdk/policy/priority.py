"""The priority of the training thread, and the number of compute threads."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from pathlib import Path

log = logging.getLogger(__name__)

_OPENBLAS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")
"""Names of the function that sets OpenBLAS's threads, by build."""


def lower_priority(nice: int) -> None:
    """Give this niceness to the calling thread and the threads that it starts later (Linux only)."""
    if not nice or not sys.platform.startswith("linux"):
        return
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
    except OSError as error:  # the thread is already nicer, and may not lower its niceness
        log.warning("policy: nice = %d is ignored: %s", nice, error.strerror)


def limit_threads(count: int | None, maps: Path = Path("/proc/self/maps")) -> None:
    """Set the number of threads of torch and OpenBLAS, if they are loaded.  None changes nothing."""
    if count is None:
        return
    if sys.modules.get("torch") is not None:
        from edge_sdk.models.torch_nets.torch_device import use_threads

        use_threads(count)
    for library in _openblas_files(maps):
        handle = ctypes.CDLL(library)
        name = next((each for each in _OPENBLAS if hasattr(handle, each)), None)
        if name is not None:
            getattr(handle, name)(ctypes.c_int(count))


def _openblas_files(maps: Path) -> set[str]:
    """Return the OpenBLAS files that this process has loaded, or none on a system without /proc."""
    try:
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    paths = {line[line.index("/") :] for line in lines if "/" in line}
    return {path for path in paths if "openblas" in Path(path).name.lower()}
