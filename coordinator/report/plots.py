"""All pictures of a run, and all of a comparison.  The curves of a run are drawn as those of a comparison."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from coordinator.record.result import Result
from coordinator.report.compare import ALONE, Comparison, MethodRuns, Trial
from coordinator.report.curve_plots import (
    accuracy_by_round,
    accuracy_for_its_cost,
    accuracy_of_devices,
    cost_drawings,
    own_task_by_round,
    words_for,
)
from coordinator.report.device_plots import (
    bytes_by_direction,
    devices_alone_federated,
    samples_by_class,
    who_holds_what,
    who_was_waited_for,
)
from coordinator.report.drawing import draw_each, pictures_in
from coordinator.report.insight_plots import MethodInsight, draw_insights
from coordinator.report.instrument_plots import instrument_drawings


def draw_run(result: Result, directory: str | os.PathLike[str]) -> list[Path]:
    """Draw every picture of a run into `directory` and return the PNG files.

    Raises MissingExtra without matplotlib, StoreError where the pictures cannot be written.
    """
    by_device = (
        devices_alone_federated,
        bytes_by_direction,
        who_holds_what,
        samples_by_class,
        who_was_waited_for,
    )
    only = Comparison((MethodRuns(result.method, (Trial(result.seed, result),)),), result.method)
    with pictures_in(directory) as folder:
        paths = draw_each(_with_alone(only), (accuracy_by_round,), folder)
        paths += draw_each(result, by_device, folder)
        paths += draw_each(only, (own_task_by_round, *cost_drawings(only), *instrument_drawings(only)), folder)
        return paths + draw_insights(_insights(only), words_for(only), folder)


def draw_comparison(comparison: Comparison, directory: str | os.PathLike[str]) -> list[Path]:
    """Draw every picture of a comparison into `directory` and return the PNG files.

    Raises MissingExtra without matplotlib, StoreError where the pictures cannot be written.
    """
    drawings = (
        accuracy_by_round,
        own_task_by_round,
        accuracy_of_devices,
        *cost_drawings(comparison),
        accuracy_for_its_cost,
        *instrument_drawings(comparison),
    )
    with pictures_in(directory) as folder:
        paths = draw_each(comparison, drawings, folder)
        which = f", here {comparison.seeds[0]}" if len(comparison.seeds) > 1 else ""
        return paths + draw_insights(_insights(comparison), f"{words_for(comparison)}{which}", folder)


def _with_alone(only: Comparison) -> Comparison:
    """The comparison of a run with a line for its devices alone, where they trained alone, too."""
    (line,) = only.lines
    (trial,) = line.trials
    if not trial.result.standalone_history:
        return only
    alone = dataclasses.replace(trial.result, history=trial.result.standalone_history)
    return dataclasses.replace(only, lines=(MethodRuns(ALONE, (Trial(trial.seed, alone),)), line))


def _insights(comparison: Comparison) -> list[MethodInsight]:
    """The insights of the first seed, without methods that never began: their models were never trained."""
    firsts = [(line.method, line.trials[0].result) for line in comparison.lines]
    return [
        MethodInsight(method, result.data.get("name", ""), result.insight)
        for method, result in firsts
        if result.insight is not None and result.rounds_done
    ]
