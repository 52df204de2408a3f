"""The summary of a run: summary.json, version 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.results.figures.result import Result
from coordinator.results.figures.run_figures import run_entries

SUMMARY_VERSION = 1


def summary(result: Result) -> dict[str, Any]:
    """The contents of summary.json, version 1.  An unknown figure is absent, never null or NaN."""
    return {"version": SUMMARY_VERSION, **run_entries(result)}


def without_times(whole: Mapping[str, Any]) -> dict[str, Any]:
    """The summary without what depends on the clock or the machine: equal for two runs with the same seed."""
    kept = {key: value for key, value in whole.items() if key not in {"time", "memory", "resumed", "versions"}}
    kept["per_device"] = [
        {key: value for key, value in device.items() if key != "waited_s"} for device in kept["per_device"]
    ]
    return kept | {"metrics": {name: value for name, value in whole["metrics"].items() if not name.endswith("_s")}}
