"""Tensors of .onnx files as numpy arrays, and back; values may lie in a file beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.errors import ModelError
from edge_sdk.models.onnx_file.wire import Field, fields, put, whole_numbers

_DIMS, _KIND, _FLOATS, _INTS, _STRINGS, _LONGS, _NAME = 1, 2, 4, 5, 6, 7, 8
_RAW, _DOUBLES, _EXTERNAL, _LOCATION = 9, 10, 13, 14
"""The fields of a TensorProto."""
_STRING, _BFLOAT16 = 8, 16
FLOAT = np.dtype(np.float32)
KINDS: Mapping[int, str] = {
    1: "<f4",
    2: "u1",
    3: "i1",
    6: "<i4",
    7: "<i8",
    9: "?",
    10: "<f2",
    11: "<f8",
    _BFLOAT16: "<u2",
}
"""The element types whose values are read; bfloat16 as its bits."""
KIND_OF: Mapping[np.dtype[Any], int] = {np.dtype(text): kind for kind, text in KINDS.items() if kind != _BFLOAT16}
_PACKED: Mapping[int, str] = {_FLOATS: "<f4", _DOUBLES: "<f8"}


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A constant of a graph, as it stands in the file."""

    name: str
    raw: memoryview | bytes
    """The TensorProto."""
    folder: Path | None
    """The folder of the file, or None if the file came as bytes."""

    def values(self) -> NDArray[Any] | None:
        """Return the values, or None if their type is not in KINDS.  Raises ModelError for damage."""
        parts: dict[int, list[Field]] = {}
        for field in fields(memoryview(self.raw)):
            parts.setdefault(field.number, []).append(field)
        shape = tuple(n for field in parts.get(_DIMS, ()) for n in whole_numbers(field))
        kind = parts[_KIND][-1].whole if _KIND in parts else 0
        if kind not in KINDS:
            return None
        dtype = np.dtype(KINDS[kind])
        found = self._listed(parts, dtype)
        if found.size != prod(shape) or any(n < 0 for n in shape):
            raise ModelError(f"constant {self.name!r} has {found.size} values for shape {shape}: the file is damaged")
        if kind == _BFLOAT16:
            return (found.astype(np.uint32) << 16).view(np.float32).reshape(shape)
        return found.reshape(shape)

    def listed(self) -> tuple[int | str, ...]:
        """Return the values of a tensor of whole numbers or strings, flat, or () for other types."""
        texts = tuple(field.text for field in fields(memoryview(self.raw)) if field.number == _STRINGS)
        values = self.values()
        return texts if values is None or values.dtype.kind not in "iu" else tuple(values.ravel().tolist())

    def inlined(self) -> bytes | memoryview:
        """Return the TensorProto with its values inside, also where the file keeps them beside."""
        kept = [field for field in fields(memoryview(self.raw)) if field.number not in (_EXTERNAL, _LOCATION)]
        return self.raw if (beside := self._beside()) is None else b"".join((*(f.raw for f in kept), put(_RAW, beside)))

    def _listed(self, parts: Mapping[int, list[Field]], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the values (n,) from the field that holds them."""
        raw: bytes | memoryview | None = self._beside()
        if raw is None and _RAW in parts:
            raw = parts[_RAW][-1].content
        if raw is not None:
            if len(raw) % dtype.itemsize:
                raise ModelError(f"constant {self.name!r}: {len(raw)} bytes of {dtype}: the file is damaged")
            return np.frombuffer(raw, dtype)
        for number, packed in _PACKED.items():
            if number in parts:
                joined = b"".join(field.content for field in parts[number])
                if len(joined) % np.dtype(packed).itemsize:
                    raise ModelError(f"constant {self.name!r}: a number is cut off: the file is damaged")
                return np.frombuffer(joined, packed).astype(dtype)
        numbers = [n for number in (_INTS, _LONGS) for field in parts.get(number, ()) for n in whole_numbers(field)]
        listed = np.array(numbers, np.int64)
        return listed.astype(np.uint16).view(dtype) if dtype == np.float16 else listed.astype(dtype)

    def _beside(self) -> bytes | None:
        """Return the values that are stored in another file, or None if they are in this one."""
        entries: dict[str, str] = {}
        beside = False
        for field in fields(memoryview(self.raw)):
            if field.number == _EXTERNAL:
                key, value = "", ""
                for part in fields(field.content):
                    key, value = (part.text, value) if part.number == 1 else (key, part.text)
                entries[key] = value
            beside |= field.number == _LOCATION and field.whole == 1
        return _read_beside(self.name, self.folder, entries) if beside else None


def _read_beside(name: str, folder: Path | None, entries: Mapping[str, str]) -> bytes:
    """Read the values of a constant from the file that its entries name.  Raises ModelError."""
    location = entries.get("location", "")
    where = f"constant {name!r} lies in another file, {location!r}"
    if folder is None:
        raise ModelError(f"{where}: give the path of the model, not its bytes, or export with external_data=False")
    file = (folder / location).resolve()
    if not location or folder.resolve() not in file.parents:
        raise ModelError(f"{where}, outside of the model's folder: it is not read")
    try:
        offset, length = int(entries.get("offset", "0")), int(entries.get("length", "-1"))
        with file.open("rb") as opened:
            opened.seek(offset)
            found = opened.read(length)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "its place there cannot be read"
        raise ModelError(f"{where}: {why}; copy it beside the model") from error
    if length >= 0 and len(found) != length:
        raise ModelError(f"{where}, which is too short: copy the whole file beside the model")
    return found


def tensor_of(name: str, values: NDArray[Any]) -> bytes:
    """Return an array as a TensorProto."""
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    dims = b"".join(put(_DIMS, n) for n in values.shape)
    return dims + put(_KIND, KIND_OF[values.dtype]) + put(_NAME, name) + put(_RAW, little.tobytes())


def strings_of(name: str, values: Sequence[str]) -> bytes:
    """Return strings as a TensorProto of shape (n,)."""
    listed = b"".join(put(_STRINGS, each) for each in values)
    return put(_DIMS, len(values)) + put(_KIND, _STRING) + listed + put(_NAME, name)


def has_nan(tensor: Constant) -> bool:
    """Whether a constant holds NaN; infinity is legal, as in masks."""
    values = tensor.values()
    return values is not None and values.dtype.kind == "f" and bool(np.isnan(values).any())


def as_floats(values: NDArray[Any] | None) -> Floats | None:
    """Return floating-point values as f4, or None for others."""
    return None if values is None or values.dtype.kind != "f" else values.astype(np.float32)
