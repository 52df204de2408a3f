"""A reader of labelled samples in a CSV file: rows of numbers, texts as ids of tokens, or series step by step."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from edge_sdk.class_names import listed
from edge_sdk.data import Samples
from edge_sdk.errors import UsageError
from edge_sdk.sample_kind import SERIES, declared_kind
from edge_sdk.samples.readers import checked_samples


def samples_from_csv(
    path: str | Path,
    *,
    label: str = "label",
    series: str | None = None,
    classes: Sequence[str] = (),
    kind: str | None = None,
    vocabulary: int | None = None,
) -> Samples:
    """Read a CSV file in UTF-8 whose first row has the names of the columns; all but label and series are numbers.

    A row is a sample (d,), or a text (t,) of ids, which empty cells at its end make shorter.  Of series a row is a step
    (d,), and rows that follow each other with the same value in the column `series` are one sample.  label: the column
    of classes, whole numbers from 0 or names; classes: all names in the federation's order.  kind, vocabulary: as of
    Samples.  Raises UsageError that names the file, the row, counted from 1 with the names, and the column.
    """
    declared = declared_kind(kind, vocabulary, str(path))
    if declared is not None and declared.name == "picture":
        raise UsageError(f'{path}: kind = "picture": a row is a vector, a text, or a step of a series')
    of_series = declared is not None and declared.name in SERIES
    if of_series != (series is not None):
        wants = f'series="COLUMN", which tells samples apart, for kind = "{kind}"' if of_series else "no series"
        raise UsageError(f"{path}: expected {wants}")
    x: list[list[float] | list[list[float]]] = []
    y: list[str] = []
    of: dict[str, int] = {}
    newest = None
    for where, cells in _rows(Path(path), [label, *([series] if series else [])]):
        own = cells.pop(label)
        sample = cells.pop(series) if series else ""
        step = _numbers(where, cells, shorter=kind == "tokens")
        if not series:
            x.append(step)
            y.append(own)
            continue
        if sample != newest and sample in of:
            raise UsageError(f"{where}, column {series}: {sample!r} continues after another began: sort the rows by it")
        if sample == newest and own != y[-1]:
            raise UsageError(f"{where}, column {label}: {own!r}, but the same series began with {y[-1]!r}")
        if sample != newest:
            newest, of[sample] = sample, len(x)
            x.append([])
            y.append(own)
        x[-1].append(step)  # type: ignore[arg-type]  # of series these are lists of steps
    if not x:
        raise UsageError(f"{path}: has no rows of samples")
    labels = [int(each) for each in y] if all(each.strip().isdecimal() for each in y) else y
    given = np.array(x, np.float32) if declared is None else declared.given(x, str(path))
    return checked_samples(str(path), given, labels, names=classes, kind=declared)


def _rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Return where each row is, and its cells by column.  Raises UsageError for a row with other columns."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            names = [each.strip() for each in next(rows, [])]
            for name in needed:
                if names.count(name) != 1:
                    there = f"there are {listed(names)}" if names else "the file is empty"
                    raise UsageError(f"{path}: row 1: expected one column {name!r}; {there}")
            twice = [name for name in names if names.count(name) > 1]
            if twice or len(names) <= len(needed):
                raise UsageError(f"{path}: row 1: {f'two columns {twice[0]!r}' if twice else 'no columns of numbers'}")
            for cells in rows:
                where = f"{path}: row {rows.line_num}"
                if len(cells) != len(names):
                    at = (
                        f"nothing for {names[len(cells)]!r}"
                        if len(cells) < len(names)
                        else f"{cells[len(names)]!r} too"
                    )
                    raise UsageError(f"{where}: {len(cells)} columns, {at}; row 1 has {len(names)}")
                yield where, dict(zip(names, cells, strict=True))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a readable CSV file in UTF-8: {error}") from None


def _numbers(where: str, cells: dict[str, str], *, shorter: bool) -> list[float]:
    """Return the numbers of a row; shorter: whether empty cells may end it."""
    given = [(column, cell.strip()) for column, cell in cells.items()]
    while shorter and given and not given[-1][1]:
        given.pop()
    if not given:
        raise UsageError(f"{where}: a text without tokens: leave the row out")
    found = []
    for column, cell in given:
        try:
            found.append(float(cell))
        except ValueError:
            found.append(math.nan)
        if not math.isfinite(found[-1]):
            raise UsageError(f"{where}, column {column}: {cell!r} is no finite number")
    return found
