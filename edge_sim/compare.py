"""The same federation under several methods: which runs that takes, which are done already, and doing the rest.

Data, partition, models, private batches and the draw of public samples follow from the seed alone, so two methods under
one seed differ in nothing but the method, and their accuracies may be subtracted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.config import to_toml
from coordinator.report import text_files
from coordinator.report.comparison import (
    ALONE,
    METHOD_COLUMNS,
    RUN_COLUMNS,
    Comparison,
    Line,
    Trial,
    comparison_summary,
    method_rows,
    run_rows,
)
from coordinator.report.files import read_run, write_run
from edge_sdk.errors import StoreError, UsageError
from edge_sdk.protocol.wires import registered_names
from edge_sim import config as configs
from edge_sim import fleet as fleets
from edge_sim.config import Config
from edge_sim.runner import WatcherFor, run

BASELINE_ONLY = frozenset({"local", ALONE})
"""Names of the line that is always there."""


@dataclass(frozen=True)
class Planned:
    """One run: what it is, and where it goes."""

    method: str
    seed: int
    folder: str
    config: Config


def compare(
    config: Config,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    watcher: WatcherFor = lambda _label: None,
) -> Comparison:
    """Run what is not there yet, and compare.

    Every run has its run directory inside `out`; one that holds a finished run of these very settings is not run again.
    Raises UsageError for methods, seeds or a folder that do not fit, and whatever a run raises.
    """
    names, numbers = check_methods(methods), check_seeds(seeds)
    planned = plan(config, names, numbers)
    todo = [each for each in planned if not _finished(each, out)]
    if todo:
        _rehearse(planned[: len(names) + 1])
    for place, each in enumerate(todo, 1):
        eyes = watcher(f"{each.method}, seed {each.seed} ({place} of {len(todo)})")
        result = run(each.config, watcher=lambda _label, eyes=eyes: eyes)  # type: ignore[misc]  # mypy cannot type a bound default
        write_run(result, to_toml(each.config.tables), out / each.folder)
    comparison = Comparison(lines=_lines(planned, out), baseline=names[0])
    write_comparison(comparison, out)
    return comparison


def check_methods(methods: Sequence[str]) -> tuple[str, ...]:
    """The methods to compare, each once, without the line that is there anyway.  Raises UsageError."""
    known = registered_names("coordinator.methods")
    chosen = tuple(dict.fromkeys(name for name in methods if name not in BASELINE_ONLY))
    for name in chosen:
        if name not in known:
            raise UsageError(f"--methods {name}: no such method; registered are {', '.join(known)}")
    if not chosen:
        raise UsageError("--methods: name one at least, such as fedmd,fedal; the devices alone are always compared")
    return chosen


def check_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """The seeds, each once.  Raises UsageError."""
    for seed in seeds:
        if not 0 <= seed < 2**32:
            raise UsageError(f"--seeds {seed}: expected whole numbers from 0 to {2**32 - 1}, such as 0,1,2")
    return tuple(dict.fromkeys(seeds))


def plan(config: Config, methods: Sequence[str], seeds: Sequence[int]) -> list[Planned]:
    """All runs, seed by seed, so that an interrupted comparison is complete for the seeds that it has."""
    return [
        Planned(method, seed, f"{method}/seed-{seed}", trial_config(config, method, seed))
        for seed in seeds
        for method in (ALONE, *methods)
    ]


def trial_config(config: Config, method: str, seed: int) -> Config:
    """The settings of one run: those of the file, under another method and seed.

    Each method has its parameters from [method.NAME]; keys of [method] itself belong to the file's own method.
    """
    own = config.federation.method
    tables: dict[str, Any] = {**config.tables, "run": {**config.tables.get("run", {}), "standalone": False}}
    tables["federation"] = {**config.tables["federation"], "seed": seed}
    if method == ALONE:
        return configs.alone(configs.parse(tables, config.file))
    tables["federation"]["method"] = method
    given: Mapping[str, Any] = config.tables.get("method", {})
    flat = {key: value for key, value in given.items() if not isinstance(value, dict)} if method == own else {}
    inner = {key: value for key, value in given.items() if isinstance(value, dict) and key == method}
    tables["method"] = {**flat, **inner}
    return configs.parse(tables, config.file)


def _rehearse(one_of_each: Sequence[Planned]) -> None:
    """Read every method's settings and build every kind of model, before the first run takes hours."""
    every = [fleets.build(planned.config) for planned in one_of_each]
    for device in {device.kit.family: device for device in every[0].devices}.values():
        device.kit.model(device.public)


def _finished(planned: Planned, out: Path) -> bool:
    """Whether this very run is there, and came to its end.  Raises UsageError where its folder holds another one."""
    folder = out / planned.folder
    if not (folder / "summary.json").exists() or not read_run(folder).completed:
        return False
    if (folder / "federation.toml").read_text(encoding="utf-8") != to_toml(planned.config.tables):
        raise UsageError(f"{folder}: holds a run with other settings; give --out another folder, or remove this one")
    return True


def _lines(planned: Sequence[Planned], out: Path) -> tuple[Line, ...]:
    trials: dict[str, list[Trial]] = {}
    for each in planned:
        trials.setdefault(each.method, []).append(Trial(each.seed, read_run(out / each.folder), each.folder))
    return tuple(Line(method, tuple(found)) for method, found in trials.items())


def write_comparison(comparison: Comparison, out: Path) -> None:
    """compare.json, methods.csv and runs.csv.  Raises StoreError where they cannot be written."""
    whole = comparison_summary(comparison)
    files = {
        "methods.csv": text_files.csv_text(METHOD_COLUMNS, method_rows(whole)),
        "runs.csv": text_files.csv_text(RUN_COLUMNS, run_rows(whole)),
        "compare.json": json.dumps(whole, indent=2, allow_nan=False) + "\n",
    }
    try:
        for name, text in files.items():
            text_files.replace(out / name, text)
    except OSError as error:
        raise StoreError(f"{out}: cannot write the comparison ({error.strerror}); free or change the place") from error
