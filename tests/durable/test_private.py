"""Only their owner may read the files that hold secrets or private content, from the moment at which they are made."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.ledger import Ledger
from coordinator.trace.log import TraceWriter
from edge_sdk.agent.state_folder import StatePlaces
from edge_sdk.at_rest.files import exposed, replace_durably
from edge_sdk.device.store import SqliteStore
from edge_sdk.device.training.budget import BudgetLedger
from edge_sdk.identity import key_files
from edge_sdk.privacy.release import Guarantee
from edge_sdk.samples.store import SampleStore
from edge_sdk.serving.versions import Versions
from edge_sim.clock.checkpoint import Checkpoints

pytestmark = pytest.mark.skipif(os.name != "posix", reason="rights of POSIX")


@pytest.fixture(autouse=True)
def open_to_all() -> Iterator[None]:
    """A process whose new files everybody may read and write, unless it asks for less."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """The rights of a folder and of everything in it."""
    found = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode)) for path in found}


def check(folder: Path, *, at_least: int = 2) -> None:
    found = {name: mode for name, mode in modes(folder).items() if ".lock" not in name}  # a lock holds nothing
    assert len(found) >= at_least, found
    assert {name: mode for name, mode in found.items() if mode not in ("0o600", "0o700")} == {}


def test_a_database_its_log_and_its_shared_memory_are_private(tmp_path):
    store = SqliteStore(tmp_path / "state" / "lab.db")
    check(tmp_path / "state", at_least=3)  # the folder, the file, and the log beside it
    store.close()
    check(tmp_path / "state")


def test_the_stores_of_a_device_are_private(tmp_path):
    SampleStore(tmp_path / "samples" / "own.db", classes=2, shape=(1,), dtype="float32").close()
    check(tmp_path / "samples")
    ledger = BudgetLedger(tmp_path / "privacy" / "privacy.db", Guarantee(1.0, 1e-5))
    with ledger._opened():
        check(tmp_path / "privacy", at_least=3)


def test_served_models_are_private(tmp_path):
    Versions(tmp_path / "state" / "lab.served", print).add(1, b"weights")
    check(tmp_path / "state", at_least=4)


def test_files_that_are_replaced_are_private_before_the_rename_too(tmp_path, monkeypatch):
    seen = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda new, path: (seen.append(oct(new.stat().st_mode)), replace(new, path)))
    (tmp_path / "index").touch(mode=0o666)
    replace_durably(tmp_path / "index", b"new")
    assert seen == ["0o100600"]
    assert oct((tmp_path / "index").stat().st_mode) == "0o100600"


def test_a_half_written_file_of_an_older_version_does_not_keep_its_rights(tmp_path):
    (tmp_path / "index.new").touch(mode=0o666)
    replace_durably(tmp_path / "index", b"new")
    assert oct((tmp_path / "index").stat().st_mode) == "0o100600"


def test_the_ledger_its_copies_and_checkpoints_are_private(tmp_path):
    ledger = Ledger(tmp_path / "checkpoint" / "ledger.db")
    check(tmp_path / "checkpoint", at_least=3)
    ledger.close()
    memory = Ledger(None)
    Checkpoints(tmp_path / "run" / "checkpoint").save(memory, lambda *_: None, {"now_s": 0.0})
    check(tmp_path / "run" / "checkpoint", at_least=3)


def test_a_trace_is_private(tmp_path):
    TraceWriter(tmp_path / "run" / "trace.edgt", {}, Path("f.toml"), resume=False, virtual=True).close()
    assert modes(tmp_path / "run")["trace.edgt"] == "0o600"


def test_keys_lie_in_a_folder_of_their_own(tmp_path):
    key_files.write_whole(tmp_path / "device" / "signing.key", b"secret", key_files.PRIVATE)
    check(tmp_path / "device")


def test_a_folder_that_is_open_is_told_in_one_line_that_mends_it(tmp_path):
    state = tmp_path / "my state"
    store = SqliteStore(state / "lab.db")
    store.close()
    assert exposed(state) == ""
    (state / "lab.db").chmod(0o644)
    (state / "lab.served").mkdir()
    (state / "lab.served" / "1.model").touch(mode=0o640)
    line = exposed(state)
    assert line.count("\n") == 0
    assert str(state) in line
    remedy = line.rpartition(": ")[2]
    assert remedy == f"chmod -R go= {shlex.quote(str(state))}"
    subprocess.run(remedy, shell=True, check=True)  # as a user would paste it
    assert exposed(state) == ""


def test_a_device_tells_of_open_state_when_it_starts(tmp_path):
    SqliteStore(tmp_path / "lab.db").close()
    (tmp_path / "lab.db").chmod(0o644)
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "set.npz").write_bytes(b"public")  # fetched: it is for everybody
    said: list[str] = []
    StatePlaces(tmp_path, "lab", "device-1").opener(quarantine=False, tell=said.append)().close()
    path = tmp_path / "lab.db"
    assert said == [f"{path}: other users of this machine may read it; repair this with: chmod -R go= {path}"]
