"""The laws of a coordinator method's reduction, as a check that any method can be put to.

`merge` is commutative and associative, `zero` is its identity, `add` and `merge` leave what they were given as it was,
and any order and any split of the same uploads leads `finish` to the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytest

from coordinator.serving.equipment import Equipment
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import storage
from edge_sdk.protocol.knowledge import (
    ClassRows,
    HyperKnowledge,
    LogitGradients,
    Payload,
    PublicFeatures,
    PublicLogits,
    Scalars,
    Slot,
    Weights,
)
from edge_sdk.protocol.low_rank import LowRank, as_matrix, joined
from edge_sdk.protocol.messages import FederationSpec, PublicSetSpec
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.reductions import Contribution

CLASSES, WIDTH = 5, 3
BATCH = bytes(8)
NET = NumpyModel(CLASSES, (1, 3, 3), seed=0)
"""The architecture that all weights here are of, and what coordinators that run it are given."""
EQUIPMENT = Equipment(nets=lambda: [NET], public=lambda: PublicSet(np.eye(9, dtype=np.float32).reshape(9, 3, 3)))


def check_merge_laws(
    method: Method[Any], spec: FederationSpec, at: ExchangeId, ups: Sequence[Contribution], seed: int = 0
) -> None:
    """Raise AssertionError that names the law which `method` breaks on these uploads, of at least two devices."""
    law = _Laws(method, spec, at, np.random.default_rng(seed))
    law.identity(ups)
    law.untouched(ups)
    law.commutative(ups)
    law.associative(ups)
    for _ in range(4):
        law.any_order_and_split(ups)


class _Laws:
    def __init__(self, method: Method[Any], spec: FederationSpec, at: ExchangeId, rng: np.random.Generator) -> None:
        self.method, self.spec, self.at, self.rng = method, spec, at, rng

    def of(self, ups: Sequence[Contribution]) -> Any:
        """These uploads, one after the other."""
        return reduce(self.method.add, ups, self.method.zero())

    def bits(self, aggregate: Any) -> bytes:
        state = self.method.begin(self.spec)
        return storage.serialise(self.method.finish(self.spec, state, self.at, aggregate))

    def parts(self, ups: Sequence[Contribution], count: int) -> list[list[Contribution]]:
        """The uploads in any order, cut into parts, some of them perhaps empty."""
        order = self.rng.permutation(len(ups))
        cuts = np.sort(self.rng.integers(0, len(ups) + 1, count - 1))
        return [[ups[i] for i in part] for part in np.split(order, cuts)]

    def identity(self, ups: Sequence[Contribution]) -> None:
        zero, merge = self.method.zero, self.method.merge
        expected = self.bits(self.of(ups))
        assert self.bits(merge(zero(), self.of(ups))) == expected, "zero is no left identity of merge"
        assert self.bits(merge(self.of(ups), zero())) == expected, "zero is no right identity of merge"

    def commutative(self, ups: Sequence[Contribution]) -> None:
        a, b = self.of(ups[::2]), self.of(ups[1::2])
        assert self.bits(self.method.merge(a, b)) == self.bits(self.method.merge(b, a)), "merge is not commutative"

    def associative(self, ups: Sequence[Contribution]) -> None:
        merge = self.method.merge
        a, b, c = (self.of(part) for part in self.parts(ups, 3))
        assert self.bits(merge(a, merge(b, c))) == self.bits(merge(merge(a, b), c)), "merge is not associative"

    def untouched(self, ups: Sequence[Contribution]) -> None:
        method, first, rest = self.method, self.of(ups[:-1]), self.of(ups[-1:])
        before = self.bits(first)
        method.add(first, ups[-1])
        assert self.bits(first) == before, "add changed the aggregate that it was given"
        method.merge(first, rest)
        method.merge(rest, first)
        assert self.bits(first) == before, "merge changed an aggregate that it was given"

    def any_order_and_split(self, ups: Sequence[Contribution]) -> None:
        expected = self.bits(self.of(ups))
        shuffled = [ups[i] for i in self.rng.permutation(len(ups))]
        assert self.bits(self.of(shuffled)) == expected, "the order of arrival changes the result"
        partial = [self.of(part) for part in self.parts(ups, 4)]
        assert self.bits(reduce(self.method.merge, partial)) == expected, "the split into partial sums changes it"


# -- uploads for any method -----------------------------------------------------------------------------------------


def spec_of(method: Method[Any] | type[Method[Any]], **params: Any) -> FederationSpec:
    """A federation of a method; parameters that it does not have are left out."""
    known = {field.name for field in dataclasses.fields(method.params_type)}
    made = method.under({key: value for key, value in params.items() if key in known})
    return FederationSpec(
        federation="laws",
        method=made.name,
        params=made.table,
        contract=made.digest,
        classes=CLASSES,
        rounds=1,
        public=PublicSetSpec(sha256=bytes(32), count=100),
        feature_dim=WIDTH,
    )


def uploads(spec: FederationSpec, at: ExchangeId, devices: int, seed: int) -> list[Contribution]:
    """One legal upload from each device, with numbers that no order of floating-point sums treats alike."""
    rng = np.random.default_rng(seed)
    slots = method_of(spec).exchanges[at.exchange].up
    numbers = rng.permutation(8)[:devices]
    return [
        Contribution(
            number=int(number),
            samples=int(rng.integers(1, 1000)),
            knowledge={role: _payload(slot, rng, i) for role, slot in slots.items()},
        )
        for i, number in enumerate(numbers)
    ]


def awkward(rng: np.random.Generator, shape: tuple[int, ...], device: int) -> np.ndarray:
    """f4 of magnitudes from 1e-12 to 1e3; in the first row, what the first two devices say cancels out exactly."""
    values = rng.choice([-1, 1], shape) * 10 ** rng.uniform(-12, 3, shape)
    if device < 2:
        values[0] = (1e3, -1e3)[device]
    else:
        values[0] = 10 ** rng.uniform(-12, -9, shape[1:])
    return values.astype(np.float32)


def _payload(slot: Slot, rng: np.random.Generator, device: int) -> Payload:
    if slot.kind is PublicFeatures:
        return PublicFeatures(values=awkward(rng, (slot.rows, WIDTH), device), batch=BATCH)
    if slot.kind is Scalars:
        return Scalars(values=awkward(rng, (slot.numbers,), device))
    if slot.kind is LowRank:
        matrices = [as_matrix(shape) for shape in NET.spec.shapes]
        return joined(matrices, [(0, awkward(rng, (a * b,), device)) for a, b in matrices], NET.spec.layout)
    if slot.kind not in (PublicLogits, LogitGradients, Weights, ClassRows, HyperKnowledge):
        pytest.skip(f"{slot.kind.__name__} is a payload of another package: nothing here makes one up")
    if slot.kind is PublicLogits:
        return PublicLogits(values=awkward(rng, (slot.rows, CLASSES), device), batch=BATCH)
    if slot.kind is LogitGradients:
        return LogitGradients(values=awkward(rng, (slot.rows, CLASSES), device), batch=BATCH)
    if slot.kind is Weights:
        values = awkward(rng, (NET.spec.parameters,), device)
        return Weights(values=values, layout=NET.spec.layout, count=int(rng.integers(1, 100)))
    classes = np.arange(2, dtype=np.int32)
    counts = rng.integers(1, 100, 2).astype(np.int32)
    width = CLASSES * (WIDTH + 1) if slot.class_times else WIDTH + slot.extra_columns
    rows = awkward(rng, (2, width), device)
    if slot.probabilities:
        rows = rng.dirichlet(np.ones(CLASSES), 2).astype(np.float32)
    if slot.kind is ClassRows:
        return ClassRows(classes=classes, rows=rows, counts=counts)
    soft = rng.dirichlet(np.ones(CLASSES), 2).astype(np.float32)
    return HyperKnowledge(classes=classes, features=rows, soft=soft, counts=counts)
