"""The served model of an app: a planted bad aggregate, the pause after three, and the way back."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import edge_sdk
from coordinator.ledger import Ledger
from coordinator.report.run_table import run_table
from coordinator.report.summary import summary
from coordinator.rounds import RoundPhase, RoundPolicy
from coordinator.serving.outcome import device_result, run_result
from coordinator.serving.server import Server
from edge_sdk.device.exchange import RoundReport
from edge_sdk.device.training.app_model import ModelOrigin
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import Damaged, UsageError
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.models.base import Batches
from edge_sdk.objectives import CrossEntropy, Optim
from edge_sdk.protocol.messages import FederationSpec, TrainSpec
from edge_sdk.serving.deployment import Deployment
from edge_sdk.transport.memory.hub import Hub

DIGITS = load_digits()
X, Y = DIGITS.images.astype(np.float32), DIGITS.target
TRAIN, VALIDATION = edge_sdk.Samples(X[:300], Y[:300]), edge_sdk.Samples(X[300:500], Y[300:500])
FRESH = X[500:600]


class Poison:
    """What a coordinator sends to all, from some round on: the knowledge of the round before it, turned around."""

    def __init__(self, method: Any, first: int) -> None:
        self.on, self.good = True, {}
        self._method, self._first, self._common = method, first, method.common
        method.common = self.common

    def common(self, state: Any, at: Any) -> Mapping[str, Any]:
        found = self._common(state, at)
        if at.round < self._first:
            self.good = found
            return found
        return {role: turned(self.good[role]) if self.on else self.good[role] for role in found}


def turned(payload: Any) -> Any:
    name = "values" if hasattr(payload, "values") else "rows"
    return dataclasses.replace(payload, **{name: -30 * getattr(payload, name)})


def federation(hub: Hub, name: str, rounds: int, **method: Any) -> Server:
    made = load_method(name).under(method)
    spec = FederationSpec(
        federation="digits",
        method=name,
        contract=made.digest,
        params=made.table,
        classes=10,
        rounds=rounds,
        feature_dim=64,
        train=TrainSpec(local_steps=20, learning_rate=0.02, batch_size=32),
    )
    policy = RoundPolicy(expected=1, quorum=1, rounds=rounds, exchanges=1, retry_s=0.5)
    return Server(spec=spec, policy=policy, method=made, transport=hub.link("coordinator"), ledger=Ledger(None))


def device(hub: Hub, state: Path | None = None, **other: Any) -> edge_sdk.Agent:
    model = edge_sdk.NumpyModel(10, (1, 8, 8), seed=1, preprocess=edge_sdk.Preprocess(scale=1 / 16))
    given = {"model": model, "data": edge_sdk.LocalData(train=TRAIN, validation=VALIDATION)} | other
    return edge_sdk.Agent(
        federation="digits",
        broker=hub.link("left"),
        identity="left",
        state=state,
        share_weights=True,
        **given,
    )


def wait(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s, "nothing happened"
        time.sleep(0.005)


def accuracy(agent: edge_sdk.Agent) -> float:
    return float((agent.predict(FRESH).argmax(axis=1) == Y[500:600]).mean())


@pytest.mark.parametrize(("method", "given"), [("fedavg", {}), ("fedssa", {"down": "all", "takes": "all", "mu0": 0.1})])
def test_a_bad_aggregate_is_not_served_and_the_third_pauses(method: str, given: dict[str, Any]) -> None:
    hub = Hub()
    server = federation(hub, method, rounds=9, **given)
    poison = Poison(server.method, first=4)
    agent, news, reports = device(hub), list[str](), list[RoundReport]()
    agent.on_link(news.append)
    agent.on_update(reports.append)
    coordinator = threading.Thread(target=server.run, daemon=True)
    coordinator.start()
    agent.start()
    wait(lambda: len(reports) == 7 and any("resume" in line for line in news))
    assert [bool(report.not_served) for report in reports] == [False] * 4 + [True] * 3
    assert accuracy(agent) > 0.7
    trained = agent.meter.train_flops
    wait(lambda: agent.declined is not None)
    assert agent.meter.train_flops == trained
    poison.on = False
    agent.resume()
    wait(lambda: not agent.running)
    coordinator.join(20)
    assert server.rounds.phase is RoundPhase.DONE
    assert not reports[8].not_served
    assert accuracy(agent) > 0.7
    assert server.record.sums["not_served"]["left"] == 3 + sum(bool(report.not_served) for report in reports[7:])


def test_without_the_guard_a_bad_aggregate_is_served() -> None:
    hub = Hub()
    server = federation(hub, "fedavg", rounds=5)
    Poison(server.method, first=4)
    agent = device(hub, max_drop=None)
    threading.Thread(target=server.run, daemon=True).start()
    agent.run()
    assert accuracy(agent) < 0.5
    assert server.record.joining == {}


def run_rounds(hub: Hub, state: Path, rounds: int) -> tuple[edge_sdk.Agent, list[np.ndarray]]:
    """Run a federation to its end; returns the agent, and what predict() said before and after each round."""
    agent = device(hub, state)
    said = [agent.predict(FRESH)]
    agent.on_update(lambda report: None if report.closing else said.append(agent.predict(FRESH)))
    server = threading.Thread(target=federation(hub, "local", rounds).run, daemon=True)
    server.start()
    agent.run()
    server.join(20)
    return agent, said


def test_rollback_returns_to_either_of_the_last_two_and_survives_a_restart(tmp_path: Path) -> None:
    hub = Hub()
    agent, said = run_rounds(hub, tmp_path, rounds=4)
    news = list[str]()
    agent.on_link(news.append)
    np.testing.assert_array_equal(agent.predict(FRESH), said[4])
    assert agent.rollback(2) == 2
    assert news == ["predict() uses the model after round 2 until agent.resume(); the 2 newer ones are deleted"]
    np.testing.assert_array_equal(agent.predict(FRESH), said[2])
    with pytest.raises(UsageError, match=r"^rollback\(1\): 0 "):
        agent.rollback()
    again = device(hub, tmp_path)
    np.testing.assert_array_equal(again.predict(FRESH), said[2])
    again.store.close()


def test_after_a_rollback_nothing_newer_is_served_until_resume() -> None:
    hub = Hub()
    agent, rounds = device(hub), list[int]()
    held: list[np.ndarray] = []

    def between(report: RoundReport) -> None:
        rounds.append(report.round)
        if report.round == 1:
            assert agent.rollback() == 1
        if report.round in (1, 3):
            held.append(agent.predict(FRESH))
        if report.round == 3:
            agent.resume()

    agent.on_update(between)
    threading.Thread(target=federation(hub, "local", 6).run, daemon=True).start()
    agent.run()
    np.testing.assert_array_equal(*held)
    assert not np.array_equal(agent.predict(FRESH), held[0])
    assert agent.rollback(2) == 1
    for steps in (0, 3, "1", 1.5, True):
        with pytest.raises(UsageError, match=r"^rollback"):
            agent.rollback(steps)


def test_a_damaged_version_is_passed_over(tmp_path: Path) -> None:
    hub = Hub()
    _, said = run_rounds(hub, tmp_path, rounds=3)
    newest = max((tmp_path / "digits.served").glob("*.model"), key=lambda file: int(file.stem))
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    again, news = device(hub, tmp_path), list[str]()
    again.on_link(news.append)
    np.testing.assert_array_equal(again.predict(FRESH), said[2])
    assert [line for line in news if newest.name in line]
    again.store.close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"versions": [{}]}', '{"versions": [], "held": 0, "joining": 7}'])
def test_an_index_that_does_not_read_is_forgotten(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "digits.served"
    folder.mkdir()
    (folder / "index.json").write_text(text)
    agent = device(Hub(), tmp_path)
    assert "index.json" in caplog.text
    assert agent.predict(FRESH).shape == (100, 10)
    agent.store.close()


def test_an_app_is_told_of_an_index_that_does_not_read(tmp_path: Path) -> None:
    hub, news = Hub(), list[str]()
    (tmp_path / "digits.served").mkdir()
    (tmp_path / "digits.served" / "index.json").write_text("{")
    agent = device(hub, tmp_path)
    agent.on_link(news.append)
    threading.Thread(target=federation(hub, "local", 1).run, daemon=True).start()
    agent.run()
    assert len([line for line in news if "index.json" in line]) == 1


def test_only_three_versions_are_kept(tmp_path: Path) -> None:
    run_rounds(Hub(), tmp_path, rounds=6)
    assert sorted(file.stem for file in (tmp_path / "digits.served").glob("*.model")) == ["4", "5", "6"]


def lose(state: Path, how: str) -> None:
    """Delete or empty a device's state file, or damage it."""
    file = state / "digits.db"
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(b"" if how == "empty" else bytes(4000))


def one_more_round(hub: Hub, state: Path, **given: Any) -> tuple[edge_sdk.Agent, list[str], list[np.ndarray]]:
    """Start again for a round; returns the agent, its lines, and what predict() said at each of them."""
    agent, news, heard = device(hub, state, **given), list[str](), list[np.ndarray]()
    agent.on_link(lambda line: (news.append(line), heard.append(agent.predict(FRESH))))  # type: ignore[func-returns-value]
    threading.Thread(target=federation(hub, "local", 1).run, daemon=True).start()
    agent.run()
    return agent, news, heard


@pytest.mark.parametrize("how", ["missing", "empty", "damaged"])
def test_what_is_served_outlives_the_state(tmp_path: Path, how: str) -> None:
    _, said = run_rounds(Hub(), tmp_path, rounds=3)
    lose(tmp_path, how)
    if how != "missing":
        with pytest.raises(Damaged, match=r"digits\.db: is damaged .*quarantine"):
            device(Hub(), tmp_path)
    _, news, heard = one_more_round(Hub(), tmp_path, quarantine=True)
    for each in heard:
        np.testing.assert_array_equal(each, said[3])
    (line,) = [line for line in news if "after round 3" in line and "joins" in line]
    assert str(tmp_path / "digits.served") in line
    assert len([line for line in news if "damaged-1" in line]) == (how != "missing")


@pytest.mark.parametrize(("seed", "width", "kept"), [(2, 8, True), (1, 4, False)])
def test_weights_that_an_app_draws_at_each_start_do_not_cost_what_is_served(
    tmp_path: Path, seed: int, width: int, kept: bool
) -> None:
    _, said = run_rounds(Hub(), tmp_path, rounds=3)
    lose(tmp_path, "missing")
    drawn = edge_sdk.NumpyModel(10, (1, 8, width), seed=seed, preprocess=edge_sdk.Preprocess(scale=1 / 16))
    cut = edge_sdk.LocalData(train=edge_sdk.Samples(X[:300, :, :width], Y[:300]))
    agent, news = device(Hub(), tmp_path, model=drawn, data=cut), list[str]()
    agent.on_link(news.append)
    if kept:
        np.testing.assert_array_equal(agent.predict(FRESH), said[3])
    else:
        assert agent.predict(FRESH[:, :, :width]).shape == (100, 10)
        assert [line for line in news if "served before is lost" in line]
    agent.store.close()


def test_models_on_another_extractor_are_forgotten_with_a_line(tmp_path: Path) -> None:
    bench = trained_bench()
    served = Deployment(bench, tmp_path, 0.02, print, origin=ModelOrigin(b"body", b"weights"))
    served.begin(fresh=True)
    judge_and_settle(served, rounds_done=1)
    for body, fault in ((b"body", ""), (b"other", "extractor")):
        again = Deployment(bench, tmp_path, 0.02, print, origin=ModelOrigin(body, b"others"), alone=True)
        assert fault in again.fault
        assert bool(fault) == bool(again.fault)


def test_what_an_owner_went_back_to_outlives_the_state(tmp_path: Path) -> None:
    agent, said = run_rounds(Hub(), tmp_path, rounds=2)
    agent.rollback(2)
    lose(tmp_path, "missing")
    again, news, _ = one_more_round(Hub(), tmp_path)
    np.testing.assert_array_equal(again.predict(FRESH), said[0])
    assert [line for line in news if "until agent.resume()" in line]


def test_an_empty_state_that_a_first_start_left_is_begun_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "digits.db").touch()
    agent, news, _ = one_more_round(Hub(), tmp_path)
    assert [line for line in news if "digits.db: is empty" in line]
    assert agent.rollback() == 0


def test_state_that_a_later_start_sets_aside_is_told(tmp_path: Path) -> None:
    hub = Hub()
    agent, news, _ = one_more_round(hub, tmp_path, quarantine=True)
    lose(tmp_path, "empty")
    threading.Thread(target=federation(hub, "local", 1).run, daemon=True).start()
    agent.run()
    assert len([line for line in news if "damaged-1" in line]) == 1


def test_a_device_that_began_again_below_what_it_serves_goes_on_training(tmp_path: Path) -> None:
    bench = trained_bench()
    served = Deployment(bench, tmp_path, 0.02, print)
    served.begin(fresh=True)
    judge_and_settle(served, rounds_done=1)
    rows, news = bench.model.head_rows(), list[str]()
    again = Deployment(bench, tmp_path, 0.02, news.append)
    bench.model.set_head_rows(np.arange(10), -rows)
    again.begin(fresh=True)
    assert again.joining == {}
    measured(again)
    assert again.joining == {"validation_accuracy": accuracy_of(bench, "validation_accuracy")}
    for round_ in range(1, 5):
        judge_and_settle(again, round_)
        assert again.objection is None
    assert len([line for line in news if "keeps the current model" in line]) == 4
    bench.model.set_head_rows(np.arange(10), rows)
    judge_and_settle(again, rounds_done=5)
    assert again.rollback(1) == 1
    bench.model.set_head_rows(np.arange(10), -rows)
    for round_ in range(6, 9):
        judge_and_settle(again, round_)
    assert again.objection is not None


def trained_bench() -> Workbench:
    model = edge_sdk.NumpyModel(10, (1, 8, 8), seed=1, preprocess=edge_sdk.Preprocess(scale=1 / 16))
    bench = Workbench(model, edge_sdk.LocalData(train=TRAIN, validation=VALIDATION), None)
    bench.model.fit(
        Batches(inputs=bench.samples, labels=bench.labels, indices=np.arange(300)[None].repeat(50, 0)),
        (CrossEntropy(),),
        Optim(learning_rate=0.05),
    )
    return bench


def measured(deployment: Deployment) -> None:
    for _ in deployment.measure_joining():
        pass


def accuracy_of(bench: Workbench, metric: str) -> float:
    x, y = bench.held_out[metric]
    return float((bench.model.logits(x).argmax(axis=1) == y).mean())


def judge_and_settle(deployment: Deployment, rounds_done: int) -> None:
    for _ in deployment.judge(rounds_done):
        pass
    deployment.settle()


class Exam:
    """A device that holds classes 0 and 1 of ten, with a model whose right answers are chosen sample by sample."""

    own, all = 50, 100
    """The device's own held-out samples, and those of all classes."""

    def __init__(self, *, with_test: bool) -> None:
        count, self.news = self.own + self.all, list[str]()
        x = np.eye(count, dtype=np.float32).reshape(count, 10, 15)  # a feature of its own for each sample
        self.y = np.concatenate([np.arange(self.own) % 2, np.arange(self.all) % 10])
        own, whole = (edge_sdk.Samples(x[part], self.y[part]) for part in (slice(self.own), slice(self.own, None)))
        self.test, self.model = whole, edge_sdk.NumpyModel(10, (1, 10, 15), seed=0)
        data = edge_sdk.LocalData(train=own, validation=own, test=whole if with_test else None)
        self.deployment = Deployment(Workbench(self.model, data), None, 0.02, self.news.append)

    def answer(self, own: float, whole: float) -> None:
        """Give the right answer for these shares of the samples."""
        right = np.concatenate([np.arange(self.own) < own * self.own, np.arange(self.all) < whole * self.all])
        rows = np.zeros((10, len(self.y) + 1), np.float32)
        rows[np.where(right, self.y, (self.y + 1) % 10), np.arange(len(self.y))] = 1
        self.model.set_head_rows(np.arange(10), rows)

    def rounds(self, *accuracies: tuple[float, float]) -> float:
        """Begin with the first of these models, and train the others; returns what is served then, on all classes."""
        self.answer(*accuracies[0])
        self.deployment.begin(fresh=True)
        for rounds_done, each in enumerate(accuracies[1:], 1):
            self.answer(*each)
            judge_and_settle(self.deployment, rounds_done)
        logits = self.deployment.served().logits(self.test.x[:, None])
        return float((logits.argmax(axis=1) == self.test.y).mean())


def test_a_model_that_forgets_classes_that_the_device_lacks_is_not_served_where_there_are_samples_of_them() -> None:
    exam = Exam(with_test=True)
    assert exam.rounds((0.80, 0.80), (0.90, 0.92), (0.96, 0.68)) == 0.92
    (line,) = exam.news
    assert line.endswith(
        "from round 2 is worse: accuracy 68.0% on 100 held-out samples of all classes (test), that of the served model is 92.0%"
    )


def test_a_guard_that_sees_some_classes_only_says_so_once() -> None:
    exam = Exam(with_test=False)
    assert exam.rounds((0.80, 0.80), (0.90, 0.92), (0.96, 0.68)) == 0.68
    (line,) = exam.news
    assert "samples of 2 of the 10 classes" in line
    assert "test part of all classes" in line


def test_small_drops_do_not_add_up_to_a_large_one() -> None:
    """Each model is compared with the best one served, not with the last, which may be a little worse each time."""
    exam = Exam(with_test=True)
    exam.rounds((1.0, 1.0), (0.88, 1.0), (0.76, 1.0))  # 6 of 50 lost is within chance, 12 is not
    (line,) = exam.news
    assert line.endswith(
        "from round 2 is worse: accuracy 76.0% on 50 held-out samples of its own, that of the served model is 100.0%"
    )


def test_without_held_out_samples_it_is_said_once_and_all_is_served() -> None:
    hub = Hub()
    agent, news = device(hub, data=edge_sdk.LocalData(train=TRAIN)), list[str]()
    agent.on_link(news.append)
    before = agent.predict(FRESH)
    threading.Thread(target=federation(hub, "local", 3).run, daemon=True).start()
    agent.run()
    assert len([line for line in news if "held-out" in line]) == 1
    assert not np.array_equal(agent.predict(FRESH), before)


@pytest.mark.parametrize("max_drop", [-0.1, 1.5, True, False])
def test_a_drop_that_is_no_fraction(max_drop: float) -> None:
    with pytest.raises(UsageError, match=r"^max_drop"):
        device(Hub(), max_drop=max_drop)


def test_what_the_model_could_do_before_it_joined_is_told() -> None:
    hub = Hub()
    server = federation(hub, "local", rounds=3)
    agent = device(hub)
    at_first = float((agent.predict(VALIDATION.x).argmax(axis=1) == VALIDATION.y).mean())
    threading.Thread(target=server.run, daemon=True).start()
    agent.run()
    found = device_result(server, "left")
    assert found.since_joining == (pytest.approx(at_first), found.metrics["validation_accuracy"])
    told = summary(run_result(server, (found,), "memory", {}))["since_joining"]
    assert told["devices"] == told["better"] == 1
    assert told["now_mean"] > told["before_mean"] + 0.3
    assert server.record.joining["left"] == {"validation_accuracy": pytest.approx(at_first)}


def test_a_device_that_was_empty_when_it_joined_is_measured_from_its_first_samples_on(tmp_path: Path) -> None:
    """Its own model is kept for that, and both models are measured on the same samples, those of now."""
    hub = Hub()
    server = federation(hub, "local", rounds=6)
    samples = edge_sdk.SampleStore(None, classes=10, split=(0.5, 0.5, 0.0))
    agent, news, waiting = device(hub, tmp_path, data=samples), list[str](), list[int]()
    shipped = edge_sdk.NumpyModel(10, (1, 8, 8), seed=1, preprocess=edge_sdk.Preprocess(scale=1 / 16))
    agent.on_link(news.append)

    def fill(count: int) -> None:
        first = sum(samples.counts().train) + sum(samples.counts().validation)
        for i in range(first, first + count):
            samples.observe(X[i], int(Y[i]))

    def more(_report: RoundReport) -> None:
        waiting.append(len(agent.bench.held_out.get("validation_accuracy", ((), ()))[1]))
        fill(30)

    agent.on_round(more)
    coordinator = threading.Thread(target=server.run, daemon=True)
    coordinator.start()
    agent.start()
    wait(lambda: any("no labelled samples" in line for line in news))
    assert any("so far: until the SampleStore has gathered more" in line for line in news)
    fill(8)
    coordinator.join(30)
    agent.stop()
    assert waiting[0] < 7  # too few to measure anything in the first round
    found = device_result(server, "left")
    assert found.since_joining is not None
    x, y = agent.bench.held_out["validation_accuracy"]
    assert found.since_joining[0] == pytest.approx((shipped.logits(x).argmax(axis=1) == y).mean())
    assert found.since_joining[1] == found.metrics["validation_accuracy"] > found.since_joining[0] + 0.2
    table = run_table(run_result(server, (found,), "memory", {}))
    assert [column.name for column in table.columns if column.name in ("as shipped", "now", "change")] != []
    assert "no device was evaluated" not in table.headline


def test_the_app_s_own_model_is_kept_over_restarts_where_data_change(tmp_path: Path) -> None:
    """Held-out samples that come after it has learnt can still tell how good it was."""
    bench = trained_bench()
    bench.use(edge_sdk.LocalData(train=TRAIN))
    bench.capacity = 1000
    shipped = bench.model.head_rows()
    deployment = Deployment(bench, tmp_path, 0.02, print)
    deployment.begin(fresh=True)
    for rounds_done in range(6):
        measured(deployment)
        bench.model.set_head_rows(np.arange(10), -shipped)
        judge_and_settle(deployment, rounds_done + 1)
    again = Deployment(bench, tmp_path, 0.02, print)
    again.begin(fresh=False)
    for part in (slice(300, 400), slice(300, 500), slice(400, 500)):
        bench.use(edge_sdk.LocalData(train=TRAIN, validation=edge_sdk.Samples(X[part], Y[part])))
        measured(again)
        bench.model.set_head_rows(np.arange(10), shipped)
        assert again.joining == {"validation_accuracy": accuracy_of(bench, "validation_accuracy")}
        bench.model.set_head_rows(np.arange(10), -shipped)
    assert sorted(file.stem for file in tmp_path.glob("*.model")) == ["0", "4", "5", "6"]


def test_pauses_end_by_themselves_and_double_until_a_model_is_served() -> None:
    bench = trained_bench()
    model = bench.model
    now_s, news = [1000.0], list[str]()
    deployment = Deployment(bench, None, 0.02, news.append, clock=lambda: now_s[0])
    deployment.begin(fresh=True)

    def round_with(rows: np.ndarray) -> None:
        model.set_head_rows(np.arange(10), rows)
        judge_and_settle(deployment, rounds_done=1)

    rows = model.head_rows()
    for pause_s in (60.0, 120.0):
        for _ in range(3):
            assert deployment.objection is None
            round_with(-rows)
        assert deployment.objection is not None
        now_s[0] += pause_s - 1
        assert deployment.objection is not None
        now_s[0] += 1
        assert deployment.objection is None
    round_with(rows)
    for _ in range(3):
        round_with(-rows)
    now_s[0] += 60.0
    assert deployment.objection is None
