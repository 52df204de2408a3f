"""The comparison of several methods on the same federation: its runs and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from coordinator.results.comparison.compare import Comparison, MethodRuns, Trial
from coordinator.results.comparison.compare_files import write_comparison
from edge_sim.config.settings import Config
from edge_sim.runs.run_folder import check_kind
from edge_sim.runs.runner import ObserverFor
from edge_sim.studies.planned_runs import (
    PlannedRun,
    check_methods,
    check_metric,
    check_seeds,
    plan,
    run_missing,
    with_one_public_set,
)
from edge_sim.studies.study_runs import RunOne


def compare(
    config: Config,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    observer: ObserverFor | None = None,
    *,
    metric: str = "mean",
    run_one: RunOne | None = None,
    on_boards: bool = False,
    jobs: int = 1,
    say: Callable[[str], None] = lambda _line: None,
) -> Comparison:
    """Run the missing runs, compare all, and write the files.

    metric: one of ACCURACIES, shown in tables.  observer, run_one, on_boards, jobs, say: see run_missing.  Raises
    UsageError for methods, seeds, a metric or a folder that do not fit, and every error of a run.
    """
    names = check_methods(methods)
    check_kind(out, "comparison")
    check_metric(config, names, metric)
    config = with_one_public_set(config, names, say)
    planned = plan(config, names, check_seeds(seeds))
    run_missing(planned, out, observer, run_one=run_one, on_boards=on_boards, jobs=jobs, say=say)
    comparison = Comparison(lines=lines(planned, out), baseline=names[0], metric=metric)
    write_comparison(comparison, out)
    return comparison


def lines(planned: Iterable[PlannedRun], out: Path) -> tuple[MethodRuns, ...]:
    """Read the results of planned runs and return one line for each method."""
    trials: dict[str, list[Trial]] = {}
    for each in planned:
        trials.setdefault(each.method, []).append(each.trial(out))
    return tuple(MethodRuns(method, tuple(found)) for method, found in trials.items())
