"""Frozen dataclasses to plain msgpack values and back, checked field by field.

Two rules: every class that may travel is registered here under a tag that never changes meaning, and nothing is
built from foreign bytes that its field annotations do not allow.  An error carries the path of the field.

On the wire an object is a map of its fields, `{"field": value}`; where several classes may stand (a union) it is
`[tag, {fields}]`.  A tensor is `[dtype, [shape], bytes]`, raw little-endian.

Evolution: new fields have defaults, unknown fields are skipped, a tag or a type never changes meaning.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import LocalProtocolError, RemoteProtocolError

Plain = Any
"""What msgpack carries: None, bool, int, float, str, bytes, list, dict."""

DTYPES: Mapping[str, np.dtype[Any]] = {code: np.dtype("<" + code) for code in ("f4", "f2", "i4", "i1", "u1")}
MAX_DIMENSIONS = 4
TAGS: dict[str, type] = {}

_T = TypeVar("_T")
_Encoder = Callable[[Any, str], Plain]
_Decoder = Callable[[Plain, str], Any]


@dataclass(frozen=True)
class Whole:
    """An integer in [low, high]."""

    low: int = 0
    high: int = 2**63 - 1


@dataclass(frozen=True)
class Real:
    """A finite number in [low, high]."""

    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class Text:
    """A string of at most `most` characters that matches the whole of `pattern`."""

    most: int = 256
    pattern: str = r"[^\x00]*"


@dataclass(frozen=True)
class Blob:
    """Bytes, between `least` and `most` of them."""

    least: int = 0
    most: int = 2**20


@dataclass(frozen=True)
class Tensor:
    """A finite array of one of `dtypes` with `ndim` dimensions, each at least 1."""

    dtypes: tuple[str, ...] = ("f4", "f2")
    ndim: int = 2


Count = Annotated[int, Whole(0, 2**32 - 1)]
Id = Annotated[str, Text(36, r"[a-z0-9][a-z0-9-]*")]
Line = Annotated[str, Text(256)]
Digest = Annotated[bytes, Blob(8, 32)]
Matrix = Annotated[NDArray[np.float32], Tensor(("f4", "f2"), 2)]  # (n, m)
Vector = Annotated[NDArray[np.float32], Tensor(("f4", "f2"), 1)]  # (n,)
ClassIds = Annotated[NDArray[np.int32], Tensor(("i4",), 1)]  # (m,)
Counts = Annotated[NDArray[np.int32], Tensor(("i4",), 1)]  # (m,)


def wire(tag: str) -> Callable[[type[_T]], type[_T]]:
    """Register a frozen dataclass under its tag."""

    def register(cls: type[_T]) -> type[_T]:
        if TAGS.setdefault(tag, cls) is not cls:
            raise LocalProtocolError(f"tag {tag!r} is taken by {TAGS[tag].__name__}: give {cls.__name__} another one")
        cls.__wire_tag__ = tag  # type: ignore[attr-defined]  # read back by tag_of, which checks
        return cls

    return register


def tag_of(cls: type) -> str:
    """The tag that a class was registered under."""
    tag = getattr(cls, "__wire_tag__", None)
    if not isinstance(tag, str):
        raise LocalProtocolError(f"{cls.__name__} is not registered with @wire")
    return tag


def to_plain(value: object) -> Plain:
    """A registered object as msgpack values.  Raises LocalProtocolError where it breaks its own annotations."""
    return _codec(type(value))[0](value, type(value).__name__)


def from_plain(cls: type[_T], plain: Plain) -> _T:
    """The object that `plain` describes.  Raises RemoteProtocolError, with the field's path, and nothing else."""
    value: _T = _codec(cls)[1](plain, cls.__name__)
    return value


def _bad(path: str, expected: str, found: object) -> RemoteProtocolError:
    return RemoteProtocolError("schema", f"{path}: expected {expected}, found {type(found).__name__}")


_CODECS: dict[Any, tuple[_Encoder, _Decoder]] = {}


def _codec(annotation: Any) -> tuple[_Encoder, _Decoder]:
    """The pair of functions for one annotation, built once."""
    try:
        return _CODECS[annotation]
    except KeyError:
        _CODECS[annotation] = made = _make_codec(annotation)
        return made


def _make_codec(annotation: Any) -> tuple[_Encoder, _Decoder]:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _constrained(args[1])
    if origin in (typing.Union, types.UnionType):
        return _union(args)
    if origin is tuple:
        return _sequence(args[0])
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(args[0], args[1])
    if dataclasses.is_dataclass(annotation):
        return _record(typing.cast("type", annotation))
    simple = {
        bool: _flag(),
        int: _whole(Whole(-(2**63))),
        float: _real(Real()),
        str: _text(Text()),
        bytes: _blob(Blob()),
    }
    if annotation in simple:
        return simple[annotation]
    raise LocalProtocolError(f"no wire form for {annotation!r}: use the types of edge_sdk.protocol.schema")


def _constrained(rule: object) -> tuple[_Encoder, _Decoder]:
    if isinstance(rule, Whole):
        return _whole(rule)
    if isinstance(rule, Real):
        return _real(rule)
    if isinstance(rule, Text):
        return _text(rule)
    if isinstance(rule, Blob):
        return _blob(rule)
    if isinstance(rule, Tensor):
        return _tensor(rule)
    raise LocalProtocolError(f"no wire form for the rule {rule!r}")


def _same_both_ways(check: _Decoder) -> tuple[_Encoder, _Decoder]:
    """For values that msgpack carries as they are: what must not arrive must not leave either."""

    def encode(value: Any, path: str) -> Plain:
        try:
            return check(value, path)
        except RemoteProtocolError as error:
            raise LocalProtocolError(str(error)) from None

    return encode, check


def _flag() -> tuple[_Encoder, _Decoder]:
    def check(value: Plain, path: str) -> bool:
        if type(value) is not bool:
            raise _bad(path, "true or false", value)
        return value

    return _same_both_ways(check)


def _whole(rule: Whole) -> tuple[_Encoder, _Decoder]:
    def check(value: Plain, path: str) -> int:
        if type(value) is not int:
            raise _bad(path, "an integer", value)
        if not rule.low <= value <= rule.high:
            raise RemoteProtocolError("schema", f"{path}: integer outside [{rule.low}, {rule.high}]")
        return value

    return _same_both_ways(check)


def _real(rule: Real) -> tuple[_Encoder, _Decoder]:
    def check(value: Plain, path: str) -> float:
        if type(value) is int and abs(value) < 2**53:
            value = float(value)
        if type(value) is not float:
            raise _bad(path, "a number", value)
        if not math.isfinite(value):
            raise RemoteProtocolError("nonfinite", f"{path}: not a finite number")
        if not rule.low <= value <= rule.high:
            raise RemoteProtocolError("schema", f"{path}: number outside [{rule.low}, {rule.high}]")
        return value

    return _same_both_ways(check)


def _text(rule: Text) -> tuple[_Encoder, _Decoder]:
    pattern = re.compile(rule.pattern)

    def check(value: Plain, path: str) -> str:
        if type(value) is not str:
            raise _bad(path, "a string", value)
        if len(value) > rule.most or not pattern.fullmatch(value):
            raise RemoteProtocolError("schema", f"{path}: expected at most {rule.most} characters of {rule.pattern}")
        return value

    return _same_both_ways(check)


def _blob(rule: Blob) -> tuple[_Encoder, _Decoder]:
    def check(value: Plain, path: str) -> bytes:
        if type(value) is not bytes:
            raise _bad(path, "bytes", value)
        if not rule.least <= len(value) <= rule.most:
            raise RemoteProtocolError("schema", f"{path}: {len(value)} bytes, expected {rule.least} to {rule.most}")
        return value

    return _same_both_ways(check)


def _tensor(rule: Tensor) -> tuple[_Encoder, _Decoder]:
    def encode(value: Any, path: str) -> Plain:
        if not isinstance(value, np.ndarray) or value.dtype.str[1:] not in rule.dtypes:
            found = value.dtype.str if isinstance(value, np.ndarray) else type(value).__name__
            raise LocalProtocolError(f"{path}: expected an array of {' or '.join(rule.dtypes)}, found {found}")
        if value.ndim != rule.ndim or 0 in value.shape:
            raise LocalProtocolError(f"{path}: expected {rule.ndim} non-empty dimensions, found shape {value.shape}")
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise LocalProtocolError(f"{path}: holds NaN or Inf; nothing was sent")
        code = value.dtype.str[1:]
        return [code, list(value.shape), value.astype(DTYPES[code], copy=False).tobytes()]

    def decode(value: Plain, path: str) -> NDArray[Any]:
        if type(value) is not list or len(value) != 3:
            raise _bad(path, "a tensor [dtype, shape, bytes]", value)
        code, shape, raw = value
        if type(code) is not str or code not in rule.dtypes:
            raise RemoteProtocolError("tensor", f"{path}: dtype must be {' or '.join(rule.dtypes)}")
        if type(raw) is not bytes or type(shape) is not list or len(shape) != rule.ndim:
            raise RemoteProtocolError("tensor", f"{path}: expected bytes with {rule.ndim} dimensions")
        size = DTYPES[code].itemsize
        for extent in shape:
            if type(extent) is not int or not 1 <= extent <= len(raw):
                raise RemoteProtocolError("tensor", f"{path}: a dimension is not between 1 and the number of bytes")
            size *= extent
        if size != len(raw):
            raise RemoteProtocolError("tensor", f"{path}: shape needs {size} bytes, {len(raw)} came")
        array = np.frombuffer(raw, DTYPES[code]).reshape(shape)  # read-only: nobody can change a received payload
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise RemoteProtocolError("nonfinite", f"{path}: holds NaN or Inf")
        return array

    return encode, decode


def _sequence(item: Any) -> tuple[_Encoder, _Decoder]:
    item_encode, item_decode = _codec(item)

    def encode(value: Any, path: str) -> Plain:
        return [item_encode(each, f"{path}[{i}]") for i, each in enumerate(value)]

    def decode(value: Plain, path: str) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _bad(path, "a list", value)
        return tuple(item_decode(each, f"{path}[{i}]") for i, each in enumerate(value))

    return encode, decode


def _mapping(key: Any, item: Any) -> tuple[_Encoder, _Decoder]:
    key_encode, key_decode = _codec(key)
    item_encode, item_decode = _codec(item)

    def encode(value: Any, path: str) -> Plain:
        return {key_encode(k, path): item_encode(v, f"{path}.{k}") for k, v in sorted(value.items())}

    def decode(value: Plain, path: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise _bad(path, "a map", value)
        return {key_decode(k, path): item_decode(v, f"{path}.{k}") for k, v in value.items()}

    return encode, decode


def _union(options: tuple[Any, ...]) -> tuple[_Encoder, _Decoder]:
    """`None | X`, a union of simple types, or a union of registered classes (then tagged)."""
    optional = type(None) in options
    rest = [option for option in options if option is not type(None)]
    if all(dataclasses.is_dataclass(option) for option in rest) and len(rest) > 1:
        inner = _tagged(rest)
    elif len(rest) == 1:
        inner = _codec(rest[0])
    else:
        inner = _scalar_union(rest)
    if not optional:
        return inner
    inner_encode, inner_decode = inner
    return (
        lambda value, path: None if value is None else inner_encode(value, path),
        lambda value, path: None if value is None else inner_decode(value, path),
    )


def _tagged(classes: list[type]) -> tuple[_Encoder, _Decoder]:
    by_tag = {tag_of(cls): cls for cls in classes}

    def encode(value: Any, path: str) -> Plain:
        tag = tag_of(type(value))
        if tag not in by_tag:
            raise LocalProtocolError(f"{path}: {type(value).__name__} may not stand here")
        return [tag, _codec(type(value))[0](value, path)]

    def decode(value: Plain, path: str) -> Any:
        if type(value) is not list or len(value) != 2 or type(value[0]) is not str:
            raise _bad(path, "[tag, fields]", value)
        if value[0] not in by_tag:
            raise RemoteProtocolError("schema", f"{path}: unknown tag, expected {' | '.join(sorted(by_tag))}")
        return _codec(by_tag[value[0]])[1](value[1], path)

    return encode, decode


def _scalar_union(options: list[Any]) -> tuple[_Encoder, _Decoder]:
    """Bool | int | float | str, told apart by the exact type that msgpack delivers."""
    by_type = {option: _codec(option)[1] for option in options}

    def check(value: Plain, path: str) -> Any:
        if type(value) not in by_type:
            raise _bad(path, " or ".join(sorted(t.__name__ for t in by_type)), value)
        return by_type[type(value)](value, path)

    return _same_both_ways(check)


def _record(cls: type) -> tuple[_Encoder, _Decoder]:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = dataclasses.fields(cls)
    codecs = {field.name: _codec(hints[field.name]) for field in fields}
    required = [
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]

    def encode(value: Any, path: str) -> Plain:
        if type(value) is not cls:
            raise LocalProtocolError(f"{path}: expected {cls.__name__}, found {type(value).__name__}")
        return {name: codec[0](getattr(value, name), f"{path}.{name}") for name, codec in codecs.items()}

    def decode(value: Plain, path: str) -> Any:
        if type(value) is not dict:
            raise _bad(path, f"the fields of {cls.__name__}", value)
        for name in required:
            if name not in value:
                raise RemoteProtocolError("schema", f"{path}.{name}: missing")
        known = {name: codec[1](value[name], f"{path}.{name}") for name, codec in codecs.items() if name in value}
        return cls(**known)  # a class's own check in __post_init__ raises RemoteProtocolError

    return encode, decode
