"""FedSSA's tables 1 to 3, figures 6 and 7, and its costs to a target, at laptop scale."""

from __future__ import annotations

from benchmarks.papers.tables.kinds import (
    SPENT,
    Claim,
    Fall,
    Headline,
    Line,
    Paper,
    Reported,
    Setting,
    Table,
    Trend,
    devices,
)

OWN = ("local_accuracy",)
FIVE = "cycle:fedssa-cnn-1,fedssa-cnn-2,fedssa-cnn-3,fedssa-cnn-4,fedssa-cnn-5"


def _reported(**rows: float) -> Reported:
    return {line: {"local_accuracy": value} for line, value in rows.items()}


def _classes(count: int) -> Setting:
    return Setting(f"classes-{count}", {"partition.classes_per_device": count}, lines=("fedproto", "fedssa"), cost_s=50)


def _participants(count: int, cost_s: float, *more: str) -> Setting:
    return Setting(f"participants-{count}", {"federation.participants": count}, lines=(*BOTH, *more), cost_s=cost_s)


OTHERS = ("fml", "fedkd", "fedproto", "fedclassavg", "fd")
CONVERGED = ("local", "lg_fedavg", "fedssa", "fml", "fedkd", "fedproto", "fedclassavg")
"""FD does not converge in the paper with 50 and 100 devices."""
FEW = (
    "with 100 devices each trains ten epochs of 80 samples, some 20 steps, and learns little: every method is within "
    "ten points of 50, which is chance with two classes a device"
)
AS_ALONE = (
    "FedKD's own models are within some points of training alone here; in the paper they are some 18 points below it"
)
BOTH = ("fedssa", "fedproto")
ALL_TEN = (*CONVERGED, "fd", "fedssa-case-a", "fedssa-case-b")
SWEPT = ("fedssa-case-b", "fedssa-t-10", "fedssa-t-50", "fedssa-t-50-mu-0.9")
"""Own rows for longer and with more weight, where 30 of 100 devices in a round let them act."""
MIXED = (*CONVERGED, "fedssa-case-a", "fedssa-case-b")
MORE_STEPS = (
    "the number of rounds is fixed, so with more participants a device trains in more of them (10, 30 and 50 here), "
    "which raises accuracy by more than 10 points; the paper trains each to its end"
)
NEAR = (
    "own rows count only before round 2 (`t_stable` of the authors' code), so case B differs from case C (fedssa) only "
    "in a device's first rounds; we do not know why it ends above, and not far below as in the paper"
)
TABLE1 = Table(
    name="fedssa-table1",
    title="FedSSA, table 1",
    source="Table 1, CIFAR-10, 2 classes a device; the best of several schedules; no deviations.",
    scale=(
        "CIFAR-10, 10,000 samples, 2 classes a device, 10 devices in each of 100 rounds of one epoch; "
        "`fedssa-cnn-5`, the smallest of the paper's five nets. Batches are of 64; with 100 devices that makes 20 "
        "steps a device in all, and with batches of 8 (`n-100-batch-8`) 100."
    ),
    figures=OWN,
    lines=(
        Line("local"),
        Line("lg_fedavg"),
        Line("fedssa"),
        Line("fml", values={"method.fml.proxy": "fedssa-cnn-5"}, cost=2),
        Line("fedkd", values={"method.fedkd.proxy": "fedssa-cnn-5"}, cost=2.2),
        Line("fedproto", cost=1.1),
        Line("fedclassavg", cost=1.4),
        Line("fd", cost=1.1),
    ),
    settings=(
        Setting(
            "n-10",
            reported=_reported(
                local=96.35,
                fml=94.83,
                fedkd=94.77,
                lg_fedavg=96.47,
                fedproto=95.83,
                fedclassavg=96.44,
                fd=96.30,
                fedssa=98.57,
            ),
            cost_s=250,
        ),
        Setting(
            "n-50",
            devices(50, "fedssa-cnn-5"),
            _reported(
                local=95.25, fml=93.18, fedkd=92.93, lg_fedavg=94.20, fedproto=95.10, fedclassavg=94.45, fedssa=95.32
            ),
            lines=CONVERGED,
            cost_s=80,
        ),
        Setting(
            "n-100",
            devices(100, "fedssa-cnn-5"),
            _reported(
                local=92.58, fml=87.93, fedkd=90.23, lg_fedavg=90.25, fedproto=91.19, fedclassavg=91.03, fedssa=92.67
            ),
            lines=CONVERGED,
            cost_s=60,
        ),
        Setting(
            "n-100-batch-8",
            {**devices(100, "fedssa-cnn-5"), "train.batch_size": 8},
            _reported(local=92.58, lg_fedavg=90.25, fedssa=92.67),
            lines=("local", "lg_fedavg", "fedssa"),
            cost_s=90,
        ),
    ),
    claims=(
        *(
            Claim("fedssa", line, OWN, settings=("n-10", "n-50", "n-100-batch-8"), first=True)
            for line in ("lg_fedavg", "local")
        ),
        *(Claim("fedssa", line, OWN, settings=("n-100",), first=True, why=FEW) for line in ("lg_fedavg", "local")),
        *(Claim("fedssa", line, OWN, settings=("n-10", "n-50")) for line in OTHERS),
        *(Claim("fedssa", line, OWN, settings=("n-100",), why=FEW) for line in OTHERS if line != "fd"),
    ),
    trends=(
        Trend(
            "fedssa",
            "lg_fedavg",
            OWN,
            ("n-10", "n-50", "n-100"),
            "it grows from n-10 to n-50; with 100 devices little is learnt that could differ (above)",
        ),
    ),
)
TABLE2 = Table(
    name="fedssa-table2",
    title="FedSSA, tables 2 and 3, figures 6 and 7",
    source=(
        "Tables 2 and 3, CIFAR-10, 2 classes a device, five CNNs; figures 6 and 7 have no numbers. FML does not "
        "converge there with 50 and 100 devices."
    ),
    scale=(
        "CIFAR-10, 10,000 samples, 2 classes a device, the paper's five CNNs, 10 devices in each of 100 rounds of "
        "one epoch with batches of 8 (with 100 devices and batches of 64 little is learnt: table 1), with 10 "
        "devices 25 rounds. Case A takes every row of the coordinator, case B those of its own classes, both without "
        "its own rows; fedssa is case C. The settings of classes and participants have 100 devices."
    ),
    figures=OWN,
    lines=(
        Line("local"),
        Line("lg_fedavg"),
        Line("fedproto", cost=1.1),
        Line("fedssa"),
        Line(
            "fedssa-case-a",
            "fedssa",
            {"method.fedssa.mu0": 0.0, "method.fedssa.takes": "all", "method.fedssa.down": "all"},
        ),
        Line("fedssa-case-b", "fedssa", {"method.fedssa.mu0": 0.0}),
        Line("fedssa-t-10", "fedssa", {"method.fedssa.t_stable": 10}),
        Line("fedssa-t-50", "fedssa", {"method.fedssa.t_stable": 50}),
        Line("fedssa-t-50-mu-0.9", "fedssa", {"method.fedssa.t_stable": 50, "method.fedssa.mu0": 0.9}),
        Line("fml", cost=1.8),
        Line("fedkd", cost=2),
        Line("fedclassavg", cost=1.4),
        Line("fd", cost=1.1),
    ),
    settings=(
        Setting(
            "n-100",
            reported={
                **_reported(local=91.97, fedkd=73.21, lg_fedavg=91.27, fedproto=92.49, fedclassavg=82.61, fedssa=92.92),
                "fedssa-case-a": {"local_accuracy": 88.51},
                "fedssa-case-b": {"local_accuracy": 80.41},
            },
            lines=MIXED,
            cost_s=80,
        ),
        Setting(
            "n-50",
            devices(50, FIVE),
            {
                **_reported(local=95.14, fedkd=77.37, lg_fedavg=94.83, fedproto=95.48, fedclassavg=85.23, fedssa=95.83),
                "fedssa-case-a": {"local_accuracy": 92.68},
                "fedssa-case-b": {"local_accuracy": 82.42},
            },
            lines=MIXED,
            cost_s=110,
        ),
        Setting(
            "n-10",
            {**devices(10, FIVE), "federation.rounds": 25, "train.evaluate_every": 25},
            {
                **_reported(
                    local=96.53,
                    fml=30.48,
                    fedkd=80.20,
                    lg_fedavg=96.30,
                    fedproto=96.51,
                    fedclassavg=94.41,
                    fd=96.21,
                    fedssa=96.54,
                ),
                "fedssa-case-a": {"local_accuracy": 96.36},
                "fedssa-case-b": {"local_accuracy": 93.01},
            },
            lines=ALL_TEN,
            cost_s=90,
        ),
        *(_classes(count) for count in (4, 6, 8, 10)),
        _participants(30, 160, *SWEPT),
        _participants(50, 250),
    ),
    claims=(
        *(Claim("fedssa", line, OWN, settings=("n-100",)) for line in ("local", "lg_fedavg", "fedproto")),
        *(Claim("fedssa", line, OWN, settings=("n-50", "n-10")) for line in ("local", "lg_fedavg", "fedproto")),
        Claim("fedssa", "fml", OWN),
        *(Claim("fedssa", line, OWN) for line in ("fedclassavg", "fd")),
        Claim("fedssa-case-a", "fedssa-case-b", OWN),
        Claim("fedssa", "fedkd", OWN, why=AS_ALONE),
        *(Claim("fedssa", f"fedssa-case-{case}", OWN, settings=("n-100",), why=NEAR) for case in "ab"),
        *(Claim("fedssa", f"fedssa-case-{case}", OWN, settings=("n-50", "n-10"), why=NEAR) for case in "ab"),
        Claim(
            "fedssa",
            "fedproto",
            OWN,
            settings=("classes-4", "classes-6", "classes-8", "classes-10"),
        ),
        Claim(
            "fedssa",
            "fedproto",
            OWN,
            settings=("participants-30", "participants-50"),
            why="the gain falls with a device's rounds of training: some 10 with 10 % participants, 30 and 50 here",
        ),
    ),
    trends=(Trend("fedssa", "lg_fedavg", OWN, ("n-10", "n-50", "n-100")),),
    falls=(
        *(Fall(line, OWN, ("n-100", "classes-4", "classes-6", "classes-8", "classes-10")) for line in BOTH),
        *(Fall(line, OWN, ("n-100", "participants-30", "participants-50"), why=MORE_STEPS) for line in BOTH),
    ),
)
TARGET = Table(
    name="fedssa-target",
    title="FedSSA, bytes and FLOPs to a target",
    source="In the abstract: up to 15.54 times fewer parameters and 15.52 times fewer FLOPs to a target than others.",
    scale=(
        "CIFAR-10, 5,000 samples, 2 classes a device, 10 devices with the paper's five CNNs, 60 rounds of one epoch, "
        "measured in every second round; one seed. Bytes are frames sent and received until the mean accuracy on own "
        "test parts first reached the target, FLOPs those of all devices, measurements included."
    ),
    figures=OWN,
    lines=(
        Line("fml", cost=1.9),
        Line("fedkd", cost=2.1),
        Line("local"),
        Line("lg_fedavg"),
        Line("fedproto", cost=1.1),
        Line("fedssa"),
    ),
    settings=(Setting("n-10", cost_s=110),),
    claims=tuple(Claim("fedssa", line, SPENT) for line in ("fml", "fedkd", "lg_fedavg", "fedproto")),
    found=(
        "FedSSA needs 500 to 723 times fewer bytes than FML and two to three times fewer FLOPs, and reaches a target "
        "that FML never does; it needs 1.0 to 2.7 times fewer FLOPs than LG-FedAvg. FedProto needs fewer FLOPs than "
        "FedSSA, and `local` is earlier at every target: with ten "
        "devices and two classes each there is little to learn from others."
    ),
    targets_against="fml",
)
PAPER = Paper(
    "fedssa",
    "FedSSA",
    (TABLE1, TABLE2, TARGET),
    headlines=(
        Headline(
            "above LG-FedAvg, +1.1 with 50 devices of one net",
            "fedssa-table1",
            "fedssa over lg_fedavg",
            "n-50",
            "local_accuracy",
            "shown",
            "Shown with 50 devices, and with 100 and batches of 8; level with 10, open with 100 and batches of 64.",
        ),
        Headline(
            "own rows stabilise: case C +12.5 above case B with 100 devices (table 3)",
            "fedssa-table2",
            "fedssa over fedssa-case-b",
            "n-100",
            "local_accuracy",
            "open",
            "Not seen: own rows count only in the first two rounds, and case B ends above in the mean.",
        ),
    ),
)
