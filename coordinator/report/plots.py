"""All pictures of a run, and all of a comparison.  The curves of a run are drawn as those of a comparison."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from coordinator.record.result import Result
from coordinator.report.compare import ALONE, Comparison, MethodRuns, Trial
from coordinator.report.curve_plots import (
    accuracy_by_round,
    accuracy_for_its_cost,
    accuracy_of_devices,
    cost_drawings,
    own_task_by_round,
    shared_drawings,
    words_for,
)
from coordinator.report.device_plots import (
    bytes_by_direction,
    devices_alone_federated,
    samples_by_class,
    who_holds_what,
    who_was_waited_for,
)
from coordinator.report.drawing import Drawings, draw_pictures, drawings_of
from coordinator.report.insight_plots import MethodInsight, insight_drawings
from coordinator.report.instrument_plots import instrument_drawings
from coordinator.report.look import SCREEN, Look
from edge_sdk.methods.requests import MeasuredModel


def draw_run(
    result: Result, directory: str | os.PathLike[str], look: Look = SCREEN, only: Sequence[str] = ()
) -> list[Path]:
    """Draw the pictures of a run into `directory`: see draw_pictures."""
    return draw_pictures(run_drawings(result), directory, look, only)


def draw_comparison(
    comparison: Comparison, directory: str | os.PathLike[str], look: Look = SCREEN, only: Sequence[str] = ()
) -> list[Path]:
    """Draw the pictures of a comparison into `directory`: see draw_pictures."""
    return draw_pictures(comparison_drawings(comparison), directory, look, only)


def run_drawings(result: Result) -> Drawings:
    """The pictures of a run."""
    only = Comparison((MethodRuns(result.method, (Trial(result.seed, result),)),), result.method)
    models = _by_model(only)
    by_device = (
        devices_alone_federated,
        bytes_by_direction,
        who_holds_what,
        samples_by_class,
        who_was_waited_for,
    )
    return {
        **drawings_of(_with_alone(models), (accuracy_by_round,)),
        **drawings_of(result, by_device),
        **drawings_of(models, (own_task_by_round, *cost_drawings(only))),
        **drawings_of(only, instrument_drawings(only)),
        **insight_drawings(_insights(only), words_for(only)),
    }


def comparison_drawings(comparison: Comparison) -> Drawings:
    """The pictures of a comparison."""
    which = f", here {comparison.seeds[0]}" if len(comparison.seeds) > 1 else ""
    drawings = (
        accuracy_by_round,
        own_task_by_round,
        accuracy_of_devices,
        *cost_drawings(comparison),
        accuracy_for_its_cost,
        *shared_drawings(comparison),
        *instrument_drawings(comparison),
    )
    return {
        **drawings_of(comparison, drawings),
        **insight_drawings(_insights(comparison), f"{words_for(comparison)}{which}"),
    }


def _with_alone(only: Comparison) -> Comparison:
    """The comparison of a run with a line for its devices alone, where they trained alone, too."""
    (trial,) = only.lines[0].trials
    if not trial.result.standalone_history:
        return only
    alone = dataclasses.replace(trial.result, history=trial.result.standalone_history)
    return dataclasses.replace(only, lines=(MethodRuns(ALONE, (Trial(trial.seed, alone),)), *only.lines))


def _by_model(only: Comparison) -> Comparison:
    """The comparison of a run with a line for each model that was measured."""
    (line,) = only.lines
    if line.models == {"personal"}:
        return only
    common = "global (OCA)" if "active" in line.models else "global"
    names: tuple[tuple[MeasuredModel, str], ...] = (("personal", "own models"), ("global", common), ("active", "ACA"))
    found = [line.of(model, f"{line.method}, {name}") for model, name in names if model in line.models]
    return dataclasses.replace(only, lines=tuple(found))


def _insights(comparison: Comparison) -> list[MethodInsight]:
    """The insights of the first seed, without methods that never began: their models were never trained."""
    firsts = [(line.method, line.trials[0].result) for line in comparison.lines]
    return [
        MethodInsight(method, result.data.get("name", ""), result.insight, result.class_names)
        for method, result in firsts
        if result.insight is not None and result.rounds_done
    ]
