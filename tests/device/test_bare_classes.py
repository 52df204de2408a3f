"""A class mean that would be a sample does not leave: one sample of a class, under features that are the inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edge_sdk.data import LocalData, Samples
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import NotReleased
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.methods.contract.requests import ClassMeans, HeadGradients, HyperMeans, Request
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.protocol.messages import FederationSpec

CLASSES, WIDTH = 3, 4
METHOD = load_method("fedproto")()
JOB = Job(
    spec=FederationSpec(federation="f", method="fedproto", contract=METHOD.digest, classes=CLASSES, rounds=2),
    number=0,
    round=0,
    exchange=0,
    closing=False,
    samples=5,
    learns=True,
)
LAYER = np.random.default_rng(1).normal(size=(CLASSES, WIDTH + 1)).astype(np.float32)
ASKED = [ClassMeans(), HyperMeans(0.5), HeadGradients(LAYER)]


def bench(labels: list[int]) -> Workbench:
    x = np.random.default_rng(0).normal(size=(len(labels), WIDTH)).astype(np.float32)
    return Workbench(NumpyModel(CLASSES, (1, 1, WIDTH), seed=0), LocalData(train=Samples(x, np.array(labels))))


def answer(at: Workbench, request: Request) -> Any:
    answers: list[Any] = []

    def work() -> Iterator[None]:
        answers.append((yield from at.serve(request, JOB)))

    list(work())
    return answers[0]


@pytest.mark.parametrize("request_", ASKED, ids=lambda each: type(each).__name__)
def test_a_class_whose_mean_would_be_a_sample_is_left_out_and_told_once(request_: Request) -> None:
    at, lines = bench([0, 0, 1, 2, 2]), list[str]()
    at.tell_of_classes = lines.append
    for _ in range(2):
        assert answer(at, request_).classes.tolist() == [0, 2]
        assert answer(at, request_).counts.tolist() == [2, 2]
    assert len(lines) == 1
    assert lines[0].startswith("class 1 has one sample, and is left out")


@pytest.mark.parametrize("request_", ASKED, ids=lambda each: type(each).__name__)
def test_where_nothing_else_is_left_the_round_is_withheld(request_: Request) -> None:
    with pytest.raises(NotReleased) as caught:
        answer(bench([0, 1, 2]), request_)
    assert "every class has one sample" in caught.value.remedy
    assert "class" not in str(caught.value)


def test_sums_that_get_noise_and_features_of_an_extractor_have_every_class(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(bench([0, 0, 1]), HyperMeans(0.5, of_all=True)).classes.tolist() == [0, 1]
    assert answer(bench([0, 0, 1]), ClassMeans("probabilities")).classes.tolist() == [0, 1]
    at = bench([0, 0, 1])
    extract = at.model.features
    monkeypatch.setattr(at.model, "features", lambda x: np.tanh(extract(x)))
    assert answer(at, ClassMeans()).classes.tolist() == [0, 1]
