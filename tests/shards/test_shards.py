"""Devices in shards: the run is that of one process to the bit, whatever happens in it."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from notes import Notes
from sharded import ShardedRun

from coordinator.record.observer import RunObserver
from coordinator.results.report.summary import summary, without_times
from coordinator.trace.log import Trace, TraceWriter
from edge_sdk.errors import EdgeError, RunFailed, UsageError
from edge_sdk.methods.contract.registry import method_names
from edge_sdk.transport.memory.hub import Faults
from edge_sim.clock.checkpoint import Checkpoints
from edge_sim.clock.dormant import EXAMPLES
from edge_sim.config import settings
from edge_sim.config.settings import Config, RunTable
from edge_sim.runs.runner import run
from edge_sim.shards.messages import (
    LEAST_BYTES,
    MOST_BYTES,
    NOWHERE,
    FrameReader,
    FrameWriter,
    Sent,
    ShardProgress,
    shared_memory,
)
from edge_sim.shards.shard import Shard
from edge_sim.shards.shard_process import ShardProcesses
from edge_sim.shards.shards import Shards, divided

PARAMETERS = {
    "fedal": {"tau": 2, "max_devices": 10, "public_batch": 16},
    "feddf_al": {"tau": 2, "max_devices": 10, "public_batch": 16},
    "fedl2g": {"warm_up": 1},
    "fedmd": {"public_batch": 16},
    "fedmd_lf": {"public_batch": 16},
    "fedssa": {"cached": True},
}
MODELS = {"fedalign": "resnet", **dict.fromkeys(("fedbabu", "fedkf", "fedl2g", "fedper", "fedrep"), "mlp")}
"""Models of methods that a softmax model cannot take part in."""
SLOW = ("creff", "fedalign", "fedgen", "fedkd", "fedkf")
LOSSY = Faults(drop=0.1, duplicate=0.1, delay=0.3, delay_s=3.0)


def on_digits(method: str, *fleet: dict[str, Any]) -> Config:
    """Two rounds; without a fleet of two kinds of boards."""
    model = {"model": MODELS.get(method, "softmax"), "count": 2}
    rows = fleet or (model, {**model, "board": "rpi4", "link": "lte-cat1"})
    tables = {
        "federation": {
            "name": "digits",
            "method": method,
            "rounds": 2,
            "devices": sum(row["count"] for row in rows),
            "seed": 5,
            "feature_dim": 16 if method in MODELS else 64,
        },
        "method": PARAMETERS.get(method, {}),
        "train": {"optimiser": "adam", "learning_rate": 3e-3, "batch_size": 16, "local_steps": 3},
        "data": {"source": "digits", "public": 40, "test_fraction": 0.1},
        "partition": {"kind": "dirichlet", "alpha": 0.5, "min_samples": 6},
        "fleet": list(rows),
        "run": {"standalone": False},
    }
    return settings.parse(tables, Path("test.toml"))


def same(shards: ShardedRun, alone: fleets.Run) -> None:
    """Everything that a user, a report or the next run could see."""
    assert summary(shards.result) == summary(alone.result)
    assert shards.result.history == alone.result.history
    assert shards.states == {d.device.kit.id: d.participant.context.bench.model.state_bytes() for d in alone.devices}
    assert shards.coordinator_bytes == alone.coordinator_bytes
    assert shards.clock.now_s == alone.clock.now_s
    assert shards.spent == alone.spent
    assert shards.server.record.kind_bytes == alone.server.record.kind_bytes


@pytest.mark.torch
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[pytest.mark.long] * (name in SLOW)) for name in method_names()]
)
def test_every_method_computes_the_same_bits(method: str) -> None:
    chosen = on_digits(method)
    alone = fleets.Run(chosen).finished()
    assert alone.result.updates["accepted"] >= 12
    same(ShardedRun(chosen).finished(), alone)


@pytest.mark.torch
def test_weights_that_travel_for_longer_than_a_device_waits_do_not_travel_twice() -> None:
    """Five megabytes take 16 s to the broker, and a device waits 4 s for the receipt of an upload."""
    chosen = on_digits("fedavg", {"model": "resnet8", "count": 2, "board": "rpi4", "link": "lte-cat1"})
    alone = fleets.Run(chosen).finished()
    weights_bytes = 4 * alone.devices[0].participant.context.bench.model.spec.parameters
    assert all(each.bytes_up < 3.1 * weights_bytes for each in alone.result.devices)  # two rounds, one repeated Assign
    same(ShardedRun(chosen).finished(), alone)


HARD = (
    {"count": 2, "dropout": 0.3, "dropout_s": 40, "slow_share": 0.5, "slow_factor": 30},
    {"count": 2, "link": "lte-cat1", "power_cuts_per_day": 2000, "power_cut_s": 20},
    {"count": 2, "available": "22:00-06:00", "clock_offset_s": -3e6, "clock_drift": 0.01},
    {"byzantine": "edge_sim.byzantine:noise"},
    {"board": "rpi-zero-2w", "battery_wh": 0.02, "charge_w": 5.0},
    {"fails_after_s": 300.0},
)
"""Everything that may happen to a device."""
OUTAGES = {
    "starts_at": "05:59",
    "broker_lost_at_s": [20.0, 130.0],
    "broker_lost_for_s": 12,
    "coordinator_lost_at_s": [60.0],
    "coordinator_lost_for_s": 9,
}


def hard(pictures: Path, method: str, rows: tuple[dict[str, Any], ...] = HARD, **federation: Any) -> dict[str, Any]:
    policy = {"quorum": 3, "deadline_s": 120.0, "join_grace_s": 10.0, "patience": 100, "rounds": 6, **federation}
    tables = fleets.tables(pictures, method, sum(row.get("count", 1) for row in rows), **policy)
    tables["fleet"] = [{"model": "softmax", **row} for row in rows]
    return tables


@pytest.mark.parametrize("faults", [None, LOSSY])
@pytest.mark.parametrize("scenario", [{}, OUTAGES])
@pytest.mark.parametrize("method", ["fedmd", "fedavg"])
def test_whatever_happens_is_the_same(
    pictures: Path, method: str, scenario: dict[str, Any], faults: Faults | None
) -> None:
    chosen = settings.parse({**hard(pictures, method), "scenario": scenario}, Path("test.toml"))
    alone = fleets.Run(chosen, faults=faults, seed=4).finished()
    for count in (1, 3):
        same(ShardedRun(chosen, count=count, faults=faults, seed=4).finished(), alone)


@pytest.mark.parametrize("faults", [None, LOSSY])
@pytest.mark.parametrize("method", ["fedmd", "fedavg", "fedssa"])
def test_dormant_devices_are_the_same(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, method: str, faults: Faults | None
) -> None:
    dormant: list[int] = []
    begin = Shards.begin

    def begun(shards: Shards) -> None:
        begin(shards)
        dormant.append(sum(map(len, shards.ask("dormant"))))

    monkeypatch.setattr(Shards, "begin", begun)
    monkeypatch.setattr("edge_sim.shards.shards.MOST_AWAKE", 1)
    rows = ({"count": 9}, {"count": 5, "link": "lte-cat1", "power_cuts_per_day": 2000, "power_cut_s": 20})
    tables = hard(pictures, method, rows, participants=3)
    tables["method"] |= PARAMETERS.get(method, {})
    chosen = settings.parse({**tables, "scenario": OUTAGES}, Path("test.toml"))
    alone = fleets.Run(chosen, faults=faults, seed=4, dormant_from=10**9).finished()
    for count in (1, 3):
        same(ShardedRun(chosen, count=count, faults=faults, seed=4, dormant_from=1).finished(), alone)
        assert dormant.pop() >= 14 - 2 * EXAMPLES * count


@pytest.mark.parametrize("method", ["fedavg", "fedssa"])
def test_devices_that_are_not_asked_are_measured_the_same(pictures: Path, method: str) -> None:
    tables = fleets.tables(pictures, method, participants=2, rounds=5)
    tables["method"] |= PARAMETERS.get(method, {})
    tables["train"]["evaluate_every"] = 2
    chosen = settings.parse(tables, Path("test.toml"))
    alone = fleets.Run(chosen).finished()
    assert set(alone.server.record.accuracy[4]) == {f"device-0{number}" for number in range(6)}
    same(ShardedRun(chosen).finished(), alone)


@pytest.mark.torch
def test_stacks_in_a_shard_differ_by_rounding(pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedproto", feature_dim=6)
    tables["fleet"] = [{"count": 6, "model": "mlp"}]
    chosen = settings.parse(tables, Path("test.toml"))
    alone, stacked = (
        fleets.Run(chosen).finished(),
        ShardedRun(chosen, run=RunTable(stack=True, stacked=("mlp",))).finished(),
    )
    weights = {device.kit.id: model.weights() for device, model in stacked.models()}
    apart = [
        np.abs(each.participant.context.bench.model.weights() - weights[each.device.kit.id]).max()
        for each in alone.devices
    ]
    assert 0 < max(apart) < 1e-3
    assert stacked.clock.now_s == alone.clock.now_s


def test_a_run_that_cannot_end_says_the_same(pictures: Path) -> None:
    rows = ({"count": 2, "available": "01:00-02:00"}, {"count": 2, "available": "03:00-04:00"})
    tables = {**hard(pictures, "fedmd", rows, quorum=4, deadline_s=1e5), "scenario": {"until_days": 0.5}}
    chosen, said = settings.parse(tables, Path("test.toml")), []
    for kind in (fleets.Run, ShardedRun):
        with pytest.raises(RunFailed, match=r"until_days.*\d of 4") as failed:
            kind(chosen).finished()
        said.append(str(failed.value))
    assert said[0] == said[1]


def test_the_trace_is_the_same(pictures: Path, tmp_path: Path) -> None:
    tables = fleets.tables(pictures)
    entries = []
    for kind in (fleets.Run, ShardedRun):
        path = tmp_path / f"{kind.__name__}.edgt"
        trace = TraceWriter(path, tables, Path("test.toml"), resume=False, virtual=True)
        kind(settings.parse(tables, Path("test.toml")), trace=trace).finished()
        trace.close()
        entries.append(list(Trace(path)))
    assert len(entries[0]) > 50
    assert entries[0] == entries[1]


def test_a_round_takes_few_windows(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices with equal boards and links do all they do at the same moments."""
    sharded = ShardedRun(fleets.config(pictures, "fedproto", rounds=8))
    windows, pass_time = [], sharded.shards.pass_time

    def noted(before_s: float) -> list[Sent]:
        windows.append(before_s)
        return pass_time(before_s)

    monkeypatch.setattr(sharded.shards, "pass_time", noted)
    sharded.finished()
    assert len(windows) < 8 * 12


def test_long_frames_cross_in_memory() -> None:
    memory = shared_memory()
    writer, reader = FrameWriter(memory), FrameReader(memory)
    for size in (LEAST_BYTES, 3 * LEAST_BYTES, 2**21):  # the memory grows
        writer.begin()
        frames = [os.urandom(size), os.urandom(size + 1)]
        places = [writer.put(frame) for frame in frames]
        assert [place and reader.take(place) for place in places] == frames
    assert writer.put(bytes(LEAST_BYTES - 1)) is None
    assert writer.put(bytes(MOST_BYTES)) is None
    reader.close()


def test_where_there_is_no_memory_frames_go_through_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    memory = shared_memory()
    assert FrameWriter(memory).put(bytes(LEAST_BYTES)) is None
    FrameReader(memory).close()
    monkeypatch.setattr(os, "memfd_create", full)
    assert shared_memory() == NOWHERE
    assert FrameWriter(NOWHERE).put(bytes(LEAST_BYTES)) is None


# -- what goes wrong ------------------------------------------------------------------------------------------------


def tables_in_shards(pictures: Path, method: str = "fedmd", **federation: Any) -> dict[str, Any]:
    tables = fleets.tables(pictures, method, **federation)
    tables["run"] |= {"processes": 2}
    return tables


class Interrupt(RunObserver):
    """Ctrl-C after the first round, once."""

    def round_done(self, *_: Any) -> None:
        raise KeyboardInterrupt


class Killer(RunObserver):
    """Ends a process after the second round, as the kernel would one that takes too much memory."""

    def __init__(self) -> None:
        self.fleet: ShardedRun | None = None

    def round_done(self, result: Any, *_: Any) -> None:
        if result.round == 2 and self.fleet is not None:
            os.kill(self.fleet.shards.pids[0], signal.SIGKILL)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Pictures whose models are long frames."""
    return fleets.write_pictures(tmp_path / "large.npz", side=40)


@pytest.mark.processes
@pytest.mark.parametrize("memory", [True, False])
def test_in_processes_the_bits_are_the_same(large: Path, monkeypatch: pytest.MonkeyPatch, *, memory: bool) -> None:
    if not memory:
        monkeypatch.delattr(os, "memfd_create")
    alone = run(fleets.tables(large, "fedavg", feature_dim=1600))
    apart = run(tables_in_shards(large, "fedavg", feature_dim=1600))
    assert summary(alone)["bytes"]["up_total"] > 6 * 3 * LEAST_BYTES
    assert without_times(summary(apart)) == without_times(summary(alone))
    assert apart.insight is not None
    assert (apart.insight.part("points") == alone.insight.part("points")).all()
    assert apart.memory["peak_mib"] > alone.memory["peak_mib"]


@pytest.mark.processes
@pytest.mark.parametrize("torch", [False, pytest.param(True, marks=pytest.mark.torch)])
def test_an_interrupted_run_is_resumed_in_one_process_and_says_so(
    pictures: Path, tmp_path: Path, *, torch: bool
) -> None:
    tables, plain = tables_in_shards(pictures), fleets.tables(pictures)
    if torch:
        pytest.importorskip("torch")
        tables["fleet"] = plain["fleet"] = [{"count": 6, "model": "cnn"}]
    whole = run(plain)
    with pytest.raises(KeyboardInterrupt):
        run(tables, out=tmp_path / "run", observer=lambda _: Interrupt())
    noting = Notes()
    found = run(tables, out=tmp_path / "run", resume=True, observer=lambda _: noting)
    assert [line for line in noting.lines if "run.processes: this run has one process" in line]
    assert found.completed
    assert [entry.accuracy for entry in found.history] == [entry.accuracy for entry in whole.history]
    assert found.updates["accepted"] == whole.updates["accepted"]
    assert found.resumed["times"] == 1


def test_an_interrupt_in_the_middle_of_a_window_leaves_the_last_checkpoint(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, saved, came, window = Checkpoints(tmp_path / "checkpoint"), [], [], Shard.window

    def due(_: Checkpoints) -> bool:
        if len(sharded.server.record.rounds) < 2 or saved:
            return False
        saved.append(sharded.clock.now_s)
        return True

    def interrupted(shard: Shard, before_s: float, sent: Sequence[Sent]) -> ShardProgress:
        progress = window(shard, before_s, sent)
        if len(sharded.server.record.rounds) == 4 and not came:
            came.append(before_s)
            raise KeyboardInterrupt
        return progress

    sharded = ShardedRun(fleets.config(pictures, rounds=5), count=1, checkpoints=checkpoints)
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "due", due)
        patched.setattr(Shard, "window", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sharded.run()
    sharded.close()
    ledger, stores, state = checkpoints.load()
    again = fleets.Run(fleets.config(pictures, rounds=5), ledger=ledger, stores=stores, state=state)
    assert len(again.server.record.rounds) == 2
    assert again.finished().model_bytes == fleets.Run(fleets.config(pictures, rounds=5)).finished().model_bytes


@pytest.mark.processes
def test_a_killed_process_ends_the_run_and_the_last_checkpoint_stays(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, killer = Checkpoints(tmp_path / "checkpoint"), Killer()
    saved = []
    monkeypatch.setattr(Checkpoints, "due", lambda _: not saved and (saved.append(True) or True))
    killer.fleet = ShardedRun(
        fleets.config(pictures, rounds=5), carrier=ShardProcesses(), observer=killer, checkpoints=checkpoints
    )
    with pytest.raises(RunFailed, match=r"device-0\d and 2 more .*signal 9.*--resume") as lost:
        killer.fleet.run()
    killer.fleet.close()
    assert "\n" not in str(lost.value)
    ledger, stores, state = checkpoints.load()
    again = fleets.Run(fleets.config(pictures, rounds=5), ledger=ledger, stores=stores, state=state).finished()
    whole = fleets.Run(fleets.config(pictures, rounds=5)).finished()
    assert again.model_bytes == whole.model_bytes
    assert again.coordinator_bytes == whole.coordinator_bytes


@pytest.mark.processes
def test_a_process_that_is_gone_before_the_first_checkpoint(pictures: Path, tmp_path: Path) -> None:
    sharded = ShardedRun(
        fleets.config(pictures), carrier=ShardProcesses(), checkpoints=Checkpoints(tmp_path / "checkpoint")
    )
    os.kill(sharded.shards.pids[0], signal.SIGKILL)
    with pytest.raises(RunFailed, match=r"signal 9.*start again"):
        sharded.run()
    sharded.close()
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.processes
def test_a_process_says_why_it_cannot_begin(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "only_here", fleets)
    tables = fleets.tables(pictures)
    tables["fleet"] = [{"count": 4, "model": "softmax"}, {"count": 2, "model": "only_here:teacher"}]
    sharded = ShardedRun(settings.parse(tables, Path("test.toml")), carrier=ShardProcesses())
    with pytest.raises(UsageError, match="'only_here:teacher' does not import"):
        sharded.run()
    sharded.close()


def broken(knowledge: Any, rng: Any) -> Any:  # noqa: ARG001  # a Tamper
    raise ZeroDivisionError


def test_what_a_device_raises_ends_the_run_as_in_one_process(pictures: Path) -> None:
    chosen = settings.parse(
        hard(pictures, "fedmd", ({"count": 4}, {"byzantine": f"{__name__}:broken"})), Path("t.toml")
    )
    said = []
    for kind in (fleets.Run, ShardedRun):
        with pytest.raises(EdgeError, match="ZeroDivisionError") as failed:
            kind(chosen).finished()
        said.append(str(failed.value))
    assert said[0] == said[1]


def in_one_process(tables: dict[str, Any]) -> list[str]:
    """Run a federation that asks for two processes; return why it had one."""
    noting = Notes()
    found = run(tables, observer=lambda _: noting)
    assert found.completed
    return [line for line in noting.lines if line.startswith("run.processes: this run has one process: ")]


def test_links_that_break_at_random_have_one_process(pictures: Path) -> None:
    (line,) = in_one_process({**tables_in_shards(pictures), "faults": {"disconnect": 0.01}})
    assert "faults.disconnect" in line


def test_links_that_take_no_time_have_one_process(pictures: Path, tmp_path: Path) -> None:
    link = tmp_path / "none.toml"
    wifi = (files("firmware_profiles") / "links" / "wifi.toml").read_text(encoding="utf-8")
    at_once = re.sub(r"(?m)^(latency_s|message_overhead_bytes|resend_s) *=.*$", r"\1 = 0", wifi)
    link.write_text(at_once.replace('"wifi"', '"none"'), encoding="utf-8")
    tables = tables_in_shards(pictures)
    tables["fleet"][0]["link"] = str(link)
    (line,) = in_one_process(tables)
    assert "none.toml" in line


def test_a_gpu_is_refused(pictures: Path) -> None:
    tables = tables_in_shards(pictures)
    tables["run"]["device"] = "cuda:0"
    with pytest.raises(UsageError, match=r"run\.processes: a GPU belongs to one process.*cuda:0"):
        settings.parse(tables, Path("f.toml"))


@given(st.integers(0, 2**32 - 1), st.integers(0, 20), st.integers(1, 5))
def test_shards_cost_about_the_same(seed: int, devices: int, count: int) -> None:
    costs = dict(enumerate(np.random.default_rng(seed).uniform(1, 1e6, devices).tolist()))
    owners = divided(costs, count)
    assert owners.keys() == costs.keys()
    loads = [sum(cost for number, cost in costs.items() if owners[number] == shard) for shard in range(count)]
    assert max(loads) - min(loads) <= max(costs.values(), default=0.0) * (1 + 1e-9)
