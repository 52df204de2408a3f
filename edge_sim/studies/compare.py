"""The comparison of several methods on the same federation: its runs and their results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from coordinator.report.compare import Comparison, MethodRuns, Trial
from coordinator.report.compare_files import write_comparison
from edge_sim.config.settings import Config
from edge_sim.runs.runner import ObserverFor
from edge_sim.studies.planned_runs import (
    PlannedRun,
    RunOne,
    check_methods,
    check_metric,
    check_seeds,
    in_memory,
    plan,
    run_missing,
)


def compare(
    config: Config,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    observer: ObserverFor = lambda _label: None,
    *,
    metric: str = "mean",
    run_one: RunOne = in_memory,
    on_boards: bool = False,
) -> Comparison:
    """Run the missing runs, compare all, and write the files.

    metric: the one of ACCURACIES that tables show.  run_one: carries out a run; default: in virtual time.
    on_boards: whether it does so on the boards of a lab.  Raises UsageError for methods, seeds, a metric or a folder
    that do not fit, and whatever a run raises.
    """
    names = check_methods(methods)
    check_metric(config, names, metric)
    planned = plan(config, names, check_seeds(seeds))
    run_missing(planned, out, observer, run_one=run_one, on_boards=on_boards)
    comparison = Comparison(lines=lines(planned, out), baseline=names[0], metric=metric)
    write_comparison(comparison, out)
    return comparison


def lines(planned: Iterable[PlannedRun], out: Path) -> tuple[MethodRuns, ...]:
    """Read the results of planned runs and return one line for each method."""
    trials: dict[str, list[Trial]] = {}
    for each in planned:
        trials.setdefault(each.method, []).append(each.trial(out))
    return tuple(MethodRuns(method, tuple(found)) for method, found in trials.items())
