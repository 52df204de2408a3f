"""A comparison: several methods on the same federations.  Means and deviations over seeds, and paired differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from coordinator.results.figures.compared_figures import COMPARED_ACCURACIES, COMPARED_COSTS, ComparedFigure
from coordinator.results.figures.intervals import Spread, spread_of
from coordinator.results.figures.result import Result
from coordinator.results.report.summary import summary
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.methods.contract.requests import MeasuredModel

ALONE = "alone"
"""The name of the line in which devices train on their own data and exchange nothing."""

ACCURACIES: Mapping[str, ComparedFigure] = {each.name: each for each in COMPARED_ACCURACIES}
"""The accuracies that runs are compared by."""
COSTS: Mapping[str, ComparedFigure] = {each.name: each for each in COMPARED_COSTS}
"""The costs of a method."""


@dataclass(frozen=True)
class Trial:
    """The run of one method under one seed."""

    seed: int
    result: Result
    folder: str = ""
    """Its run directory, relative to the comparison's."""
    model: MeasuredModel = "personal"
    """The model whose curves are wanted."""

    @cached_property
    def whole(self) -> Mapping[str, Any]:
        """The run's summary."""
        return summary(self.result)

    def accuracy(self, figure: str) -> float | None:
        """Return one of ACCURACIES, or None where it is unknown, as for a run that ended early."""
        return ACCURACIES[figure].of(self.whole) if self.result.completed else None

    def cost(self, figure: str) -> float | None:
        """Return one of COSTS, or None if it is unknown."""
        return COSTS[figure].of(self.whole)

    def curve(self) -> dict[int, list[float]]:
        """Round -> accuracies of the model on the learning devices, for rounds that measured any."""
        rounds = {entry.round: [*self.result.learned(entry.of(self.model)).values()] for entry in self.result.history}
        return {number: values for number, values in rounds.items() if values}

    @property
    def learners(self) -> int:
        """The number of devices that could be measured."""
        return len(self.result.learners)


@dataclass(frozen=True)
class MethodRuns:
    """The runs of one method under all seeds."""

    method: str
    trials: tuple[Trial, ...]
    """The runs in the order of the seeds."""

    def accuracy(self, figure: str) -> Spread | None:
        """Return the spread of one of ACCURACIES over the seeds."""
        return self.over_seeds(lambda trial: trial.accuracy(figure))

    def cost(self, figure: str) -> Spread | None:
        """Return the spread of one of COSTS over the seeds."""
        return self.over_seeds(lambda trial: trial.cost(figure))

    def to_target(self, target: str, figure: str) -> Spread | None:
        """Return a field of metrics.Point at the time a target was reached, or None unless every seed reached it."""
        reached = [trial.whole["to_target"].get(target, {}).get(figure) for trial in self.trials]
        return None if None in reached else spread_of(reached)

    def of(self, model: MeasuredModel, name: str) -> MethodRuns:
        """Return the same runs under another name, for the curves of a model."""
        return MethodRuns(name, tuple(replace(trial, model=model) for trial in self.trials))

    @property
    def models(self) -> frozenset[MeasuredModel]:
        """The models that were measured."""
        return frozenset(model for trial in self.trials for model in trial.result.models)

    def over_seeds(self, figure: Callable[[Trial], float | None]) -> Spread | None:
        """The mean and deviation of a figure over the seeds that have it."""
        return spread_of(figure(trial) for trial in self.trials)


@dataclass(frozen=True)
class Comparison:
    """The lines of a comparison: first the devices alone, then the methods in the order asked for."""

    lines: tuple[MethodRuns, ...]
    baseline: str
    """The method that the others are compared with: the first one asked for."""
    metric: str = "mean"
    """The one of ACCURACIES that tables show first."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, which are the same for every line."""
        return tuple(trial.seed for trial in self.lines[0].trials)

    @property
    def example(self) -> Result:
        """One of the runs, from which to read what all have in common."""
        return self.lines[-1].trials[0].result

    @property
    def completed(self) -> bool:
        """Whether every run came to its end."""
        return all(trial.result.completed for line in self.lines for trial in line.trials)

    @property
    def metered(self) -> frozenset[str]:
        """The quantities that were metered in any run: see Result.metered."""
        return frozenset().union(*(trial.result.metered for line in self.lines for trial in line.trials))

    @property
    def on_boards(self) -> bool:
        """Whether any of the runs was on the boards of a lab."""
        return any(trial.result.on_boards for line in self.lines for trial in line.trials)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods without the devices alone, or these where there is nothing else."""
        names = tuple(line.method for line in self.lines)
        return tuple(name for name in names if name != ALONE) or names

    def of_shared_models(self) -> Comparison | None:
        """Return a comparison of the models that devices share, or None where no method has one.

        Every method keeps its place, so that its line has the same style; lines of active means follow.
        """
        if not any("global" in line.models for line in self.lines):
            return None
        means = [line.of("active", f"{line.method}, ACA") for line in self.lines if "active" in line.models]
        return replace(self, lines=(*(line.of("global", line.method) for line in self.lines), *means))

    @property
    def shown_models(self) -> frozenset[MeasuredModel]:
        """The models whose curves the lines are."""
        return frozenset(trial.model for line in self.lines for trial in line.trials)

    @property
    def one_run(self) -> bool:
        """Whether all lines are of a single run, or of its devices alone."""
        return len(self.seeds) == 1 and len({trial.result.method for line in self.lines for trial in line.trials}) == 1

    def difference(self, line: MethodRuns, figure: str) -> Spread | None:
        """Return the line's figure minus the baseline's, paired by seed: both had the same data and private steps."""
        base = next(other for other in self.lines if other.method == self.baseline)
        pairs = (
            (mine.accuracy(figure), theirs.accuracy(figure))
            for mine, theirs in zip(line.trials, base.trials, strict=True)
        )
        return spread_of(mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None)


def setting_text(setting: Mapping[str, Any]) -> str:
    """Return a setting as text: `partition.alpha = 0.1, train.local_steps = 4`; empty for the file's own."""
    return ", ".join(f"{key} = {value}" for key, value in setting.items())


_OWN = {ALONE: "Local", "local": "Local training"}
"""The names of lines that no paper has introduced."""


def paper_name(line: str) -> str:
    """The name of a line: `FedAvg` of `fedavg`, `FedKF, ACA` of `fedkf, ACA`; unchanged where no method has it.

    A method's title begins with its name, and continues after a colon.
    """
    method, comma, rest = line.partition(",")
    if method in _OWN:
        return _OWN[method] + comma + rest
    try:
        title: str = load_method(method).title
    except UsageError:
        return line
    return title.partition(":")[0] + comma + rest
