"""Models that no memory holds and deadlines that nobody meets are named before a run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import pytest

import firmware_profiles
from edge_sdk.boards.profiles import load_board, load_link
from edge_sdk.device.training.meter import Meter
from edge_sdk.errors import UsageError
from edge_sim.config import settings
from edge_sim.fleet import feasible
from edge_sim.fleet import fleet as simulated
from edge_sim.runs.runner import run

MIB = 2**20


def built(pictures: Path, method: str = "fedmd", **row: Any) -> simulated.Fleet:
    tables = fleets.tables(pictures, method, 2)
    tables["fleet"] = [{"count": 2, "model": "softmax", **row}]
    return simulated.build_fleet(settings.parse(tables, Path("f.toml")))


def test_a_small_model_fits_everywhere(pictures: Path) -> None:
    feasible.check_feasible(built(pictures, board="rpi-zero-2w"))


@pytest.mark.parametrize("quorum", [1, 2])
def test_models_that_cannot_do_what_the_method_needs_are_named_if_no_quorum_is_left(
    pictures: Path, quorum: int
) -> None:
    tables = fleets.tables(pictures, "fedalign", 2)
    tables["federation"]["quorum"] = quorum
    tables["fleet"] = [{"count": 2, "model": "softmax"}]
    with pytest.raises(UsageError, match=r"fleet\.model: fedalign .*refuse 2 of the 2: .* cannot do: .*width"):
        feasible.check_feasible(simulated.build_fleet(settings.parse(tables, Path("f.toml"))))


@pytest.mark.parametrize(
    ("method", "models", "said"),
    [
        ("fedproto", ("softmax", "numpy-random"), "last layer takes 128 features, the federation has 16: fedproto"),
        ("fedavg", ("softmax", "mlp"), r"weights of layout .* bring the model of device-00, softmax"),
        ("fedper", ("softmax", "softmax"), "trains nothing in front of its last layer"),
    ],
)
def test_models_that_cannot_be_averaged_are_named_before_anything_is_trained(
    pictures: Path, tmp_path: Path, method: str, models: tuple[str, str], said: str
) -> None:
    tables = fleets.tables(pictures, method, 2)
    tables["federation"]["feature_dim"] = 16
    tables["fleet"] = [{"count": 1, "model": model} for model in models]
    tables["run"] = {"standalone": True}
    with pytest.raises(UsageError, match=rf"fleet\.model: {method} can begin with 2 devices, and would .*{said}"):
        run(tables, out=tmp_path / "run")
    assert not (tmp_path / "run" / "standalone").exists()  # nobody trained alone


def test_fewer_unlike_models_than_the_quorum_needs_are_left_to_the_coordinator(pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedavg", 3)
    tables["federation"]["quorum"] = 2
    tables["fleet"] = [{"count": 1, "model": "mlp"}, {"count": 2, "model": "softmax"}]
    feasible.check_feasible(simulated.build_fleet(settings.parse(tables, Path("f.toml"))))


def test_what_a_device_needs_by_hand(pictures: Path) -> None:
    fleet = built(pictures)
    device, federation = fleet.devices[0], fleet.federation.spec
    spec = device.kit.model(device.public).spec
    need = feasible.memory_need(device, spec, federation)
    assert spec.parameters == 4 * 17
    assert need.model == 4 * 68 * (1 + 1 + 2 + 3)  # weights, gradients, two moments, and saved weights and moments
    assert need.activations == 2 * 4 * 4 * 8
    samples = len(device.data.train) + len(device.data.test) + 40
    assert need.data == samples * 16 * (4 + 4)
    shared = built(pictures, "fedavg")
    assert feasible.memory_need(shared.devices[0], spec, shared.federation.spec).model == 4 * 68 * 9


@pytest.mark.parametrize(
    ("ram_bytes", "words"),
    [
        (192 * MIB, "of its 192 MiB the system leaves 64 MiB"),
        (100 * MIB, "its 100 MiB"),
        (4000, "its 4,000 bytes"),
    ],
)
def test_what_no_memory_holds_is_named_with_its_numbers(
    pictures: Path, tmp_path: Path, ram_bytes: int, words: str
) -> None:
    board = Path(firmware_profiles.__file__).parent / "boards" / "rpi4.toml"
    small = board.read_text().replace("4_294_967_296", str(ram_bytes)).replace('"rpi4"', '"rpi-tiny"')
    (tmp_path / "tiny.toml").write_text(small)
    fleet = built(pictures, board=str(tmp_path / "tiny.toml"))
    with pytest.raises(UsageError) as caught:
        feasible.check_feasible(fleet)
    message = str(caught.value)
    for part in ("device-00 and 1 more", "softmax on rpi-tiny", "runtime 64 MiB", words):
        assert part in message
    assert "\n" not in message


def test_a_model_for_a_runtime_that_the_board_has_not_is_named(pictures: Path, tmp_path: Path) -> None:
    board = Path(firmware_profiles.__file__).parent / "boards" / "rpi4.toml"
    other = board.read_text().replace('["numpy", "onnx", "torch"]', '["onnx"]').replace('"rpi4"', '"rpi-onnx"')
    (tmp_path / "onnx.toml").write_text(other)
    tables = fleets.tables(pictures, "local", 2)
    tables["fleet"] = [{"model": "softmax"}, {"model": "softmax", "board": "onnx.toml"}]
    with pytest.raises(UsageError, match=r"^fleet\.model: device-01 .*softmax.*numpy.*rpi-onnx.*onnx"):
        run(settings.parse(tables, tmp_path / "f.toml"))


@pytest.mark.parametrize("run_of", [{}, {"stack": True}, {"processes": 2}])
def test_a_model_to_stack_that_nobody_has_is_named(pictures: Path, run_of: dict[str, Any]) -> None:
    tables = fleets.tables(pictures, "fedmd", 2, rounds=1)
    tables["fleet"] = [{"count": 2, "model": "softmax"}]
    tables["run"] = {**run_of, "stacked": ["softmax", "nope"], "standalone": False}
    with pytest.raises(UsageError, match=r"^run\.stacked: .*'nope'; .*softmax$"):
        run(settings.parse(tables, Path("f.toml")))
    tables["run"]["stacked"] = ["softmax"]
    assert run(settings.parse(tables, Path("f.toml"))).completed


@pytest.mark.parametrize("method", ["fedmd", "fedavg"])
def test_a_deadline_that_nobody_meets_is_told_before_the_first_round(pictures: Path, method: str) -> None:
    tables = fleets.tables(pictures, method, 2, deadline_s=0.005)
    tables["fleet"] = [{"model": "softmax"}, {"model": "softmax", "board": "x86"}]
    with pytest.raises(UsageError, match=r"deadline_s: 0\.005 s is .*device-01 .*x86"):
        run(settings.parse({**tables, "train": {"local_steps": 1000}}, Path("f.toml")))
    tables["federation"]["deadline_s"] = 60.0
    assert run(settings.parse(tables, Path("f.toml"))).completed


def test_the_least_time_by_hand(pictures: Path) -> None:
    fleet = built(pictures, "fedavg", link="lte-cat1")
    device = fleet.devices[0]
    spec, link, meter = device.kit.model(None).spec, load_link("lte-cat1"), Meter()
    for _ in range(3):
        meter.trained(spec, 8, "all")
    by_hand_s = link.transfer_s(0, up=False) + load_board("rpi4").compute_s(meter.train) + link.transfer_s(272, up=True)
    assert feasible.least_s(device, spec, fleet.federation.spec) == pytest.approx(by_hand_s)
