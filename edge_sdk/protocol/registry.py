"""The entry points of installed packages: each group is read once, each object loads at its first use."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

from edge_sdk.errors import EdgeError, UsageError
from edge_sdk.protocol.frames.leaves import one_line

OWN_PACKAGE = "edge-sdk"


@functools.cache
def points(group: str) -> Mapping[str, Sequence[importlib.metadata.EntryPoint]]:
    """Return the entry points of a group by name.  Cached: reading takes milliseconds, and repeats for each device."""
    found: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=group):
        if all(point.value != other.value for other in found.setdefault(point.name, [])):
            found[point.name].append(point)
    return found


def names(group: str) -> tuple[str, ...]:
    """Return the names in an entry-point group, sorted."""
    return tuple(sorted(points(group)))


def value(group: str, name: str) -> str:
    """Return the target of a name, as `MODULE:OBJECT`, or empty if the name is not registered."""
    found = points(group).get(name)
    return found[0].value if found else ""


def package(point: importlib.metadata.EntryPoint) -> str:
    """Return the name of the package that registers an entry point, or of its module if no metadata name a package."""
    distribution = getattr(point, "dist", None)
    return distribution.name if distribution is not None else point.value.partition(":")[0].partition(".")[0]


@functools.cache
def is_own(group: str, name: str) -> bool:
    """Whether a name is registered by this package alone.  Cached: a package's name is read from its metadata."""
    return all(package(point) == OWN_PACKAGE for point in points(group).get(name, ()))


def remedy(group: str, name: str) -> str:
    """Return the remedy for a broken entry point."""
    owner = package(points(group)[name][0])
    return f"install {OWN_PACKAGE} again" if owner == OWN_PACKAGE else f"uninstall {owner} or fix it"


@functools.cache
def load_entry(group: str, name: str, what: str) -> Any:
    """Load the object that is registered under a name.  what: its kind in words, for the error.

    Raises UsageError, in one line that says what to do, if nothing is registered, two packages claim the name, or it
    does not load.
    """
    found = points(group).get(name, ())
    if not found:
        raise UsageError(f"no {what} {name!r}; registered are {', '.join(names(group)) or 'none'}")
    if len(found) > 1:
        claims = " and ".join(f"{point.value} (package {package(point)})" for point in found)
        others = " or ".join(sorted({package(point) for point in found} - {OWN_PACKAGE}))
        raise UsageError(f"{what} {name!r} is registered twice, by {claims}; uninstall {others}")
    try:
        return found[0].load()
    except EdgeError:
        raise
    except (Exception, SystemExit) as error:  # a module of another package may raise anything
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        why = f"{kind}{one_line(' '.join(str(error).split()))}".removesuffix(": ")
        raise UsageError(
            f"{what} {name!r}: {found[0].value} does not load: {why} (entry point of {group}, package "
            f"{package(found[0])}); {remedy(group, name)}"
        ) from error
