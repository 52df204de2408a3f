"""What a run books for rounds and devices, worked out by hand: accuracies, seconds, joules, bytes and counts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import fleets
import numpy as np
import pytest

from edge_sdk.protocol import topics
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.messages import Assign, CoordinatorStatus, Message, Receipt, Upload
from edge_sim.config import settings
from edge_sim.fleet.fleet import Device

RATE = 0.3
ROUNDS = 3


# -- accuracies -----------------------------------------------------------------------------------------------------


def made(pictures: Path, method: str) -> fleets.Run:
    tables = fleets.tables(pictures, method, devices=3, rounds=ROUNDS)
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE}
    return fleets.Run(settings.parse(tables, Path("test.toml")))


def with_ones(x: np.ndarray) -> np.ndarray:
    """Samples as rows of numbers, with a last column of ones."""
    return np.concatenate([x.reshape(len(x), -1), np.ones((len(x), 1))], axis=1).astype(np.float64)


class ByHand:
    """Softmax regression on one device: rows (k, d + 1)."""

    def __init__(self, run: fleets.Run, device: Device) -> None:
        model = device.kit.model(None)
        assert device.data.test is not None
        self.run, self.device, self.rows = run, device, model.head_rows().astype(np.float64)
        self.x, self.y = with_ones(model.spec.preprocess(device.data.train.x)), device.data.train.y
        self.test, self.truth = with_ones(model.spec.preprocess(device.data.test.x)), device.data.test.y

    def train(self, round_: int) -> None:
        for batch in fleets.private_batches(self.run, self.device, round_):
            scores = np.exp(self.x[batch] @ self.rows.T)
            error = scores / scores.sum(axis=1, keepdims=True) - np.eye(len(self.rows))[self.y[batch]]
            self.rows -= RATE * error.T @ self.x[batch] / len(batch)

    @property
    def accuracy(self) -> float:
        return float(((self.test @ self.rows.T).argmax(axis=1) == self.truth).mean())


def agree(found: dict[int, dict[str, float]], expected: dict[int, dict[str, float]]) -> None:
    assert found == {round_: pytest.approx(by_device) for round_, by_device in expected.items()}
    told = [tuple(expected[round_].values()) for round_ in sorted(expected)]
    assert all(a != b for a, b in itertools.pairwise(told)), "rounds that cannot be told apart show nothing"


def test_each_round_s_accuracy_is_that_of_the_model_after_it(pictures: Path) -> None:
    run = made(pictures, "local")
    by_hand = [ByHand(run, device) for device in run.fleet.devices]
    expected: dict[int, dict[str, float]] = {}
    for round_ in range(ROUNDS):
        for each in by_hand:
            each.train(round_)
            expected.setdefault(round_ + 1, {})[each.device.kit.id] = each.accuracy
    agree(run.finished().server.record.accuracy, expected)


def test_each_round_s_global_accuracy_is_that_of_the_mean_after_it(pictures: Path) -> None:
    """FedAvg; what is measured of the mean is booked for the round that made it, and not for the one that brings it."""
    run = made(pictures, "fedavg")
    by_hand = [ByHand(run, device) for device in run.fleet.devices]
    counts = [len(each.y) for each in by_hand]
    expected: dict[int, dict[str, float]] = {}
    for round_ in range(ROUNDS):
        for each in by_hand:
            each.train(round_)
        mean = np.average([each.rows for each in by_hand], axis=0, weights=counts)
        for each in by_hand:
            each.rows = mean.copy()
            expected.setdefault(round_ + 1, {})[each.device.kit.id] = each.accuracy
    agree(run.finished().server.record.global_accuracy, expected)


# -- seconds, joules and bytes --------------------------------------------------------------------------------------

BOARD = """
name = "round-figures"
title = "A board with round figures"
arch = "any"
runtimes = ["numpy"]
link = "link.toml"
ram_bytes = 1_000_000_000
cpu_hz = 1_000_000
cores = 1
train_flops_per_s = 1e4
infer_flops_per_s = 2e4
memory_bytes_per_s = 1e12
call_s = 0
disk_bytes_per_s = 1e15
idle_w = 2.0
busy_w = 5.0
throttles_after_s = 0
throttled_share = 1.0
source_url = "urn:edge-sdk:test"
[verified]
memory = "estimate"
cpu = "estimate"
speed = "estimate"
storage = "estimate"
power = "estimate"
thermal = "estimate"
"""
LINK = """
name = "round-figures"
title = "A link with round figures"
latency_s = 0.05
up_bytes_per_s = 10_000
down_bytes_per_s = 20_000
packet_bytes = 65536
packet_overhead_bytes = 0
message_overhead_bytes = 0
loss = 0
resend_s = 0
radio_w = 1.0
source_url = "urn:edge-sdk:test"
[verified]
rate = "estimate"
latency = "estimate"
packets = "estimate"
loss = "estimate"
power = "estimate"
"""
LATENCY_S = 0.05
UP, DOWN = 1e4, 2e4
"""Bytes a second."""
FORWARD = 2 * 16 * 4
"""Operations of one sample in softmax regression from 16 pixels to 4 classes: a product and a sum for each weight."""
TRAINED_S = 3 * 8 * 3 * FORWARD / 1e4
"""Three steps on eight samples, each of which costs three forward passes."""
SCORED_S = 8 * FORWARD / 2e4
"""The eight public samples of the round."""
DIGESTED_S = 8 * 3 * FORWARD / 1e4
"""One step on the eight public samples, towards the mean."""
TESTED_S = 40 * FORWARD / 2e4
"""The forty test samples."""


FRAMES_OF = {
    "up": ("Hello", "Upload 0", "Upload 1"),
    "down": ("Welcome", "Assign 0", "Receipt 0", "Assign 1", "Receipt 1"),
}
"""The frames that count in a device's bytes."""
FRAMES = ("DeviceStatus", *FRAMES_OF["up"], "ready", *FRAMES_OF["down"], "over")
"""All frames of a device, with the coordinator's announcements."""


def up_s(size_bytes: int) -> float:
    return LATENCY_S + size_bytes / UP


def down_s(size_bytes: int) -> float:
    return LATENCY_S + size_bytes / DOWN


def sizes_of(sent: list[tuple[Message, int]]) -> Iterator[tuple[str, int]]:
    """Name and size of each frame that device-00 sent or received, the coordinator's announcements included."""
    ids = iter(("ready", "over"))
    for message, size in sent:
        if isinstance(message, CoordinatorStatus):
            yield next(ids), size
        elif message.device == "device-00":  # type: ignore[attr-defined]  # all others have one
            place = f" {message.round}" if isinstance(message, (Assign, Upload, Receipt)) else ""
            yield f"{type(message).__name__}{place}", size


def test_joules_seconds_and_bytes_of_two_exchanges_by_hand(pictures: Path, tmp_path: Path) -> None:
    """One round of FedMD and its closing exchange, on two equal boards; only the sizes of the frames are read off."""
    (tmp_path / "board.toml").write_text(BOARD)
    (tmp_path / "link.toml").write_text(LINK)
    tables = fleets.tables(pictures, "fedmd", devices=2, rounds=1)
    tables["train"] |= {"optimiser": "sgd"}
    tables["fleet"] = [{"count": 2, "model": "softmax", "board": "board.toml"}]
    run = fleets.Run(settings.parse(tables, tmp_path / "test.toml"))
    frames = run.tap_frames()
    result = run.finished().result
    found = list(sizes_of(frames))
    size = dict(found)
    assert sorted(name for name, _ in found) == sorted(FRAMES), "a frame is sent twice, or is new: add it to the sums"
    opened_s = up_s(size["Hello"])
    closed_s = opened_s + down_s(max(size["Welcome"], size["Assign 0"])) + TRAINED_S + SCORED_S + up_s(size["Upload 0"])
    ended_s = (
        closed_s + down_s(max(size["Receipt 0"], size["Assign 1"])) + DIGESTED_S + TESTED_S + up_s(size["Upload 1"])
    )
    left_s = ended_s + down_s(max(size["Receipt 1"], size["over"]))
    (round_,) = result.history
    assert round_.virtual_s == pytest.approx(closed_s - opened_s)
    assert result.time["virtual_s"] == pytest.approx(left_s)
    busy_s = TRAINED_S + SCORED_S + DIGESTED_S + TESTED_S
    assert busy_s == pytest.approx(1.536)
    up, down = (sum(size[name] for name in FRAMES_OF[way]) for way in ("up", "down"))
    air_s = (size["DeviceStatus"] + up) / UP + (size["ready"] + down + size["over"]) / DOWN
    for device in result.devices:
        assert device.busy_s == pytest.approx(busy_s)
        assert device.flops == (3 * 8 * 3 + 8 + 8 * 3 + 40) * FORWARD == 18432
        assert device.steps == 4
        assert device.energy_j == pytest.approx(2.0 * left_s + (5.0 - 2.0) * busy_s + 1.0 * air_s)
        assert (device.bytes_up, device.bytes_down) == (up, down)
    first = {"up": ("Hello", "Upload 0"), "down": ("Welcome", "Assign 0", "Receipt 0")}
    up, down = (sum(size[name] for name in first[way]) for way in ("up", "down"))
    assert (round_.bytes_up, round_.bytes_down) == (2 * up, 2 * down)
    assert round_.device_s == pytest.approx(2 * (TRAINED_S + SCORED_S))
    assert round_.device_flops == 2 * (3 * 8 * 3 + 8) * FORWARD
    air_s = (size["DeviceStatus"] + up) / UP + (size["ready"] + down) / DOWN
    assert round_.device_j == pytest.approx(2 * (2.0 * closed_s + 3.0 * (TRAINED_S + SCORED_S) + 1.0 * air_s))


# -- what comes again -----------------------------------------------------------------------------------------------


def test_bytes_of_duplicates_count(pictures: Path) -> None:
    """The first upload comes twice in one breath, and once more a second later, when it is durable."""
    clean, run = (fleets.Run(fleets.built(pictures)) for _ in range(2))
    for each in (clean, run):
        each.slow_down("device-05", 10.0)  # the round is still open
    heard: list[bytes] = []
    publish, where = run.hub.publish, topics.up("tiny", "device-00", "upd")

    def again(sender: object, topic: str, frame: Frame, *, retain: bool) -> None:
        publish(sender, topic, frame, retain=retain)  # type: ignore[arg-type]  # a transport
        if topic == where and not heard:
            heard.append(frame)
            publish(sender, topic, frame, retain=retain)  # type: ignore[arg-type]
            run.clock.at(run.clock.now_s + 1.0, lambda: publish(sender, topic, frame, retain=retain))  # type: ignore[arg-type]

    run.hub.publish = again  # type: ignore[method-assign]
    before, after = (each.finished().result for each in (clean, run))
    assert after.updates["duplicate"] == before.updates["duplicate"] + 2
    assert [d.bytes_up for d in after.devices[1:]] == [d.bytes_up for d in before.devices[1:]]
    assert after.devices[0].bytes_up == before.devices[0].bytes_up + 2 * len(heard[0])
    assert after.devices[0].bytes_down > before.devices[0].bytes_down  # each copy is answered


@pytest.mark.parametrize("at_s", [25.0, 35.0, 55.0])
def test_a_restart_counts_every_accepted_upload_once(pictures: Path, at_s: float) -> None:
    """The coordinator loses its power while two, three or five of six uploads of the first round are durable."""
    run = fleets.Run(fleets.built(pictures))
    for i, device in enumerate(run.begun):
        run.slow_down(device, 10.0 + 10 * i)
    run.power_cut("coordinator", at_s=at_s, for_s=1.0)
    found = run.finished().result
    assert found.updates["accepted"] == 6 * (3 + 1)
    assert [device.rounds_done for device in found.devices] == [3] * 6
