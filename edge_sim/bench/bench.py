"""The benchmark's runs: each task with mixed nets and with one net, under every method that fits, in one folder.

A task and a group of nets is a comparison (edge_sim/studies), whose folder any other command reads: OUT/TASK/GROUP.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from coordinator.results.comparison.compare import Comparison, MethodRuns, Trial
from coordinator.results.comparison.compare_files import write_comparison
from coordinator.results.report import text_files
from coordinator.results.report.run_files import holds_finished_run, read_run
from edge_sdk.at_rest.files import make_folder
from edge_sdk.boards.profiles import load_board
from edge_sdk.errors import EdgeError, UsageError, meant
from edge_sdk.methods.contract.registry import load_method, method_names
from edge_sim.bench.tasks import GROUPS, SCALES, TASKS, NetGroup, Scale, Task, config_of
from edge_sim.config.settings import Config
from edge_sim.fleet.feasible import check_feasible, memory_need
from edge_sim.fleet.fleet import Fleet, build_fleet, rebuilt
from edge_sim.studies.planned_runs import check_methods, check_once, check_seeds, plan, run_missing, trial_config
from edge_sim.studies.study_runs import InMemory

KEPT = "bench.json"
VERSION = 1
LOCAL = "local"
"""The method that trains each device alone; differences are to it."""


@dataclass(frozen=True)
class Bench:
    """A benchmark's folder: its runs, and their results."""

    out: Path
    scale_name: str
    boards: tuple[str, ...]
    seeds: tuple[int, ...]
    memory: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bytes that a device on each board needs, by `TASK/GROUP/METHOD`: of the methods that fit."""
    misfits: dict[str, str] = field(default_factory=dict)
    """Why a method does not fit, by `TASK/GROUP/METHOD`."""
    missing: dict[str, str] = field(default_factory=dict)
    """How to get the data of a task that was left out, by its name."""

    @cached_property
    def scale(self) -> Scale:
        """The scale of all runs."""
        return SCALES[self.scale_name]

    def save(self) -> None:
        """Write what is known."""
        plain = {"version": VERSION, **{key: value for key, value in asdict(self).items() if key != "out"}}
        text_files.replace_file(self.out / KEPT, json.dumps(plain, indent=1) + "\n")

    def comparison(self, task: Task, group: NetGroup) -> Comparison | None:
        """Return the comparison of the methods whose runs are all finished, or None where the devices alone are not."""
        folder, begins = self.out / task.name / group, f"{task.name}/{group}/"
        names = [key.removeprefix(begins) for key in self.memory if key.startswith(begins)]
        lines = [self._line(folder, name) for name in sorted(names, key=lambda name: (name != LOCAL, name))]
        found = tuple(line for line in lines if line is not None)
        return Comparison(lines=found, baseline=LOCAL) if found and found[0].method == LOCAL else None

    def _line(self, folder: Path, name: str) -> MethodRuns | None:
        places = {seed: f"{name}/seed-{seed}" for seed in self.seeds}
        if not all(holds_finished_run(folder / place) for place in places.values()):
            return None
        return MethodRuns(name, tuple(Trial(seed, read_run(folder / each), each) for seed, each in places.items()))

    def unfinished(self, task: Task, group: NetGroup) -> list[str]:
        """Return the methods that fit, and whose runs are not all finished."""
        folder, begins = self.out / task.name / group, f"{task.name}/{group}/"
        names = [key.removeprefix(begins) for key in self.memory if key.startswith(begins) and key not in self.misfits]
        return [name for name in names if self._line(folder, name) is None]

    def comparisons(self) -> Iterator[tuple[Task, NetGroup, Comparison]]:
        """Yield each task and group with finished runs."""
        for task in TASKS:
            for group in GROUPS:
                found = self.comparison(task, group)
                if found is not None:
                    yield task, group, found


def open_bench(out: Path, scale: str, boards: Sequence[str], seeds: Sequence[int] | None) -> Bench:
    """Return the benchmark in a folder, or a new one.

    seeds: None for those of the scale.  Raises UsageError for an unknown board, a wrong seed, a folder that holds
    something else, or a benchmark with other boards, seeds or another scale.
    """
    for name in boards:
        load_board(name)
    check_once("--boards", boards)
    wanted = Bench(out, scale, tuple(boards), check_seeds(SCALES[scale].seeds if seeds is None else seeds))
    if not (out / KEPT).exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"{out}: holds no benchmark (no {KEPT}); give --out an empty or a new folder")
        return wanted
    found = read_bench(out)
    for key in ("scale_name", "boards", "seeds"):
        before, now = (_listed(getattr(each, key)) for each in (found, wanted))
        if before != now:
            raise UsageError(
                f"{out}: holds a benchmark with --{key.removesuffix('_name')} {before}, not {now}; "
                "give --out another folder"
            )
    return found


def read_bench(out: Path) -> Bench:
    """Read the benchmark in a folder.  Raises UsageError."""
    path = out / KEPT
    if not path.is_file():
        raise UsageError(f"{out}: holds no benchmark (no {KEPT}); edge-sdk bench --out {out} makes one")
    with text_files.reading(path, "restore a copy, or give --out another folder"):
        plain = text_files.read_json(path)
        if plain["version"] != VERSION:
            raise UsageError(f"{path}: version {plain['version']!r}, this edge-sdk reads {VERSION}")
        scale = str(plain["scale_name"])
        SCALES[scale]  # a KeyError names one that is unknown
        tables = {key: dict(plain[key]) for key in ("memory", "misfits", "missing")}
        return Bench(out, scale, tuple(plain["boards"]), tuple(plain["seeds"]), **tables)


def chosen_tasks(names: Sequence[str] | None) -> tuple[Task, ...]:
    """Return the tasks of these names in the order of TASKS, or all.  Raises UsageError for an unknown name."""
    known = [task.name for task in TASKS]
    for name in names or ():
        if name not in known:
            near = meant(name, known) or f"there are {', '.join(known)}"
            raise UsageError(f"--tasks {name}: no such task; {near.rstrip()}")
    return tuple(task for task in TASKS if names is None or task.name in names)


def chosen_methods(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the methods to run, the devices alone first.  Raises UsageError for an unknown or repeated method."""
    chosen = method_names() if names is None else check_methods(names)
    return (LOCAL, *(name for name in chosen if name != LOCAL))


def run_bench(
    bench: Bench,
    tasks: Sequence[Task],
    methods: Sequence[str],
    data: Path,
    *,
    jobs: int = 1,
    say: Callable[[str], None] = lambda _line: None,
) -> None:
    """Run what is missing of these tasks under the methods that fit; a task without its data is left out with a line.

    data: folder of the npz files.  say: receives lines on the progress.  Raises UsageError, and with several jobs
    every error of a run; with one job a method that fails is left out with a line.
    """
    make_folder(bench.out, f"--out {bench.out}")
    for task in tasks:
        bench.missing.pop(task.name, None)
        if lacks := task.missing(data):
            bench.missing[task.name] = lacks
            say(lacks)
            bench.save()
            continue
        path = task.written(data, (bench.out / "data").absolute(), bench.scale)
        for group in GROUPS:
            config = config_of(task, group, path, bench.scale, bench.boards)
            _run_group(bench, task, group, config, methods, jobs=jobs, say=say)


def _run_group(
    bench: Bench,
    task: Task,
    group: NetGroup,
    config: Config,
    methods: Sequence[str],
    *,
    jobs: int,
    say: Callable[[str], None],
) -> None:
    where = f"{task.name}/{group}"
    names = [name for name in methods if name == LOCAL or group_of(name) == group]
    _judge(bench, where, config, names)
    fit = [name for name in names if f"{where}/{name}" in bench.memory]
    planned = plan(config, fit, bench.seeds)
    batches = [planned] if jobs > 1 else [[each for each in planned if each.method == name] for name in fit]
    run_one = InMemory()  # keeps the data of a seed
    for place, batch in enumerate(batches, 1):
        say(f"{where}: {batch[0].method if jobs == 1 else f'{len(fit)} methods'} ({place} of {len(batches)})")
        try:
            run_missing(batch, bench.out / where, _quiet, run_one=run_one, jobs=jobs)
        except EdgeError as error:
            if jobs > 1:
                raise
            _leave_out(bench, f"{where}/{batch[0].method}", str(error), say)
        for each in batch:
            place_of = bench.out / where / each.folder
            if (place_of / "summary.json").exists() and not (result := read_run(place_of)).completed:
                told = next((refused["message"] for refused in result.refused_devices), "")
                _leave_out(bench, f"{where}/{each.method}", told or result.reason, say)
    found = bench.comparison(task, group)
    if found is not None:
        write_comparison(found, bench.out / where)


def _quiet(_label: str) -> None:
    """Observe nothing: a line for each method is enough."""


def _leave_out(bench: Bench, key: str, why: str, say: Callable[[str], None]) -> None:
    say(f"{key}: left out: {why}")
    bench.misfits[key] = why
    bench.save()


def group_of(method: str) -> NetGroup:
    """Return the group in which a method runs: one net where whole nets of one layout are averaged, else mixed."""
    made = load_method(method)()
    return "one-net" if made.shares_weights and made.same_layout and "proxy" not in made.needs else "mixed"


def _judge(bench: Bench, where: str, config: Config, names: Sequence[str]) -> None:
    """Find which methods fit the task and the boards, and the memory that each needs there."""
    base = build_fleet(config)
    for name in names:
        key = f"{where}/{name}"
        bench.misfits.pop(key, None)
        try:
            fleet = rebuilt(base, trial_config(config, name, config.federation.seed))
            check_feasible(fleet)
            bench.memory[key] = _memory(fleet)
        except EdgeError as error:
            bench.memory.pop(key, None)
            bench.misfits[key] = str(error).removeprefix(f"{config.file}: ")
    bench.save()


def _memory(fleet: Fleet) -> dict[str, int]:
    """Return the bytes that a device on each board needs at most."""
    found: dict[str, int] = {}
    for device in fleet.devices:
        proxy = device.kit.proxy_model(device.public)
        spec = device.kit.model(device.public).spec
        need = memory_need(device, spec, fleet.federation.spec, proxy.spec if proxy else None)
        found[device.kit.board] = max(found.get(device.kit.board, 0), need.total)
    return found


def _listed(value: str | Sequence[object]) -> str:
    return value if isinstance(value, str) else ",".join(map(str, value))
