"""A guard for all classes of the whole fleet: the result of a round is tried on samples of the coordinator first.

The global model of a round is compared with the best ones so far, class by class.  If any class with enough samples
loses more than allowed, the round has no result: devices go on from the state before it, and never see the worse one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from coordinator.serving.equipment import Equipment
from edge_sdk.data import Preprocess
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.base import Method
from edge_sdk.models.base import Model
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Real, Text
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.public_set.samples import PublicSet, public_for
from edge_sdk.reductions.sign_test import LEAST_SAMPLES, Right, is_worse


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardTable:
    """The section [guard]."""

    canary: Annotated[str, Text(1000)] | None = None
    """An npz file with samples and their `labels`, on which the coordinator tries each global model before devices get
    it; relative to the TOML file.  Needs `federation.nets`."""
    max_drop: Annotated[float, Real(0.0, 1.0)] = 0.1
    """The most that the accuracy on any class may fall below the best so far, beyond chance."""


class Canary:
    """Tries global models on labelled samples."""

    def __init__(self, samples: PublicSet, nets: Iterable[Model], max_drop: float) -> None:
        """samples: with labels.  nets: one model of each architecture; their weights are overwritten."""
        labels = np.full(len(samples), -1) if samples.labels is None else samples.labels
        support = [(each, int((labels == each).sum())) for each in np.unique(labels[labels >= 0])]
        self.classes = tuple(int(each) for each, count in support if count >= LEAST_SAMPLES)
        """The classes with at least LEAST_SAMPLES samples."""
        self._labels, self._max_drop = labels, max_drop
        self._nets = Equipment(nets=lambda: nets, public=lambda: samples)
        self._best: dict[tuple[bytes, int], Right] = {}
        """By layout and class: the right answers of the best accepted model."""

    def fault(self, method: Method[Any], before: Any, after: Any, at: ExchangeId) -> str:
        """Return which class lost how much, or an empty text: then this state is accepted.

        before, after: the method's states around a round; at: its first exchange.
        """
        if not self._best:
            self._accept(self._rights(method, before, at))
        found, faults = self._rights(method, after, at), []
        for key, right in found.items():
            best = self._best.get(key)
            if best is not None and is_worse(best, right, self._max_drop):
                faults.append(f"class {key[1]} {best.mean():.0%} -> {right.mean():.0%}")
        if faults:
            return (
                f"held back everywhere, devices go on from the state before: on the canary samples {', '.join(faults)}"
            )
        self._accept(found)
        return ""

    def _accept(self, found: dict[tuple[bytes, int], Right]) -> None:
        for key, right in found.items():
            if key not in self._best or right.mean() >= self._best[key].mean():
                self._best[key] = right

    def _rights(self, method: Method[Any], state: Any, at: ExchangeId) -> dict[tuple[bytes, int], Right]:
        """Which samples of each class each global model classifies correctly; models without a net are left out."""
        found: dict[tuple[bytes, int], Right] = {}
        for payload in method.common(state, ExchangeId(at.round + 1, 0)).values():
            if isinstance(payload, Weights) and payload.layout in self._nets.by_layout:
                rows = self._nets.logits(payload)  # (n, k)
                right = (rows.argmax(axis=1) == self._labels) & np.isfinite(rows).all(axis=1)
                found |= {(payload.layout, each): right[self._labels == each] for each in self.classes}
        return found


def read_canary(
    table: GuardTable, method: Method[Any], folder: Path, nets: Iterable[Model], where: str
) -> Canary | None:
    """The canary that a federation's file asks for, or None.  folder: of that file.  Raises UsageError."""
    if table.canary is None:
        return None
    if not (method.global_model and method.shares_weights) or method.caching is not None:
        raise UsageError(
            f"{where}.canary: {method.name} has no global model that the coordinator could try; leave it out, and give "
            "devices a test part or a labelled public set: their own guard checks all classes then"
        )
    nets = [*nets]
    samples = public_for(folder / table.canary, nets[0].spec.preprocess if nets else Preprocess())
    found = Canary(samples, nets, table.max_drop)
    if not found.classes:
        raise UsageError(f"{where}.canary: {table.canary} needs `labels`, with at least {LEAST_SAMPLES} of some class")
    return found
