"""Digests of what a run's results depend on beside its settings and its data set, which samples.sha256 is about.

They are kept by a name in words, which says what has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import numpy as np

from edge_sdk.arrays import Ints
from edge_sdk.boards.profiles import SUFFIX, load_board
from edge_sdk.errors import UsageError
from edge_sim.config.settings import Config
from edge_sim.data.datasets import Dataset
from edge_sim.fleet.fleet import Fleet
from edge_sim.runs.own_code import code_digests

DIVISION = "the division of samples among devices ([partition])"
RunInputs: TypeAlias = Mapping[str, str]
"""Digests, by what they are of; one that is missing is not known."""


def run_inputs(config: Config, fleet: Fleet) -> RunInputs:
    """Return the digests of a run: of the samples that each device holds, and of what the settings name.

    Raises UsageError for a method that does not load.
    """
    return {DIVISION: division_digest(fleet.dataset, fleet.parts), **named_inputs(config)}


def named_inputs(config: Config) -> RunInputs:
    """Return the digests of the files and of the user's own modules that settings name.

    Raises UsageError for a method that does not load.
    """
    boards = {row.board for row in config.fleet}
    links = {row.link or load_board(row.board).link for row in config.fleet}
    found: dict[str, str] = {}
    for path in sorted(name for name in boards | links if name.endswith(SUFFIX)):
        with suppress(OSError):
            found[f"the file {path}"] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return found | {f"the code of {module}": digest for module, digest in code_digests(config).items()}


def division_digest(dataset: Dataset, parts: Sequence[Ints]) -> str:
    """Return the digest of the rows of the source that each device holds."""
    digest = hashlib.sha256()
    for part in parts:
        rows = np.ascontiguousarray(dataset.rows[part], "<i8")
        digest.update(len(rows).to_bytes(8, "little") + rows.tobytes())
    return digest.hexdigest()


def changed_inputs(before: RunInputs, now: RunInputs) -> list[str]:
    """Return the names of the inputs that differ; those in only one of them are not known."""
    return [name for name in before if name in now and before[name] != now[name]]


def check_same_inputs(folder: Path, before: RunInputs, now: RunInputs) -> None:
    """Raise UsageError where a run began with other inputs, which the message names."""
    if changed := changed_inputs(before, now):
        remark = " (in code a comment counts, too)" if changed != [DIVISION] else ""
        raise UsageError(
            f"{folder}: changed since the run in it began: {', '.join(changed)}; restore what it was{remark}, or give "
            "--out another folder"
        )
