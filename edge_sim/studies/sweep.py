"""A sweep: every method chooses its settings on the validation part, then the methods are compared.

The settings are all points of a grid, or those that a search proposes.  Only the chosen settings are
evaluated on the test data, and every method chooses among the same number of settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coordinator.config import chosen_method
from coordinator.results.comparison.compare import Comparison, MethodRuns, Trial, setting_text
from coordinator.results.comparison.compare_files import (
    RUN_COLUMNS,
    comparison_summary,
    plain_spreads,
    run_figures,
    write_files,
)
from coordinator.results.comparison.paper_table import paper_table
from coordinator.results.figures.intervals import Spread, spread_of
from coordinator.results.report.tables import latex_text
from coordinator.results.report.text_files import csv_text
from edge_sdk.errors import UsageError
from edge_sim.config.settings import Config
from edge_sim.runs.run_folder import check_kind
from edge_sim.runs.runner import ObserverFor
from edge_sim.studies.axes import Axis, check_axes_methods, check_equal_trials, choices, conditions
from edge_sim.studies.planned_runs import (
    PlannedRun,
    Setting,
    check_methods,
    check_seeds,
    check_settings,
    label,
    plan,
    planned_lines,
    run_missing,
    trial_config,
    with_one_public_set,
)
from edge_sim.studies.search import CRITERION, PRUNED, Search, check_optuna, search_runs

SWEEP_VERSION = 1


@dataclass(frozen=True)
class Candidate:
    """The runs of one method under one setting and condition, with all seeds."""

    line: MethodRuns
    condition: Setting
    setting: Setting

    @property
    def validation(self) -> Spread | None:
        """The validation accuracy over the seeds, or None unless every seed was completed and measured it."""
        values = [trial.accuracy(CRITERION) for trial in self.line.trials]
        return None if None in values else spread_of(values)

    @property
    def pruned(self) -> bool:
        """Whether a search ended one of the runs early, which skips its other seeds."""
        return any(trial.result.reason == PRUNED for trial in self.line.trials)


@dataclass(frozen=True)
class Condition:
    """All methods under one condition: the candidates of each, and the comparison of the chosen ones."""

    values: Setting
    candidates: tuple[Candidate, ...]
    chosen: Mapping[str, Candidate]
    """The chosen candidate by method."""
    comparison: Comparison


@dataclass(frozen=True)
class Sweep:
    """The results of a whole grid, or of a search."""

    axes: tuple[Axis, ...]
    conditions: tuple[Condition, ...]
    search: Search | None = None
    """None if every point of the grid was run in full."""

    @property
    def completed(self) -> bool:
        """Whether every run was completed, or was ended early by the search."""
        return all(
            candidate.pruned or trial.result.completed
            for condition in self.conditions
            for candidate in condition.candidates
            for trial in candidate.line.trials
        )


def sweep(
    config: Config,
    axes: tuple[Axis, ...],
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    *,
    search: Search | None = None,
    observer: ObserverFor | None = None,
    jobs: int = 1,
    say: Callable[[str], None] = lambda _line: None,
) -> Sweep:
    """Run the missing runs, let every method choose its settings, and compare the methods.

    search: chooses points of the grid; default: all.  observer, jobs, say: see run_missing.
    Raises UsageError before the first run for axes, methods, seeds, settings or a folder that do not fit.
    """
    names = check_methods(methods)
    check_kind(out, "sweep")
    check_axes_methods(axes, names)
    check_equal_trials(axes, names, search.trials if search else None)
    config = with_one_public_set(config, names, say)
    around = conditions(axes)
    grid = plan(
        config,
        names,
        check_seeds(seeds),
        lambda method: [{**condition, **setting} for condition in around for setting in choices(axes, method)],
    )
    for each in grid:  # first, to report wrong keys and values of --over
        chosen_method(each.config)
    _check_validation(config, axes, names, around)
    shown = planned_lines(config, names)
    if search is None:
        run_missing(grid, out, observer, jobs=jobs, say=say)
        ran = grid
    else:
        if jobs > 1:
            raise UsageError(
                "--jobs: a search runs one after the other, because each proposal depends on earlier results"
            )
        check_optuna()
        check_settings([each for each in grid if each.seed == grid[0].seed])
        say(f"{_search_words(search)}: {', '.join(shown)}; seeds {', '.join(map(str, seeds))}; into {out}")
        ran = search_runs(
            config, axes, lines=shown, around=around, seeds=seeds, out=out, search=search, observer=observer
        )
    each_alone = [_condition(axes, ran, lines=shown, baseline=names[0], values=values, out=out) for values in around]
    found = Sweep(axes, tuple(each_alone), search)
    write_sweep(found, out)
    return found


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the highest mean validation accuracy over the seeds; among equals, the first.

    Without any validation accuracy, as when all runs ended early, it is the first candidate.
    """
    known = [(candidate.validation.mean, candidate) for candidate in candidates if candidate.validation]
    return max(known, key=lambda pair: pair[0])[1] if known else candidates[0]


def sweep_summary(found: Sweep) -> dict[str, Any]:
    """Return the contents of sweep.json, version 1."""
    return {
        "version": SWEEP_VERSION,
        "axes": [
            {"key": axis.key, "values": list(axis.values), "chosen": axis.chosen, "range": axis.is_range}
            for axis in found.axes
        ],
        **({"search": asdict(found.search)} if found.search else {}),
        "criterion": CRITERION,
        "completed": found.completed,
        "conditions": [
            {
                "condition": dict(condition.values),
                "trials": [_entry(condition, candidate) for candidate in condition.candidates],
                "comparison": comparison_summary(condition.comparison),
            }
            for condition in found.conditions
        ],
    }


def write_sweep(found: Sweep, out: Path) -> None:
    """Write sweep.json, trials.csv (one row per run) and table.tex.  Raises StoreError if they cannot be written."""
    keys = [axis.key for axis in found.axes]
    columns = ("method", *keys, "chosen", *RUN_COLUMNS[1:])
    tables = [
        latex_text(paper_table(condition.comparison, latex=True, caption=setting_text(condition.values)))
        for condition in found.conditions
    ]
    files = {
        "trials.csv": csv_text(columns, trial_rows(found)),
        "table.tex": "\n".join(tables),
        "sweep.json": json.dumps(sweep_summary(found), indent=2, allow_nan=False) + "\n",
    }
    write_files(files, out)


def trial_rows(found: Sweep) -> Iterable[dict[str, object]]:
    """Return the rows of trials.csv, one per run, with its values on the axes."""
    for condition in found.conditions:
        for candidate in condition.candidates:
            for trial in candidate.line.trials:
                yield {
                    "method": candidate.line.method,
                    **condition.values,
                    **candidate.setting,
                    "chosen": int(condition.chosen[candidate.line.method] is candidate),
                    **run_figures(trial),
                }


def _check_validation(config: Config, axes: Sequence[Axis], methods: Sequence[str], around: Sequence[Setting]) -> None:
    """Raise UsageError if methods choose settings but the devices have no validation part."""
    if not any(len(choices(axes, method)) > 1 for method in methods):
        return
    for condition in around:
        if not trial_config(config, methods[0], config.federation.seed, condition).data.split[1] > 0:
            raise UsageError(
                f"{config.file}: data.split: no validation part, and settings are chosen on it, never on the test: "
                "add --set data.split=[8,1,1]"
            )


def _condition(
    axes: Sequence[Axis],
    ran: Sequence[PlannedRun],
    *,
    lines: Sequence[str],
    baseline: str,
    values: Setting,
    out: Path,
) -> Condition:
    """Read the runs under a condition, and let every line choose."""
    chosen_keys = {axis.key for axis in axes if axis.chosen}
    found: dict[str, dict[str, tuple[Setting, list[Trial]]]] = {line: {} for line in lines}
    for each in ran:
        setting = {key: value for key, value in each.setting.items() if key in chosen_keys}
        if {**values, **setting} == each.setting:
            _, trials = found[each.method].setdefault(label(setting), (setting, []))
            trials.append(each.trial(out))
    candidates = {
        line: [Candidate(MethodRuns(line, tuple(trials)), values, setting) for setting, trials in tried.values()]
        for line, tried in found.items()
    }
    chosen = {line: choose(tried) for line, tried in candidates.items()}
    comparison = Comparison(tuple(candidate.line for candidate in chosen.values()), baseline)
    return Condition(values, tuple(each for tried in candidates.values() for each in tried), chosen, comparison)


def _search_words(search: Search) -> str:
    """Describe a search."""
    words = f"{search.trials} settings of each, proposed by TPE" if search.trials else "all settings of each"
    return words + ", with median pruning" * search.prune


def _entry(condition: Condition, candidate: Candidate) -> dict[str, Any]:
    return {
        "method": candidate.line.method,
        "setting": dict(candidate.setting),
        "chosen": condition.chosen[candidate.line.method] is candidate,
        **({"pruned": True} if candidate.pruned else {}),
        **plain_spreads({CRITERION: candidate.validation}),
        "runs": [run_figures(trial) for trial in candidate.line.trials],
    }
