"""Aggregates merge exactly: whatever the order and the split, the same bits; and what does not is found out."""

from __future__ import annotations

import numpy as np
import pytest
from laws import check_merge_laws, spec_of, uploads

from edge_sdk.methods.fedmd import FedMD, State
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import PublicLogits
from edge_sdk.reductions import Contribution
from edge_sdk.reductions.bag import Bag, mean_in_order

SMALL = {"public_batch": 4}

# -- methods that break a law, and one that keeps them all without a bag --------------------------------------------


class Mean(FedMD):
    """FedMD with another way to sum."""

    def finish(self, _spec, _state, _at, aggregate):
        total, count = aggregate
        mean = (np.asarray(total) / count).astype(np.float32)
        return State(PublicLogits(values=mean, batch=bytes(8), contributors=count))


class RunningSum(Mean):
    """What one writes first: adds floats as they come."""

    dtype: type = np.float32

    def zero(self):
        return np.zeros((4, 5), self.dtype), 0

    def add(self, aggregate, contribution):
        return aggregate[0] + contribution.knowledge["logits"].values.astype(self.dtype), aggregate[1] + 1

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class LongRunningSum(RunningSum):
    """The same in double precision, which only hides it."""

    dtype = np.float64


class GridSum(RunningSum):
    """Integers on a grid of 2**-60: any order gives the same sum."""

    def zero(self):
        return np.zeros((4, 5), object), 0

    def add(self, aggregate, contribution):
        grid = np.vectorize(lambda value: round(float(value) * 2**60), otypes=[object])
        return aggregate[0] + grid(contribution.knowledge["logits"].values), aggregate[1] + 1

    def finish(self, spec, state, at, aggregate):
        return super().finish(spec, state, at, (aggregate[0].astype(np.float64) / 2**60, aggregate[1]))


class SumInPlace(GridSum):
    """Saves a copy, and spoils the aggregate that it was given."""

    def add(self, aggregate, contribution):
        total, count = super().add(aggregate, contribution)
        aggregate[0][...] = total
        return aggregate[0], count


class MergeInPlace(GridSum):
    """The same in merge."""

    def merge(self, a, b):
        a[0][...] += b[0]
        return a[0], a[1] + b[1]


class LeftOnly(GridSum):
    """Forgets what it merges with."""

    def merge(self, a, b):
        return a if a[1] else b


class RestlessZero(GridSum):
    """Counts a device that is not there."""

    def zero(self):
        return np.zeros((4, 5), object), 1


class InOrderOfArrival(FedMD):
    """Keeps uploads apart, and sums them as they came."""

    def zero(self):
        return ()

    def add(self, aggregate, contribution):
        return (*aggregate, contribution)

    def merge(self, a, b):
        return a + b

    def finish(self, _spec, _state, _at, aggregate):
        mean = mean_in_order(up.knowledge["logits"].values for up in aggregate)
        return State(PublicLogits(values=mean, batch=bytes(8), contributors=len(aggregate)))


SPEC = spec_of(FedMD, **SMALL)


def check(method, devices: int = 4) -> None:
    for seed in range(3):
        check_merge_laws(method, SPEC, ExchangeId(0, 0), uploads(SPEC, ExchangeId(0, 0), devices, seed), seed)


@pytest.mark.parametrize(
    ("method", "broken"),
    [
        (RunningSum(), "merge is not associative|order of arrival|split|commutative"),
        (LongRunningSum(), "merge is not associative|order of arrival|split|commutative"),
        (InOrderOfArrival(), "merge is not commutative"),
        (LeftOnly(), "merge is not commutative"),
        (RestlessZero(), "zero is no left identity"),
        (SumInPlace(), "add changed the aggregate that it was given"),
        (MergeInPlace(), "merge changed an aggregate that it was given"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, FedMD) else "",
)
def test_a_method_that_breaks_a_law_is_refused(method, broken):
    with pytest.raises(AssertionError, match=broken):
        check(method)


def test_sums_on_a_grid_are_as_good_as_a_bag():
    check(GridSum())


@pytest.mark.parametrize("devices", [3, 4, 6])
def test_running_sums_are_refused_with_any_number_of_devices(devices):
    """With two there is only one order: floating-point addition does commute."""
    for method in (RunningSum(), LongRunningSum()):
        with pytest.raises(AssertionError):
            check(method, devices)


# -- the bag and the mean -------------------------------------------------------------------------------------------


def contribution(number: int, samples: int = 1) -> Contribution:
    return Contribution(number=number, samples=samples, knowledge={})


def test_a_bag_is_read_in_number_order():
    bag = Bag()
    for number in (7, 0, 3):
        bag = bag.add(contribution(number))
    assert [each.number for each in bag] == [0, 3, 7]
    assert len(bag) == 3
    assert len(Bag()) == 0


def test_the_first_upload_of_a_device_wins():
    bag = Bag().add(contribution(1, samples=10)).add(contribution(1, samples=20))
    assert [each.samples for each in bag] == [10]


def test_a_bag_does_not_change():
    empty = Bag()
    one = empty.add(contribution(1))
    two = one.merge(Bag().add(contribution(2)))
    assert (len(empty), len(one), len(two)) == (0, 1, 2)
    with pytest.raises(TypeError):
        one.uploads[3] = contribution(3)


def test_the_mean_of_a_worked_example():
    mean = mean_in_order([np.array([1, 2], np.float32), np.array([3, 5], np.float16), np.array([2, 2], np.float32)])
    assert mean.dtype == np.float32
    assert mean.tolist() == [2.0, 3.0]


def test_the_mean_is_summed_in_double_precision():
    parts = [np.array([1e8], np.float32), np.array([1.0], np.float32), np.array([-1e8], np.float32)]
    assert mean_in_order(parts).tolist() == [np.float32(1 / 3)]  # in single precision the 1 is lost


def test_the_mean_of_nothing():
    with pytest.raises(ValueError, match="no arrays"):
        mean_in_order([])
