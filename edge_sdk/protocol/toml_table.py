"""Tables of TOML files as frozen dataclasses: one check of keys, types and ranges for settings, parameters, profiles.

The rules are annotations of the fields, as for messages (schema.py).  Unlike there, an unknown key is a mistake, and
the error quotes the user's value.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from edge_sdk.errors import RemoteProtocolError, UsageError, meant
from edge_sdk.protocol.frames import schema
from edge_sdk.protocol.frames.leaves import one_line

T = TypeVar("T")
NO_KEYS: Mapping[str, str] = {}
MOST_QUOTED = 80
"""The number of characters of a value that a message quotes."""
MOST_LISTED = 12
"""The maximum number of allowed keys that a message lists beside the one that was probably meant."""


def read_table(
    cls: type[T],
    table: Mapping[str, Any],
    prefix: str,
    *,
    unknown_key: str = "unknown key",
    elsewhere: Mapping[str, str] = NO_KEYS,
) -> T:
    """Read a table as a dataclass; missing keys have their defaults.

    prefix: written before the key in messages, such as `FILE: train.`.  unknown_key: the message for an unknown key.
    elsewhere: the prefix of each key that the user wrote in another place.  Raises UsageError, in one line with the
    key, the allowed values and the one found.
    """
    known = sorted(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]  # only given dataclasses
    for key in table:
        if key not in known:
            raise UsageError(f"{elsewhere.get(key, prefix)}{key}: {unknown_key}; {allowed(key, known)}")
        _check_inner(cls, key, table[key], elsewhere.get(key, prefix))
    try:
        return schema.from_plain(cls, dict(table))
    except RemoteProtocolError as error:
        problem = _with_value(str(error).removeprefix(cls.__name__).lstrip(".: "), table)
        key = re.split(r"[^a-zA-Z0-9_]", problem, maxsplit=1)[0]
        if either := schema.alternatives(typing.get_type_hints(cls, include_extras=True).get(key)):
            problem = _with_value(f"{key}: expected {either}", table)
        raise UsageError(f"{elsewhere.get(key, prefix)}{problem}") from None


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Return the annotations of a class, cached: each lookup compiles them again."""
    return typing.get_type_hints(cls)


def _check_inner(cls: type, key: str, value: Any, prefix: str) -> None:
    """Raise UsageError for an unknown key of a table within the table, where its field is a dataclass."""
    inner = next(filter(dataclasses.is_dataclass, _types(_hints(cls)[key])), None)
    if inner is None or not isinstance(value, Mapping):
        return
    known = sorted(field.name for field in dataclasses.fields(inner))
    for each in value:
        if each not in known:
            raise UsageError(f"{prefix}{key}.{each}: unknown key; {allowed(str(each), known)}")


def _types(annotation: Any) -> tuple[Any, ...]:
    """Return the types that an annotation allows."""
    return typing.get_args(annotation) or (annotation,)


def to_table(value: object, *, defaults: bool = False) -> dict[str, Any]:
    """Return the table from which `read_table` restores this dataclass.

    Fields at their defaults are left out unless `defaults` is true.  None is always left out.
    """
    fields = dataclasses.fields(value)  # type: ignore[arg-type]  # only given dataclasses
    found = {field.name: getattr(value, field.name) for field in fields if defaults or _changed(value, field)}
    return {key: _plain(each) for key, each in found.items() if each is not None}


def _changed(value: object, field: dataclasses.Field[Any]) -> bool:
    return bool(getattr(value, field.name) != field.default)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if dataclasses.is_dataclass(value):
        return to_table(value)
    return dict(value) if isinstance(value, Mapping) else value


def allowed(key: str, known: Sequence[str]) -> str:
    """Return the allowed keys, and the key that was probably meant: its unit may be missing, or it is misspelt."""
    full = [name for name in known if name.startswith(f"{key}_")]
    if full:
        return f"the unit is missing from the name; write {' or '.join(full)}"
    close = meant(key, known)
    if close and len(known) > MOST_LISTED:
        return close.rstrip()
    return f"{close}allowed are {', '.join(known) or 'none'}"


def _with_value(problem: str, table: Mapping[str, Any]) -> str:
    """Replace the type in `key.inner[2]: expected ...` by the value that was found, if there is one."""
    path, _, text = problem.partition(": ")
    text = re.sub(r", found [a-zA-Z]+$", "", text)  # schema.py names only the type
    if ", found " in text:
        return problem
    try:
        value = _at(path, table)
    except (LookupError, ValueError, TypeError):  # a key that is missing, or a check of several values
        return problem
    written = str(value).lower() if isinstance(value, bool) else repr(value)  # as TOML has it
    return f"{path}: {text}, found {one_line(written, MOST_QUOTED)}"


def _at(path: str, value: Any) -> Any:
    for step in re.findall(r"[^.\[\]]+", path):
        value = value[int(step) if isinstance(value, list) else step]
    return value
