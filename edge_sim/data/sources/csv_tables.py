"""A source for the user's own CSV: one file with a share of every class held out, or train.csv and test.csv."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edge_sdk.class_names import class_ids
from edge_sdk.data import Samples
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import CHANNELS_LAST
from edge_sdk.sample_kind import SampleKind, arguments, as_held
from edge_sdk.samples.csv_files import CsvColumns, read_csv
from edge_sim.data.draw import hold_out as held_out
from edge_sim.data.sources.base import SourceData


def read_csv_tables(
    path: Path, columns: CsvColumns, kind: SampleKind | None, length: int, *, hold_out: tuple[float, int]
) -> SourceData:
    """Read tables, texts or series: the file itself, or train.csv and test.csv in the folder.

    kind: the declared one.  length: how many words of a text are kept.  hold_out: share that becomes the test where
    there is one file, and a seed.  Raises UsageError that names the file, the row and the column.
    """
    files = [path / "train.csv", path / "test.csv"] if path.is_dir() else [path]
    parts = [read_csv(file, columns, kind, length) for file in files]
    if parts[-1].columns != parts[0].columns:
        now, then = ", ".join(parts[-1].columns), ", ".join(parts[0].columns)
        raise UsageError(f"{files[-1]}: row 1: its columns of samples are {now}; those of {files[0].name} are {then}")
    values = [sample for part in parts for sample in part.x]
    given = np.array(values, np.float32) if kind is None else kind.given(values, str(path))
    x, _ = as_held(given, kind, None, str(path))
    words = np.concatenate([part.labels for part in parts])  # as text, where one part has names
    y, names = class_ids(words, where=f"{path}, column {columns.label}")
    count = len(parts[0].x)
    train, test = np.arange(count), np.arange(count, len(y))
    if len(parts) == 1:
        fraction, seed = hold_out
        train, test = held_out(y, fraction, np.random.default_rng([seed, 1]))
    if not len(test):
        raise UsageError(f"{path}: too few samples of each class to hold {hold_out[0]:g} of them out as the test")
    return SourceData(
        name=path.stem,
        train=Samples(x[train], y[train], (), CHANNELS_LAST, *arguments(kind)),
        test=Samples(x[test], y[test], (), CHANNELS_LAST, *arguments(kind)),
        scale=1.0,
        class_names=names,
        users=np.array(parts[0].users)[train] if columns.user else None,
    )
