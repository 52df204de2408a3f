"""Writes docs/reference/figures.md from the figures that records, files and tables are made from."""

from __future__ import annotations

from pathlib import Path

from coordinator.results.figures import device_figures as figures
from coordinator.results.figures.compared_figures import COMPARED_ACCURACIES, COMPARED_COSTS, ComparedFigure
from coordinator.results.figures.device_figures import Figure
from coordinator.results.figures.round_figures import RoundFigure, figures_of_rounds
from coordinator.results.figures.run_figures import RUN_FIGURES, RunFigure

PAGE = Path(__file__).parent / "reference" / "figures.md"
HEAD = """\
# Figures of devices, rounds and runs

The meaning of `per_device` in `summary.json` and of the columns of `devices.csv` and `rounds.csv`, and their headings
in tables. `docs/gen_figures.py` writes this page from the declarations in `coordinator/results/figures/`. Files, tables
and writers follow from them, too: declare a new figure only there.

## Of a device

An unknown figure is absent from `summary.json`, and its cell is empty; one marked `*` is also absent if it is 0 or
empty.

| figure | unit | measured by | file | heading | |
|---|---|---|---|---|---|
"""
ROUNDS = """
## Of a round

Accuracies are over the devices that learn and were measured after it. The tools of `--log` and Prometheus have the
figures with a name there; Prometheus writes `/` as `_`, and adds `_total` to those that it adds up, marked `+`.

| figure | unit | name for writers | heading | |
|---|---|---|---|---|
"""
FILES = {"both": "both", "summary": "`summary.json`", "csv": "`devices.csv`", "neither": ""}


RUN = """
## Of a run

The entries of `summary.json`; one marked `*` is absent where it is 0 or empty. [Reports](reports.md#figures-of-a-run)
defines the values in each.

| entry | unit | |
|---|---|---|
"""


COMPARED = """
## Of a comparison

The columns that `edge-sdk table --columns` takes, beside `difference`, `NAME_difference` and budgets; `compare.json`
and its CSV files have them all. Accuracies count from runs that came to their end.

| figure | unit | entry of `summary.json` | heading in the terminal | heading for a paper | |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    return (
        HEAD
        + "".join(map(_row, figures.DEVICE_FIGURES))
        + ROUNDS
        + "".join(map(_round_row, figures_of_rounds()))
        + RUN
        + "".join(map(_run_row, RUN_FIGURES))
        + COMPARED
        + "".join(map(_compared_row, (*COMPARED_ACCURACIES, *COMPARED_COSTS)))
    )


def _row(figure: Figure) -> str:
    column = figure.column
    heading = "" if column is None else column.heading + (" (HTML report)" if column.where == "report" else "")
    name = f"`{figure.name}`" + (" *" if figure.sparse else "")
    return f"| {name} | {figure.unit} | {figure.by} | {FILES[figure.files]} | {heading} | {figure.meaning} |\n"


def _round_row(figure: RoundFigure) -> str:
    heading = "" if figure.column is None else figure.column.heading
    writer = f"`{figure.writer}`" + (" +" if figure.counter else "") if figure.writer else ""
    return f"| `{figure.name}` | {figure.unit} | {writer} | {heading} | {figure.meaning} |\n"


def _run_row(figure: RunFigure) -> str:
    return f"| `{figure.name}`{' *' if figure.sparse else ''} | {figure.unit} | {figure.meaning} |\n"


def _compared_row(figure: ComparedFigure) -> str:
    heading = "" if figure.column is None else figure.column.heading
    cells = (f"`{figure.name}`", figure.unit, f"`{figure.place}`", heading, figure.paper_heading, figure.meaning)
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
