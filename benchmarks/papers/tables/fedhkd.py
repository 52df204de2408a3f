"""FedHKD's tables 1 and 2 at laptop scale."""

from __future__ import annotations

from benchmarks.papers.tables.kinds import Claim, Headline, Line, Paper, Reported, Setting, Table, Values, devices

ALL = ("gm", "local_accuracy")
NOISE = {f"method.fedhkd.noise_{of}": 25.0 for of in ("features", "soft", "counts")}
"""Noise on all sums whose epsilon over 20 rounds, given the models, is 0.5 at delta = 0.01: what the paper claims."""
LINES = (
    Line("fedavg"),
    Line("fedhkd", cost=1.2),
    Line("fedhkd-star", "fedhkd", {"method.fedhkd.feature_weight": 0.0}, cost=1.1),
    Line("moon", cost=1.8),
    Line("fedgen", cost=1.3),
    Line("fedproto", cost=1.1),
    Line("fedprox", values={"method.fedprox.mu": 0.5}, cost=1.2),
    Line("fedmd", values={"method.fedmd.public_batch": 64, "method.fedmd.digest_steps": 30}, cost=1.8),
    Line("fedalign", cost=1.6),
    Line("fedhkd-nu", "fedhkd", {"method.fedhkd.nu": 0.25}, cost=1.2),
    Line("fedhkd-noise-paper", "fedhkd", {"method.fedhkd.nu": 0.25, "method.fedhkd.noise": "published"}, cost=1.2),
    Line("fedhkd-noise-sums", "fedhkd", {**NOISE, "method.fedhkd.min_count": 80}, cost=1.2),
)
MAIN = tuple(line.name for line in LINES[:7])
NOISY = ("fedhkd-nu", "fedhkd-noise-paper", "fedhkd-noise-sums")
MORE = ("fedavg", "fedhkd", "fedgen", "fedproto", "fedprox")
PUBLIC: Values = {"data.train_samples": 5375, "data.public": 375}
"""A public set as large as the training part of a device, and as many samples of devices."""


def _reported(*rows: tuple[str, float, float]) -> Reported:
    return {line: {"local_accuracy": local, "gm": gm} for line, local, gm in rows}


TABLE1 = Table(
    name="fedhkd-table1",
    title="FedHKD, tables 1 and 2",
    source=(
        "CIFAR-10, 10 devices, ResNet-18, 50 rounds, single runs; beta 0.5 in Table 1, beta 0.2 and 5 in Table 2. "
        "Its FedProto also averages weights, ours does not, and has no GM. Seconds of a client in a round, on GPUs: "
        "FedAvg 8.71, MOON 20.52, FedGen 10.52, FedProto 11.68, FedHKD* 11.26, FedHKD 12.83."
    ),
    scale=(
        "CIFAR-10, 5,000 samples over 10 devices; `cnn` with 64 features, 20 rounds of 5 epochs, 2,000 test samples. "
        "`nu` is the threshold of the paper's privacy analysis, a share of a device's samples; elsewhere it is 0. "
        "The noise of the paper, sigma 7 on mean features, has by its formula epsilon = 0.44 at delta = 0.01 for one "
        "round; [by our accountant](../privacy.md) it is 2.8 for one round, given the models, and 24 for all 20. Noise "
        "on all sums (z = 25) has 0.5 for all 20, and leaves out classes of fewer than 80 samples (`min_count`). "
        "Device seconds of FedGen lack the work with its generator. `public`: a public set of 375 samples, for FedMD; "
        "in the paper FedMD is a term of the loss; ours alternates, with 30 steps on public samples in each round, and "
        "has no GM. `resnet`: a net whose last block has a width, for FedAlign. `n-20`, `n-50`: more devices with as "
        "many samples each."
    ),
    found=(
        "these lines have only seed 0 and beta 0.5. `nu` = 0.25 costs five points of GM and little of own test: "
        "classes with less than a quarter of a device's samples are not shared. The paper's noise costs less than "
        "another point of either. Noise at an epsilon of 0.5 leaves GM and own test just below FedAvg's, so the "
        "exchange gains nothing. An earlier run on a processor with another instruction set gave a GM up to 1.2 "
        "points apart (MOON at beta 0.2), so smaller differences of one seed say little."
    ),
    figures=ALL,
    lines=LINES,
    settings=(
        Setting(
            "beta-0.5",
            reported=_reported(
                ("fedavg", 59.50, 47.41),
                ("moon", 59.01, 45.79),
                ("fedgen", 58.79, 48.00),
                ("fedproto", 61.31, 50.12),
                ("fedhkd-star", 62.27, 50.49),
                ("fedhkd", 62.54, 52.13),
                ("fedprox", 59.81, 47.93),
            ),
            lines=(*MAIN, *NOISY),
            cost_s=120,
        ),
        Setting(
            "beta-0.2",
            {"partition.alpha": 0.2},
            _reported(
                ("fedavg", 59.17, 32.51),
                ("moon", 57.62, 32.29),
                ("fedgen", 62.12, 46.23),
                ("fedproto", 64.71, 38.87),
                ("fedhkd-star", 67.98, 44.59),
                ("fedhkd", 67.89, 47.36),
                ("fedprox", 62.68, 38.45),
            ),
            MAIN,
            120,
        ),
        Setting(
            "beta-5",
            {"partition.alpha": 5.0},
            _reported(
                ("fedavg", 46.79, 54.83),
                ("moon", 37.94, 42.56),
                ("fedgen", 44.32, 44.32),
                ("fedproto", 48.02, 54.88),
                ("fedhkd-star", 48.57, 54.94),
                ("fedhkd", 49.76, 55.73),
                ("fedprox", 47.31, 55.21),
            ),
            MAIN,
            120,
        ),
        Setting(
            "public", PUBLIC, _reported(("fedhkd", 62.54, 52.13), ("fedmd", 61.47, 50.88)), ("fedhkd", "fedmd"), 120
        ),
        Setting(
            "resnet",
            devices(10, "resnet"),
            _reported(("fedhkd", 62.54, 52.13), ("fedalign", 59.48, 49.76)),
            ("fedhkd", "fedalign"),
            600,
        ),
        Setting(
            "n-20",
            {**devices(20, "cnn"), "data.train_samples": 10_000},
            _reported(
                ("fedavg", 62.61, 55.16),
                ("fedhkd", 68.16, 57.35),
                ("fedgen", 63.95, 54.08),
                ("fedproto", 65.05, 55.48),
                ("fedprox", 62.95, 52.58),
            ),
            MORE,
            240,
        ),
        Setting(
            "n-50",
            {**devices(50, "cnn"), "data.train_samples": 25_000},
            _reported(
                ("fedavg", 58.25, 37.73),
                ("fedhkd", 66.71, 54.93),
                ("fedgen", 65.33, 56.51),
                ("fedproto", 59.39, 40.16),
                ("fedprox", 64.90, 53.48),
            ),
            MORE,
            600,
        ),
    ),
    claims=(
        Claim("fedhkd", "fedavg", ALL, settings=("beta-0.5",), first=True),
        Claim("fedhkd", "fedavg", ALL, settings=("beta-0.2", "beta-5", "n-20", "n-50")),
        Claim("fedhkd", "moon", ALL),
        Claim("fedhkd", "fedgen", ALL),
        Claim(
            "fedhkd",
            "fedproto",
            ("local_accuracy",),
            why="ours shares no weights: it learns alone, except for its term",
        ),
        Claim("fedhkd", "fedhkd-star", ALL),
        Claim("fedhkd", "fedprox", ALL),
        Claim("fedhkd", "fedmd", ("local_accuracy",)),
        Claim("fedhkd", "fedalign", ALL),
    ),
)
PAPER = Paper(
    "fedhkd",
    "FedHKD",
    (TABLE1,),
    headlines=(
        Headline(
            "above FedAvg in the global model, +4.7 at beta 0.5",
            "fedhkd-table1",
            "fedhkd over fedavg",
            "beta-0.5",
            "gm",
            "shown",
            "Shown at beta 0.5, in the global model and on own test parts; other betas have one seed each.",
        ),
        Headline(
            "competes with FedMD without public data, +1.1 in local accuracy",
            "fedhkd-table1",
            "fedhkd over fedmd",
            "public",
            "local_accuracy",
            "one seed",
            "One seed shows nothing, and our FedMD averages no weights, so +18.6 does not test the claim.",
        ),
    ),
)
