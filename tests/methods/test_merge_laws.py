"""Laws of every registered method: any order and split of the same uploads gives the same bits, and none is changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from method_specs import CLASSES, spec_of

from coordinator.methods.base import At, Contribution
from edge_sdk.errors import EmptyRound
from edge_sdk.protocol import keep
from edge_sdk.protocol.knowledge import ClassRows, LogitGradients, Payload, PublicLogits
from edge_sdk.protocol.wires import Slot, check_roles, expectation, load_registered, registered_names

METHODS = registered_names("coordinator.methods")
WIDTH = 3
SMALL = {"fedal": {"tau": 2, "public_batch": 2, "max_devices": 8}, "fedmd": {"public_batch": 2}}


def payload(slot: Slot, rng: np.random.Generator) -> Payload:
    """Any legal payload for a slot, numbers from 1e-12 to 1e3."""

    def values(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * 10.0 ** rng.integers(-12, 3, shape)).astype(np.float32)

    if slot.kind in (PublicLogits, LogitGradients):
        return slot.kind(values=values(slot.rows, CLASSES), batch=bytes(8))
    if slot.kind is ClassRows:
        classes = np.flatnonzero(rng.random(CLASSES) < 0.6).astype(np.int32)
        classes = classes if len(classes) else np.array([0], np.int32)
        counts = rng.integers(1, 100, len(classes)).astype(np.int32)
        return ClassRows(classes=classes, rows=values(len(classes), WIDTH + slot.extra_columns), counts=counts)
    raise NotImplementedError(f"say here how to make a {slot.kind.__name__}")


class Reduction:
    """A method's first exchange, and uploads for it."""

    def __init__(self, name: str, seed: int, devices: int) -> None:
        if name == "fedal":
            pytest.importorskip("torch")
        self.method: Any = load_registered("coordinator.methods", name)
        self.spec = spec_of(name, feature_dim=WIDTH, **SMALL.get(name, {}))
        self.state = self.method.init(self.spec)
        slots = self.method.contract.exchanges(self.method.contract.read(self.spec.params))[0].up
        rng = np.random.default_rng(seed)
        self.ups = [
            Contribution(number=n, samples=9, knowledge={role: payload(slot, rng) for role, slot in slots.items()})
            for n in rng.permutation(8)[:devices].tolist()
        ]
        for up in self.ups:
            check_roles(up.knowledge, slots, expectation(self.spec))

    def folded(self, ups: list[Contribution]) -> Any:
        aggregate = self.method.zero()
        for up in ups:
            aggregate = self.method.add(aggregate, up)
        return aggregate

    def finished(self, aggregate: Any) -> bytes:
        return keep.to_bytes(self.method.finish(self.spec, self.state, At(0, 0), aggregate))


@pytest.mark.parametrize("name", METHODS)
@settings(deadline=None, max_examples=20)  # a busy machine is no fault
@given(seed=st.integers(0, 2**32 - 1), devices=st.integers(1, 6), data=st.data())
def test_any_order_and_split_gives_the_same_bits(name: str, seed: int, devices: int, data: st.DataObject) -> None:
    law = Reduction(name, seed, devices)
    before = keep.to_bytes(law.state)
    straight = law.finished(law.folded(law.ups))
    mixed = data.draw(st.permutations(law.ups))
    cut = data.draw(st.integers(0, devices))
    left, right = law.folded(mixed[:cut]), law.folded(mixed[cut:])
    assert law.finished(law.method.merge(left, right)) == straight
    assert law.finished(law.method.merge(right, left)) == straight
    assert law.finished(law.method.merge(law.method.zero(), law.folded(mixed))) == straight
    again = law.method.add(law.folded(law.ups), law.ups[0])  # a device counts once
    assert law.finished(again) == straight
    assert keep.to_bytes(law.state) == before


@pytest.mark.parametrize("name", [name for name in METHODS if name != "local"])
def test_an_empty_round_is_never_a_guess(name: str) -> None:
    law = Reduction(name, 0, 1)
    with pytest.raises(EmptyRound):
        law.finished(law.method.zero())


@pytest.mark.parametrize("name", METHODS)
def test_what_goes_down_is_what_the_contract_allows(name: str) -> None:
    """Before the first upload, after it, and in the closing exchange."""
    law = Reduction(name, 3, 4)
    after = law.method.finish(law.spec, law.state, At(0, 0), law.folded(law.ups))
    params = law.method.contract.read(law.spec.params)
    rows, closing = law.method.contract.exchanges(params), law.method.contract.closing(params)
    last = At(law.spec.rounds, 0)
    nexts = (At(0, 1), rows[1]) if len(rows) > 1 else (At(1, 0), rows[0])
    for state, at, row in ((law.state, At(0, 0), rows[0]), (after, *nexts), (after, last, closing)):
        for number in range(8):
            common, personal = law.method.common(state, at), law.method.personal(state, at, number)
            for given_roles, wanted in ((common, False), (personal, True)):
                slots = {role: slot for role, slot in row.down.items() if slot.personal is wanted}
                check_roles(given_roles, slots, expectation(law.spec))
