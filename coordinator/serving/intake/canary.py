"""A guard for all classes of the fleet: the coordinator tries the result of a round on its own samples first.

The global model of a round is compared with earlier ones, on all samples together and class by class.  If any of these
loses more than allowed, the round has no result: devices continue from the state before it, and never get the worse
one.

The class accuracies of a young model swing: a round learns one class at the cost of another.  So all samples together
are guarded from the first round on, but a class only once its accuracy was stable for HELD_ROUNDS rounds, at that
level.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from coordinator.serving.equipment import Equipment
from edge_sdk.errors import UsageError
from edge_sdk.loading import error_text
from edge_sdk.methods.contract.base import Method
from edge_sdk.models.base import Model
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Real, Text
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.public_set.samples import PublicSet, public_for
from edge_sdk.reductions.sign_test import LEAST_SAMPLES, Right, is_worse

HELD_ROUNDS = 3
"""The rounds for which a class must be stable (change by at most the allowed drop) before it is guarded.

In the first month of benchmarks/coordinator_load/year.py 17 of 31 rounds were held back with 0, and 2 with 3 or 5."""
MOST_NAMED = 10
"""Maximum number of classes that a line names."""
ALL = -1
"""Represents all samples, instead of a class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardTable:
    """The section [guard]."""

    canary: Annotated[str, Text(1000)] | None = None
    """An npz file with samples and their `labels`, on which the coordinator tries each global model before devices get
    it; relative to the TOML file.  Needs `federation.nets`."""
    max_drop: Annotated[float, Real(0.0, 1.0)] = 0.1
    """The maximum drop of the accuracy on all samples, or on a guarded class, beyond chance."""


@dataclass(slots=True)
class AccuracyLevel:
    """The results of the global models on one class, or on all samples."""

    guarded: Right | None
    """The right answers of the reference model, or None while nothing is guarded."""
    best: Right
    """The right answers of the best model since the accuracy last changed by more than allowed."""
    held: int = 0
    """The rounds since that change."""

    def to_json(self) -> list[Any]:
        """The level as plain values."""
        packed = [None if right is None else np.packbits(right).tobytes().hex() for right in (self.guarded, self.best)]
        return [*packed, min(self.held, HELD_ROUNDS), len(self.best)]

    @classmethod
    def from_json(cls, guarded: str | None, best: str, held: int, samples: int) -> AccuracyLevel:
        """Restore what `to_json` returned."""

        def right(packed: str) -> Right:
            return np.unpackbits(np.frombuffer(bytes.fromhex(packed), np.uint8), count=samples).astype(np.bool_)

        return cls(None if guarded is None else right(guarded), right(best), held)


class Canary:
    """Tries global models on labelled samples."""

    def __init__(self, samples: PublicSet, nets: Iterable[Model], max_drop: float) -> None:
        """samples: with labels.  nets: one model of each architecture; their weights are overwritten."""
        labels = np.full(len(samples), -1) if samples.labels is None else samples.labels
        support = [(each, int((labels == each).sum())) for each in np.unique(labels[labels >= 0])]
        self.classes = tuple(int(each) for each, count in support if count >= LEAST_SAMPLES)
        """The classes with at least LEAST_SAMPLES samples."""
        self._about = hashlib.sha256(samples.spec.sha256 + labels.tobytes()).hexdigest()
        self._labels, self._max_drop = labels, max_drop
        self._nets = Equipment(nets=lambda: nets, public=lambda: samples)
        self._levels: dict[tuple[bytes, int], AccuracyLevel] = {}
        """By layout, and class or ALL."""
        self._unknown: set[bytes] = set()
        """Layouts of global models without a net."""
        self._said = ""

    @property
    def young(self) -> tuple[int, ...]:
        """The classes that are not yet guarded; empty before the first round."""
        return tuple(sorted({key[1] for key, level in self._levels.items() if level.guarded is None}))

    def news(self) -> list[str]:
        """Return a line about the guarded classes, if it has changed."""
        before, self._said = self._said, self._standing()
        return [self._said] if self._said != before else []

    def _standing(self) -> str:
        unknown = ", ".join(layout.hex()[:8] for layout in sorted(self._unknown))
        untried = f"; it tries no model of layout {unknown}, because federation.nets has no such net" if unknown else ""
        if not self._levels:
            return f"the canary guards nothing{untried}"
        if not self.young:
            return f"the canary guards all {len(self.classes)} classes{untried}"
        named = ", ".join(str(each) for each in self.young[:MOST_NAMED])
        more = f" and {len(self.young) - MOST_NAMED} more" if len(self.young) > MOST_NAMED else ""
        return (
            f"the canary guards {len(self.classes) - len(self.young)} of {len(self.classes)} classes; not yet guarded, "
            f"because their accuracy has not held for {HELD_ROUNDS} rounds: {named}{more}{untried}"
        )

    def fault(self, method: Method[Any], before: Any, after: Any, at: ExchangeId) -> str:
        """Return the losses by class, or an empty text, which accepts the state.

        before, after: the method's states around a round; at: its first exchange.
        """
        if not self._levels:
            self._accept(self._rights(method, before, at))
        found, faults = self._rights(method, after, at), []
        for key, right in found.items():
            guarded = self._levels[key].guarded if key in self._levels else None
            if guarded is not None and is_worse(guarded, right, self._max_drop):
                name = "all classes" if key[1] == ALL else f"class {key[1]}"
                faults.append(f"{name} {guarded.mean():.0%} -> {right.mean():.0%}")
        if faults:
            return (
                f"held back everywhere, devices continue from the last state: on the canary samples {', '.join(faults)}"
            )
        self._accept(found)
        return ""

    def _accept(self, found: dict[tuple[bytes, int], Right]) -> None:
        for key, right in found.items():
            level = self._levels.setdefault(key, AccuracyLevel(None, right, -1))
            fell, rose = is_worse(level.best, right, self._max_drop), is_worse(right, level.best, self._max_drop)
            level.held = 0 if fell or rose else level.held + 1
            if fell or right.mean() >= level.best.mean():
                level.best = right
            if level.held >= HELD_ROUNDS or key[1] == ALL:
                level.guarded = level.best

    def to_json(self) -> dict[str, Any]:
        """The levels as plain values for JSON, bound to the samples."""
        levels = [[layout.hex(), each, *level.to_json()] for (layout, each), level in self._levels.items()]
        return {"about": self._about, "levels": levels}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Continue from the levels that `to_json` returned; those of other samples or nets do not count."""
        kept = plain.get("levels", ()) if plain.get("about") == self._about else ()
        found = {(bytes.fromhex(layout), each): AccuracyLevel.from_json(*level) for layout, each, *level in kept}
        self._levels = {key: level for key, level in found.items() if key[0] in self._nets.by_layout}

    def _rights(self, method: Method[Any], state: Any, at: ExchangeId) -> dict[tuple[bytes, int], Right]:
        """Which samples of each class each global model classifies correctly; models without a net are left out."""
        found: dict[tuple[bytes, int], Right] = {}
        for payload in method.common(state, ExchangeId(at.round + 1, 0)).values():
            if isinstance(payload, Weights) and payload.layout not in self._nets.by_layout:
                self._unknown.add(payload.layout)
            elif isinstance(payload, Weights):
                rows = self._nets.logits(payload)  # (n, k)
                right = (rows.argmax(axis=1) == self._labels) & np.isfinite(rows).all(axis=1)
                found |= {(payload.layout, each): right[self._labels == each] for each in self.classes}
                found[payload.layout, ALL] = right[self._labels >= 0]
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
    nets, path = [*nets], folder / table.canary
    if not any(net.spec.layout for net in nets):
        raise UsageError(f"{where}.canary: no net of federation.nets takes shared weights, so nothing is tried")
    if not path.is_file():
        raise UsageError(f"{where}.canary: {path}: no such file")
    try:
        samples = public_for(path, nets[0].spec.preprocess)
    except UsageError as error:
        raise UsageError(f"{where}.canary: {error}") from None
    found = Canary(samples, nets, table.max_drop)
    if not found.classes:
        raise UsageError(f"{where}.canary: {table.canary} needs `labels`, with at least {LEAST_SAMPLES} of some class")
    for net in nets:
        _check_takes(net, samples, f"{where}.canary: {table.canary}")
    return found


def _check_takes(net: Model, samples: PublicSet, where: str) -> None:
    """Raise UsageError for samples that a net cannot take, and for a label that it does not have."""
    most = -1 if samples.labels is None else int(samples.labels.max())
    if most >= net.spec.classes:
        raise UsageError(f"{where}: label {most}, and {net.spec.name} has the classes 0 to {net.spec.classes - 1}")
    try:
        net.logits(net.spec.preprocess(samples.samples[:1]))
    except Exception as error:
        raise UsageError(f"{where}: {net.spec.name} cannot take its samples: {error_text(error)}") from error
