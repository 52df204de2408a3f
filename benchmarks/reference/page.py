"""The page docs/results/reference.md, from the figures of ours and of the reference."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.reference.ours import LINES, SEEDS, Run
from benchmarks.reference.theirs import TWINS

THEIRS: Mapping[str, tuple[float, float]] = {
    "Local": (0.830, 0.833),
    "LG-FedAvg": (0.827, 0.833),
    "FML": (0.794, 0.792),
    "FedKD": (0.815, 0.803),
    "FedProto": (0.755, 0.750),
    "FedGH": (0.796, 0.798),
    "FedTGP": (0.843, 0.844),
    "FedGen": (0.827, 0.823),
    "FedMRL": (0.814, 0.810),
    "FedL2G-feat": (0.793, 0.787),
    "FedL2G-logit": (0.793, 0.798),
}
"""HtFLlib's own, after 40 rounds, by seed; from its commit e959261."""
POINT = 1.0
"""A difference of more points is explained."""
WHY: Mapping[str, str] = {
    "Local": "the order of the samples and the dropped last mini-batch were suspected. With both as there it is .837 "
    "in place of .840, so that they are .3 points of the difference; the rest is 7 of 1,007 test pictures on one seed.",
    "FedMRL": "no run has tested it yet. It is 1.0 point on one seed, as much as training alone differs by.",
    "FedProto": "with mini-batches as there it is .801 by prototypes in place of .817 (and .776 by the head in place "
    "of .786), so that their order and the dropped last one are 1.6 of the 6.2 points. The rest is not explained.",
    "FedKD": "HtFLlib lets gradients pass through S and through what one model teaches the other, divides the "
    "divergence by the classes, and cuts the proxy's weights where the paper cuts its changes. No one of three tried "
    "makes it better by a point; the divergence at its full weight alone makes it worse by 3 (below). All together, "
    "and constant targets, are still to be tried.",
}
"""By algorithm: the reason of a difference, and the run that tested it."""


def page(kept: Mapping[str, Any]) -> str:
    """Return the page; kept: the figures of the runs that stand, by name."""
    head = ["| algorithm | method here | theirs | ours | ours less theirs, points |", "|---|---|---|---|---|"]
    rows = [_row(line.theirs, line.method, kept) for line in LINES]
    missing = [run.name for run in runs() if run.name not in kept]
    left = f"\nNot run yet: {'; '.join(missing)}.\n" if missing else ""
    return "\n".join([_HEAD, *head, *rows, left, *_reasons(), *_fed(kept), *_twins(kept), _TAIL])


def runs() -> list[Run]:
    """Return the runs of the table, seed by seed."""
    return [Run(line, seed) for seed in SEEDS for line in LINES]


def _row(theirs: str, method: str, kept: Mapping[str, Any]) -> str:
    ours = {
        seed: kept[run.name]["ours"]
        for seed in SEEDS
        for run in runs()
        if run.line.theirs == theirs and run.seed == seed and run.name in kept
    }
    gaps = [100 * (value - THEIRS[theirs][seed]) for seed, value in ours.items()]
    spread = f" ± {statistics.stdev(gaps):.1f}" if len(gaps) > 1 else " (one seed)" if gaps else ""
    gap = f"{statistics.fmean(gaps):+.1f}{spread}" if gaps else "not run yet"
    said = [", ".join(f"{value:.3f}" for value in values) for values in (THEIRS[theirs], ours.values())]
    return f"| {theirs} | [{method}](../reference/methods/{method}.md) | {said[0]} | {said[1]} | {gap} |"


def _reasons() -> list[str]:
    return [
        "",
        f"## Why, where it is more than {POINT:g} point",
        "",
        *(f"- **{name}**: {why}" for name, why in WHY.items()),
    ]


def _fed(kept: Mapping[str, Any]) -> list[str]:
    fed = {name: each for name, each in kept.items() if " as fed there" in name}
    if not fed:
        return []
    return [
        "",
        "| ours, mini-batches as there | accuracy |",
        "|---|---|",
        *(f"| {n} | {e['ours']:.3f} |" for n, e in fed.items()),
    ]


def _twins(kept: Mapping[str, Any]) -> list[str]:
    found = [(twin, kept[twin.name]["ours"]) for twin in TWINS if twin.name in kept]
    lines = [f"| {', '.join(twin.switches).replace('_', ' ') or 'as there'} | {value:.3f} |" for twin, value in found]
    return [_FEDKD, "| what is ours | accuracy after 20 rounds |", "|---|---|", *lines] if found else []


_FEDKD = """
### FedKD in plain autograd, as HtFLlib trains it

Seed 0, half the rounds; HtFLlib's own curve has .763 there. Each line after the first takes one thing of ours: *fixed
doubt*, no gradient passes through S = CE + CE', which divides what passes between the models; *mean over samples*, the
divergence is a mean over samples, where there it is also one over classes, a tenth of it; *whole proxies*, the proxy's
weights are not cut to 95 to 98 % of their energy. One seed: a difference below a point shows nothing.
"""
_HEAD = """# Held against HtFLlib

    EDGE_REFERENCE=FOLDER EDGE_DATA=FOLDER nice -n 19 python -m benchmarks.reference

HtFLlib ([TsingZ0/HtFLlib](https://github.com/TsingZ0/HtFLlib), KDD 2025) is the library that papers of this field are
run with. Its own code, at commit e959261, was run on a partition of 4,000 pictures of Fashion-MNIST over 20 devices
(Dirichlet .3, a quarter of each device's samples for its test), with three nets of 64 features, SGD at .01, batches of
10, one epoch a round. Here are our methods on the same partition, nets, rate, batch and 40 rounds: the mean accuracy
of the devices on their own tests, weighted by their test samples, for the seeds 0 and 1.

What differs by intent: there all devices take their samples in one fixed order and drop a last mini-batch that is
shorter; here each round draws an order, and the last mini-batch is filled up from the next. Initial weights are drawn
from other seeds; devices with one kind of net begin alike in both. FedProto is compared by the nearest prototype, as
FedTGP is. FedMRL is measured as there, with the proxy that has just arrived, before training.
"""
_TAIL = """
FD diverged there on both seeds and has no figures; FedKTL needs a downloaded generator and is in neither. The figures
of each run, its seconds and a digest of its settings are in `docs/results/reference.json`; a run is made again only
when its settings change.
"""
