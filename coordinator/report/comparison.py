"""Several methods on the same federations: means and deviations over seeds, and paired differences with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from coordinator.report import student_t
from coordinator.report.metrics import TARGETS, Point
from coordinator.report.result import Result, summary

COMPARISON_VERSION = 1
ALONE = "alone"
"""The name of the line in which devices train on their own data and exchange nothing."""

ACCURACIES: Mapping[str, tuple[str, str]] = {
    "mean": ("accuracy", "mean"),
    "worst": ("accuracy", "worst"),
    "gm": ("accuracy", "gm"),
    "amp": ("own_task", "amp"),
    "fm": ("own_task", "fm"),
    "wlp": ("own_task", "wlp"),
    "local_accuracy": ("metrics", "local_accuracy_mean"),
    "pm_v": ("metrics", "pm_v_mean"),
    "pm_l": ("metrics", "pm_l_mean"),
    "validation_accuracy": ("metrics", "validation_accuracy_mean"),
}
"""What a run is judged by, over its devices, and where that stands in its summary."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Trial:
    """One method under one seed."""

    seed: int
    result: Result
    folder: str = ""
    """Its run directory, relative to the comparison's."""

    @cached_property
    def whole(self) -> Mapping[str, Any]:
        """The run's summary."""
        return summary(self.result)

    def accuracy(self, figure: str) -> float | None:
        """One of ACCURACIES; None where it is not known, and for a run that ended early: it has no final accuracy."""
        part, key = ACCURACIES[figure]
        found: float | None = self.whole[part].get(key)
        return found if self.result.completed else None

    def curve(self) -> dict[int, list[float]]:
        """The accuracies of the learning devices by round, where there are any."""
        learners = self.result.learners
        rounds = {r.round: [v for device, v in r.accuracy.items() if device in learners] for r in self.result.history}
        return {number: values for number, values in rounds.items() if values}


@dataclass(frozen=True)
class Line:
    """One method under all seeds."""

    method: str
    trials: tuple[Trial, ...]
    """In the order of the seeds."""

    def accuracy(self, figure: str) -> Spread | None:
        """One of ACCURACIES."""
        return self.over_seeds(lambda trial: trial.accuracy(figure))

    def to_target(self, target: str, figure: str) -> Spread | None:
        """A field of metrics.Point on reaching a target; None unless every seed reached it."""
        reached = [trial.whole["to_target"].get(target, {}).get(figure) for trial in self.trials]
        return None if None in reached else spread_of(reached)

    def over_seeds(self, figure: Callable[[Trial], float | None]) -> Spread | None:
        """A figure's mean and deviation over the seeds that have it."""
        return spread_of(figure(trial) for trial in self.trials)


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over seeds, and the sample standard deviation where there is more than one."""

    mean: float
    sd: float | None
    count: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the mean, by Student's t; None of a single value.

        It holds for seeds drawn independently whose values are about normal.
        """
        if self.sd is None:
            return None
        half = student_t.quantile(CONFIDENCE, self.count - 1) * self.sd / math.sqrt(self.count)
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class Comparison:
    """All lines: first the devices alone, then the methods in the order asked for."""

    lines: tuple[Line, ...]
    baseline: str
    """The method that the others are compared with: the first one asked for."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The same for every line."""
        return tuple(trial.seed for trial in self.lines[0].trials)

    @property
    def example(self) -> Result:
        """Any run: what all have in common stands in each."""
        return self.lines[-1].trials[0].result

    @property
    def completed(self) -> bool:
        """Whether every run came to its end."""
        return all(trial.result.completed for line in self.lines for trial in line.trials)

    @property
    def metered(self) -> frozenset[str]:
        """What somebody metered in any run: see Result."""
        return frozenset().union(*(trial.result.metered for line in self.lines for trial in line.trials))

    def difference(self, line: Line, figure: str) -> Spread | None:
        """How much better than the baseline, seed by seed: both had the same data, models and private steps."""
        base = next(other for other in self.lines if other.method == self.baseline)
        pairs = (
            (mine.accuracy(figure), theirs.accuracy(figure))
            for mine, theirs in zip(line.trials, base.trials, strict=True)
        )
        return spread_of(mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None)


def spread_of(values: Iterable[float | None]) -> Spread | None:
    """Mean and sample standard deviation of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


FIGURES: Mapping[str, Callable[[Trial], float | None]] = {
    "up_per_device_round": lambda trial: trial.whole["bytes"].get("up_per_device_round"),
    "down_per_device_round": lambda trial: trial.whole["bytes"].get("down_per_device_round"),
    "wall_s": lambda trial: trial.whole["time"].get("wall_s"),
    "virtual_s": lambda trial: trial.whole["time"].get("virtual_s"),
    "bytes_up": lambda trial: trial.whole["bytes"]["up_total"],
    "bytes_down": lambda trial: trial.whole["bytes"]["down_total"],
    "device_j": lambda trial: trial.whole["work"].get("device_j_total"),
    "scalars_up": lambda trial: trial.whole["scalars"]["up_total"],
    "scalars_down": lambda trial: trial.whole["scalars"]["down_total"],
    "device_flops_per_round": lambda trial: trial.whole["work"].get("device_flops_per_round"),
    "device_s_per_round": lambda trial: trial.whole["work"].get("device_s_per_round"),
}
"""What a method costs."""


def comparison_summary(comparison: Comparison) -> dict[str, Any]:
    """What stands in compare.json, version 1.  A figure that is not known is absent, never null."""
    example = comparison.example
    return {
        "version": COMPARISON_VERSION,
        "federation": example.federation,
        "devices": len(example.devices),
        "rounds": example.rounds,
        "seeds": list(comparison.seeds),
        "baseline": comparison.baseline,
        "completed": comparison.completed,
        "data": dict(example.data),
        "versions": dict(example.versions),
        "methods": [_line(comparison, line) for line in comparison.lines],
    }


def _line(comparison: Comparison, line: Line) -> dict[str, Any]:
    return {
        "method": line.method,
        "accuracy": plain({key: line.accuracy(key) for key in ACCURACIES}),
        "difference": plain({key: comparison.difference(line, key) for key in ACCURACIES}),
        "cost": plain({key: line.over_seeds(figure) for key, figure in FIGURES.items()}),
        "to_target": {target: found for target in map("{:g}".format, TARGETS) if (found := _reached(line, target))},
        "runs": [run_figures(trial) for trial in line.trials],
    }


def _reached(line: Line, target: str) -> dict[str, dict[str, float]]:
    return plain({key: line.to_target(target, key) for key in Point._fields if key != "accuracy"})


def plain(spreads: Mapping[str, Spread | None]) -> dict[str, dict[str, float]]:
    """As JSON takes them; what is not known is absent."""
    return {key: _spread(spread) for key, spread in spreads.items() if spread is not None}


def _spread(spread: Spread) -> dict[str, float]:
    found = {"mean": spread.mean, "count": spread.count}
    if spread.sd is not None and spread.interval is not None:
        low, high = spread.interval
        found |= {"sd": spread.sd, "ci95_low": low, "ci95_high": high}
    return found


def run_figures(trial: Trial) -> dict[str, Any]:
    """A row of runs.csv, less its method; what is not known is absent."""
    figures = {_column(key): trial.accuracy(key) for key in ACCURACIES}
    figures |= {key: figure(trial) for key, figure in FIGURES.items()}
    return {
        "seed": trial.seed,
        "folder": trial.folder,
        "completed": trial.result.completed,
        "reason": trial.result.reason,
        **{key: value for key, value in figures.items() if value is not None},
    }


def _column(key: str) -> str:
    """Of a table: over the devices, `mean` and `worst` are accuracies; the other names say what they are."""
    return f"{key}_accuracy" if key in {"mean", "worst"} else key


_OF_MEAN = {"": "mean", "_sd": "sd"}
_OF_DIFFERENCE = {"": "mean", "_low": "ci95_low", "_high": "ci95_high"}
_CELLS: Mapping[str, tuple[str, str, str]] = {
    **{f"{_column(key)}{of}": ("accuracy", key, name) for key in ACCURACIES for of, name in _OF_MEAN.items()},
    **{f"{key}_difference{of}": ("difference", key, name) for key in ACCURACIES for of, name in _OF_DIFFERENCE.items()},
    **{f"{key}{of}": ("cost", key, name) for key in FIGURES for of, name in _OF_MEAN.items()},
}
"""Where in a method's entry each cell of methods.csv comes from."""
METHOD_COLUMNS = ("method", *_CELLS)
RUN_COLUMNS = ("method", "seed", "folder", "completed", "reason", *map(_column, ACCURACIES), *FIGURES)


def method_rows(whole: Mapping[str, Any]) -> list[dict[str, object]]:
    """methods.csv, from a comparison's summary: means over seeds, deviations (_sd), intervals of differences (_low)."""
    return [
        {"method": entry["method"]}
        | {column: entry[part].get(key, {}).get(name) for column, (part, key, name) in _CELLS.items()}
        for entry in whole["methods"]
    ]


def run_rows(whole: Mapping[str, Any]) -> list[dict[str, object]]:
    """runs.csv, from a comparison's summary: one row per run."""
    return [{"method": entry["method"], **run} for entry in whole["methods"] for run in entry["runs"]]
