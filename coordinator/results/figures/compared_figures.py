"""The figures that runs are compared by, each declared once: compare.json, its CSV files, tables and docs follow.

A new figure is one entry here: it names the value's place in the summary of a run (run_figures.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from coordinator.results.figures.columns import Declared, FigureColumn, whole


@dataclass(frozen=True, slots=True)
class ComparedFigure(Declared[Mapping[str, Any]]):
    """A value in a run's summary; a comparison shows its mean over seeds."""

    place: str
    """The keys that lead to it in summary.json, with points between them."""
    paper: str = field(default="", kw_only=True)
    """Its heading in a table for a paper, or empty for its name in words."""
    difference: str = field(default="", kw_only=True)
    """The first word of the column of differences that stands beside its own."""
    scale: float = field(default=100.0, kw_only=True)
    """The factor by which a table for a paper multiplies an accuracy."""
    better: int = field(default=1, kw_only=True)
    """1: the highest accuracy is the best one, -1: the lowest."""
    on_boards: bool | None = field(default=None, kw_only=True)
    """Whether its column is only for runs on the boards of a lab, or only for other runs, or None for all runs."""

    def of(self, holder: Mapping[str, Any]) -> float | None:
        """Return the value in a run's summary, or None if it is unknown."""
        found: Any = holder
        for key in self.place.split("."):
            found = found.get(key, {})
        return None if isinstance(found, Mapping) else found

    @property
    def paper_heading(self) -> str:
        """The heading in a table for a paper."""
        return self.paper or self.name.replace("_", " ").capitalize()


_share = partial(ComparedFigure, unit="share")
_variance = partial(ComparedFigure, scale=1000.0, better=-1)


def _of_model(model: str, words: str) -> tuple[ComparedFigure, ...]:
    """The accuracies of a model that devices share."""
    return (
        _share(f"{model}_mean", f"The mean accuracy of {words}.", f"{model}_model.accuracy.mean"),
        _share(f"{model}_worst", f"The mean of its lowest tenth, for {words}.", f"{model}_model.accuracy.worst"),
        _share(f"{model}_amp", f"AMP of {words}.", f"{model}_model.own_task.amp"),
        _variance(f"{model}_fm", f"FM of {words}.", f"{model}_model.own_task.fm"),
        _share(f"{model}_wlp", f"WLP of {words}.", f"{model}_model.own_task.wlp"),
    )


_mean, *_rest_of_global = _of_model("global", "the global model")
_of_global = (
    replace(_mean, paper="Global", column=FigureColumn("global model", 3), difference="global"),
    *_rest_of_global,
)
COMPARED_ACCURACIES: tuple[ComparedFigure, ...] = (
    _share(
        "mean",
        "The mean accuracy of the devices' own models.",
        "accuracy.mean",
        paper="Accuracy",
        column=FigureColumn("mean accuracy", 1),
        difference="mean",
    ),
    _share(
        "worst",
        "The mean accuracy of the lowest tenth of devices, one at least.",
        "accuracy.worst",
        paper="Worst 10 %",
        column=FigureColumn("worst devices", 2),
        difference="worst",
    ),
    _share("amp", "FedKF's AMP: local accuracies, weighted by test samples.", "own_task.amp", paper="AMP"),
    _variance("fm", "FedKF's FM: the variance of local accuracies.", "own_task.fm", paper="FM x 1000"),
    _share("wlp", "FedKF's WLP: the lowest local accuracy.", "own_task.wlp", paper="WLP"),
    _share("local_accuracy", "The mean of local accuracies.", "metrics.local_accuracy_mean", paper="Local"),
    _share("pm_v", "FedNH's PM(V).", "metrics.pm_v_mean", paper="PM(V)"),
    _share("pm_l", "FedNH's PM(L).", "metrics.pm_l_mean", paper="PM(L)"),
    _share(
        "validation_accuracy", "The mean on validation parts.", "metrics.validation_accuracy_mean", paper="Validation"
    ),
    _share("gm", "The accuracy of the global model that all devices found alike.", "accuracy.gm", paper="GM"),
    *_of_global,
    *_of_model("active", "the mean over one round (ACA)"),
    _share("global_local_accuracy", "Local accuracies of the global model.", "metrics.global_local_accuracy_mean"),
    _share(
        "global_validation_accuracy",
        "Of the global model on validation parts.",
        "metrics.global_validation_accuracy_mean",
    ),
)
"""Accuracies.  Those of shared models are `gm` and the ones with a prefix, all others are of personal models."""
_bytes = partial(ComparedFigure, unit="bytes")
_seconds = partial(ComparedFigure, unit="s")
UP, DOWN = FigureColumn("up / device-round", 1), FigureColumn("down / device-round", 2)
STEPS, WALL, VIRTUAL = (
    FigureColumn("steps / device", 3, whole),
    FigureColumn("wall", 4),
    FigureColumn("on the boards", 5),
)
TRAINING, JOULES = FigureColumn("training, all boards", 6), FigureColumn("joules, all boards", 7)
COMPARED_COSTS: tuple[ComparedFigure, ...] = (
    _bytes("up_per_device_round", "Sent by a device in a round.", "bytes.up_per_device_round", paper="Up", column=UP),
    _bytes(
        "down_per_device_round",
        "Received by a device in a round.",
        "bytes.down_per_device_round",
        paper="Down",
        column=DOWN,
    ),
    _seconds("wall_s", "How long the run took on this machine.", "time.wall_s", paper="Time here", column=WALL),
    _seconds(
        "virtual_s",
        "How long the run took on the boards' clock.",
        "time.virtual_s",
        paper="Time",
        column=VIRTUAL,
        on_boards=False,
    ),
    _bytes("bytes_up", "Sent by all devices.", "bytes.up_total"),
    _bytes("bytes_down", "Received by all devices.", "bytes.down_total"),
    _seconds("device_s", "Computing of all devices.", "work.device_s_total", column=TRAINING, on_boards=True),
    ComparedFigure(
        "device_j",
        "What all devices drew.",
        "work.device_j_total",
        unit="J",
        paper="Energy",
        column=JOULES,
        on_boards=True,
    ),
    ComparedFigure("scalars_up", "Numbers of knowledge in accepted uploads.", "scalars.up_total"),
    ComparedFigure("scalars_down", "Numbers of knowledge that were sent to devices.", "scalars.down_total"),
    ComparedFigure(
        "device_flops_per_round",
        "What all devices computed in a round.",
        "work.device_flops_per_round",
        unit="FLOP",
        paper="FLOP / round",
    ),
    ComparedFigure(
        "steps_per_device", "Mini-batches that a device trained on.", "work.device_steps_mean", column=STEPS
    ),
    _seconds("device_s_per_round", "Computing of all devices in a round.", "work.device_s_per_round"),
)
"""The costs of a method."""
