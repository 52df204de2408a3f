"""Which samples, seeds and first weights each device has in each round: golden numbers, so that none can be another's."""

from __future__ import annotations

from pathlib import Path

import draws
import fleets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.data import LocalData, Samples
from edge_sdk.device.training.handlers import batches_of_step
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.methods.contract.requests import Private
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.protocol.messages import FederationSpec, TrainSpec
from edge_sim.engines.base import job_at

BATCHES = {
    (0, 0): [[8, 5, 6, 1], [9, 3, 4, 2], [7, 0, 3, 2]],
    (0, 1): [[5, 0, 7, 8], [9, 4, 6, 3], [1, 2, 6, 2]],
    (1, 0): [[4, 7, 2, 5], [8, 1, 0, 3], [9, 6, 6, 3]],
    (1, 1): [[1, 9, 2, 8], [6, 0, 3, 4], [5, 7, 0, 3]],
    (2, 0): [[4, 5, 0, 3], [7, 9, 2, 6], [1, 8, 4, 0]],
    (2, 1): [[0, 2, 7, 3], [6, 8, 9, 1], [4, 5, 6, 4]],
}
"""(number, round) -> three batches of four of ten private samples, under seed 11."""
STEP_SEEDS = {
    (0, 0, 0, 0): 1548154769,
    (1, 0, 0, 0): 242069119,
    (0, 1, 0, 0): 2049484534,
    (0, 0, 1, 0): 373891365,
    (0, 0, 0, 1): 1388763434,
}
"""(number, round, exchange, step) -> the seed of what is random within the step, under seed 11."""
MODEL_SEEDS = [1141182808, 2065373651, 2096435516]
"""The seeds of the first weights of devices 0, 1 and 2, under seed 7."""


def spec_of(seed: int = 11, batch_size: int = 4) -> FederationSpec:
    train = TrainSpec(batch_size=batch_size)
    return FederationSpec(
        federation="f", method="local", contract=bytes(16), classes=2, rounds=4, seed=seed, train=train
    )


@pytest.mark.parametrize("place", BATCHES)
def test_batches_of_each_device_and_round(place: tuple[int, int]) -> None:
    number, round_ = place
    for exchange in (0, 1):
        drawn = job_at(spec_of(), number, round_, exchange, 10).private_batches(3).indices
        assert drawn.tolist() == BATCHES[place]
    again = draws.private_batches(seed=11, number=number, round_=round_, samples=10, size=4, steps=3)
    assert again.tolist() == BATCHES[place]


@given(
    seed=st.integers(0, 2**32), place=st.tuples(*[st.integers(0, 99)] * 2), shape=st.tuples(*[st.integers(1, 12)] * 3)
)
def test_batches_are_those_of_the_contract(seed: int, place: tuple[int, int], shape: tuple[int, int, int]) -> None:
    (number, round_), (samples, size, steps) = place, shape
    drawn = job_at(spec_of(seed, size), number, round_, 0, samples).private_batches(steps).indices
    expected = draws.private_batches(seed=seed, number=number, round_=round_, samples=samples, size=size, steps=steps)
    assert drawn.tolist() == expected.tolist()


@pytest.mark.parametrize("place", STEP_SEEDS)
def test_the_seed_of_each_step(place: tuple[int, int, int, int]) -> None:
    number, round_, exchange, step = place
    x = np.zeros((10, 2, 2), np.uint8)
    bench = Workbench(NumpyModel(2, (1, 2, 2), seed=0), LocalData(train=Samples(x, np.arange(10) % 2)))
    source = Private(np.arange(8).reshape(2, 4))
    found = batches_of_step(bench, source, job_at(spec_of(), number, round_, exchange, 10), step)
    assert found.seed == STEP_SEEDS[place]
    assert draws.step_seed(seed=11, number=number, round_=round_, exchange=exchange, step=step) == STEP_SEEDS[place]


def test_devices_begin_equal_unless_they_are_to_begin_with_their_own(pictures: Path) -> None:
    fleet = fleets.built(pictures, devices=3, start="own")
    assert [device.kit.seed for device in fleet.devices] == MODEL_SEEDS
    assert len({device.kit.model(None).state_bytes() for device in fleet.devices}) == 3
    equal = fleets.built(pictures, devices=3)
    assert {device.kit.seed for device in equal.devices} == {MODEL_SEEDS[0]}


def test_all_devices_have_secrets_of_their_own(pictures: Path) -> None:
    fleet = fleets.built(pictures, devices=3)
    assert len({device.kit.secret for device in fleet.devices}) == 3
