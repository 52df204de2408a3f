"""The settings of a run on their way from the desk of a lab to a board: values only, never code.

Files are named by paths inside the folder of the desk's TOML file, and looked up inside the board's folder of data.  A
board loads no function that the settings name, unless its owner allowed the module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path, PurePath
from typing import Any

from edge_sdk.errors import UsageError
from edge_sdk.protocol.operator_messages import MAX_SETTINGS_BYTES
from edge_sim.config import settings
from edge_sim.config.device_conditions import named_functions
from edge_sim.config.settings import Config

LEFT_OUT = ("scenario", "faults", "run")
"""Sections that are about simulations."""
FILE = "lab.toml"
"""The name under which a board's error messages speak of the settings."""
_PATHS = (("data", "path"), ("data", "root"), ("partition", "file"), ("public", "path"))


def packed_settings(config: Config) -> bytes:
    """Return a run's settings for its boards.  Raises UsageError for a file outside the TOML file's folder."""
    tables = {name: table for name, table in config.tables.items() if name not in LEFT_OUT}
    tables["federation"] = {key: value for key, value in tables["federation"].items() if key != "nets"}
    tables.get("partition", {}).pop("export", None)  # the desk writes it
    home = config.file.parent.resolve()
    _change_paths(tables, lambda where, path: _inside(path, home, f"{config.file}: {where}"))
    packed = json.dumps(tables).encode()
    if len(packed) > MAX_SETTINGS_BYTES:
        raise UsageError(
            f"{config.file}: {len(packed)} bytes of settings, and a board takes {MAX_SETTINGS_BYTES}; give fewer rows "
            "of [[fleet]]"
        )
    return packed


def unpacked_settings(packed: bytes, data: Path, modules: Collection[str] = ()) -> Config:
    """Return the settings that a board was sent; paths are inside its folder `data`.

    modules: those whose functions the settings may name.  Raises UsageError for settings that this board does not
    accept.
    """
    try:
        tables = json.loads(packed)
    except ValueError:
        raise UsageError("settings are not valid JSON: the desk has another version of edge-sdk") from None
    if not isinstance(tables, dict) or not all(isinstance(table, (dict, list)) for table in tables.values()):
        raise UsageError("settings are not tables: the desk has another version of edge-sdk")
    for name in named_functions(tables):
        _check_function(name, modules)
    _change_paths(tables, lambda where, path: _found(path, data.resolve(), where))
    return settings.parse(tables, data.resolve() / FILE)


def _change_paths(tables: dict[str, Any], change: Callable[[str, str], str]) -> None:
    """Replace every path in the tables; change: from where it stands, and the path."""
    for section, key in _PATHS:
        table = tables.get(section)
        if isinstance(table, dict) and isinstance(table.get(key), str):
            tables[section] = {**table, key: change(f"{section}.{key}", table[key])}
    rows = tables.get("fleet", [])
    for row in rows if isinstance(rows, list) else []:
        for key in ("board", "link"):
            if isinstance(row, dict) and str(row.get(key, "")).endswith(".toml"):
                row[key] = change(f"fleet.{key}", row[key])


def _inside(path: str, home: Path, where: str) -> str:
    found = Path(path).resolve()
    if not found.is_relative_to(home):
        raise UsageError(f"{where}: {path} is outside {home}, and boards look for files by their place in it")
    return found.relative_to(home).as_posix()


def _found(path: str, data: Path, where: str) -> str:
    if PurePath(path).is_absolute() or ".." in PurePath(path).parts:
        raise UsageError(f"{where}: {path} is outside the folder of --data")
    found = data / path
    if not found.exists():
        raise UsageError(f"{where}: {found} does not exist on this board; copy it there")
    return str(found)


def _check_function(name: str, modules: Collection[str]) -> None:
    """Raise UsageError if a function, MODULE:FACTORY, is of a module that the owner has not allowed."""
    module = name.partition(":")[0]
    if module not in modules:
        raise UsageError(
            f"{name}: this board runs no function that a desk names; its owner can allow it with "
            f"--allow-module {module}"
        )
