"""The table of a comparison for a paper: chosen columns, methods as their papers name them, the best values in bold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator.record.units import printable
from coordinator.results.comparison.budgets import Budget, at_budget, budget_model, read_budget
from coordinator.results.comparison.compare import ACCURACIES, COSTS, Comparison, MethodRuns, paper_name
from coordinator.results.comparison.compare_table import run_notes
from coordinator.results.figures.intervals import Spread
from coordinator.results.report.tables import UNKNOWN, Column, Table
from edge_sdk.errors import UsageError

USUAL = ("mean", "difference", "amp", "fm", "wlp", "up_per_device_round", "down_per_device_round")
"""The columns of table.tex."""
SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
"""Characters that LaTeX reads as commands, and how they are written."""


@dataclass(frozen=True)
class PaperCell:
    """A value of a table for a paper, in units of its column."""

    spread: Spread | None
    scale: float = 1.0
    signed: bool = False
    say: Callable[[float], str] | None = None
    """Writes a cost, or None for a number with two digits and its deviation."""


@dataclass(frozen=True)
class PaperColumn:
    """A column of a table for a paper."""

    heading: str
    cell: Callable[[MethodRuns], PaperCell]
    better: int = 0
    """1 if the highest value is the best one, -1 if the lowest is, 0 to mark none."""
    name: str = ""
    """The accuracy that it shows, or empty for others."""


def paper_table(
    comparison: Comparison, columns: Sequence[str] = USUAL, *, latex: bool, caption: str = "", marked: bool = True
) -> Table:
    """The table for a paper.  columns: names of ACCURACIES and COSTS, NAME_difference, difference, or budgets (5MB).

    latex: whether cells, headings and caption are LaTeX.  marked: whether the best value of a column is marked.
    Raises UsageError for an unknown name.
    """
    found = [_column(comparison, name.strip()) for name in columns]
    cells = [[column.cell(line) for column in found] for line in comparison.lines]
    best = [_best(comparison, column, [row[place] for row in cells]) for place, column in enumerate(found)]
    write = _latex if latex else _plain
    quoted = escaped if latex else printable
    seeds = len(comparison.seeds)
    differences = any(cell.signed and cell.spread is not None for row in cells for cell in row)
    deviations = any(_parts(cell)[1] for row in cells for cell in row)
    intervals = any(_parts(cell)[2] for row in cells for cell in row)
    said = caption or f"{comparison.example.federation}, {seeds} seed{'' if seeds == 1 else 's'}"
    base = paper_name(comparison.baseline)
    notes = ["mean and standard deviation over seeds"] if deviations else ["mean over seeds"] * (seeds > 1)
    notes += [f"differences to {base}{' with 95 % intervals' if intervals else ''}"] * differences
    if marked and any(best) and latex:
        notes.append("bold: the best, and what its seeds do not distinguish" if seeds > 1 else "bold: the best of one")
    note = f" ({', '.join(notes)})" if notes else ""
    return Table(
        columns=(Column("Method"), *(Column(quoted(column.heading), right=True) for column in found)),
        rows=tuple(
            (
                quoted(paper_name(line.method)),
                *(write(cell, bold=marked and number in best[place]) for place, cell in enumerate(row)),
            )
            for number, (line, row) in enumerate(zip(comparison.lines, cells, strict=True))
        ),
        caption=quoted(f"{said}{note}."),
        notes=tuple(map(quoted, run_notes(comparison, paper_name))),
    )


def escaped(text: str) -> str:
    """Escape the text for LaTeX."""
    return "".join(SPECIAL.get(character, character) for character in printable(text))


def _column(comparison: Comparison, name: str) -> PaperColumn:
    """The column of this name.  Raises UsageError."""
    if name in ACCURACIES:
        found = ACCURACIES[name]
        return PaperColumn(
            found.paper_heading, lambda line: PaperCell(line.accuracy(name), found.scale), found.better, name
        )
    figure = "mean" if name == "difference" else name.removesuffix("_difference")
    if name.endswith("difference") and figure in ACCURACIES:
        heading = "Difference" if name == "difference" else f"{ACCURACIES[figure].paper_heading}, difference"
        return PaperColumn(heading, lambda line: _difference(comparison, line, figure))
    if name in COSTS:
        cost = COSTS[name]
        return PaperColumn(cost.paper_heading, lambda line: PaperCell(line.cost(name), say=cost.written))
    if name[:1].isdigit():
        return _budget_column(comparison, read_budget(name))
    known = ", ".join(("difference", *ACCURACIES, *COSTS))
    raise UsageError(f"--columns {name}: no such column; there are {known}, NAME_difference, and budgets such as 5MB")


def _budget_column(comparison: Comparison, budget: Budget) -> PaperColumn:
    model = budget_model(comparison)
    return PaperColumn(f"at {budget.text}", lambda line: PaperCell(at_budget(line, budget, model), 100.0), 1)


def _difference(comparison: Comparison, line: MethodRuns, figure: str) -> PaperCell:
    other = line.method != comparison.baseline
    return PaperCell(comparison.difference(line, figure) if other else None, 100.0, signed=True)


def _best(comparison: Comparison, column: PaperColumn, cells: Sequence[PaperCell]) -> set[int]:
    """The rows with the best value of a column, as written, and those that the seeds do not distinguish from it.

    The latter are the methods whose difference to the best, paired by seed, has a 95 % interval with 0 in it.  Empty if
    nothing can be compared or distinguished.
    """
    shown = {row: round(cell.scale * cell.spread.mean, 2) for row, cell in enumerate(cells) if cell.spread is not None}
    if not column.better or len(shown) < 2:
        return set()
    top = max(column.better * value for value in shown.values())
    found = {row for row, value in shown.items() if column.better * value == top}
    if column.name:
        first = comparison.lines[min(found)].method
        to_best = dataclasses.replace(comparison, baseline=first)
        for row in shown.keys() - found:
            spread = to_best.difference(comparison.lines[row], column.name)
            if spread is not None and spread.interval is not None and spread.interval[0] <= 0 <= spread.interval[1]:
                found.add(row)
    return found if len(found) < len(shown) else set()


def _parts(cell: PaperCell) -> tuple[str, str, tuple[str, str] | None]:
    """The mean of a cell, its deviation where it has one, and the ends of its interval where it is a difference."""
    spread = cell.spread
    if spread is None:
        return "", "", None
    sign = "+" if cell.signed else ""
    mean = cell.say(spread.mean) if cell.say else f"{cell.scale * spread.mean:{sign}.2f}"
    if cell.say or spread.sd is None or spread.interval is None:
        return mean, "", None
    if not cell.signed:
        return mean, f"{cell.scale * spread.sd:.2f}", None
    low, high = (f"{cell.scale * end:+.2f}" for end in spread.interval)
    return mean, "", (low, high)


def _plain(cell: PaperCell, *, bold: bool) -> str:
    mean, deviation, interval = _parts(cell)
    if not mean:
        return UNKNOWN
    text = f"{mean} \N{PLUS-MINUS SIGN} {deviation}" if deviation else mean
    text += f" [{interval[0]}, {interval[1]}]" if interval else ""
    return f"**{text}**" if bold else text


def _latex(cell: PaperCell, *, bold: bool) -> str:
    mean, deviation, interval = _parts(cell)
    if not mean:
        return "--"
    if cell.say:
        return escaped(mean)
    text = rf"{mean} \pm {deviation}" if deviation else mean
    text = rf"$\mathbf{{{text}}}$" if bold else f"${text}$"
    return text + (f" $[{interval[0]}, {interval[1]}]$" if interval else "")
