"""Whether two settings mean the same simulated world: the same results, however long they take on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coordinator.config import chosen_method
from edge_sdk.errors import UsageError
from edge_sim.config import settings as configs
from edge_sim.config.settings import Config

NAMED = 3
"""How many differences a message names."""


def check_same_world(kept: Path, config: Config) -> None:
    """Raise UsageError, with the first differences, where a run begun with the settings in `kept` may not go on so."""
    before, now = settings_by_key(configs.load(kept)), settings_by_key(config)
    differ = [key for key in before if key in now and before[key] != now[key]]
    if not differ:
        return
    named = [f"{key} was {_written(before[key])}, is {_written(now[key])}" for key in differ[:NAMED]]
    more = f"; and {len(differ) - NAMED} more" if len(differ) > NAMED else ""
    raise UsageError(
        f"{kept.parent}: the run in it has other settings: {'; '.join(named)}{more}; go on with {kept}, or give --out "
        "another folder"
    )


def settings_by_key(config: Config) -> dict[str, Any]:
    """Every value that the results follow from, by its key, defaults filled in: all but [run] and partition.export."""
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
    """With the kinds of other packages beside our own."""
    others = encoding.pop("others")
    return {**encoding, **others}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _written(value: object) -> str:
    return "not given" if value is None else json.dumps(value, default=str)
