"""Each of the five systems on data that none of the papers uses: a synthesised vibration signal."""

from __future__ import annotations

from benchmarks.papers.kinds import Claim, Line, Setting, Table, devices

SPREAD = "within the spread of the seeds"
NOT_CLIP = "the clip changes nothing (fednh-clip); not looked into further"
PUBLIC = ("fedmd", "fedmd_lf", "fedal")
ALL = (*PUBLIC, "local", "lg_fedavg", "fedssa", "fedavg", "fedhkd", "fednh", "fedavg-clip", "fednh-clip")
CLIP = {"train.clip_norm": 10.0}
FEW = ("fedavg", "fedavg+slots", "fedkf")

VIBRATION = Table(
    name="other-vibration",
    title="All five on a vibration signal",
    source="none of the papers has such data.",
    scale=(
        "spectra of a synthesised vibration signal (`vibration.py`): eight conditions of a rotating machine, 2,000 "
        "private samples of 128 lines, 500 public; `mlp`, SGD at 0.05, 40 rounds of 10 steps (`fedmd`: 400 of one), "
        "every parameter of every method at its default; the lines with -clip have the gradient clip of FedNH's code "
        "(10). `few`: 20 devices, of which 4 take part."
    ),
    figures=("personal", "gm", "local_accuracy", "global_amp", "global_wlp"),
    lines=(
        Line("local"),
        Line("fedmd", values={"train.local_steps": 1, "federation.rounds": 400, "train.evaluate_every": 200}),
        Line("fedmd_lf", values={"method.fedmd_lf.tau": 10}),
        Line("fedal", values={"method.fedal.tau": 10, "method.fedal.max_devices": 10}),
        Line("lg_fedavg"),
        Line("fedssa"),
        Line("fedavg"),
        Line("fedavg+slots", "fedavg", {"method.fedavg.cached": True}),
        Line("fedkf", cost=3),
        Line("fedhkd"),
        Line("fednh"),
        Line("fedavg-clip", "fedavg", CLIP),
        Line("fednh-clip", "fednh", CLIP),
    ),
    settings=(
        Setting("all", lines=ALL, cost_s=5),
        Setting("few", {**devices(20, "mlp"), "federation.participants": 4, "train.evaluate_every": 40}, {}, FEW, 3),
    ),
    claims=(
        Claim("fedmd_lf", "fedmd", ("personal",), why="not looked into; SGD here, Adam in the paper"),
        Claim("fedal", "fedmd_lf", ("personal",)),
        Claim("fedssa", "lg_fedavg", ("local_accuracy", "personal"), why=SPREAD),
        Claim("fedssa", "local", ("local_accuracy", "personal"), why=SPREAD),
        Claim("fedhkd", "fedavg", ("gm", "local_accuracy"), settings=("all",)),
        Claim("fednh", "fedavg", ("gm", "personal"), settings=("all",), why=NOT_CLIP),
        Claim("fednh-clip", "fedavg-clip", ("gm", "personal"), why=NOT_CLIP),
        Claim("fedkf", "fedavg", ("global_amp", "global_wlp")),
        Claim("fedkf", "fedavg+slots", ("global_amp", "global_wlp")),
        Claim("fedavg+slots", "fedavg", ("global_amp", "global_wlp")),
    ),
)
TABLES = (VIBRATION,)
