"""The functions that settings name, as MODULE:FUNCTION."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edge_sim.config.model_rules import RULES


def named_functions(value: Any) -> Iterator[str]:
    """Yield every text with a colon in tables of settings, the entries of a rule for models one by one."""
    if isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from named_functions(inner)
    elif isinstance(value, str):
        kind, _, listed = value.partition(":")
        names = listed.split(",") if kind in RULES else [value]
        yield from (name.strip() for name in names if ":" in name)
