"""FedRep and FedBABU: worked numbers, who trains what, and whole runs against plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import draws
import fleets
import numpy as np
import pytest
from laws import spec_of

from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.averaging import read_weights
from edge_sdk.methods.contract.base import OnDevice, Stage, Up
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.registry import METHODS, load_method, method_of
from edge_sdk.methods.contract.requests import Evaluate, Fit, ReadHead, ReadWeights
from edge_sdk.methods.fedavg import FedAvg
from edge_sdk.methods.fedbabu import common_head
from edge_sdk.objectives import CrossEntropy
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.reductions import Contribution
from edge_sim.config import settings

RATE = 0.1
UPS = {"fedrep": ([1, 2], [5, -2], [3, 0]), "fedbabu": ([1, 2], [5, -2], [2.6, 0.4])}


@pytest.mark.parametrize("name", UPS)
def test_the_worked_mean(name: str) -> None:
    spec = spec_of(load_method(name), start="equal")
    method = method_of(spec)
    aggregate, uniform = method.zero(), method.params.weighting == "uniform"
    *ups, expected = UPS[name]
    for number, (values, samples) in enumerate(zip(ups, (12, 8), strict=True)):
        up = Weights(values=np.array(values, np.float32), layout=bytes(16), count=1 if uniform else samples)
        aggregate = method.add(aggregate, Contribution(number=number, samples=samples, knowledge={"weights": up}))
    after = method.finish(spec, method.begin(spec), ExchangeId(0, 0), aggregate)
    np.testing.assert_allclose(after.weights.values, expected, atol=1e-6)


def asked(name: str, round_: int, **params: Any) -> list[Any]:
    """What one exchange asks of a device."""
    spec = spec_of(load_method(name), **params)
    method = method_of(spec)
    job = Job(spec=spec, number=0, round=round_, exchange=0, closing=round_ == spec.rounds, samples=9, learns=True)
    down = {"weights": Weights(values=np.ones(2, np.float32), layout=bytes(16))} if round_ else {}
    step = method.step(method.device_state(), down, job)
    requests, answer = [], None
    while True:
        try:
            request = step.send(answer)
        except StopIteration:
            return requests
        requests.append(request)
        read = np.zeros((5, 4), np.float32) if isinstance(request, ReadHead) else None
        answer = read if read is not None else Weights(values=np.ones(2, np.float32), layout=bytes(16))


def kinds(requests: list[Any]) -> list[str]:
    return [f"fit {each.part}" if isinstance(each, Fit) else type(each).__name__ for each in requests]


def test_fedrep_trains_the_head_first() -> None:
    requests = asked("fedrep", 0, head_steps=4)
    assert kinds(requests) == ["fit head", "fit body", "ReadWeights", "Evaluate"]
    head, body = (each.source.indices for each in requests[:2])
    assert (len(head), len(body)) == (4, 5)
    assert not np.array_equal(head, body[:4])
    assert kinds(asked("fedrep", 1)) == ["Evaluate"]


def test_fedbabu_tunes_what_it_measures_and_nothing_else() -> None:
    took = ["ReadHead", "WriteHead", "WriteWeights"]
    assert kinds(asked("fedbabu", 0)) == ["ReadHead", "WriteHead", "fit body", "ReadWeights"]
    assert kinds(asked("fedbabu", 1)) == [*took, "Evaluate", "fit head", "Evaluate"]
    assert kinds(asked("fedbabu", 1, tune="all", tune_steps=3))[3:] == ["Evaluate", "fit all", "Evaluate"]
    assert kinds(asked("fedbabu", 1, tune_steps=0))[3:] == ["Evaluate", "Evaluate"]
    assert [each.model for each in asked("fedbabu", 1) if isinstance(each, Evaluate)] == ["global", "personal"]


@pytest.mark.parametrize(
    ("name", "own"), [("ditto", ["ReadWeights"]), ("fedrod", ["ReadWeights"]), ("fedavg", []), ("fedprox", [])]
)
def test_the_end_measures_the_global_model_and_keeps_a_personal_one(name: str, own: list[str]) -> None:
    requests = asked(name, spec_of(load_method(name)).rounds)
    measured = next(each for each in requests if isinstance(each, Evaluate))
    assert measured.model == "global"
    assert kinds(requests)[: len(own)] == own
    assert kinds(requests)[-1] == ("WriteWeights" if own else "Evaluate")


@pytest.mark.parametrize(
    ("name", "lent"),
    [("fedavg", [True]), ("fedrep", [True]), ("fedbabu", [True]), ("ditto", [False] * 3), ("fedrod", [False])],
)
def test_weights_are_lent_where_the_model_stays_as_it_was_shared(name: str, lent: list[bool]) -> None:
    requests = asked(name, 0)
    reads = [each for each in requests if isinstance(each, ReadWeights)]
    assert [each.lent for each in reads] == lent
    if lent == [True]:
        assert set(kinds(requests[requests.index(reads[0]) + 1 :])) <= {"Evaluate", "Report"}


class GoesOn(FedAvg):
    """Trains on when it has made the upload."""

    name = "goes-on"

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        up = yield from super().share(device)
        yield from device.fit((CrossEntropy(),))
        return up


class Hasty(FedAvg):
    """Trains on with the weights that it has lent."""

    name = "hasty"

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        up = yield from read_weights(device, "samples", lent=True)
        yield from device.fit((CrossEntropy(),))
        return up


def test_a_method_that_goes_on_with_its_upload_has_a_copy(register: Callable[[str, Mapping[str, str]], None]) -> None:
    register(METHODS, {"goes-on": f"{__name__}:GoesOn"})
    (read,) = [each for each in asked("goes-on", 0) if isinstance(each, ReadWeights)]
    assert not read.lent


def test_a_method_that_changes_what_it_lent_is_told(
    pictures: Path, register: Callable[[str, Mapping[str, str]], None]
) -> None:
    register(METHODS, {"hasty": f"{__name__}:Hasty"})
    with pytest.raises(UsageError, match=r"^Fit after ReadWeights\(lent=True\): ask for a copy, lent=False$"):
        made(pictures, "hasty").finished()


def test_a_head_for_all_is_a_function_of_the_seed() -> None:
    spec = spec_of(load_method("fedbabu"))
    head = common_head(spec, 100)
    np.testing.assert_array_equal(head, common_head(spec, 100))
    assert head.shape == (spec.classes, 101)
    assert 0.09 < np.abs(head).max() <= 0.1


# -- whole runs -----------------------------------------------------------------------------------------------------


def made(pictures: Path, name: str, **method: Any) -> fleets.Run:
    tables = fleets.tables(pictures, name, devices=3)
    tables["method"] = {"start": "equal", **method}
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE}
    tables["fleet"] = [{"count": 3, "model": "mlp"}]
    return fleets.Run(settings.parse(tables, Path("test.toml")))


class Twin:
    """A device in plain torch, in f8: a body, a head, its samples."""

    def __init__(self, run: fleets.Run, device: Any) -> None:
        import torch  # only where it is installed

        self.torch, self.spec, self.number = torch, run.fleet.federation.spec, device.kit.number
        self.net = device.kit.model(None).net.double()
        self.head = list(self.net[-1][-1].parameters())
        self.body = list(self.net.parameters())[:-2]
        self.x = torch.tensor(device.kit.model(None).spec.preprocess(device.data.train.x)).double()
        self.y = torch.tensor(device.data.train.y)

    def batches(self, round_: int, steps: int) -> np.ndarray:
        return draws.private_batches(
            seed=self.spec.seed,
            number=self.number,
            round_=round_,
            samples=len(self.x),
            size=self.spec.train.batch_size,
            steps=steps,
        )

    def steps(self, weights: list[Any], batches: np.ndarray, rate: float = RATE) -> None:
        for batch in batches:
            loss = self.torch.nn.functional.cross_entropy(self.net(self.x[batch]), self.y[batch])
            for weight, slope in zip(weights, self.torch.autograd.grad(loss, weights), strict=True):
                weight.data.sub_(rate * slope)


def fedrep_round(twin: Twin, round_: int) -> None:
    batches = twin.batches(round_, 4 + 3)
    twin.steps(twin.head, batches[:4])
    twin.steps(twin.body, batches[4:])


def fedbabu_round(twin: Twin, round_: int) -> None:
    twin.steps(twin.body, twin.batches(round_, 3))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "round_of", "params"),
    [("fedrep", fedrep_round, {"head_steps": 4}), ("fedbabu", fedbabu_round, {"tune_steps": 4, "tune_rate": 0.5})],
)
def test_a_whole_run_is_that_of_its_twin(
    pictures: Path, name: str, round_of: Callable[[Twin, int], None], params: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    run = made(pictures, name, **params)
    twins = [Twin(run, device) for device in run.fleet.devices]
    if name == "fedbabu":
        rows = torch.tensor(common_head(twins[0].spec, fleets.WIDTH)).double()
        for twin in twins:
            twin.head[0].data.copy_(rows[:, :-1])
            twin.head[1].data.copy_(rows[:, -1])
    begun = flat(twins[0].body)
    uniform = run.fleet.federation.spec.params["weighting"] == "uniform"
    counts = [1 if uniform else len(twin.x) for twin in twins]
    for round_ in range(twins[0].spec.rounds):
        for twin in twins:
            round_of(twin, round_)
        for same in zip(*(twin.body for twin in twins), strict=True):
            mean = sum(n * part.data for n, part in zip(counts, same, strict=True)) / sum(counts)
            if name == "fedbabu" or round_ < twins[0].spec.rounds - 1:  # fedrep's devices keep their last bodies
                for part in same:
                    part.data.copy_(mean)
    if name == "fedbabu":
        for twin in twins:
            twin.steps(twin.head, twin.batches(twin.spec.rounds, 4), 0.5 * RATE)
    run.finished()
    for virtual, twin in zip(run.devices, twins, strict=True):
        found = virtual.agent.bench.model.weights()
        np.testing.assert_allclose(found, flat([*twin.body, *twin.head]), atol=1e-5)
    assert np.abs(flat(twins[0].body) - begun).max() > 0.02  # the tolerance means something


def flat(parameters: list[Any]) -> np.ndarray:
    return np.concatenate([each.detach().numpy().ravel() for each in parameters]).copy()


@pytest.mark.torch
def test_the_worked_steps_of_fedrep() -> None:
    """docs/reference/methods/fedrep.md: one step of the head, then one of the body."""
    torch = pytest.importorskip("torch")
    from edge_sdk.models.base import Batches  # beside the torch model
    from edge_sdk.models.torch_nets.torch_model import TorchModel  # needs torch
    from edge_sdk.objectives import CrossEntropy, Optim

    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 2))
    net[1].weight.data.fill_(2)
    net[2].weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
    net[2].bias.data.zero_()
    net[2].bias.requires_grad_(requires_grad=False)
    model = TorchModel(net, 2, input_shape=(1, 1, 1))
    one = Batches(inputs=np.ones((1, 1, 1, 1), np.float32), labels=np.zeros(1, np.int64), indices=np.zeros((1, 1), int))
    half = Optim(kind="sgd", learning_rate=0.5)
    model.fit(one, (CrossEntropy(),), half, "head")
    np.testing.assert_allclose(net[2].weight.data[:, 0], [1.017986, -1.017986], atol=1e-6)
    assert net[1].weight.item() == 2
    model.fit(one, (CrossEntropy(),), half, "body")
    assert net[1].weight.item() == pytest.approx(2.017060, abs=1e-6)
