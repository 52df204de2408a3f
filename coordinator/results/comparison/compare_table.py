"""The table of a comparison in the terminal: one row for each method."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.record.units import printable
from coordinator.results.comparison.compare import Comparison, MethodRuns, Trial
from coordinator.results.figures.columns import FigureColumn, shown
from coordinator.results.figures.compared_figures import COMPARED_ACCURACIES, COMPARED_COSTS, ComparedFigure
from coordinator.results.figures.intervals import Spread
from coordinator.results.figures.result import unmeasured
from coordinator.results.report.tables import UNKNOWN, Column, Table
from edge_sdk.given_arrays import public_taken

MOST_WARNINGS = 12
"""The most warnings that a comparison writes out."""
NAMED = 5
"""Number of devices that a note names."""


def compare_table(comparison: Comparison, everything: str = "methods.csv") -> Table:
    """Return the table with a row for each line: accuracies in percent, paired differences in points, costs.

    `everything` is the file that has the columns for which a terminal is too narrow.
    """
    base, accuracies, costs = comparison.baseline, _figures(comparison), _costs(comparison)
    columns = (
        Column("method"),
        *(
            Column(name, right=True, optional=len(costs) + 2 * len(accuracies) - 2 * place - of if place else 0)
            for place, (_, name, difference) in enumerate(accuracies)
            for of, name in enumerate((name, f"{difference} - {base}"))
        ),
        *(Column(each.heading, right=True, optional=len(costs) - place) for place, (_, each) in enumerate(costs)),
    )
    return Table(
        columns=columns,
        rows=tuple(_row(comparison, line) for line in comparison.lines),
        notes=tuple(_notes(comparison)),
        everything=everything,
    )


def _costs(comparison: Comparison) -> list[tuple[ComparedFigure, FigureColumn]]:
    """The costs that have a column, from left to right."""
    return [each for each in shown(COMPARED_COSTS) if each[0].on_boards in (None, comparison.on_boards)]


def _figures(comparison: Comparison) -> tuple[tuple[str, str, str], ...]:
    """The accuracies that a table shows: name of the figure, heading, heading of its difference."""
    metric = comparison.metric
    if metric != "mean":
        return ((metric, metric, metric),)
    shared = any("global" in line.models for line in comparison.lines)
    found = [each for each in shown(COMPARED_ACCURACIES) if shared or each[0].name != "global_mean"]
    return tuple((figure.name, column.heading, figure.difference) for figure, column in found)


def _notes(comparison: Comparison) -> list[str]:
    seeds = comparison.seeds
    count = f"seeds {', '.join(map(str, seeds))}; \N{PLUS-MINUS SIGN} is the standard deviation over them"
    sure = " [95 % interval]" if len(seeds) > 1 else ""
    pairs = f"differences{sure} are paired with {comparison.baseline} seed by seed, in points of accuracy"
    lines = [
        count if len(seeds) > 1 else f"seed {seeds[0]} alone: give --seeds 0,1,2 for deviations",
        f"{pairs}; worst devices: the lowest tenth, one at least; accuracies: the newest of each device",
        "accuracies without the word global are of the devices' own models after their training",
    ]
    if comparison.on_boards:
        lines.append(_measured(comparison))
    return lines + run_notes(comparison) + _public(comparison) + _warnings(comparison)


def run_notes(comparison: Comparison, named: Callable[[str], str] = str) -> list[str]:
    """Return what to know of single runs: boards that were away, devices that no mean counts, and early ends.

    named: makes a name of a method that of its paper.
    """
    return [
        f"{named(line.method)}, seed {trial.seed}: {words}"
        for line in comparison.lines
        for trial in line.trials
        for words in (*_absences(trial), *_left_out(trial))
    ]


def _warnings(comparison: Comparison) -> list[str]:
    """The warnings of all runs, each once, with the methods that it concerns, and how many are left out."""
    found: dict[str, dict[str, None]] = {}
    for line in comparison.lines:
        for result in (trial.result for trial in line.trials):
            noted = unmeasured(result)  # among the notes on single runs
            for text in (each for each in result.warnings if each not in noted):
                found.setdefault(f"warning: {printable(text)}", {})[line.method] = None
    said = [text if len(of) == len(comparison.lines) else f"{', '.join(of)}: {text}" for text, of in found.items()]
    more = len(said) - MOST_WARNINGS
    return [*said[:MOST_WARNINGS], *([f"{more} further warnings: see summary.json of each run"] if more > 0 else [])]


def _public(comparison: Comparison) -> list[str]:
    """How many samples no device gets because a method needs a public set."""
    cards = [trial.result.card for line in comparison.lines for trial in line.trials]
    samples = [card["samples"] for card in cards if "public" in card.get("samples", {})]
    return [*dict.fromkeys(public_taken(each["public"], each["private"]) for each in samples)]


def _left_out(trial: Trial) -> tuple[str, ...]:
    """The devices that the accuracies of a run leave out."""
    if trial.result.completed:
        return tuple(map(printable, unmeasured(trial.result)))
    why = printable(trial.result.reason) or "no reason was given"
    return (f"ended early and counts in no accuracy: {why}",)


def _measured(comparison: Comparison) -> str:
    """Where the seconds and the joules of runs on boards are from."""
    devices = [device for line in comparison.lines for trial in line.trials for device in trial.result.devices]
    sources = {device.joules_source for device in devices if device.energy_j}
    words = {"measured": "measured by the boards", "profile": "from the boards' profiles and their seconds"}
    known = " and ".join(words[name] for name in sorted(sources) if name in words) or "not known"
    return f"wall, bytes and seconds of training are measured, summed over the boards; joules: {known}"


def _absences(trial: Trial) -> list[str]:
    """The boards of a lab that missed rounds of a run; empty for other runs, and where no board is in every round."""
    result = trial.result
    if not result.on_boards:
        return []
    missed = {device.id: result.rounds_done - device.rounds_done for device in result.devices}
    if all(missed.values()):
        return []
    away = [f"{name} ({count})" for name, count in missed.items() if count]
    more = f" and {len(away) - NAMED} more" if len(away) > NAMED else ""
    return [f"missed rounds of {result.rounds_done}: {', '.join(away[:NAMED])}{more}"] if away else []


def _row(comparison: Comparison, line: MethodRuns) -> tuple[str, ...]:
    accuracies = []
    for figure, _, _ in _figures(comparison):
        difference = None if line.method == comparison.baseline else comparison.difference(line, figure)
        accuracies += [spread_text(line.accuracy(figure)), difference_text(difference)]
    costs = [(line.cost(figure.name), figure) for figure, _ in _costs(comparison)]
    return (line.method, *accuracies, *(UNKNOWN if cost is None else figure.said(cost.mean) for cost, figure in costs))


def difference_text(spread: Spread | None) -> str:
    """Format a difference in points with its interval: +1.2 [+0.3, +2.1]."""
    if spread is None:
        return UNKNOWN
    mean = f"{100 * spread.mean:+.1f}"
    if spread.interval is None:
        return mean
    low, high = spread.interval
    return f"{mean} [{100 * low:+.1f}, {100 * high:+.1f}]"


def spread_text(spread: Spread | None) -> str:
    """Format a fraction in percent with its deviation: 93.9 +- 0.4."""
    if spread is None:
        return UNKNOWN
    mean = f"{100 * spread.mean:.1f}"
    return mean if spread.sd is None else f"{mean} \N{PLUS-MINUS SIGN} {100 * spread.sd:.1f}"
