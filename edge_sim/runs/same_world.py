"""The check that two configs describe the same simulated world, so that both give the same results."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coordinator.config import chosen_method
from edge_sdk.errors import UsageError
from edge_sim.config import settings
from edge_sim.config.settings import Config

NAMED = 3
"""Maximum number of differences in a message."""


def check_same_world(kept: Path, config: Config) -> None:
    """Raise UsageError with the first differences if a run with the settings in `kept` cannot resume with `config`."""
    before, now = settings_by_key(settings.load_config(kept)), settings_by_key(config)
    differ = [key for key in before if key in now and before[key] != now[key]]
    if not differ:
        return
    named = [f"{key} was {_written(before[key])}, is {_written(now[key])}" for key in differ[:NAMED]]
    more = f"; and {len(differ) - NAMED} more" if len(differ) > NAMED else ""
    raise UsageError(
        f"{kept.parent}: the run in it has other settings: {'; '.join(named)}{more}; continue with {kept}, or give "
        "--out another folder"
    )


def settings_by_key(config: Config) -> dict[str, Any]:
    """Return every setting that affects results, by key, including defaults: all but [run] and partition.export."""
    method = chosen_method(config)
    sections: dict[str, Any] = {
        "federation": asdict(config.federation),
        f"method.{method.name}": method.table,
        "train": asdict(config.train),
        "encoding": _flat(asdict(config.encoding)),
        "data": asdict(config.data),
        "partition": {**asdict(config.partition), "export": None},
        "fleet": {"rows": len(config.fleet)},
        **{f"fleet[{i}]": asdict(row) for i, row in enumerate(config.fleet)},
        "faults": {**asdict(config.faults), "seed": config.faults_seed},
        "scenario": asdict(config.scenario),
    }
    return {f"{name}.{key}": _plain(value) for name, section in sections.items() for key, value in section.items()}


def _flat(encoding: dict[str, Any]) -> dict[str, Any]:
    """Return the encodings by payload kind; kinds of other packages beside the built-in ones."""
    others = encoding.pop("others")
    return {**encoding, **others}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _written(value: object) -> str:
    return "not given" if value is None else json.dumps(value, default=str)
