"""The figures of a round that writers are given, by name, and the observer that hands them on."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from coordinator.record.observer import RunObserver
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.results.figures.round_figures import written
from coordinator.results.figures.uplift import uplift


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
        """part: stands before the names, such as `alone`; empty: nothing does."""
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
