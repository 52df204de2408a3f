"""The state folder: may it be written, does it outlive a power cut, how long does a sync take, is there room."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from edge_sdk.tools.doctor.finding import Finding, fail, ok, warn

SLOW_SYNC_S = 0.1
SYNCS = 11
LEAST_BYTES, GOOD_BYTES = 64 * 2**20, 512 * 2**20
"""A device keeps two copies of its model, and the uploads of one round; a full disk stops it."""
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
MOUNTS = Path("/proc/self/mounts")


def nearest(folder: Path) -> Path:
    """The folder itself, or the first one above it that exists: where it would be made."""
    full = folder.absolute()
    return next(path for path in (full, *full.parents) if path.exists())


def judge_writable(folder: Path) -> Finding:
    """Whether the state folder is there or can be made, and takes a file."""
    place = nearest(folder)
    if not place.is_dir():
        return fail(f"{place} is a file, not a folder", "give --state another folder, or move the file away")
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return fail(
            f"{place}: {error.strerror or error}", "give it to this user (chown, chmod), or use another --state"
        )
    return ok(str(folder) if place == folder.absolute() else f"{folder} will be made in {place}")


def judge_medium(folder: Path, kind: str) -> Finding:
    """Whether what is written outlives a power cut; `kind`: the type of the file system, empty where not known."""
    if kind in IN_MEMORY:
        return warn(
            f"{folder} is on {kind}, which a power cut empties: the device would begin anew",
            "give --state a folder on a card, a disk or flash",
        )
    return ok(kind or "not known")


def filesystem(folder: Path, mounts: str) -> str:
    """The type of the file system that holds a folder, by the text of /proc/self/mounts; empty where it is unknown."""
    place = nearest(folder).resolve()
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " "))
        if (point == place or point in place.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    return kind


def read_mounts() -> str:
    """The mounted file systems; empty where the system does not tell."""
    try:
        return MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def judge_sync(median_s: float | None) -> Finding:
    """How long the disk takes to make 4 KiB durable, which each exchange waits for.  None: it could not be tried."""
    if median_s is None:
        return fail("cannot be measured: the folder takes no file", "see the line above")
    shown = f"{1e3 * median_s:.1f} ms for 4 KiB"
    if median_s > SLOW_SYNC_S:
        return warn(f"{shown}: slow", "a worn card or a network share? put --state on a better one")
    return ok(shown)


def measure_sync_s(folder: Path) -> float | None:
    """The median of a few syncs, in seconds; None where the folder takes no file."""
    try:
        with tempfile.TemporaryFile(dir=nearest(folder)) as file:
            return statistics.median(_sync_s(file.fileno()) for _ in range(SYNCS))
    except OSError:
        return None


def _sync_s(descriptor: int) -> float:
    os.write(descriptor, bytes(4096))
    begun_s = time.perf_counter()
    os.fsync(descriptor)
    return time.perf_counter() - begun_s


def judge_room(free_bytes: int) -> Finding:
    """Free space."""
    shown = f"{free_bytes / 2**30:.1f} GiB free" if free_bytes >= 2**30 else f"{free_bytes / 2**20:.0f} MiB free"
    if free_bytes < LEAST_BYTES:
        return fail(f"{shown}: too little", f"make room: {LEAST_BYTES >> 20} MiB at least, and twice the model")
    if free_bytes < GOOD_BYTES:
        return warn(f"{shown}: enough for small models only", f"make room: {GOOD_BYTES >> 20} MiB are comfortable")
    return ok(shown)


def free_bytes(folder: Path) -> int:
    """Where the folder is or would be."""
    return shutil.disk_usage(nearest(folder)).free
