"""A comparison as a LaTeX table, ready for a paper: accuracies in percent, paired differences in points."""

from __future__ import annotations

from coordinator.report.comparison import FIGURES, Comparison, Line, Spread
from coordinator.report.units import human_bytes, printable

HEADINGS = ("Method", "Accuracy", "Difference", "AMP", r"FM $\times 10^3$", "WLP", "Up", "Down")
SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def table(comparison: Comparison, caption: str = "") -> str:
    """A whole `table` environment; it needs the package booktabs."""
    seeds = len(comparison.seeds)
    said = caption or f"{comparison.example.federation}, {seeds} seed{'' if seeds == 1 else 's'}"
    note = f"paired with {comparison.baseline}; mean and standard deviation over seeds, differences with 95 % intervals"
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            r"\begin{table}",
            rf"\caption{{{escaped(f'{said} ({note}).')}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(HEADINGS) - 1)}}}",
            r"\toprule",
            _cells(HEADINGS),
            r"\midrule",
            *(_cells(_row(comparison, line)) for line in comparison.lines),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def escaped(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(SPECIAL.get(character, character) for character in printable(text))


def _cells(cells: tuple[str, ...]) -> str:
    return " & ".join(cells) + r" \\"


def _row(comparison: Comparison, line: Line) -> tuple[str, ...]:
    difference = None if line.method == comparison.baseline else comparison.difference(line, "mean")
    costs = [line.over_seeds(FIGURES[f"{way}_per_device_round"]) for way in ("up", "down")]
    return (
        escaped(line.method),
        _mean(line.accuracy("mean"), 100),
        _difference(difference),
        _mean(line.accuracy("amp"), 100),
        _mean(line.accuracy("fm"), 1000),
        _mean(line.accuracy("wlp"), 100),
        *("--" if cost is None else escaped(human_bytes(cost.mean)) for cost in costs),
    )


def _mean(spread: Spread | None, scale: float) -> str:
    if spread is None:
        return "--"
    mean = f"{scale * spread.mean:.2f}"
    return f"${mean}$" if spread.sd is None else rf"${mean} \pm {scale * spread.sd:.2f}$"


def _difference(spread: Spread | None) -> str:
    if spread is None:
        return "--"
    mean = f"{100 * spread.mean:+.2f}"
    if spread.interval is None:
        return f"${mean}$"
    low, high = spread.interval
    return f"${mean}$ $[{100 * low:+.2f}, {100 * high:+.2f}]$"
