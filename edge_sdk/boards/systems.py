"""The operating systems of boards: which Python they bring, the lines that install edge-sdk, and what does not work.

Each is a TOML file in firmware_profiles/systems; a board's profile names those that run on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated

from edge_sdk import toml
from edge_sdk.boards.profiles import SUFFIX, ProfileSource, ProfileText
from edge_sdk.errors import UsageError
from edge_sdk.protocol.schema import Items
from edge_sdk.protocol.toml_table import read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """An operating system image for boards."""

    name: ProfileText
    title: ProfileText
    arch: ProfileText
    python: ProfileText
    """The version of its own Python."""
    install: Annotated[tuple[ProfileText, ...], Items(1, 8)]
    """Shell lines that install edge-sdk in ~/edge, with the versions that were tried together."""
    onnx: ProfileText
    """The line that adds ONNX Runtime; empty: there is none for this system."""
    limits: ProfileText
    """What does not work, and what was not tried."""
    source_url: ProfileSource
    gpu: ProfileText = ""
    """What training on the board's GPU would take; empty: boards with this system have none that trains."""
    note: ProfileText = ""


@cache
def systems() -> Mapping[str, System]:
    """Return all systems by name, sorted.  Raises UsageError naming the file, the key and what is allowed."""
    found = {}
    for entry in sorted((files("firmware_profiles") / "systems").iterdir(), key=lambda each: each.name):
        if entry.name.endswith(SUFFIX):
            where = f"systems/{entry.name}"
            found[entry.name[: -len(SUFFIX)]] = read_table(
                System, toml.loads(entry.read_text(encoding="utf-8"), where), f"{where}: "
            )
    return found


def load_system(name: str) -> System:
    """Return the system of that name.  Raises UsageError if there is none."""
    if name not in systems():
        raise UsageError(f"system {name!r}: there is none of that name; there are {', '.join(systems())}")
    return systems()[name]
