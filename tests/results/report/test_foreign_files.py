"""A run folder, a trace, a checkpoint of somebody else: any file of it is shown, or is one line that names it."""

from __future__ import annotations

import copy
import io
import json
import math
import os
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import synthetic

from coordinator.results.document.command import Found
from coordinator.results.figures.insight import Insight
from coordinator.results.page.serving import folder_state
from coordinator.results.report.run_files import write_run
from coordinator.trace.log import MAGIC, NAME, Trace, TraceWriter
from edge_sdk import cli
from edge_sdk.at_rest.digests import json_with_digest
from edge_sdk.device.store import SqliteStore
from edge_sdk.errors import Damaged, UsageError

EXAMPLES = 40
TEXTS = ("summary.json", "rounds.csv", "accuracy.csv", "instruments.csv", "missed.csv")
CARD: Mapping[str, Any] = {
    "samples": {"private": 10},
    "type": "u1",
    "shape": [2],
    "range": [0.0, 1.0],
    "scale": 1.0,
    "classes": 2,
    "by_class": {"private": [5, 5]},
    "seed": 0,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with every kind of file."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    insight = Insight(
        predictions=np.eye(2, dtype=np.float32),
        prototype_classes=np.arange(2),
        prototypes=np.ones((2, 3), np.float32),
        points=np.ones((4, 2), np.float32),
        point_classes=np.array([0, 1, 0, 1]),
        point_devices=np.array([0, 0, 1, 1]),
        explained=np.ones(2, np.float32),
    )
    result = synthetic.result(count=2, rounds=2, card=CARD, insight=insight, data={"name": "cifar10"})
    write_run(result, "[federation]\n", folder)
    assert {*TEXTS, "insight.npz", "federation.toml"} <= {path.name for path in folder.iterdir()}
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def check_told(folder: Path, name: str = "") -> bool:
    """Report and page either show a folder, or say in one line which file of it cannot be read; return whether so."""
    told = list[str]()
    for read in (Found(silent=True).add, _paged):
        told += _line(lambda read=read: read(folder))
    assert all("\n" not in said and name in said and str(folder) in said for said in told), told
    return bool(told)


def _line(read: Callable[[], None]) -> list[str]:
    """The line of the UsageError that reading raises, if it does; no other error may leave it."""
    try:
        read()
    except UsageError as error:
        return [str(error)]
    return []


def _paged(folder: Path) -> None:
    json.dumps(folder_state(folder)[0].plain())


def npz(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]  # what savez takes
    return file.getvalue()


def bomb(name: str) -> bytes:
    """An archive of some kB with an array of 4 GiB, all of it zeros."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (2**15, 2**15)})
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{name}.npy", "w") as member:
        member.write(head.getvalue())
        for _ in range(320):
            member.write(bytes(2**20))
    return file.getvalue()


def places(path: Path) -> dict[str, Callable[[], None]]:
    """What may stand in the place of a file, by name."""

    def pipe() -> None:
        os.mkfifo(path)

    def loop() -> None:
        path.symlink_to(path.name)

    return {"folder": path.mkdir, "pipe": pipe, "loop": loop, "device": lambda: path.symlink_to("/dev/zero")}


CONTENTS: Mapping[str, bytes] = {
    "empty": b"",
    "deep": b"[" * 200_000,
    "deep map": b'{"a":' * 100_000,
    "not text": b"\xff\xfe\x00",
    "surrogates": b'"\\ud800"',
    "nul": b"\0" * 100,
    "list": b"[]",
    "null": b"null",
    "number": b"1" * 5000,
    "version alone": b'{"version": 1}',
    "long cell": b"round,device\n" + b"x" * 200_000,
}


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices of POSIX")
@pytest.mark.parametrize("place", ["folder", "pipe", "loop", "device"])
@pytest.mark.parametrize("name", [*TEXTS, "insight.npz", "federation.toml"])
def test_what_is_no_file_is_named(run: Path, name: str, place: str) -> None:
    (run / name).unlink()
    places(run / name)[place]()
    told = check_told(run, name)
    assert told or place == "loop"  # which is as if the file did not exist


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("name", [*TEXTS, "insight.npz"])
def test_a_file_with_other_content_is_named(run: Path, name: str, content: str) -> None:
    (run / name).write_bytes(CONTENTS[content])
    assert check_told(run, name)


@pytest.mark.parametrize("name", [*TEXTS, "insight.npz"])
def test_a_cut_file_is_named(run: Path, name: str) -> None:
    content = (run / name).read_bytes()
    for share in (0.1, 0.5, 0.9):
        (run / name).write_bytes(content[: int(share * len(content)) or 1])
        assert check_told(run, name) or name in ("instruments.csv", "missed.csv")


BAD: tuple[object, ...] = (
    *(None, "x", "\ud800", "-" * 300, -1, 2**60, 10**400, 1e308, -1e300, math.nan, math.inf, True),
    *([], [[]], {}, {"x": {}}, [1, "x"], {"samples": 3}, json.loads("[" * 300 + "]" * 300)),
)


def leaves(value: Any) -> Iterator[tuple[object, ...]]:
    """The path of every value in a plain one."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in parts:
        yield (key,)
        yield from ((key, *rest) for rest in leaves(each))


def changed(value: Any, at: tuple[object, ...], to: object) -> Any:
    value = copy.deepcopy(value)
    inner = value
    for step in at[:-1]:
        inner = inner[step]
    inner[at[-1]] = to
    return value


def test_no_value_of_the_summary_ends_in_a_traceback(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    cases = [(at, bad) for at in leaves(summary) for bad in BAD]
    examples = int(os.environ.get("EDGE_FOREIGN", EXAMPLES))
    for at, bad in random.Random(36).sample(cases, min(examples, len(cases))):
        (run / "summary.json").write_text(json.dumps(changed(summary, at, bad)))
        try:
            check_told(run)
        except BaseException as error:
            raise AssertionError(f"{at} = {bad!r:.60}") from error


CELLS = ("", "x", "nan", "inf", "1e308", "-1", "1" * 400, "1e400", "2", "=1+1", "\u0663", "0.5; x")


def test_no_cell_of_a_table_ends_in_a_traceback(run: Path) -> None:
    draw = random.Random(36)
    for _ in range(int(os.environ.get("EDGE_FOREIGN", EXAMPLES))):
        path = run / draw.choice(TEXTS[1:])
        before = path.read_text()
        lines = [line.split(",") for line in before.splitlines()]
        if len(lines) > 1:
            row = draw.choice(lines[1:])
            place, cell = draw.randrange(len(row)), draw.choice(CELLS)
            row[place] = cell
            path.write_text("".join(",".join(line) + "\n" for line in lines))
            try:
                check_told(run)
            except BaseException as error:
                raise AssertionError(f"{path.name}: {lines[0][place]} = {cell!r:.60}") from error
        path.write_text(before)


ARRAYS: Mapping[str, object] = {
    "one dimension": np.zeros(3, np.float32),
    "none": np.zeros((), np.float32),
    "empty": np.zeros((0, 2), np.float32),
    "wrong sizes": np.zeros((5, 7), np.float32),
    "nan": np.full((2, 2), np.nan, np.float32),
    "huge": np.full((2, 2), 1e30, np.float32),
    "text": np.array([["a", "b"], ["c", "d"]]),
    "complex": np.zeros((2, 2), np.complex64),
    "integers": np.full((2, 2), 2**62),
    "negative": np.array([-5, 7]),
}


@pytest.mark.parametrize("name", ["predictions", "prototype_classes", "prototypes", "points", "point_devices"])
@pytest.mark.parametrize("array", ARRAYS)
def test_no_array_ends_in_a_traceback(run: Path, name: str, array: str) -> None:
    with np.load(run / "insight.npz") as arrays:
        held = dict(arrays)
    (run / "insight.npz").write_bytes(npz(**{**held, name: ARRAYS[array]}))
    check_told(run)
    (run / "insight.npz").write_bytes(npz(**{other: each for other, each in held.items() if other != name}))
    check_told(run)


def test_an_archive_that_swells_is_named(run: Path) -> None:
    (run / "insight.npz").write_bytes(bomb("predictions"))
    assert check_told(run, "insight.npz")


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_a_running_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_bytes(b"[" * 200_000)
    assert check_told(tmp_path, "progress.json")
    (tmp_path / "progress.json").write_text(json.dumps({"version": 1, "round": "x"}))
    assert check_told(tmp_path, "progress.json")
    (tmp_path / "progress.json").unlink()
    (tmp_path / "checkpoint").mkdir()
    os.mkfifo(tmp_path / "checkpoint" / "ledger.db")
    assert check_told(tmp_path, "ledger.db")


@pytest.mark.parametrize("name", ["compare.json", "sweep.json"])
@pytest.mark.parametrize("content", CONTENTS)
def test_a_study_is_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_bytes(CONTENTS[content])
    assert check_told(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_settings_that_are_no_file_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "federation.toml")
    assert cli.main(["simulate", os.fspath(tmp_path / "federation.toml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# -- traces and checkpoints -----------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
@pytest.mark.parametrize("content", [*CONTENTS, "pipe", "folder", "magic alone"])
def test_a_trace_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / NAME
    if content in CONTENTS:
        path.write_bytes(CONTENTS[content])
    elif content == "magic alone":
        path.write_bytes(MAGIC + b"\x00" * 99)
    else:
        places(path)[content]()
    with pytest.raises(UsageError, match=NAME):
        Trace(path)


ENTRIES: tuple[object, ...] = (
    *(None, 3, "heard", [], ["heard"], ["heard", "x", "incoming", "topic", b""], ["heard", 1.0, "incoming", 3, b""]),
    *(["sent", "topic", "text", False], ["ticked", math.nan], ["ticked", None], ["ended", 1, 2], ["refused", "x", "y"]),
    *(["life", b"", {}, [], 1, b"", True, {}], {"kind": "heard"}, json.loads("[" * 300 + "]" * 300)),
)


@pytest.mark.parametrize("entry", range(len(ENTRIES)))
def test_an_entry_of_a_trace_with_sound_checksums_is_named(tmp_path: Path, entry: int) -> None:
    path = tmp_path / NAME
    writer = TraceWriter(path, {}, Path("f.toml"), resume=False, virtual=True)
    writer._file.write(writer._chain.framed(msgpack.packb(ENTRIES[entry])))
    writer.close()
    with pytest.raises(UsageError, match=NAME):
        list(Trace(path))


@pytest.mark.parametrize("state", [None, [], {}, {"now_s": "x", "begun_s": 0.0, "hardware": {}, "open": {}}])
def test_a_checkpoint_with_a_sound_digest_is_named(tmp_path: Path, state: object) -> None:
    from coordinator.ledger import Ledger
    from edge_sim.clock.checkpoint import Checkpoints

    Checkpoints(tmp_path / "checkpoint").save(Ledger(None), lambda *_: None, {"now_s": 0.0})
    (tmp_path / "checkpoint" / "world.json").write_bytes(json_with_digest(state))
    with pytest.raises(Damaged, match=r"world\.json"):
        Checkpoints(tmp_path / "checkpoint").load()


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
@pytest.mark.parametrize("name", ["ledger.db", "device-00.db", "world.json"])
@pytest.mark.parametrize("place", ["pipe", "folder"])
def test_a_checkpoint_of_what_is_no_file_is_named(tmp_path: Path, name: str, place: str) -> None:
    from coordinator.ledger import Ledger
    from edge_sim.clock.checkpoint import Checkpoints

    def stores(folder: Path, _last: Path) -> None:
        SqliteStore(folder / "device-00.db").close()

    Checkpoints(tmp_path / "checkpoint").save(
        Ledger(None), stores, {"now_s": 0.0, "begun_s": 0.0, "hardware": {}, "open": {}, "resumed": {}}
    )
    assert Checkpoints(tmp_path / "checkpoint").load()[2]["now_s"] == 0
    (tmp_path / "checkpoint" / name).unlink()
    places(tmp_path / "checkpoint" / name)[place]()
    with pytest.raises(Damaged, match=name):
        Checkpoints(tmp_path / "checkpoint").load()
