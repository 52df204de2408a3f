"""Models and data that are given as Python objects, made into the names and files that settings know.

A model is a function FACTORY(classes, input_shape, seed) that returns a torch.nn.Module or a Model; input_shape is
(channels, height, width).  Data are arrays (x_train, y_train, x_test, y_test), a mapping of these names, or a pair of
torch data sets.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeAlias

import numpy as np

from edge_sdk.data import Preprocess
from edge_sdk.errors import UsageError
from edge_sdk.samples.readers import samples_from_torch
from edge_sim.data.sources.npz import NEEDED, USERS
from edge_sim.models.model_types import HeadKind, InputShape

HOME = "edge_sim_given_models"
"""The module under whose name functions stand that no file has."""
GivenModels: TypeAlias = "Callable[..., Any] | Sequence[Callable[..., Any]] | Mapping[str, Callable[..., Any]]"
"""One function for all devices, several that take turns, or functions by the name that [[fleet]] rows give."""
GivenData: TypeAlias = "Mapping[str, Any] | Sequence[Any]"


def with_models(tables: dict[str, Any], models: GivenModels) -> dict[str, Any]:
    """Return the tables with these models in the fleet.  Raises UsageError where they do not fit."""
    devices = int(tables.get("federation", {}).get("devices", 0))
    rows: list[dict[str, Any]] = [dict(row) for row in tables.get("fleet", [])]
    if isinstance(models, Mapping):
        names = {name: _name(make) for name, make in models.items()}
        unknown = [name for name in names if all(row.get("model") != name for row in rows)]
        if unknown:
            raise UsageError(f"models: no [[fleet]] row has model = {unknown[0]!r}")
        return {
            **tables,
            "fleet": [{**row, "model": names.get(row.get("model", ""), row.get("model"))} for row in rows],
        }
    several = list(models) if isinstance(models, Sequence) else [models]
    if not several:
        raise UsageError("models: expected one function at least")
    named = [_name(make) for make in several]
    if len(named) == 1:
        return {**tables, "fleet": [{**row, "model": named[0]} for row in rows or [{"count": devices}]]}
    if rows:
        raise UsageError("models: several functions and [[fleet]] rows; give a mapping from the rows' model names")
    counts = [len(range(place, devices, len(named))) for place in range(len(named))]
    return {
        **tables,
        "fleet": [{"count": count, "model": name} for count, name in zip(counts, named, strict=True) if count],
    }


def _name(make: Callable[..., Any]) -> str:
    """MODULE:FACTORY of a function that makes models, in a module of our own.

    The name holds a digest of its code, so that a folder with runs of another function is noticed.
    """
    if not callable(make):
        raise UsageError(f"models: expected functions (classes, input_shape, seed), found {type(make).__name__}")
    home = sys.modules.setdefault(HOME, ModuleType(HOME))
    code = getattr(make, "__code__", None)
    digest = hashlib.sha256(repr(_plain(code) if code else make).encode()).hexdigest()[:8]
    name = f"{getattr(make, '__name__', 'model').strip('<>')}_{digest}"

    def factory(  # noqa: PLR0917  # build_model passes them by name
        classes: int, input_shape: InputShape, seed: int, preprocess: Preprocess, head: HeadKind, device: str
    ) -> Any:
        if "torch" not in sys.modules:  # then no net of torch can come out
            return make(classes, input_shape, seed)
        from edge_sim.notebook.torch_given import made_with_torch  # torch is loaded already

        return made_with_torch(
            make, classes, input_shape, seed, preprocess=preprocess, head=head, device=device, name=name
        )

    setattr(home, name, factory)
    return f"{HOME}:{name}"


def _plain(code: CodeType) -> tuple[object, ...]:
    """What a function does, whatever file and line it stands in."""
    constants = tuple(_plain(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.co_code, code.co_names, constants


def write_data(data: GivenData, path: Path) -> None:
    """Write data as the npz file that settings name.  Raises UsageError where they are none of the known kinds."""
    if not isinstance(data, Mapping) and len(data) == 2:
        (x_train, y_train), (x_test, y_test) = (_samples(part) for part in data)
        data = (x_train, y_train, x_test, y_test)
    if not isinstance(data, Mapping):
        if len(data) != len(NEEDED):
            raise UsageError(f"data: expected {', '.join(NEEDED)}, or a training and a test data set")
        data = dict(zip(NEEDED, data, strict=True))
    strange = sorted(set(data) - {*NEEDED, USERS})
    missing = [name for name in NEEDED if name not in data]
    if strange or missing:
        raise UsageError(f"data: expected {', '.join(NEEDED)} and perhaps {USERS}; {(strange or missing)[0]} is not so")
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {name: _array(array) for name, array in data.items()}
    np.savez(path, **arrays)


def _samples(part: Any) -> tuple[Any, Any]:
    """The inputs and labels of a torch data set, or of a pair of arrays."""
    if isinstance(part, (tuple, list)) and len(part) == 2:
        return part[0], part[1]
    found = samples_from_torch(part)
    return found.x, found.y


def _array(values: Any) -> np.ndarray[Any, Any]:
    """An array of a tensor, a picture, or nested lists."""
    found = np.asarray(values.numpy() if hasattr(values, "numpy") else values)
    return found.astype(np.float32) if found.dtype.kind == "f" else found
