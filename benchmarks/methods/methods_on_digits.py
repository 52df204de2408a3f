"""Every method on one small federation, three seeds: the table in docs/results/methods.md.

    python -m benchmarks.methods.methods_on_digits [--out DIR]

Runs the TOML that stands on the page.  What DIR holds already is not run again.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.methods.method_lines import PAGE
from coordinator.config import to_toml
from coordinator.record.units import human_bytes
from coordinator.results.figures.result import Result
from coordinator.results.report.run_files import read_run, write_run
from edge_sdk.methods.contract.registry import load_method, method_names
from edge_sdk.protocol.knowledge import ClassRows, Slot, Weights
from edge_sim.config import settings
from edge_sim.runs.runner import run

SEEDS = (0, 1, 2)
BEGIN, END = "<!-- methods: begin -->", "<!-- methods: end -->"
WITHOUT = ("fedalign",)
"""Methods that the page's model cannot run: it has no width switch."""
SETTINGS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("fedavg", {"cached": True}),
    ("fedhkd", {"share_weights": False}),
    ("fedhkd", {"noise_features": 20.0, "noise_soft": 20.0, "noise_counts": 20.0}),
    ("fedmd", {"form": "digest"}),
    ("fednh", {"update": "paper"}),
    ("fednh", {"share_body": False}),
    ("fedbabu", {"tune_rate": 0.01}),
    ("fedssa", {"fusion": "literal"}),
    ("fedssa", {"cached": True}),
    ("fedssa", {"mu0": 0.0, "takes": "all", "down": "all"}),
    ("fedssa", {"mu0": 0.0, "takes": "seen"}),
)
"""Rows of methods with other settings; every method also has a row with its defaults."""


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs") / "methods-on-digits")
    out = parser.parse_args().out
    page = PAGE.read_text(encoding="utf-8")
    toml = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    if toml is None:
        raise SystemExit(f"{PAGE}: holds no TOML to run")
    out.mkdir(parents=True, exist_ok=True)
    file = out / "methods.toml"
    file.write_text(toml.group(1), encoding="utf-8")
    rows = [(name, {}) for name in method_names() if name not in WITHOUT] + list(SETTINGS)
    cells = sorted((_row(name, params, file) for name, params in rows), key=lambda row: -float(row[2].split()[0]))
    block = f"{BEGIN}\n{_table(cells)}\n{END}"
    written = re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, page, flags=re.DOTALL)
    PAGE.write_text(written, encoding="utf-8")


def _row(name: str, params: Mapping[str, Any], file: Path) -> list[str]:
    results = [_result(name, params, seed, file) for seed in SEEDS]
    means, owns, worst = (
        [100 * figure(result) for result in results] for figure in (_mean, _own, lambda each: min(_accuracies(each)))
    )
    settings = ", ".join(f"`{key} = {_toml(value)}`" for key, value in params.items())
    up, down = (statistics.mean(_bytes(each, way) for each in results) for way in ("bytes_up", "bytes_down"))
    rows = load_method(name).under(params).exchanges
    return [
        f"{name}{settings and ', '}{settings}",
        _spread([_gm(result) for result in results]),
        f"{statistics.mean(means):.1f} ± {statistics.stdev(means):.1f}",
        *(_spread([_metric(result, name) for result in results]) for name in ("pm_v", "pm_l")),
        f"{statistics.mean(owns):.1f}",
        f"{statistics.mean(worst):.1f} ± {statistics.stdev(worst):.1f}",
        human_bytes(round(up)),
        human_bytes(round(down)),
        _shared([slot for row in rows for slot in row.up.values()]),
    ]


def _shared(up: list[Slot]) -> str:
    """Describe the weights that a device uploads."""
    weights = [slot for slot in up if slot.kind is Weights]
    if weights:
        return "body" if all(slot.without_head for slot in weights) else "yes"
    return "last layer" if any(slot.kind is ClassRows and slot.extra_columns for slot in up) else "no"


def _result(name: str, params: Mapping[str, Any], seed: int, file: Path) -> Result:
    label = "-".join([name, *(f"{key}-{value}" for key, value in params.items()), str(seed)])
    folder = file.parent / label
    if not (folder / "summary.json").exists():
        overrides = [f"federation.method={name}", f"federation.seed={seed}", "run.standalone=false"]
        overrides += [f"method.{key}={_toml(value)}" for key, value in params.items()]
        config = settings.load_config(file, overrides)
        print(label, flush=True)
        write_run(run(config), to_toml(config.tables), folder)
    return read_run(folder)


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else f"{value:g}"


def _accuracies(result: Result) -> list[float]:
    return [device.accuracy for device in result.devices if device.accuracy is not None]


def _mean(result: Result) -> float:
    return statistics.mean(_accuracies(result))


def _gm(result: Result) -> float | None:
    """The mean accuracy of the global model, or None for a method without one."""
    return _metric(result, "global_accuracy")


def _metric(result: Result, name: str) -> float | None:
    return result.metrics.get(f"{name}_mean")


def _spread(values: list[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    return f"{statistics.mean(known):.1f} ± {statistics.stdev(known):.1f}" if known else ""


def _own(result: Result) -> float:
    return statistics.mean(d.metrics["local_accuracy"] for d in result.devices if "local_accuracy" in d.metrics)


def _bytes(result: Result, way: str) -> float:
    return sum(getattr(device, way) for device in result.devices) / len(result.devices) / result.rounds


def _table(rows: list[list[str]]) -> str:
    head = ["method", "GM", "PM", "PM(V)", "PM(L)", "own", "worst device", "up / device-round", "down / device-round"]
    head.append("shares weights")
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


if __name__ == "__main__":
    main()
