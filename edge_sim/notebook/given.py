"""Turns models and data given as Python objects into the names and files that settings use.

A model is a function FACTORY(classes, input_shape, seed) that returns a torch.nn.Module or a Model.  `input_shape` is
(channels, height, width).  Data are arrays (x_train, y_train, x_test, y_test), a mapping of these names, or a pair of
torch data sets.  Tensors, lists and pandas frames work like arrays.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from edge_sdk.at_rest.files import make_folder, replace_durably
from edge_sdk.class_names import listed
from edge_sdk.data import Samples
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import CHANNELS_LAST, PictureLayout, given_array
from edge_sdk.sample_kind import SampleKind, arguments
from edge_sdk.samples.readers import samples_from_torch
from edge_sim.data.sources.npz import LENGTHS, NAMES, NEEDED, USERS, of_arrays
from edge_sim.models.given_functions import names_of_functions

GivenModels: TypeAlias = "Callable[..., Any] | Sequence[Callable[..., Any]] | Mapping[str, Callable[..., Any]]"
"""One function for all devices, several that take turns, or functions by the model names of [[fleet]] rows."""
LABELS = ("y_train", "y_test")
GivenData: TypeAlias = "Mapping[str, Any] | Sequence[Any]"
_PARTS = ("train", "test", "validation")
_EXPECTED = f"{', '.join(NEEDED)}, or a training and a test data set"


def functions_of(models: GivenModels) -> list[Callable[..., Any]]:
    """Return the given functions as a list."""
    if isinstance(models, Mapping):
        return list(models.values())
    return list(models) if isinstance(models, Sequence) else [models]


def with_models(tables: dict[str, Any], models: GivenModels) -> dict[str, Any]:
    """Return the tables with these models in the fleet.  Raises UsageError if they do not fit."""
    devices = int(tables.get("federation", {}).get("devices", 0))
    rows: list[dict[str, Any]] = [dict(row) for row in tables.get("fleet", [])]
    if isinstance(models, Mapping):
        names = dict(zip(models, names_of_functions(functions_of(models)), strict=True))
        unknown = [name for name in names if all(row.get("model") != name for row in rows)]
        if unknown:
            raise UsageError(f"models: no [[fleet]] row has model = {unknown[0]!r}")
        return {
            **tables,
            "fleet": [{**row, "model": names.get(row.get("model", ""), row.get("model"))} for row in rows],
        }
    several = functions_of(models)
    if not several:
        raise UsageError("models: expected one function at least")
    named = names_of_functions(several)
    if len(named) == 1:
        return {**tables, "fleet": [{**row, "model": named[0]} for row in rows or [{"count": devices}]]}
    if rows:
        raise UsageError("models: several functions and [[fleet]] rows; give a mapping from the rows' model names")
    counts = [len(range(place, devices, len(named))) for place in range(len(named))]
    return {
        **tables,
        "fleet": [{"count": count, "model": name} for count, name in zip(counts, named, strict=True) if count],
    }


def write_data(
    data: GivenData, path: Path, layout: PictureLayout | None, kind: SampleKind | None = None
) -> PictureLayout | None:
    """Write data to the npz file that settings name, and return the layout of its pictures, or None if sizes show it.

    layout, kind: of the given data, or None.

    Raises UsageError for data of an unknown form, and if the file already holds other data, of earlier runs.
    """
    if isinstance(data, Mapping) and {*data} & {*_PARTS}:
        named = [part for part in _PARTS if part in data]
        raise UsageError(
            f"data: found a mapping of {listed([*data])}, expected {_EXPECTED}: of each part make pairs, such "
            f'as train = [(each["text"], each["label"]) for each in data["{named[0]}"]], and give data=(train, test)'
        )
    if not isinstance(data, (Mapping, Sequence)):
        raise UsageError(f"data: expected {_EXPECTED}; found {type(data).__name__}")
    names: Any = ()
    if not isinstance(data, Mapping) and len(data) == 2:
        if any(map(_is_array, data)):
            raise UsageError(
                f"data: found a pair of arrays, expected {_EXPECTED}: write "
                "data=(x[:1000], y[:1000], x[1000:], y[1000:]) where the last ones are for testing"
            )
        if not all(_is_pair(part) for part in data):
            parts = [_read(part, layout, kind) for part in data]
            names = _names_of_both(*parts)
            data, layout = [(part.x, _words(part)) for part in parts], CHANNELS_LAST
        data = [values for part in data for values in part]
    if not isinstance(data, Mapping):
        if len(data) != len(NEEDED):
            raise UsageError(f"data: expected {_EXPECTED}")
        if all(map(_is_array, data)) and np.ndim(data[1]) > 1 == np.ndim(data[2]):
            raise UsageError(
                "data: the second array has the form of samples and the third that of labels: write them in the order "
                f"{', '.join(NEEDED)}"
            )
        data = dict(zip(NEEDED, data, strict=True))
    if names:
        data = {**data, NAMES: names}
    strange = sorted(set(data) - {*NEEDED, *LENGTHS, USERS, NAMES})
    missing = [name for name in NEEDED if name not in data]
    if strange or missing:
        raise UsageError(
            f"data: expected {', '.join(NEEDED)} and perhaps {', '.join((USERS, *LENGTHS))} and {NAMES}; "
            f"{(strange or missing)[0]} is not so"
        )
    take = given_array if kind is None else kind.given
    arrays = {
        name: values if name in LABELS else (take if name.startswith("x_") else given_array)(values, f"data: {name}")
        for name, values in data.items()
    }
    # raises here, where arrays have the names that they came with
    found = of_arrays(arrays, "data", path.stem, layout, kind)
    arrays |= {"y_train": found.train.y, "y_test": found.test.y}
    if found.class_names:
        arrays[NAMES] = np.array(found.class_names)
    make_folder(path.parent, f"out = {path.parent}")
    file = io.BytesIO()
    written: dict[str, Any] = {name: _narrowed(array) for name, array in arrays.items()}
    np.savez(file, **written)  # equal arrays give equal bytes
    if not path.exists():
        replace_durably(path, file.getvalue())
    elif path.read_bytes() != file.getvalue():
        raise UsageError(f"data: {path} holds other data, of earlier runs; give out another folder")
    return layout


def declared_in(data: GivenData) -> dict[str, Any]:
    """Return the keys of [data] that the given Samples declare, or none for other data."""
    first = data[0] if isinstance(data, Sequence) and len(data) else None
    if not isinstance(first, Samples) or first.kind is None:
        return {}
    return {"kind": first.kind, **({"vocabulary": first.vocabulary} if first.vocabulary else {})}


def _names_of_both(train: Samples, test: Samples) -> tuple[str, ...]:
    """Return the class names of the part that has all of them.  Numbers in the other part stand for them, too."""
    known = train.class_names or test.class_names
    numbered = [part for part in (train, test) if not part.class_names]
    if known and numbered and int(numbered[0].y.max()) >= len(known):
        raise UsageError(
            f"data: one part has the classes {listed(known)}, the other has no names and labels up to "
            f"{numbered[0].y.max()}: give both the same labels"
        )
    return known if numbered or {*test.class_names} <= {*known} else ()


def _is_array(part: Any) -> bool:
    """Whether this is samples or labels alone: an array, a tensor, or a pandas frame."""
    return isinstance(part, np.ndarray) or hasattr(part, "detach") or hasattr(part, "to_numpy")


def _is_pair(part: Any) -> bool:
    return isinstance(part, (tuple, list)) and len(part) == 2


def _read(part: Any, layout: PictureLayout | None, kind: SampleKind | None) -> Samples:
    """The samples of a torch data set, or of a pair of arrays beside one, with channels last."""
    if isinstance(part, Samples):
        return part
    name, vocabulary = arguments(kind)
    if _is_pair(part):
        return Samples(part[0], part[1], (), layout, name, vocabulary)
    return samples_from_torch(part, layout=layout, kind=name, vocabulary=vocabulary)


def _words(part: Samples) -> Any:
    """The labels as names of classes, or as numbers if the classes have no names."""
    return np.array(part.class_names)[part.y] if part.class_names else part.y


def _narrowed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(np.float32) if array.dtype.kind == "f" else array
