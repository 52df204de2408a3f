"""The search of a sweep: Optuna proposes settings to try (TPE), and ends runs that fall behind (median pruning).

Each method, and the devices alone, has a separate search under each condition, on the validation part only.
Only the runs are kept.  A restarted search proposes the same settings, and reads earlier runs from its folder.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from coordinator.record.observer import ObserverGroup, RunEnded, RunObserver
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.results.report.text_files import csv_text, replace_file
from edge_sdk.durable import as_store_error
from edge_sdk.errors import MissingExtra
from edge_sim.config.settings import Config
from edge_sim.runs import run_folder
from edge_sim.runs.runner import ObserverFor
from edge_sim.studies.axes import Axis, choices, number_of_choices
from edge_sim.studies.planned_runs import DataDigests, PlannedRun, Setting, has_ended, label, planned_run
from edge_sim.studies.study_runs import InMemory, StudyProgress, TimeLeft

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial as Proposal

CRITERION = "validation_accuracy"
PRUNED = "pruned: its validation accuracy is below the median of earlier settings"
"""The reason in a run that a search ended early."""
REPORTED = "validation.csv"
"""The validation accuracy after each round of a run, in its folder."""
IN_FULL, SAFE_SHARE = 3, 0.25
"""The number of settings tried in full before runs are compared with their median, and the share of its rounds before
which no run is ended: a small learning rate is slow at first."""
LOG_FROM = 10.0
"""Ranges whose ends differ by this factor are searched on a logarithmic scale."""
MOST_PROPOSALS = 50
"""Maximum number of proposals for each setting to try: repeated ones count once."""
TrialOutcome: TypeAlias = float | str | None
"""The mean validation accuracy over the seeds, or PRUNED, or None if a run failed."""


@dataclass(frozen=True)
class Search:
    """How a sweep chooses its runs."""

    trials: int | None = None
    """The number of settings that each method tries, proposed by TPE, or None for all."""
    prune: bool = False
    """Whether to end runs that are below the median of earlier settings after the same number of rounds."""


def search_of(trials: int | None, *, prune: bool) -> Search | None:
    """The search with these options, or None without one."""
    return Search(trials, prune) if prune or trials is not None else None


def search_runs(
    config: Config,
    axes: Sequence[Axis],
    *,
    lines: Sequence[str],
    around: Sequence[Setting],
    seeds: Sequence[int],
    out: Path,
    search: Search,
    observer: ObserverFor | None = None,
) -> list[PlannedRun]:
    """Run the missing runs of a search, and return all its runs by line and condition, setting by setting.

    lines: the methods, and the devices alone.  around: the conditions.  observer: default: lines in the terminal.
    Raises UsageError if a folder holds another run, or another command is active in `out`; MissingExtra without
    Optuna; and every error of a run.
    """
    check_optuna()
    wanted = {
        line: min(search.trials or number_of_choices(axes, line), number_of_choices(axes, line)) for line in lines
    }
    left = TimeLeft(int(sum(wanted.values())) * len(around) * len(seeds))
    runner = _Runner(out, search, left, observer, InMemory(), DataDigests())
    found: list[PlannedRun] = []
    with run_folder.claimed(out), _quiet():
        for condition in around:
            for line in lines:
                tried = _Tried(config, line, condition, seeds)
                found += _searched(tried, [axis for axis in axes if axis.is_chosen_by(line)], int(wanted[line]), runner)
    return found


def check_optuna() -> None:
    """Raise MissingExtra without Optuna."""
    try:
        import optuna  # noqa: F401  # an optional package, imported only for a search
    except ImportError:
        raise MissingExtra("optuna", "search", "--trials and --prune") from None


@dataclass(frozen=True)
class _Tried:
    """The subject of one search: a line of the comparison under one condition, run with each of these seeds."""

    config: Config
    line: str
    condition: Setting
    seeds: Sequence[int]

    def runs(self, setting: Setting) -> list[PlannedRun]:
        return [planned_run(self.config, self.line, seed, {**self.condition, **setting}) for seed in self.seeds]


@dataclass(frozen=True)
class _Runner:
    """Carries out runs, or reads finished ones."""

    out: Path
    search: Search
    left: TimeLeft
    observer: ObserverFor | None
    run_one: InMemory
    digests: DataDigests

    def ended(self, planned: PlannedRun, proposal: Proposal, before: int) -> tuple[str, float | None]:
        """Return (why the run ended early, its validation accuracy); before: rounds of earlier seeds."""
        folder = self.out / planned.folder
        watch = _Watch(proposal, before, folder / REPORTED, prune=self.search.prune)
        if has_ended(planned, self.out, self.digests, early=PRUNED if self.search.prune else ""):
            watch.report_all()
        else:
            words = f"{planned.label} (setting {proposal.number + 1})"
            shown = StudyProgress(words, self.left) if self.observer is None else self.observer(words)
            result = self.run_one(planned.config, ObserverGroup(*filter(None, [shown, watch])), folder)
            if shown is not None and result.reason:
                shown.noted(f"ended after round {result.rounds_done} of {result.rounds}: {result.reason}")
        self.left.run_done()
        trial = planned.trial(self.out)
        return trial.result.reason, trial.accuracy(CRITERION)


def _searched(tried: _Tried, axes: Sequence[Axis], wanted: int, runner: _Runner) -> Iterator[PlannedRun]:
    """Yield the runs of one search."""
    import optuna

    federation = tried.config.federation
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=federation.seed),
        pruner=optuna.pruners.MedianPruner(IN_FULL, n_warmup_steps=math.ceil(SAFE_SHARE * federation.rounds)),
    )
    space = {axis.key: _distribution(axis) for axis in axes}
    if runner.search.trials is None:
        for setting in choices(axes, tried.line):
            study.enqueue_trial({axis.key: axis.values.index(setting[axis.key]) for axis in axes})
    found: dict[str, TrialOutcome] = {}
    for _ in range(MOST_PROPOSALS * wanted):
        if len(found) == wanted:
            return
        proposal = study.ask(space)
        setting = {axis.key: _value(axis, proposal.params[axis.key]) for axis in axes}
        name = label(setting)
        if name not in found:
            runs, found[name] = _try(tried.runs(setting), proposal, runner)
            yield from runs
        _tell(study, proposal, found[name])


def _try(
    runs: Sequence[PlannedRun], proposal: Proposal, runner: _Runner
) -> tuple[list[PlannedRun], float | str | None]:
    """Try a setting; return its runs and mean accuracy over the seeds, PRUNED, or None if a run failed."""
    values: list[float | None] = []
    for place, planned in enumerate(runs):
        reason, value = runner.ended(planned, proposal, place * planned.config.federation.rounds)
        if reason == PRUNED:
            return [*runs[: place + 1]], PRUNED
        values.append(value)
    known = [value for value in values if value is not None]
    return [*runs], statistics.fmean(known) if len(known) == len(runs) else None


def _tell(study: Study, proposal: Proposal, value: TrialOutcome) -> None:
    from optuna.trial import TrialState

    if isinstance(value, float):
        study.tell(proposal, value)
    else:
        study.tell(proposal, state=TrialState.PRUNED if value == PRUNED else TrialState.FAIL)


def _distribution(axis: Axis) -> BaseDistribution:
    """The distribution for Optuna: the indices of values, or the numbers of a range."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not axis.is_range:
        return CategoricalDistribution(range(len(axis.values)))
    low, high = axis.values
    log = low > 0 and high >= LOG_FROM * low
    return IntDistribution(low, high, log=log) if isinstance(low, int) else FloatDistribution(low, high, log=log)


def _value(axis: Axis, drawn: Any) -> Any:
    """The drawn value of a setting; a fraction is rounded to four digits within the range."""
    if not axis.is_range:
        return axis.values[drawn]
    low, high = axis.values
    return drawn if isinstance(drawn, int) else min(max(float(f"{drawn:.4g}"), low), high)


class _Watch(RunObserver):
    """Reports the validation accuracy of a run after each round to its trial, and ends a run that falls behind.

    The file keeps the reported values, for a resumed run and for one that is only read.
    """

    def __init__(self, proposal: Proposal, before: int, path: Path, *, prune: bool) -> None:
        self._proposal, self._before, self._path, self._prune = proposal, before, path, prune
        self._values = _read(path)
        self._reported: set[int] = set()

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:
        """Report the mean over the devices that reported one; keep it."""
        found = [figures[CRITERION] for figures in record.metrics.values() if CRITERION in figures]
        self._values = {number: value for number, value in self._values.items() if number < result.round}
        if found:
            self._values[result.round] = statistics.fmean(found)
        rows = ({"round": number, CRITERION: value} for number, value in self._values.items())
        with as_store_error(self._path):
            replace_file(self._path, csv_text(("round", CRITERION), rows))
        self.report_all()
        if self._prune and result.round < of and self._proposal.should_prune():
            raise RunEnded(PRUNED)

    def report_all(self) -> None:
        """Report the values that have not been reported."""
        for number, value in self._values.items():
            if number not in self._reported:
                self._proposal.report(value, self._before + number)
                self._reported.add(number)


def _read(path: Path) -> dict[int, float]:
    """The reported values by round; empty if the file is missing or unreadable."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return {int(row["round"]): float(row[CRITERION]) for row in csv.DictReader(stream)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna from writing a line for every trial."""
    from optuna import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(before)
