"""edge-sdk table: chosen columns, the best in bold, equal budgets, in four formats."""

from __future__ import annotations

import csv
import io

import pytest
import synthetic

from coordinator.results.comparison.budgets import Budget, accuracy_at, common_budgets, read_budget
from coordinator.results.comparison.compare import Comparison, MethodRuns, Trial
from coordinator.results.comparison.compare_files import write_comparison
from coordinator.results.report.run_files import write_run
from edge_sdk.cli import main

ROUNDS = 4
BYTES_A_ROUND = 32_000
"""Both directions, all devices (synthetic.py)."""


@pytest.fixture
def folder(tmp_path):
    lines = []
    for name, seed in (("alone", 0), ("fedavg", 1), ("fedmd", 2)):
        result = synthetic.result(count=3, rounds=ROUNDS, seed=seed)
        write_run(result, "", tmp_path / name)
        lines.append(MethodRuns(name, (Trial(0, result, name),)))
    write_comparison(Comparison(tuple(lines), "fedavg"), tmp_path)
    return tmp_path


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_columns_are_chosen_and_methods_named_as_in_their_papers(folder, capsys):
    assert main(["table", str(folder), "--columns", "mean,fm,bytes_up", "--format", "csv"]) == 0
    found = rows(capsys.readouterr().out)
    assert [row["Method"] for row in found] == ["Local", "FedAvg", "FedMD"]
    assert list(found[0]) == ["Method", "Accuracy", "FM x 1000", "Bytes up"]


def test_the_best_is_bold_where_the_lowest_is_best_too(folder, capsys):
    assert main(["table", str(folder), "--columns", "mean,fm", "--format", "latex"]) == 0
    lines = [line.split(" & ") for line in capsys.readouterr().out.splitlines() if line.endswith(r"\\")][1:]
    values = [[float(cell.strip("$ \\").removeprefix("mathbf{").strip("}$ \\")) for cell in line[1:]] for line in lines]
    for place, best in ((0, max), (1, min)):
        column = [value[place] for value in values]
        assert [("mathbf" in line[place + 1]) for line in lines] == [value == best(column) for value in column]


def test_equal_budgets_take_what_was_measured_last_before(folder, capsys):
    spent_kb = 2.5 * BYTES_A_ROUND / 1000
    assert main(["table", str(folder), "--at", f"{spent_kb}kB,1kJ,1B", "--format", "csv"]) == 0
    (_, fedavg, _) = rows(capsys.readouterr().out)
    result = synthetic.result(count=3, rounds=ROUNDS, seed=1)
    after_two = sum(result.history[1].accuracy.values()) / 3
    assert fedavg["at 80.0 kB"] == f"{100 * after_two:.2f}"
    assert fedavg["at 1 B"] == "-"
    assert fedavg["at 1.0 kJ"] == f"{100 * sum(result.history[0].accuracy.values()) / 3:.2f}"


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("5MB", Budget("bytes", 5e6)),
        ("1.5 kJ", Budget("joules", 1500.0)),
        ("2TFLOP", Budget("flops", 2e12)),
        ("10min", Budget("seconds", 600.0)),
    ],
)
def test_budgets_are_read_with_their_units(text, budget):
    assert read_budget(text) == budget


def test_the_common_budget_is_what_the_cheapest_method_spent():
    cheap = synthetic.result(count=3, rounds=2)
    dear = synthetic.result(count=3, rounds=ROUNDS)
    lines = (MethodRuns("fedavg", (Trial(0, dear),)), MethodRuns("fedmd", (Trial(0, cheap),)))
    budgets = {budget.kind: budget.amount for budget in common_budgets(Comparison(lines, "fedavg"))}
    assert budgets == {"bytes": 2 * BYTES_A_ROUND, "joules": 2000.0, "flops": 6e9, "seconds": 25.0}
    assert accuracy_at(lines[1].trials[0], Budget("bytes", 1e12)) == cheap.points()[-1].accuracy


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--columns", "nope"], "nope"),
        (["--at", "5parsec"], "5parsec"),
        (["--at", "0MB"], "0MB"),
        (["--at", "5ks"], ""),
    ],
)
def test_what_is_no_column_is_one_line(folder, capsys, arguments, word):
    code = main(["table", str(folder), *arguments])
    said = capsys.readouterr().err.splitlines()
    assert (code, len(said)) == ((2, 1) if word else (0, 0))
    assert word in "".join(said)


def test_a_run_is_no_comparison_and_a_file_can_be_written(folder, capsys):
    assert main(["table", str(folder / "fedavg")]) == 2
    assert main(["table", str(folder), "--format", "markdown", "--out", str(folder / "t.md")]) == 0
    assert (folder / "t.md").read_text().startswith("| Method | Accuracy |")
    assert main(["table", str(folder), "--out", str(folder / "no" / "t.md")]) != 0
    assert "--out" in capsys.readouterr().err
