"""The simple values in a message (numbers, texts, bytes and tensors), each with a rule for legal values.

A rule is a frozen dataclass in the annotation of a field.  `leaf` makes its encoder and decoder.  Both check the rule,
because a sender must not send values that receivers refuse.  If a value is sent unchanged, both are the same function;
it raises RemoteProtocolError, which `schema.to_plain` turns into LocalProtocolError.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import LocalProtocolError, RemoteProtocolError
from edge_sdk.protocol.frames import body
from edge_sdk.protocol.frames.value_range import all_finite

Plain = Any
"""A value that msgpack can pack: None, bool, int, float, str, bytes, list or dict."""

Encoder: TypeAlias = Callable[[Any, str], Plain]
Decoder: TypeAlias = Callable[[Plain, str], Any]
"""Encoders and decoders take a value and the path of its field, for the error message."""

DTYPES: Mapping[str, np.dtype[Any]] = {code: np.dtype("<" + code) for code in ("f4", "f2", "i4", "i1", "u1")}

_CONTROLS = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
_DIRECTIONS = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Characters that change the order of text in a terminal, and so could disguise a name as another one."""
PRINTABLE = rf"[^{_CONTROLS}{_DIRECTIONS}]*"
"""No control characters, so that a received text can be printed or logged unchanged."""
_LARGEST = 2**63 - 1
ABOVE_0, BELOW_1 = math.ulp(0.0), math.nextafter(1.0, 0.0)
"""The smallest number above 0, and the largest below 1."""
_UNPRINTABLE = re.compile(f"[{_CONTROLS}{_DIRECTIONS}]+")


@dataclass(frozen=True)
class Boolean:
    """True or false."""

    words = "true or false"


@dataclass(frozen=True)
class Integer:
    """An integer in [low, high]."""

    low: int = 0
    high: int = 2**63 - 1
    note: str = ""
    """What a message adds to the range."""

    @property
    def words(self) -> str:
        """What is allowed, for an error message."""
        if self.high < _LARGEST:
            return f"an integer from {self.low} to {self.high}{self.note}"
        return "an integer" if self.low <= -_LARGEST else f"an integer of at least {self.low}"


@dataclass(frozen=True)
class Real:
    """A finite number in [low, high]; ABOVE_0 and BELOW_1 are for ranges that leave out 0 or 1."""

    low: float = -math.inf
    high: float = math.inf
    note: str = ""
    """What a message adds to the range."""

    @property
    def words(self) -> str:
        """What is allowed, for an error message."""
        if math.isinf(self.low) and math.isinf(self.high):
            return "a finite number"
        low = "above 0" if self.low == ABOVE_0 else f"from {self.low:.10g}"
        if math.isinf(self.high):
            return f"a number {low}" if self.low == ABOVE_0 else f"a number of at least {self.low:.10g}"
        return f"a number {low} to {'below 1' if self.high == BELOW_1 else f'{self.high:.10g}'}{self.note}"


@dataclass(frozen=True)
class Range:
    """The numbers that a parameter may take, integers or not as its type says: `tau: Annotated[int, Range(1, 9)] = 5`.

    Messages of the protocol use Integer and Real.
    """

    low: float
    high: float = 2**31 - 1
    paper: str = ""
    """The value in the paper, shown to users who give another one."""

    def rule(self, kind: object) -> Integer | Real:
        """Return the rule for a field of type int or float."""
        note = f" (the paper takes {self.paper})" if self.paper else ""
        return Integer(int(self.low), int(self.high), note) if kind is int else Real(self.low, self.high, note)


@dataclass(frozen=True)
class Text:
    """A string of at most `most` characters that matches the whole of `pattern`."""

    most: int = 256
    pattern: str = PRINTABLE
    what: str = ""
    """The expected text in words for error messages, or empty to quote the pattern."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed texts, where the pattern lists them, or empty."""
        found = tuple(self.pattern.split("|"))
        return found if all(re.fullmatch(r"[a-z_0-9-]+", word) for word in found) else ()

    @property
    def words(self) -> str:
        """What is allowed, for an error message."""
        if self.choices:
            return " or ".join(self.choices)
        if self.pattern == PRINTABLE:
            return f"at most {self.most} printable characters"
        return self.what or f"at most {self.most} characters of {self.pattern}"


@dataclass(frozen=True)
class Blob:
    """Bytes, between `least` and `most` of them."""

    least: int = 0
    most: int = 2**20


@dataclass(frozen=True)
class Packed:
    """A tuple of at most `most` integers in [0, 2**32 - 1], on the wire as the bytes of little-endian u4."""

    most: int


@dataclass(frozen=True)
class Tensor:
    """A finite array of one of `dtypes` with `ndim` dimensions, each at least 1."""

    dtypes: tuple[str, ...] = ("f4", "f2")
    ndim: int = 2


def one_line(text: str, most: int = 256) -> str:
    """Return `text` as one legal line: control characters become spaces, and more than `most` characters are cut."""
    clean = _UNPRINTABLE.sub(" ", text)
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def wrong_type(path: str, expected: str, found: object) -> RemoteProtocolError:
    """Return the error for a value of another type than expected; it does not quote the value."""
    return RemoteProtocolError("schema", f"{path}: expected {expected}, found {type(found).__name__}")


def leaf(rule: object) -> tuple[Encoder, Decoder]:
    """Return the encoder and the decoder for a rule.  Raises LocalProtocolError for any other object."""
    for kind, make in _MAKERS.items():
        if isinstance(rule, kind):
            return make(rule)
    raise LocalProtocolError(f"no wire form for the rule {rule!r}")


def _boolean(rule: Boolean) -> tuple[Encoder, Decoder]:
    def check(value: Plain, path: str) -> bool:
        if type(value) is not bool:
            raise wrong_type(path, rule.words, value)
        return value

    return check, check


def _integer(rule: Integer) -> tuple[Encoder, Decoder]:
    low, high, words = rule.low, rule.high, rule.words

    def check(value: Plain, path: str) -> int:
        if type(value) is not int:
            raise wrong_type(path, words, value)
        if not low <= value <= high:
            allowed = "an integer below 2^63" if value > _LARGEST and high == _LARGEST else words
            raise RemoteProtocolError("schema", f"{path}: expected {allowed}")
        return value

    return check, check


def _real(rule: Real) -> tuple[Encoder, Decoder]:
    low, high, words = rule.low, rule.high, rule.words

    def check(value: Plain, path: str) -> float:
        if type(value) is int:
            if abs(value) >= 2**53:  # above that, floats do not hold every integer
                raise RemoteProtocolError("schema", f"{path}: expected {words}")
            value = float(value)
        if type(value) is not float:
            raise wrong_type(path, words, value)
        if not math.isfinite(value):
            raise RemoteProtocolError("nonfinite", f"{path}: expected {words}")
        if not low <= value <= high:
            raise RemoteProtocolError("schema", f"{path}: expected {words}")
        return value

    return check, check


def _text(rule: Text) -> tuple[Encoder, Decoder]:
    pattern = re.compile(rule.pattern)
    choice, expected = bool(rule.choices), rule.words
    passed: set[str] = set()  # legal texts seen before, because most texts are names that recur in every frame

    def check(value: Plain, path: str) -> str:
        if type(value) is not str:
            raise wrong_type(path, expected if choice else "a string", value)
        if value in passed:
            return value
        if len(value) > rule.most or not pattern.fullmatch(value):
            raise RemoteProtocolError("schema", f"{path}: expected {expected}")
        if len(passed) < _REMEMBERED and len(value) <= _SHORT:
            passed.add(value)
        return value

    return check, check


_REMEMBERED, _SHORT = 2**14, 64
"""The maximum number of texts that a rule remembers, and their maximum length, which bounds its memory to 1 MB."""


def _blob(rule: Blob) -> tuple[Encoder, Decoder]:
    least, most = rule.least, rule.most

    def check(value: Plain, path: str) -> bytes:
        if type(value) is not bytes:
            raise wrong_type(path, "bytes", value)
        if not least <= len(value) <= most:
            raise RemoteProtocolError("schema", f"{path}: {len(value)} bytes, expected {least} to {most}")
        return value

    return check, check


def _packed(rule: Packed) -> tuple[Encoder, Decoder]:
    def encode(value: Any, path: str) -> Plain:
        if not isinstance(value, (tuple, list)) or len(value) > rule.most:
            raise LocalProtocolError(f"{path}: expected at most {rule.most} integers")
        try:
            return struct.pack(f"<{len(value)}I", *value)
        except struct.error as error:
            raise LocalProtocolError(f"{path}: {error}") from None

    def decode(value: Plain, path: str) -> tuple[int, ...]:
        if type(value) is not bytes:
            raise wrong_type(path, "bytes", value)
        if len(value) % 4 or len(value) > 4 * rule.most:
            raise RemoteProtocolError("schema", f"{path}: expected at most {rule.most} integers of 4 bytes")
        return struct.unpack(f"<{len(value) // 4}I", value)

    return encode, decode


def _tensor(rule: Tensor) -> tuple[Encoder, Decoder]:
    allowed, ndim = " or ".join(rule.dtypes), rule.ndim
    known = {code: DTYPES[code] for code in rule.dtypes}
    floats = any(dtype.kind == "f" for dtype in known.values())  # integers are always finite

    def encode(value: Any, path: str) -> Plain:
        if not isinstance(value, np.ndarray) or (code := value.dtype.str[1:]) not in known:
            found = value.dtype.str if isinstance(value, np.ndarray) else type(value).__name__
            raise LocalProtocolError(f"{path}: expected an array of {allowed}, found {found}")
        if value.ndim != ndim or value.size == 0:
            raise LocalProtocolError(f"{path}: expected {ndim} non-empty dimensions, found shape {value.shape}")
        if floats and not all_finite(value):
            raise LocalProtocolError(f"{path}: holds NaN or Inf; nothing was sent")
        return [code, list(value.shape), body.array_bytes(value.astype(known[code], copy=False))]

    def decode(value: Plain, path: str) -> NDArray[Any]:
        if type(value) is not list or len(value) != 3:
            raise wrong_type(path, "a tensor [dtype, shape, bytes]", value)
        code, shape, raw = value
        if type(code) is not str or code not in known:
            raise RemoteProtocolError("tensor", f"{path}: dtype must be {allowed}")
        if type(raw) not in (bytes, memoryview) or type(shape) is not list or len(shape) != ndim:
            raise RemoteProtocolError("tensor", f"{path}: expected bytes with {ndim} dimensions")
        size = known[code].itemsize
        for extent in shape:
            if type(extent) is not int or not 1 <= extent <= len(raw):
                raise RemoteProtocolError("tensor", f"{path}: a dimension is not between 1 and the number of bytes")
            size *= extent
        if size != len(raw):
            raise RemoteProtocolError("tensor", f"{path}: the shape does not need {len(raw)} bytes")
        array: NDArray[Any] = np.ndarray(shape, known[code], raw)  # read-only, because `raw` is immutable
        if floats and not all_finite(array):
            raise RemoteProtocolError("nonfinite", f"{path}: holds NaN or Inf")
        return array

    return encode, decode


_MAKERS: Mapping[type, Callable[[Any], tuple[Encoder, Decoder]]] = {
    Boolean: _boolean,
    Integer: _integer,
    Real: _real,
    Text: _text,
    Blob: _blob,
    Packed: _packed,
    Tensor: _tensor,
}
