"""The axes of a sweep, read from the command line, and the grid that they span.

Keys of [train] and [method.NAME] are *settings*: a method may choose the best one, on the validation part.  All other
keys are *conditions*, such as the skew of the data: no method chooses them, and each has its own table.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.config import read_values
from coordinator.report.compare import ALONE
from edge_sdk.errors import UsageError
from edge_sim.studies.planned_runs import Setting

SETTINGS = frozenset({"train", "method"})
"""The sections whose keys a method may choose."""
OTHER_OPTIONS = {
    "federation.method": "--methods",
    "federation.seed": "--seeds",
    "run.standalone": "the line of `alone`",
}


@dataclass(frozen=True)
class Axis:
    """A key of the sweep and its values; the first value is the base."""

    key: str
    values: tuple[Any, ...]

    @property
    def chosen(self) -> bool:
        """Whether a method may choose among the values."""
        return self.key.split(".")[0] in SETTINGS

    @property
    def method(self) -> str:
        """The only method that has this key; empty: all methods have it."""
        section, name, *_ = self.key.split(".")
        return name if section == "method" else ""


def read_axes(texts: Sequence[str]) -> tuple[Axis, ...]:
    """Read the axes of `--over KEY=V1,V2 ...`.  Raises UsageError."""
    return checked_axes(tuple(map(_axis, texts)))


def axes_of(over: Mapping[str, Sequence[Any]]) -> tuple[Axis, ...]:
    """The axes with these keys and values.  Raises UsageError."""
    return checked_axes(tuple(_axis_of(key, values) for key, values in over.items()))


def checked_axes(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return the axes.  Raises UsageError where one stands there twice, or there is none."""
    for key in {axis.key for axis in axes}:
        if sum(axis.key == key for axis in axes) > 1:
            raise UsageError(f"--over {key}: stands there twice; give all values at once, as in {key}=1,2,3")
    if not axes:
        raise UsageError("--over: give one key at least, such as --over train.learning_rate=0.01,0.05")
    return axes


def check_axes_methods(axes: Sequence[Axis], methods: Sequence[str]) -> None:
    """Raise UsageError for an axis of a method that is not compared."""
    for axis in axes:
        if axis.method and axis.method not in methods:
            raise UsageError(f"--over {axis.key}: {axis.method} is not among --methods {','.join(methods)}")


def conditions(axes: Sequence[Axis]) -> list[Setting]:
    """Return every combination of the conditions; without conditions, a single empty one."""
    return _grid([axis for axis in axes if not axis.chosen])


def choices(axes: Sequence[Axis], method: str) -> list[Setting]:
    """Return every combination of the settings from which this method may choose; the base values come first."""
    return _grid([axis for axis in axes if axis.chosen and axis.method in ("", method)])


def check_equal_trials(axes: Sequence[Axis], methods: Sequence[str]) -> None:
    """Raise UsageError where one method may choose among more settings than another, which would favour it.

    The devices alone have no parameters of a method, so they choose among the settings of [train] only.
    """
    counts = {method: len(choices(axes, method)) for method in methods if method != ALONE}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{method} {count}" for method, count in counts.items())
        raise UsageError(f"--over: unequal numbers of settings to choose from ({said}); give every method as many")


def _axis(text: str) -> Axis:
    key, equals, values = text.partition("=")
    key, parts = key.strip(), key.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        raise UsageError(f"--over {text}: expected SECTION.KEY=VALUE,VALUE, such as train.learning_rate=0.01,0.05")
    return _axis_of(key, _values(key, values))


def _axis_of(key: str, values: Sequence[Any]) -> Axis:
    parts = key.split(".")
    if key in OTHER_OPTIONS:
        raise UsageError(f"--over {key}: this is what {OTHER_OPTIONS[key]} is for")
    if parts[0] == "method" and len(parts) != 3:
        raise UsageError(f"--over {key}: name the method, as in method.NAME.{parts[-1]}")
    if len(parts) < 2 or not values:
        raise UsageError(f"--over {key}: expected SECTION.KEY and one value at least")
    found = {repr(value): value for value in values}
    return Axis(key, tuple(found.values()))


def _values(key: str, text: str) -> list[Any]:
    values = read_values(text)
    if not values or "" in values:
        raise UsageError(f"--over {key}={text}: a value is missing")
    return values


def _grid(axes: Sequence[Axis]) -> list[Setting]:
    keys = [axis.key for axis in axes]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*(axis.values for axis in axes))]
