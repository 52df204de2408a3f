"""Every term that stacks gives each device of a stack the step that it would take alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fleets
import numpy as np
import pytest

from edge_sdk import objectives as terms
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import ClassMeans, Fit, Logits, Public
from edge_sdk.objectives import Optim
from edge_sdk.protocol import registry
from edge_sim.config import settings
from edge_sim.engines.base import DeviceRequest, Engine, ExactEngine

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sim.engines.stack.torch_cohort import CohortEngine
from edge_sim.engines.stack.torch_stack import DenseStacking, VmapStacking
from edge_sim.engines.stack.torch_stacked_terms import STACKED_FORMS
from edge_sim.engines.torch_threads import use_exact_arithmetic, use_one_thread

use_one_thread()  # as every simulation does
use_exact_arithmetic()

K, D, B, STEPS = fleets.CLASSES, 6, 5, 3
OPTIM = Optim(kind="sgd", learning_rate=0.1)


def rows(rng: np.random.Generator, *shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def term(kind: type[terms.Term], rng: np.random.Generator, parameters: int, b: int = B) -> terms.Term:
    classes = np.sort(rng.permutation(K)[:3])
    soft = rng.dirichlet(np.ones(K), 3).astype(np.float32)
    known: dict[type[terms.Term], dict[str, Any]] = {
        terms.CrossEntropy: {},
        terms.Distill: {"logits": rows(rng, STEPS, b, K), "temperature": 2.0},
        terms.LessForgetting: {"logits": rows(rng, STEPS, b, K)},
        terms.LogitGradient: {"gradient": rows(rng, STEPS, b, K)},
        terms.ClassTarget: {"classes": classes, "rows": soft},
        terms.PrototypePull: {"classes": classes, "rows": rows(rng, 3, D)},
        terms.PrototypeDistance: {"classes": classes, "rows": rows(rng, 3, D)},
        terms.HeadMatch: {"features": rows(rng, 3, D), "soft": soft},
        terms.Proximal: {"anchor": rows(rng, parameters)},
    }
    return kind(**known[kind], weight=float(rng.uniform(0.5, 2)))


ON_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
WAYS = {
    "products": ("mlp", "cpu", DenseStacking),
    "vmap": ("resnet", "cpu", VmapStacking),
    "gpu": ("resnet", "cuda:0", VmapStacking),
}
"""How to stack which nets, and where."""


@pytest.fixture(scope="module", params=["products", "vmap", pytest.param("gpu", marks=ON_A_GPU)])
def way(request: pytest.FixtureRequest) -> Any:
    return WAYS[request.param]


@pytest.fixture(scope="module")
def cohort(way: Any) -> Callable[[], CohortEngine]:
    return lambda: CohortEngine(stacking=way[2]())


@pytest.fixture(scope="module")
def fleet(pictures: Path, way: Any) -> Any:
    plain = fleets.tables(pictures, "fedmd", devices=7, feature_dim=D)
    plain["fleet"] = [{"count": 7, "model": way[0]}]
    plain["run"] |= {"device": way[1]}
    return settings.parse(plain, Path("test.toml"))


def asked(run: fleets.Run, request_of: Any) -> list[DeviceRequest]:
    rng = np.random.default_rng(3)
    found = []
    for device in run.devices:
        bench, number = device.participant.context.bench, device.device.kit.number
        job = Job(
            spec=run.fleet.federation.spec,
            number=number,
            round=0,
            exchange=0,
            closing=False,
            samples=len(bench.data.train),
            learns=True,
        )
        found.append(DeviceRequest(bench, request_of(rng, bench, job), job))
    return found


KINDS = (
    *(terms.terms()[name] for name in registry.names(STACKED_FORMS)),
    terms.HeadMatch,
    terms.Proximal,
)  # and two that do not stack


RECIPES = {
    "decay": Optim(kind="sgd", learning_rate=0.1, weight_decay=0.3),
    "decay of all": Optim(kind="sgd", learning_rate=0.1, momentum=0.5, weight_decay=0.3, decay_all=True),
    "clipped": Optim(kind="sgd", learning_rate=0.1, clip_norm=0.5),
    "all at once": Optim(learning_rate=2e-4, beta1=0.5, beta2=0.9, weight_decay=0.1, clip_norm=0.5),
}
"""The rate of adam is small, because it divides a gradient near 0 by its own length, and so enlarges rounding."""


@pytest.mark.parametrize("optim", RECIPES.values(), ids=RECIPES)
def test_fits_under_every_recipe(fleet: settings.Config, cohort: Callable[[], CohortEngine], optim: Optim) -> None:
    """Devices with unlike numbers of steps, in two rounds at different rates: each clips its own gradient."""

    def request(rng: np.random.Generator, _bench: Any, job: Job) -> Fit:
        steps = STEPS - job.number % 2
        source = type(job.private_batches(1))(rng.integers(0, job.samples, (steps, B)))
        weight = 1.0 + job.number  # steep for some: their gradients alone are shortened
        return Fit(source=source, objective=(terms.CrossEntropy(weight=weight),), optim=optim)

    found = []
    for engine in (ExactEngine(), cohort()):
        run = fleets.Run(fleet)
        for share in (1.0, 0.25):
            requests = [
                replace(
                    each, request=replace(each.request, optim=replace(optim, learning_rate=share * optim.learning_rate))
                )
                for each in asked(run, request)
            ]
            engine.serve(requests)
        found.append([device.participant.context.bench.model.weights() for device in run.devices])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit(fleet: settings.Config, cohort: Callable[[], CohortEngine], kind: type[terms.Term]) -> None:
    def request(rng: np.random.Generator, bench: Any, job: Job) -> Fit:
        b = B - job.number % 3  # of different size
        also = term(kind, rng, bench.model.spec.parameters, b)
        steps = STEPS - job.number % 2  # and length
        aligned = isinstance(also, (terms.Distill, terms.LogitGradient))
        source = type(job.private_batches(1))(rng.integers(0, job.samples, (STEPS if aligned else steps, b)))
        return Fit(source=source, objective=(terms.CrossEntropy(), also), optim=OPTIM)

    outcomes = []
    for engine in (ExactEngine(), cohort()):
        run = fleets.Run(fleet)
        reports = engine.serve(asked(run, request))
        outcomes.append((reports, [d.participant.context.bench.model.weights() for d in run.devices], run))
    for one, other in zip(*(reports for reports, _, _ in outcomes), strict=True):
        assert other.steps == one.steps
        assert other.loss == pytest.approx(one.loss, rel=1e-4, abs=1e-5)
    for one, other in zip(*(weights for _, weights, _ in outcomes), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5)
    meters = [[d.participant.context.bench.meter for d in run.devices] for _, _, run in outcomes]
    assert meters[0] == meters[1]


@pytest.mark.parametrize("kind", [terms.PrototypePull, terms.PrototypeDistance, terms.ClassTarget])
def test_rows_that_all_devices_were_sent(
    fleet: settings.Config, cohort: Callable[[], CohortEngine], kind: type[terms.Term]
) -> None:
    """Devices may share the rows, and yet know other classes by them."""
    rng = np.random.default_rng(5)
    shared = rows(rng, 3, D) if kind is not terms.ClassTarget else rng.dirichlet(np.ones(K), 3).astype(np.float32)
    for whose in (lambda _number: np.arange(3), lambda number: np.arange(3) + number % 2):

        def request(rng: np.random.Generator, _bench: Any, job: Job, whose: Any = whose) -> Fit:
            source = type(job.private_batches(1))(rng.integers(0, job.samples, (STEPS, B)))
            also = kind(classes=whose(job.number), rows=shared)  # type: ignore[call-arg]  # of these three kinds
            return Fit(source=source, objective=(terms.CrossEntropy(), also), optim=OPTIM)

        found = []
        for engine in (ExactEngine(), cohort()):
            run = fleets.Run(fleet)
            engine.serve(asked(run, request))
            found.append([device.participant.context.bench.model.weights() for device in run.devices])
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(other, one, atol=1e-5)


@pytest.mark.traced
@pytest.mark.parametrize(
    "request_of",
    [
        lambda *_: ClassMeans(),
        lambda *_: ClassMeans("probabilities"),
        lambda rng, *_: Logits(Public(rng.integers(0, 40, (2, 8)))),
        lambda rng, _bench, job: Logits(type(job.private_batches(1))(rng.integers(0, job.samples, (2, 8)))),
    ],
)
def test_inference(fleet: settings.Config, cohort: Callable[[], CohortEngine], request_of: Any) -> None:
    answers = [engine.serve(asked(fleets.Run(fleet), request_of)) for engine in (ExactEngine(), cohort())]
    for one, other in zip(*answers, strict=True):
        if isinstance(one, np.ndarray):
            np.testing.assert_allclose(other, one, atol=1e-5)
        else:
            np.testing.assert_array_equal(other.classes, one.classes)
            np.testing.assert_array_equal(other.counts, one.counts)
            np.testing.assert_allclose(other.rows, one.rows, atol=1e-5)


def test_what_stacks(fleet: settings.Config, cohort: Callable[[], CohortEngine], way: Any) -> None:
    stacking = cohort()
    run = fleets.Run(fleet)
    (one, *_) = asked(run, lambda *_: ClassMeans())
    assert stacking.stackable(one)
    assert not CohortEngine(frozenset({"cnn"}), stacking=way[2]()).stackable(one)

    def on_the_head(rng: np.random.Generator, _bench: Any, job: Job) -> Fit:
        return Fit(source=job.private_batches(1), objective=(term(terms.HeadMatch, rng, 0),), optim=OPTIM)

    (one, *_) = asked(run, on_the_head)
    assert not stacking.stackable(one)


def test_nets_that_pass_a_weight_twice_do_not_stack_as_products() -> None:
    def stacks(*between: torch.nn.Module) -> bool:
        linear = torch.nn.Linear
        net = torch.nn.Sequential(torch.nn.Flatten(), linear(4, D), *between, linear(D, K))
        return bool(DenseStacking().key(SimpleNamespace(model=TorchModel(net, K, input_shape=(1, 2, 2)))))

    one, other = torch.nn.Linear(D, D), torch.nn.Linear(D, D)
    relu = torch.nn.ReLU()
    assert stacks(one, relu, other, relu)  # what has no weights may stand twice
    assert not stacks(one, relu, one)
    other.weight = one.weight
    assert not stacks(one, relu, other)


def trained_by(
    engine: Engine, pictures: Path, count: int, change: Callable[[Sequence[TorchModel]], None]
) -> list[np.ndarray]:
    """The weights of some devices' models after a fit; change: is called with the models before."""
    plain = fleets.tables(pictures, "fedmd", devices=count, feature_dim=D)
    plain["fleet"] = [{"count": count, "model": "mlp"}]
    run = fleets.Run(settings.parse(plain, Path("test.toml")))

    def request(rng: np.random.Generator, _bench: Any, job: Job) -> Fit:
        source = type(job.private_batches(1))(rng.integers(0, job.samples, (STEPS, B)))
        return Fit(source=source, objective=(terms.CrossEntropy(),), optim=OPTIM)

    models = [device.participant.context.bench.model for device in run.devices]
    change(models)
    engine.serve(asked(run, request))
    return [model.weights() for model in models]


@pytest.mark.traced
def test_weights_in_one_memory_of_which_some_lie_turned_are_trained_as_alone(pictures: Path) -> None:
    def turn(models: Sequence[TorchModel]) -> None:
        memory = torch.zeros(len(models), models[0].spec.parameters)
        for number, (model, row) in enumerate(zip(models, memory, strict=True)):
            pieces = row.split([weight.numel() for weight in model.trained])
            for weight, piece in zip(model.trained, pieces, strict=True):
                turned = number % 2 and weight.dim() == 2
                there = piece.view(weight.shape[::-1]).t() if turned else piece.view(weight.shape)
                weight.data = there.copy_(weight.detach())

    alone, stacked = (trained_by(engine, pictures, 4, turn) for engine in (ExactEngine(), CohortEngine()))
    np.testing.assert_allclose(stacked, alone, atol=1e-5)


@pytest.mark.traced
@pytest.mark.parametrize("stacking", [DenseStacking, VmapStacking])
def test_nets_with_hooks_train_as_alone(pictures: Path, stacking: type[DenseStacking | VmapStacking]) -> None:
    def hook(models: Sequence[TorchModel]) -> None:
        for model in models:
            model.net[1].register_forward_hook(lambda _layer, _args, out: 2 * out)

    engines = ExactEngine(), CohortEngine(stacking=stacking())
    alone, stacked = (trained_by(engine, pictures, 3, hook) for engine in engines)
    np.testing.assert_array_equal(stacked, alone)


def test_an_activation_may_stand_twice() -> None:
    """A net that has one object for two layers is stacked with both."""
    relu = torch.nn.ReLU()
    layers = torch.nn.Linear(3, D), relu, torch.nn.Linear(D, D), relu, torch.nn.Linear(D, K)
    net = torch.nn.Sequential(torch.nn.Flatten(), *layers)
    x = torch.randn(1, 5, 1, 1, 3)
    stack = DenseStacking().stack([TorchModel(net, K, input_shape=(1, 1, 3))], train=False)
    with torch.no_grad():
        np.testing.assert_allclose(stack.forward(x, 1).logits[0], net(x[0]), atol=1e-6)
