"""Reads profiles from TOML into dataclasses, and checks them with one clear line for each mistake."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from edge_sdk.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROVENANCE = ("measured", "datasheet", "estimate")
SOURCES = ("https://", "http://", "urn:")
"""How a source_url must begin; a profile measured with `edge-sdk boards --measure` has a urn as its source."""

P = TypeVar("P")


def read_profile(profile: type[P], text: str, where: str) -> P:
    """Read a dataclass from TOML.  Raises UsageError that names `where`, the key and what is allowed."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: is not TOML: {error}") from None
    fields = {field.name: field for field in dataclasses.fields(profile)}  # type: ignore[arg-type]  # given dataclasses
    for key in table:
        if key not in fields:
            raise UsageError(f"{where}: {key}: {_unknown(key, list(fields))}")
    missing = [key for key, field in fields.items() if field.default is dataclasses.MISSING and key not in table]
    if missing:
        raise UsageError(f"{where}: {missing[0]}: is missing; it must be {_TYPES[str(fields[missing[0]].type)][0]}")
    return profile(**{key: _value(str(fields[key].type), value, f"{where}: {key}") for key, value in table.items()})


def _unknown(key: str, allowed: list[str]) -> str:
    """Describe an unknown key; most often its unit was left out."""
    full = [name for name in allowed if name.startswith(f"{key}_")]
    if full:
        return f"the unit is missing from the name; write {' or '.join(full)}"
    return f"unknown key; allowed are {', '.join(allowed)}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_TYPES: Mapping[str, tuple[str, Callable[[Any], bool], Callable[[Any], Any]]] = {
    "str": ("a string", lambda value: isinstance(value, str), str),
    "int": ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool), int),
    "float": ("a number", _is_number, float),
    "tuple[str, ...]": (
        "a list of strings",
        lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
        tuple,
    ),
    "Mapping[str, str]": (
        "a table of strings",
        lambda value: isinstance(value, dict) and all(isinstance(each, str) for each in value.values()),
        dict,
    ),
}
"""For each type of a field, as annotated: its name in messages, a check of the TOML value, and a conversion."""


def _value(annotation: str, value: object, where: str) -> Any:
    expected, fits, keep = _TYPES[annotation]
    if not fits(value):
        raise UsageError(f"{where}: expected {expected}, found {value!r}")
    return keep(value)


def check_source(url: str, where: str) -> None:
    """Raise UsageError unless the URL begins with one of SOURCES."""
    if not url.startswith(SOURCES):
        raise UsageError(f"{where}: source_url: expected an address ({', '.join(SOURCES)}), found {url!r}")


def check_verified(verified: Mapping[str, str], groups: tuple[str, ...], where: str) -> None:
    """Raise UsageError unless `verified` has one of PROVENANCE for each group of figures."""
    if set(verified) != set(groups):
        raise UsageError(
            f"{where}: verified: needs exactly {', '.join(groups)}; it has {', '.join(verified) or 'none'}"
        )
    for group, word in verified.items():
        if word not in PROVENANCE:
            raise UsageError(f"{where}: verified.{group}: {word!r} is not one of {', '.join(PROVENANCE)}")


def check_range(profile: object, keys: tuple[str, ...], fits: Callable[[float], bool], words: str, where: str) -> None:
    """Raise UsageError for the first of these fields whose value is out of range; words: the range in words."""
    for key in keys:
        if not fits(getattr(profile, key)):
            raise UsageError(f"{where}: {key}: must be {words}, found {getattr(profile, key)!r}")
