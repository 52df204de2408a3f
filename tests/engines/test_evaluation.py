"""Evaluations in engines: the figures of one device after the other, and equal global models are run once."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from test_engines import config

from edge_sdk.device.training.workbench import Workbench
from edge_sdk.methods.contract.requests import Evaluate, MeasuredModel
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sim.engines.base import DeviceRequest, Engine, ExactEngine, job_at, serve_alone
from edge_sim.engines.stack.torch_cohort import CohortEngine
from edge_sim.fleet.fleet import build_fleet


def asked(pictures: Path, model: MeasuredModel, *, equal: bool) -> tuple[list[DeviceRequest], list[int]]:
    """Return an evaluation by each of six devices, and a list of the samples in each pass of a net."""
    fleet = build_fleet(config(pictures, "fedavg"))
    benches = [Workbench(each.kit.model(each.public), each.data, each.public) for each in fleet.devices]
    passes: list[int] = []
    for bench in benches:
        assert isinstance(bench.model, TorchModel)
        bench.model.net.register_forward_hook(lambda _net, args, _out: passes.append(len(args[0])))
        scale = 1 if equal else 1 + bench.samples.mean()
        bench.model.set_weights(benches[0].model.weights() * scale)
    spec = fleet.federation.spec
    return [
        DeviceRequest(bench, Evaluate(1, model=model), job_at(spec, at, 0, 0, len(bench.samples)))
        for at, bench in enumerate(benches)
    ], passes


@pytest.mark.traced
@pytest.mark.parametrize("engine", [ExactEngine, CohortEngine, lambda: CohortEngine(threads=2)])
@pytest.mark.parametrize("equal", [True, False])
def test_global_models_have_the_figures_and_costs_of_one_after_the_other(
    pictures: Path, engine: type[Engine], equal: bool
) -> None:
    alone, _ = asked(pictures, "global", equal=equal)
    expected = [serve_alone(each) for each in alone]
    together, _ = asked(pictures, "global", equal=equal)
    made = engine()
    try:
        assert made.serve(together) == expected
    finally:
        made.close()
    assert [each.bench.meter for each in together] == [each.bench.meter for each in alone]


def test_equal_global_models_are_run_once_and_personal_ones_each(pictures: Path) -> None:
    for model, times in (("global", 1), ("personal", 6)):
        requests, passes = asked(pictures, model, equal=True)
        test = requests[0].bench.data.test
        assert test is not None
        ExactEngine().serve(requests)
        assert sum(passes) == times * len(test)
