"""The memory that this process may still use, as reported by Linux."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_GROUPS = {
    "0::": ("", "memory.max", "memory.current", "inactive_file"),
    "memory:": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""How /proc/self/cgroup names a control group of either version; its folder, limit, use, and what of it can go."""


def free_memory_bytes(root: Path = Path("/")) -> int | None:
    """Return the free memory: the machine's, or less within a service or container with a limit; None if unknown."""
    return min([*_of_machine(root), *_of_groups(root)], default=None)


def _of_machine(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield 1024 * int(line.split()[1])


def _of_groups(root: Path) -> Iterator[int]:
    """Give what the limit of each group that the process is in leaves."""
    for line in _lines(root / "proc/self/cgroup"):
        for mark, (folder, *names) in _GROUPS.items():
            _, found, path = line.partition(mark)
            if not found:
                continue
            top = root / "sys/fs/cgroup" / folder
            group = top / path.strip("/")
            for each in (group, *(parent for parent in group.parents if parent.is_relative_to(top))):
                yield from _left(each, *names)


def _left(group: Path, limit: str, used: str, can_go: str) -> Iterator[int]:
    most, now = ("".join(_lines(group / name)) for name in (limit, used))
    if most.isdecimal() and now.isdecimal():
        cached = [int(line.split()[1]) for line in _lines(group / "memory.stat") if line.startswith(f"{can_go} ")]
        yield max(0, int(most) - int(now) + sum(cached))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
