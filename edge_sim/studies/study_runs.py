"""Carries out the missing runs of a comparison or a sweep, one after the other or in parallel, in separate folders.

An interrupted run keeps its checkpoint, and resumes from it when the same command is repeated.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from coordinator.config import to_toml
from coordinator.record.observer import RunObserver
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.record.units import human_seconds
from coordinator.results.figures.result import Result
from coordinator.results.report.progress import Progress
from coordinator.results.report.run_files import write_run
from edge_sdk.errors import RunFailed, UsageError
from edge_sim.config.settings import Config
from edge_sim.fleet.fleet import Fleet, build_fleet, rebuilt
from edge_sim.runs import run_folder
from edge_sim.runs.runner import run_in
from edge_sim.runs.stopping_workers import at_work, interrupts_blocked, stop_with

log = logging.getLogger(__name__)

RunOne: TypeAlias = "Callable[[Config, RunObserver | None, Path], Result]"
"""Carries out one run in its folder."""


class InMemory:
    """Runs federations in virtual time; reuses data between runs that share them."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._key: tuple[object, ...] = ()

    def __call__(self, config: Config, observer: RunObserver | None, folder: Path) -> Result:
        """Run the federation, or resume it from the checkpoint in its folder."""
        with run_folder.claimed(folder):
            resume = _goes_on(folder, config)
            result = run_in(
                folder, config, observer=lambda _label: observer, fleet=self._with_data(config), resume=resume
            )
            write_run(result, to_toml(config.tables), folder)
        run_folder.remove_checkpoint(folder)
        return result

    def _with_data(self, config: Config) -> Fleet:
        federation = config.federation
        key = (config.data, config.partition, federation.seed, federation.classes, federation.devices, config.file)
        if self._fleet is None or key != self._key:
            self._fleet, self._key = build_fleet(config), key
            return self._fleet
        return rebuilt(self._fleet, config)


def _goes_on(folder: Path, config: Config) -> bool:
    """Whether the folder has a checkpoint of this run; removes other leftovers of an unfinished run."""
    if (folder / "summary.json").exists():  # it failed: start over
        run_folder.remove_results(folder)
    elif any((folder / name).exists() for name in run_folder.CHECKPOINTS):
        with suppress(UsageError):
            return not run_folder.is_over(folder, config)
    run_folder.remove_checkpoint(folder)
    return False


class TimeLeft:
    """Estimates the time left of many runs from the share done since the start."""

    def __init__(self, runs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._runs, self._clock = runs, clock
        self._begun_s, self._done, self._share = clock(), 0, 0.0

    def round_done(self, share: float) -> None:
        """Record the share done of the current run."""
        self._share = share

    def run_done(self) -> None:
        """Record that a run is done."""
        self._done, self._share = self._done + 1, 0.0

    @property
    def words(self) -> str:
        """Describe the time left, or return empty if it is unknown or nothing is left."""
        done = self._done + self._share
        if not done or done >= self._runs:
            return ""
        left_s = (self._clock() - self._begun_s) / done * (self._runs - done)
        return f"about {human_seconds(left_s)} left in all"


class StudyProgress(Progress):
    """The lines of one run among many, with the time left of all."""

    def __init__(self, label: str, left: TimeLeft) -> None:
        super().__init__(label, brief=True, left=lambda: left.words)
        self._overall = left

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:
        """Log the run's progress, and the time left of all."""
        self._overall.round_done(result.round / of)
        super().round_done(result, of, record)


def run_all(
    todo: Sequence[tuple[str, Config, Path]],
    *,
    run_one: RunOne,
    observer: Callable[[str], RunObserver | None] | None,
    jobs: int,
) -> None:
    """Carry out runs: (label, config, folder) of each.  observer: default: lines in the terminal.

    Raises the error of a run; with several jobs, after the others have stopped and kept their state.
    """
    left = TimeLeft(len(todo))
    if jobs > 1 and len(todo) > 1:
        _at_once(todo, left, jobs)
        return
    for place, (label, config, folder) in enumerate(todo, 1):
        words = f"{label} ({place} of {len(todo)})"
        run_one(config, StudyProgress(words, left) if observer is None else observer(words), folder)
        left.run_done()


def _at_once(todo: Sequence[tuple[str, Config, Path]], left: TimeLeft, jobs: int) -> None:
    """Carry out runs in worker processes; each logs a line when it ends."""
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    with (
        ours,
        theirs,
        concurrent.futures.ProcessPoolExecutor(min(jobs, len(todo)), context, _begin_worker, (theirs,)) as pool,
    ):
        try:
            with interrupts_blocked():  # submitting starts the workers
                waiting = {pool.submit(_in_worker, config, folder): label for label, config, folder in todo}
            for place, future in enumerate(concurrent.futures.as_completed(waiting), 1):
                took_s, words = future.result()
                left.run_done()
                rest = f", {left.words}" if left.words else ""
                sys.stderr.write(
                    f"{waiting[future]} ({place} of {len(todo)} done): {words} in {human_seconds(took_s)}{rest}\n"
                )
        except BrokenProcessPool:
            raise RunFailed(
                "a worker process was killed (memory, signals); finished runs are kept: repeat the command to continue,"
                " or use a smaller --jobs, which needs less memory"
            ) from None
        except BaseException:
            ours.close()  # the workers write their checkpoints and begin no further run
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin_worker(pipe: Connection[Any, Any]) -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    stop_with(pipe)


_WORKER = InMemory()


def _in_worker(config: Config, folder: Path) -> tuple[float, str]:
    begun_s = time.monotonic()
    try:
        with at_work():
            result = _WORKER(config, None, folder)
    except KeyboardInterrupt:
        raise SystemExit(1) from None  # the checkpoint is written; the parent reports it
    return time.monotonic() - begun_s, repr(dataclasses.replace(result, insight=None))[1:-1]
