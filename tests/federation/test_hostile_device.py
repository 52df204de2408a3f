"""One hostile device among honest ones: what it claims and what it sends move the others by a bounded amount."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from coordinator.ledger import Ledger
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import Upload
from edge_sim.clock.virtual_fleet import VirtualFleet
from edge_sim.config import settings

LIAR = "device-05"
ATTACK = "edge_sim.byzantine:inflate_counts"


def attacked(
    pictures: Path, method: str, attack: str = ATTACK, *, robust: Mapping[str, Any] | None = None, rounds: int = 6
) -> fleets.Run:
    """A run of six devices, the last of which attacks."""
    tables = fleets.tables(pictures, method, rounds=rounds)
    tables["fleet"] = [{"count": 5, "model": "softmax"}, {"model": "softmax", "byzantine": attack}]
    tables["train"] |= {"optimiser": "sgd", "learning_rate": 0.1, "local_steps": 10}
    tables["robust"] = {"hold_out_rounds": 5, **(robust or {})}
    return fleets.Run(settings.parse(tables, Path("test.toml")))


def test_a_device_that_claims_all_samples_does_not_decide_the_mean(pictures: Path) -> None:
    lied = attacked(pictures, "fedavg").finished()
    assert mean_of_the_honest(lied) > 0.7
    (warned,) = [line for line in lied.result.warnings if line.startswith("W26")]
    assert LIAR in warned
    believed = attacked(pictures, "fedavg", robust={"count_factor": 0}).finished()
    assert mean_of_the_honest(believed) < 0.2


def mean_of_the_honest(run: fleets.Run) -> float:
    return float(np.mean([each.metrics["global_accuracy"] for each in run.result.devices if each.id != LIAR]))


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_who_declares_no_samples_weighs_one(pictures: Path, method: str) -> None:
    run = attacked(pictures, method, robust={"hold_out_rounds": 0}, rounds=1)
    claim_nothing(run)
    weights = weights_of(run)
    run.finished()
    assert weights[LIAR] == 1
    assert min(weights.values()) == 1 < max(weights.values())


def claim_nothing(run: fleets.Run) -> None:
    """Let the liar's Hello tell no number of samples, with which its counts were not bounded at all."""
    (liar,) = [device for device in run.devices if device.device.kit.id == LIAR]
    liar.agent.hello_to_send = lambda hello: replace(hello, samples=0, class_counts=())  # type: ignore[method-assign]


def weights_of(run: fleets.Run) -> dict[str, int]:
    """A dict that fills with the largest count by which each device enters an aggregate."""
    found: dict[str, int] = {}
    numbers, add = run.server.numbers, run.server.method.add

    def noted(aggregate: Any, contribution: Any) -> Any:
        (name,) = [device for device, number in numbers.items() if number == contribution.number]
        (payload,) = contribution.knowledge.values()
        found[name] = payload.count if isinstance(payload, Weights) else int(payload.counts.max())
        return add(aggregate, contribution)

    run.server.method.add = noted  # type: ignore[method-assign]  # what a tap is
    return found


def test_logits_of_a_million_do_not_count(pictures: Path) -> None:
    alone = attacked(pictures, "fedmd", "influence_attacks:shout").finished()
    assert alone.result.completed
    assert alone.server.record.left_out == {LIAR: 6}
    assert {each.contributors for each in alone.server.record.rounds} == {5}
    assert "robust.largest_logit" in alone.server.record.why_left_out[LIAR]
    mean = alone.server.method_state.mean
    assert np.abs(mean.values).max() < 1e4


def test_rows_beyond_their_bound_do_not_count_though_nobody_is_held_out(pictures: Path) -> None:
    """The bound alone keeps them out: W17, which would notice their size, only names whom it finds."""
    run = attacked(pictures, "fedproto", "influence_attacks:shout", robust={"hold_out_rounds": 0}, rounds=2).finished()
    assert run.server.record.left_out == {LIAR: 2}
    assert "robust.largest_row" in run.server.record.why_left_out[LIAR]
    assert np.abs(run.server.method_state.prototypes.rows).max() < 1e5


def test_a_bound_that_no_upload_keeps_is_named_as_the_cause(pictures: Path) -> None:
    run = attacked(pictures, "fedproto", robust={"largest_row": 0.001}, rounds=2)
    run.run()
    assert not run.result.completed
    assert "robust.largest_row is 0.001" in run.result.reason


@pytest.mark.parametrize("attack", [ATTACK, "edge_sim.byzantine:noise", "edge_sim.byzantine:flip_ten"])
def test_attacks_on_hyper_knowledge_are_legal_uploads(pictures: Path, attack: str) -> None:
    run = attacked(pictures, "fedhkd", attack, robust={"rows": "geometric-median"}, rounds=2).finished()
    assert run.result.completed
    assert run.result.refused_devices == ()


def test_the_cap_is_fixed_when_a_round_opens(pictures: Path) -> None:
    run = attacked(pictures, "fedavg", robust={"count_factor": 1.0, "hold_out_rounds": 0}).finished()
    declared = sorted(hello.samples for hello in run.server.hellos.values())
    assert run.server.record.count_cap == (declared[2], declared[2])


CACHED = {"cached": True, "weighting": "samples"}


@pytest.mark.parametrize(
    "robust", [{"count_factor": 1.0, "hold_out_rounds": 0}, {"count_factor": 1.0, "hold_out_rounds": 5}]
)
@pytest.mark.parametrize("method", ["fedavg", "fedssa"])
def test_a_slot_is_taken_out_as_it_was_put_in(pictures: Path, method: str, robust: Mapping[str, Any]) -> None:
    """The running sum over slots equals the sum of what the slots hold, though caps differ from round to round."""
    run = cached(pictures, method, robust)
    caps = []
    for name in [each.device.kit.id for each in run.devices]:
        run.slow_down(name, 10.0)
    for at_s, samples in ((1.0, 1000), (35.0, 36)):
        run.clock.at(at_s, lambda samples=samples: declare(run, samples))
        run.clock.at(at_s + 20.0, lambda: caps.append(run.server.record.count_cap))
    run.run()
    assert len({*caps, run.server.record.count_cap}) > 1
    slots = run.server.method_state.slots
    held = [name for name in run.server.hellos if run.server.ledger.slot(name) is not None]
    assert slots.slots == len(held)
    if method == "fedavg":
        assert slots.count == sum(slot_count(run, name) for name in held)


def cached(pictures: Path, method: str, robust: Mapping[str, Any], ledger: Ledger | None = None) -> fleets.Run:
    tables = fleets.tables(pictures, method, rounds=5, quorum=3, participants=4)
    tables["method"] = dict(CACHED)
    tables["fleet"] = [{"count": 5, "model": "softmax"}, {"model": "softmax", "byzantine": ATTACK}]
    tables["robust"] = dict(robust)
    return fleets.Run(settings.parse(tables, Path("test.toml")), ledger=ledger)


def declare(run: VirtualFleet, samples: int) -> None:
    """Let three honest devices tell another number of samples, which moves the median, when they connect again."""
    for device in run.devices[:3]:
        device.agent.hello_to_send = lambda hello: replace(hello, samples=samples, class_counts=())  # type: ignore[method-assign]
    run.hub.restart(0.2)


def slot_count(run: fleets.Run, device: str) -> int:
    """The count of a device's slot, cut to the cap that it was filled with."""
    frame = run.server.ledger.slot(device)
    assert frame is not None
    message = codec.decode(frame, codec.Limits(2**24, 2**24)).message
    assert isinstance(message, Upload)
    cap = run.server.record.slot_caps.get(device, 2**31)
    return min(message.knowledge["weights"].count, cap)  # type: ignore[attr-defined]  # it is Weights


@pytest.mark.parametrize("method", ["fedavg", "fedal"])
@pytest.mark.parametrize("at_s", [0.2, 0.9, 1.7, 3.1])
def test_a_restart_decides_the_same(pictures: Path, method: str, at_s: float) -> None:
    """What is held out follows from what the ledger holds, not from what the process saw."""
    clean = attacked(pictures, method, "influence_attacks:loud_later").finished()
    run = attacked(pictures, method, "influence_attacks:loud_later")
    run.power_cut("coordinator", at_s, 5.0)
    run.finished()
    assert (clean.server.record.left_out[LIAR] > 0) == (method == "fedavg")  # loud logits are told of, and count
    assert clean.server.record.outliers[LIAR] == run.server.record.outliers[LIAR]
    assert run.server.record.held_out == clean.server.record.held_out
    assert run.coordinator_bytes == clean.coordinator_bytes
