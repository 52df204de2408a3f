"""Turns frozen dataclasses into plain msgpack values and back, and checks every field.

Every class that may be sent is registered here under a tag that never changes its meaning.  An object is built from
received values only if they fit the annotations of its fields.  An error names the path of the field.

On the wire an object is a map of its fields, `{"field": value}`; where several classes are allowed (a union, or a base
class that is open to other packages) it is `[tag, {fields}]`.  A tensor is `[dtype, [shape], bytes]`, raw
little-endian; a quantised one also has its scales.

Evolution: new fields have defaults, unknown fields are skipped, and a tag or a type never changes its meaning.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import LocalProtocolError, ProtocolError, RemoteProtocolError, UsageError
from edge_sdk.protocol import registry
from edge_sdk.protocol.frames.leaves import (
    DTYPES,
    Blob,
    Boolean,
    Decoder,
    Encoder,
    Integer,
    Packed,
    Plain,
    Range,
    Real,
    Tensor,
    Text,
    leaf,
    one_line,
    wrong_type,
)
from edge_sdk.protocol.frames.quantised import Coded, coded
from edge_sdk.protocol.frames.records import FrozenDict, getter

__all__ = [
    "DTYPES",
    "ID",
    "LATER",
    "TAGS",
    "Blob",
    "ClassIds",
    "Count",
    "Counts",
    "Digest",
    "Exact",
    "ExactRows",
    "Id",
    "Integer",
    "Items",
    "Line",
    "Matrix",
    "Packed",
    "Real",
    "Seconds",
    "Shares",
    "Tensor",
    "Text",
    "Vector",
    "Word",
    "from_plain",
    "one_line",
    "open_base",
    "registered",
    "tag_of",
    "to_plain",
    "wire",
]

TAGS: dict[str, type] = {}

_T = TypeVar("_T")
_Pair = tuple[Encoder, Decoder]


@dataclass(frozen=True)
class Items:
    """The rule of a tuple or a map: it has between `least` and `most` entries."""

    least: int = 0
    most: int = 64


ID = Text(36, r"[a-z0-9][a-z0-9-]*")
"""The rule of ids: they are safe as one level of a topic, as a file name and as a user name."""

Count = Annotated[int, Integer(0, 2**32 - 1)]
Id = Annotated[str, ID]
Line = Annotated[str, Text(256)]
Word = Annotated[str, Text(64, r"[a-z][a-z0-9_.-]*")]
Seconds = Annotated[float, Real(0.0, 1e9)]
Digest = Annotated[bytes, Blob(8, 32)]
Matrix = Annotated[NDArray[np.float32], Coded(2)]  # (n, m)
Vector = Annotated[NDArray[np.float32], Coded(1)]  # (n,)
Shares = Annotated[NDArray[np.float32], Tensor(("f4", "f2"), 2)]  # (n, m)
Exact = Annotated[NDArray[np.float32], Tensor(("f4",), 1)]  # (n,), never in another encoding
ExactRows = Annotated[NDArray[np.float32], Tensor(("f4",), 2)]  # (n, m), never in another encoding
ClassIds = Annotated[NDArray[np.int32], Tensor(("i4",), 1)]  # (m,)
Counts = Annotated[NDArray[np.int32], Tensor(("i4",), 1)]  # (m,)


LATER: Mapping[str, bool] = {"later": True}
"""Metadata of a field that was added to a message later.  At its default the field is left out, so that messages
without it keep their bytes, and old receivers rarely see it."""


def wire(tag: str) -> Callable[[type[_T]], type[_T]]:
    """Return a decorator that registers a frozen dataclass under a tag.

    It raises LocalProtocolError if another class has the tag.
    """

    def register(cls: type[_T]) -> type[_T]:
        if TAGS.setdefault(tag, cls) is not cls:
            raise LocalProtocolError(f"tag {tag!r} is taken by {TAGS[tag].__name__}: give {cls.__name__} another one")
        cls.__wire_tag__ = tag  # type: ignore[attr-defined]  # tag_of reads it
        return cls

    return register


def tag_of(cls: type) -> str:
    """Return the tag of a registered class; a subclass does not inherit it.

    Raises LocalProtocolError for a class that is not registered.
    """
    tag = vars(cls).get("__wire_tag__")
    if not isinstance(tag, str):
        raise LocalProtocolError(f"{cls.__name__} is not registered with @wire")
    return tag


def open_base(group: str) -> Callable[[type[_T]], type[_T]]:
    """Make a class an open base: its @wire subclasses in an entry-point group, by tag, are allowed in its place."""

    def mark(cls: type[_T]) -> type[_T]:
        cls.__wire_group__ = group  # type: ignore[attr-defined]  # read back by _group_of
        return cls

    return mark


def _group_of(annotation: object) -> str:
    """The entry-point group of an open base, or empty for other classes."""
    return str(vars(annotation).get("__wire_group__", "")) if isinstance(annotation, type) else ""


def registered(base: type, tag: str) -> type[Any]:
    """Return the class of an open base with this tag.  Raises UsageError, in one line, without such a class."""
    group = _group_of(base)
    cls = registry.load_entry(group, tag, f"{base.__name__.lower()} kind")
    if not (isinstance(cls, type) and issubclass(cls, base) and vars(cls).get("__wire_tag__") == tag):
        where = registry.value(group, tag)
        raise UsageError(
            f"{base.__name__.lower()} kind {tag!r}: {where} is not a {base.__name__} with @wire({tag!r}); "
            f"{registry.remedy(group, tag)}"
        )
    return cls


def to_plain(value: object) -> Plain:
    """Return a registered object as msgpack values.  Raises LocalProtocolError if it breaks its own annotations."""
    encode, name = _codec(type(value))[0], type(value).__name__
    try:
        return encode(value, _NO_PATH)
    except ProtocolError:
        return _encode_with_paths(encode, value, name)


def field_encoder(cls: type, name: str) -> Callable[[object], Plain]:
    """Return the function that turns a legal value of one field into msgpack values."""
    encode = _codec(typing.get_type_hints(cls, include_extras=True)[name])[0]
    return lambda value: encode(value, _NO_PATH)


def _encode_with_paths(encode: Encoder, value: object, name: str) -> Plain:
    """Encode an illegal object again with paths, so that the error names the field, and raise it as a local error."""
    try:
        return encode(value, name)
    except RemoteProtocolError as error:
        raise LocalProtocolError(str(error)) from None


def from_plain(cls: type[_T], plain: Plain) -> _T:
    """Return the object that a plain value describes.

    Raises only RemoteProtocolError, with the path of the field, if the value is illegal.
    """
    decode = _codec(cls)[1]
    try:
        value: _T = decode(plain, _NO_PATH)
    except RemoteProtocolError:
        value = decode(plain, cls.__name__)  # raises again, with the path of the field
    return value


_NO_PATH = ""
"""Building the paths of fields costs more than checking the fields, so it is done only for an error message."""


_CODECS: dict[Any, _Pair] = {}
_WORD = re.compile(r"[a-z_0-9-]+")
_SIMPLE: Mapping[type, object] = {bool: Boolean(), int: Integer(-(2**63)), float: Real(), str: Text(), bytes: Blob()}


def _codec(annotation: Any) -> _Pair:
    """Return the encoder and the decoder for an annotation, cached."""
    try:
        return _CODECS[annotation]
    except KeyError:
        _CODECS[annotation] = made = _make_codec(annotation)
        return made


def _make_codec(annotation: Any) -> _Pair:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        if isinstance(args[1], Items):
            return _sized(_codec(args[0]), args[1])
        if isinstance(args[1], Range):
            return leaf(args[1].rule(args[0]))
        return coded(args[1]) if isinstance(args[1], Coded) else leaf(args[1])
    if origin is typing.Literal:
        return leaf(Text(pattern="|".join(each if _WORD.fullmatch(each) else re.escape(each) for each in args)))
    if origin in (typing.Union, types.UnionType):
        return _union(args)
    if origin is tuple:
        return _sequence(args[0])
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(args[0], args[1])
    if _group_of(annotation):
        return _open(annotation)
    if dataclasses.is_dataclass(annotation):
        return _record(typing.cast("type", annotation))
    if annotation in _SIMPLE:
        return leaf(_SIMPLE[annotation])
    raise LocalProtocolError(f"no wire form for {annotation!r}: use the types of edge_sdk.protocol.frames.schema")


def _sized(inner: _Pair, rule: Items) -> _Pair:
    inner_encode, inner_decode = inner
    allowed = f"expected {rule.least} to {rule.most} entries"

    def encode(value: Any, path: str) -> Plain:
        plain = inner_encode(value, path)
        if not rule.least <= len(plain) <= rule.most:
            raise LocalProtocolError(f"{path}: {len(plain)} entries, {allowed}")
        return plain

    def decode(value: Plain, path: str) -> Any:
        if type(value) in (list, dict) and not rule.least <= len(value) <= rule.most:
            raise RemoteProtocolError("schema", f"{path}: {len(value)} entries, {allowed}")
        return inner_decode(value, path)

    return encode, decode


def _sequence(item: Any) -> _Pair:
    item_encode, item_decode = _codec(item)

    def encode(value: Any, path: str) -> Plain:
        if not isinstance(value, (tuple, list)):
            raise LocalProtocolError(f"{path}: expected a tuple, found {type(value).__name__}")
        return [item_encode(each, path and f"{path}[{i}]") for i, each in enumerate(value)]

    def decode(value: Plain, path: str) -> tuple[Any, ...]:
        if type(value) is not list:
            raise wrong_type(path, "a list", value)
        return tuple(item_decode(each, path and f"{path}[{i}]") for i, each in enumerate(value))

    return encode, decode


def _mapping(key: Any, item: Any) -> _Pair:
    """Encode maps sorted by key, so that equal maps give equal bytes."""
    key_encode, key_decode = _codec(key)
    item_encode, item_decode = _codec(item)

    def encode(value: Any, path: str) -> Plain:
        if not isinstance(value, (dict, Mapping)):  # dict first, because the check of an abstract class takes longer
            raise LocalProtocolError(f"{path}: expected a mapping, found {type(value).__name__}")
        keys = sorted([key_encode(each, path and f"{path}: key") for each in value])
        return {each: item_encode(value[each], path and f"{path}.{each}") for each in keys}

    def decode(value: Plain, path: str) -> FrozenDict[Any, Any]:
        if type(value) is not dict:
            raise wrong_type(path, "a map", value)
        if not value:
            return FrozenDict()
        # The key is checked before it becomes part of a path, because errors must not quote illegal input.
        keys = [key_decode(each, path and f"{path}: key") for each in value]
        return FrozenDict({key: item_decode(value[key], path and f"{path}.{key}") for key in keys})

    return encode, decode


def _union(options: tuple[Any, ...]) -> _Pair:
    """Handle `None | X`, unions of simple types and a record, and unions of registered classes.

    Registered classes are sent with their tag.
    """
    optional = type(None) in options
    rest = [option for option in options if option is not type(None)]
    if all(dataclasses.is_dataclass(option) for option in rest) and len(rest) > 1:
        inner = _tagged(rest)
    elif len(rest) == 1:
        inner = _codec(rest[0])
    else:
        inner = _mixed_union(rest)
    if not optional:
        return inner
    inner_encode, inner_decode = inner
    return (
        lambda value, path: None if value is None else inner_encode(value, path),
        lambda value, path: None if value is None else inner_decode(value, path),
    )


def _tagged(classes: list[type]) -> _Pair:
    tags = {cls: tag_of(cls) for cls in classes}
    encoders = {cls: _codec(cls)[0] for cls in classes}
    decoders = {tag: _codec(cls)[1] for cls, tag in tags.items()}

    def encode(value: Any, path: str) -> Plain:
        cls = type(value)
        if cls not in tags:
            raise LocalProtocolError(f"{path}: {cls.__name__} may not stand here")
        return [tags[cls], encoders[cls](value, path)]

    def decode(value: Plain, path: str) -> Any:
        if type(value) is not list or len(value) != 2 or type(value[0]) is not str:
            raise wrong_type(path, "[tag, fields]", value)
        if value[0] not in decoders:
            known = " | ".join(sorted(decoders))
            raise RemoteProtocolError("schema", f"{path}: unknown tag, this side knows {known}: upgrade it")
        return decoders[value[0]](value[1], path)

    return encode, decode


def _open(base: type) -> _Pair:
    """Tagged like a union; each class is looked up at its first use."""
    group = _group_of(base)
    encoders: dict[type, tuple[str, Encoder]] = {}
    decoders: dict[str, Decoder] = {}

    def encode(value: Any, path: str) -> Plain:
        cls = type(value)
        if cls not in encoders:
            tag = vars(cls).get("__wire_tag__", "")
            if not (isinstance(value, base) and registry.value(group, tag) and registered(base, tag) is cls):
                raise LocalProtocolError(f"{path}: {cls.__name__} may not stand here: it is not registered in {group}")
            encoders[cls] = tag, _codec(cls)[0]
        tag, inner = encoders[cls]
        return [tag, inner(value, path)]

    def decode(value: Plain, path: str) -> Any:
        if type(value) is not list or len(value) != 2 or type(value[0]) is not str:
            raise wrong_type(path, "[tag, fields]", value)
        if value[0] not in decoders:
            if not registry.value(group, value[0]):
                known = " | ".join(registry.names(group))
                raise RemoteProtocolError("schema", f"{path}: unknown tag, this side knows {known}: upgrade it")
            try:
                decoders[value[0]] = _codec(registered(base, value[0]))[1]
            except UsageError as error:
                raise RemoteProtocolError("schema", f"{path}: {error}") from None
        return decoders[value[0]](value[1], path)

    return encode, decode


def _mixed_union(options: list[Any]) -> _Pair:
    """Handle unions of bool, int, float, str and one record, distinguished by the exact type that msgpack returns."""
    encoders = {_type(option): _codec(option)[0] for option in options}
    decoders = {dict if dataclasses.is_dataclass(option) else _type(option): _codec(option)[1] for option in options}

    def encode(value: Any, path: str) -> Plain:
        return chosen(encoders, value, path)(value, path)

    def decode(value: Plain, path: str) -> Any:
        return chosen(decoders, value, path)(value, path)

    def chosen(by_type: Mapping[type, _Coder], value: Any, path: str) -> _Coder:
        if type(value) not in by_type:
            raise wrong_type(path, " or ".join(sorted(_NAMES.get(t, t.__name__) for t in by_type)), value)
        return by_type[type(value)]

    return encode, decode


_NAMES: Mapping[type, str] = {dict: "a map"}
_Coder = Callable[[Any, str], Any]


def alternatives(annotation: Any) -> str:
    """What all options of a union of simple types allow, for an error message, or empty for other annotations."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return ""
    options = [option for option in typing.get_args(annotation) if option is not type(None)]
    rules = [_SIMPLE.get(option) or (typing.get_args(option) or ("",))[-1] for option in options]
    words = [str(getattr(rule, "words", "")) for rule in rules]
    return " or ".join(words) if len(words) > 1 and all(words) else ""


def _type(option: Any) -> type:
    """Return the type whose values an annotation describes."""
    found: type = typing.get_args(option)[0] if typing.get_origin(option) is Annotated else option
    return found


def _default(field: dataclasses.Field[Any]) -> object:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def _record(cls: type) -> _Pair:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = dataclasses.fields(cls)
    codecs = {field.name: _codec(hints[field.name]) for field in fields}
    required = [
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]

    left_out = {field.name: _default(field) for field in fields if field.metadata.get("later")}
    encoders = [(name, codec[0], left_out.get(name, _ALWAYS)) for name, codec in codecs.items()]
    values = getter(cls)
    decoders = {name: codec[1] for name, codec in codecs.items()}

    def encode(value: Any, path: str) -> Plain:
        if type(value) is not cls:
            raise LocalProtocolError(f"{path}: expected {cls.__name__}, found {type(value).__name__}")
        plain = {}
        for (name, each_encode, default), each in zip(encoders, values(value), strict=True):
            if default is _ALWAYS or each != default:
                plain[name] = each_encode(each, path and f"{path}.{name}")
        return plain

    def decode(value: Plain, path: str) -> Any:
        if type(value) is not dict:
            raise wrong_type(path, f"the fields of {cls.__name__}", value)
        for name in required:
            if name not in value:
                raise RemoteProtocolError("schema", f"{path}.{name}: missing")
        if path:
            known = {name: decode(value[name], f"{path}.{name}") for name, decode in decoders.items() if name in value}
        else:  # most messages have few of their fields; the order of checks only matters for errors
            known = {name: decoders[name](each, _NO_PATH) for name, each in value.items() if name in decoders}
        try:
            return cls(**known)
        except (TypeError, ValueError) as error:  # from the class's own check in __post_init__
            raise RemoteProtocolError("schema", f"{path}: {error}") from None

    return encode, decode


_ALWAYS = object()
"""Placeholder for the default of a field that is always sent."""
