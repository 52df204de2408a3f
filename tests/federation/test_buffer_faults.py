"""Buffers under power cuts, lost and repeated messages: every upload counts once, and as its age says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from interrupting import stop_after
from seeds import SEEDS, seeded
from test_buffers import METHODS, buffered_tables, fleet

from coordinator.ledger import Ledger
from coordinator.record.observer import RunObserver
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Limits
from edge_sdk.protocol.messages import Upload
from edge_sdk.transport.memory.hub import Faults
from edge_sim.runs import runner

LOSSY = Faults(drop=0.2, duplicate=0.2, delay=0.3, delay_s=3.0)
DARK_S = (0.0, 0.001, 0.02, 1.0, 20.0)
ANY_SIZE = Limits(2**30, 2**30)


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> dict[int, dict[str, Upload]]:
    """The uploads that each version was aggregated from, by device, as the ledger has them."""
    found: dict[int, dict[str, Upload]] = {}
    close = Ledger.close_exchange

    def closed(self: Ledger, place: ExchangeId, contributors: tuple[str, ...], *, now: bool) -> None:
        frames = self.uploads(place)
        found[place.round] = {each: codec.decode(frames[each], ANY_SIZE).message for each in contributors}  # type: ignore[misc]
        close(self, place, contributors, now=now)

    monkeypatch.setattr(Ledger, "close_exchange", closed)
    return found


def check_aggregated(run: fleets.Run, buffers: dict[int, dict[str, Upload]]) -> None:
    """Recompute FedAvg's versions from the uploads by the paper's formula, in f8 and in any order."""
    counted = Counter((device, up.round) for ups in buffers.values() for device, up in ups.items())
    assert set(counted.values()) == {1}
    versions: list[Any] = [None]
    for now in range(len(buffers)):
        ups = buffers[now]
        weights = {device: up.knowledge["weights"] for device, up in ups.items()}
        if now == 0:
            versions.append(np.asarray(weights[min(ups)].values, np.float64))  # type: ignore[attr-defined]
            continue
        total, moved = 0, 0.0
        for device, up in ups.items():
            known: Any = weights[device]
            age = now - up.round
            moved = moved + known.count / np.sqrt(1 + age) * (known.values.astype(np.float64) - versions[up.round])
            total += known.count
        versions.append(versions[now] + moved / total)
    np.testing.assert_allclose(run.server.method_state.weights.values, versions[-1], atol=1e-5)


def test_versions_are_those_of_the_paper(pictures: Path, buffers: dict[int, dict[str, Upload]]) -> None:
    run = fleets.Run(fleet(pictures, start="own")).finished()
    assert any(up.round < now for now, ups in buffers.items() for up in ups.values())
    check_aggregated(run, buffers)


@pytest.mark.parametrize("seed", seeded(SEEDS // 5))
def test_power_cuts_of_the_coordinator(pictures: Path, buffers: dict[int, dict[str, Upload]], seed: int) -> None:
    rng = np.random.default_rng([seed, 1])
    run = fleets.Run(fleet(pictures, start="own"))
    for _ in range(3):
        run.power_cut("coordinator", at_s=rng.uniform(0, 0.3), for_s=float(rng.choice(DARK_S)))
    run.finished()
    assert run.result.completed, run.result.reason
    check_aggregated(run, buffers)


def test_an_interrupted_simulation_is_resumed_and_counts_each_upload_once(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffers: dict[int, dict[str, Upload]]
) -> None:
    tables, noted = buffered_tables(pictures), list[str]()
    with monkeypatch.context() as patch:
        stop_after(patch, 140, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            runner.run(tables, out=tmp_path / "run")
    watch = RunObserver()
    watch.noted = noted.append  # type: ignore[method-assign]  # to listen
    assert runner.run(tables, out=tmp_path / "run", resume=True, observer=lambda _part: watch).completed
    counted = Counter((device, up.round) for ups in buffers.values() for device, up in ups.items())
    assert set(counted.values()) == {1}
    assert any(line.startswith("resumed with a buffer: devices that computed begin again") for line in noted)


@pytest.mark.parametrize("seed", seeded(SEEDS // 5))
def test_everything_at_once(pictures: Path, buffers: dict[int, dict[str, Upload]], seed: int) -> None:
    rng = np.random.default_rng([seed, 3])
    run = fleets.Run(fleet(pictures, start="own"), faults=LOSSY, seed=seed)
    for who in rng.choice([*run.begun, "coordinator", "coordinator"], size=6):
        run.power_cut(who, at_s=rng.uniform(0, 60), for_s=float(rng.choice(DARK_S)))
    run.finished()
    assert run.result.completed, run.result.reason
    check_aggregated(run, buffers)


@pytest.mark.parametrize("method", METHODS)
def test_a_lossy_link_with_few_busy_devices(pictures: Path, method: str) -> None:
    run = fleets.Run(fleet(pictures, method, busy=3), faults=LOSSY, seed=1).finished()
    assert run.result.completed, run.result.reason
