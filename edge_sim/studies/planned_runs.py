"""Plans the runs of one federation under several methods, settings and seeds, and runs the missing ones.

The seed alone determines data, partition, models, private batches and the draw of public samples.  So two methods under
one seed differ only in the method, and their accuracies may be subtracted.

A comparison of several methods on the same federation is such a plan.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from coordinator.results.comparison.compare import ACCURACIES, ALONE, Comparison, MethodRuns, Trial
from coordinator.results.comparison.compare_files import write_comparison
from coordinator.results.figures.result import Result
from coordinator.results.report.run_files import read_run
from edge_sdk.errors import MissingExtra, UsageError, meant
from edge_sdk.methods.contract.registry import load_method, method_names
from edge_sim.config import settings
from edge_sim.config.settings import Config
from edge_sim.data.datasets import Dataset, dataset_of
from edge_sim.fleet.fleet import build_fleet, sample_division
from edge_sim.runs import run_folder
from edge_sim.runs.run_folder import check_kind
from edge_sim.runs.run_inputs import DIVISION, RunInputs, check_same_inputs, division_digest, named_inputs
from edge_sim.runs.runner import ObserverFor
from edge_sim.studies.study_runs import InMemory, RunOne, run_all

LONGEST_LABEL = 80

Setting: TypeAlias = Mapping[str, Any]
"""Values that differ from those of the file, by key: SECTION.KEY or method.NAME.KEY."""
FILE_AS_IT_IS: Setting = {}


@dataclass(frozen=True)
class PlannedRun:
    """One planned run: its method, setting and seed, and the folder of its result."""

    method: str
    setting: Setting
    seed: int
    folder: str
    config: Config

    @property
    def label(self) -> str:
        """The run in words."""
        return ", ".join(filter(None, (self.method, label(self.setting), f"seed {self.seed}")))

    def trial(self, out: Path) -> Trial:
        """Read the result of the run, which must be finished."""
        return Trial(self.seed, read_run(out / self.folder), self.folder)


def check_methods(methods: Sequence[str]) -> tuple[str, ...]:
    """Return the methods to compare, without the line of the devices alone.

    Raises UsageError for an unknown or repeated method.
    """
    known = method_names()
    chosen = tuple(name for name in methods if name != ALONE)
    for name in chosen:
        if name not in known:
            near = meant(name, known) or f"registered are {', '.join(known)}"
            raise UsageError(f"--methods {name}: no such method; {near.rstrip()}")
    check_once("--methods", methods)
    if not chosen:
        raise UsageError("--methods: name at least one, such as fedmd,fedal; the devices alone are always compared")
    return chosen


def check_metric(config: Config, methods: Sequence[str], metric: str) -> None:
    """Raise UsageError if one of these methods lacks the metric, one of ACCURACIES."""
    if metric not in ACCURACIES:
        raise UsageError(f"--metric {metric}: no such metric; choose one of {', '.join(ACCURACIES)}")
    model = "global" if metric == "gm" else metric.split("_", maxsplit=1)[0]
    for name in methods if model in ("global", "active") else ():
        method = load_method(name).under(trial_config(config, name, config.federation.seed).method)
        if model not in method.measured_models:
            lacks = "no global model" if model == "global" else "no slots, and so no mean over the active devices"
            raise UsageError(f"--metric {metric}: {name} has {lacks}; leave one of them out")
    if metric.endswith("validation_accuracy") and not config.data.split[1]:
        raise UsageError(f"--metric {metric}: data.split has no validation part: add --set data.split=[8,1,1]")


def check_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """Return the seeds.  Raises UsageError for an invalid or repeated seed."""
    for seed in seeds:
        if not 0 <= seed < 2**32:
            raise UsageError(f"--seeds {seed}: expected whole numbers from 0 to {2**32 - 1}, such as 0,1,2")
    check_once("--seeds", seeds)
    return tuple(seeds)


def check_once(option: str, values: Sequence[object]) -> None:
    """Raise UsageError for a repeated value: its runs would count as further ones."""
    for place, value in enumerate(values):
        if value in values[:place]:
            listed = ",".join(map(str, values))
            raise UsageError(f"{option} {listed}: {value} is given twice; name each once")


def plan(
    config: Config,
    methods: Sequence[str],
    seeds: Sequence[int],
    settings: Callable[[str], Sequence[Setting]] = lambda _method: (FILE_AS_IT_IS,),
) -> list[PlannedRun]:
    """Plan all runs seed by seed, so that an interrupted comparison is complete for its finished seeds.

    settings: of each method and of the devices alone, which come first; these are left out where they would repeat the
    method `local`.  Raises UsageError for an impossible setting.
    """
    return [
        planned_run(config, method, seed, setting)
        for seed in seeds
        for method in planned_lines(config, methods)
        for setting in settings(method)
    ]


def with_one_public_set(config: Config, methods: Sequence[str], say: Callable[[str], None]) -> Config:
    """Return the config with the public set that one of the methods needs by default, so that all leave it out.

    say: receives the number of samples that it takes.
    """
    for method in methods if config.data.public is None else ():
        trial = trial_config(config, method, config.federation.seed)
        if trial.takes_public and (dataset := dataset_of(trial)).public is not None:
            say(f"for {method}, and so for all methods: {dataset.public_taken}")
            return replace(config, data=replace(config.data, public=len(dataset.public.samples)))
    return config


def planned_run(config: Config, method: str, seed: int, setting: Setting) -> PlannedRun:
    """Plan one run.  Raises UsageError for an impossible setting."""
    folder = "/".join(filter(None, (method, label(setting), f"seed-{seed}")))
    return PlannedRun(method, setting, seed, folder, trial_config(config, method, seed, setting))


def planned_lines(config: Config, methods: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of a comparison: the devices alone, unless `local` is among the methods, then the methods."""
    same = "local" in methods and config.run.standalone != "every-round"
    return tuple(methods) if same else (ALONE, *methods)


def trial_config(config: Config, method: str, seed: int, setting: Setting = FILE_AS_IT_IS) -> Config:
    """Return the config of one run: the file's, with another method, seed and setting.

    Each method takes its parameters from [method.NAME]; keys of [method] itself belong to the file's own method.
    """
    own = config.federation.method
    tables = with_setting(config.tables, {**setting, "run.standalone": False, "federation.seed": seed})
    if method == ALONE:
        every_round = config.run.standalone == "every-round"
        return settings.alone(settings.parse(tables, config.file), every_round=every_round)
    tables["federation"]["method"] = method
    given: Mapping[str, Any] = tables.get("method", {})
    flat = {key: value for key, value in given.items() if not isinstance(value, dict)} if method == own else {}
    flat = {key: value for key, value in flat.items() if f"method.{method}.{key}" not in setting}
    inner = {key: value for key, value in given.items() if isinstance(value, dict) and key == method}
    tables["method"] = {**flat, **inner}
    return settings.parse(tables, config.file)


def with_setting(tables: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    """Return a copy of tables with some values set.  Raises UsageError if a part of a key is not a table."""
    found = {**tables}
    for key, value in sorted(setting.items()):
        *sections, last = key.split(".")
        table: dict[str, Any] = found
        for section in sections:
            inner = table.get(section, {})
            if not isinstance(inner, dict):
                raise UsageError(f"--over {key}: {section} is not a table")
            table[section] = {**inner}
            table = table[section]
        table[last] = value
    return found


def label(setting: Setting) -> str:
    """Return a file name for a setting, independent of the other axes, or empty for the file's own setting."""
    exact = ",".join(f"{key}={_written(value)}" for key, value in sorted(setting.items()))
    plain = re.sub(r"[^A-Za-z0-9_.,=+-]", "_", exact)
    if plain == exact and len(exact) <= LONGEST_LABEL:
        return exact
    return f"{plain[:LONGEST_LABEL]}-{hashlib.sha256(exact.encode()).hexdigest()[:8]}"


def run_missing(
    planned: Sequence[PlannedRun],
    out: Path,
    observer: ObserverFor | None = None,
    *,
    run_one: RunOne | None = None,
    on_boards: bool = False,
    jobs: int = 1,
    say: Callable[[str], None] = lambda _line: None,
) -> None:
    """Run the missing runs; before the first one, read all settings and build every kind of model.

    observer: default: lines in the terminal.  run_one: carries out a run (default: in virtual time).  on_boards:
    whether it does so on the boards of a lab.  jobs: number of simultaneous runs.  say: receives a line about the plan.

    Every run has its run directory inside `out`; a finished run with the same settings is not run again, and an
    interrupted one resumes.  Raises UsageError if a folder holds another run, or another command is active in
    `out`, and every error of a run.
    """
    digests = DataDigests()
    if all(has_ended(each, out, digests, on_boards=on_boards) for each in planned):
        say(f"all {len(planned)} runs are finished in {out}")
        return
    check_settings([each for each in planned if each.seed == planned[0].seed])
    with run_folder.claimed(out):
        missing = [each for each in planned if not has_ended(each, out, digests, on_boards=on_boards)]
        say(_plan_words(planned, missing, out, jobs))
        run_all(
            [(each.label, each.config, out / each.folder) for each in missing],
            run_one=run_one or InMemory(),
            observer=observer,
            jobs=jobs,
        )


def _plan_words(planned: Sequence[PlannedRun], missing: Sequence[PlannedRun], out: Path, jobs: int) -> str:
    """Describe the plan in a line."""
    methods = list(dict.fromkeys(each.method for each in planned))
    seeds = list(dict.fromkeys(each.seed for each in planned))
    settings_ = len({label(each.setting) for each in planned})
    one = planned[-1].config.federation
    words = [
        f"{len(planned)} runs: {', '.join(methods)}",
        *([f"{settings_} settings"] if settings_ > 1 else []),
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}",
        f"{one.devices} devices, {one.rounds} rounds each",
    ]
    done = len(planned) - len(missing)
    begun = sum((out / each.folder / "checkpoint").exists() for each in missing)
    rest = f"; {done} finished before" * (done > 0) + f"; {begun} interrupted, to be continued" * (begun > 0)
    return "; ".join(words) + rest + f"; {jobs} at once" * (jobs > 1) + f"; into {out}"


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def check_settings(one_of_each: Sequence[PlannedRun]) -> None:
    """Read all settings and build every kind of model, before the first run takes hours."""
    kinds = set()
    for planned in one_of_each:
        for device in build_fleet(planned.config).devices:
            kind = (device.kit.family, device.kit.size, device.kit.feature_dim, device.kit.classes, device.kit.proxy)
            if kind not in kinds:
                kinds.add(kind)
                device.kit.model(device.public)
                device.kit.proxy_model(device.public)


class DataDigests:
    """The digests of a study's data sets and of their divisions; only the last data set is cached."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, RunInputs]] = {}
        self._kept: dict[str, Dataset] = {}

    def check(self, folder: Path, found: Result, config: Config) -> None:
        """Raise UsageError if the finished run in a folder had other samples or inputs than this config has now.

        Inputs that cannot be read now are not compared.
        """
        inputs = run_folder.kept_inputs(folder)
        samples = found.data.get("sha256", "")
        if samples or inputs:
            now, division = self._of(config)
            run_folder.check_same_samples(folder, samples, now)
            check_same_inputs(folder, inputs, {**division, **named_inputs(config)})

    def _of(self, config: Config) -> tuple[str, RunInputs]:
        """Return the digests of a run's data set and of its division; empty if it cannot be read."""
        federation = config.federation
        key = repr((self._data_key(config), config.partition, federation.devices))
        if key not in self._known:
            self._known[key] = "", {}
            with suppress(UsageError, MissingExtra):
                dataset = self._dataset(config)
                self._known[key] = dataset.sha256, {}
                self._known[key] = (
                    dataset.sha256,
                    {DIVISION: division_digest(dataset, sample_division(config, dataset))},
                )
        return self._known[key]

    def _dataset(self, config: Config) -> Dataset:
        key = self._data_key(config)
        if key not in self._kept:
            self._kept.clear()
            self._kept[key] = dataset_of(config)
        return self._kept[key]

    @staticmethod
    def _data_key(config: Config) -> str:
        federation = config.federation
        named = federation.classes, federation.class_names
        return repr((config.data, config.takes_public, federation.seed, config.file.parent, named))


def has_ended(
    planned: PlannedRun, out: Path, digests: DataDigests, *, on_boards: bool = False, early: str = ""
) -> bool:
    """Whether this run is finished, or ended early for reason `early`.

    Raises UsageError if its folder holds another run, or one with other samples, partition or code.
    """
    folder = out / planned.folder
    if not (folder / "summary.json").exists():
        return False
    found = read_run(folder)
    if not (found.completed or (early and found.reason == early)):
        return False
    kept = settings.load_config(folder / run_folder.KEPT)
    if replace(kept, file=planned.config.file) != planned.config:
        raise UsageError(f"{folder}: holds a run with other settings; give --out another folder, or remove this one")
    if found.on_boards is not on_boards:
        where = "in a simulation" if on_boards else "on boards"
        raise UsageError(f"{folder}: holds a run {where}; give --out another folder, or remove this one")
    digests.check(folder, found, planned.config)
    return True


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
