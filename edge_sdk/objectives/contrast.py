"""Terms on the directions of features: towards some features, away from others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.objectives.base import FEATURES, LABELS, On, Seen, Shapes, Term, needed
from edge_sdk.objectives.softmax import log_softmax, norms

APART = -1e9
"""The likeness of a sample to itself: 0 after softmax, and finite if the sample is the only one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelContrast(Term):
    """log(1 + exp((cos(z, z_away) - cos(z, z_near)) / tau)): MOON's contrast of models (Li et al. 2021, eq. 3)."""

    name: ClassVar[str] = "model-contrast"
    on: ClassVar[On] = "features"
    near: Floats  # (steps, b, d), of the mean
    away: Floats  # (steps, b, d), of the device's former model
    temperature: float = 0.5
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """Return the mean over b."""
        return float(self.weight * np.logaddexp(0, self._margins(seen)).mean())

    def slope(self, seen: Seen) -> Floats:
        """Return the sigmoid of the exponent, times the slopes of the two cosines."""
        z = needed(seen.features, FEATURES)
        push = 1 / (1 + np.exp(-self._margins(seen)))  # (b,)
        rise = _cosine_slope(z, self.away[seen.step]) - _cosine_slope(z, self.near[seen.step])
        out: Floats = rise * (push * self.weight / (self.temperature * len(z))).astype(z.dtype)[:, None]
        return out

    def _margins(self, seen: Seen) -> Floats:
        """Return the exponents: (b,)."""
        z = needed(seen.features, FEATURES)
        out: Floats = (_cosines(z, self.away[seen.step]) - _cosines(z, self.near[seen.step])) / self.temperature
        return out

    def at(self, steps: slice) -> Term:
        """Keep the features of these steps."""
        return replace(self, near=self.near[steps], away=self.away[steps])

    def misfit(self, shapes: Shapes) -> str:
        """Check that there are two features for each sample of each step."""
        expected = (shapes.steps, shapes.batch, shapes.feature_dim)
        if self.near.shape == self.away.shape == expected:
            return ""
        return f"carries features of shape {self.near.shape} and {self.away.shape}, its batches need {expected}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassContrast(Term):
    """Pulls features of one class together, and away from all others (Khosla et al. 2020, eq. 2, one view).

    The value is -mean over p of log softmax_a(cos(z_i, z_a) / tau)_p, with a over the samples other than i, and p over
    those of the class of i.  A sample that is alone in its class adds nothing, and still counts in b.  Needs labels.
    """

    name: ClassVar[str] = "class-contrast"
    on: ClassVar[On] = "features"
    temperature: float = 0.07
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """Return the mean over b."""
        shares = self._shares(seen)
        return float(-self.weight * (shares * log_softmax(self._likeness(seen))).sum() / len(shares))

    def slope(self, seen: Seen) -> Floats:
        """Return the slope through the cosines of all pairs."""
        z, shares = needed(seen.features, FEATURES), self._shares(seen)
        found = np.exp(log_softmax(self._likeness(seen)))  # (b, b)
        pairs = shares.sum(axis=1, keepdims=True) * found - shares  # d/d(likeness), times b
        lengths = norms(z)[:, None]
        unit = z / lengths
        on_unit = (pairs + pairs.T) @ unit * np.float32(self.weight / (self.temperature * len(z)))
        out: Floats = (on_unit - unit * (unit * on_unit).sum(axis=1, keepdims=True)) / lengths
        return out

    def _likeness(self, seen: Seen) -> Floats:
        """Return the cosines over tau: (b, b)."""
        z = needed(seen.features, FEATURES)
        unit = z / norms(z)[:, None]
        out: Floats = unit @ unit.T / np.float32(self.temperature)
        np.fill_diagonal(out, APART)
        return out

    def _shares(self, seen: Seen) -> Floats:
        """Return each sample's target share of each other: 1 / |P(i)| in its class, else 0: (b, b)."""
        labels = needed(seen.labels, LABELS)
        same = (labels[:, None] == labels).astype(np.float32)
        np.fill_diagonal(same, 0)
        out: Floats = same / np.maximum(same.sum(axis=1, keepdims=True), 1)
        return out


def _cosines(a: Floats, b: Floats) -> Floats:
    """Return the cosine of each pair of rows: (b, d), (b, d) -> (b,)."""
    out: Floats = (a * b).sum(axis=1) / (norms(a) * norms(b))
    return out


def _cosine_slope(z: Floats, other: Floats) -> Floats:
    """Return d(cos(z, other)) / dz, row by row: (b, d)."""
    lengths = norms(z)[:, None]
    out: Floats = other / (lengths * norms(other)[:, None]) - z / lengths**2 * _cosines(z, other)[:, None]
    return out
