"""Means with 95 % intervals by Student's t: over seeds, and over a random sample of a fleet's devices."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coordinator.results.figures.metrics import deviation

CONFIDENCE = 0.95
_HALVINGS = 80
"""Number of halvings of an angle below pi/2, enough for all digits of a float."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over seeds, and the sample standard deviation where there is more than one."""

    mean: float
    sd: float | None
    count: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the mean, by Student's t, or None for a single value.

        It holds for seeds drawn independently whose values are about normal.
        """
        return self.interval_at(CONFIDENCE)

    def interval_at(self, confidence: float) -> tuple[float, float] | None:
        """Return the interval that holds the mean with this confidence, as `interval`, or None for a single value."""
        if self.sd is None:
            return None
        half = t_quantile(confidence, self.count - 1) * self.sd / math.sqrt(self.count)
        return self.mean - half, self.mean + half

    @property
    def p_value(self) -> float | None:
        """The two-sided p value of Student's t test of a mean of 0, or None for a single value.

        It is below 1 - c where the interval of confidence c leaves out 0.
        """
        if self.sd is None:
            return None
        if self.sd == 0:
            return 0.0 if self.mean else 1.0
        freedom = self.count - 1
        t = abs(self.mean) * math.sqrt(self.count) / self.sd
        return 1 - _t_within(math.atan(t / math.sqrt(freedom)), freedom)


def spread_of(values: Iterable[float | None]) -> Spread | None:
    """Mean and sample standard deviation of the values that are known, or None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(statistics.fmean(known), deviation(known, of_sample=True) if len(known) > 1 else None, len(known))


def sampling_error(values: Sequence[float], of: int) -> float | None:
    """Return half the 95 % interval of the mean of `of` devices, of which a random sample has these values, or None.

    With values of all devices it is 0; of one device it is unknown.
    """
    spread = spread_of(values)
    return None if spread is None or spread.sd is None else half_width(spread.sd, spread.count, of)


def half_width(sd: float, count: int, of: int) -> float:
    """Return half the 95 % interval of the mean of `of` values, from a random sample of at least two of them."""
    return t_quantile(CONFIDENCE, count - 1) * sd * math.sqrt((1 - count / of) / count)


def t_quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| < t) = confidence, for Student's t: 12.706 for 0.95 and one degree of freedom.

    Computed here because a base install has no scipy.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, freedom) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _t_within(angle: float, freedom: int) -> float:
    """Return P(|T| < sqrt(freedom) tan(angle)) of Student's t (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
