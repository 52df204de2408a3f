"""Which model a device runs: by name, by its board, at random or in turn."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import fleets
import pytest

from edge_sdk.boards.profiles import load_board
from edge_sdk.errors import UsageError
from edge_sim.config import settings
from edge_sim.config.device_conditions import model_of
from edge_sim.fleet import fleet

RPI4 = load_board("rpi4")


def test_a_name_is_itself() -> None:
    assert model_of("cnn", RPI4, 3, 0) == "cnn"
    with pytest.raises(UsageError, match="no model family 'cmn'"):
        model_of("cmn", RPI4, 0, 0)


@pytest.mark.parametrize(
    ("speed", "expected"),
    [(4e8, "mlp"), (4.9e9, "mlp"), (5e9, "cnn"), (1.9e10, "cnn"), (2e10, "resnet"), (1e15, "resnet")],
)
def test_a_faster_board_runs_a_larger_model(speed: float, expected: str) -> None:
    board = dataclasses.replace(RPI4, train_flops_per_s=speed)
    assert model_of("board", board, 0, 0) == expected
    assert model_of("board:mlp, cnn ,resnet", board, 0, 0) == expected


def test_a_board_takes_what_it_has_a_runtime_for() -> None:
    board = dataclasses.replace(RPI4, runtimes=("numpy", "onnx"), train_flops_per_s=1e12)
    assert model_of("board:softmax,onnx-random,cnn,resnet", board, 0, 0) == "onnx-random"
    with pytest.raises(UsageError, match=r"^fleet\.model: .*rpi4.*\(mlp, cnn, resnet\)"):
        model_of("board", board, 0, 0)


def test_the_boards_that_we_know_get_different_models() -> None:
    found = {name: model_of("board", load_board(name), 0, 0) for name in ("rpi-zero-2w", "rpi4", "jetson-orin-nano")}
    assert found == {"rpi-zero-2w": "mlp", "rpi4": "cnn", "jetson-orin-nano": "resnet"}


def test_random_is_drawn_from_the_seed_for_each_device_alone() -> None:
    rule = "random:mlp,cnn,resnet"
    drawn = [model_of(rule, RPI4, number, 0) for number in range(300)]
    assert drawn == [model_of(rule, RPI4, number, 0) for number in range(300)]
    assert drawn != [model_of(rule, RPI4, number, 1) for number in range(300)]
    assert set(Counter(drawn)) == {"mlp", "cnn", "resnet"}
    assert min(Counter(drawn).values()) > 70


def test_in_turn() -> None:
    rule = "cycle:fedssa-cnn-1,fedssa-cnn-2,fedssa-cnn-3"
    assert [model_of(rule, RPI4, number, 0)[-1] for number in range(5)] == list("12312")


@pytest.mark.parametrize("rule", ["random:mlp,cmn", "cycle:cmn", "board:mlp,,cnn", "random:"])
def test_every_name_of_a_list_is_checked(rule: str) -> None:
    with pytest.raises(UsageError, match=r"no model family '(cmn)?'"):
        model_of(rule, RPI4, 0, 0)


def test_a_fleet_row_may_leave_it_to_a_rule(pictures: Path) -> None:
    plain = fleets.tables(pictures, "local", 4)
    plain["fleet"] = [{"count": 3, "model": "cycle:softmax,onnx-random"}, {"model": "softmax"}]
    devices = fleet.build_fleet(settings.parse(plain, Path("f.toml"))).devices
    assert [device.kit.family for device in devices] == ["softmax", "onnx-random", "softmax", "softmax"]
    plain["fleet"][0]["model"] = "random:"
    with pytest.raises(UsageError, match=r"^f\.toml: fleet\[0\]\.model: .*family ''"):
        fleet.build_fleet(settings.parse(plain, Path("f.toml")))
