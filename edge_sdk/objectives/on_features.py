"""Terms on the features of a mini-batch, or on their directions: they train the extractor and never the head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.objectives.base import FEATURES, LABELS, On, Seen, Shapes, Term, misfit, needed, rows_of
from edge_sdk.objectives.softmax import NORM_FLOOR, log_softmax, norms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureMatch(Term):
    """The mean over b m of (W R(x) - t)^2: features towards another model's (FedKD); W = I if not given."""

    name: ClassVar[str] = "feature-match"
    on: ClassVar[On] = "features"
    targets: Floats  # (steps, b, m)
    projection: Floats | None = None  # (m, d)
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """Return the mean square."""
        return float(self.weight * np.mean(self._gaps(seen) ** 2))

    def slope(self, seen: Seen) -> Floats:
        """Return 2 W^T (W R(x) - t), over b m."""
        gaps = self._gaps(seen)
        back = gaps if self.projection is None else gaps @ self.projection
        out: Floats = back * np.float32(2 * self.weight / gaps.size)
        return out

    def _gaps(self, seen: Seen) -> Floats:
        features = needed(seen.features, FEATURES)
        found = features if self.projection is None else features @ self.projection.T
        return np.asarray(found - self.targets[seen.step])

    def at(self, steps: slice) -> Term:
        """Keep the targets of these steps."""
        return replace(self, targets=self.targets[steps])

    def misfit(self, shapes: Shapes) -> str:
        """Check that there is a target for each sample of each step, as wide as what it is compared with."""
        wide = (shapes.feature_dim, shapes.feature_dim) if self.projection is None else self.projection.shape
        expected = (shapes.steps, shapes.batch, wide[0])
        if self.targets.shape == expected and wide[1] == shapes.feature_dim:
            return ""
        return f"carries targets of shape {self.targets.shape}, its batches need {expected}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureGradient(Term):
    """A gradient at the features, computed elsewhere: the linear loss <gradient, R(x)> (FedMRL)."""

    name: ClassVar[str] = "feature-gradient"
    on: ClassVar[On] = "features"
    gradient: Floats  # (steps, b, d), per sample, divided by nothing
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """Return the mean inner product."""
        products = (self.gradient[seen.step] * needed(seen.features, FEATURES)).sum(axis=-1)  # (b,)
        return float(self.weight * products.mean())

    def slope(self, seen: Seen) -> Floats:
        """Return the gradient itself, over b."""
        gradient = self.gradient[seen.step]
        out: Floats = gradient * np.float32(self.weight / len(gradient))
        return out

    def at(self, steps: slice) -> Term:
        """Keep the gradients of these steps."""
        return replace(self, gradient=self.gradient[steps])

    def misfit(self, shapes: Shapes) -> str:
        """Check that there is a row for each sample of each step, as wide as the features."""
        found, expected = self.gradient.shape, (shapes.steps, shapes.batch, shapes.feature_dim)
        return "" if found == expected else f"carries gradients of shape {found}, its batches need {expected}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrototypePull(Term):
    """The mean over B d of (R(x) - C^y)^2: features towards the prototype of their class (FedProto eq. 8).

    The reduction is that of its authors' code; the squared L2 norm per sample is d times as much.  A sample whose class
    has no prototype adds nothing, and still counts in B.  Needs labels.
    """

    name: ClassVar[str] = "prototype-pull"
    on: ClassVar[On] = "features"
    classes: Ints  # (m,) ascending
    rows: Floats  # (m, d)
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """Return the mean square."""
        return float(self.weight * np.mean(self._gaps(seen) ** 2))

    def slope(self, seen: Seen) -> Floats:
        """Return 2 (R(x) - C^y), over B d."""
        gaps = self._gaps(seen)
        out: Floats = gaps * np.float32(2 * self.weight / gaps.size)
        return out

    def _gaps(self, seen: Seen) -> Floats:
        """Return R(x) - C^y: (b, d), zero for a class without a prototype."""
        at, known = rows_of(self.classes, seen.labels)
        return np.where(known[:, None], needed(seen.features, FEATURES) - self.rows[at], 0)

    def misfit(self, shapes: Shapes) -> str:
        """Check that each class has a row as wide as the features."""
        return misfit("prototypes", "features", self.classes, self.rows, shapes.feature_dim)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrototypeDistance(PrototypePull):
    """The mean over b of |R(x) - H^y|, the L2 norm, not squared (FedHKD eq. 11, third term).

    A sample whose class has no prototype adds nothing, and still counts in b.  Needs labels.
    """

    name: ClassVar[str] = "prototype-distance"

    def value(self, seen: Seen) -> float:
        """Return the mean norm."""
        return float(self.weight * np.mean(norms(self._gaps(seen))))

    def slope(self, seen: Seen) -> Floats:
        """Return (R(x) - H^y) / |R(x) - H^y|, over b."""
        gaps = self._gaps(seen)
        out: Floats = gaps / norms(gaps)[:, None] * np.float32(self.weight / len(gaps))
        return out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundedDistance(PrototypeDistance):
    """The mean over b of |B(R(x)) - H^y|, where H^y is a mean of bounded features (FedHKD with noise).

    B shortens a feature to the L2 norm `most`, or with `cube` each of its numbers to the magnitude `most`.
    """

    name: ClassVar[str] = "bounded-distance"
    most: float = np.inf
    cube: bool = False

    def slope(self, seen: Seen) -> Floats:
        """Return the slope through the bound: what points out of it moves nothing."""
        slopes = PrototypeDistance.slope(self, seen)
        features = needed(seen.features, FEATURES)
        if self.most == np.inf:
            return slopes
        if self.cube:
            return np.where(np.abs(features) > self.most, 0, slopes).astype(np.float32)
        lengths = norms(features)[:, None]
        directions = features / lengths
        across = slopes - directions * (directions * slopes).sum(axis=1, keepdims=True)
        return np.where(lengths > self.most, across * (self.most / lengths), slopes).astype(np.float32)

    def _gaps(self, seen: Seen) -> Floats:
        """Return B(R(x)) - H^y: (b, d), zero for a class without a prototype."""
        at, known = rows_of(self.classes, seen.labels)
        features = bounded(needed(seen.features, FEATURES), self.most, cube=self.cube)
        return np.where(known[:, None], features - self.rows[at], 0)


def bounded(rows: Floats, most: float, *, cube: bool = False) -> Floats:
    """Return rows (n, d), longer ones shortened to the L2 norm `most`; or with `cube` each number to that magnitude."""
    if most == np.inf:
        return rows
    if cube:
        return np.clip(rows, -most, most)
    lengths = np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1, keepdims=True))  # (n, 1)
    out: Floats = (rows * np.minimum(1.0, most / np.maximum(lengths, NORM_FLOOR))).astype(np.float32)
    return out


def spliced(rows: Floats, proxy: Floats, own: Floats) -> Floats:
    """Return rows (g, f, 1) for features g (b, d_proxy) of the proxy and f (b, d) of the own model: (b, d)."""
    at = proxy.shape[1]
    out: Floats = proxy @ rows[:, :at].T + own @ rows[:, at:-1].T + rows[:, -1]
    return out


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
