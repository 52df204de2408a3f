"""The priority of the training thread, and the threads that computing uses."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from pathlib import Path

log = logging.getLogger(__name__)

_OPENBLAS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")
"""What builds of OpenBLAS call the function that sets its threads."""


def lower_priority(nice: int) -> None:
    """Give the calling thread this niceness, and with it the threads that it starts; on Linux no others."""
    if not nice or not sys.platform.startswith("linux"):
        return
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
    except OSError as error:  # it is nicer already, and may not become less so
        log.warning("policy: nice = %d is ignored: %s", nice, error.strerror)


def limit_threads(count: int | None, maps: Path = Path("/proc/self/maps")) -> None:
    """Let torch and OpenBLAS, where they are loaded, compute with this many threads; None: leave them as they are."""
    if count is None:
        return
    if sys.modules.get("torch") is not None:
        from edge_sdk.models.torch_threads import use_threads

        use_threads(count)
    for library in _openblas_files(maps):
        handle = ctypes.CDLL(library)
        name = next((each for each in _OPENBLAS if hasattr(handle, each)), None)
        if name is not None:
            getattr(handle, name)(ctypes.c_int(count))


def _openblas_files(maps: Path) -> set[str]:
    """Return the files of OpenBLAS that this process has loaded; none where the system does not tell."""
    try:
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    paths = {line[line.index("/") :] for line in lines if "/" in line}
    return {path for path in paths if "openblas" in Path(path).name.lower()}
