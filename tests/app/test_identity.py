"""Devices that are refused, and several that use one identity at the same time."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from federated_apps import CLASSES, Slow, agent_of, federation, wait_for

import edge_sdk
from coordinator.broker.embedded import EmbeddedBroker
from coordinator.serving.devices.device_registry import MOST_INSTANCES, Identities
from coordinator.serving.restart import another_serves
from coordinator.serving.server import Server
from edge_sdk.cli import main
from edge_sdk.device.store import SqliteStore
from edge_sdk.errors import Refused, UsageError
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.messages import Hello
from edge_sdk.transport.base import Disconnected
from edge_sdk.transport.memory.hub import Hub
from edge_sdk.transport.mqtt import retry
from edge_sdk.transport.mqtt.hidden_limits import HiddenLimits
from edge_sdk.transport.mqtt.reasons import closed_by_broker, connection_lost
from edge_sdk.transport.mqtt.retry import ConnectionResult, Retry
from edge_sdk.transport.mqtt.transport import MqttTransport
from edge_sdk.transport.mqtt.url import parse_broker_url

TAKEN_OVER = 142


def test_a_refusal_is_logged_with_its_remedy(serve, caplog: pytest.LogCaptureFixture) -> None:
    """Without any callback of the app."""
    hub = Hub()
    serve(federation(hub, devices=1, rounds=2, roster=("left",)))
    agent = agent_of(hub, "left", model=edge_sdk.NumpyModel(CLASSES + 1, (1, 1, 8), seed=1))
    agent.start()
    wait_for(lambda: not agent.running)
    assert isinstance(agent.error, Refused)
    (record,) = (each for each in caplog.records if each.levelno == logging.ERROR)
    assert agent.error.remedy in record.getMessage()


# -- a state folder of another device -------------------------------------------------------------------------------


@pytest.fixture
def left_state(serve, tmp_path: Path) -> Path:
    """The state folder of the device `left`, in a run of two devices that goes on."""
    hub = Hub()
    server = federation(hub, devices=2, rounds=3)
    serve(server)
    agents = [
        agent_of(hub, name, model=Slow(CLASSES, (1, 1, 8), seed=1), state=tmp_path / name) for name in ("left", "right")
    ]
    for agent in agents:
        agent.start()
    wait_for(lambda: len(server.record.rounds) >= 1)
    agents[0].stop()
    again = agent_of(hub, "left", state=tmp_path / "left")  # its own state
    again.start()
    for agent in (again, agents[1]):
        wait_for(lambda agent=agent: not agent.running)
        assert agent.error is None
    return tmp_path / "left"


def test_a_state_folder_of_another_device_is_refused_at_the_start(left_state: Path) -> None:
    with pytest.raises(UsageError, match=r"app\.db: holds the state of left, and this device is right: .*--state"):
        agent_of(Hub(), "right", state=left_state)
    with pytest.raises(UsageError, match="the state of left"):
        agent_of(Hub(), "right", state=left_state, quarantine=True)  # it is whole
    with closing(SqliteStore(left_state / "app.db")) as store:  # closed again, and nothing of it is lost
        with pytest.raises(UsageError, match="the state of left"):
            agent_of(Hub(), "right", state=store)
        agent_of(Hub(), "left", state=store)


def test_a_device_with_another_id_may_join_another_federation_in_the_same_folder(left_state: Path) -> None:
    agent_of(Hub(), "right", federation="other", state=left_state).stop()


def test_the_command_ends_with_code_2_at_a_state_of_another_device(
    left_state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (left_state / "swapped_app.py").write_text(
        "import edge_sdk, federated_apps\n"
        "def make():\n"
        "    data = edge_sdk.LocalData(train=federated_apps.samples_of())\n"
        "    return edge_sdk.App(model=edge_sdk.NumpyModel(4, (1, 1, 8), seed=1), data=data)\n"
    )
    monkeypatch.chdir(left_state)
    options = ["--broker", "mqtt://127.0.0.1:9", "--federation", "app", "--app", "swapped_app:make", "--id", "right"]
    assert main(["device", *options, "--state", str(left_state)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds the state of left, and this device is right" in line


# -- the coordinator's side -----------------------------------------------------------------------------------------


def says_hello(identities: Identities, instance: bytes | None, *, boot: int = 1, sequence: int) -> bool:
    hello = Hello(federation="app", device="left", classes=CLASSES, instance=instance)
    return identities.contested_by(hello, Stamp(boot, sequence))


def intrudes(identities: Identities, instance: bytes) -> bool:
    return identities.intrudes(Hello(federation="app", device="left", classes=CLASSES, instance=instance))


def test_one_that_returns_after_another_shows_that_there_are_two() -> None:
    identities = Identities()
    assert not says_hello(identities, b"first", sequence=1)
    assert not says_hello(identities, b"second", sequence=1)
    assert not intrudes(identities, b"second")  # it may be a restart
    assert says_hello(identities, b"first", sequence=2)
    assert intrudes(identities, b"second")
    assert not intrudes(identities, b"first")
    assert not says_hello(identities, b"first", sequence=3)


def test_restarts_and_repeated_frames_are_no_second_device() -> None:
    identities = Identities()
    for boot in range(1, 2 * MOST_INSTANCES):
        for sequence in (1, 1, 5, 5):
            assert not says_hello(identities, b"life %d" % boot, boot=boot, sequence=sequence)
    assert not says_hello(identities, b"life %d" % (boot - 1), boot=boot - 1, sequence=5)  # delivered late
    assert not says_hello(identities, None, sequence=9)  # an older SDK
    assert not any(intrudes(identities, b"life %d" % boot) for boot in range(1, 2 * MOST_INSTANCES))


# -- the transport's side -------------------------------------------------------------------------------------------


def taken_over(ready_s: float) -> ConnectionResult:
    return ConnectionResult(
        closed_by_broker(TAKEN_OVER, "Session taken over", "app-left"), accepted=True, ready_s=ready_s
    )


def test_a_client_whose_id_is_taken_waits_and_then_gives_up() -> None:
    attempts = Retry(seed=1, hidden_limits=HiddenLimits())
    decisions = [attempts.decide(taken_over(3.0)) for _ in range(4)]
    assert all(decision.pause_s is not None and decision.pause_s >= 5.0 for decision in decisions[:3])
    assert decisions[3].pause_s is None
    assert isinstance(decisions[3].report, Disconnected)
    assert decisions[3].report.final
    assert decisions[3].report.taken_over


def test_take_overs_that_are_far_apart_do_not_add_up() -> None:
    attempts = Retry(seed=1, hidden_limits=HiddenLimits())
    assert all(attempts.decide(taken_over(1000.0)).pause_s is not None for _ in range(9))


def test_of_two_clients_with_one_id_the_newer_one_is_the_first_to_give_up() -> None:
    stands, newer = Retry(seed=1, hidden_limits=HiddenLimits()), Retry(seed=2, hidden_limits=HiddenLimits())
    for ready_s in (1000.0, 7.0, 7.0, 7.0):
        assert stands.decide(taken_over(ready_s)).pause_s is not None
        last = newer.decide(taken_over(7.0))
    assert last.pause_s is None


def closed(ready_s: float, *, accepted: bool = True) -> ConnectionResult:
    """A connection that the broker has closed, or not accepted, without a reason."""
    ending = connection_lost("Unspecified error", parse_broker_url("mqtt://lab"), accepted=accepted)
    return ConnectionResult(ending, accepted=accepted, ready_s=ready_s)


def supposed(*results: ConnectionResult) -> list[bool]:
    """Whether another client is supposed after each of these; reports of a new connection are never left out."""
    attempts = Retry(seed=1, hidden_limits=HiddenLimits(), client_id="app-left")
    reports = [attempts.decide(result).report for result in results]
    assert not any(report.final for report in reports if report)
    return [report is not None and report.taken_over and "'app-left'" in report.reason for report in reports]


def test_where_the_broker_does_not_say_so_another_client_is_supposed() -> None:
    """As with MQTT 3.1.1, and with mosquitto 2.0.11, which says nothing in MQTT 5 either."""
    assert supposed(closed(900.0), *[closed(0.5)] * 4) == [False, False, False, True, True]


def test_a_link_that_stands_for_a_while_and_a_broker_that_is_away_are_no_other_client() -> None:
    away = closed(0.0, accepted=False)
    assert supposed(*[closed(0.5), closed(0.5), away] * 3, *[closed(60.0)] * 5) == [False] * 14


# -- both -----------------------------------------------------------------------------------------------------------


def two_lefts(url: str) -> tuple[Server, edge_sdk.Agent, edge_sdk.Agent]:
    """A coordinator, and two devices of which each takes itself for the only one of its name."""
    link = MqttTransport(url, "coordinator-app", manual_ack=True, seed=1)
    server = federation(Hub(), devices=1, rounds=10_000, local_steps=1, transport=link)
    model, hub = edge_sdk.NumpyModel(CLASSES, (1, 1, 8), seed=1), Hub()
    return server, agent_of(hub, "left", model=model, broker=url), agent_of(hub, "left", broker=url)


@pytest.mark.broker
@pytest.mark.skipif(not shutil.which("mosquitto"), reason="mosquitto is not on PATH")
def test_of_two_devices_with_one_identity_the_later_one_is_refused(
    serve: Callable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retry, "_TAKEN_OVER_PAUSE_S", (0.3, 0.4))
    with EmbeddedBroker("mosquitto") as broker:
        server, first, second = two_lefts(broker.url)
        enough: list[str] = []
        serve(server, lambda: "".join(enough))
        heard: list[Refused] = []
        second.on_refusal(heard.append)
        stays: list[str] = []
        first.on_link(stays.append)
        first.start()
        wait_for(lambda: len(server.record.rounds) >= 1)
        second.start()
        wait_for(lambda: not second.running, within_s=30)
        assert [refusal.reason for refusal in heard] == ["identity"]
        assert server.record.contested["left"] >= 1
        assert any("left" in warning for warning in server.warnings)
        assert any(each.levelno == logging.ERROR and "left" in each.getMessage() for each in caplog.records)
        wait_for(lambda: stays, within_s=30)  # of its link; it hears of the refusal only if it was connected then
        done = len(server.record.rounds)
        wait_for(lambda: len(server.record.rounds) > done, within_s=30)  # the first one goes on
        first.stop()
        enough.append("the test is over")
        assert first.error is None


@pytest.mark.broker
def test_where_the_broker_says_nothing_the_coordinator_and_the_first_device_do(serve: Callable) -> None:
    """amqtt keeps both connections, and gives what is for the device to the first one."""
    pytest.importorskip("amqtt")
    with EmbeddedBroker("amqtt") as broker:
        server, first, second = two_lefts(broker.url)
        enough: list[str] = []
        serve(server, lambda: "".join(enough))
        heard: list[str] = []
        first.on_link(heard.append)
        first.start()
        wait_for(lambda: len(server.record.rounds) >= 1)
        second.start()
        wait_for(lambda: server.record.contested["left"] > 0, within_s=30)
        wait_for(lambda: any("another device" in line for line in heard), within_s=30)
        second.stop()
        first.stop()
        enough.append("the test is over")
        assert first.error is None


# -- two coordinators -----------------------------------------------------------------------------------------------

FEDERATION = """
[federation]
name = "app"
method = "local"
rounds = 2
devices = 2
classes = 4
"""


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["amqtt", "mosquitto"])
def test_a_second_coordinator_of_a_live_federation_does_not_begin(
    serve: Callable, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "mosquitto" and not shutil.which("mosquitto"):
        pytest.skip("mosquitto is not on PATH")
    file, out = tmp_path / "federation.toml", tmp_path / "second"
    file.write_text(FEDERATION, encoding="utf-8")
    with EmbeddedBroker(kind) as broker:
        link = MqttTransport(broker.url, "coordinator-app", fresh=True, manual_ack=True, seed=1)
        server = federation(Hub(), devices=1, rounds=1, transport=link)
        enough: list[str] = []
        first = serve(server, lambda: "".join(enough))

        def another() -> bool:
            look = MqttTransport(broker.url, "operator-1", clean=True, seed=2)
            return another_serves(look, "app", "operator-1")

        wait_for(another, within_s=30)
        assert main(["coordinator", str(file), "--broker", broker.url, "--out", str(out)]) == 2
        assert "'app'" in capsys.readouterr().err
        assert not out.exists()
        enough.append("the test is over")
        first.join(20)
        assert not another()
