"""Opens the writers that the options of a command ask for, and closes them when the run ends."""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from coordinator.record.observer import RunObserver
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.results.figures.round_figures import written
from coordinator.results.figures.uplift import uplift
from coordinator.results.report.progress import Progress
from coordinator.results.writers.alerts import Webhook
from coordinator.results.writers.tools import (
    MlflowWriter,
    PrometheusWriter,
    TensorBoardWriter,
    WandbWriter,
    metrics_address,
)
from edge_sdk.errors import UsageError


class FigureWriter(Protocol):
    """Something that keeps figures over rounds."""

    def write(self, round_: int, figures: Mapping[str, float]) -> None:
        """Keep the figures of a round."""

    def close(self) -> None:
        """Write what is left."""


def round_figures(result: RoundResult, record: RunRecord) -> dict[str, float]:
    """The figures of a round.  Accuracies are the newest: they may be those of the round before."""
    found: dict[str, float] = {}
    for name, curves in (("accuracy", record.accuracy), ("global_accuracy", record.global_accuracy)):
        values = [*curves.get(max(curves, default=0), {}).values()]
        if values:
            found |= {f"{name}/mean": statistics.fmean(values), f"{name}/min": min(values), f"{name}/max": max(values)}
    lifted = uplift(record.control)
    return found | written(result) | (lifted.written() if lifted else {})


class WriterObserver(RunObserver):
    """Hands the figures of each round to writers.  A writer that fails is reported once, and is not called again."""

    def __init__(self, writers: Sequence[FigureWriter], part: str, say: Callable[[str], None]) -> None:
        """part: a prefix of the names, such as `alone`, or empty."""
        self._writers, self._prefix, self._say = [*writers], f"{part}/" if part else "", say

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:  # noqa: ARG002  # of RunObserver
        """Write the round."""
        figures = {self._prefix + name: float(value) for name, value in round_figures(result, record).items()}
        self._writers = [writer for writer in self._writers if self._written(writer, result.round, figures)]

    def _written(self, writer: FigureWriter, round_: int, figures: Mapping[str, float]) -> bool:
        """Whether the writer took the figures."""
        try:
            writer.write(round_, figures)
        except Exception as error:  # noqa: BLE001  # no tool beside the run may end it
            self._say(f"{type(writer).__name__} fails and is left out: {type(error).__name__}: {error}")
            return False
        return True


TOOLS = ("tensorboard", "wandb", "mlflow")


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """A user's wishes beside the run's own files."""

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


def options_of_run(args: argparse.Namespace) -> str:
    """Return the options that show or write a run as the user typed them, for the command that resumes it."""
    given = [option for name, option in (("no_plots", "--no-plots"), ("json", "--json")) if getattr(args, name)]
    given += [f"--page {shlex.quote(args.page)}"] if args.page is not None else []
    given += [f"--log {shlex.quote(tool)}" for tool in args.log]
    given += [f"--metrics {shlex.quote(args.metrics)}"] if args.metrics is not None else []
    given += [f"--log-format {args.log_format}"] if args.log_format != "text" else []
    return "".join(f" {each}" for each in given)


class RunWriters:
    """The writers of a run, and the observers that feed them."""

    def __init__(self, writers: list[FigureWriter], options: WriterOptions, federation: str) -> None:
        self._writers, self._options, self._federation = writers, options, federation
        self._webhooks: list[Webhook] = []

    def webhook(self, url: str) -> Webhook:
        """A webhook that is closed with the writers."""
        self._webhooks.append(Webhook(url))
        return self._webhooks[-1]

    def show(self, figures: Mapping[str, float]) -> None:
        """Serve figures of the moment to Prometheus, if it is served."""
        for writer in self._writers:
            if isinstance(writer, PrometheusWriter):
                writer.show(figures)

    def close(self) -> None:
        """Close the webhooks, after what they still have to send."""
        for each in self._webhooks:
            each.close()

    def lines(self, part: str, stream: TextIO | None = None) -> RunObserver:
        """The observer that writes lines: for people, or as JSON."""
        if self._options.json_lines:
            return JsonLines(self._federation, part, stream or sys.stderr)
        return Progress(f"{self._federation} {part}".strip(), stream)

    def observers(self, part: str, lines: RunObserver) -> list[RunObserver]:
        """The observers of a part of a run; lines: receives the reason if a writer fails."""
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
        made = RunWriters(writers, options, federation)
        try:
            yield made
        finally:
            made.close()
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


# -- The progress of a run as JSON lines on a stream, for systems that collect logs -----------------------------------


class JsonLines(RunObserver):
    """Writes one object a line: time_s, level, event, federation, part, and the event's own fields."""

    def __init__(self, federation: str, part: str, stream: TextIO, clock: Callable[[], float] = time.time) -> None:
        self._about = {"federation": federation, "part": part}
        self._stream, self._clock = stream, clock

    def joined(self, device: str, count: int, expected: int) -> None:
        """Write `joined`."""
        self._write("info", "joined", device=device, count=count, expected=expected)

    def turned_away(self, device: str, message: str) -> None:
        """Write `turned-away`."""
        self._write("warning", "turned-away", device=device, message=message)

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:
        """Write `round`."""
        self._write("info", "round", round=result.round, of=of, **round_figures(result, record))

    def noted(self, message: str) -> None:
        """Write `note`."""
        self._write("warning", "note", message=message)

    def _write(self, level: str, event: str, **fields: Any) -> None:
        line = {"time_s": round(self._clock(), 3), "level": level, "event": event, **self._about, **fields}
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()
