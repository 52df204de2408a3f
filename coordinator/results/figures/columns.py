"""The base of every declared figure: a name, a meaning, a unit, and how people see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from coordinator.record.units import human_bytes, human_flops, human_joules, human_seconds, percent, printable

T = TypeVar("T")
ColumnPlace: TypeAlias = Literal["table", "report"]
"""Where a column stands: in every table, or in the HTML report alone."""


def whole(value: float) -> str:
    """A count, or a mean of counts: below 10 with one digit behind the point if it is not whole."""
    return f"{value:.1f}" if abs(value) < 10 and value % 1 else f"{value:.0f}"


_SAY: Mapping[str, Callable[[Any], str]] = {
    "bytes": human_bytes,
    "s": human_seconds,
    "J": human_joules,
    "FLOP": human_flops,
    "share": percent,
}
"""How a value is written for people, by its unit."""


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """The column that shows a figure to people."""

    heading: str
    place: int = 100
    """Columns stand from left to right in this order."""
    say: Callable[[Any], str] | None = None
    """Writes a value, and the mean of numbers, or None for the way of its unit."""
    right: bool = True
    """Aligns numbers to the right; the last row has their mean."""
    signed: bool = False
    optional: int = 0
    """A narrow terminal leaves out columns, 1 first, and never those with 0."""
    where: ColumnPlace = "table"
    blank: bool = False
    """Leaves the cell empty where the value is 0, which means unmeasured."""


def text_column(heading: str, place: int, say: Callable[[Any], str] = printable, *, optional: int = 0) -> FigureColumn:
    """A column of text."""
    return FigureColumn(heading, place, say, right=False, optional=optional)


def measure(heading: str, place: int, where: ColumnPlace = "table") -> FigureColumn:
    """A column of numbers that may be unmeasured."""
    return FigureColumn(heading, place, where=where, blank=True)


class PageFact(NamedTuple):
    """How the live page shows a figure; its scripts write values by their unit."""

    name: str
    heading: str
    unit: str
    blank: bool
    """Shows nothing where the value is 0."""
    number: bool


@dataclass(frozen=True, slots=True)
class Declared(Generic[T]):
    """A figure of a device, a round or a run, which T holds."""

    name: str
    meaning: str
    """One sentence for the reference page."""
    unit: str = field(default="", kw_only=True)
    value: Callable[[T], Any] | None = field(default=None, kw_only=True)
    """Computes the figure.  None: it is the field of this name, or the sum of this name in the record."""
    column: FigureColumn | None = field(default=None, kw_only=True)
    page: str = field(default="", kw_only=True)
    """Its heading on the live page, or empty to leave it out."""

    def of(self, holder: T) -> Any:
        """The figure of a device, a round or a run."""
        if self.value is not None:
            return self.value(holder)
        found: Any = holder
        return getattr(found, self.name) if hasattr(found, self.name) else found.sums.get(self.name, 0)

    def said(self, value: Any) -> str:
        """A value, or a mean, as its column shows it; empty if it is unknown."""
        column = self.column
        if value is None or column is None or (column.blank and not value):
            return ""
        return (column.say or _SAY.get(self.unit, str))(value)

    def written(self, value: float) -> str:
        """Format a number in its unit; without decimals if the unit has no format of its own."""
        return _SAY.get(self.unit, whole)(value)

    @property
    def fact(self) -> PageFact:
        """How the live page shows it."""
        column = self.column or FigureColumn("")
        return PageFact(self.name, self.page, self.unit, blank=column.blank, number=column.right)


D = TypeVar("D", bound=Declared[Any])


def shown(declared: Iterable[D], where: ColumnPlace = "table") -> tuple[tuple[D, FigureColumn], ...]:
    """The figures with a column in this place, from left to right."""
    columns = [(each, each.column) for each in declared if each.column is not None and each.column.where == where]
    return tuple(sorted(columns, key=lambda each: each[1].place))
