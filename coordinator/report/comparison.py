"""Several methods on the same federations: means and standard deviations over seeds, and paired differences."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from coordinator.report.result import Result, summary

COMPARISON_VERSION = 1
ALONE = "alone"
"""The name of the line in which devices train on their own data and exchange nothing."""

ACCURACIES = ("mean", "worst")
"""Over the devices of a run; `worst` as in the run's summary."""


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
        """`mean` or `worst` over the devices; None for a run that ended early: it has no final accuracy."""
        found: float | None = self.whole["accuracy"].get(figure)
        return found if self.result.completed else None

    def curve(self) -> dict[int, list[float]]:
        """The accuracies of the learning devices by round, where there are any."""
        learners = self.result.learners
        rounds = {r.round: [v for device, v in r.accuracy.items() if device in learners] for r in self.result.history}
        return {number: values for number, values in rounds.items() if values}

    def bytes_by_round(self) -> dict[int, float]:
        """Bytes that a device has sent and received so far, on average, by round."""
        devices, total = max(1, len(self.result.devices)), 0
        found = {}
        for entry in self.result.history:
            total += entry.bytes_up + entry.bytes_down
            found[entry.round] = total / devices
        return found


@dataclass(frozen=True)
class Line:
    """One method under all seeds."""

    method: str
    trials: tuple[Trial, ...]
    """In the order of the seeds."""

    def accuracy(self, figure: str) -> Spread | None:
        """`mean` or `worst` over the devices."""
        return self.over_seeds(lambda trial: trial.accuracy(figure))

    def over_seeds(self, figure: Callable[[Trial], float | None]) -> Spread | None:
        """A figure's mean and deviation over the seeds that have it."""
        return spread_of(figure(trial) for trial in self.trials)


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over seeds, and the sample standard deviation where there is more than one."""

    mean: float
    sd: float | None
    count: int


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
        "accuracy": _plain({key: line.accuracy(key) for key in ACCURACIES}),
        "difference": _plain({key: comparison.difference(line, key) for key in ACCURACIES}),
        "cost": _plain({key: line.over_seeds(figure) for key, figure in FIGURES.items()}),
        "runs": [_run(trial) for trial in line.trials],
    }


def _plain(spreads: Mapping[str, Spread | None]) -> dict[str, dict[str, float]]:
    return {
        key: {"mean": spread.mean, **({} if spread.sd is None else {"sd": spread.sd}), "count": spread.count}
        for key, spread in spreads.items()
        if spread is not None
    }


def _run(trial: Trial) -> dict[str, Any]:
    figures = {f"{key}_accuracy": trial.accuracy(key) for key in ACCURACIES}
    figures |= {key: figure(trial) for key, figure in FIGURES.items()}
    return {
        "seed": trial.seed,
        "folder": trial.folder,
        "completed": trial.result.completed,
        "reason": trial.result.reason,
        **{key: value for key, value in figures.items() if value is not None},
    }


_PARTS = (("accuracy", "_accuracy"), ("difference", "_difference"), ("cost", ""))
METHOD_COLUMNS = (
    "method",
    *(f"{key}{suffix}{of}" for _, suffix in _PARTS[:2] for key in ACCURACIES for of in ("", "_sd")),
    *(f"{key}{of}" for key in FIGURES for of in ("", "_sd")),
)
RUN_COLUMNS = ("method", "seed", "folder", "completed", "reason", *(f"{key}_accuracy" for key in ACCURACIES), *FIGURES)


def method_rows(whole: Mapping[str, Any]) -> list[dict[str, object]]:
    """methods.csv, from a comparison's summary: a mean over seeds under each name, its deviation under NAME_sd."""
    return [
        {"method": entry["method"]}
        | {
            f"{key}{suffix}{of}": spread.get(name)
            for part, suffix in _PARTS
            for key, spread in entry[part].items()
            for of, name in (("", "mean"), ("_sd", "sd"))
        }
        for entry in whole["methods"]
    ]


def run_rows(whole: Mapping[str, Any]) -> list[dict[str, object]]:
    """runs.csv, from a comparison's summary."""
    return [{"method": entry["method"], **run} for entry in whole["methods"] for run in entry["runs"]]
