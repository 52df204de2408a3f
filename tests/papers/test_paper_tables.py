"""The papers' tables at laptop scale: each file runs, a cell is run once, and the page is what the CSV files say."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from papers.test_recipes import shrunk

from benchmarks.papers import __main__ as runner
from benchmarks.papers import cells
from benchmarks.papers.page import NOT_RUN, page, sign
from benchmarks.papers.tables import FOLDER, SEEDS, TABLES, Claim, Line, Setting, Table
from edge_sim import run

ROWS = runner.PAGE.with_suffix("")
TINY = """
[federation]
name = "tiny"
method = "fedmd"
rounds = 1
devices = 2

[train]
local_steps = 1

[data]
train_samples = 100
test_samples = 20
public = 20

[[fleet]]
count = 2
model = "softmax"

[run]
standalone = false
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Table:
    pytest.importorskip("sklearn")
    (tmp_path / "tiny.toml").write_text(TINY)
    return Table(
        name="tiny",
        title="Tiny",
        source="nowhere",
        scale="tiny",
        figures=("personal",),
        lines=(Line("local"), Line("fast", "fedmd", {"train.learning_rate": 0.5})),
        settings=(Setting("iid", {"partition.kind": "iid"}),),
        claims=(Claim("fast", "local", ("personal",)),),
        folder=tmp_path,
    )


def kept(out: Path) -> list[dict[str, str]]:
    with (out.with_suffix("") / "tiny.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_cell_of_a_table_is_read_as_it_stands(table: Table) -> None:
    for cell in cells.cells(table, SEEDS[:1]):
        config = cell.config()
        assert config.federation.method == cell.line.runs
        assert not {*table.figures} - {*cells.ACCURACIES}
    lines = {line.name for line in table.lines}
    assert {name for claim in table.claims for name in (claim.better, claim.worse)} <= lines
    assert {name for setting in table.settings for name in setting.reported} <= lines


def test_every_file_has_a_table() -> None:
    assert {table.file for table in TABLES} == {*FOLDER.glob("*.toml")} - {FOLDER / "fedal-pi.toml"}


@pytest.mark.torch
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_two_rounds_of_a_table_run(table: Table) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    result = run(shrunk(table.file))
    assert result.completed
    assert result.rounds_done == 2


def test_the_page_is_what_the_rows_say() -> None:
    assert runner.PAGE.read_text(encoding="utf-8") == page(TABLES, ROWS)


def test_every_row_is_of_a_cell_as_its_settings_are_now() -> None:
    assert {path.stem for path in ROWS.glob("*.csv")} <= {table.name for table in TABLES}
    for table in TABLES:
        found = cells.rows(table, ROWS)
        known = [cells.row_of(cell, found) for cell in cells.cells(table, SEEDS)]
        assert all(row in known for row in found)


def test_a_cell_that_has_a_row_is_skipped(tiny: Table, tmp_path: Path) -> None:
    out = tmp_path / "papers.md"
    assert runner.main(["--seeds", "0", "--method", "fast"], (tiny,), out) == 0
    (first,) = kept(out)
    assert (first["setting"], first["method"], first["seed"]) == ("iid", "fast", "0")
    assert 0 < float(first["personal"]) <= 1
    assert float(first["up_per_device_round"]) > 0
    assert first["gm"] == ""
    assert first["command"].endswith("--table tiny --setting iid --method fast --seeds 0")
    assert runner.main(["--seeds", "0"], (tiny,), out) == 0
    assert [row["method"] for row in kept(out)] == ["fast", "local"]
    assert kept(out)[0] == first
    assert out.read_text() == page((tiny,), out.with_suffix(""))


def test_a_changed_setting_runs_the_cell_again(tiny: Table, tmp_path: Path) -> None:
    out = tmp_path / "papers.md"
    only = ["--seeds", "0", "--method", "local"]
    runner.main(only, (tiny,), out)
    tiny.file.write_text(TINY.replace("local_steps = 1", "local_steps = 2"))
    runner.main(only, (tiny,), out)
    assert len(kept(out)) == 2
    (cell,) = [cell for cell in cells.cells(tiny, (0,)) if cell.line.name == "local"]
    assert cells.row_of(cell, kept(out)) == kept(out)[1]


def test_a_cell_that_fails_is_named_and_the_others_go_on(
    tiny: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "papers.md"
    broken = Table(**{**vars(tiny), "lines": (Line("bad", "fedmd", {"train.learning_rate": -1.0}), *tiny.lines)})
    assert runner.main(["--seeds", "0"], (broken,), out) == 1
    assert "iid bad seed 0: failed" in capsys.readouterr().out
    assert [row["method"] for row in kept(out)] == ["local", "fast"]


def test_an_interrupt_loses_the_running_cell_alone(
    tiny: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, measured = tmp_path / "papers.md", cells.measured

    def interrupted(cell: cells.Cell) -> dict[str, object]:
        if cell.line.name == "fast":
            raise KeyboardInterrupt
        return measured(cell)

    with monkeypatch.context() as patch:
        patch.setattr(cells, "measured", interrupted)
        assert runner.main(["--seeds", "0"], (tiny,), out) == runner.INTERRUPTED
    assert [row["method"] for row in kept(out)] == ["local"]
    assert runner.main(["--seeds", "0"], (tiny,), out) == 0
    assert [row["method"] for row in kept(out)] == ["local", "fast"]


def test_a_sign_is_read_once_all_seeds_are_there() -> None:
    claim = Claim("high", "low", ("gm",))
    high = [{"seed": str(seed), "gm": value} for seed, value in zip(SEEDS, ("0.5", "0.6", "0.7"), strict=True)]
    low = [{"seed": str(seed), "gm": "0.4"} for seed in SEEDS]
    assert sign(claim, "gm", {"high": high, "low": low}).startswith("yes, +20.0")
    assert sign(claim, "gm", {"high": low, "low": high}).startswith("no, -20.0")
    assert sign(claim, "gm", {"high": high[:2], "low": low}) == NOT_RUN
    assert sign(claim, "gm", {"high": high, "low": [{**low[0], "gm": ""}, *low[1:]]}) == NOT_RUN


def test_bad_options_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--seeds", "a"], ["--table", "none"], ["--table", TABLES[0].name, "--method", "none"]):
        with pytest.raises(SystemExit) as left:
            runner.main(options)
        assert left.value.code == 2
    assert "--list" in capsys.readouterr().err
