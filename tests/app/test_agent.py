"""The agent in an app: threads, real time, a hub in memory."""

from __future__ import annotations

import logging
import pydoc
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federated_apps import CLASSES, SAMPLES, Slow, agent_of, federation, wait_for

import edge_sdk
from coordinator.rounds import RoundPhase
from edge_sdk.agent.callbacks import LINK_LOG_INTERVAL_S
from edge_sdk.errors import ModelError, Refused, RunFailed, UsageError
from edge_sdk.transport.base import Disconnected
from edge_sdk.transport.memory.hub import Hub


def test_help_and_completion_list_what_an_app_uses() -> None:
    text = pydoc.render_doc(edge_sdk.Agent, renderer=pydoc.plaintext)
    listed = set(re.findall(r"^ \|  ([a-z_]+)", text, re.MULTILINE))
    assert {"predict", "start", "stop", "rollback", "on_round", "running", "over"} <= listed
    assert not listed & {"tick", "fail_work", "work_slice", "handle", "examine", "on_exchange", "bench"}
    named = {name for name in dir(edge_sdk.Agent) if not name.startswith("_")}
    assert named <= listed
    assert {name for name in dir(agent_of(Hub(), "left")) if not name.startswith("_")} == named | {
        "error",
        "participant",
    }


def test_two_apps_take_part_and_hear_of_it(serve) -> None:
    hub = Hub()
    server = federation(hub, devices=2, rounds=3)
    serve(server)
    agents = [agent_of(hub, name) for name in ("left", "right")]
    rounds: list[int] = []
    updates: list[float] = []
    agents[0].on_round(lambda report: rounds.append(report.round))
    agents[0].on_update(lambda report: updates.append(report.metrics["accuracy"]))
    for agent in agents:
        agent.start()
    wait_for(lambda: not any(agent.running for agent in agents))
    assert server.rounds.phase is RoundPhase.DONE
    assert rounds == [0, 1, 2, 3]  # three rounds and the closing exchange
    assert len(updates) == 4
    assert updates[-1] > max(updates[0], 0.8)
    assert [agent.error for agent in agents] == [None, None]


def test_predict_works_before_joining_and_sees_whole_models_while_training(serve) -> None:
    hub = Hub()
    agent = agent_of(hub, "left")
    x = agent.participant.context.bench.data.train.x
    before = agent.predict(x)
    assert before.shape == (SAMPLES, CLASSES)
    np.testing.assert_allclose(before.sum(axis=1), 1, atol=1e-5)
    serve(federation(hub, devices=1, rounds=30, local_steps=20))
    agent.start()
    while agent.running:
        twice = np.concatenate([x, x])
        first, second = np.split(agent.predict(twice), 2)
        np.testing.assert_allclose(first, second, atol=1e-6)  # one model for the whole call
    assert (agent.predict(x).argmax(axis=1) == agent.participant.context.bench.data.train.y).mean() > 0.9


class Stuck(edge_sdk.NumpyModel):
    """A model whose second round does not end before the test lets it."""

    def __init__(self) -> None:
        super().__init__(CLASSES, (1, 1, 8), seed=1)
        self.batches, self.inside, self.go_on = 0, threading.Event(), threading.Event()

    def fit(self, *args: object, **kwargs: object) -> object:
        self.batches += 1
        if self.batches > 2:
            self.inside.set()
            self.go_on.wait(20)
        return super().fit(*args, **kwargs)


def test_predict_does_not_wait_for_a_batch_in_any_thread(serve) -> None:
    hub, model = Hub(), Stuck()
    agent = agent_of(hub, "left", model=model)
    x = agent.participant.context.bench.data.train.x
    untrained = agent.predict(x)
    serve(federation(hub, devices=1, rounds=2))
    agent.start()
    assert model.inside.wait(10)
    answers: list[Any] = []
    asking = [threading.Thread(target=lambda: answers.append(agent.predict(x)), daemon=True) for _ in range(4)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(5)
    answered = len(answers)
    model.go_on.set()
    wait_for(lambda: not agent.running)
    assert answered == 4
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])  # the model after the first round
    assert not np.allclose(answers[0], untrained)
    assert not np.allclose(answers[0], agent.predict(x))


def test_predict_uses_the_restored_model_before_the_first_round(serve, tmp_path) -> None:
    hub = Hub()
    serve(federation(hub, devices=1, rounds=2))
    agent = agent_of(hub, "left", state=tmp_path)
    x = agent.participant.context.bench.data.train.x
    agent.run()
    learnt = agent.predict(x)
    np.testing.assert_array_equal(agent_of(hub, "left", state=tmp_path).predict(x), learnt)


def test_a_model_that_cannot_be_copied_is_named() -> None:
    class Locked(edge_sdk.NumpyModel):
        serving_copy = None
        lock = None

    agent = agent_of(Hub(), "left", model=Locked(CLASSES, (1, 1, 8), seed=1))
    agent.participant.context.bench.model.lock = threading.Lock()
    with pytest.raises(ModelError, match=r"^Locked .*serving_copy"):
        agent.predict(agent.participant.context.bench.data.train.x)


def test_stops_between_batches_and_goes_on_where_it_was(serve, tmp_path) -> None:
    hub = Hub()
    server = federation(hub, devices=1, rounds=4, local_steps=10)
    serve(server)
    model = Slow(CLASSES, (1, 1, 8), seed=1)
    agent = agent_of(hub, "left", model=model, state=tmp_path)
    agent.start()
    wait_for(lambda: len(server.record.rounds) >= 1 and agent.participant.work.busy)
    begun = model.batches
    agent.stop()
    assert model.batches <= begun + 2  # of ten: what may begin as the word comes
    assert not agent.running
    again = agent_of(hub, "left", state=tmp_path)
    assert again.participant.context.session.exchange_id >= (0, 0)
    again.start()
    wait_for(lambda: not again.running)
    assert again.error is None
    assert server.rounds.phase is RoundPhase.DONE


def test_a_paused_agent_computes_nothing_until_it_is_resumed(serve) -> None:
    hub = Hub()
    server = federation(hub, devices=1, rounds=2)
    serve(server)
    agent = agent_of(hub, "left")
    agent.pause()
    agent.start()
    wait_for(lambda: agent.participant.work.busy)
    time.sleep(0.2)
    assert agent.participant.context.bench.meter.train_flops == 0
    agent.resume()
    wait_for(lambda: not agent.running)
    assert server.rounds.phase is RoundPhase.DONE


def test_a_refusal_reaches_the_app(serve) -> None:
    hub = Hub()
    server = federation(hub, devices=1, rounds=2, roster=("left",))
    serve(server)
    agent = agent_of(hub, "left", model=edge_sdk.NumpyModel(CLASSES + 1, (1, 1, 8), seed=1))
    heard: list[Refused] = []
    agent.on_refusal(heard.append)
    agent.start()
    wait_for(lambda: not agent.running)
    assert [refusal.reason for refusal in heard] == ["classes"]
    assert server.rounds.phase is RoundPhase.FAILED  # nobody else was expected


def test_an_error_in_the_background_reaches_the_app(serve) -> None:
    """Such as a run that the coordinator ends."""
    hub = Hub()
    server = federation(hub, devices=2, rounds=50)
    serve(server)
    agents = [agent_of(hub, "left", model=Slow(CLASSES, (1, 1, 8), seed=1)), agent_of(hub, "right")]
    heard: list[Exception] = []
    agents[1].on_error(heard.append)
    agents[1].start()
    agents[0].start()
    wait_for(lambda: len(server.record.rounds) >= 1)
    agents[0].leave("sold")
    wait_for(lambda: bool(heard))
    assert [type(error) for error in heard] == [RunFailed]
    assert agents[1].error is heard[0]


def test_leaving_for_good_is_told_to_the_coordinator(serve) -> None:
    hub = Hub()
    server = federation(hub, devices=2, rounds=50)
    serve(server)
    agents = [agent_of(hub, "left", model=Slow(CLASSES, (1, 1, 8), seed=1)), agent_of(hub, "right")]
    for agent in agents:
        agent.start()
    wait_for(lambda: len(server.record.rounds) >= 1)
    agents[0].leave("sold")
    wait_for(lambda: not agents[1].running)
    assert server.rounds.phase is RoundPhase.FAILED
    assert "left" in server.rounds.reason


def test_certificates_belong_to_a_brokers_address(tmp_path: Path) -> None:
    """With a transport nobody would use them; with an address they are looked at before anything is sent."""
    part = edge_sdk.Samples(np.zeros((2, 8), np.float32), np.array([0, 1]))
    common = {
        "federation": "app",
        "identity": "a",
        "model": edge_sdk.NumpyModel(CLASSES, (1, 1, 8), seed=1),
        "data": edge_sdk.LocalData(train=part),
        "tls": edge_sdk.TlsFiles(ca=tmp_path / "ca.pem"),
    }
    with pytest.raises(UsageError, match=r"^tls and cloud_safe .*transport$"):
        edge_sdk.Agent(broker=Hub().link("a"), **common)
    with pytest.raises(UsageError, match=r"ca\.pem cannot be read"):
        edge_sdk.Agent(broker="mqtts://lab", **common)


def test_an_agent_runs_once_at_a_time() -> None:
    """A second thread would take the link from the first."""
    agent = agent_of(Hub(), "left")
    agent.start()
    for begin in (agent.start, agent.run):
        with pytest.raises(UsageError, match="is running"):
            begin()
    assert agent.running
    agent.stop()
    assert agent.error is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": object()}, r"model: found object, .* wrap it, as in edge_sdk\.TorchModel"),
        ({"data": (np.zeros((2, 8)), np.zeros(2))}, r"data: found tuple: give edge_sdk\.LocalData"),
        ({"public": "public.npz"}, r"public: found str: give edge_sdk\.PublicSet\.load"),
        ({"policy": "night"}, r"policy: found str: give edge_sdk\.Policy"),
        ({"privacy": 8}, r"privacy: found int: give .*Guarantee"),
        ({"meter": lambda: 3.0}, r"meter: found function: give edge_sdk\.PowerMeter"),
        ({"tls": "ca.pem"}, r"tls: found str: give edge_sdk\.TlsFiles"),
        ({"max_drop": "2%"}, r"max_drop '2%': expected a fraction"),
        ({"max_drop": float("nan")}, r"max_drop nan: expected a fraction"),
        ({"federation": None}, r"federation: found NoneType: give its name"),
        ({"federation": 5}, r"federation: found int: give its name"),
        ({"identity": 7}, r"identity: found 7: give the device's id"),
        ({"identity": None}, r"identity: found NoneType: give the device's id"),
        ({"identity": "a\0b"}, r"identity: found 'a\\x00b': give the device's id"),
        ({"broker": 1883}, r"broker: found 1883: give its address"),
        ({"state": 5}, r"state: found 5: give the path of a folder"),
        ({"state": ["x"]}, r"state: found list: give the path of a folder"),
        ({"state": "a\0b"}, r"state: found 'a\\x00b': give the path of a folder"),
        ({"public_cache": 5}, r"public_cache: found 5: give the path of a folder"),
        ({"share_weights": "no"}, r"^share_weights: found str: give True or False$"),
        ({"share_weights": None}, r"^share_weights: found NoneType: give True or False$"),
        ({"share_weights": np.True_}, r"^share_weights: found bool\w*: give True or False$"),
        ({"disclose_classes": "no"}, r"^disclose_classes: found str: give True or False$"),
        ({"sends_logs": 0}, r"^sends_logs: found int: give True or False$"),
        ({"cloud_safe": "yes"}, r"^cloud_safe: found str: give True or False$"),
        ({"quarantine": "yes"}, r"^quarantine: found str: give True or False$"),
        ({"board": None}, r"^board: found NoneType: give the name"),
        ({"secret": "hush"}, r"^secret: found str: give bytes$"),
        ({"max_public_bytes": "1 MB"}, r"^max_public_bytes: found str: give a whole number of bytes$"),
        ({"max_public_bytes": True}, r"^max_public_bytes: found bool: give a whole number of bytes$"),
        ({"clock": 3.0}, r"^clock: found float: give a function that returns the time in seconds$"),
        ({"sensors": 40.0}, r"^sensors: found float: give an object with charging, load, "),
    ],
)
def test_what_apps_give_in_place_of_what_is_meant(wrong: dict[str, Any], message: str) -> None:
    part = edge_sdk.Samples(np.zeros((2, 8), np.float32), np.array([0, 1]))
    right = {"model": edge_sdk.NumpyModel(CLASSES, (1, 1, 8), seed=1), "data": edge_sdk.LocalData(train=part)}
    with pytest.raises(UsageError, match=message):
        edge_sdk.Agent(**{"federation": "app", "broker": Hub().link("a"), "identity": "a", **right, **wrong})


@pytest.mark.parametrize("kind", ["on_round", "on_update", "on_link", "on_refusal", "on_error"])
def test_a_callback_that_cannot_be_called_is_refused_at_once(kind: str) -> None:
    with pytest.raises(UsageError, match=rf"^{kind}: found NoneType: give a function of one argument$"):
        getattr(agent_of(Hub(), "left"), kind)(None)


def test_samples_that_predict_cannot_take_are_named() -> None:
    agent = agent_of(Hub(), "left")
    assert agent.predict(np.zeros((1, 8)).tolist()).shape == (1, CLASSES)
    with pytest.raises(UsageError, match=r"^predict: .*\(1, 9\).*\(n, 8\)$"):
        agent.predict(np.zeros((1, 9), np.float32))
    for unclean in (np.nan, np.inf):
        with pytest.raises(UsageError, match=r"^predict: the samples hold NaN or Inf; clean them first$"):
            agent.predict(np.full((1, 8), unclean, np.float32))
    for wrong in ([[1, 2], [3]], [[1] * 8, [None] * 8], np.full((1, 8), "a"), np.full((1, 8), None), None, 1j):
        with pytest.raises(UsageError, match=r"^predict: "):
            agent.predict(wrong)


def test_predict_takes_pictures_in_the_layout_that_their_sizes_or_the_app_tell() -> None:
    x = np.random.default_rng(0).normal(size=(6, 3, 4, 4)).astype(np.float32)
    model, samples = edge_sdk.NumpyModel(2, (3, 4, 4), seed=0), edge_sdk.Samples(x, np.arange(6) % 2)
    agent = agent_of(Hub(), "left", model=model, data=edge_sdk.LocalData(train=samples))
    known = agent.predict(np.moveaxis(x, 1, -1))
    np.testing.assert_array_equal(agent.predict(x), known)
    np.testing.assert_array_equal(agent.predict(x, layout="NCHW"), known)
    with pytest.raises(UsageError, match="takes samples of shape"):
        agent.predict(x, layout="NHWC")


@pytest.mark.parametrize("y", [np.zeros(2), np.zeros((2, 1, 1), int)])
def test_labels_that_are_none(y: Any) -> None:
    with pytest.raises(UsageError, match=r"^y: found "):
        edge_sdk.Samples(np.zeros((2, 8), np.float32), y)


@pytest.mark.parametrize(
    "x", [np.array(3.0), np.zeros(2, complex), np.array(["a", "b"]), np.zeros(2, "M8[s]"), np.array([None, 1])]
)
def test_samples_that_are_none(x: Any) -> None:
    with pytest.raises(UsageError, match=r"^x: found .*samples are numbers"):
        edge_sdk.Samples(x, np.array([0, 1]))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "float64"])
def test_samples_of_every_kind_of_number(dtype: str) -> None:
    assert len(edge_sdk.Samples(np.zeros((2, 3), dtype), np.array([0, 1]))) == 2


@pytest.mark.parametrize("part", ["train", "test", "validation", "local_test", "augment"])
def test_parts_of_data_that_are_none(part: str) -> None:
    x, y = np.zeros((2, 8), np.float32), np.array([0, 1])
    with pytest.raises(UsageError, match=rf"^{part}: found tuple: give edge_sdk\."):
        edge_sdk.LocalData(**{"train": edge_sdk.Samples(x, y), part: (x, y)})


def test_all_that_the_package_offers_is_listed() -> None:
    assert set(edge_sdk.__all__) <= set(dir(edge_sdk))


def refused(agent: edge_sdk.Agent, now_s: float, reason: str = "connection refused (is the broker running?)") -> None:
    agent.participant.handle(Disconnected(reason), now_s)


def test_an_app_without_callbacks_finds_in_the_log_that_there_is_no_broker(caplog: pytest.LogCaptureFixture) -> None:
    agent = agent_of(Hub(), "left")
    refused(agent, 1.0)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "left: no link to the broker, retrying: connection refused (is the broker running?)" in record.getMessage()
    for now_s in (2.0, 1.0 + LINK_LOG_INTERVAL_S / 2):
        refused(agent, now_s)
    assert caplog.records == [record]  # a link that comes and goes fills no disk
    refused(agent, 1.0 + LINK_LOG_INTERVAL_S / 2, "the name cannot be resolved")
    assert len(caplog.records) == 2
    refused(agent, 1.0 + 2 * LINK_LOG_INTERVAL_S, "the name cannot be resolved")
    assert len(caplog.records) == 3


def test_an_app_that_asked_for_news_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    agent = agent_of(Hub(), "left")
    news: list[str] = []
    agent.on_link(news.append)
    refused(agent, 1.0)
    assert news == ["broker: connection refused (is the broker running?)"]
    assert not caplog.records


def test_an_app_without_callbacks_finds_in_the_log_that_nobody_answers(caplog: pytest.LogCaptureFixture) -> None:
    agent = agent_of(Hub(), "left", clock=lambda: 50 * time.monotonic())
    agent.start()
    wait_for(lambda: bool(caplog.records))
    agent.stop()
    (record,) = caplog.records
    assert record.getMessage().startswith("left: no coordinator of 'app' answers: ")


def test_an_app_hears_that_nobody_answers() -> None:
    """Such as with the name of a federation that does not exist."""
    agent, heard = agent_of(Hub(), "left", clock=lambda: 50 * time.monotonic()), list[str]()
    agent.on_link(heard.append)
    agent.start()
    wait_for(lambda: len(heard) > 1)
    time.sleep(0.5)  # 25 s of its own
    agent.stop()
    assert heard[0] == "connected to the broker"
    assert [line for line in heard if "'app'" in line] == heard[1:]
    assert len(heard) == 2
    assert "must let this device publish, and read fl/v1/app/dn/left/+" in heard[1]


def test_predict_pads_series_of_several_lengths_and_says_what_it_does_not_take(tmp_path: Path) -> None:
    kind = {"kind": "ragged-series"}
    own = edge_sdk.Samples([np.ones((2, 3)), np.ones((4, 3))], [0, 1], **kind)
    model = edge_sdk.SequenceModel(2, (6, 3), seed=0, preprocess=edge_sdk.Preprocess(**kind))
    agent = edge_sdk.Agent(
        federation="a",
        broker="mqtt://127.0.0.1:1",
        identity="d",
        model=model,
        data=edge_sdk.LocalData(train=own),
        state=tmp_path / "ragged",
    )
    both = agent.predict([np.ones((5, 3)), np.full((1, 3), 2)])
    np.testing.assert_allclose(both[:1], agent.predict(np.ones((1, 5, 3))), rtol=1e-6)
    with pytest.raises(UsageError, match="sample 0 has 7 steps, 6 fit"):
        agent.predict(np.ones((1, 7, 3)))
    tokens = {"kind": "tokens", "vocabulary": 9}
    texts = edge_sdk.Samples([[1, 2], [3]], [0, 1], **tokens)
    model = edge_sdk.SequenceModel(2, (4,), seed=0, preprocess=edge_sdk.Preprocess(**tokens))
    agent = edge_sdk.Agent(
        federation="a",
        broker="mqtt://127.0.0.1:1",
        identity="d",
        model=model,
        data=edge_sdk.LocalData(train=texts),
        state=tmp_path / "texts",
    )
    assert agent.predict([[1, 2, 3], [4]]).shape == (2, 2)
    with pytest.raises(UsageError, match=r"predict: found texts, .*hashed_words"):
        agent.predict(["a text"])
    with pytest.raises(UsageError, match="predict: sample 1 has the id 9 at place 0: a vocabulary of 9"):
        agent.predict([[1], [9]])
