"""A device in a web page, in headless Chromium, beside one in Python: they share a last layer over a real broker."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
HERE = EXAMPLES / "browser"
NODE, CHROMIUM, MOSQUITTO = shutil.which("node"), shutil.which("chromium"), shutil.which("mosquitto")
ROUNDS = 20
WAITING_APP = """
import time
from pathlib import Path

import edge_sdk
import my_app


class WaitingModel(edge_sdk.NumpyModel):
    fits = 0  # five a round, one for each step

    def fit(self, *job):
        self.fits += 1
        while self.fits > 30 and not Path("go").exists():
            time.sleep(0.02)
        return super().fit(*job)


edge_sdk.NumpyModel = WaitingModel
make = my_app.make
"""
"""The Python device waits in its seventh round for the file `go`, so that the run cannot end before the page is loaded
anew."""


def test_its_own_tests_pass() -> None:
    """Frames against the golden bytes, with node in place of a browser."""
    if NODE is None:
        pytest.skip("node is not on PATH")
    command = [NODE, "--test", "--test-reporter=tap"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    golden = len(list((EXAMPLES / "../tests/protocol/golden").resolve().glob("*.hex")))
    assert int(re.findall(r"^# pass (\d+)$", done.stdout, re.MULTILINE)[0]) > golden


def test_what_is_shipped_has_its_licence() -> None:
    for name in ("mqtt.LICENSE.md", "msgpack.LICENSE.txt"):
        assert "ermission" in (HERE / "vendor" / name).read_text(encoding="utf-8")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[str]:
    """The address of the examples' folder, with the page's data."""
    pytest.importorskip("sklearn")
    for name in ("browser", "other_language"):
        shutil.copytree(EXAMPLES / name, tmp_path / "www" / name, ignore=shutil.ignore_patterns("node_modules"))
    subprocess.run([sys.executable, "make_data.py"], cwd=tmp_path / "www" / "browser", check=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "www"))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/browser/"
        server.shutdown()
        thread.join()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """mosquitto with the example's settings: the ports for MQTT and for WebSocket."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not on PATH")
    with closing(socket.socket()) as one, closing(socket.socket()) as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        mqtt, websocket = one.getsockname()[1], other.getsockname()[1]
    settings = (HERE / "mosquitto.conf").read_text(encoding="utf-8")
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(
        settings.replace("listener 1883", f"listener {mqtt}").replace("listener 9001", f"listener {websocket}")
    )
    with _process([MOSQUITTO, "-c", str(conf)], tmp_path, "broker") as process:
        for port in (mqtt, websocket):
            wait_for(port, process)
        yield mqtt, websocket


def wait_for(port: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        time.sleep(0.02)
    pytest.fail("mosquitto ended; is it built without WebSocket?")


@contextmanager
def _process(command: list[str], folder: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=log,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.mark.costly
@pytest.mark.broker
@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH")
def test_a_page_and_a_python_device_learn_from_each_other(broker: tuple[int, int], pages: str, tmp_path: Path) -> None:
    api = pytest.importorskip("playwright.sync_api")
    mqtt, websocket = broker
    folder = tmp_path / "www" / "browser"
    cli = [sys.executable, "-m", "edge_sdk.cli"]
    url = f"mqtt://127.0.0.1:{mqtt}"
    (folder / "waiting_app.py").write_text(WAITING_APP, encoding="utf-8")
    rounds = ["--set", f"federation.rounds={ROUNDS}", "--set", "federation.retry_s=0.5"]
    with ExitStack() as stack:
        coordinator = stack.enter_context(
            _process(
                [*cli, "coordinator", "federation.toml", "--broker", url, "--out", "run", *rounds],
                folder,
                "coordinator",
            )
        )
        join = ["--broker", url, "--federation", "digits", "--id", "python"]
        device = [*cli, "device", *join, "--app", "waiting_app:make"]
        python = stack.enter_context(_process(device, folder, "python"))
        play = stack.enter_context(api.sync_playwright())
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(90_000)  # of a busy machine
        outside: list[str] = []
        wrong: list[str] = []
        page.on(
            "request",
            lambda asked: (
                outside.append(asked.url) if not asked.url.removeprefix("blob:").startswith(pages[:20]) else None
            ),
        )
        page.on("pageerror", lambda error: wrong.append(str(error)))
        address = f"{pages}?broker=ws://127.0.0.1:{websocket}"
        page.goto(address)
        page.get_by_text("round 4 of").wait_for()
        page.goto(address)  # its memory is lost, as in a power cut; the next Assign brings the layer back
        page.get_by_text("joined digits").wait_for()
        (folder / "go").touch()
        page.get_by_text("the federation is complete").wait_for()
        said = page.locator("#news").inner_text()
        draw_a_one(page)
        guess = page.locator("#guess").inner_text()
        browser.close()
        assert coordinator.wait(120) == 0, (folder / "coordinator.log").read_text()
        assert python.wait(120) == 0, (folder / "python.log").read_text()
    assert (outside, wrong) == ([], [])
    assert re.match(r"\d \(\d+ %\)", guess)
    found = json.loads((folder / "run" / "summary.json").read_text())
    assert found["completed"]
    devices = {each["id"]: each for each in found["per_device"]}
    assert devices["browser"]["runtime"] == "browser"
    assert devices["browser"]["rounds_done"] == ROUNDS
    assert devices["browser"]["accuracy"] > 0.6  # half of the digits were never in the page
    assert f"round {ROUNDS} of {ROUNDS}" in said


def draw_a_one(page: object) -> None:
    field = page.locator("#field").bounding_box()
    page.mouse.move(field["x"] + 120, field["y"] + 30)
    page.mouse.down()
    page.mouse.move(field["x"] + 120, field["y"] + 210, steps=12)
    page.mouse.up()
