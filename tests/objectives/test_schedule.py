"""The learning rate of each round, against torch's schedulers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edge_sdk.methods.contract.job import Job
from edge_sdk.objectives import Schedule
from edge_sdk.protocol.messages import FederationSpec, TrainSpec

ROUNDS = 12
CONSTANT = Schedule(first=0.4)
STEP = Schedule(kind="step", first=0.4, factor=0.5, every_rounds=5)
EXPONENTIAL = Schedule(kind="exponential", first=0.4, factor=0.9)
COSINE = Schedule(kind="cosine", first=0.4, rounds=ROUNDS, floor=0.1)


def torchs_rates(make: Callable[[Any], Any]) -> list[float]:
    torch = pytest.importorskip("torch")
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    scheduler, found = make(optimiser), []
    for _ in range(ROUNDS):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return found


@pytest.mark.torch
@pytest.mark.parametrize(
    ("schedule", "name", "settings"),
    [
        (CONSTANT, "ConstantLR", {"factor": 1.0}),
        (STEP, "StepLR", {"step_size": 5, "gamma": 0.5}),
        (EXPONENTIAL, "ExponentialLR", {"gamma": 0.9}),
        (COSINE, "CosineAnnealingLR", {"T_max": ROUNDS, "eta_min": 0.1}),
    ],
)
def test_rates_are_those_of_torchs_scheduler(schedule: Schedule, name: str, settings: dict[str, Any]) -> None:
    schedulers = pytest.importorskip("torch.optim.lr_scheduler")
    expected = torchs_rates(lambda optimiser: getattr(schedulers, name)(optimiser, **settings))
    assert [schedule.rate(round_) for round_ in range(ROUNDS)] == pytest.approx(expected, rel=1e-12)


def test_a_floor_holds_every_schedule() -> None:
    low = Schedule(kind="exponential", first=0.4, factor=0.1, floor=0.01)
    assert [low.rate(round_) for round_ in (0, 1, 2, 500)] == pytest.approx([0.4, 0.04, 0.01, 0.01])
    assert Schedule(kind="step", first=0.4, factor=0.0, every_rounds=3, floor=0.01).rate(3) == 0.01
    assert COSINE.rate(ROUNDS) == COSINE.rate(10 * ROUNDS) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("schedule", "rounds", "zero"),
    [
        (STEP, 10**6, 745),  # 0.4 / 2^149 is below the least number in f4
        (Schedule(kind="step", first=0.4, factor=0.0, every_rounds=3), 4, 3),
        (Schedule(kind="step", first=0.4, factor=0.0, every_rounds=3), 3, None),
        (Schedule(kind="cosine", first=0.4, rounds=10), 11, 10),
        (Schedule(kind="cosine", first=0.4, rounds=10), 10, None),
        (CONSTANT, 10**9, None),
    ],
)
def test_the_first_round_without_a_rate(schedule: Schedule, rounds: int, zero: int | None) -> None:
    assert schedule.first_zero(rounds) == zero


def test_a_device_trains_at_the_rate_of_its_round() -> None:
    train = TrainSpec(learning_rate=0.4, schedule="cosine", weight_decay=0.01, clip_norm=2.0, beta1=0.5)
    spec = FederationSpec(federation="f", method="local", contract=bytes(16), classes=2, rounds=4, train=train)
    whole = Schedule(kind="cosine", first=0.4, rounds=4)
    for round_ in range(5):
        job = Job(spec=spec, number=0, round=round_, exchange=0, closing=round_ == 4, samples=8, learns=True)
        assert job.optim.learning_rate == whole.rate(min(round_, 3))
        assert (job.optim.weight_decay, job.optim.clip_norm, job.optim.beta1) == (0.01, 2.0, 0.5)
