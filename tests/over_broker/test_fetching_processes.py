"""`edge-sdk device` without the public set, over a real broker: it fetches it once, and never again."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fleets
import pytest
from deployment import Deployment

from coordinator.broker.embedded import EmbeddedBroker
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Limits
from edge_sdk.protocol.messages import PublicBlock, PublicRequest
from edge_sdk.public_set.transfer import WINDOW
from edge_sdk.transport.base import Incoming
from edge_sdk.transport.mqtt.transport import MqttTransport
from edge_sim.config import settings
from edge_sim.runs.runner import run

pytest.importorskip("amqtt")

pytestmark = [pytest.mark.processes, pytest.mark.broker]

SIDE = 40
LARGE_SIDE, BLOCKS = 160, 267  # 16 MB
ROUNDS = 24


@pytest.fixture(scope="module", params=["amqtt", pytest.param("mosquitto", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "mosquitto" and shutil.which("mosquitto") is None:
        pytest.skip("mosquitto is not on PATH")
    with EmbeddedBroker(request.param) as running:
        yield running.url


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fleets.write_pictures(tmp_path_factory.mktemp("large") / "pictures.npz", side=SIDE)


class Ear:
    """Counts, as one more client, what is said of the public set."""

    def __init__(self, broker: str) -> None:
        self.frames: Counter[tuple[str, str]] = Counter()
        self._over = threading.Event()
        self._transport = MqttTransport(broker, "ear", seed=1)
        self._transport.connect(["fl/v1/tiny/up/+/+/get", "fl/v1/tiny/dn/+/pub"])
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._over.is_set():
            event = self._transport.poll(0.05)
            if isinstance(event, Incoming):
                message = codec.decode(event.frame, Limits()).message
                assert isinstance(message, PublicRequest | PublicBlock)
                self.frames[type(message).__name__, message.device] += 1
                event.acknowledge()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._transport.close()


@pytest.fixture
def ear(broker: str) -> Iterator[Ear]:
    listening = Ear(broker)
    yield listening
    listening.close()


def test_it_fetches_the_set_once_and_the_result_is_the_same(large: Path, broker: str, tmp_path: Path, ear: Ear) -> None:
    tables = {"rounds": ROUNDS, "feature_dim": SIDE * SIDE}
    expected = run(settings.parse(fleets.tables(large, devices=3, **tables), Path("test.toml")))
    with Deployment(tmp_path, large, broker, **tables) as deployment:
        deployment.start_coordinator()
        lacking, given, having = deployment.devices
        shutil.copy(tmp_path / "kits" / given / "data.npz", tmp_path / "public.npz")
        deployment.start_device(lacking, public=False)
        deployment.start_device(given, "--public", "public.npz", public=False)
        deployment.start_device(having)
        deployment.wait_for_round(6)
        assert ear.frames["PublicBlock", lacking] == 5  # 256 kB
        before = Counter(ear.frames)
        assert deployment.end(lacking, signal.SIGKILL) == -signal.SIGKILL
        deployment.start_device(lacking, public=False)
        summary = deployment.finish()
        assert summary["completed"]
        assert {each["id"]: each["accuracy"] for each in summary["per_device"]} == {
            each.id: each.accuracy for each in expected.devices
        }
        assert "40 samples, 256" in deployment.said(lacking)
        assert deployment.said(lacking).count("set is complete") == 1
    assert ear.frames == before
    assert {device for _, device in ear.frames} == {lacking}
    cached = list((tmp_path / "state" / lacking / "public").iterdir())
    assert [path.suffix for path in cached] == [".set"]


def marks(cache: Path) -> int:
    """Blocks that have come so far, by the file that keeps them."""
    for part in cache.glob("*.part"):
        with contextlib.suppress(FileNotFoundError):
            return part.read_bytes()[-BLOCKS:].count(1)
    return 0


@pytest.mark.costly
def test_both_sides_are_killed_while_it_fetches(
    tmp_path_factory: pytest.TempPathFactory, broker: str, ear: Ear
) -> None:
    folder = tmp_path_factory.mktemp("killed")
    pictures = fleets.write_pictures(folder / "pictures.npz", side=LARGE_SIDE)
    tables = fleets.tables(pictures, devices=3, feature_dim=LARGE_SIDE**2)
    tables["data"]["public"] = 160
    with Deployment(folder, pictures, broker, tables=tables) as deployment:
        deployment.start_coordinator()
        lacking = deployment.devices[0]
        cache = folder / "state" / lacking / "public"
        for device in deployment.devices:
            deployment.start_device(device, public=device != lacking)
        deployment.until(lambda: marks(cache) >= 5, "the first blocks")
        assert deployment.end(lacking, signal.SIGKILL) == -signal.SIGKILL
        had = marks(cache)
        assert 5 <= had < BLOCKS
        deployment.start_device(lacking, public=False)
        deployment.until(lambda: marks(cache) > had, "the next blocks")
        assert deployment.end("coordinator", signal.SIGKILL) == -signal.SIGKILL
        assert marks(cache) < BLOCKS
        deployment.start_coordinator(resume=True)
        assert deployment.finish()["completed"]
    assert [path.suffix for path in cache.iterdir()] == [".set"]
    assert ear.frames["PublicBlock", lacking] <= BLOCKS + 3 * WINDOW  # what was on its way came twice, perhaps


def test_a_file_that_is_none_is_said_on_one_line(large: Path, broker: str, tmp_path: Path) -> None:
    with Deployment(tmp_path, large, broker, feature_dim=SIDE * SIDE) as deployment:
        device = deployment.devices[0]
        (tmp_path / "cut.npz").write_bytes((tmp_path / "kits" / device / "data.npz").read_bytes()[:5000])
        deployment.start_device(device, "--public", "cut.npz")
        assert deployment.running.pop(device).wait(40.0) == 2
        assert deployment.said(device).startswith("edge-sdk: cut.npz: not ")
        assert len(deployment.said(device).splitlines()) == 1
