"""Labels that are words: the names of classes, and the ids that stand for them everywhere else.

This module is neutral: every package may import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Ints
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import given_array, is_missing, labels_of

MOST_SHOWN = 10
"""The most names, or numbers, that a message lists."""


def class_ids(
    y: Any, names: Sequence[str] = (), *, where: str = "y", expected: str = ""
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return labels as ids (n,), with the names of the classes.

    y: what `labels_of` takes; names of classes, (n,) or (n, 1); or a pandas categorical.  A frame of one column is that
    column.  names: all classes in order; without them they are the categories, or the names that occur, sorted.
    expected: begins what is said of other labels.  Raises UsageError for a name that is not among `names`, and for a
    label that is missing.
    """
    given = checked_names(names)
    if hasattr(y, "select_dtypes") and y.shape[1] == 1:
        y = y.iloc[:, 0]
    categorical = getattr(y, "cat", y)  # a pandas Series has its codes and categories there
    if hasattr(categorical, "codes") and hasattr(categorical, "categories"):
        codes, categories = np.asarray(categorical.codes), [*categorical.categories]
        if (codes < 0).any():
            raise UsageError(f"{where}: sample {int((codes < 0).argmax())} has no label; leave it out")
        y = np.asarray(categories)[codes]
        if all(isinstance(each, str) for each in categories):
            given = given or checked_names(categories)
    if isinstance(y, list | tuple) and len({isinstance(each, str) for each in y}) == 2:
        row = next(row for row, each in enumerate(y) if isinstance(each, str) != isinstance(y[0], str))
        if not any(map(is_missing, y)):
            raise UsageError(
                f"{where}: sample {row} has the label {y[row]!r}, sample 0 {y[0]!r}: give all as numbers from 0, or "
                "all as names"
            )
    words = given_array(y, where)
    if words.dtype.kind not in "UOT" or not words.size or not all(isinstance(each, str) for each in words.flat):
        return labels_of(words, where, expected), given
    found, places = np.unique(words.astype(str), return_inverse=True)
    own = tuple(str(each) for each in found)
    if blank := [name for name in own if not name.strip()]:
        raise UsageError(f"{where}: sample {[*words.flat].index(blank[0])} has no label ({blank[0]!r}); leave it out")
    if not given:
        order = in_order(own)
        places = np.array([order.index(name) for name in own])[places]
        own = tuple(order)
    known = given or checked_names(own, where=where)
    if unknown := [name for name in own if name not in known]:
        raise UsageError(f"{where}: class {unknown[0]!r}: no such class; there are {listed(known)}")
    ids: Ints = np.array([known.index(name) for name in own], np.int64)[places.reshape(words.shape)]
    return labels_of(ids, where, expected), known


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of classes sorted: by size if all are whole numbers, else as texts."""
    found = sorted(names)
    return sorted(found, key=int) if all(name.isdecimal() for name in found) else found


def checked_names(names: Sequence[str], *, where: str = "class_names") -> tuple[str, ...]:
    """Return names of classes as plain text.  Raises UsageError for a name that is repeated or not a text."""
    if isinstance(names, str) or not all(isinstance(each, str) and each for each in names):
        raise UsageError(f'{where}: expected one text for each class, such as ["cat", "dog"]')
    found = tuple(str(each) for each in names)
    stripped: dict[str, str] = {}
    for name in found:
        if stripped.setdefault(name.strip(), name) != name:
            raise UsageError(
                f"{where}: {stripped[name.strip()]!r} and {name!r} differ by spaces alone: write one of them"
            )
    if len({*found}) < len(found):
        twice = next(name for place, name in enumerate(found) if name in found[:place])
        raise UsageError(f"{where}: {twice!r} appears twice; name each class once")
    return found


def why_not_alike(own: Sequence[str], federation: Sequence[str], classes: int) -> str:
    """Say why a device's class names are not those of its federation, or empty if they are, or if one side has none."""
    if own and not federation and len(own) != classes:
        return f"its data have {len(own)} class names ({listed(own)}), the federation {classes} classes without names"
    if not own or not federation or tuple(own) == tuple(federation):
        return ""
    if {*own} == {*federation}:
        at = next(place for place, name in enumerate(own) if name != federation[place])
        return f"class {at} is {own[at]!r} in its data, and {federation[at]!r} in the federation"
    return f"its data have the classes {listed(own)}, the federation {listed(federation)}"


def empty_classes(classes: int, *parts: NDArray[Any]) -> Ints:
    """Return the ids below `classes` that no label of these parts, (n,) each, is."""
    return np.setdiff1d(np.arange(classes), np.concatenate(parts))


def name_of(label: int, names: Sequence[str]) -> str:
    """Return the name of a class, or its number where it has none."""
    return names[label] if label < len(names) else str(label)


def listed(values: Sequence[object]) -> str:
    """Return values as text, the first MOST_SHOWN of them, and how many more there are."""
    more = f" and {len(values) - MOST_SHOWN} more" if len(values) > MOST_SHOWN else ""
    return ", ".join(map(str, values[:MOST_SHOWN])) + more
