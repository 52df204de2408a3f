"""FedL2G: the gradient of a step, what each half does in a round, and whole runs against a twin of second order."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from method_specs import FakeDevice, first_step, job, rows_of, spec_of

from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.contract.requests import Fit, GuidanceGradients, Request
from edge_sdk.methods.fedl2g import _QUIZ, FedL2G, Params, parts
from edge_sdk.objectives import ClassLogitMatch, Seen
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.reductions import Contribution
from edge_sim.config import settings

RATE = 0.1
SPEC = spec_of("fedl2g", feature_dim=2, warm_up=1)
GUIDANCE = rows_of([0, 1, 2], [[1, 0], [0, 1], [2, 2]])
GRADIENTS = rows_of([0, 2], [[3, 0], [0, 4]])


class Guided(FakeDevice):
    """A device that answers with GRADIENTS."""

    def answer(self, request: Request) -> Any:
        return GRADIENTS if isinstance(request, GuidanceGradients) else super().answer(request)


def exchange(round_: int, spec: Any = SPEC) -> Any:
    device = Guided()
    _, up = device.run(first_step({"guidance": GUIDANCE}, job(spec, round_)))
    return device.requests, up


def reduced(spec: Any, *ups: ClassRows) -> Any:
    method = method_of(spec)
    bag = method.zero()
    for number, rows in enumerate(ups):
        bag = method.add(bag, Contribution(number=number, samples=9, knowledge={"gradients": rows}))
    return bag, method.finish(spec, method.begin(spec), ExchangeId(0, 0), bag)


# -- the worked numbers ---------------------------------------------------------------------------------------------


def test_the_step_on_the_coordinator() -> None:
    """docs/reference/methods/fedl2g.md: the mean over the devices that sent a class, and zeros for others."""
    spec = spec_of("fedl2g", feature_dim=2, server_rate=0.5)
    bag, state = reduced(spec, GRADIENTS, rows_of([0], [[1, 2]]))
    moved = method_of(spec).begin(spec).vectors - state.vectors
    np.testing.assert_allclose(moved, [[1, 0.5], [0, 0], [0, 2]], atol=1e-6)
    found = method_of(spec).instruments(spec, state, state, ExchangeId(0, 0), bag)
    assert found["guidance_mean_gradient"] == pytest.approx(np.sqrt(4 + 1 + 16))


def test_a_large_gradient_is_clipped() -> None:
    spec = spec_of("fedl2g", feature_dim=2, server_rate=0.5)
    _, state = reduced(spec, rows_of([0], [[300, 400]]))
    moved = method_of(spec).begin(spec).vectors - state.vectors
    np.testing.assert_allclose(moved[0], [30, 40], rtol=1e-5)


def test_the_term_on_logits() -> None:
    """The mean over b k; a class without a vector adds nothing."""
    term = ClassLogitMatch(classes=np.array([0]), rows=np.array([[1.0, 0]], np.float32))
    seen = Seen(np.array([[2, 1], [5, 5]], np.float32), np.array([0, 1]))
    assert term.value(seen) == pytest.approx(2 / 4)
    np.testing.assert_allclose(term.slope(seen), [[0.5, 0.5], [0, 0]])


# -- on a device ----------------------------------------------------------------------------------------------------


def test_no_training_in_the_warm_up() -> None:
    (asked, measured), up = exchange(0)
    assert isinstance(asked, GuidanceGradients)
    assert measured.rounds_done == 1
    assert up == {"gradients": GRADIENTS}


@pytest.mark.parametrize(("on", "term"), [("features", "prototype-pull"), ("logits", "class-logit-match")])
def test_training_leaves_the_quiz_out(on: str, term: str) -> None:
    spec = spec_of("fedl2g", feature_dim=2, warm_up=1, on=on)
    requests, _ = exchange(2, spec)
    fit, asked = requests[:2]
    assert isinstance(fit, Fit)
    assert [each.name for each in fit.objective] == ["cross-entropy", term]
    assert fit.optim.clip_norm == 100
    rest, quiz = parts(job(spec, 2), Params())
    assert (len(rest), len(quiz)) == (5, 4)
    assert not set(quiz) & (set(fit.source.indices.ravel()) | set(asked.study))
    np.testing.assert_array_equal(asked.quiz, quiz)
    np.testing.assert_array_equal(parts(job(spec, 0), Params())[1], quiz)  # the same in every round


def test_a_warm_up_without_an_end_is_named() -> None:
    (line,) = FedL2G(Params(warm_up=5)).warnings(SPEC)
    assert line == "W27: method.warm_up = 5 leaves none of 5 rounds to train in; lower it"
    assert FedL2G(Params(warm_up=4)).warnings(SPEC) == ()


# -- whole runs -----------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("on", ["features", "logits"])
def test_a_run_is_its_naive_twin_of_second_order(pictures: Path, on: str) -> None:
    """The twin differentiates through the step, as the paper writes it; own models of two architectures."""
    torch, naive = pytest.importorskip("torch"), importlib.import_module("naive")
    tables = fleets.tables(pictures, "fedl2g", devices=4, rounds=3)
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE}
    tables["method"] = {"on": on, "warm_up": 1, "server_rate": 5.0}
    tables["fleet"] = [{"count": 2, "model": "mlp"}, {"count": 2, "model": "mlp-wide"}]
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    spec = run.fleet.federation.spec
    twins = [naive.Naive(run, device) for device in run.fleet.devices]
    begun = method_of(spec).begin(spec).vectors
    vectors = torch.tensor(begun).double()
    ce, mse = torch.nn.functional.cross_entropy, torch.nn.MSELoss()
    for round_ in range(3):
        brought: dict[int, list[Any]] = {}
        for twin in twins:
            number, size, net = twin.device.kit.number, spec.train.batch_size, twin.net
            order = np.random.default_rng([spec.seed, _QUIZ, number]).permutation(len(twin.y))
            rest, quiz = np.sort(order[size:]), np.sort(order[:size])
            drawn = fleets.draws.private_batches(
                seed=spec.seed, number=number, round_=round_, samples=len(rest), size=size, steps=3
            )

            def loss(batch: Any, v: Any, twin: Any = twin) -> Any:
                features = twin.body(twin.x[batch])
                logits = twin.head(features)
                return ce(logits, twin.y[batch]) + mse(features if on == "features" else logits, v[twin.y[batch]])

            for batch in rest[drawn] if round_ else ():
                parameters = list(net.parameters())
                slopes = torch.autograd.grad(loss(batch, vectors), parameters)
                assert sum(slope.square().sum() for slope in slopes).sqrt() < 100  # the clip changes nothing here
                naive.step(loss(batch, vectors), parameters, RATE)
            study = np.random.default_rng([spec.seed, round_, _QUIZ, number]).choice(rest, size, replace=False)
            v = vectors.clone().requires_grad_()
            names = dict(net.named_parameters())
            slopes = torch.autograd.grad(loss(study, v), names.values(), create_graph=True)
            after = {name: p - RATE * s for (name, p), s in zip(names.items(), slopes, strict=True)}
            answers = torch.func.functional_call(net, after, (twin.x[quiz],))
            (slope,) = torch.autograd.grad(ce(answers, twin.y[quiz]), v)
            for label in twin.y[study].unique().tolist():
                brought.setdefault(label, []).append(slope[label])
        for label, held in brought.items():
            vectors[label] -= 5.0 * torch.stack(held).mean(dim=0)
    run.finished()
    np.testing.assert_allclose(run.server.method_state.vectors, vectors.numpy(), atol=2e-6)
    for virtual, twin in zip(run.devices, twins, strict=True):
        np.testing.assert_allclose(virtual.agent.participant.context.bench.model.weights(), twin.weights, atol=2e-6)
    assert np.abs(vectors.numpy() - begun).max() > 1e-4  # the tolerance means something


@pytest.mark.torch
def test_the_gradient_leaves_the_model_as_it_was(pictures: Path) -> None:
    pytest.importorskip("torch")
    tables = fleets.tables(pictures, "fedl2g", devices=2, rounds=1)
    tables["method"] = {"warm_up": 1}
    tables["fleet"] = [{"count": 2, "model": "mlp"}]
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    before = [device.agent.participant.context.bench.model.weights() for device in run.devices]
    run.finished()
    for device, weights in zip(run.devices, before, strict=True):
        np.testing.assert_array_equal(device.agent.participant.context.bench.model.weights(), weights)
    assert {"guidance_gradient", "guidance_mean_gradient", "guidance_length"} <= {
        name for entry in run.result.history for name in entry.instruments
    }
