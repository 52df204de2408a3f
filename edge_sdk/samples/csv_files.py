"""A reader of labelled samples in a CSV file: rows of numbers, texts or ids of their tokens, series step by step."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.class_names import listed
from edge_sdk.data import Samples
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import Places, places
from edge_sdk.sample_kind import SERIES, SampleKind, declared_kind
from edge_sdk.samples.readers import checked_samples
from edge_sdk.samples.texts import TEXT_LENGTH, check_length, ids_of_words

_MOST = float(np.finfo(np.float32).max)
_KEPT = 10
"""The minimum spread of a column, in float32 steps at the size of its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvColumns:
    """The meaning of a CSV file's columns; other columns hold numbers."""

    label: str = "label"
    series: str | None = None
    """Identifies a series; a row is a step."""
    text: str | None = None
    """Holds texts, whose words become ids of tokens."""
    user: str | None = None
    """Names the user who recorded a sample."""
    ignored: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        """All columns that are named here; row 1 must have them."""
        return tuple(each for each in (self.label, self.series, self.text, self.user, *self.ignored) if each)

    def check(self, kind: SampleKind | None, where: str) -> None:
        """Raise UsageError for columns that samples of a kind do not have."""
        name = kind.name if kind else None
        if name == "picture":
            raise UsageError(f'{where}: kind = "picture": a row is a vector, a text, or a step of a series')
        if (name in SERIES) != (self.series is not None):
            column = 'series="COLUMN", which identifies a sample' if name in SERIES else "no column of series"
            raise UsageError(f"{where}: expected {column}, for {kind or 'samples without a kind'}")
        if self.text is not None and name != "tokens":
            raise UsageError(f'{where}: the text column {self.text!r} needs kind = "tokens" and vocabulary')


@dataclass(slots=True)
class CsvSamples:
    """The samples of a CSV file, in its order."""

    columns: tuple[str, ...] = ()
    """The columns of numbers."""
    x: list[Any] = field(default_factory=list)
    """Rows (d,), ids (t,), or lists of steps (t, d)."""
    y: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    """Empty without a column of users."""
    rows: list[str] = field(default_factory=list)
    """The file and the row in which each sample begins."""

    def labels(self, classes: Sequence[str] = ()) -> NDArray[Any]:
        """Return whole numbers, or the names of classes; classes: all names, if they are known.

        Raises UsageError, with a row, where some are numbers and others names.
        """
        numbers = [each.isdecimal() for each in self.y]
        if all(each in classes for each in self.y) or not any(numbers):
            return np.array(self.y, np.str_)
        if not all(numbers):
            row = numbers.index(not numbers[0])
            raise UsageError(
                f"{self.rows[row]}: the label {self.y[row]!r}, but the first is {self.y[0]!r}: give all as numbers "
                "from 0, or all as names"
            )
        return np.array(self.y, np.int64)

    def at(self, path: Path) -> Places:
        """Return where the samples are from, for messages."""
        return places(str(path), self.rows)


def samples_from_csv(
    path: str | Path,
    *,
    label: str = "label",
    series: str | None = None,
    text: str | None = None,
    ignored: Sequence[str] = (),
    length: int = TEXT_LENGTH,
    classes: Sequence[str] = (),
    kind: str | None = None,
    vocabulary: int | None = None,
) -> Samples:
    """Read a CSV file in UTF-8 whose first row names the columns.

    A row is a sample (d,), or a text.  A text is in the column `text`, or is given as ids (t,) without empty cells at
    its end.  For series a row is a step (d,).  All columns that no argument names hold numbers.

    label: the column of classes: whole numbers from 0, or names.
    series: the column whose equal values in consecutive rows make these rows one sample.
    text: the column of texts.
    length: the number of words of a text that hashed_words keeps.
    classes: all class names in the federation's order.
    ignored: columns to leave out.
    kind, vocabulary: as of Samples.

    Raises UsageError that names the file, the column and the row; the row of names is row 1.
    """
    declared = declared_kind(kind, vocabulary, str(path))
    check_length(length, str(path))
    left_out = (ignored,) if isinstance(ignored, str) else tuple(ignored)
    columns = CsvColumns(label=label, series=series, text=text, ignored=left_out)
    found = read_csv(Path(path), columns, declared, length)
    at = found.at(Path(path))
    given = np.array(found.x, np.float32) if declared is None else declared.given(found.x, at)
    return checked_samples(at, given, found.labels(classes), names=classes, kind=declared)


def read_csv(path: Path, columns: CsvColumns, kind: SampleKind | None, length: int) -> CsvSamples:
    """Read the samples of a CSV file; length: the words of a text that are kept.  Raises UsageError."""
    columns.check(kind, str(path))
    found, of, newest = CsvSamples(), dict[str, int](), None
    for where, cells in _rows(path, columns):
        own = _label(where, columns.label, cells.pop(columns.label))
        user = cells.pop(columns.user) if columns.user else None
        sample = cells.pop(columns.series) if columns.series else None
        for column, cell in ((columns.user, user), (columns.series, sample)):
            if cell is not None and not cell.strip():
                raise UsageError(f"{where}, column {column}: the cell is empty: leave the row out")
        found.columns = tuple(cells)
        step = _step(where, cells, columns.text, kind, length)
        if sample is not None and sample == newest:
            _check_same(where, columns.label, sample, own, found.y[-1])
            if user is not None:
                _check_same(where, columns.user, sample, user, found.users[-1])
            found.x[-1].append(step)
            continue
        if sample is not None and sample in of:
            raise UsageError(
                f"{where}, column {columns.series}: {sample!r} continues after another began: sort the rows by it"
            )
        if sample is not None:
            newest = sample
            of[sample] = len(found.x)
        found.x.append(step if sample is None else [step])
        found.y.append(own)
        found.rows.append(where)
        if user is not None:
            found.users.append(user)
    if not found.x:
        raise UsageError(f"{path}: has no rows of samples")
    if columns.text is None and not (kind is not None and kind.vocabulary):
        _check_kept(path, found, stepwise=columns.series is not None)
    if kind is not None and kind.name == "series":
        _check_same_length(f"{path}: column {columns.series}", [*of], [len(steps) for steps in found.x])
    return found


def _check_kept(path: Path, found: CsvSamples, *, stepwise: bool) -> None:
    """Raise UsageError for a column whose values differ by so little, for their size, that float32 rounds them away."""
    rows = [step for sample in found.x for step in sample] if stepwise else found.x
    values = np.array(rows, np.float64)
    spread, kept = values.std(axis=0), np.spacing(np.abs(values).max(axis=0).astype(np.float32))
    if (lost := (spread > 0) & (spread < _KEPT * kept)).any():
        column = int(lost.argmax())
        raise UsageError(
            f"{path}: column {found.columns[column]}: values near {values[0, column]:,.10g} differ by about "
            f"{spread[column]:.3g}, and float32 keeps steps of {kept[column]:.3g}: subtract a number near to them, or "
            "name the column as ignored"
        )


def _check_same_length(where: str, names: Sequence[str], lengths: Sequence[int]) -> None:
    """Raise UsageError if series have several lengths, with the first that differs from the longest."""
    longest = max(lengths)
    if min(lengths) < longest:
        short = next(place for place, steps in enumerate(lengths) if steps < longest)
        raise UsageError(
            f"{where}: {names[short]!r} has {lengths[short]} steps, {names[lengths.index(longest)]!r} has {longest}: "
            'declare kind="ragged-series"'
        )


def _check_same(where: str, column: str | None, sample: str, now: str, before: str) -> None:
    """Raise UsageError if the label or the user changes within a series."""
    if now != before:
        raise UsageError(f"{where}, column {column}: {now!r}, but the same series ({sample!r}) began with {before!r}")


def _label(where: str, column: str, cell: str) -> str:
    """Return a class's number or name.  Raises UsageError for a missing label, and for a number that is not a class."""
    cell = cell.strip()
    if cell.isdecimal():
        return cell
    try:
        value = float(cell) if cell else math.nan
    except ValueError:
        return cell
    if math.isnan(value):
        raise UsageError(f"{where}, column {column}: no label{f' ({cell!r})' if cell else ''}: leave the row out")
    if value.is_integer() and value >= 0:
        raise UsageError(f"{where}, column {column}: {cell!r}: labels are whole numbers: write {int(value)}")
    raise UsageError(
        f"{where}, column {column}: {cell!r}: labels are whole numbers from 0 or names of classes; numbers to predict "
        "(regression) are not supported"
    )


def _rows(path: Path, columns: CsvColumns) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row's place, and its cells by column, without ignored ones.  Raises UsageError for other columns."""
    number = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            names = [each.strip() for each in next(rows, [])]
            _check_names(f"{path}: row 1", names, columns)
            for number, cells in enumerate(rows, 2):
                if not cells:  # a blank line
                    continue
                at = number if rows.line_num == number else f"{number} (line {rows.line_num})"
                where = f"{path}: row {at}"
                if len(cells) != len(names):
                    differs = (
                        f"nothing for {names[len(cells)]!r}"
                        if len(cells) < len(names)
                        else f"{cells[len(names)]!r} too"
                    )
                    raise UsageError(f"{where}: {len(cells)} columns, {differs}; row 1 has {len(names)}")
                yield (
                    where,
                    {name: cell for name, cell in zip(names, cells, strict=True) if name not in columns.ignored},
                )
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a CSV file in UTF-8: {error}: save it as UTF-8") from None
    except csv.Error as error:
        raise UsageError(f"{path}: row {number + 1}: not readable as CSV: {error}") from None


def _check_names(where: str, names: Sequence[str], columns: CsvColumns) -> None:
    """Raise UsageError for a first row that lacks a column, repeats one, or has no column for the samples."""
    if len(names) == 1 and (other := next((each for each in ";\t|" if each in names[0]), "")):
        raise UsageError(
            f"{where}: its cells are separated by {other!r}: write them with commas between, and decimal points; with "
            f'pandas read_csv(path, sep={other!r}, decimal=",").to_csv(path, index=False)'
        )
    for name in columns.named:
        if names.count(name) != 1:
            there = f"there are {listed(names)}" if names else "the file is empty"
            raise UsageError(f"{where}: expected one column {name!r}; {there}")
    if "" in names and "" not in columns.ignored:
        raise UsageError(
            f"{where}: column {names.index('') + 1} has no name: name it, or leave it out; pandas writes its index so "
            "unless to_csv has index=False"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{where}: two columns {twice[0]!r}")
    others = [name for name in names if name not in columns.named]
    if columns.text and others:
        raise UsageError(
            f"{where}: beside the text there are {listed(others)}: name them as ignored (in a simulation "
            "data.ignored_columns)"
        )
    if not columns.text and not others:
        raise UsageError(f"{where}: no columns of numbers")


def _step(
    where: str, cells: dict[str, str], text: str | None, kind: SampleKind | None, length: int
) -> list[int] | list[float]:
    """Return the numbers of a row, or the ids of its text."""
    vocabulary = kind.vocabulary if kind else 0
    if text is not None:
        return ids_of_words(cells[text], vocabulary, length, f"{where}, column {text}: the text")
    given = [(column, cell.strip()) for column, cell in cells.items()]
    while vocabulary and given and not given[-1][1]:
        given.pop()
    if not given:
        raise UsageError(f"{where}: a text without tokens: leave the row out")
    found = []
    for column, cell in given:
        try:
            value = float(cell) if "_" not in cell else math.nan  # 1_500 is a number in Python alone
        except ValueError:
            value = math.nan
        if not abs(value) <= _MOST:
            of = " of float32" if math.isfinite(value) else ""
            raise UsageError(
                f"{where}, column {column}: {cell!r} is not a finite number{of}: write numbers, with a decimal point, "
                "or ignore the column"
            )
        if vocabulary and not (value.is_integer() and 0 <= value < vocabulary):
            raise UsageError(
                f"{where}, column {column}: the id {cell}: a vocabulary of {vocabulary} has the ids 0..{vocabulary - 1}"
            )
        found.append(value)
    return found
