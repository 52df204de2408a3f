"""Opens the writers that the options of a command ask for, and closes them when the run ends."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from coordinator.record.observer import RunObserver
from coordinator.report.progress import Progress
from coordinator.writers.figures import FigureWriter, WriterObserver
from coordinator.writers.json_lines import JsonLines
from coordinator.writers.metrics import PrometheusWriter, metrics_address
from coordinator.writers.tools import MlflowWriter, TensorBoardWriter, WandbWriter
from edge_sdk.errors import UsageError

TOOLS = ("tensorboard", "wandb", "mlflow")


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """What a user wants beside the run's own files."""

    tools: tuple[str, ...] = ()
    metrics: str | None = None
    """HOST:PORT for Prometheus."""
    json_lines: bool = False


NO_WRITERS = WriterOptions()


def writer_options(args: argparse.Namespace) -> WriterOptions:
    """Read the options.  Raises UsageError."""
    for name in args.log:
        if name not in TOOLS:
            raise UsageError(f"--log {name}: expected some of {', '.join(TOOLS)}")
    if args.metrics is not None:
        metrics_address(args.metrics)
    return WriterOptions(tuple(dict.fromkeys(args.log)), args.metrics, args.log_format == "json")


class RunWriters:
    """The writers of a run, and the observers that feed them."""

    def __init__(self, writers: list[FigureWriter], options: WriterOptions, federation: str) -> None:
        self._writers, self._options, self._federation = writers, options, federation

    def lines(self, part: str, stream: TextIO | None = None) -> RunObserver:
        """The observer that writes lines: for people, or as JSON."""
        if self._options.json_lines:
            return JsonLines(self._federation, part, stream or sys.stderr)
        return Progress(f"{self._federation} {part}".strip(), stream)

    def observers(self, part: str, lines: RunObserver) -> list[RunObserver]:
        """The observers of a part of a run; lines: is told of a writer that fails."""
        return [WriterObserver(self._writers, part, lines.noted)] if self._writers else []


@contextmanager
def run_writers(
    options: WriterOptions, folder: Path, *, federation: str, method: str, seed: int, tables: Mapping[str, Any]
) -> Iterator[RunWriters]:
    """Open all writers, and close them in the end.  Raises MissingExtra and UsageError."""
    writers: list[FigureWriter] = []
    name = f"{method}-seed-{seed}"
    try:
        if options.metrics is not None:
            address = metrics_address(options.metrics)
            metrics = PrometheusWriter(address, {"federation": federation, "method": method})
            writers.append(metrics)
            sys.stderr.write(f"metrics: http://{address.shown_host}:{metrics.port}/metrics\n")
        for tool in options.tools:
            if tool == "tensorboard":
                writers.append(TensorBoardWriter(folder / "tensorboard"))
            elif tool == "wandb":
                writers.append(WandbWriter(federation, name, folder / "wandb", flat(tables)))
            else:
                writers.append(MlflowWriter(federation, name, folder / "mlruns", flat(tables)))
        yield RunWriters(writers, options, federation)
    finally:
        for writer in writers:
            with suppress(Exception):  # the run is over, and its own files are written
                writer.close()


def flat(tables: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Settings by their keys: {"train.batch_size": 32}."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{key}.")
        else:
            found[before + key] = value
    return found
