"""Mode A on a device: the sums of its data under a frozen extractor, noised once for each version of the data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from edge_sdk.arrays import Doubles
from edge_sdk.data import Samples
from edge_sdk.device.budget import BudgetLedger
from edge_sdk.errors import UsageError
from edge_sdk.models.base import Model
from edge_sdk.privacy.release import Assumptions, Guarantee, contributions, noised, promised, sums_by_class

FROZEN = "prototype-pull"
"""The term that would train an extractor: a model in which it moves nothing has a frozen one."""


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """Sums by class that may leave the device, and what they promise."""

    sums: Doubles  # (k, d + 1), as privacy.release.means_of reads them
    promise: str
    """One line, with the epsilon of all that was ever released of this device's data under the ledger."""


def release(model: Model, samples: Samples, clip: float, cost: Guarantee, ledger: BudgetLedger) -> Release:
    """Return the noised sums of a device's samples; the same samples get the same bytes again, at no further cost.

    clip: the L2 norm to which features are shortened.  cost: what this version of the data may take of the budget.
    Raises UsageError for a model whose extractor is trained, and where the budget does not suffice.
    """
    spec = model.spec
    if FROZEN not in spec.inert_terms or "features" not in spec.capabilities:
        raise UsageError(
            f"privacy: {promised(Assumptions(frozen_extractor=False), cost)}: {spec.name} must have features, from "
            "weights that this device never trains, such as an extractor that was made elsewhere"
        )
    x, labels = spec.preprocess(samples.x), samples.y.astype(np.int64)
    features = model.features(x)

    def make() -> Doubles:
        added = contributions(features, clip)
        return noised(sums_by_class(added, labels, spec.classes), cost)

    sums = ledger.released(_version(features, labels, clip), cost, make)
    line = promised(Assumptions(frozen_extractor=True), Guarantee(ledger.spent_epsilon, ledger.budget.delta))
    return Release(sums, line)


def _version(features: np.ndarray, labels: np.ndarray, clip: float) -> bytes:
    """Return 32 bytes that name the data as they are released: features, which tell of the extractor, and labels."""
    rows = features.astype("<f4")
    parts = (repr((rows.shape, clip)).encode(), rows.tobytes(), labels.astype("<i8").tobytes())
    return hashlib.sha256(b"\0".join(parts)).digest()
