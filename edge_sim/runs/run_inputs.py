"""The inputs of a run: digests of its files and functions, and settings that had no effect.

Each input has a name in words, for the message about a change.  Settings without effect are remarks, not errors: one
file may serve several runs, and the end of a run is unknown beforehand.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import numpy as np

from coordinator.record.units import human_seconds
from coordinator.serving.server import Server
from edge_sdk.arrays import Ints
from edge_sdk.boards.profiles import SUFFIX, load_board
from edge_sdk.errors import UsageError
from edge_sdk.loading import is_foreign
from edge_sdk.methods.contract.brought_code import OURS
from edge_sdk.methods.contract.registry import METHODS, load_method
from edge_sdk.protocol import registry
from edge_sdk.protocol.messages import TrainSpec
from edge_sim.config.device_conditions import named_functions
from edge_sim.config.scenario import ScenarioTable
from edge_sim.config.settings import Config, RunTable
from edge_sim.data.datasets import Dataset
from edge_sim.fleet.fleet import Fleet

DIVISION = "the division of samples among devices ([partition])"
RunInputs: TypeAlias = Mapping[str, str]
"""Digests by name of the input; a missing one is unknown."""


def run_inputs(config: Config, fleet: Fleet) -> RunInputs:
    """Return the digests of a run: of the samples of each device, and of files and modules that the settings name.

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
    """Return the names of the inputs that differ; inputs in only one of them are unknown."""
    return [name for name in before if name in now and before[name] != now[name]]


def check_same_inputs(folder: Path, before: RunInputs, now: RunInputs) -> None:
    """Raise UsageError naming the inputs that changed since a run began."""
    if changed := changed_inputs(before, now):
        remark = " (in code even comments count)" if changed != [DIVISION] else ""
        raise UsageError(
            f"{folder}: changed since the run in it began: {', '.join(changed)}; restore it{remark}, or give "
            "--out another folder"
        )


# Digests of the user's own code on which a run depends: the modules that its settings name, and their imports.
#
# Source files are compared as text, so even a changed comment counts.


def code_digests(config: Config) -> dict[str, str]:
    """Return the digest of each module that settings name and that is neither of this project nor of Python.

    Raises UsageError for a method that does not load.
    """
    method = config.federation.method
    if _root(registry.value(METHODS, method)) not in OURS:
        load_method(method)  # raises a one-line error about a bad method
    named = {registry.value(METHODS, method), *named_functions(config.tables)}
    modules = {name.partition(":")[0] for name in named if _root(name) not in OURS | sys.stdlib_module_names}
    found = {module: _sources(module) for module in sorted(modules)}
    return {module: _digest(sources) for module, sources in found.items() if sources}


def _sources(module: str) -> dict[str, bytes]:
    """Return by name the source of a module, and of the modules of its package and of the user that it imports."""
    found: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = _file(name, _root(module)) if name not in found else None
        if file is None:
            continue
        with suppress(OSError, SyntaxError, ValueError):
            found[name] = file.read_bytes()
            package = name if file.name == "__init__.py" else name.rpartition(".")[0]
            waiting += _imported(found[name], package)
    return found


def _file(module: str, root: str) -> Path | None:
    """Return the source file of a module, or None if it is neither the user's nor in the package `root`."""
    own = _root(module)
    with suppress(ImportError, ValueError, AttributeError):
        top = importlib.util.find_spec(own)  # the top only: searching an inner module may import code
        if top is None or own in OURS | sys.stdlib_module_names or not top.origin:
            return None
        if own != root and is_foreign(top.origin):
            return None
        spec = top if own == module else importlib.util.find_spec(module)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            return Path(spec.origin)
    return None


def _imported(source: bytes, package: str) -> Iterator[str]:
    """Yield the modules that a source may import: of `from A import B` both A and A.B."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _digest(sources: dict[str, bytes]) -> str:
    plain = sorted((name, hashlib.sha256(source).hexdigest()) for name, source in sources.items())
    return hashlib.sha256(repr(plain).encode()).hexdigest()


def _root(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]


USED_WITH = {"stacked": "stack", "ray_fold": "cluster"}
"""Keys of [run] that are read only if another key is given."""
OF_TRAINING = {
    "momentum": ("optimiser", ("sgd",)),
    "beta1": ("optimiser", ("adam",)),
    "beta2": ("optimiser", ("adam",)),
    "schedule_factor": ("schedule", ("step", "exponential")),
    "schedule_every_rounds": ("schedule", ("step",)),
    "schedule_rounds": ("schedule", ("cosine",)),
    "schedule_floor": ("schedule", ("step", "exponential", "cosine")),
    "decay_all": ("weight_decay", ()),
}
"""Keys of [train] that are read only with some values of another key, or with any except its default."""


def unused_settings(config: Config, ended_s: float) -> tuple[str, ...]:
    """Return one line for each setting without effect.  ended_s: virtual time at the end of the run."""
    return (*_unread(config.run), *_without_effect(config.train), *_never_came(config.scenario, ended_s))


def _unread(run: RunTable) -> Iterator[str]:
    for key, other in USED_WITH.items():
        if getattr(run, key) and not getattr(run, other):
            yield f"run.{key}: has no effect without run.{other}"


def _without_effect(train: TrainSpec) -> Iterator[str]:
    usual = TrainSpec()
    for key, (by, values) in OF_TRAINING.items():
        chosen = getattr(train, by)
        counts = chosen in values if values else chosen != getattr(usual, by)
        if getattr(train, key) != getattr(usual, key) and not counts:
            yield f"train.{key}: has no effect with train.{by} = {json.dumps(chosen)}" + (
                f"; only {' or '.join(values)} reads it" if values else ""
            )


def _never_came(scenario: ScenarioTable, ended_s: float) -> Iterator[str]:
    for key in ("broker_lost_at_s", "coordinator_lost_at_s"):
        late = [at_s for at_s in getattr(scenario, key) if at_s > ended_s]
        if late:
            yield f"scenario.{key}: {min(late):.10g} s was not reached: the run was over at {ended_s:.0f} s"


# -- A remark for a run whose devices joined late: its costs include the wait for them --------------------------------

WORTH_S, WORTH_SHARE = 60.0, 0.1
"""Minimum wait in seconds, and as a share of the run, for the remark."""


def remark(server: Server, ended_s: float) -> tuple[str, ...]:
    """Return one line, or none if the wait was short.  ended_s: virtual seconds that the run took."""
    begun_s = server.record.started_s
    if begun_s is None or begun_s < max(WORTH_S, WORTH_SHARE * ended_s):
        return ()
    *_, last = server.hellos
    told = (
        f"the first exchange began after {human_seconds(begun_s)}, when {last} had joined: joules and bytes of that "
        "wait count in round 1, its time in no round; with a lower federation.quorum a run begins without the last"
    )
    return (told,)
