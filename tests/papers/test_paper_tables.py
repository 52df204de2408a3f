"""The papers' tables at laptop scale: each file runs, a cell is run once, and the page is what the CSV files say."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from papers.test_recipes import shrunk

from benchmarks.papers import __main__ as runner
from benchmarks.papers.pages import figures
from benchmarks.papers.pages.causes import CAUSES
from benchmarks.papers.pages.figures import FIGURES, Figure
from benchmarks.papers.pages.page import ROWS as ROWS_NAME
from benchmarks.papers.pages.page import pages, sign_of
from benchmarks.papers.pages.signs import NOT_RUN, signs
from benchmarks.papers.pages.verdicts import AGAINST, ONE_SEED, SHOWN, judged
from benchmarks.papers.running import cells
from benchmarks.papers.tables.kinds import FOLDER, SEEDS, Claim, Fall, Headline, Line, Paper, Setting, Table, Trend
from benchmarks.papers.tables.papers import PAPERS, TABLES
from edge_sim import run
from edge_sim.bench import vibration

ROWS = runner.PAGE.with_suffix("") / ROWS_NAME
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


def paper_of(table: Table) -> Paper:
    return Paper("one", "One", (table,))


def run_tiny(table: Table, out: Path, *options: str) -> int:
    return runner.main(options, (paper_of(table),), out, out.parent / "runs")


def rows_folder(out: Path) -> Path:
    return out.with_suffix("") / ROWS_NAME


def own_page(out: Path) -> str:
    """The page of the tiny paper."""
    return (out.with_suffix("") / "one.md").read_text(encoding="utf-8")


def kept(out: Path) -> list[dict[str, str]]:
    with (rows_folder(out) / "tiny.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def write_rows(out: Path, rows: list[dict[str, str]]) -> None:
    """Write a file of rows by hand, with the columns of the first."""
    folder = rows_folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "tiny.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_cell_of_a_table_is_read_as_it_stands(table: Table) -> None:
    for cell in cells.cells(table, SEEDS[:1]):
        config = cell.config()
        assert config.federation.method == cell.line.runs
        assert not {*table.figures} - {*cells.ACCURACIES}
    lines = {line.name for line in table.lines}
    settings = {setting.name for setting in table.settings}
    assert {name for setting in table.settings for name in setting.lines} <= lines
    assert all(table.settings_of(claim) for claim in table.claims)
    assert {name for claim in table.claims for name in claim.settings} <= settings
    for trend in table.trends:
        assert {*trend.settings} <= settings
        assert {trend.better, trend.worse} <= lines
    for fall in table.falls:
        assert {*fall.settings} <= settings
        assert fall.line in lines
    for setting in table.settings:
        assert {*setting.reported} <= {line.name for line in table.lines_of(setting)}


def test_every_cause_is_held_against_lines_that_are_run() -> None:
    by_name = {table.name: table for table in TABLES}
    for pair in (each for cause in CAUSES for each in cause.pairs):
        table = by_name[pair.table]
        (setting,) = (each for each in table.settings if each.name == pair.setting)
        assert {pair.better, pair.worse} <= {line.name for line in table.lines_of(setting)}


def test_every_file_has_a_table() -> None:
    assert {table.file for table in TABLES} == {*FOLDER.glob("*.toml")}


@pytest.mark.torch
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_two_rounds_of_a_table_run(table: Table) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    result = run(shrunk(table.file))
    assert result.completed
    assert result.rounds_done == 2


def test_the_pages_are_what_the_rows_say_byte_for_byte() -> None:
    written = pages(PAPERS, runner.PAGE)
    assert {path: path.read_bytes() for path in written} == {path: text.encode() for path, text in written.items()}
    assert {*runner.PAGE.with_suffix("").glob("*.md")} == {*written} - {runner.PAGE}


def test_the_first_table_has_ten_lines_two_of_each_paper() -> None:
    assert [len(paper.headlines) for paper in PAPERS] == [2] * 5 + [0]
    found = {table.name: judged(signs(table, cells.rows(table, ROWS))) for table in TABLES}
    for headline in (each for paper in PAPERS for each in paper.headlines):
        assert sign_of(headline, found).verdict == headline.verdict, f"the sentence about {headline.claim!r} is old"


def test_a_sentence_for_another_verdict_is_left_out(tiny: Table, tmp_path: Path) -> None:
    out = tmp_path / "papers.md"
    for verdict, stands in ((NOT_RUN, True), (SHOWN, False)):
        headline = Headline("it is fast", "tiny", "fast over local", "iid", "personal", verdict, "One may say so.")
        text = pages([Paper("one", "One", (tiny,), (headline,))], out)[out]
        assert "| it is fast | **not run yet** |" in text
        assert ("One may say so." in text) == stands


def test_pages_are_written_without_running_a_cell(tiny: Table, tmp_path: Path) -> None:
    out = tmp_path / "papers.md"
    assert run_tiny(tiny, out, "--page") == 0
    assert not rows_folder(out).exists()
    assert "| fast over local | iid | personal |  | not run yet |  | not run yet |" in own_page(out)
    assert "not run yet: 6. This runs them: `python -m benchmarks.papers --table tiny`" in own_page(out)


def test_every_row_is_of_a_cell_as_its_settings_are_now() -> None:
    assert {path.stem for path in ROWS.glob("*.csv")} - {"two-processors"} <= {table.name for table in TABLES}
    for table in TABLES:
        found = cells.rows(table, ROWS)
        known = [cells.row_of(cell, found) for cell in cells.cells(table, SEEDS)]
        assert all(row in known for row in found)


def test_a_cell_that_has_a_row_is_skipped(tiny: Table, tmp_path: Path) -> None:
    out = tmp_path / "papers.md"
    assert run_tiny(tiny, out, "--seeds", "0", "--method", "fast") == 0
    (first,) = kept(out)
    assert (first["setting"], first["method"], first["seed"]) == ("iid", "fast", "0")
    assert 0 < float(first["personal"]) <= 1
    assert float(first["up_per_device_round"]) > 0
    assert first["gm"] == ""
    assert first["command"].endswith("--table tiny --setting iid --method fast --seeds 0")
    assert run_tiny(tiny, out, "--seeds", "0") == 0
    assert [row["method"] for row in kept(out)] == ["fast", "local"]
    assert kept(out)[0] == first
    assert {path: path.read_text() for path in pages([paper_of(tiny)], out)} == pages([paper_of(tiny)], out)


def test_a_changed_setting_runs_the_cell_again(tiny: Table, tmp_path: Path) -> None:
    out = tmp_path / "papers.md"
    only = ["--seeds", "0", "--method", "local"]
    run_tiny(tiny, out, *only)
    tiny.file.write_text(TINY.replace("local_steps = 1", "local_steps = 2"))
    run_tiny(tiny, out, *only)
    assert len(kept(out)) == 2
    (cell,) = [cell for cell in cells.cells(tiny, (0,)) if cell.line.name == "local"]
    assert cells.row_of(cell, kept(out)) == kept(out)[1]


def test_a_cell_that_fails_is_named_and_the_others_go_on(
    tiny: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "papers.md"
    broken = Table(**{**vars(tiny), "lines": (Line("bad", "fedmd", {"train.learning_rate": -1.0}), *tiny.lines)})
    assert run_tiny(broken, out, "--seeds", "0") == 1
    assert "iid bad seed 0: failed" in capsys.readouterr().out
    assert [row["method"] for row in kept(out)] == ["local", "fast"]


def test_an_interrupt_loses_the_running_cell_alone(
    tiny: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, measured = tmp_path / "papers.md", cells.measured

    def interrupted(cell: cells.Cell, runs: Path) -> dict[str, object]:
        if cell.line.name == "fast":
            raise KeyboardInterrupt
        return measured(cell, runs)

    with monkeypatch.context() as patch:
        patch.setattr(cells, "measured", interrupted)
        assert run_tiny(tiny, out, "--seeds", "0") == runner.INTERRUPTED
    assert [row["method"] for row in kept(out)] == ["local"]
    assert run_tiny(tiny, out, "--seeds", "0") == 0
    assert [row["method"] for row in kept(out)] == ["local", "fast"]


def rows_of(table: Table, line: str, setting: str, **values: str) -> list[dict[str, str]]:
    """Rows of a line's cells with an accuracy for each seed from 0 on, which stand apart by commas."""
    known = [cell for cell in cells.cells(table, SEEDS) if (cell.line.name, cell.setting.name) == (line, setting)]
    (figure, told), *_ = values.items()
    return [
        {"setting": setting, "method": line, "seed": str(cell.seed), "settings": cell.digest(), figure: value}
        for cell, value in zip(known, told.split(","), strict=False)
    ]


def verdicts(table: Table, rows: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(each.verdict, each.sign.found) for each in judged(signs(table, rows))]


def test_a_sign_is_the_mean_difference_of_the_seeds_that_both_have(tiny: Table) -> None:
    high = rows_of(tiny, "fast", "iid", personal="0.5,0.6,0.7")
    low = [rows_of(tiny, "local", "iid", personal=values) for values in ("0.4,0.5,0.61", "0.4", "0.9,0.8,1.0")]
    assert verdicts(tiny, [*high, *low[0]]) == [(SHOWN, "+9.7 [+8.2, +11.1], 3 seeds")]
    assert verdicts(tiny, [*high, *low[1]]) == [(ONE_SEED, "+10.0, one seed")]
    assert verdicts(tiny, [*high, *low[2]])[0][0] == AGAINST
    assert verdicts(tiny, high) == [(NOT_RUN, NOT_RUN)]


def test_of_deviations_and_of_what_was_spent_the_lower_one_is_better(tiny: Table) -> None:
    figures = ("pm_l_sd", "fm_sd", "bytes")
    table = Table(**{**vars(tiny), "claims": (Claim("fast", "local", figures),)})
    told = {
        "fast": {"pm_l_sd": "0.05", "global_fm": "0.01", cells.REACHED: REACHED.format(100, 300)},
        "local": {"pm_l_sd": "0.07", "global_fm": "0.04", cells.REACHED: REACHED.format(900, 600)},
    }
    rows = [{**row, **told[line]} for line in told for row in rows_of(table, line, "iid", personal="0.5")]
    found = signs(table, rows)
    assert [round(100 * sign.gains[0], 6) for sign in found[:2]] == [2, 10]
    assert found[2].found == "2 times, one seed"


REACHED = '{{"0.5": {{"round": 1, "bytes": {}, "flops": 1}}, "0.6": {{"round": 2, "bytes": {}, "flops": 2}}}}'


def test_a_fall_compares_a_line_with_itself(tiny: Table) -> None:
    skewed = Setting("skewed", {"partition.kind": "dirichlet"})
    fall = Fall("fast", ("personal",), ("iid", "skewed"))
    table = Table(**{**vars(tiny), "settings": (*tiny.settings, skewed), "claims": (), "falls": (fall,)})
    rows = [*rows_of(table, "fast", "iid", personal="0.7"), *rows_of(table, "fast", "skewed", personal="0.4")]
    assert verdicts(table, rows) == [(ONE_SEED, "+30.0, one seed")]


def test_a_trend_compares_the_gaps_of_the_first_and_the_last_setting(tiny: Table) -> None:
    trend = Trend("fast", "local", ("personal",), ("iid", "skewed"))
    skewed = Setting("skewed", {"partition.kind": "dirichlet"})
    both = Table(**{**vars(tiny), "settings": (*tiny.settings, skewed), "claims": (), "trends": (trend,)})
    told = {"iid": ("0.5", "0.4"), "skewed": ("0.5", "0.2")}
    rows = [
        row
        for setting, (high, low) in told.items()
        for line, value in (("fast", high), ("local", low))
        for row in rows_of(both, line, setting, personal=value)
    ]
    assert verdicts(both, rows) == [(ONE_SEED, "+20.0, one seed")]
    assert verdicts(both, rows[:2]) == [(NOT_RUN, NOT_RUN)]


def test_claimed_pairs_come_first_and_of_both_the_cheapest() -> None:
    wanted = cells.in_order(cell for table in TABLES for cell in cells.cells(table))
    order = [
        (
            not any(claim.first for claim in cell.table.claims_of(cell.setting, cell.line)),
            cell.setting.cost_s * cell.line.cost,
        )
        for cell in wanted
    ]
    assert order == sorted(order)


def test_the_pair_that_a_paper_is_about_has_five_seeds_and_another_three(tiny: Table) -> None:
    about = Table(**{**vars(tiny), "claims": (Claim("fast", "local", ("personal",), first=True),)})
    assert [len(cells.cells(table)) for table in (about, tiny)] == [2 * 5, 2 * 3]


def test_a_line_without_a_claim_has_one_seed(tiny: Table) -> None:
    more = Table(**{**vars(tiny), "lines": (*tiny.lines, Line("other", "fedmd"))})
    planned = [(cell.line.name, cell.seed) for cell in cells.cells(more)]
    assert planned.count(("other", 0)) == 1
    assert {name for name, seed in planned if seed} == {"fast", "local"}


def test_the_list_tells_what_was_spent_and_what_is_ahead(
    tiny: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "papers.md"
    run_tiny(tiny, out, "--seeds", "0", "--method", "fast")
    capsys.readouterr()
    assert run_tiny(tiny, out, "--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]].count("done") == 1
    assert len(lines) == 1 + 2 * 3
    assert len(kept(out)) == 1


def test_a_run_is_kept_beside_its_row_and_read_again(tiny: Table, tmp_path: Path) -> None:
    out = tmp_path / "papers.md"
    run_tiny(tiny, out, "--seeds", "0", "--method", "fast")
    (cell,) = [cell for cell in cells.cells(tiny, (0,)) if cell.line.name == "fast"]
    result = cells.kept_run(cell, tmp_path / "runs")
    assert result is not None
    assert result.rounds_done == 1
    tiny.file.write_text(TINY.replace("local_steps = 1", "local_steps = 2"))
    assert cells.kept_run(cell, tmp_path / "runs") is None


def test_again_replaces_a_row_in_its_place_and_says_that_it_is_the_same(
    tiny: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "papers.md"
    run_tiny(tiny, out, "--seeds", "0")
    first = [(row["method"], row["personal"]) for row in kept(out)]
    capsys.readouterr()
    assert run_tiny(tiny, out, "--seeds", "0", "--method", "local", "--again") == 0
    assert [(row["method"], row["personal"]) for row in kept(out)] == first
    assert [method for method, _ in first] == ["local", "fast"]
    assert "iid local seed 0: each accuracy is the same as before" in capsys.readouterr().out


def test_again_names_each_accuracy_that_differs(
    tiny: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "papers.md"
    only = ["--seeds", "0", "--method", "local"]
    run_tiny(tiny, out, *only)
    (row,) = kept(out)
    write_rows(out, [{**row, "personal": "0.125", "gm": "0.25"}])
    capsys.readouterr()
    assert run_tiny(tiny, out, *only, "--again") == 0
    told = f"other accuracies than before: gm none (was 0.25), personal {row['personal']} (was 0.125); only the same"
    assert told in capsys.readouterr().out
    assert kept(out)[0]["personal"] == row["personal"]


def test_a_row_names_the_instruction_set(tiny: Table, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    out = tmp_path / "papers.md"
    run_tiny(tiny, out, "--seeds", "0", "--method", "local")
    assert kept(out)[0]["versions"].endswith(f"; cpu {torch.backends.cpu.get_cpu_capability()}")


def test_a_row_names_the_commit_and_whether_the_code_differs_from_it(tmp_path: Path) -> None:
    for name in cells.CODE:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "code.py").write_text("one = 1\n")
    assert cells.code_version(tmp_path) == {}  # not a checkout
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    (tmp_path / "notes.md").write_text("not code")
    (commit,) = cells.code_version(tmp_path).values()
    assert len(commit) == 10
    assert head.startswith(commit)
    (tmp_path / cells.CODE[0] / "code.py").write_text("one = 2\n")
    assert cells.code_version(tmp_path) == {"commit": f"{commit} changed"}


def as_kept(table: Table) -> dict[str, str]:
    """A row as a run of the second line would leave it."""
    (cell,) = [cell for cell in cells.cells(table, (0,)) if cell.line.name == "fast"]
    told = {"seed": "0", "cpu_s": "1.5", "settings": cell.digest(), "command": cell.command, "personal": "0.5"}
    return {**dict.fromkeys(cells.COLUMNS, ""), "setting": "iid", "method": "fast", **told}


def no_cell_runs(table: Table, out: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Run a table that cannot be run, and return the one line that says why."""
    capsys.readouterr()
    assert run_tiny(table, out, *options) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("papers: ")
    assert told.err.count("\n") == 1
    return told.err


def with_value(column: str, value: str) -> Callable[[str, str], str]:
    """What damages a file of one row: another value in a column."""

    def damage(head: str, row: str) -> str:
        values = next(csv.reader([row]))
        values[cells.COLUMNS.index(column)] = value
        return f"{head}\n{','.join(values)}\n"

    return damage


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda head, row: f"{head}\n{row[:20]}", ":2: 10 values for 26 columns; remove this line"),
        (lambda head, row: f"{head}\n{row[:-1]}", ":2: the command is not that of its cell; remove this line"),
        (lambda head, row: f'{head}\n{row}\n\n"iid,fa\n', ":4: unexpected end of data; remove this line"),
        (lambda head, row: f"{head}\n{row}\n\udcff\n", ":3: not UTF-8; remove this line"),
        (lambda head, row: f"{head.replace('personal,', '')}\n{row}\n", ":1: no column personal; restore the file"),
        (lambda head, row: f"{head},more\n{row},1\n", ":1: a column 'more'; restore the file"),
        (lambda head, row: f"{head},seed\n{row},0\n", ":1: a column twice; restore the file"),
        (lambda _head, _row: "", ":1: no column setting; restore the file"),
        (with_value("cpu_s", "abc"), ":2: cpu_s is 'abc', not a number; remove this line"),
        (with_value("cpu_s", ""), ":2: cpu_s is '', not a number; remove this line"),
        (with_value("personal", "nan"), ":2: personal is 'nan', not a number; remove this line"),
        (with_value("seed", "x"), ":2: seed is 'x', not a whole number; remove this line"),
        (with_value("settings", "12"), ":2: settings is '12', not 12 hexadecimal digits; remove this line"),
        (with_value(cells.REACHED, "[]"), f":2: {cells.REACHED} is not JSON of round"),
        (with_value(cells.REACHED, '"{""0.5"":{""round"":""1""}}"'), f":2: {cells.REACHED} is not JSON of round"),
    ],
)
def test_a_damaged_file_of_rows_is_told_before_a_cell_runs(
    tiny: Table,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[str, str], str],
    told: str,
) -> None:
    out = tmp_path / "papers.md"
    write_rows(out, [as_kept(tiny)])
    assert len(cells.rows(tiny, rows_folder(out))) == 1
    file = rows_folder(out) / "tiny.csv"
    file.write_text(damage(*file.read_text().splitlines()), errors="surrogateescape")
    for options in ([], ["--list"]):
        assert f"{file}{told}" in no_cell_runs(tiny, out, capsys, *options)


def test_a_folder_in_the_place_of_rows_is_told(tiny: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "papers" / ROWS_NAME / "tiny.csv").mkdir(parents=True)
    for options in ([], ["--list"]):
        told = no_cell_runs(tiny, tmp_path / "papers.md", capsys, *options)
        assert "tiny.csv: cannot be read (Is a directory); move" in told


def test_missing_data_are_told_once_and_only_for_cells_that_would_run(
    tiny: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "papers.md"
    tiny.file.write_text(TINY.replace("[data]", '[data]\nsource = "npz"\npath = "some.npz"'))
    monkeypatch.setenv("EDGE_DATA", str(tmp_path / "nowhere"))
    told = no_cell_runs(tiny, out, capsys)
    assert told.count(str(tmp_path / "nowhere" / "some.npz")) == 1
    assert "EDGE_DATA" in told
    write_rows(out, [as_kept(tiny)])
    assert run_tiny(tiny, out, "--method", "fast", "--seeds", "0") == 0
    no_cell_runs(tiny, out, capsys, "--method", "fast", "--seeds", "0", "--again")


@pytest.mark.parametrize("file", ["papers", "runs", "runs/tiny", "runs/tiny/iid/local/seed-0"])
def test_a_file_in_the_place_of_a_folder_is_told_before_a_cell_runs(
    tiny: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("in the way")
    told = no_cell_runs(tiny, tmp_path / "papers.md", capsys)
    assert str(tmp_path / file) in told
    assert "(Not a directory)" in told


@pytest.mark.parametrize("options", [[], ["--figures"]])
def test_a_folder_in_the_place_of_the_page_is_told_before_a_cell_runs(
    tiny: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    out = tmp_path / "papers.md"
    out.mkdir()
    assert f"{out}: is a folder" in no_cell_runs(tiny, out, capsys, *options)


def test_a_page_that_cannot_be_written_any_more_is_one_line(
    tiny: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, measured = tmp_path / "papers.md", cells.measured

    def in_the_way(cell: cells.Cell, runs: Path) -> dict[str, object]:
        out.mkdir()
        return measured(cell, runs)

    monkeypatch.setattr(cells, "measured", in_the_way)
    assert run_tiny(tiny, out, "--seeds", "0", "--method", "local") == 1
    assert capsys.readouterr().err.startswith(f"papers: {out}: cannot write the page (")
    assert len(kept(out)) == 1


def test_rows_of_an_older_file_stay_when_columns_come(tiny: Table, tmp_path: Path) -> None:
    out = tmp_path / "papers.md"
    run_tiny(tiny, out, "--seeds", "0", "--method", "fast")
    (row,) = kept(out)
    del row[cells.REACHED]
    write_rows(out, [row])
    run_tiny(tiny, out, "--seeds", "0")
    first, second = kept(out)
    assert first == {**row, cells.REACHED: ""}
    assert second["method"] == "local"


@pytest.mark.draws
@pytest.mark.parametrize(
    "draws",
    [
        "accuracy_by_round",
        "accuracy_of_devices",
        "who_holds_what",
        "public_predictions",
        "by_setting",
    ],
)
def test_a_figure_is_drawn_from_the_runs_that_were_kept(tiny: Table, tmp_path: Path, draws: str) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "papers.md"
    lines = ("fast",) if draws == "who_holds_what" else ("local", "fast")
    ticks = ("even",) if draws == "by_setting" else ()
    figure = Figure("one", "it", "tiny", ("iid",), lines, draws, own_test=True, ticks=ticks)
    said: list[str] = []
    folder = out.with_suffix("") / figures.FOLDER
    places = figures.Places(rows_folder(out), folder, tmp_path / "runs")
    figures.draw([figure], [tiny], places, said.append)
    assert [f"--method {line} --seeds 0 --again" in " ".join(said) for line in lines] == [True] * len(lines)
    run_tiny(tiny, out, "--seeds", "0")
    figures.draw([figure], [tiny], places, said.append)
    (name,) = figure.pictures
    assert (folder / f"{name}.png").stat().st_size > 0
    assert (folder / f"{name}.csv").read_text().count("\n") > 1


def test_every_figure_is_of_cells_that_are_planned() -> None:
    by_name = {table.name: table for table in TABLES}
    for figure in FIGURES:
        assert (
            len(figure.ticks) == len(figure.settings)
            if figure.ticks
            else figure.draws in {*figures.COMPARED, *figures.INSIGHTS, "who_holds_what"}
        )
        planned = {(cell.setting.name, cell.line.name) for cell in cells.cells(by_name[figure.table])}
        assert {(setting, line) for setting in figure.settings for line in figure.lines} <= planned


def test_the_vibration_signal_is_the_same_each_time() -> None:
    (x, y), (again, _) = vibration.samples(24, 3), vibration.samples(24, 3)
    assert x.shape == (24, *vibration.FOLDED)
    assert (x == again).all()
    assert sorted(y.tolist()) == sorted([*range(len(vibration.CONDITIONS))] * 3)


def test_bad_options_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for options, told in (
        (["--seeds", "a"], "expected some of 0,1,2,3,4"),
        (["--seeds", "7"], "expected some of 0,1,2,3,4"),
        (["--table", "none"], "invalid choice"),
        (["--nonsense"], "unrecognized arguments"),
        (["--table", TABLES[0].name, "--method", "none"], "no such cell; --list names them all"),
    ):
        with pytest.raises(SystemExit) as left:
            runner.main(options)
        assert left.value.code == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
