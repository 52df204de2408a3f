"""What an agent survives: callbacks and training that fail, stops and starts, arguments that are wrong."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federated_apps import CLASSES, SAMPLES, Slow, agent_of, federation, samples_of, wait_for
from notes import Notes

import edge_sdk
from coordinator.broker.embedded import EmbeddedBroker
from coordinator.rounds import RoundPhase
from edge_sdk.device.store import MemoryStore, RoundStart, SqliteStore
from edge_sdk.device.work import Backoff
from edge_sdk.errors import EdgeError, InUse, ModelError, StoreError, UsageError
from edge_sdk.models.predict_only import PredictOnly
from edge_sdk.transport.memory.hub import Hub
from edge_sdk.transport.mqtt.transport import MqttTransport


class Failing(edge_sdk.NumpyModel):
    """Training fails in the fits of some numbers, counted from 0."""

    error: BaseException = RuntimeError("the accelerator caught fire")
    fails_in = range(0)
    fits = 0

    def fit(self, *args: object, **kwargs: object) -> object:
        self.fits += 1
        if self.fits - 1 in self.fails_in:
            raise self.error
        return super().fit(*args, **kwargs)


def failing(fails_in: range, error: BaseException | None = None) -> Failing:
    model = Failing(CLASSES, (1, 1, 8), seed=1)
    model.fails_in, model.error = fails_in, error or model.error
    return model


# -- callbacks ------------------------------------------------------------------------------------------------------


def test_callbacks_that_fail_are_counted_and_change_nothing(serve) -> None:
    hub = Hub()
    server = federation(hub, devices=1, rounds=3)
    serve(server)
    agent = agent_of(hub, "left")
    heard: list[int] = []

    def closed_pipe(_: object) -> None:
        raise BrokenPipeError

    def leaves(_: object) -> None:
        raise SystemExit(3)

    agent.on_link(closed_pipe)
    agent.on_update(leaves)
    agent.on_round(closed_pipe)
    agent.on_round(lambda report: heard.append(report.round))
    agent.start()
    wait_for(lambda: not agent.running)
    assert server.rounds.phase is RoundPhase.DONE
    assert agent.error is None
    assert heard == [0, 1, 2, 3]
    assert agent.callback_errors["on_round"] == agent.callback_errors["on_update"] == 4
    assert agent.callback_errors["on_link"] >= 2


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), pytest.fail.Exception("rounds")])
def test_a_callback_that_raises_no_exception_is_counted_too(serve, error: BaseException) -> None:
    hub = Hub()
    server = federation(hub, devices=1, rounds=1)
    serve(server)
    agent = agent_of(hub, "left")

    def fails(_: object) -> None:
        raise error

    agent.on_round(fails)
    agent.start()
    wait_for(lambda: not agent.running)
    assert server.rounds.phase is RoundPhase.DONE
    assert agent.error is None
    assert agent.callback_errors == {"on_round": 2}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_in_the_main_thread_a_callback_that_is_interrupted_ends_run(serve, kind: type[BaseException]) -> None:
    hub = Hub()
    serve(federation(hub, devices=1, rounds=2))
    agent = agent_of(hub, "left")

    def interrupted(report: edge_sdk.RoundReport) -> None:
        if report.round == 0:
            raise kind

    agent.on_round(interrupted)
    with pytest.raises(kind):
        agent.run()
    assert not agent.callback_errors
    agent.run()  # from the last stored exchange


def test_callbacks_about_the_end_may_fail(serve) -> None:
    hub = Hub()
    serve(federation(hub, devices=1, rounds=2, roster=("left",)))
    agent = agent_of(hub, "left", model=edge_sdk.NumpyModel(CLASSES + 1, (1, 1, 8), seed=1))
    agent.on_refusal(lambda _: 1 / 0)
    agent.start()
    wait_for(lambda: not agent.running)
    assert agent.callback_errors == {"on_refusal": 1}


# -- training that fails --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("sample 7 of Mrs Smith"), MemoryError(), KeyError("x")])
def test_a_round_in_which_training_fails_is_withheld_and_the_next_one_counts(
    serve, error: Exception, tmp_path: Path
) -> None:
    hub = Hub()
    server = federation(hub, devices=2, rounds=4)
    serve(server)
    agent = agent_of(hub, "left", model=failing(range(2, 3), error), state=tmp_path)
    withheld: list[str] = []
    agent.on_round(lambda report: withheld.append(report.withheld))
    other = agent_of(hub, "right")
    agent.start()
    other.start()
    wait_for(lambda: not (agent.running or other.running))
    assert server.rounds.phase is RoundPhase.DONE
    assert agent.error is None
    assert [bool(reason) for reason in withheld] == [False, True, False, False, False]
    (reason,) = server.record.why_withheld.values()
    assert type(error).__name__ in reason
    assert "Smith" not in reason  # a text may quote samples; it stays in the device's log
    assert not [
        line for line in agent.participant.context.owner.last_lines() or () if "Smith" in line
    ]  # what an operator may ask for
    assert server.record.rounds_done == {"left": 3, "right": 4}


def test_a_model_that_exits_ends_the_thread_with_an_error(serve, caplog: pytest.LogCaptureFixture) -> None:
    """The interpreter ends a thread that calls sys.exit() without a word."""
    hub = Hub()
    server = federation(hub, devices=1, rounds=1)
    serve(server)
    agent = agent_of(hub, "left", model=failing(range(1), SystemExit("the licence has ended")))
    told: list[Exception] = []
    agent.on_error(told.append)
    agent.start()
    wait_for(lambda: not agent.running)
    assert told == [agent.error]
    assert isinstance(agent.error, EdgeError)
    assert str(agent.error).startswith("SystemExit('the licence has ended') ended the agent's thread: ")
    assert isinstance(agent.error.__cause__, SystemExit)
    assert "agent left stopped" in caplog.text
    assert "the licence has ended" in caplog.text
    agent.start()  # from the last stored exchange
    wait_for(lambda: not agent.running)
    assert agent.error is None
    assert server.rounds.phase is RoundPhase.DONE


def test_in_the_main_thread_a_model_that_exits_ends_run(serve) -> None:
    hub = Hub()
    serve(federation(hub, devices=1, rounds=1))
    agent = agent_of(hub, "left", model=failing(range(1), SystemExit(3)))
    with pytest.raises(SystemExit):
        agent.run()
    agent.run()  # from the last stored exchange


class Narrowing(Failing):
    """Answers for two classes alone once it was trained."""

    def logits(self, x: np.ndarray) -> np.ndarray:
        return super().logits(x)[:, : 2 if self.fits else CLASSES]


def test_a_model_that_answers_for_fewer_classes_is_withheld(serve) -> None:
    hub = Hub()
    server = federation(hub, devices=2, quorum=1, rounds=3)
    serve(server)
    agent = agent_of(hub, "left", model=Narrowing(CLASSES, (1, 1, 8), seed=1))
    other = agent_of(hub, "right")
    agent.start()
    other.start()
    wait_for(lambda: not (agent.running or other.running))
    assert server.record.sums["withheld"]["left"] > 0
    assert agent.predict(np.zeros((1, 8))).shape == (1, CLASSES)


def test_a_narrow_model_does_not_predict() -> None:
    model = Narrowing(CLASSES, (1, 1, 8), seed=1)
    agent = agent_of(Hub(), "left", model=model)
    model.fits = 1
    with pytest.raises(ModelError, match=rf"^the model gave \(3, 2\) for 3 samples, expected \(3, {CLASSES}\)$"):
        agent.predict(np.zeros((3, 8)))


def test_training_that_keeps_failing_is_tried_less_and_less_often(serve) -> None:
    hub = Hub()
    server = federation(hub, devices=2, quorum=1, rounds=8)
    server.observer = notes = Notes()
    serve(server)
    model = failing(range(1000))
    agent = agent_of(hub, "left", model=model, clock=lambda: time.monotonic() / 1000)  # no pause of its own ends
    other = agent_of(hub, "right")
    agent.start()
    other.start()
    wait_for(lambda: not (agent.running or other.running))
    assert model.fits == 2
    assert server.record.sums["withheld"]["left"] > 2
    assert len([line for line in notes.lines if "withheld" in line]) == 2  # one for each reason, not for each round
    assert server.rounds.phase is RoundPhase.DONE


def test_pauses_between_failures_double_until_a_success() -> None:
    backoff, pauses = Backoff(), list[float]()
    assert backoff.left_s(-1e9) == 0.0  # a clock may begin anywhere
    for _ in range(9):
        backoff.failed(100.0)
        pauses.append(backoff.left_s(100.0))
    assert pauses == [0.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    backoff.succeeded()
    assert backoff.left_s(100.0) == 0.0
    backoff.failed(100.0)
    assert backoff.left_s(100.0) == 0.0


def test_a_restart_whose_training_fails_goes_on_without_the_round(serve, tmp_path: Path) -> None:
    """What the device computed before the restart cannot be computed again."""
    hub = Hub()
    server = federation(hub, devices=1, rounds=3, local_steps=4)
    serve(server)
    agent = agent_of(hub, "left", model=Slow(CLASSES, (1, 1, 8), seed=1), state=tmp_path)
    agent.start()
    wait_for(lambda: len(server.record.rounds) == 1)
    agent.stop()
    again = agent_of(hub, "left", model=failing(range(1)), state=tmp_path)
    again.start()
    wait_for(lambda: not again.running)
    assert again.error is None
    assert server.rounds.phase is RoundPhase.DONE


# -- start, stop, start ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_disk", [True, False])
def test_one_agent_is_stopped_and_started_again(serve, tmp_path: Path, *, on_disk: bool) -> None:
    hub = Hub()
    server = federation(hub, devices=1, rounds=4, local_steps=4)
    serve(server)
    model = Slow(CLASSES, (1, 1, 8), seed=1)
    agent = agent_of(hub, "left", model=model, state=tmp_path if on_disk else None)
    for rounds in (1, 2):
        agent.start()
        wait_for(lambda rounds=rounds: len(server.record.rounds) >= rounds and agent.participant.work.busy)
        agent.stop()
        assert not agent.running
    if on_disk:
        SqliteStore(tmp_path / "app.db").close()  # nobody holds it
    agent.start()
    wait_for(lambda: not agent.running)
    assert agent.error is None
    assert server.rounds.phase is RoundPhase.DONE
    assert server.record.updates["accepted"] == 5  # nothing twice: four rounds and the closing exchange


def test_a_stopped_and_started_agent_learns_the_same_bits(serve) -> None:
    def learnt(stops: int) -> np.ndarray:
        hub = Hub()
        server = federation(hub, devices=1, rounds=3, local_steps=4)
        serve(server)
        model = Slow(CLASSES, (1, 1, 8), seed=1)
        agent = agent_of(hub, "left", model=model)
        agent.start()
        for stop in range(stops):
            wait_for(lambda: len(server.record.rounds) >= stop and agent.participant.work.busy)  # noqa: B023  # called here
            agent.stop()
            agent.start()
        wait_for(lambda: not agent.running)
        return model.weights()

    np.testing.assert_array_equal(learnt(0), learnt(2))


def test_an_agent_that_was_only_stopped_can_be_started(tmp_path: Path) -> None:
    agent = agent_of(Hub(), "left", state=tmp_path)
    agent.stop()
    SqliteStore(tmp_path / "app.db").close()
    agent.start()
    assert agent.running
    agent.stop()
    assert agent.error is None


def test_a_refused_agent_can_be_started_again_once_that_is_mended(serve) -> None:
    hub = Hub()
    first = federation(hub, devices=1, rounds=1, roster=("right",))
    agent = agent_of(hub, "left")
    thread = serve(first)
    agent.start()
    wait_for(lambda: not agent.running)
    assert agent.error is not None
    agent_of(hub, "right").start()
    thread.join(10)
    second = federation(hub, devices=1, rounds=1, roster=("left",))
    serve(second)
    agent.start()
    wait_for(lambda: not agent.running)
    assert agent.error is None
    assert second.rounds.phase is RoundPhase.DONE


@pytest.mark.broker
def test_over_a_broker_one_agent_is_started_again(serve) -> None:
    with EmbeddedBroker() as broker:
        link = MqttTransport(broker.url, "coordinator-app", manual_ack=True, seed=1)
        server = federation(Hub(), devices=1, rounds=3, local_steps=4, transport=link)
        serve(server)
        agent = agent_of(Hub(), "left", model=Slow(CLASSES, (1, 1, 8), seed=1), broker=broker.url)
        agent.start()
        wait_for(lambda: len(server.record.rounds) >= 1 and agent.participant.work.busy)
        agent.stop()
        agent.start()
        wait_for(lambda: not agent.running)
        assert agent.error is None
        wait_for(lambda: server.rounds.phase is RoundPhase.DONE)


# -- arguments ------------------------------------------------------------------------------------------------------


def _without(seconds: float) -> edge_sdk.Samples:
    right = samples_of()
    return edge_sdk.Samples(np.where(np.arange(8) == 3, np.float32(seconds), right.x), right.y)


LABELS = edge_sdk.Samples(samples_of().x, np.full(SAMPLES, CLASSES))
WIDE = edge_sdk.Samples(np.zeros((4, 9), np.float32), np.arange(4))


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": edge_sdk.LocalData(train=_without(np.nan))},
        {"data": edge_sdk.LocalData(train=samples_of(), test=_without(np.inf))},
        {"data": edge_sdk.LocalData(train=LABELS)},
        {"data": edge_sdk.LocalData(train=samples_of(), validation=LABELS)},
        {"data": edge_sdk.LocalData(train=samples_of(), local_test=LABELS)},
        {"data": edge_sdk.LocalData(train=samples_of(), test=WIDE)},
        {"data": edge_sdk.LocalData(train=WIDE)},
        {"proxy": edge_sdk.NumpyModel(CLASSES + 1, (1, 1, 8), seed=1)},
        {"broker": "mqtt://"},
        {"broker": "mqtts://lab", "tls": edge_sdk.TlsFiles(ca=Path("missing.pem"))},
    ],
)
def test_wrong_arguments_are_named_and_leave_the_state_free(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(EdgeError) as raised:
        agent_of(Hub(), "left", state=tmp_path, **wrong)
    assert "another process" not in str(raised.value)
    assert not (tmp_path / "app.db").exists()
    agent_of(Hub(), "left", state=tmp_path).stop()


def test_a_state_that_does_not_read_is_left_free(serve, tmp_path: Path) -> None:
    """What fails after the state was opened closes it."""
    hub = Hub()
    server = federation(hub, devices=1, rounds=1)
    serve(server)
    agent = agent_of(hub, "left", state=tmp_path)
    agent.start()
    wait_for(lambda: not agent.running)
    store = SqliteStore(tmp_path / "app.db")
    store.save_start(RoundStart(0, b"rubbish", b"rubbish"))
    store.close()
    raised = []
    for _ in range(2):
        with pytest.raises(StoreError) as error:
            agent_of(hub, "left", state=tmp_path)
        raised.append(str(error.value))
    assert raised[0] == raised[1]
    assert "another process" not in raised[1]


def test_what_fails_at_the_end_of_the_constructor_closes_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("edge_sdk.agent.agent.Deployment", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            agent_of(Hub(), "left", state=tmp_path)
    agent_of(Hub(), "left", state=tmp_path).stop()


def test_a_label_outside_the_classes_names_its_part(tmp_path: Path) -> None:
    data = edge_sdk.LocalData(train=samples_of(), validation=LABELS)
    with pytest.raises(UsageError, match=f"^validation: .*0..{CLASSES - 1}: subtract 1"):
        agent_of(Hub(), "left", state=tmp_path, data=data)


def test_a_model_serves_one_agent_at_a_time(tmp_path: Path) -> None:
    """Two federations would train the same weights."""
    model, other = failing(range(0)), failing(range(0))
    first = agent_of(Hub(), "left", model=model, proxy=other)
    told = r"^model: the agent of left in app in this process has the same Failing: give each Agent one of its own"
    with pytest.raises(UsageError, match=told):
        agent_of(Hub(), "right", model=model, state=tmp_path)
    with pytest.raises(UsageError, match=r"^proxy: the agent of left in app"):
        agent_of(Hub(), "right", proxy=other)
    first.stop()
    second = agent_of(Hub(), "right", model=model, state=tmp_path)
    with pytest.raises(UsageError, match=r"^model: the agent of right in app"):
        first.start()
    second.stop()
    first.start()
    first.stop()


@pytest.mark.torch
def test_a_net_in_two_models_serves_one_agent_at_a_time() -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, CLASSES))
    first, second = (edge_sdk.TorchModel(net, CLASSES, input_shape=(1, 1, 8)) for _ in range(2))
    agent_of(Hub(), "left", model=first).stop()
    holder = agent_of(Hub(), "left", model=first)
    with pytest.raises(UsageError, match=r"^model.net: the agent of left in app in this process has the same Seq"):
        agent_of(Hub(), "right", model=second)
    holder.stop()


def test_a_model_of_an_agent_that_is_gone_or_was_never_made_serves_another(tmp_path: Path) -> None:
    model = failing(range(0))
    holder = agent_of(Hub(), "left", state=tmp_path)
    with pytest.raises(InUse, match="this or another process is using it"):
        agent_of(Hub(), "left", model=model, state=tmp_path)
    holder.stop()
    gone = weakref.ref(agent_of(Hub(), "left", model=model))
    agent_of(Hub(), "right", model=model)
    assert gone() is None


def test_a_store_of_samples_serves_one_agent_at_a_time() -> None:
    store = edge_sdk.SampleStore(None, classes=CLASSES)
    first = agent_of(Hub(), "left", data=store)
    with pytest.raises(UsageError, match=r"^data: the agent of left in app in this process has the same SampleStore: "):
        agent_of(Hub(), "right", data=store)
    first.stop()
    agent_of(Hub(), "right", data=store)


def test_agents_share_a_model_that_cannot_learn() -> None:
    model = PredictOnly(lambda x: np.zeros((len(x), CLASSES), np.float32), classes=CLASSES)
    agents = [agent_of(Hub(), name, model=model) for name in ("left", "right")]
    assert agents[0].predict(np.zeros((1, 8))).shape == (1, CLASSES)


# -- disks ----------------------------------------------------------------------------------------------------------


class Full(MemoryStore):
    """Refuses the first writes of each kind."""

    refusals = 3

    def _ask(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StoreError("state.db: database or disk is full; check free space and the folder's rights")

    def enter_run(self, *arguments: Any) -> None:
        self._ask()
        super().enter_run(*arguments)

    def save_welcome(self, *arguments: Any) -> None:
        self._ask()
        super().save_welcome(*arguments)


def test_a_disk_that_is_full_at_the_join_only_delays_it(serve, caplog: pytest.LogCaptureFixture) -> None:
    hub = Hub()
    server = federation(hub, devices=1, rounds=2)
    serve(server)
    agent = agent_of(hub, "left", state=Full(), clock=lambda: 20 * time.monotonic())
    news: list[str] = []
    agent.on_link(news.append)
    with caplog.at_level(logging.WARNING):
        agent.start()
        wait_for(lambda: not agent.running)
    assert agent.error is None
    assert server.rounds.phase is RoundPhase.DONE
    assert Full.refusals > 1
    assert sum("disk is full" in line for line in news) == 1  # a line a minute says how often since
    assert agent.predict(samples_of().x).shape == (SAMPLES, CLASSES)


def test_the_owner_reads_what_uploads_will_tell(serve) -> None:
    hub, news = Hub(), list[str]()
    serve(federation(hub, devices=1, rounds=1))
    agent = agent_of(hub, "left")
    agent.on_link(news.append)
    agent.run()
    at = news.index("accepted by the coordinator: local, 1 round")
    assert news[at + 1] == "its uploads contain the number of samples and the device's own accuracies"
