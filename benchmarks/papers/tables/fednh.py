"""FedNH's tables 1 to 3 and figure 4 at laptop scale."""

from __future__ import annotations

from benchmarks.papers.tables.kinds import Claim, Headline, Line, Paper, Reported, Setting, Table

ALL = ("gm", "pm_v", "pm_l")
PERSONAL = ALL[1:]
RHOS = (0.1, 0.3, 0.5, 0.7)
DEVIATIONS = {
    "local": 10.13,
    "fedavg": 6.80,
    "fedper": 6.38,
    "ditto": 7.83,
    "fedrep": 7.06,
    "fedproto": 11.03,
    "fedbabu": 6.11,
    "fedrod": 5.89,
    "fednh": 5.61,
}
"""Table 2: the deviation of PM(L) over devices."""


def _reported(*rows: tuple[str, float | None, float, float], deviations: bool = False) -> Reported:
    found: dict[str, dict[str, float]] = {}
    for line, gm, pm_v, pm_l in rows:
        found[line] = {"pm_v": pm_v, "pm_l": pm_l} | ({} if gm is None else {"gm": gm})
        if deviations and line in DEVIATIONS:
            found[line]["pm_l_sd"] = DEVIATIONS[line]
    return found


DIR_03 = _reported(
    ("local", None, 42.79, 71.57),
    ("fedavg", 66.40, 63.10, 84.08),
    ("fedper", 61.58, 59.66, 82.38),
    ("ditto", 66.40, 53.69, 80.08),
    ("fedrep", 40.13, 56.47, 80.22),
    ("fedproto", None, 41.48, 68.35),
    ("creff", 66.46, 63.10, 84.08),
    ("fedbabu", 62.78, 60.58, 82.64),
    ("fedrod", 72.31, 65.66, 83.44),
    ("fednh", 69.01, 65.02, 84.63),
    deviations=True,
)
DIR_1 = _reported(
    ("local", None, 41.20, 58.34),
    ("fedavg", 73.07, 68.07, 79.12),
    ("fedper", 63.33, 60.66, 73.40),
    ("ditto", 73.07, 61.22, 74.78),
    ("fedrep", 47.92, 55.06, 68.99),
    ("fedproto", None, 39.65, 53.23),
    ("creff", 71.63, 68.07, 79.12),
    ("fedbabu", 70.34, 65.49, 77.35),
    ("fedrod", 75.50, 69.18, 77.84),
    ("fednh", 75.34, 69.64, 79.53),
)
DIR_03_OF_30 = _reported(("fedavg", 71.16, 64.57, 84.74), ("fednh", 72.69, 66.35, 85.21))

TABLE1 = Table(
    name="fednh-table1",
    title="FedNH, table 1",
    source="Table 1, CIFAR-10, Dir(0.3), 100 devices at 10 %: 200 rounds of 5 epochs.",
    scale=(
        "CIFAR-10, 10,000 samples over 100 devices, 10 % of them in each of 40 rounds of 5 epochs, beta 0.3; the "
        "paper's CNN; 1,000 test samples. The next table has three seeds, with a smaller CNN."
    ),
    figures=ALL,
    lines=(Line("fedavg"), Line("fednh")),
    settings=(Setting("beta-0.3", reported={line: DIR_03[line] for line in ("fedavg", "fednh")}, cost_s=330),),
    claims=(Claim("fednh", "fedavg", ALL),),
)
ORDER = (
    Line("local"),
    Line("fedavg"),
    Line("fedper"),
    Line("ditto", cost=1.8),
    Line("fedrep", cost=1.5),
    Line("fedproto", cost=1.1),
    Line("creff", cost=3),
    Line("fedbabu", cost=1.3),
    Line("fedrod", cost=1.1),
    Line("fednh", cost=1.1),
)
EACH = tuple(line.name for line in ORDER)
AS_FEDAVG = "FedNH's devices differ from each other as FedAvg's do"
SAME = {
    ("ditto", "gm"): ("fednh", "fedavg"),
    ("creff", "pm_v"): ("fednh", "fedavg"),
    ("creff", "pm_l"): ("fednh", "fedavg"),
}
"""Figures of a line that are FedAvg's, so that its sign is: Ditto's global model, and CReFF's personal models."""
COMPARATORS = Table(
    name="fednh-comparators",
    title="FedNH, tables 1 to 3, all methods",
    source=(
        "Tables 1 and 3, CIFAR-10, 100 devices, 200 rounds of 5 epochs, the paper's CNN; figure 4 has no numbers. "
        "Its FedPer and FedRep have a GM by the head that all began with; ours have none."
    ),
    scale=(
        "CIFAR-10, 10,000 samples over 100 devices, 10 % of them (`participants-30`: 30 %) in each of 60 rounds of 5 "
        "epochs; `cnn` with 64 features in place of the paper's CNN, which takes five times as long; 1,000 test "
        "samples. fednh has the scale of the authors' code, 1 at first and trained, and every line its gradient clip "
        "of 10. fednh-rho-X is fednh with rho X, the share of the prototypes that a round keeps, in place of 0.9."
    ),
    found=(
        "until 2026-11-26 the cosine head removed the last ReLU from the net. Older rows of `fednh` were deleted, "
        "because with the ReLU its GM is 2.6 to 5.7 points worse at beta 0.3 (seeds 0 to 2). The pictures of fednh "
        "below are of the old net."
    ),
    figures=ALL,
    lines=(
        *ORDER,
        Line("fedproto-strong", "fedproto", {"method.fedproto.mse_weight": 1.0}, cost=1.1),
        *(Line(f"fednh-rho-{rho}", "fednh", {"method.fednh.rho": rho}, cost=1.1) for rho in RHOS),
    ),
    settings=(
        Setting("beta-0.3", reported=DIR_03, cost_s=110),
        Setting("beta-1", {"partition.alpha": 1.0}, DIR_1, EACH, 110),
        Setting("participants-30", {"federation.participants": 30}, DIR_03_OF_30, ("fedavg", "fednh"), 300),
    ),
    claims=(
        Claim("fednh", "fedavg", ALL, settings=("beta-0.3", "beta-1"), first=True),
        Claim("local", "fedproto", PERSONAL, settings=("beta-0.3", "beta-1")),
        *(
            Claim(
                "fednh",
                line,
                (figure,),
                counted_with=SAME.get((line, figure)),
                why="within the spread of the seeds" if line == "fedper" else "",
            )
            for line in EACH
            if line not in ("fednh", "fedavg", "fedrod")
            for figure in (ALL if "gm" in DIR_03[line] and line not in ("fedper", "fedrep") else PERSONAL)
        ),
        *(
            Claim("fednh", line, ("pm_l_sd",), settings=("beta-0.3",), why=AS_FEDAVG)
            for line in DEVIATIONS
            if line != "fednh"
        ),
        Claim(
            "fedrod",
            "fednh",
            ("gm",),
            why="level in the paper, too (0.16 points); here FedROD gains less over FedAvg where the skew is weaker",
        ),
        Claim("fednh", "fedrod", ("pm_l",)),
        Claim("fednh", "fedavg", ALL, settings=("participants-30",)),
        *(Claim(f"fednh-rho-{rho}", "fednh-rho-0.1", ("gm",)) for rho in RHOS[1:]),
        Claim("fednh", "fednh-rho-0.1", ("gm",)),
    ),
)
PAPER = Paper(
    "fednh",
    "FedNH",
    (TABLE1, COMPARATORS),
    headlines=(
        Headline(
            "above FedAvg in the global model, +2.6 at beta 0.3",
            "fednh-comparators",
            "fednh over fedavg",
            "beta-0.3",
            "gm",
            "open",
            "Five seeds do not decide at 0.3, though their mean is near the paper's; at beta 1 it leans as claimed.",
        ),
        Headline(
            "fairer than FedAvg: PM(L) deviates by 1.2 points less over devices",
            "fednh-comparators",
            "fednh over fedavg",
            "beta-0.3",
            "pm_l_sd",
            "level",
            "Not seen: the interval leaves out the paper's 1.2 points.",
        ),
    ),
)
