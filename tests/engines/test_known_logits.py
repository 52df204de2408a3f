"""Logits that devices share are those of their own samples, also where arrays come and go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge_sdk.arrays import Floats
from edge_sim.engines.base import KnownLogits


class Bench:
    """A workbench whose logits are sums, and which counts how often they are computed."""

    def __init__(self) -> None:
        self.computed = 0
        self.predictor = SimpleNamespace(logits=self._sums)

    def _sums(self, x: Floats) -> Floats:
        self.computed += 1
        return x.reshape(len(x), -1).sum(1)

    def count_inference(self, samples: int) -> None:
        """Not metered here."""


@pytest.fixture
def bench() -> Any:
    return Bench()


def test_the_address_of_a_freed_array_brings_no_logits_of_other_samples(bench: Any) -> None:
    known = KnownLogits()
    addresses = set()
    for number in range(200):
        x = np.full((3, 1, 2, 2), number, np.float32)
        addresses.add(x.__array_interface__["data"][0])
        assert known.sharing(bench, "as it is").logits(x).tolist() == [4.0 * number] * 3
    assert len(addresses) < 200  # else nothing was shown


def test_slices_of_one_array_are_computed_once_for_each_state(bench: Any) -> None:
    known, test = KnownLogits(), np.arange(24, dtype=np.float32).reshape(6, 1, 2, 2)
    for _device in range(5):
        for part in (slice(0, 4), slice(4, 6)):
            assert known.sharing(bench, 1).logits(test[part]).tolist() == test[part].sum((1, 2, 3)).tolist()
    assert bench.computed == 2
    known.sharing(bench, 2).logits(test[:4])
    assert bench.computed == 3
