"""A run does not go on, and a study adds none, with another partition, other own code or another board's file."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import fleets
import pytest
from interrupting import stop_after

from coordinator.config import to_toml
from edge_sdk.errors import UsageError
from edge_sim.config import settings
from edge_sim.config.settings import Config
from edge_sim.runs import run_folder, run_inputs
from edge_sim.runs.runner import run
from edge_sim.studies.planned_runs import compare

CODE = {
    "nets_of_mine.py": """
from widths_of_mine import WIDTH

def net(classes, input_shape, seed):
    from edge_sim.models import families
    return families.build_model("softmax", classes=classes, raw_shape=input_shape[1:], preprocess=PLAIN, seed=seed)

from edge_sdk.data import Preprocess
PLAIN = Preprocess()

def liar(knowledge, rng):
    return knowledge
""",
    "widths_of_mine.py": "WIDTH = 8\n",
}


def partition_file(folder: Path, alpha: float) -> None:
    """Write the partition of another draw."""
    (folder / "part.json").unlink(missing_ok=True)
    tables = fleets.tables(folder / "samples.npz", "local", devices=3, rounds=1, seed=0)
    tables["partition"] = {"kind": "dirichlet", "alpha": alpha, "export": str(folder / "part.json")}
    run(settings.parse(tables, folder / "f.toml"))


@pytest.fixture
def mine(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a partition, own code and a board's file, in which we are."""
    shutil.copy(pictures, tmp_path / "samples.npz")
    for name, text in CODE.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    board = resources.files("firmware_profiles") / "boards" / "generic.toml"
    (tmp_path / "board.toml").write_text(board.read_text(encoding="utf-8"), encoding="utf-8")
    partition_file(tmp_path, alpha=0.5)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in CODE:
        sys.modules.pop(name.removesuffix(".py"), None)


def config(folder: Path) -> Config:
    """Settings that name all of it."""
    tables = fleets.tables(folder / "samples.npz", "local", devices=3, rounds=2, seed=0)
    tables["partition"] = {"file": "part.json"}
    row: dict[str, Any] = {"model": "nets_of_mine:net", "board": "board.toml", "byzantine": "nets_of_mine:liar"}
    tables["fleet"] = [{"count": 3, **row}]
    path = folder / "f.toml"
    path.write_text(to_toml(tables), encoding="utf-8")
    return settings.load_config(path)


def append(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write(text)

    return change


CHANGES = {
    "the division of samples": lambda folder: partition_file(folder, alpha=50.0),
    "the code of nets_of_mine": append("nets_of_mine.py", "HIDDEN = 3\n"),
    "the code of nets_of_mine;": append("widths_of_mine.py", "WIDTH = 9\n"),
    "the file .*board.toml": append("board.toml", "\n# another\n"),
}


@pytest.mark.parametrize(("named", "change"), CHANGES.items())
def test_a_study_does_not_mix_runs_with_other_inputs(mine: Path, named: str, change: Callable[[Path], None]) -> None:
    out = mine / "study"
    compare(config(mine), ["local"], [0], out)
    compare(config(mine), ["local"], [0], out)
    change(mine)
    with pytest.raises(UsageError, match=f"changed since the run in it began: {named}") as raised:
        compare(config(mine), ["local"], [0, 1], out)
    assert "\n" not in str(raised.value)
    assert "--out" in str(raised.value)


@pytest.mark.parametrize("change", [CHANGES["the division of samples"], CHANGES["the code of nets_of_mine"]])
def test_a_run_does_not_go_on_with_other_inputs(
    mine: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 40, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            run(config(mine), out=mine / "run")
    change(mine)
    with pytest.raises(UsageError, match="changed since the run in it began"):
        run(config(mine), out=mine / "run", resume=True)


def test_a_run_that_tells_no_inputs_still_counts(mine: Path) -> None:
    """As those of older versions."""
    out = mine / "study"
    found = compare(config(mine), ["local"], [0], out)
    for path in out.rglob(run_folder.INPUTS):
        path.unlink()
    partition_file(mine, alpha=50.0)
    assert compare(config(mine), ["local"], [0], out).lines == found.lines


def test_the_code_of_a_method_of_another_package_counts(
    mine: Path, register: Callable[[str, Mapping[str, str]], None]
) -> None:
    method = mine / "widths_of_mine.py"
    method.write_text(
        "from edge_sdk.methods.local import Local\n\nclass Mine(Local):\n    name = 'mine'\n", encoding="utf-8"
    )
    register("edge_sdk.methods", {"mine": "widths_of_mine:Mine"})
    of_mine = fleets.config(mine / "samples.npz", "mine")
    before = run_inputs.code_digests(of_mine)
    assert set(before) == {"widths_of_mine"}
    append("widths_of_mine.py", "WIDTH = 9\n")(mine)
    assert run_inputs.code_digests(of_mine) != before


def test_the_code_of_this_project_does_not_count(pictures: Path) -> None:
    assert run_inputs.code_digests(fleets.config(pictures, "fedmd")) == {}


def test_a_simulated_device_leaves_alone_the_folder_of_a_board_that_has_its_id(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board that enrolled in the current folder left `device-00` there; the run began with its keys, and stood still."""
    monkeypatch.chdir(tmp_path)
    board = tmp_path / "device-00" / "identity.json"
    board.parent.mkdir()
    board.write_text("{}")
    config = settings.parse(fleets.tables(pictures, "local", devices=2, rounds=1, seed=0), Path("f.toml"))
    assert run(config).completed
    assert [each.name for each in board.parent.iterdir()] == ["identity.json"]
