"""The table of requests: open to handlers of other packages, and clear about what is missing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from edge_sdk.data import LocalData, Samples
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import ModelError, UsageError
from edge_sdk.methods.contract import requests
from edge_sdk.methods.contract.requests import REQUESTS, Request, serves
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.protocol import registry


@dataclass(frozen=True)
class Range(Request):
    """Answered with the least and the largest logit of all private samples."""


@dataclass(frozen=True)
class Missing(Request):
    """Nothing serves it."""


@dataclass(frozen=True)
class Broken(Request):
    """Its handler does not load."""


@dataclass(frozen=True)
class Mistaken(Request):
    """Under its name stands the handler of another request."""


@serves(Range)
def range_of(bench: Workbench, _request: Range, _job: object) -> Generator[None, None, tuple[float, float]]:
    logits = bench.logits(bench.samples)
    yield
    return float(logits.min()), float(logits.max())


@pytest.fixture
def bench() -> Workbench:
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    return Workbench(NumpyModel(2, (1, 1, 3), seed=0), LocalData(train=Samples(x, np.array([0, 1, 1, 0, 1]))))


@pytest.fixture
def installed(register: Callable[[str, Mapping[str, str]], None]) -> None:
    """A package with these handlers."""
    ours = f"{__name__}:range_of"
    register(REQUESTS, {"Range": ours, "Broken": "no_such_module:handler", "Mistaken": ours})


def served(bench: Workbench, request: Request) -> tuple[Any, int]:
    """The answer, and how often the work paused."""

    def drive() -> Generator[None, None, None]:
        answers.append((yield from bench.serve(request, None)))  # type: ignore[arg-type]  # these requests need no job

    answers: list[Any] = []
    pauses = len(list(drive()))
    return answers[0], pauses


def test_every_request_of_the_package_has_a_handler() -> None:
    ours = {n for n, each in inspect.getmembers(requests, inspect.isclass) if Request in each.__bases__}
    assert ours == set(registry.names(REQUESTS))


class OneWeightLess(NumpyModel):
    """Gives one weight less than its spec declares."""

    def weights(self) -> np.ndarray:
        return super().weights()[:-1]


@pytest.mark.parametrize("lent", [True, False])
def test_a_model_that_gives_too_few_weights_is_named(bench: Workbench, *, lent: bool) -> None:
    bench.model = OneWeightLess(2, (1, 1, 3), seed=0)
    with pytest.raises(ModelError, match=r"^weights of shape \(7,\) for model 'softmax': expected \(8,\)$"):
        served(bench, requests.ReadWeights(lent=lent))


@pytest.mark.usefixtures("installed")
def test_a_request_of_another_package_is_served(bench: Workbench) -> None:
    logits = bench.model.logits(bench.samples)
    assert served(bench, Range()) == ((float(logits.min()), float(logits.max())), 1)
    assert bench.meter.infer_calls == 1
    assert served(bench, requests.ReadHead())[1] == 0


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Missing(), "the request Missing"),
        (Broken(), "'Broken': no_such_module:handler .*load"),
        (Mistaken(), "'Mistaken': .*not serve .*Mistaken"),
    ],
)
def test_what_is_not_served_is_one_clear_line(bench: Workbench, request_: Request, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        served(bench, request_)
    assert "\n" not in str(caught.value)


class Slow(NumpyModel):
    """It computes what it answers ahead, with three pauses."""

    def ahead(self, x: np.ndarray) -> Iterator[None]:
        del x
        yield from (None, None, None)


@pytest.mark.parametrize(
    "request_",
    [
        requests.OwnLogits(),
        requests.ClassMeans(),
        requests.HyperMeans(temperature=1.0),
        requests.BoundedShare(clip=1.0),
        requests.HeadGradients(layer=np.ones((2, 4), np.float32)),
        requests.MeanLoss(),
        requests.Evaluate(rounds_done=1),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_handler_pauses_while_a_model_answers(request_: Request) -> None:
    rng = np.random.default_rng(0)
    data = Samples(rng.normal(size=(5, 3)).astype(np.float32), np.array([0, 1, 1, 0, 1]))
    pauses = {
        kind: served(Workbench(kind(2, (1, 1, 3), seed=0), LocalData(train=data, test=data)), request_)[1]
        for kind in (NumpyModel, Slow)
    }
    assert pauses == {NumpyModel: 1, Slow: 4}
