"""The axes of a sweep, read from the command line, and the grid that they span.

Keys of [train] and [method.NAME] are *settings*: a method may choose the best one, on the validation part.  All other
keys are *conditions*, such as the skew of the data: no method chooses among them, and each has its own table.  A
setting may be a range, `0.001..0.1`, from which a search proposes values.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coordinator.config import read_values
from coordinator.results.comparison.compare import ALONE
from edge_sdk.errors import UsageError
from edge_sim.config.settings import Config
from edge_sim.studies.planned_runs import Setting, check_once

SETTINGS = frozenset({"train", "method"})
"""The sections whose keys a method may choose."""
OTHER_OPTIONS = {
    "federation.method": "--methods",
    "federation.seed": "--seeds",
    "run.standalone": "the line of `alone`",
}
_NUMBER = re.compile(r"\s*[+-]?\d+(\.\d+)?([eE][+-]?\d+)?\s*")


@dataclass(frozen=True)
class Axis:
    """A key of the sweep and its values; the first value is the base."""

    key: str
    values: tuple[Any, ...]
    is_range: bool = False
    """Whether the values are the two ends of a range: of whole numbers, or of fractions."""

    @property
    def chosen(self) -> bool:
        """Whether a method may choose among the values."""
        return self.key.split(".")[0] in SETTINGS

    @property
    def method(self) -> str:
        """The only method with this key, or empty if all methods have it."""
        section, name, *_ = self.key.split(".")
        return name if section == "method" else ""

    def is_chosen_by(self, method: str) -> bool:
        """Whether this method may choose among the values."""
        return self.chosen and self.method in ("", method)

    @property
    def text(self) -> str:
        """The values as in `--over`."""
        return (".." if self.is_range else ",").join(map(str, self.values))


def read_axes(texts: Sequence[str]) -> tuple[Axis, ...]:
    """Read the axes of `--over KEY=V1,V2 ...`.  Raises UsageError."""
    return checked_axes(tuple(map(_axis, texts)))


def given_methods(methods: Sequence[str] | str) -> tuple[str, ...]:
    """Return method names that are given as a list, or as one text with commas."""
    return tuple(each for each in methods.split(",") if each) if isinstance(methods, str) else tuple(methods)


def given_seeds(seeds: Sequence[int] | int | str) -> tuple[int, ...]:
    """Return seeds that are given as a list, one number, or one text with commas.  Raises UsageError."""
    if isinstance(seeds, int):
        return (seeds,)
    try:
        return tuple(map(int, seeds.split(","))) if isinstance(seeds, str) else tuple(map(operator.index, seeds))
    except (TypeError, ValueError):
        raise UsageError(f"seeds: expected whole numbers, as [0, 1, 2] or 0,1,2, found {seeds!r}") from None


def axes_of(over: Mapping[str, Sequence[Any]] | Sequence[str] | str) -> tuple[Axis, ...]:
    """Return the axes with these keys and values, or those of texts KEY=V1,V2.  Raises UsageError."""
    if not isinstance(over, Mapping):
        return read_axes((over,) if isinstance(over, str) else tuple(over))
    return checked_axes(tuple(_axis_of(key, values) for key, values in over.items()))


def checked_axes(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return the axes.  Raises UsageError for a repeated axis, or without an axis."""
    for key in {axis.key for axis in axes}:
        if sum(axis.key == key for axis in axes) > 1:
            raise UsageError(f"--over {key}: is given twice; give all values at once, as in {key}=1,2,3")
    if not axes:
        raise UsageError("--over: give at least one key, such as --over train.learning_rate=0.01,0.05")
    return axes


def check_axes_methods(axes: Sequence[Axis], methods: Sequence[str]) -> None:
    """Raise UsageError for an axis of a method that is not compared."""
    for axis in axes:
        if axis.method and axis.method not in methods:
            raise UsageError(f"--over {axis.key}: {axis.method} is not among --methods {','.join(methods)}")


def check_overrides(
    config: Config,
    overrides: Sequence[str],
    axes: Sequence[Axis] = (),
    *,
    methods: Sequence[str] | None,
    seeds: Sequence[int] | None,
) -> None:
    """Raise UsageError for a `--set` whose value another option overrides in every run.

    overrides: as SECTION.KEY=VALUE.  methods, seeds: the values of these options, or None.
    """
    given = {"--methods": methods, "--seeds": seeds}
    taken = {key: option for key, option in OTHER_OPTIONS.items() if given.get(option)}
    for axis in axes:
        own = axis.method == config.federation.method
        taken |= {axis.key: "--over", **({f"method.{axis.key.split('.')[-1]}": "--over"} if own else {})}
    for text in overrides:
        key = text.partition("=")[0].strip()
        if key in taken:
            raise UsageError(f"--set {key}: {taken[key]} gives it other values; leave one of them out")


def conditions(axes: Sequence[Axis]) -> list[Setting]:
    """Return every combination of the conditions; without conditions, a single empty one."""
    return _grid([axis for axis in axes if not axis.chosen])


def choices(axes: Sequence[Axis], method: str) -> list[Setting]:
    """Return every combination of the settings from which this method may choose; the base values come first."""
    return _grid([axis for axis in axes if axis.is_chosen_by(method)])


def number_of_choices(axes: Sequence[Axis], method: str) -> float:
    """The number of settings from which this method may choose; infinite if one of them is a range of fractions."""
    return math.prod(_size(axis) for axis in axes if axis.is_chosen_by(method))


def check_equal_trials(axes: Sequence[Axis], methods: Sequence[str], trials: int | None = None) -> None:
    """Raise UsageError if one method may choose among more settings than another, which would favour it.

    The devices alone have no parameters of a method, so they choose among the settings of [train] only.
    trials: number of settings that a search tries for each method, or None for all.
    """
    _check_ranges(axes, trials)
    counts = {method: number_of_choices(axes, method) for method in methods if method != ALONE}
    if trials is not None:
        few = min(counts, key=lambda method: counts[method])
        if trials > counts[few]:
            raise UsageError(f"--trials {trials}: of {few} there are {counts[few]} settings; without it all are tried")
    elif len(set(counts.values())) > 1:
        said = ", ".join(f"{method} {count}" for method, count in counts.items())
        raise UsageError(f"--over: unequal numbers of settings to choose from ({said}); give every method as many")


def _check_ranges(axes: Sequence[Axis], trials: int | None) -> None:
    for axis in axes:
        if axis.is_range and not axis.chosen:
            raise UsageError(f"--over {axis.key}={axis.text}: a condition has values, not a range, such as 0.1,1")
        if axis.is_range and trials is None:
            raise UsageError(f"--over {axis.key}={axis.text}: a range needs --trials N, the number of settings to try")


def _size(axis: Axis) -> float:
    if not axis.is_range:
        return len(axis.values)
    low, high = axis.values
    return high - low + 1 if isinstance(low, int) else math.inf


def _axis(text: str) -> Axis:
    key, equals, values = text.partition("=")
    key, parts = key.strip(), key.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        raise UsageError(f"--over {text}: expected SECTION.KEY=VALUE,VALUE, such as train.learning_rate=0.01,0.05")
    return _axis_of(key, values)


def _axis_of(key: str, values: Sequence[Any]) -> Axis:
    """The axis of a key and its values; values: text is read like on the command line."""
    parts = key.split(".")
    ends: tuple[Any, ...] = ()
    if isinstance(values, str):
        ends, values = _ends(key, values), _values(key, values)
    if not isinstance(values, Iterable):
        raise UsageError(f"--over {key}: expected several values, found {values!r}")
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    if key in OTHER_OPTIONS:
        raise UsageError(f"--over {key}: this is what {OTHER_OPTIONS[key]} is for")
    if parts[0] == "method" and len(parts) != 3:
        raise UsageError(f"--over {key}: name the method, as in method.NAME.{parts[-1]}")
    if len(parts) < 2 or not plain:
        raise UsageError(f"--over {key}: expected SECTION.KEY and at least one value")
    check_once(f"--over {key} =", plain)
    return Axis(key, ends or tuple(plain), is_range=bool(ends))


def _ends(key: str, text: str) -> tuple[Any, ...]:
    """The two ends of a range such as `0.001..0.1` or `1..8`; empty if the text is not a range."""
    parts = text.split("..")
    if len(parts) != 2 or not all(map(_NUMBER.fullmatch, parts)):
        return ()
    low, high = (read_values(part)[0] for part in parts)
    if not (isinstance(low, int) and isinstance(high, int)):
        low, high = float(low), float(high)
    if not low < high:
        raise UsageError(f"--over {key}={text}: expected the lower end first, such as 0.001..0.1")
    return low, high


def _values(key: str, text: str) -> list[Any]:
    values = read_values(text)
    if not values or "" in values:
        raise UsageError(f"--over {key}={text}: a value is missing")
    return values


def _grid(axes: Sequence[Axis]) -> list[Setting]:
    keys = [axis.key for axis in axes]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*(axis.values for axis in axes))]
