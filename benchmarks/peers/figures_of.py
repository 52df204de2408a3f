"""The figures of the runs, computed by pure functions, so that tests need no installed peer."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

QUIET = 0.12
"""A run in which everybody else took at most this share of the machine."""
SAME_LOSS = 1e-4
"""Test losses nearer than this come from the same work: only the order of float additions differs."""


@dataclass(frozen=True)
class Run:
    """One run of one side."""

    ms: float
    """Milliseconds per device-round: the median of the rounds after the first."""
    mean_ms: float
    """The same, as a mean: rounds that snap to a poll show here."""
    cpu_ms: float
    """Computed per device-round by all processes of the run, which a loaded machine changes least."""
    first_round_s: float
    """From the start of the process to the end of round 1."""
    first_round_cpu_s: float
    rss_mib: float
    pss_mib: float
    processes: int
    others_cpu: float
    """Share of the machine that others took meanwhile."""
    accuracy: float
    loss: float | None
    """None: of other mini-batches, and so not to be compared."""
    lost: int = 0
    """Device-rounds whose result did not arrive."""


@dataclass(frozen=True)
class Pair:
    """A peer and, right before it in the same environment, the bare loop."""

    peer: str
    net: str
    devices: int
    bare: Run
    theirs: Run

    @property
    def quiet(self) -> bool:
        """Whether both had the machine nearly to themselves."""
        return max(self.bare.others_cpu, self.theirs.others_cpu) <= QUIET

    @property
    def same_work(self) -> bool:
        """Whether both ended with the same model, as far as the test shows."""
        bare, theirs = self.bare.loss, self.theirs.loss
        return bare is not None and theirs is not None and abs(bare - theirs) < SAME_LOSS


def per_device_round(ends_s: Sequence[float], devices: int) -> tuple[float, float]:
    """Median and mean milliseconds of the rounds after the first; ends_s: when each round ended."""
    each_s = [b - a for a, b in pairwise(ends_s)]
    return statistics.median(each_s) * 1000 / devices, statistics.mean(each_s) * 1000 / devices


def enough(pairs: Sequence[Pair], wanted: int, tries: int) -> bool:
    """Whether a case needs no further pair: it has as many quiet ones as wanted, or was tried often enough."""
    return sum(pair.quiet for pair in pairs) >= wanted or len(pairs) >= tries


def figures(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """One row for each case, over its quiet pairs, or over all where none was quiet."""
    cases: dict[tuple[str, str, int], list[Pair]] = {}
    for pair in pairs:
        cases.setdefault((pair.peer, pair.net, pair.devices), []).append(pair)
    return [_case(own) for _, own in sorted(cases.items())]


def _case(pairs: Sequence[Pair]) -> dict[str, Any]:
    used = [pair for pair in pairs if pair.quiet] or pairs
    ratios = sorted(pair.theirs.ms / pair.bare.ms for pair in used)
    return {
        "peer": pairs[0].peer,
        "net": pairs[0].net,
        "devices": pairs[0].devices,
        "pairs": len(used),
        "quiet": all(pair.quiet for pair in used),
        "others_cpu": max(max(pair.bare.others_cpu, pair.theirs.others_cpu) for pair in used),
        "same_work": all(pair.same_work for pair in pairs),
        "lost": sum(pair.theirs.lost for pair in used),
        "ratio": statistics.median(ratios),
        "ratio_range": [ratios[0], ratios[-1]],
        "cpu_ratio": statistics.median(pair.theirs.cpu_ms / pair.bare.cpu_ms for pair in used),
        "theirs": _medians([asdict(pair.theirs) for pair in used]),
        "bare": _medians([asdict(pair.bare) for pair in used]),
    }


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0] if runs[0][name] is not None}


Cell = Callable[[Mapping[str, Any]], str]
COLUMNS: dict[str, Cell] = {
    "peer": lambda case: case["peer"],
    "net": lambda case: case["net"],
    "devices": lambda case: str(case["devices"]),
    "ms per device-round (bare loop)": lambda case: f"{case['theirs']['ms']:.2f} ({case['bare']['ms']:.2f})",
    "peer / bare, time": lambda case: _bold(f"{case['ratio']:.2f}", case["quiet"]) + f" ({_span(case['ratio_range'])})",
    "peer / bare, CPU": lambda case: _bold(f"{case['cpu_ratio']:.2f}", not case["quiet"]),
    "CPU ms (bare)": lambda case: f"{case['theirs']['cpu_ms']:.2f} ({case['bare']['cpu_ms']:.2f})",
    "round 1 done, s": lambda case: _both(case, "first_round_s"),
    "the same, CPU s": lambda case: _both(case, "first_round_cpu_s"),
    "peak RSS, MiB": lambda case: f"{case['theirs']['rss_mib']:,.0f} ({case['bare']['rss_mib']:,.0f})",
    "peak PSS, MiB": lambda case: f"{case['theirs']['pss_mib']:,.0f} ({case['bare']['pss_mib']:,.0f})",
    "processes": lambda case: f"{case['theirs']['processes']:.0f}",
    "test accuracy": lambda case: f"{case['theirs']['accuracy']:.4f} ({case['bare']['accuracy']:.4f})",
    "lost": lambda case: str(case["lost"]),
    "pairs": lambda case: str(case["pairs"]),
    "others' CPU": lambda case: f"{case['others_cpu']:.0%}",
}


def _bold(text: str, wanted: bool) -> str:
    return f"**{text}**" if wanted else text


def _both(case: Mapping[str, Any], name: str) -> str:
    return f"{case['theirs'][name]:.1f} ({case['bare'][name]:.1f})"


def _span(ends: Sequence[float]) -> str:
    return f"{ends[0]:.2f} to {ends[1]:.2f}"


def table(cases: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Head and rows of the page."""
    return [list(COLUMNS), *([cell(case) for cell in COLUMNS.values()] for case in cases)]


GOALS = {("flower", "mlp"): 0.06, ("flower", "cnn"): 0.15, ("pfl", "mlp"): 0.7, ("pfl", "cnn"): 0.7}
"""Goals: the largest share of the peer's time, by peer and net."""


def against(ours: str, cases: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Our time as a share of each peer's, from the same invocation."""
    own = {(case["net"], case["devices"]): case for case in cases if case["peer"] == ours}
    rows = [["peer", "net", "devices", "ours / peer, time", "ours / peer, CPU", "goal"]]
    for case in cases:
        mine = own.get((case["net"], case["devices"]))
        if mine is None or case is mine:
            continue
        time, cpu = (mine["theirs"][name] / case["theirs"][name] for name in ("ms", "cpu_ms"))
        goal = GOALS.get((case["peer"], case["net"]))
        met = " met" if goal and time <= goal and case["quiet"] and mine["quiet"] else ""
        rows.append(
            [
                case["peer"],
                case["net"],
                str(case["devices"]),
                f"**{time:.2f}**",
                f"{cpu:.2f}",
                f"{goal:.2f}{met}" if goal else "-",
            ]
        )
    return rows
