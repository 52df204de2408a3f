"""What a device's store writes to its card: bytes as the kernel counts them, and syncs as strace sees them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_sdk.device.store import FinishedExchange, RoundStart, SqliteStore
from edge_sdk.serving.versions import Versions

COUNTERS = Path("/proc/self/io")
ROUNDS = 12
MOST_TIMES, MOST_SYNCS = 3, 20
PAGES_BYTES = 8 * 1024
"""What SQLite adds to a round however small it is."""
SHAPES = [(500, 1, 500), (3_000, 1, 3_000), (100_000, 3, 20_000), (300_000, 8, 50_000), (2_000_000, 1, 100_000)]
"""The shapes of rounds: the bytes of model and optimiser, the exchanges, and the bytes of each Assign and each upload."""
_SIZES = [f"{model} of model, {exchanges} of {message}" for model, exchanges, message in SHAPES]

needs_counters = pytest.mark.skipif(not COUNTERS.exists(), reason="the kernel does not count what a process writes")


def written_bytes() -> int:
    return int(re.search(r"wchar: (\d+)", COUNTERS.read_text())[1])  # type: ignore[index]  # the file always has it


def rounds_on(store: SqliteStore, model: int, exchanges: int, message: int) -> Iterator[None]:
    """Carry rounds out as a device does; pauses after each."""
    for round_ in range(ROUNDS):
        text = bytes([round_])
        start = RoundStart(round_, model * text, 100 * text)
        store.begin_round(start)
        for exchange in range(exchanges):
            done = FinishedExchange(round_, exchange, message * text, message * text)
            store.save(done, start if exchange == 0 else None)
            store.mark_receipted(round_, exchange)
        yield


@needs_counters
@pytest.mark.parametrize(("model", "exchanges", "message"), SHAPES, ids=_SIZES)
def test_a_round_writes_at_most_three_times_what_it_keeps(tmp_path, model, exchanges, message) -> None:
    store = SqliteStore(tmp_path / "app.db")
    store.save_start(RoundStart(0, bytes(model), b""))
    before = written_bytes()
    for _ in rounds_on(store, model, exchanges, message):
        pass
    store.close()
    kept = model + 2 * exchanges * message
    assert (written_bytes() - before) / ROUNDS <= MOST_TIMES * kept + PAGES_BYTES


@needs_counters
def test_what_is_deleted_is_not_written_again_where_sqlite_was_built_to(tmp_path) -> None:
    """Debian's SQLite fills freed pages with zeros by default."""
    model = 4_000_000
    store = SqliteStore(tmp_path / "app.db")
    written = []
    before = written_bytes()
    for _ in rounds_on(store, model, 1, 1_000):
        written.append(written_bytes() - before)
        before = written_bytes()
    store.close()
    assert max(written[2:]) <= 2.2 * model


def traced(tmp_path: Path, script: str) -> list[str]:
    """The system calls of a program, or a skip where they cannot be traced."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    log = tmp_path / "calls"
    command = [strace, "-f", "-y", "-e", "trace=fsync,fdatasync", "-o", str(log), sys.executable, "-c", script]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if ran.returncode:
        pytest.skip(f"strace does not run here: {ran.stderr.strip()[-200:]}")
    return log.read_text().splitlines()


def test_a_round_syncs_at_most_twenty_times(tmp_path) -> None:
    model, exchanges, message = 300_000, 11, 50_000  # FedAL with ten iterations
    script = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
        "from pathlib import Path\n"
        "from test_card_writes import rounds_on\n"
        "from edge_sdk.device.store import SqliteStore\n"
        f"store = SqliteStore(Path({str(tmp_path)!r}) / 'app.db')\n"
        f"for _ in rounds_on(store, {model}, {exchanges}, {message}): pass\n"
        "store.close()\n"
    )
    syncs = [line for line in traced(tmp_path, script) if str(tmp_path) in line and "sync(" in line]
    assert len(syncs) >= ROUNDS * exchanges  # each exchange is durable before it is sent
    assert len(syncs) / ROUNDS <= MOST_SYNCS


def test_a_served_model_is_synced_before_the_index_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, fsync, replace = [], os.fsync, Path.replace

    def synced(handle: int) -> None:
        calls.append(f"sync {Path(f'/proc/self/fd/{handle}').resolve().name}")
        fsync(handle)

    def replaced(path: Path, target: Path) -> Path:
        calls.append(f"name {target.name}")
        return replace(path, target)

    versions = Versions(tmp_path / "served", print)
    versions.forget()  # of nothing
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    versions.add(0, b"model")
    assert calls == ["sync 0.model", "sync index.json.new", "name index.json", "sync served"]


def test_a_served_model_that_was_half_written_is_no_model(tmp_path: Path) -> None:
    folder = tmp_path / "served"
    versions = Versions(folder, print)
    versions.add(0, b"whole")
    (folder / "1.model").write_bytes(b"ha")  # by a power cut
    versions = Versions(folder, print)
    assert [each.number for each in versions.index.versions] == [0]
    versions.add(1, b"other")
    assert [versions.state(each) for each in Versions(folder, print).index.versions] == [b"whole", b"other"]
