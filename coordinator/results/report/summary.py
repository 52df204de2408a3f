"""The summary of a run: summary.json, version 1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from coordinator.results.figures.result import Result
from coordinator.results.figures.run_figures import run_entries

SUMMARY_VERSION = 1


def summary(result: Result) -> dict[str, Any]:
    """The contents of summary.json, version 1.  An unknown figure is absent, never null or NaN."""
    return {"version": SUMMARY_VERSION, **run_entries(result)}


def summary_text(whole: Mapping[str, Any]) -> str:
    """The text of summary.json: indented, with each device on one line, so that a file of many devices stays small."""
    entries = (f"{json.dumps(name)}: {_entry_text(name, value)}" for name, value in whole.items())
    return "{\n  " + ",\n  ".join(entries) + "\n}\n"


def _entry_text(name: str, value: Any) -> str:
    if name == "per_device" and value:
        return "[\n    " + ",\n    ".join(json.dumps(device, allow_nan=False) for device in value) + "\n  ]"
    return json.dumps(value, indent=2, allow_nan=False).replace("\n", "\n  ")


def without_times(whole: Mapping[str, Any]) -> dict[str, Any]:
    """The summary without what depends on the clock or the machine: equal for two runs with the same seed."""
    kept = {key: value for key, value in whole.items() if key not in {"time", "memory", "resumed", "versions"}}
    kept["per_device"] = [
        {key: value for key, value in device.items() if key != "waited_s"} for device in kept["per_device"]
    ]
    return kept | {"metrics": {name: value for name, value in whole["metrics"].items() if not name.endswith("_s")}}
