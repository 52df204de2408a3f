"""A second model beside a device's own: requests about it, its state, and proxies that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge_sdk.agent.agent import Agent
from edge_sdk.agent.app import App
from edge_sdk.cli import main
from edge_sdk.data import LocalData, Preprocess, Samples
from edge_sdk.device.membership import join
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import RemoteProtocolError, StoreError, UsageError
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.methods.contract.requests import (
    ClassMeans,
    Evaluate,
    Features,
    Fit,
    FitBoth,
    Logits,
    MeanLoss,
    Private,
    Public,
    ReadChange,
    ReadHead,
    ReadWeights,
    WriteHead,
    WriteWeights,
)
from edge_sdk.methods.fml import Mutual
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.models.predict_only import PredictOnly
from edge_sdk.objectives import CrossEntropy, Optim
from edge_sdk.protocol.messages import FederationSpec, Welcome
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.transport.memory.hub import Hub

CLASSES, WIDTH = 3, 4
X = np.random.default_rng(0).normal(size=(12, WIDTH)).astype(np.float32)
DATA = LocalData(train=Samples(X, np.arange(12) % CLASSES), test=Samples(X, np.arange(12) % CLASSES))
ROWS = Private(np.array([[0, 1], [2, 3]]))
OPTIM = Optim(kind="sgd", learning_rate=0.5)
METHOD = load_method("fml")()
JOB = Job(
    spec=FederationSpec(federation="f", method="fml", contract=METHOD.digest, classes=CLASSES, rounds=2),
    number=0,
    round=0,
    exchange=0,
    closing=False,
    samples=12,
    learns=True,
)


def softmax(seed: int, classes: int = CLASSES, **given: Any) -> NumpyModel:
    return NumpyModel(classes, (1, 1, WIDTH), seed=seed, **given)


@pytest.fixture
def bench() -> Workbench:
    made = Workbench(softmax(1), DATA)
    made.add_proxy(softmax(2))
    return made


def served(bench: Workbench, request: Any) -> tuple[Any, int]:
    """The answer, and how often the work paused."""
    work, pauses = bench.serve(request, JOB), 0
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return stop.value, pauses
        pauses += 1


@pytest.mark.parametrize(
    "kind", [Logits, Features, ReadHead, ClassMeans, MeanLoss, Evaluate], ids=lambda kind: kind.__name__
)
def test_what_is_asked_of_the_proxy_is_answered_by_it(bench: Workbench, kind: Any) -> None:
    arguments = {Logits: [ROWS], Features: [ROWS], Evaluate: [1]}.get(kind, [])
    own, proxy = (served(bench, kind(*arguments, of=of))[0] for of in ("own", "proxy"))
    as_own = [served(Workbench(softmax(seed), DATA), kind(*arguments))[0] for seed in (1, 2)]
    assert _plain(own) == _plain(as_own[0])
    assert _plain(proxy) == _plain(as_own[1])
    assert kind in (Features, ClassMeans, Evaluate) or _plain(own) != _plain(proxy)


def test_weights_of_the_own_model_never_leave_beside_a_proxy(bench: Workbench) -> None:
    """Also if a coordinator admits the device to a method that averages the models themselves."""
    assert served(bench, ReadWeights(of="proxy"))[0].values.tolist() == softmax(2).weights().tolist()
    for request in (ReadWeights(), ReadWeights(without_head=True), ReadChange(None, 0.9)):
        with pytest.raises(UsageError, match="never leave the device"):
            served(bench, request)
    averaging = load_method("fedavg")()
    spec = FederationSpec(federation="f", method="fedavg", contract=averaging.digest, classes=CLASSES, rounds=2)
    welcome = Welcome(federation="f", device="d", number=0, epoch=1, spec=spec, run=bytes(16))
    assert join(welcome, bench.shared, shares_weights=True).method.name == "fedavg"
    with pytest.raises(RemoteProtocolError, match="proxy= is set here"):
        join(welcome, bench.shared, shares_weights=True, has_proxy=True)


def _plain(answer: Any) -> Any:
    return answer.tolist() if isinstance(answer, np.ndarray) else answer


def test_what_is_written_to_the_proxy_leaves_the_own_model_alone(bench: Workbench) -> None:
    before = bench.model.state_bytes()
    served(bench, Fit(source=ROWS, objective=(CrossEntropy(),), optim=OPTIM, of="proxy"))
    served(bench, WriteHead(np.array([0]), np.ones((1, WIDTH + 1), np.float32), of="proxy"))
    assert bench.proxy is not None
    assert bench.proxy.model.head_rows()[0].tolist() == [1] * (WIDTH + 1)
    served(bench, WriteWeights(np.zeros(bench.shared.parameters, np.float32), of="proxy"))
    assert not bench.proxy.model.weights().any()
    assert bench.model.state_bytes() == before


def test_both_models_take_their_steps_from_the_same_point(bench: Workbench) -> None:
    """Both train on one mini-batch; swapping the roles swaps the results."""
    swapped = Workbench(softmax(2), DATA)
    swapped.add_proxy(softmax(1))
    one = Private(np.array([[0, 1, 2]]))
    for each, (alpha, beta) in ((bench, (0.3, 0.6)), (swapped, (0.6, 0.3))):
        coupling = Mutual(alpha=alpha, beta=beta)
        answer, pauses = served(each, FitBoth(source=one, coupling=coupling, optim=OPTIM, proxy_optim=OPTIM))
        assert (answer, pauses) == (coupling, 1)
    assert bench.proxy is not None
    assert swapped.proxy is not None
    assert bench.model.weights().tolist() == swapped.proxy.model.weights().tolist()
    assert bench.proxy.model.weights().tolist() == swapped.model.weights().tolist()


def test_a_device_stops_while_either_model_prepares(bench: Workbench) -> None:
    assert bench.proxy is not None
    asked = []
    for each in (bench.model, bench.proxy.model):
        each.preparing = lambda *given: asked.append(given) or iter([None, None])  # type: ignore[attr-defined]
    request = FitBoth(source=ROWS, coupling=Mutual(alpha=0.5, beta=0.5), optim=OPTIM, proxy_optim=OPTIM)
    _, pauses = served(bench, request)
    assert (pauses, len(asked)) == (len(ROWS.indices) + 4, 2)


def test_the_rates_of_the_two_are_their_own(bench: Workbench) -> None:
    before = bench.model.weights().tolist()
    still = Optim(kind="sgd", learning_rate=0.0)
    served(bench, FitBoth(source=ROWS, coupling=Mutual(alpha=0.5, beta=0.5), optim=still, proxy_optim=OPTIM))
    assert bench.proxy is not None
    assert bench.model.weights().tolist() == before
    assert bench.proxy.model.weights().tolist() != softmax(2).weights().tolist()


def test_the_state_of_both_models_is_restored(bench: Workbench) -> None:
    adam = Optim(kind="adam", learning_rate=0.1)
    request = FitBoth(source=ROWS, coupling=Mutual(alpha=0.5, beta=0.5), optim=adam, proxy_optim=adam)
    served(bench, request)
    state = bench.state_bytes()
    served(bench, request)
    after = bench.state_bytes()
    assert after != state
    bench.load_state(state)
    assert bench.state_bytes() == state
    served(bench, request)
    assert bench.state_bytes() == after  # with the moments


def test_a_state_without_a_proxy_is_one_clear_line(bench: Workbench) -> None:
    with pytest.raises(StoreError, match=r"proxy: .*state folder"):
        bench.load_state(bench.model.state_bytes())
    with pytest.raises(StoreError, match=r"remove FEDERATION\.db in the state folder"):
        Workbench(softmax(1), DATA).load_state(bench.state_bytes())


def test_samples_are_preprocessed_once_where_both_models_take_the_same(bench: Workbench) -> None:
    assert bench.proxy is not None
    assert bench.proxy.samples is bench.samples
    assert bench.proxy.test is bench.test
    other = Workbench(softmax(1), DATA)
    other.add_proxy(softmax(2, preprocess=Preprocess(scale=2.0)))
    assert other.proxy is not None
    np.testing.assert_array_equal(other.proxy.samples, 2 * other.samples)


def test_a_public_set_that_comes_later_reaches_the_proxy(bench: Workbench) -> None:
    bench.give(PublicSet(X[:5]))
    rows = Public(np.array([[0, 4]]))
    found, _ = served(bench, Logits(rows, of="proxy"))
    np.testing.assert_array_equal(found[0], softmax(2).logits(X[[0, 4]][:, None, None]))


def test_without_a_proxy_the_request_is_refused() -> None:
    with pytest.raises(UsageError, match="give proxy="):
        served(Workbench(softmax(1), DATA), ReadWeights(of="proxy"))


def oracle(x: np.ndarray) -> np.ndarray:
    return np.zeros((len(x), CLASSES), np.float32)


BAD = {
    "classes": (softmax(2, CLASSES + 2), "has 5 classes, the device's own model softmax 3"),
    "training": (PredictOnly(oracle, CLASSES, name="oracle"), "oracle cannot do logit-gradients, weights"),
    "kind": (object(), "found object, which has no spec"),
}


@pytest.mark.parametrize("which", BAD)
def test_a_proxy_that_does_not_fit_is_one_line(which: str) -> None:
    proxy, words = BAD[which]
    with pytest.raises(UsageError) as caught:
        Agent(
            federation="f",
            broker=Hub().link("f-d"),
            identity="d",
            model=softmax(1),
            data=DATA,
            proxy=proxy,  # type: ignore[arg-type]  # what users get wrong
        )
    assert words in str(caught.value)
    assert str(caught.value).startswith("proxy: ")
    assert "\n" not in str(caught.value)


def mismatched() -> App:
    """An app whose proxy tells more classes apart than its model."""
    return App(model=softmax(1), data=DATA, proxy=softmax(2, CLASSES + 2))


def test_an_app_with_a_proxy_for_other_classes_ends_with_code_2(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["device", "--broker", "mqtt://127.0.0.1:1", "--federation", "f", "--app", f"{__name__}:mismatched"]
    assert main([*command, "--state", str(tmp_path / "state"), "--id", "d"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "proxy: softmax" in said[0]
