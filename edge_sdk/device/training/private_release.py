"""A device's private release: sums of its features under a frozen extractor, noised once per version of the data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

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
