"""Checks the state folder: rights, the kind of file system, the time of a sync, and free space."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from edge_sdk.errors import StoreError
from edge_sdk.tools.doctor.finding import Finding, fail, ok, warn
from edge_sdk.tools.measure.machine import disk_bytes_per_s

SLOW_SYNC_S = 0.1
SYNCS = 11
LEAST_BYTES, GOOD_BYTES = 64 * 2**20, 512 * 2**20
"""Free space that a device needs: it stores two copies of its model and the uploads of a round."""
SLOW_BYTES_PER_S = 2e6
MIB_WRITTEN = 4
"""The number of MiB that the measurement of the speed writes."""
_FREE = "on the disk of the system: sudo apt clean; sudo journalctl --vacuum-size=50M"
_ABOVE = "see the line `state folder` above"
_UNWRITABLE = "cannot be measured: no file can be written in the folder"
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
MOUNTS = Path("/proc/self/mounts")


def nearest(folder: Path) -> Path:
    """Return the folder itself, or the first folder above it that exists, in which it would be made."""
    full = folder.absolute()
    return next(path for path in (full, *full.parents) if os.path.exists(path))  # noqa: PTH110  # Path.exists raises where a folder above may not be read


def judge_writable(folder: Path) -> Finding:
    """Judge whether the state folder exists or can be made, and files can be written in it."""
    place, full = nearest(folder), folder.absolute()
    if not place.is_dir():
        old, new = shlex.quote(str(place)), shlex.quote(f"{place}.old")
        return fail(f"{place} is a file, not a folder", f"mv {old} {new}, or give --state another folder")
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        found = f"{folder}: " if place == full else f"{folder} cannot be made in {place}: "
        return fail(f"{found}{error.strerror or error}", _remedy(full, error.errno, made=place == full))
    return ok(str(folder) if place == full else f"{folder} will be made in {place}")


def _remedy(folder: Path, fault: int | None, *, made: bool) -> str:
    """Return what lets files be written in a folder.  fault: an errno.  made: whether the folder exists.

    Only the folder itself changes its owner, because parent folders may belong to the system, or to other programs.
    """
    another = "use another --state"
    if fault == errno.ENOSPC:
        return f"see the line `state room` below, or {another}"
    if fault not in (errno.EACCES, errno.EPERM):
        return f"{another}, on a card, a disk or flash"
    own = shlex.quote(str(folder))
    if made:
        return f"sudo chown $USER {own} && chmod u+rwx {own}, or {another}"
    return f"sudo mkdir -p {own} && sudo chown $USER {own}, or {another}"


def judge_medium(folder: Path, kind: str) -> Finding:
    """Judge whether files survive a power cut; kind: the type of the file system, or empty if unknown."""
    if kind in IN_MEMORY:
        return warn(
            f"{folder} is on {kind}, which a power cut empties: the device would lose its state",
            "give --state a folder on a card, a disk or flash",
        )
    return ok(kind or "not known")


def filesystem(folder: Path, mounts: str) -> str:
    """Return the type of a folder's file system, from the text of /proc/self/mounts, or empty if unknown."""
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
    """Return the text of /proc/self/mounts; empty if the system has none."""
    try:
        return MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def judge_sync(median_s: float | None) -> Finding:
    """Judge the seconds of a sync of 4 KiB, which delays each exchange.  None if it could not be measured."""
    if median_s is None:
        return fail(_UNWRITABLE, _ABOVE)
    shown = f"{1e3 * median_s:.1f} ms for 4 KiB"
    if median_s > SLOW_SYNC_S:
        return warn(f"{shown}: slow", "is it a worn card or a network share? put --state on a faster disk")
    return ok(shown)


def measure_sync_s(folder: Path) -> float | None:
    """Return the median time of a few syncs in seconds, or None if no file can be written in the folder."""
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


def judge_speed(bytes_per_s: float | None) -> Finding:
    """Judge the rate of durable writes in bytes a second, or None if it could not be measured."""
    if bytes_per_s is None:
        return fail(_UNWRITABLE, _ABOVE)
    shown = f"{bytes_per_s / 1e6:.1f} MB/s"
    if bytes_per_s < SLOW_BYTES_PER_S:
        return warn(
            f"{shown}: slow, each round waits for it",
            "use a card of class A1 or A2, or --state on a USB disk; dmesg | grep -i mmc shows the faults of a card",
        )
    return ok(shown)


def measure_bytes_per_s(folder: Path) -> float | None:
    """Return the rate of a few durable writes in bytes a second, or None if no file can be written in the folder."""
    try:
        return disk_bytes_per_s(nearest(folder), blocks=MIB_WRITTEN)
    except StoreError:
        return None


def judge_room(free_bytes: int | None) -> Finding:
    """Judge the free space, or None if the folder is not on a disk."""
    if free_bytes is None:
        return fail(_UNWRITABLE, _ABOVE)
    shown = f"{free_bytes / 2**30:.1f} GiB free" if free_bytes >= 2**30 else f"{free_bytes / 2**20:.0f} MiB free"
    if free_bytes < LEAST_BYTES:
        return fail(
            f"{shown}: too little", f"free at least {LEAST_BYTES >> 20} MiB, and twice the size of the model: {_FREE}"
        )
    if free_bytes < GOOD_BYTES:
        return warn(f"{shown}: enough for small models only", f"free {GOOD_BYTES >> 20} MiB or more: {_FREE}")
    return ok(shown)


def free_bytes(folder: Path) -> int | None:
    """Return the free bytes on the disk of the folder, which may not exist yet, or None if it is not on a disk."""
    usage = shutil.disk_usage(nearest(folder))
    return usage.free if usage.total else None  # a file system of the kernel, such as /proc, has no size
