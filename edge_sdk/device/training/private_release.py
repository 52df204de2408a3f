"""A device's private release: sums of its features under a frozen extractor, noised once per version of the data.

Without noise, if a model's features are its inputs, the mean of a class with one sample is that sample.  `BareClasses`
detects such classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Doubles, Floats, Ints
from edge_sdk.data import Samples
from edge_sdk.device.training.budget import BudgetLedger
from edge_sdk.errors import NotReleased, UsageError
from edge_sdk.methods.contract.requests import Released
from edge_sdk.models.base import Model
from edge_sdk.privacy.noise import KeyedStream, discrete_gaussian
from edge_sdk.privacy.release import (
    ALL_VERSIONS,
    FROZEN,
    Assumptions,
    Guarantee,
    contributions,
    noised,
    promised,
    sums_by_class,
)


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """Sums by class that may leave the device, with their guarantee."""

    sums: Doubles  # (k, d + 1), as privacy.release.means_of reads them
    promise: str
    """One line, with the epsilon of all releases of this device's data under the ledger."""


def release(model: Model, samples: Samples, clip: float, cost: Guarantee, ledger: BudgetLedger) -> Release:
    """Return the noised sums of a device's samples; the same samples get the same bytes again, at no further cost.

    clip: the L2 norm to which features are shortened.  cost: this version's share of the budget.  Raises UsageError
    for a model whose extractor is trained, and if the budget does not suffice; NotReleased for features that are not
    finite.
    """
    spec = model.spec
    if FROZEN not in spec.inert_terms or "features" not in spec.capabilities:
        raise UsageError(
            f"privacy: {promised(Assumptions(frozen_extractor=False), cost)}: {spec.name} must have features, from "
            "weights that this device never trains, such as an extractor that was trained elsewhere"
        )
    x, labels = spec.preprocess(samples.x), samples.y.astype(np.int64)
    features = model.features(x)
    check_finite(features, labels)

    def make() -> Doubles:
        added = contributions(features, clip)
        return noised(sums_by_class(added, labels, spec.classes), cost)

    sums = ledger.released(version_of(features, labels, clip), cost, make)
    spent = Guarantee(ledger.spent_epsilon, ledger.budget.delta)
    line = promised(Assumptions(frozen_extractor=True), spent, ALL_VERSIONS)
    return Release(sums, line)


def keyed_noise(sums: NDArray[np.int64], cost: Guarantee | None, secret: bytes, version: bytes) -> Doubles:
    """Return sums (k, d + 1) in steps of the grid with noise that follows from the device's secret.

    cost: None adds no noise.  version: names the data.  The same data under the same cost get the same bytes, even if
    the ledger was lost; other data get other noise.
    """
    stream = KeyedStream(secret, version + repr(cost).encode())
    return noised(sums, cost, lambda variance: discrete_gaussian(variance, stream.below))


def check_finite(features: Floats, labels: Ints) -> None:
    """Raise NotReleased for features (n, d) with NaN or Inf: clipping cannot bound what they add to the sums."""
    wrong = ~np.isfinite(features).all(axis=1)  # (n,)
    if wrong.any():
        classes = ", ".join(map(str, np.unique(labels[wrong])))
        raise NotReleased(
            f"privacy: the features of {int(wrong.sum())} samples, of class {classes}, hold NaN or Inf: remove these "
            "samples, or repair the extractor"
        )


def released_once(
    ledger: BudgetLedger, version: bytes, cost: Guarantee, make: Callable[[], Doubles], *, earlier: bytes
) -> Released:
    """Return the noised sums of a version of the data, or those of the earlier version if the budget is spent.

    Raises UsageError if there is no earlier version, or if the ledger does not hold it.
    """
    ledger.check_holds(earlier)
    try:
        return Released(ledger.released(version, cost, make), version)
    except UsageError:
        found = ledger.before(earlier)
        if found is None:
            raise
        return Released(found, earlier)


def version_of(features: Floats, labels: Ints, clip: float) -> bytes:
    """Return a digest of the features and labels, 32 bytes; through the features it also names the extractor."""
    rows = features.astype("<f4")
    parts = (repr((rows.shape, clip)).encode(), rows.tobytes(), labels.astype("<i8").tobytes())
    return hashlib.sha256(b"\0".join(parts)).digest()


Bools: TypeAlias = NDArray[np.bool_]
_WHY = "this model's features are its inputs, so that the mean of a class with one sample is that sample"


def only_samples(by_class: tuple[Ints, Ints, Ints]) -> Ints:
    """Return the indices of samples that are alone in their class (s,).

    by_class: the classes held (m,), the index of each sample's class (n,), the samples of each class (m,).
    """
    _, at, counts = by_class
    return np.flatnonzero(counts[at] == 1)


class BareClasses:
    """Finds classes whose mean would be a sample, in one pass over the features of a device's samples."""

    def __init__(self, samples: Floats, by_class: tuple[Ints, Ints, Ints], alone: Ints) -> None:
        """samples: after preprocessing (n, c, h, w).  by_class, alone: the argument and result of `only_samples`."""
        self._samples, (self._classes, self._at, _), self._alone = samples, by_class, alone
        self.found: Bools = np.zeros(len(self._classes), np.bool_)
        """Which of the classes held were found so far (m,)."""

    def see(self, part: slice, features: Floats) -> None:
        """Compare the features of some samples (b, d) with the model's inputs."""
        if not self._alone.size or self._samples[0].size != features.shape[1]:
            return
        alone = self._alone[(self._alone >= part.start) & (self._alone < part.stop)]
        inputs = self._samples[alone].reshape(len(alone), features.shape[1])  # (a, c * h * w)
        bare = alone[(inputs == features[alone - part.start]).all(axis=1)]
        self.found[self._at[bare]] = True

    def kept(self, tell: Callable[[str], None]) -> Bools | slice:
        """Return an index of the classes that may be uploaded (m,).  tell: called with a line if some may not.

        Raises NotReleased if none may.
        """
        if not self.found.any():
            return slice(None)
        left_out = ", ".join(map(str, self._classes[self.found]))
        tell(f"class {left_out} has one sample, and is left out of uploads: {_WHY}")
        if self.found.all():
            raise NotReleased(f"every class has one sample, and {_WHY}: gather more")
        return ~self.found
