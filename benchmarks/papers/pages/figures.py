"""The papers' figures from the runs that cells kept, by the functions that draw them for any user.

Each picture is a PNG with the CSV of what it shows, in docs/results/papers/figures.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.papers.running import cells
from benchmarks.papers.tables.kinds import FIRST_SEED, Table
from coordinator.results.comparison.compare import Comparison, MethodRuns, Trial
from coordinator.results.figures.result import Result
from coordinator.results.plots import curve_plots, device_plots, insight_plots, plots
from coordinator.results.plots.drawing import (
    WIDTH_IN,
    accuracy_axis,
    height_for_names,
    line_styles,
    picture,
    write_points,
)
from coordinator.results.report import text_files
from edge_sdk.errors import StoreError

FOLDER = "figures"
"""The folder of the pictures, beside that of the CSV files."""
OWN_TEST = "local_accuracy"
"""The column of the mean accuracy on devices' own test parts."""
Drawing = Callable[[Comparison, Path], None]


@dataclass(frozen=True)
class Figure:
    """A figure of a paper, drawn once for each of some settings of a table, or once over all of them."""

    name: str
    """The paper and the number that it has there."""
    shows: str
    table: str
    settings: tuple[str, ...]
    lines: tuple[str, ...]
    draws: str
    """The picture of docs/reference/reports.md, or by_setting."""
    own_test: bool = False
    """Whether accuracies are those on devices' own test parts, not on the test that all share."""
    ticks: tuple[str, ...] = ()
    """What each setting is called, if it is one picture over all settings, from rows alone."""

    @property
    def pictures(self) -> dict[str, tuple[str, ...]]:
        """The files, without their endings, each with its settings."""
        if self.ticks:
            return {self.name: self.settings}
        return {f"{self.name}-{setting}": (setting,) for setting in self.settings}


ALPHAS = ("alpha-5", "alpha-2", "alpha-1")
FEDKF_ALPHAS = ("alpha-1", "alpha-0.1", "alpha-0.01")
BEST = ("lg_fedavg", "fedproto", "fedssa")
SIZES = ("n-10", "n-50", "n-100")
CLASSES = ("n-100", *(f"classes-{count}" for count in (4, 6, 8, 10)))
PARTICIPANTS = ("n-100", "participants-30", "participants-50")
FIGURES = (
    Figure(
        "fedhkd-figure-1",
        "who holds which classes, by beta (as figures 1 to 3, of which 2 and 3 are of other data)",
        "fedhkd-table1",
        ("beta-0.2", "beta-0.5", "beta-5"),
        ("fedavg",),
        "who_holds_what",
    ),
    Figure(
        "fedal-figure-2",
        "what all devices predict for public samples of each class, on average",
        "fedal-cifar",
        ("alpha-5", "alpha-1"),
        ("fedmd", "fedal"),
        "public_predictions",
    ),
    Figure(
        "fedal-figure-5",
        "MNIST, accuracy against virtual time",
        "fedal-mnist",
        ALPHAS,
        ("fedmd", "fedmd_lf", "fedal"),
        "accuracy_by_time",
    ),
    Figure(
        "fedal-figure-7",
        "CIFAR-10, three CNNs; the paper's axis is iterations (figure 6 has SVHN)",
        "fedal-cifar",
        ALPHAS,
        ("fedmd", "fedmd_lf", "fedal", "fedproto", "fd"),
        "accuracy_by_time",
    ),
    Figure("fedal-figure-8", "FedDF and FedDF-AL", "fedal-cifar", ALPHAS, ("feddf", "feddf_al"), "accuracy_by_time"),
    Figure(
        "fedal-discriminator",
        "what the discriminator does: no figure of the paper",
        "fedal-mnist",
        ("alpha-1", "alpha-0.1"),
        ("fedal",),
        "instruments_by_round",
    ),
    Figure("fedssa-figure-3", "devices, own test", "fedssa-table2", SIZES, BEST, "accuracy_of_devices", own_test=True),
    Figure(
        "fedssa-figure-4",
        "accuracy, bytes and FLOPs, own test",
        "fedssa-table2",
        SIZES,
        ("local", *BEST),
        "accuracy_for_its_cost",
        own_test=True,
    ),
    Figure("fedssa-figure-5", "features", "fedssa-table2", ("n-10",), ("fedproto", "fedssa"), "features"),
    Figure(
        "fedssa-figure-6",
        "more classes on each device, on their own test parts",
        "fedssa-table2",
        CLASSES,
        ("fedproto", "fedssa"),
        "by_setting",
        ticks=tuple(f"{count} classes" for count in (2, 4, 6, 8, 10)),
    ),
    Figure(
        "fedssa-figure-7",
        "more devices in each round, on their own test parts",
        "fedssa-table2",
        PARTICIPANTS,
        ("fedproto", "fedssa"),
        "by_setting",
        ticks=tuple(f"{percent} % of 100" for percent in (10, 30, 50)),
    ),
    Figure(
        "fedssa-figure-8",
        "own test by round",
        "fedssa-target",
        ("n-10",),
        ("fml", "fedkd", *BEST),
        "accuracy_by_round",
        own_test=True,
    ),
    Figure(
        "fedkf-figure-3",
        "AMP, FM and WLP of the global model by round",
        "fedkf-table5",
        FEDKF_ALPHAS,
        ("fedavg", "fedavg+slots", "fedgkd", "qffl", "fedkf"),
        "global_own_task_by_round",
    ),
    Figure(
        "fednh-figure-3",
        "cosines of prototypes, and of FedAvg's last layer (also 7 and 8)",
        "fednh-comparators",
        ("beta-0.3",),
        ("fednh", "fedavg"),
        "prototype_cosines",
    ),
    Figure("fednh-figure-6", "features", "fednh-table1", ("beta-0.3",), ("fednh", "fedavg"), "features"),
    Figure(
        "fednh-table-2",
        "fairness: the devices' accuracies",
        "fednh-comparators",
        ("beta-0.3",),
        ("local", "fedavg", "fedper", "ditto", "fedrep", "fedproto", "fedbabu", "fedrod", "fednh"),
        "accuracy_of_devices",
    ),
)
"""FedNH's figures 1, 2 and 5 are those of examples/spiral; its figure 4 is the lines fednh-rho-X of its table."""
COMPARED: Mapping[str, Drawing] = {
    draw.__name__: draw
    for draw in (
        curve_plots.accuracy_by_round,
        curve_plots.accuracy_by_time,
        curve_plots.accuracy_of_devices,
        curve_plots.accuracy_for_its_cost,
        curve_plots.global_own_task_by_round,
        plots.instruments_by_round,
    )
}
INSIGHTS = ("public_predictions", "prototype_cosines", "features")


@dataclass(frozen=True)
class Places:
    """The folders of what is read and drawn."""

    rows: Path
    """The CSV files."""
    pictures: Path
    runs: Path


def draw(figures: Sequence[Figure], tables: Sequence[Table], places: Places, say: Callable[[str], None]) -> None:
    """Draw every picture whose runs stand, and name the missing cells of the others.  Raises EdgeError."""
    rows, runs = places.rows, places.runs
    by_name = {table.name: table for table in tables}
    for figure in figures:
        if figure.table not in by_name:
            continue
        table = by_name[figure.table]
        for name, settings in figure.pictures.items():
            missing = [cell for cell in _cells(table, figure, settings) if not _stands(cell, figure, rows, runs)]
            if missing:
                say(f"{name}: not drawn, {len(missing)} runs are missing:")
                for cell in missing:
                    say(f"  {cell.command} --again")
                continue
            path = places.pictures / f"{name}.png"
            with tempfile.TemporaryDirectory() as folder:
                drawn = Path(folder) / f"{figure.draws}.png"
                wanted = list(_cells(table, figure, settings))
                if figure.ticks:
                    kept = cells.rows(table, rows)
                    by_setting(figure, [row for cell in wanted if (row := cells.row_of(cell, kept))], drawn)
                else:
                    _draw_runs(figure, {cell.line.name: _result(cell, figure, runs) for cell in wanted}, drawn)
                said = "drawn" if drawn.exists() else "not drawn, its runs do not tell what it shows"
                _copy(drawn, path)
            say(f"{name}: {said}")


def _draw_runs(figure: Figure, results: Mapping[str, Result], path: Path) -> None:
    """Draw the runs of one setting, by line."""
    if figure.draws == "who_holds_what":
        device_plots.who_holds_what(next(iter(results.values())), path)
    elif figure.draws in INSIGHTS:
        insights = [
            insight_plots.MethodInsight(name, result.data.get("name", ""), result.insight)
            for name, result in results.items()
            if result.insight is not None
        ]
        if draw := insight_plots.insight_drawings(insights, figure.table).get(figure.draws):
            draw(path)
    else:
        lines = tuple(MethodRuns(name, (Trial(result.seed, result),)) for name, result in results.items())
        COMPARED[figure.draws](Comparison(lines, lines[0].method), path)


def by_setting(figure: Figure, rows: Sequence[cells.Row], path: Path) -> None:
    """Draw the mean accuracy on own test parts of each line over settings, from the rows of one seed."""
    columns = ("method", "setting", OWN_TEST)
    write_points(path, columns, ({column: row[column] for column in columns} for row in rows))
    found = {(row["method"], row["setting"]): float(row[OWN_TEST]) for row in rows}
    styles = line_styles(figure.lines)
    title = figure.shows[:1].upper() + figure.shows[1:]
    subtitle = f"{figure.table} · seed 0 · mean over all devices"
    with picture(path, WIDTH_IN, height_for_names(len(figure.lines)), title, subtitle) as drawn:
        axes = drawn.add_subplot()
        x = range(len(figure.settings))
        for line in figure.lines:
            y = [found[line, setting] for setting in figure.settings]
            axes.plot(x, y, color=styles[line].colour, marker="o", label=line)
        axes.set_xticks(x, figure.ticks)
        accuracy_axis(axes)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))


def _cells(table: Table, figure: Figure, settings: Sequence[str]) -> Iterator[cells.Cell]:
    for cell in cells.cells(table, FIRST_SEED):
        if cell.setting.name in settings and cell.line.name in figure.lines:
            yield cell


def _stands(cell: cells.Cell, figure: Figure, rows: Path, runs: Path) -> bool:
    if figure.ticks:
        return cells.row_of(cell, cells.rows(cell.table, rows)) is not None
    return cells.kept_run(cell, runs) is not None


def _result(cell: cells.Cell, figure: Figure, runs: Path) -> Result:
    result = cells.kept_run(cell, runs)
    if result is None:
        raise StoreError(f"{cell.name}: its run has gone; run it again")
    return own_test(result) if figure.own_test else result


def own_test(result: Result) -> Result:
    """Return a run whose accuracies are those on devices' own test parts, in the place of the shared test's."""
    history = tuple(dataclasses.replace(entry, accuracy=entry.local_accuracy) for entry in result.history)
    devices = tuple(
        dataclasses.replace(device, accuracy=device.metrics.get("local_accuracy", device.accuracy))
        for device in result.devices
    )
    return dataclasses.replace(result, history=history, devices=devices)


def _copy(drawn: Path, path: Path) -> None:
    """Take over a picture and its CSV.  Raises StoreError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for suffix in (".png", ".csv"):
            if drawn.with_suffix(suffix).exists():
                text_files.replace_file(path.with_suffix(suffix), drawn.with_suffix(suffix).read_bytes())
    except OSError as error:
        raise StoreError(f"{path}: cannot write the picture ({error.strerror}); free or change the place") from error
