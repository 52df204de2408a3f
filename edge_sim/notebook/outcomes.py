"""The results of run, compare and sweep in Python: figures, tables, pictures, trained models."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from coordinator.record.units import percent
from coordinator.results.comparison.budgets import budget_table, read_budget
from coordinator.results.comparison.compare import Comparison
from coordinator.results.comparison.compare_files import comparison_summary, method_rows, run_rows
from coordinator.results.comparison.compare_table import compare_table
from coordinator.results.comparison.paper_table import USUAL, paper_table
from coordinator.results.figures.result import Result
from coordinator.results.plots.drawing import Drawings, draw_pictures
from coordinator.results.plots.look import FORMATS, SCREEN, WIDTHS_IN, Look
from coordinator.results.plots.plots import comparison_drawings, run_drawings
from coordinator.results.report.run_files import run_tables
from coordinator.results.report.run_table import run_table
from coordinator.results.report.summary import summary
from coordinator.results.report.tables import Table, latex_text, plain_text
from edge_sdk.errors import MissingExtra, UsageError
from edge_sdk.models.base import Model
from edge_sim.studies.sweep import Sweep, sweep_summary, trial_rows
from edge_sim.studies.sweep_command import sweep_text

if TYPE_CHECKING:
    from pandas import DataFrame


class Picture:
    """A picture of a run or a comparison."""

    def __init__(self, name: str, drawings: Drawings, look: Look) -> None:
        self.name, self._drawings, self._look = name, drawings, look

    def __repr__(self) -> str:
        return f"<picture {self.name}>"

    def _repr_svg_(self) -> str:
        """The picture as a notebook shows it."""
        with tempfile.TemporaryDirectory() as folder:
            (path,) = draw_pictures(self._drawings, folder, replace(self._look, formats=("svg",)), (self.name,))
            return path.read_text(encoding="utf-8")

    def save(self, path: str | Path) -> Path:
        """Write the picture to a .png, .svg or .pdf file, and return its path.

        Raises UsageError for another ending, and StoreError if the file cannot be written.
        """
        target = Path(path)
        kind = target.suffix.removeprefix(".")
        if kind not in FORMATS:
            raise UsageError(f"{target}: expected a name that ends with .{', .'.join(FORMATS)}")
        with tempfile.TemporaryDirectory() as folder:
            (drawn,) = draw_pictures(self._drawings, folder, replace(self._look, formats=(kind,)), (self.name,))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(drawn.read_bytes())
        return target


class Plots:
    """The available pictures, each as a method: `plot.accuracy_by_round(width="column")`."""

    def __init__(self, drawings: Drawings) -> None:
        self._drawings = drawings

    def __dir__(self) -> list[str]:
        return [*self._drawings]

    def __repr__(self) -> str:
        return f"<plots: {', '.join(self._drawings)}>"

    def __getattr__(self, name: str) -> PlotFunction:
        if name.startswith("_") or name not in self._drawings:
            raise AttributeError(f"no picture {name!r} here; there are {', '.join(self._drawings)}")
        return PlotFunction(name, self._drawings)


class PlotFunction:
    """Draws one picture."""

    def __init__(self, name: str, drawings: Drawings) -> None:
        self._name, self._drawings = name, drawings

    def __call__(self, *, width: str = "", titles: bool | None = None) -> Picture:
        """Return the picture.

        width: "column" or "page" for a paper, or empty for the screen.
        titles: whether to show titles.  By default only on the screen.
        """
        if width not in ("", *WIDTHS_IN):
            raise UsageError(f"width={width!r}: expected {', '.join(WIDTHS_IN)}, or nothing")
        look = replace(SCREEN, width_in=WIDTHS_IN.get(width), titles=not width if titles is None else titles)
        return Picture(self._name, self._drawings, look)


class PersonalMeans(NamedTuple):
    """FedNH's measures of personal models: means over the devices, or None if not measured."""

    v: float | None
    """PM(V): all classes that a device holds have the same weight."""
    l: float | None  # noqa: E741  # the paper's name
    """PM(L): the weight of a class is its share of the device's samples."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SimulationResult(Result):
    """The result of `edge_sim.run`: a Result with short names for the most important figures."""

    folder: Path | None = None
    """The run directory, which `edge-sdk report` reads, or None if the run was kept in memory."""
    trained: Mapping[str, Model] = field(default_factory=dict, compare=False)
    """The devices' models after the run, by device id.  If the method sends a mean at the end, they include it.  Empty
    for runs over a broker, and for a run that was read from its folder."""

    @property
    def accuracy(self) -> float | None:
        """The mean accuracy of the devices' own models at the end, or None if none was measured."""
        found: float | None = summary(self)["accuracy"].get("mean")
        return found

    @property
    def gm(self) -> float | None:
        """The accuracy of the global model on the shared test (FedNH's GM), or None without such a model."""
        found: float | None = summary(self)["accuracy"].get("gm")
        return found

    @property
    def pm(self) -> PersonalMeans:
        """FedNH's PM(V) and PM(L)."""
        return PersonalMeans(self.metrics.get("pm_v_mean"), self.metrics.get("pm_l_mean"))

    @property
    def models_folder(self) -> Path | None:
        """The folder of the trained models, one file per device, or None without keep_models=True."""
        place = self.folder / "models" if self.folder else None
        return place if place is not None and place.is_dir() else None

    @property
    def plot(self) -> Plots:
        """The pictures of the run."""
        return Plots(run_drawings(self))

    def to_pandas(self, table: str = "rounds") -> DataFrame:
        """A table of the run's CSV files as a data frame: rounds, devices, accuracy, instruments or missed."""
        tables = run_tables(self)
        if table not in tables:
            raise UsageError(f"to_pandas({table!r}): expected one of {', '.join(tables)}")
        columns, rows = tables[table]
        return data_frame(rows, columns)

    def _repr_html_(self) -> str:
        """A few figures, and the table of devices."""
        figures = {"accuracy": self.accuracy, "GM": self.gm, "PM(V)": self.pm.v, "PM(L)": self.pm.l}
        known = ", ".join(f"{name} {percent(value)}" for name, value in figures.items() if value is not None)
        return f"<p><b>{escape(repr(self)[1:-1])}</b></p><p>{escape(known)}</p>{html_table(run_table(self))}"


@dataclass(frozen=True, repr=False)
class ComparisonResult(Comparison):
    """The result of `edge_sim.compare`."""

    folder: Path = Path()
    """The folder of the comparison, which `edge-sdk report` and `edge-sdk table` read."""

    def __repr__(self) -> str:
        seeds = ", ".join(map(str, self.seeds))
        return f"<comparison of {', '.join(self.methods)}: seeds {seeds}; {self.folder}>"

    def _repr_html_(self) -> str:
        return html_table(compare_table(self))

    @property
    def plot(self) -> Plots:
        """The pictures of the comparison."""
        return Plots(comparison_drawings(self))

    def to_pandas(self, table: str = "methods") -> DataFrame:
        """A data frame with a row for each method (`methods`) or each run (`runs`)."""
        rows = {"methods": method_rows, "runs": run_rows}.get(table)
        if rows is None:
            raise UsageError(f"to_pandas({table!r}): expected methods or runs")
        return data_frame(rows(comparison_summary(self)))

    def at_budget(self, *budgets: str) -> str:
        """A table of accuracies at budgets such as 5MB, 100J, 2TFLOP or 60s.

        By default the budgets are such that all methods reach them.
        """
        return plain_text(budget_table(self, [read_budget(text) for text in budgets]))

    def to_latex(self, *columns: str, caption: str = "") -> str:
        """A LaTeX table.  columns: those of `edge-sdk table --columns`, and budgets."""
        return latex_text(paper_table(self, columns or USUAL, latex=True, caption=caption))


@dataclass(frozen=True, repr=False)
class SweepResult(Sweep):
    """The result of `edge_sim.sweep`."""

    folder: Path = Path()

    def __repr__(self) -> str:
        axes = ", ".join(f"{axis.key} ({len(axis.values)})" for axis in self.axes)
        return f"<sweep over {axes}; {self.folder}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(sweep_text(self))}</pre>"

    @property
    def chosen(self) -> dict[str, dict[str, Any]]:
        """The setting that each method chose on the validation part, for the first condition."""
        return {method: dict(candidate.setting) for method, candidate in self.conditions[0].chosen.items()}

    @property
    def comparisons(self) -> tuple[ComparisonResult, ...]:
        """The comparisons of the chosen settings, one for each condition."""
        return tuple(
            ComparisonResult(each.comparison.lines, each.comparison.baseline, each.comparison.metric, self.folder)
            for each in self.conditions
        )

    def to_pandas(self) -> DataFrame:
        """A data frame with a row for each run, and its value of every key."""
        return data_frame(list(trial_rows(self)))

    def summary(self) -> dict[str, Any]:
        """The contents of sweep.json."""
        return sweep_summary(self)


def outcome_of(result: Result, folder: Path | None, trained: Mapping[str, Model]) -> SimulationResult:
    """Add to a Result what only the Python interface returns."""
    values = {each.name: getattr(result, each.name) for each in fields(Result)}
    return SimulationResult(**values, folder=folder, trained=trained)


def data_frame(rows: Iterable[Mapping[str, object]], columns: Iterable[str] | None = None) -> DataFrame:
    """Rows as a data frame.  Raises MissingExtra without pandas."""
    try:
        from pandas import DataFrame as Frame  # an optional package: only where a data frame is wanted
    except ImportError:
        raise MissingExtra("pandas", "notebook", "data frames") from None
    return Frame(list(rows), columns=None if columns is None else list(columns))


def html_table(table: Table) -> str:
    """A table and the lines below it as HTML."""
    heads = "".join(f"<th>{escape(column.name)}</th>" for column in table.columns)
    rows = "".join(_row(cells) for cells in (*table.rows, *([table.last] if table.last else [])))
    notes = "".join(f"<p>{escape(note)}</p>" for note in (table.headline, *table.notes) if note)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{notes}"


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(_cells(cells))}</tr>"


def _cells(cells: Iterable[str]) -> Iterator[str]:
    yield from (f"<td>{escape(cell)}</td>" for cell in cells)
