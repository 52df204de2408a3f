"""Models and data that are given as Python objects, made into the names and files that settings know.

A model is a function FACTORY(classes, input_shape, seed) that returns a torch.nn.Module or a Model; input_shape is
(channels, height, width).  Data are arrays (x_train, y_train, x_test, y_test), a mapping of these names, or a pair of
torch data sets.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from edge_sdk.at_rest.files import replace_durably
from edge_sdk.at_rest.places import make_folder
from edge_sdk.class_names import class_ids
from edge_sdk.data import Preprocess, Samples
from edge_sdk.errors import UsageError
from edge_sdk.samples.readers import samples_from_torch
from edge_sim.data.sources.npz import NAMES, NEEDED, USERS
from edge_sim.models.model_types import HeadKind, InputShape
from edge_sim.notebook.function_digest import function_digest

HOME = "edge_sim_given_models"
"""The module under whose name functions stand that no file has."""
GivenModels: TypeAlias = "Callable[..., Any] | Sequence[Callable[..., Any]] | Mapping[str, Callable[..., Any]]"
"""One function for all devices, several that take turns, or functions by the name that [[fleet]] rows give."""
LABELS = ("y_train", "y_test")
GivenData: TypeAlias = "Mapping[str, Any] | Sequence[Any]"
_EXPECTED = f"{', '.join(NEEDED)}, or a training and a test data set"


def with_models(tables: dict[str, Any], models: GivenModels) -> dict[str, Any]:
    """Return the tables with these models in the fleet.  Raises UsageError where they do not fit."""
    devices = int(tables.get("federation", {}).get("devices", 0))
    rows: list[dict[str, Any]] = [dict(row) for row in tables.get("fleet", [])]
    if isinstance(models, Mapping):
        names = dict(zip(models, _names(list(models.values())), strict=True))
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
    named = _names(several)
    if len(named) == 1:
        return {**tables, "fleet": [{**row, "model": named[0]} for row in rows or [{"count": devices}]]}
    if rows:
        raise UsageError("models: several functions and [[fleet]] rows; give a mapping from the rows' model names")
    counts = [len(range(place, devices, len(named))) for place in range(len(named))]
    return {
        **tables,
        "fleet": [{"count": count, "model": name} for count, name in zip(counts, named, strict=True) if count],
    }


def _names(functions: Sequence[Callable[..., Any]]) -> list[str]:
    """MODULE:FACTORY of functions that make models, in a module of our own; different functions have different names.

    A name holds a digest of what the function does, so that a folder with runs of another function is noticed.
    """
    owners: dict[str, Callable[..., Any]] = {}
    for make in functions:
        if not callable(make):
            raise UsageError(f"models: expected functions (classes, input_shape, seed), found {type(make).__name__}")
        named = f"{getattr(make, '__name__', 'model').strip('<>')}_{function_digest(make)}"
        candidates = (named, *(f"{named}_{i}" for i in range(2, len(functions) + 2)))
        owners[next(name for name in candidates if owners.get(name, make) is make)] = make
    names = {id(make): name for name, make in owners.items()}
    for name, make in owners.items():
        _give(name, make)
    return [f"{HOME}:{names[id(make)]}" for make in functions]


def _give(name: str, make: Callable[..., Any]) -> None:
    """Let a name in our module stand for a function."""

    def factory(  # noqa: PLR0917  # build_model passes them by name
        classes: int, input_shape: InputShape, seed: int, preprocess: Preprocess, head: HeadKind, device: str
    ) -> Any:
        if "torch" not in sys.modules:  # then no net of torch can come out
            return make(classes, input_shape, seed)
        from edge_sim.notebook.torch_given import made_with_torch  # torch is loaded already

        return made_with_torch(
            make, classes, input_shape, seed, preprocess=preprocess, head=head, device=device, name=name
        )

    setattr(sys.modules.setdefault(HOME, ModuleType(HOME)), name, factory)


def write_data(data: GivenData, path: Path) -> None:
    """Write data as the npz file that settings name.

    Raises UsageError where they are none of the known kinds, and where the file holds other data: those of runs that
    are kept beside it.
    """
    if not isinstance(data, (Mapping, Sequence)):
        raise UsageError(f"data: expected {_EXPECTED}; found {type(data).__name__}")
    names: Any = ()
    if not isinstance(data, Mapping) and len(data) == 2:
        (x_train, y_train, names), (x_test, y_test, others) = (_samples(part) for part in data)
        if names != others:  # each part has its own ids: the words tell which classes are the same
            y_train, y_test = _words(y_train, names), _words(y_test, others)
            names = ()
        data = (x_train, y_train, x_test, y_test)
    if not isinstance(data, Mapping):
        if len(data) != len(NEEDED):
            raise UsageError(f"data: expected {_EXPECTED}")
        data = dict(zip(NEEDED, data, strict=True))
    data = _with_names(data, names)
    strange = sorted(set(data) - {*NEEDED, USERS, NAMES})
    missing = [name for name in NEEDED if name not in data]
    if strange or missing:
        raise UsageError(
            f"data: expected {', '.join(NEEDED)} and perhaps {USERS} and {NAMES}; {(strange or missing)[0]} is not so"
        )
    make_folder(path.parent, f"out = {path.parent}")
    arrays: dict[str, Any] = {name: _array(array) for name, array in data.items()}
    file = io.BytesIO()
    np.savez(file, **arrays)  # equal arrays give equal bytes
    if not path.exists():
        replace_durably(path, file.getvalue())
    elif path.read_bytes() != file.getvalue():
        raise UsageError(f"data: {path} holds other data, of earlier runs; give out another folder")


def _samples(part: Any) -> tuple[Any, Any, tuple[str, ...]]:
    """The inputs, the labels and the class names of Samples, of a torch data set, or of a pair of arrays."""
    if isinstance(part, (tuple, list)) and len(part) == 2:
        return part[0], *class_ids(part[1])
    found = part if isinstance(part, Samples) else samples_from_torch(part)
    return found.x, found.y, found.class_names


def _with_names(data: Mapping[str, Any], names: Any) -> dict[str, Any]:
    """Return the data with labels as an npz file holds them: ids and the names of all classes, or the names alone."""
    found = {**data}
    names = tuple(map(str, found.get(NAMES, names)))
    each = {key: class_ids(found[key], names, where=f"data: {key}") for key in LABELS if key in found}
    known = {given for _, given in each.values()}
    for key, (y, given) in each.items():
        found[key] = y if len(known) == 1 else _words(y, given)
    return found | ({NAMES: np.array(next(iter(known)))} if len(known) == 1 and any(known) else {})


def _words(y: Any, names: tuple[str, ...]) -> Any:
    """Return the names of ids; ids without names as they are."""
    return np.array(names)[y] if names else y


def _array(values: Any) -> np.ndarray[Any, Any]:
    """An array of a tensor, a picture, or nested lists."""
    found = np.asarray(values.numpy() if hasattr(values, "numpy") else values)
    return found.astype(np.float32) if found.dtype.kind == "f" else found
