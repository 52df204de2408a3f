"""Federations in virtual time whose devices come without the public set: whatever happens on the way, the result is
the one of devices that had it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from seeds import SEEDS, seeded

from edge_sdk.device.session import SessionPhase
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.messages import Assign, Bye, Hello, PublicBlock, PublicRequest, Upload, Welcome
from edge_sdk.transport.memory.hub import Faults
from edge_sim.config import settings
from edge_sim.fleet import fleet as sim_fleet
from edge_sim.fleet.fleet import Fleet

LOSSY = Faults(drop=0.2, duplicate=0.2, delay=0.3, delay_s=3.0)
CUTTING = Faults(drop=0.1, duplicate=0.1, delay=0.3, delay_s=0.5, disconnect=0.02, disconnect_s=3.0)
SIDE, PUBLIC = 40, 160  # 1 MB of f4: 17 blocks


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    pictures = fleets.write_pictures(tmp_path_factory.mktemp("large") / "pictures.npz", side=SIDE)
    tables = fleets.tables(pictures, devices=4, feature_dim=SIDE * SIDE)
    tables["data"]["public"] = PUBLIC
    return sim_fleet.build_fleet(settings.parse(tables, Path("test.toml")))


@pytest.fixture(scope="module")
def clean(fleet: Fleet) -> fleets.Run:
    """A run of devices that have the set."""
    return fleets.Run(fleet).finished()


@pytest.fixture(scope="module")
def fetch_s(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long fetching takes when nothing goes wrong."""
    run = fleets.Run(fleet, caches=tmp_path_factory.mktemp("clean"))
    run.finished()
    return float(run.server.record.started_s or 0.0)


def same(run: fleets.Run, clean: fleets.Run) -> None:
    assert run.result.completed, run.result.reason
    assert run.coordinator_bytes == clean.coordinator_bytes
    assert run.model_bytes == clean.model_bytes
    accuracies = [[device.accuracy for device in each.result.devices] for each in (run, clean)]
    assert accuracies[0] == accuracies[1]


def asked(sent: list[Any]) -> Counter[tuple[str, int]]:
    return Counter((m.device, block) for m in sent if isinstance(m, PublicRequest) for block in m.blocks)


def test_devices_that_have_the_set_never_ask(fleet: Fleet, clean: fleets.Run) -> None:
    run = fleets.Run(fleet)
    sent = run.tap()
    same(run.finished(), clean)
    assert not [m for m in sent if isinstance(m, PublicRequest | PublicBlock)]
    assert not any(m.fetches_public for m in sent if isinstance(m, Hello))
    assert not any(m.public_bytes for m in sent if isinstance(m, Welcome))


def test_devices_that_lack_it_fetch_it_once_and_only_then_take_part(
    fleet: Fleet, clean: fleets.Run, tmp_path: Path
) -> None:
    run = fleets.Run(fleet, caches=tmp_path)
    sent = run.tap()
    same(run.finished(), clean)
    devices = sorted(run.begun)
    assert asked(sent) == {(device, block): 1 for device in devices for block in range(17)}
    first_assign = next(i for i, m in enumerate(sent) if isinstance(m, Assign))
    last_block = max(i for i, m in enumerate(sent) if isinstance(m, PublicBlock))
    assert last_block < first_assign  # nobody waited for a round that it could not take part in
    assert run.begun == clean.begun
    for device in devices:
        samples = fleet.dataset.public.samples
        (cached,) = (tmp_path / device).iterdir()
        assert cached.read_bytes().endswith(samples.tobytes())
        own = next(each.agent for each in run.devices if each.device.kit.id == device)
        np.testing.assert_array_equal(own.bench.public.samples, samples)
    assert not run.server.record.refused_frames


@pytest.mark.parametrize("seed", seeded(SEEDS // 3))
def test_loss_repetition_reordering_and_broken_links(
    fleet: Fleet, clean: fleets.Run, tmp_path: Path, seed: int
) -> None:
    run = fleets.Run(fleet, caches=tmp_path, faults=(LOSSY, CUTTING)[seed % 2], seed=seed)
    same(run.finished(), clean)


@pytest.mark.parametrize("seed", seeded(SEEDS // 3))
def test_power_cuts_of_devices_while_they_fetch(
    fleet: Fleet, clean: fleets.Run, tmp_path: Path, seed: int, fetch_s: float
) -> None:
    rng = np.random.default_rng([seed, 11])
    run = fleets.Run(fleet, caches=tmp_path, faults=LOSSY if seed % 2 else None, seed=seed)
    sent = run.tap()
    for device in rng.choice(list(run.begun), size=4):
        run.power_cut(device, at_s=rng.uniform(0, fetch_s), for_s=float(rng.choice((0.0, 0.02, 20.0))))
    same(run.finished(), clean)
    if not seed % 2:  # what had come is not asked for again: at most what was on its way, twice
        assert asked(sent).total() <= 4 * (17 + 8)


@pytest.mark.parametrize("seed", seeded(SEEDS // 3))
def test_power_cuts_of_the_coordinator_while_they_fetch(
    fleet: Fleet, clean: fleets.Run, tmp_path: Path, seed: int, fetch_s: float
) -> None:
    rng = np.random.default_rng([seed, 12])
    run = fleets.Run(fleet, caches=tmp_path, faults=LOSSY if seed % 2 else None, seed=seed)
    for _ in range(3):
        run.power_cut("coordinator", at_s=rng.uniform(0, fetch_s), for_s=float(rng.choice((0.0, 0.02, 20.0))))
    same(run.finished(), clean)


@pytest.mark.parametrize("seed", seeded(SEEDS // 3))
def test_everything_at_once(fleet: Fleet, clean: fleets.Run, tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng([seed, 13])
    run = fleets.Run(fleet, caches=tmp_path, faults=CUTTING if seed % 2 else LOSSY, seed=seed)
    for who in rng.choice([*run.begun, "coordinator", "coordinator"], size=8):
        run.power_cut(who, at_s=rng.uniform(0, 60), for_s=float(rng.choice((0.0, 0.02, 1.0, 20.0))))
    same(run.finished(), clean)


def test_a_set_that_is_on_the_disk_is_not_fetched_again(fleet: Fleet, clean: fleets.Run, tmp_path: Path) -> None:
    fleets.Run(fleet, caches=tmp_path).finished()
    again = fleets.Run(fleet, caches=tmp_path)  # another federation, as far as the devices know
    sent = again.tap()
    same(again.finished(), clean)
    assert not asked(sent)
    assert again.clock.now_s < clean.clock.now_s + 1.0  # nor is a hello waited for


def test_a_device_that_starts_again_names_its_set_at_once(
    fleet: Fleet, clean: fleets.Run, tmp_path: Path, fetch_s: float
) -> None:
    run = fleets.Run(fleet, caches=tmp_path)
    for device in run.begun:
        run.slow_down(device, 10.0)
    sent = run.tap()
    run.power_cut("device-01", at_s=fetch_s + 15.0, for_s=1.0)
    same(run.finished(), clean)
    assert set(asked(sent).values()) == {1}


@pytest.mark.parametrize("moment_s", [5.0, 10.005, 15.0])
def test_a_set_that_was_lost_meanwhile_is_fetched_before_the_round_is_computed_again(
    fleet: Fleet, clean: fleets.Run, tmp_path: Path, fetch_s: float, moment_s: float
) -> None:
    """While it computes, before the receipt, in the next round."""
    run = fleets.Run(fleet, caches=tmp_path)
    for device in run.begun:
        run.slow_down(device, 10.0)
    sent = run.tap()
    run.power_cut("device-01", at_s=fetch_s + moment_s, for_s=1.0)

    def lose() -> None:
        for file in (tmp_path / "device-01").iterdir():
            file.unlink()

    run.clock.at(fetch_s + moment_s + 0.5, lose)
    same(run.finished(), clean)
    assert {device for (device, _), times in asked(sent).items() if times > 1} == {"device-01"}


def test_a_late_device_fetches_while_the_others_train(tmp_path: Path, fleet: Fleet) -> None:
    """Its fetching is no reason to wait for it, nor to give it up."""
    policy = dataclasses.replace(fleet.federation.policy, quorum=3, join_grace_s=0.1, deadline_s=30.0)
    patient = dataclasses.replace(fleet, federation=dataclasses.replace(fleet.federation, policy=policy))
    run = fleets.Run(patient, caches=tmp_path)
    sent = run.tap()
    for device in run.begun:
        run.slow_down(device, 5.0)
    run.power_cut("device-03", at_s=0.0, for_s=6.0)
    run.finished()
    assert run.result.completed
    assert not [m for m in sent if isinstance(m, Assign) and m.device == "device-03" and m.round == 0]
    uploads = [m for m in sent if isinstance(m, Upload) and m.device == "device-03"]
    assert uploads
    assert not run.result.warnings


# -- what goes wrong for good ---------------------------------------------------------------------------------------


def failed(run: fleets.Run) -> dict[str, str]:
    run.finished()
    assert not run.result.completed
    return {each.device.kit.id: str(each.agent.refusal) for each in run.devices}


def test_a_coordinator_that_serves_no_set_turns_them_away(tmp_path: Path, fleet: Fleet) -> None:
    run = fleets.Run(fleet, caches=tmp_path, serving=False)
    failed(run)
    turned = run.server.record.refused_devices
    assert turned
    for device, note in turned.items():
        assert note["device"] == device
        assert note["reason"] == "public-set"
        assert fleet.dataset.public.spec.sha256.hex()[:8] in note["remedy"]


def test_a_set_that_never_comes_whole_is_given_up_and_nobody_waits(tmp_path: Path, fleet: Fleet) -> None:
    run = fleets.Run(fleet, caches=tmp_path)
    publish = run.hub.publish

    def spoil(sender: Any, topic: str, frame: Frame, *, retain: bool) -> None:
        message = codec.decode(bytes(frame), codec.Limits(2**24, 2**24)).message
        if isinstance(message, PublicBlock) and message.device == "device-02" and message.index == 7:
            frame = codec.encode(dataclasses.replace(message, data=bytes(len(message.data))), Stamp(1, 1))
        publish(sender, topic, frame, retain=retain)

    run.hub.publish = spoil  # type: ignore[method-assign]  # what a bad disk of the coordinator would do
    said = failed(run)
    assert "disk" in said["device-02"]
    assert "--public" in said["device-02"]
    agent = next(each.agent for each in run.devices if each.device.kit.id == "device-02")
    assert agent.refused_frames == {"checksum": 2}
    assert "device-02" in run.server.record.left
    assert "quorum of 4 " in run.result.reason
    assert list((tmp_path / "device-02").iterdir()) == []


def test_a_set_that_does_not_fit_the_model_is_said_with_both_shapes(tmp_path: Path, fleet: Fleet) -> None:
    run = fleets.Run(fleet, caches=tmp_path)
    for each in run.devices:
        each.agent.bench.samples = each.agent.bench.samples[:, :, :20]
    said = failed(run)
    assert "(1, 40, 40)" in said["device-00"]
    assert "(1, 20, 40)" in said["device-00"]


def say(run: fleets.Run, topic: str, frame: bytes) -> None:
    """As one more client of the broker."""
    link = run.hub.link("somebody")
    link.connect([])
    link.send(topic, frame)


def ask(
    run: fleets.Run, device: str, blocks: tuple[int, ...], sha256: bytes, *, topic_of: str | None = None, times: int = 1
) -> None:
    request = PublicRequest(federation="tiny", device=device, sha256=sha256, blocks=blocks)
    for i in range(times):
        frame = codec.encode(request, Stamp(1, 10_000 + i))
        say(run, topics.up("tiny", topic_of or device, "get"), frame)


def test_requests_that_do_not_belong_here_are_counted_against_their_sender(tmp_path: Path, fleet: Fleet) -> None:
    run = fleets.Run(fleet, caches=tmp_path)
    for device in run.begun:
        run.slow_down(device, 10.0)
    ours = fleet.dataset.public.spec.sha256

    def rogue() -> None:
        ask(run, "device-00", (17,), ours)
        ask(run, "device-00", (0,), bytes(32))
        ask(run, "device-01", tuple(range(16)), ours, times=20)
        ask(run, "device-02", (0,), ours, topic_of="device-03")
        ask(run, "stranger", (0,), ours)

    run.clock.at(15.0, rogue)
    sent = run.tap()
    run.finished()
    assert run.result.completed
    refused = run.server.record.refused_frames
    assert refused["device-00"]["knowledge"] == 2
    assert 15 <= refused["device-01"]["limit"] <= 18
    assert refused["device-03"]["topic"] == 1
    assert refused["stranger"] == {"stranger": 1}
    assert not [m for m in sent if isinstance(m, PublicBlock) and m.device in ("stranger", "device-03")][17:]
    assert not [m for m in sent if isinstance(m, Bye)]
    assert {each.agent.session.phase for each in run.devices} == {SessionPhase.DONE}


def test_a_request_to_a_coordinator_without_a_set(fleet: Fleet) -> None:
    run = fleets.Run(fleet)
    run.slow_down("device-00", 1.0)
    run.clock.at(0.5, lambda: ask(run, "device-00", (0,), bytes(32)))
    run.finished()
    assert run.result.completed
    assert run.server.record.refused_frames["device-00"] == {"knowledge": 1}


def test_an_upload_of_a_device_that_still_fetches_is_refused(tmp_path: Path, fleet: Fleet) -> None:
    run = fleets.Run(fleet, caches=tmp_path)
    upload = Upload(federation="tiny", device="device-00", round=0, exchange=0)
    topic = topics.up("tiny", "device-00", "upd")

    def early() -> None:
        frame = codec.encode(upload, Stamp(1, 10_000))
        say(run, topic, frame)

    run.clock.at(0.03, early)
    run.finished()
    assert run.result.completed
    assert run.server.record.refused_frames["device-00"] == {"knowledge": 1}
