"""What `edge-sdk doctor` says of a healthy machine and of three broken set-ups: real output of the real command.

python -m benchmarks.reliability.doctor_shown          writes docs/results/doctor.md
"""

from __future__ import annotations

import getpass
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import trustme

from coordinator.broker.embedded import EmbeddedBroker

PAGE = Path(__file__).parents[2] / "docs" / "results" / "doctor.md"
HEAD = """\
# Doctor, on a healthy machine and on three broken ones

Written by `python -m benchmarks.reliability.doctor_shown` on {date}; nothing here is typed by hand.
Each set-up is real: a
mosquitto that answers, and one with a certificate that has ended. `tests/tools/test_doctor_setups.py` repeats them.

Exit codes: 0, nothing failed, though something could be better; 1, a check failed; 2, the command line is wrong.
"""


@dataclass(frozen=True)
class SetUp:
    """A machine as it is found."""

    title: str
    options: tuple[str, ...]
    code: int
    """The exit code of the doctor."""
    wrong: tuple[str, ...]
    """The checks that fail."""


@contextmanager
def healthy(folder: Path) -> Iterator[SetUp]:
    """A broker that answers, and a state folder on a disk."""
    with EmbeddedBroker("mosquitto") as broker:
        yield SetUp("Healthy", ("--state", str(folder / "state"), "--broker", broker.url), 0, ())


@contextmanager
def no_broker(folder: Path) -> Iterator[SetUp]:
    """Nobody listens at the broker's address."""
    options = ("--state", str(folder / "state"), "--broker", f"mqtt://127.0.0.1:{_free_port()}")
    yield SetUp("The broker is not there", options, 1, ("broker",))


@contextmanager
def no_state(folder: Path) -> Iterator[SetUp]:
    """A file is where the state folder should be."""
    (folder / "state").write_text("")
    wrong = ("state folder", "state sync", "state speed")
    yield SetUp("The state cannot be written", ("--state", str(folder / "state" / "cam-7")), 1, wrong)


@contextmanager
def ended_certificate(folder: Path) -> Iterator[SetUp]:
    """The broker's certificate has ended."""
    authority, now = trustme.CA(), datetime.now(timezone.utc)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    leaf = authority.issue_cert("127.0.0.1", not_before=now - timedelta(days=400), not_after=now - timedelta(days=3))
    leaf.private_key_and_cert_chain_pem.write_to_path(str(folder / "broker.pem"))
    port, conf = _free_port(), folder / "mosquitto.conf"
    files = f"certfile {folder / 'broker.pem'}\nkeyfile {folder / 'broker.pem'}\n"
    conf.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nuser {getpass.getuser()}\n{files}")
    broker = subprocess.Popen(["mosquitto", "-c", str(conf)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_port(port)
        url = f"mqtts://127.0.0.1:{port}"
        options = ("--state", str(folder / "state"), "--broker", url, "--ca", str(folder / "ca.pem"))
        yield SetUp("The broker's certificate has ended", options, 1, ("broker certificate", "broker"))
    finally:
        broker.terminate()
        broker.wait()


SET_UPS = (healthy, no_broker, no_state, ended_certificate)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _await_port(port: int) -> None:
    end_s = time.monotonic() + 10.0
    while time.monotonic() < end_s:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("mosquitto does not listen")


def main() -> None:
    """Run the doctor on each set-up, and write the page."""
    parts = [HEAD.format(date=time.strftime("%Y-%m-%d"))]
    for set_up in SET_UPS:
        with tempfile.TemporaryDirectory() as temporary, set_up(Path(temporary)) as found:
            command = [sys.executable, "-m", "edge_sdk.cli", "doctor", *found.options]
            told = subprocess.run(command, capture_output=True, text=True, check=False)
            if told.returncode != found.code:
                raise RuntimeError(f"{found.title}: exit code {told.returncode}\n{told.stdout}{told.stderr}")
            shown = f"$ edge-sdk doctor {' '.join(found.options)}\n{told.stdout}".replace(temporary, "/tmp/trial")
            parts.append(f"\n## {found.title}\n\nExit code {told.returncode}.\n\n```text\n{shown}```\n")
    PAGE.write_text("".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
