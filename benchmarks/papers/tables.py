"""The papers' tables that are run here: their settings, lines and claims, and what the authors report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SEEDS = (0, 1, 2)
"""The seeds that a sign is read from."""
Values = Mapping[str, Any]
"""Settings that differ from those of the table's file, by key, such as partition.alpha."""


@dataclass(frozen=True)
class Line:
    """A method of a table, under the name that it has there."""

    name: str
    method: str = ""
    """The method's registered name, where the line has another one."""
    values: Values = field(default_factory=dict)

    @property
    def runs(self) -> str:
        """The method's registered name."""
        return self.method or self.name


@dataclass(frozen=True)
class Setting:
    """A federation under which all lines of a table are run."""

    name: str
    values: Values = field(default_factory=dict)
    reported: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What the authors report, in per cent: line -> figure -> value."""


@dataclass(frozen=True)
class Claim:
    """A sign that the authors claim: one line is above another in these figures, in every setting of the table."""

    better: str
    worse: str
    figures: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table of a paper: one TOML file, its settings, its lines and its claims."""

    name: str
    title: str
    source: str
    """Where the authors' figures stand, and for which set-up."""
    scale: str
    """What is run here, and what the paper has."""
    figures: tuple[str, ...]
    """The figures that the page shows."""
    lines: tuple[Line, ...]
    settings: tuple[Setting, ...]
    claims: tuple[Claim, ...]
    folder: Path = FOLDER

    @property
    def file(self) -> Path:
        """The TOML file of the table."""
        return self.folder / f"{self.name}.toml"


def _devices(count: int, model: str) -> Values:
    return {"federation.devices": count, "fleet": [{"count": count, "model": model}]}


FEDHKD = Table(
    name="fedhkd-table1",
    title="FedHKD, table 1",
    source="Table 1, CIFAR-10, 10 devices, beta 0.5: ResNet-18, 50 rounds; single runs.",
    scale=(
        "CIFAR-10, 5,000 samples over 10 devices, beta 0.5; `cnn` with 64 features, 20 rounds of 5 epochs, 2,000 test "
        "samples."
    ),
    figures=("gm", "local_accuracy"),
    lines=(Line("fedavg"), Line("fedhkd")),
    settings=(
        Setting(
            "beta-0.5",
            reported={
                "fedavg": {"gm": 47.41, "local_accuracy": 59.50},
                "fedhkd": {"gm": 52.13, "local_accuracy": 62.54},
            },
        ),
    ),
    claims=(Claim("fedhkd", "fedavg", ("gm", "local_accuracy")),),
)
FEDAL = Table(
    name="fedal-mnist",
    title="FedAL, MNIST",
    source=(
        "MNIST stands in the paper's figure 5 alone, without numbers. The figures are of its ablation, table VII: "
        "SVHN, 20 devices, alpha 2, 5,000 iterations."
    ),
    scale=(
        "MNIST, 10 devices, alpha 1, LeNet-5, 1,000 public samples, 2,000 test samples; 1,000 local steps for each "
        "method: 200 rounds of 5, and for FedMD 1,000 rounds of 1."
    ),
    figures=("personal",),
    lines=(
        Line("fedmd", values={"train.local_steps": 1, "federation.rounds": 1000, "train.evaluate_every": 250}),
        Line("fedmd_lf"),
        Line("fedal"),
    ),
    settings=(
        Setting(
            "alpha-1",
            reported={"fedmd": {"personal": 72.2}, "fedmd_lf": {"personal": 73.2}, "fedal": {"personal": 74.4}},
        ),
    ),
    claims=(Claim("fedmd_lf", "fedmd", ("personal",)), Claim("fedal", "fedmd_lf", ("personal",))),
)
FEDSSA = Table(
    name="fedssa-table1",
    title="FedSSA, table 1",
    source="Table 1, CIFAR-10, 2 classes a device; the best of several schedules; no deviations.",
    scale=(
        "CIFAR-10, 10,000 samples, 2 classes a device, 10 devices in each of 100 rounds of one epoch; `fedssa-cnn-5`, "
        "the smallest of the paper's five nets."
    ),
    figures=("local_accuracy",),
    lines=(Line("local"), Line("lg_fedavg"), Line("fedssa")),
    settings=(
        Setting(
            "n-10",
            reported={
                "local": {"local_accuracy": 96.35},
                "lg_fedavg": {"local_accuracy": 96.47},
                "fedssa": {"local_accuracy": 98.57},
            },
        ),
        Setting(
            "n-50",
            _devices(50, "fedssa-cnn-5"),
            {
                "local": {"local_accuracy": 95.25},
                "lg_fedavg": {"local_accuracy": 94.20},
                "fedssa": {"local_accuracy": 95.32},
            },
        ),
    ),
    claims=(Claim("fedssa", "lg_fedavg", ("local_accuracy",)), Claim("fedssa", "local", ("local_accuracy",))),
)
FEDKF = Table(
    name="fedkf-table5",
    title="FedKF, table 5",
    source="Table 5, a tenth of EMNIST, alpha 0.1: LeNet-5, 100 rounds of 10 epochs.",
    scale=(
        "Fashion-MNIST in place of EMNIST, 6,000 samples, 20 devices at 20 %, alpha 0.1; LeNet-5, 60 rounds of 5 "
        "epochs; fedkf's generator is the small one, `board`. AMP and WLP are of the global model: OCA with "
        "slots and under fedkf."
    ),
    figures=("global_amp", "global_wlp", "active_amp", "active_wlp"),
    lines=(Line("fedavg"), Line("fedavg+slots", "fedavg", {"method.fedavg.cached": True}), Line("fedkf")),
    settings=(
        Setting(
            "alpha-0.1",
            reported={
                "fedavg": {"global_amp": 76.64, "global_wlp": 57.67},
                "fedavg+slots": {"global_amp": 79.03, "global_wlp": 65.14},
                "fedkf": {"global_amp": 82.63, "global_wlp": 70.64},
            },
        ),
    ),
    claims=(
        Claim("fedkf", "fedavg", ("global_amp", "global_wlp")),
        Claim("fedkf", "fedavg+slots", ("global_amp", "global_wlp")),
        Claim("fedavg+slots", "fedavg", ("global_amp", "global_wlp")),
    ),
)
FEDNH = Table(
    name="fednh-table1",
    title="FedNH, table 1",
    source="Table 1, CIFAR-10, Dir(0.3), 100 devices at 10 %: 200 rounds of 5 epochs.",
    scale=(
        "CIFAR-10, 10,000 samples over 100 devices, 10 % of them in each of 60 rounds of 5 epochs, beta 0.3; the "
        "paper's CNN; 1,000 test samples."
    ),
    figures=("gm", "pm_v", "pm_l"),
    lines=(Line("fedavg"), Line("fednh")),
    settings=(
        Setting(
            "beta-0.3",
            reported={
                "fedavg": {"gm": 66.40, "pm_v": 63.10, "pm_l": 84.08},
                "fednh": {"gm": 69.01, "pm_v": 65.02, "pm_l": 84.63},
            },
        ),
    ),
    claims=(Claim("fednh", "fedavg", ("gm", "pm_v", "pm_l")),),
)
TABLES = (FEDHKD, FEDAL, FEDSSA, FEDKF, FEDNH)
