"""Any nets stacked through torch.func give what each gives alone: on the CPU, and on a GPU where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from coordinator.results.report.summary import summary
from edge_sdk import cli
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.requests import ClassMeans
from edge_sim.config import settings
from edge_sim.config.settings import Config, RunTable
from edge_sim.engines import choice
from edge_sim.engines.base import DeviceRequest, job_at
from edge_sim.models import families
from edge_sim.models.model_types import InputShape
from edge_sim.runs.runner import run

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn

from edge_sdk.data import LocalData, Preprocess, Samples
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sim.engines.stack.torch_cohort import CohortEngine
from edge_sim.engines.stack.torch_parameter_rows import ParameterRows
from edge_sim.engines.stack.torch_stack import Stack, VmapStacking
from edge_sim.engines.torch_threads import use_exact_arithmetic, use_one_thread

use_one_thread()  # as every simulation does
use_exact_arithmetic()

ON_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
DEVICES = ("cpu", pytest.param("cuda:0", marks=ON_A_GPU))
METHODS = ("fedproto", "fedavg", "fedmd", "fedal")
MOMENTUM = {"optimiser": "sgd", "momentum": 0.9, "local_epochs": 1}
OTHER_NETS = (
    ("cnn", {"optimiser": "adam"}),  # whose steps are of one length, also where a slope is but rounding
    ("resnet", {"optimiser": "sgd"}),
    ("resnet", MOMENTUM),
)


def config(pictures: Path, method: str, device: str, family: str = "cnn", **train: Any) -> Config:
    plain = fleets.tables(pictures, method, feature_dim=6)
    plain["fleet"] = [{"count": 6, "model": family}]
    plain["train"] = {**plain["train"], "evaluate_every": 2, **train}
    plain["run"] |= {"device": device}
    return settings.parse(plain, Path("test.toml"))


def stacking(device: str, moments: int = 0) -> CohortEngine:
    return CohortEngine(rows=ParameterRows(moments, device=torch.device(device)), stacking=VmapStacking())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("method", "family", "train"),
    [
        *((method, "cnn", MOMENTUM) for method in METHODS),
        *(("fedproto", family, train) for family, train in OTHER_NETS),
        *(
            pytest.param(method, family, train, marks=pytest.mark.long)  # nets and optimisers know no methods
            for method in METHODS[1:]
            for family, train in OTHER_NETS
        ),
    ],
)
def test_stacked_nets_differ_by_rounding(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, *, method: str, family: str, train: dict[str, Any], device: str
) -> None:
    chosen = config(pictures, method, device, family, **train)
    alone = fleets.Run(chosen).finished()
    written: list[bool] = []
    monkeypatch.setattr(Stack, "write", lambda _: written.append(True))  # a stack that is a copy stays one
    stacked = fleets.Run(chosen, engine=stacking(device, moments=1)).finished()
    assert written  # fits were stacked, and below: what was stepped was the models' own memory
    for one, other in zip(alone.devices, stacked.devices, strict=True):
        # Adam makes a step of a rounded gradient near 0: of 5,026 weights one was 6e-5 off on an AMD EPYC.
        own, of_stack = (each.participant.context.bench.model.weights() for each in (one, other))
        np.testing.assert_allclose(own, of_stack, atol=2e-4)
        assert one.participant.context.bench.meter == other.participant.context.bench.meter
        assert str(other.participant.context.bench.model.trained[0].device) == device
    assert stacked.clock.now_s == alone.clock.now_s
    assert stacked.server.record.bytes_up == alone.server.record.bytes_up


# -- which nets -----------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """A net whose words do not say everything."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by, self.head = by, nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.by * x.flatten(1))
        return out


class Sorted(nn.Module):
    """A net whose way depends on what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        out: torch.Tensor = self.head(flat if flat.sum() > 0 else -flat)
        return out


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 4))
    net[1].bias.requires_grad = False
    return net


def normalised(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), layer, nn.Flatten(), nn.Linear(64, 4))


def bench_of(net: nn.Module, device: str = "cpu") -> Workbench:
    rng = np.random.default_rng(1)
    data = LocalData(train=Samples(rng.normal(size=(8, 4, 4)).astype(np.float32), np.arange(8) % 4))
    return Workbench(TorchModel(net, 4, input_shape=(1, 4, 4), device=device), data)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("net", "stacks"),
    [
        (normalised(nn.GroupNorm(2, 4)), True),
        (normalised(nn.InstanceNorm2d(4)), True),
        (Scaled(0.5), True),
        (normalised(nn.BatchNorm2d(4)), False),
        (normalised(nn.BatchNorm2d(4, track_running_stats=False)), False),
        (normalised(nn.Dropout(0.5)), False),
        (Sorted(), False),
        (frozen(), False),
        (nn.Sequential(nn.Conv2d(1, 4, 4), nn.Flatten()), False),  # no features
    ],
    ids=str,
)
def test_what_stacks(net: nn.Module, stacks: bool, device: str) -> None:
    bench = bench_of(net, device)
    before = bench.model.state_bytes()
    assert bool(VmapStacking().key(bench)) == stacks
    assert bench.model.state_bytes() == before
    assert not net.training


def test_nets_in_the_same_words_are_compared() -> None:
    ways = VmapStacking()
    first, same, other = (ways.key(bench_of(Scaled(by))) for by in (0.5, 0.5, 0.25))
    assert first == same
    assert not other


def test_a_stack_is_cut_where_there_are_too_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    benches = [bench_of(normalised(nn.GroupNorm(2, 4))) for _ in range(3)]
    stack = VmapStacking().stack([bench.model for bench in benches if isinstance(bench.model, TorchModel)], train=False)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 5, 1, 4, 4)).astype(np.float32))
    whole = stack.forward(x, 3).logits
    monkeypatch.setattr("edge_sim.engines.stack.torch_stack.SAMPLES", 10)
    torch.testing.assert_close(stack.forward(x, 3).logits, whole)


# -- where --------------------------------------------------------------------------------------------------------------


def test_a_gpu_that_is_not_there_is_refused_before_the_run(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = fleets.tables(pictures, "fedmd")
    plain["run"]["device"] = "cuda:99"
    with pytest.raises(UsageError, match=r"run\.device: cuda:99, .*; use cpu"):
        run(plain)
    file = tmp_path / "run.toml"
    file.write_text(
        f'[federation]\nname = "tiny"\nmethod = "fedavg"\nrounds = 1\ndevices = 2\n'
        f'[data]\nsource = "npz"\npath = "{pictures}"\n'
    )
    assert cli.main(["simulate", str(file), "--set", "run.device=cuda:99", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "cuda:99" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"processes": 2}, r"run.processes: a GPU belongs to one process.*stack = true"),
        ({"cluster": "local"}, r"run.processes: a GPU belongs to one process.*stack = true"),
        ({"memory_bytes": 1}, "run.memory_bytes: weights lie on cuda:0, never in a file; leave it out"),
        ({"device": "gpu"}, "run.device"),
    ],
)
def test_what_a_gpu_has_no_use_for_is_refused(pictures: Path, table: dict[str, Any], message: str) -> None:
    plain = fleets.tables(pictures, "fedmd")
    plain["run"] |= {"device": "cuda:0", **table}
    with pytest.raises(UsageError, match=message):
        settings.parse(plain, Path("test.toml"))


def test_a_choice_made_for_a_cpu_is_not_kept_on_a_gpu(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / choice.CHOICE_FILE).write_text('{"processes": 2}')
    plain = fleets.tables(pictures, "fedmd")
    plain["run"] |= {"processes": "auto", "device": "cuda:0"}
    with pytest.raises(UsageError, match="a GPU belongs to one process"):
        choice.resolve_run(settings.parse(plain, Path("test.toml")), fleets.built(pictures), tmp_path)


def plain_factory(classes: int, _shape: InputShape, _seed: int, preprocess: Preprocess) -> TorchModel:
    return TorchModel(nn.Sequential(nn.Flatten(), nn.Linear(16, classes)), classes, preprocess=preprocess)


def test_a_factory_that_does_not_ask_where_is_refused_on_a_gpu() -> None:
    wanted: dict[str, Any] = {"classes": 4, "raw_shape": (4, 4), "preprocess": Preprocess(), "seed": 0}
    assert families.build_model(f"{__name__}:plain_factory", **wanted).spec.classes == 4
    with pytest.raises(UsageError, match=r"plain_factory .*`device`, .*cuda:0"):
        families.build_model(f"{__name__}:plain_factory", **wanted, device="cuda:0")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stack", [False, True, "auto"])
def test_a_run_says_where_it_was_computed(pictures: Path, stack: object, device: str) -> None:
    plain = fleets.tables(pictures, "fedproto", feature_dim=6)
    plain["fleet"] = [{"count": 6, "model": "cnn"}]
    plain["run"] |= {"stack": stack, "device": device}
    told = summary(run(plain))
    assert told["completed"]
    assert told["versions"]["device"].startswith(device)


def test_a_gpu_stacks_whatever_can_be(pictures: Path) -> None:
    from edge_sim.engines.torch_engines import stacking_engine  # torch is there

    run = fleets.Run(config(pictures, "fedproto", "cpu"))
    fleet, bench = run.fleet, run.devices[0].participant.context.bench
    asked = DeviceRequest(bench, ClassMeans(), job_at(fleet.federation.spec, 0, 0, 0, len(bench.data.train)))
    spec = fleet.federation.spec
    assert stacking_engine(RunTable(stack=True, device="cuda:0"), spec).stackable(asked)
    assert not stacking_engine(RunTable(stack=True), spec).stackable(asked)
