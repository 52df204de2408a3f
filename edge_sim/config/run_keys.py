"""Older keys of [run], which named engines, in today's words: processes, stack and cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from edge_sdk.errors import UsageError

_ENGINES: Mapping[str, Mapping[str, Any]] = {
    "exact": {},
    "cohort": {"stack": True},
    "workers": {"processes": 0},
    "shards": {"processes": 0},
    "ray": {"processes": 0, "cluster": "auto"},
    "auto": {"processes": "auto", "stack": "auto"},
}
"""The settings that each engine stood for.  processes 0: set by the old key `workers`."""
_GONE = ("engine", "workers", "ray_address")


def current(table: Any, where: str) -> tuple[Any, tuple[str, ...]]:
    """Return a table [run] with today's keys, and a line about older ones.  Raises UsageError for an unknown engine.

    where: what an error puts before the key.
    """
    if not isinstance(table, Mapping) or not any(key in table for key in _GONE):
        return table, ()
    engine = table.get("engine", "exact")
    if engine not in _ENGINES:
        raise UsageError(f"{where}engine: expected {', '.join(_ENGINES)}, found {engine!r}; {HINT}")
    chosen = dict(_ENGINES[engine])
    if "processes" in chosen:
        chosen["processes"] = table.get("workers") or (os.cpu_count() or 1 if chosen["processes"] == 0 else "auto")
    if "cluster" in chosen:
        chosen["cluster"] = table.get("ray_address") or os.environ.get("RAY_ADDRESS") or "local"
        chosen["processes"] = "auto" if not table.get("workers") else int(table["workers"]) + 1  # and this one
    if engine in ("workers", "shards", "ray") and table.get("stacked"):
        chosen["stack"] = True
    kept = {key: value for key, value in table.items() if key not in _GONE}
    written = "; ".join(f"{key} = {_toml(value)}" for key, value in chosen.items()) or "leave it out"
    old = ", ".join(key for key in _GONE if key in table)
    return {**chosen, **kept}, (f"{where}{old}: an older form, still read; write {written}",)


HINT = "use processes, stack and cluster instead"


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, (bool, int)) else f'"{value}"'
