"""A lab as its owner sets it up: the commands of the page, real mosquitto with TLS, two devices, and one that is revoked."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fleets
import labs
import pytest
import strangers
from deployment import PATIENCE_S, Deployment

from coordinator.lab import broker_settings, owner
from coordinator.lab.keeper import is_kept
from edge_sdk.identity.claims import CLAIMS_ROOT, read_claim
from edge_sdk.tools import enroll
from edge_sdk.transport.base import Connected

pytestmark = [pytest.mark.broker, pytest.mark.processes, pytest.mark.timeout(600)]  # a dozen processes

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "secure-lab.md"


def commands() -> list[list[str]]:
    """The commands of the page's first section that set up a lab and enrol a board, without `edge-sdk`."""
    section = (
        PAGE.read_text(encoding="utf-8").partition("## Three commands, and one on each board")[2].partition("\n## ")[0]
    )
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block is not None
    lines = [shlex.split(line, comments=True) for line in block[1].splitlines()]
    lines += [shlex.split(found) for found in re.findall(r"^edge-sdk enroll .*", section, re.MULTILINE)]
    assert all(line[0] == "edge-sdk" for line in lines)
    return [line[1:] for line in lines]


@contextmanager
def lab_of(folder: Path, pictures: Path, **federation: object) -> Iterator[Deployment]:
    """A deployment whose lab was set up and whose devices were enrolled by the page's commands."""
    init, serve, claim, enroll = commands()
    port = str(labs.free_port())
    named = ["localhost" if each == "lab.local" else each for each in init]
    labs.edge_sdk(folder, *named, "--port", port, "--bind", "127.0.0.1")
    tables = fleets.tables(pictures, "fedmd", devices=2, **federation)
    with labs.serving(folder, *serve), Deployment(folder, pictures, "", tables=tables, lab=folder / "lab") as run:
        labs.edge_sdk(folder, *[each for each in claim if not each.startswith("device-")], *run.devices)
        for device in run.devices:
            own = [each.replace("device-01", f"lab/claims/{device}") for each in enroll]
            assert device in labs.edge_sdk(folder, *own)
        yield run


def keys_in(folder: Path) -> list[bytes]:
    """The private keys and secrets of a lab and its devices, in the forms in which they could show up elsewhere."""
    pems = [path.read_bytes() for path in folder.rglob("*.key")]
    lines = [line for pem in pems for line in pem.splitlines() if line and not line.startswith(b"-")]
    secrets = re.findall(rb'"secret": "([0-9a-f]+)"', (folder / "lab" / "registry.json").read_bytes())
    assert len(lines) >= 8
    return [*lines, *secrets, *map(bytes.fromhex, map(bytes.decode, secrets))]


def test_from_init_to_a_finished_run(tmp_path: Path, pictures: Path) -> None:
    with lab_of(tmp_path, pictures, rounds=3) as run:
        run.start_all()
        summary = run.finish()
        first = run.devices[0]
        claim = f"lab/claims/{first}.claim"
        said = labs.edge_sdk(tmp_path, "enroll", "--claim", claim, "--identity", "x", code=2)
    assert summary["completed"] is True
    assert [each["rounds_done"] for each in summary["per_device"]] == [3, 3]
    assert summary["refused_frames"] == {}
    assert "used" in said
    assert len(said.splitlines()) == 1
    own = {
        path for folder in (tmp_path / "lab", *(tmp_path / each for each in run.devices)) for path in folder.rglob("*")
    }
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path not in own and path.suffix != ".key"]
    assert {"serve.log", "coordinator.log", "summary.json"} <= {path.name for path in written}
    for path in written:
        content = path.read_bytes()
        assert not any(key in content for key in keys_in(tmp_path)), path


@pytest.mark.costly
def test_a_revoked_device_is_out_and_the_others_go_on(tmp_path: Path, pictures: Path) -> None:
    with lab_of(tmp_path, pictures, rounds=500, quorum=1) as run:
        run.start_all()
        out, stays = run.devices
        run.until(lambda: "round 2," in run.said(out), "round 2")
        operator = ("--identity", "lab/operator", "--federation", "tiny", "--timeout", "60")
        assert out in labs.edge_sdk(tmp_path, "devices", *operator)
        labs.edge_sdk(tmp_path, "lab", "revoke", out)
        assert run.running.pop(out).wait(PATIENCE_S) == 1
        assert "revoked" in run.said(out)
        assert "stops" in labs.edge_sdk(tmp_path, "drain", *operator)
        assert run.running.pop("coordinator").wait(PATIENCE_S) == 0
        assert run.running[stays].poll() is None
        assert f"{out} was revoked" in run.said("coordinator")


def test_a_desk_that_is_told_to_end_ends_its_broker(tmp_path: Path) -> None:
    lab = labs.made(tmp_path, labs.free_port())
    with labs.serving(tmp_path, "lab", "serve", "lab"):
        os.kill(labs.desk_of(lab), signal.SIGTERM)
        labs.until(lambda: broker_settings.running_broker(lab) is None)


def test_a_second_desk_of_a_lab_is_refused(tmp_path: Path) -> None:
    """Two desks have one client id: each ended the other's connection, again and again."""
    labs.made(tmp_path, labs.free_port())
    with labs.serving(tmp_path, "lab", "serve", "lab"):
        command = [sys.executable, "-m", "edge_sdk.cli", "lab", "serve", "lab", "--no-broker"]
        second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert second.returncode == 2
    assert second.stderr == "edge-sdk: lab: another process runs this lab's desk\n"


def test_a_desk_that_was_killed_leaves_its_broker_and_the_next_one_uses_it(tmp_path: Path) -> None:
    lab = labs.made(tmp_path, labs.free_port())
    with labs.serving(tmp_path, "lab", "serve", "lab") as log:
        claim = owner.issue_claims(lab, ["device-01"])[0]
        broker, desk = broker_settings.running_broker(lab), labs.desk_of(lab)
        assert broker is not None
        keeper = labs.parent(broker)
        try:
            os.kill(desk, signal.SIGKILL)
            assert broker_settings.running_broker(labs.made(tmp_path / "other")) is None
            with labs.serving(tmp_path, "lab", "serve", "lab"):
                assert str(broker) in log.read_text()
                assert "device-01" in labs.edge_sdk(tmp_path, "enroll", "--claim", str(claim))
            assert broker_settings.running_broker(lab) == broker
            os.kill(broker, signal.SIGKILL)  # no desk is there, and it comes back all the same
            labs.until(lambda: broker_settings.running_broker(lab) not in (None, broker))
        finally:
            os.kill(keeper, signal.SIGTERM)
        labs.until(lambda: broker_settings.running_broker(lab) is None)


def test_a_broker_whose_keeper_was_killed_too_has_another_one(tmp_path: Path) -> None:
    lab = labs.made(tmp_path, labs.free_port())
    with labs.serving(tmp_path, "lab", "serve", "lab"):
        broker = broker_settings.running_broker(lab)
        assert broker is not None
        os.kill(labs.parent(broker), signal.SIGKILL)
        labs.until(lambda: is_kept(lab))
        os.kill(broker, signal.SIGKILL)
        labs.until(lambda: broker_settings.running_broker(lab) not in (None, broker))


def test_a_broker_that_dies_comes_back_and_boards_enrol_again(tmp_path: Path) -> None:
    """mosquitto 2.0.11 of Debian 12 can crash when it reads its settings again."""
    lab = labs.made(tmp_path, labs.free_port())
    with labs.serving(tmp_path, "lab", "serve", "lab") as log:
        (first,) = owner.issue_claims(lab, ["device-01"])
        assert "device-01" in labs.edge_sdk(tmp_path, "enroll", "--claim", str(first))
        broker = broker_settings.running_broker(lab)
        assert broker is not None
        os.kill(broker, signal.SIGSEGV)
        (again,) = owner.issue_claims(lab, ["device-01"])  # while it is away
        assert "device-01" in labs.edge_sdk(tmp_path, "enroll", "--claim", str(again), "--identity", "again")
        assert broker_settings.running_broker(lab) not in (None, broker)
        assert "mosquitto was ended by signal 11; restarting it in 0.2 s" in log.read_text()


def test_a_message_that_cannot_be_read_leaves_the_desk_and_the_broker_and_is_one_line(tmp_path: Path) -> None:
    lab = labs.made(tmp_path, labs.free_port())
    with labs.serving(tmp_path, "lab", "serve", "lab") as log:
        (path,) = owner.issue_claims(lab, ["device-01"])
        claim, broker = read_claim(path), broker_settings.running_broker(lab)
        with enroll._connected(claim, tmp_path, path) as transport:
            labs.until(lambda: isinstance(transport.poll(0.1), Connected))
            for message in strangers.kept("text").values():
                transport.send(f"{CLAIMS_ROOT}/{claim.user}", message)
            labs.until(lambda: "(the 10th)" in log.read_text())
        assert "device-01" in labs.edge_sdk(tmp_path, "enroll", "--claim", str(path))
        assert broker_settings.running_broker(lab) == broker
        told = [line for line in log.read_text().splitlines() if "desk: refused a message" in line]
        assert len(told) == 2
        assert "Traceback" not in log.read_text()
