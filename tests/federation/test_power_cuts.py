"""Devices and the coordinator lose their power at any moment, start again, and nothing comes out differently."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import fleets
import numpy as np
import pytest
from seeds import SEEDS, seeded

from edge_sdk.protocol.messages import Assign, Receipt, Upload
from edge_sdk.transport.memory.hub import Faults

METHODS = ["fedmd", pytest.param("fedal", marks=pytest.mark.torch)]
EVERY_METHOD = [*METHODS, "fedproto", "fedssa"]
CASES = [*seeded(SEEDS // 2, "fedmd"), *seeded(SEEDS // 5, "fedal", marks=(pytest.mark.torch,))]
LOSSY = Faults(drop=0.2, duplicate=0.2, delay=0.3, delay_s=3.0)
DARK_S = (0.0, 0.001, 0.02, 1.0, 20.0)


@pytest.fixture(scope="module")
def clean(pictures: Path) -> dict[str, fleets.Run]:
    return {
        method: fleets.Run(fleets.built(pictures, method)).finished()
        for method in ("fedmd", "fedal", "fedproto", "fedssa")
    }


def same(run: fleets.Run, clean: fleets.Run) -> None:
    assert run.result.completed, run.result.reason
    assert run.coordinator_bytes == clean.coordinator_bytes
    assert run.model_bytes == clean.model_bytes
    accuracies = [[device.accuracy for device in each.result.devices] for each in (run, clean)]
    assert accuracies[0] == accuracies[1]


@pytest.mark.parametrize(("method", "seed"), CASES)
def test_devices_at_random_moments(pictures: Path, clean: dict[str, fleets.Run], method: str, seed: int) -> None:
    rng = np.random.default_rng([seed, 1])
    run = fleets.Run(fleets.built(pictures, method), faults=LOSSY if seed % 2 else None, seed=seed)
    span_s = 60.0 if seed % 2 else clean[method].clock.now_s
    for device in rng.choice(list(run.begun), size=3):
        run.power_cut(device, at_s=rng.uniform(0, span_s), for_s=float(rng.choice(DARK_S)))
    same(run.finished(), clean[method])


@pytest.mark.parametrize(("method", "seed"), CASES)
def test_the_coordinator_at_random_moments(
    pictures: Path, clean: dict[str, fleets.Run], method: str, seed: int
) -> None:
    rng = np.random.default_rng([seed, 2])
    run = fleets.Run(fleets.built(pictures, method))
    for _ in range(3):
        run.power_cut("coordinator", at_s=rng.uniform(0, clean[method].clock.now_s), for_s=float(rng.choice(DARK_S)))
    same(run.finished(), clean[method])
    assert run.begun == clean[method].begun  # nobody was asked to work again


@pytest.mark.parametrize("seed", seeded(SEEDS // 6))
@pytest.mark.parametrize("method", EVERY_METHOD)
def test_everything_at_once(pictures: Path, clean: dict[str, fleets.Run], method: str, seed: int) -> None:
    rng = np.random.default_rng([seed, 3])
    run = fleets.Run(fleets.built(pictures, method), faults=LOSSY, seed=seed)
    for who in rng.choice([*run.begun, "coordinator", "coordinator"], size=6):
        run.power_cut(who, at_s=rng.uniform(0, 60), for_s=float(rng.choice(DARK_S)))
    same(run.finished(), clean[method])


def test_a_blackout_of_the_whole_building(pictures: Path, clean: dict[str, fleets.Run]) -> None:
    run = fleets.Run(fleets.built(pictures))
    at_s = clean["fedmd"].clock.now_s / 2
    for who in (*run.begun, "coordinator"):
        run.power_cut(who, at_s=at_s, for_s=30.0)
    same(run.finished(), clean["fedmd"])


@pytest.mark.parametrize("moment", ["while it computes", "before the receipt", "after the receipt"])
def test_a_device_in_the_last_exchange(pictures: Path, clean: dict[str, fleets.Run], moment: str) -> None:
    run = fleets.Run(fleets.built(pictures))
    for device in run.begun:
        run.slow_down(device, 10.0)  # an exchange takes 10 s and a little for the link: the last one begins after 30 s
    run.power_cut(
        "device-02",
        at_s={"while it computes": 35.0, "before the receipt": 40.02, "after the receipt": 40.1}[moment],
        for_s=1.0,
    )
    same(run.finished(), clean["fedmd"])


def test_the_coordinator_in_the_last_exchange_while_some_are_done_and_gone(
    pictures: Path, clean: dict[str, fleets.Run]
) -> None:
    """Those who have their closing receipt do not come back; the others must not be kept waiting for them."""
    run = fleets.Run(fleets.built(pictures))
    for i, device in enumerate(run.begun):
        run.slow_down(device, 10.0 + i)  # exchanges take 15 s; in the last one uploads come after 55, 56 ... 60 s
    run.power_cut("coordinator", at_s=57.5, for_s=1.0)
    same(run.finished(), clean["fedmd"])
    assert run.begun == clean["fedmd"].begun


def test_an_upload_that_was_receipted_is_not_asked_for_again(pictures: Path) -> None:
    """The coordinator comes back in the midst of an exchange that three of six have answered."""
    run = fleets.Run(fleets.built(pictures))
    for i, device in enumerate(run.begun):
        run.slow_down(device, 10.0 + 10 * i)
    sent = run.tap()
    run.power_cut("coordinator", at_s=35.0, for_s=1.0)
    run.clock.at(34.9, lambda: sent.append(None))  # type: ignore[arg-type]  # a mark
    run.finished()
    before, after = sent[: sent.index(None)], sent[sent.index(None) :]
    receipted = {m.device for m in before if isinstance(m, Receipt) and (m.round, m.verdict) == (0, "accepted")}
    assert receipted == {"device-00", "device-01", "device-02"}
    asked = {m.device for m in after if isinstance(m, Assign) and m.round == 0}
    assert asked == {"device-03", "device-04", "device-05"}
    uploads = Counter(m.device for m in after if isinstance(m, Upload) and m.round == 0)
    assert set(uploads) == asked


@pytest.mark.parametrize("quorum", [4, 6])
def test_a_partial_exchange_closes_with_the_same_devices_after_a_restart(pictures: Path, quorum: int) -> None:
    """One device is away and rejoins just as the coordinator does: it must not slip into what was closed without it."""
    run = fleets.Run(fleets.built(pictures, quorum=quorum, deadline_s=20.0))
    sent = run.tap()
    for device in run.begun:
        run.slow_down(device, 2.0)
    run.power_cut("device-05", at_s=1.0, for_s=22.5)
    run.power_cut("coordinator", at_s=22.3, for_s=1.0)
    run.finished()
    assert run.result.completed
    assert consistent(sent)


def consistent(sent: list) -> bool:
    """Whether each device was told one and the same thing of each exchange, however often."""
    told: dict[tuple[str, int, int], tuple[object, object]] = {}
    return all(
        told.setdefault((m.device, m.round, m.exchange), (m.common, m.personal)) == (m.common, m.personal)
        for m in sent
        if isinstance(m, Assign)
    )


@pytest.mark.parametrize("seed", seeded(SEEDS // 3))
@pytest.mark.parametrize("method", METHODS)
def test_any_run_ends_and_contradicts_itself_nowhere(pictures: Path, method: str, seed: int) -> None:
    """Short deadlines, small quorums, a bad network, power cuts: the result may differ, but there is one."""
    rng = np.random.default_rng([seed, 4])
    policy = {
        "quorum": int(rng.integers(2, 7)),
        "deadline_s": float(rng.choice([0.05, 1, 8, 60])),
        "retry_s": float(rng.choice([0.01, 2, 5])),
        "join_grace_s": float(rng.choice([0.01, 5])),
    }
    faults = Faults(
        drop=rng.choice([0.0, 0.2]),
        duplicate=0.2,
        delay=0.3,
        delay_s=float(rng.choice([0.05, 3.0])),
        disconnect=rng.choice([0.0, 0.01, 0.05]),
        disconnect_s=float(rng.choice([0.1, 10.0])),
    )
    run = fleets.Run(fleets.built(pictures, method, **policy), faults=faults, seed=seed)
    sent = run.tap()
    span_s = float(rng.choice([0.1, 5.0, 60.0]))
    for who in rng.choice([*run.begun, "coordinator", "coordinator", "coordinator"], size=rng.integers(0, 8)):
        run.power_cut(who, at_s=rng.uniform(0, span_s), for_s=float(rng.choice([*DARK_S, 100.0])))
    run.finished()
    assert run.result.completed or " needed, after " in run.result.reason
    assert consistent(sent)
