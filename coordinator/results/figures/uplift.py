"""The uplift of a federation: the accuracy of its devices minus that of the control group, with a 95 % interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from coordinator.record.control_group import Compared, ControlGroup
from coordinator.results.figures.intervals import CONFIDENCE, spread_of, t_quantile

LEAST_DEVICES = 3
"""With fewer devices in a group, or fewer pairs, nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplift:
    """The federation's gain in accuracy on the devices' own held-out samples, as fractions in [-1, 1]."""

    alone: int
    """Devices that have been in the control group so far and were measured in it."""
    mean: float | None = None
    """Federated minus alone, or None while nothing can be said."""
    low: float | None = None
    high: float | None = None
    """The ends of the 95 % interval."""
    paired: int = 0
    """The devices that were in both groups, if the interval is of their differences, or 0 if the two groups are
    compared."""
    others: int = 0
    """The devices of the federation that the control group is compared with."""
    why: str = ""
    """Why nothing is known, or empty."""

    @property
    def known(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def text(self) -> str:
        """One line for reports and logs, in points of accuracy."""
        if self.mean is None or self.low is None or self.high is None:
            return f"not yet known: {self.why}"
        of = f"{self.paired} devices in both groups" if self.paired else f"{self.others} devices, {self.alone} alone"
        points = f"{100 * self.mean:+.1f} points (95 % interval {100 * self.low:+.1f} to {100 * self.high:+.1f}; {of})"
        if not self.known:
            return f"not yet known whether the federation helps: {points}"
        return f"the federation {'helps' if self.low > 0 else 'does harm'}: {points}"

    def written(self) -> dict[str, float]:
        """The figures for TensorBoard, Prometheus and the like, by their names there; those that are known."""
        found = {"uplift": self.mean, "uplift/low": self.low, "uplift/high": self.high}
        return {name: value for name, value in found.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """Plain values, without those that are unknown."""
        found = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        return {**found, "known": self.known, "text": self.text}


def uplift(
    group: ControlGroup, figure: Compared | None = None, devices: Collection[str] | None = None
) -> Uplift | None:
    """Return the uplift as far as it is known, or None without a control group.

    figure: the accuracy to compare, by default that on all held-out samples.
    devices: those whose uplift is wanted, by default all.

    If enough devices were in both groups, their paired differences are used, by Student's t.  Before that, the two
    groups are compared by Welch's t test, with its degrees of freedom rounded down.
    """
    if group.period < 0:
        return None
    figure = figure or group.whole
    figure = figure if devices is None else figure.of(devices)
    alone, others = group.groups(figure)
    if len(figure.pairs) >= LEAST_DEVICES:
        spread = spread_of(figure.pairs.values())
        low, high = (spread.interval if spread else None) or (None, None)
        mean, count = (spread.mean if spread else None), len(figure.pairs)
        return Uplift(alone=len(alone), others=len(others), paired=count, mean=mean, low=low, high=high)
    for name, values in (("alone", alone), ("in the federation", others)):
        if len(values) < LEAST_DEVICES:
            few = f"{len(values)} device{'s were' if len(values) != 1 else ' was'} measured {name}"
            return Uplift(alone=len(alone), others=len(others), why=f"{few}, {LEAST_DEVICES} are needed")
    mean, low, high = _welch(others, alone)
    return Uplift(alone=len(alone), others=len(others), mean=mean, low=low, high=high)


def _welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return the difference of two means, first minus second, and its 95 % interval (Welch 1947)."""
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    total, mean = sum(parts), statistics.fmean(first) - statistics.fmean(second)
    if not total:
        return mean, mean, mean
    by_group = zip(parts, (first, second), strict=True)
    freedom = total**2 / sum(part**2 / (len(values) - 1) for part, values in by_group)
    half = t_quantile(CONFIDENCE, max(1, int(freedom))) * math.sqrt(total)
    return mean, mean - half, mean + half
