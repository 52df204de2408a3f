"""Whether a change of the code changed results: a set of small runs, each as one line of digests.

    python benchmarks/same_results.py write before.json     # on the code before the change
    python benchmarks/same_results.py compare before.json   # on the code after it; exit code 1 where anything differs

The set: every method on the virtual clock with the exact engine; every method again with lost, doubled and delayed
frames, power cuts and drop-out; and some methods over a real broker (`--broker`), of which the accuracies are
compared.  A digest covers summary.json, rounds.csv and devices.csv without what depends on this machine.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from edge_sdk.cli import main as edge_sdk

# fmt: off
METHODS = (
    "local", "fedmd", "fedmd_lf", "fedal", "feddf", "feddf_al", "fedproto", "fedssa", "fedhkd", "fedkf", "fednh",
    "fedavg", "fedprox", "fedper", "fedbabu", "fedrep", "ditto", "fedgkd", "qffl", "moon", "fedclassavg", "fedgen",
    "fedrod", "fd", "lg_fedavg", "fml", "creff", "fedkd", "fedalign",
    "fedgh", "fedtgp", "fedcache", "fedl2g", "fedmrl",
)
# fmt: on
OVER_BROKER = ("fedmd", "fedal", "fedproto", "fedssa", "fedavg", "fml", "fedkd")
PARAMETERS = {
    "fedal": {"tau": 2, "max_devices": 10, "public_batch": 16},
    "feddf_al": {"tau": 2, "max_devices": 10, "public_batch": 16},
    "fedmd": {"public_batch": 16},
    "fedmd_lf": {"public_batch": 16},
    "fedssa": {"cached": True},
}
MACHINE = ("time", "versions", "memory", "out", "path", "card")
"""Keys of summary.json that depend on the machine, on where the run lies, or on its settings alone."""
LATER = ("declined", "silent", "joules_source", "not_served", "before_accuracy", "now_accuracy")
"""Keys and columns that were added after digests had been taken; in these runs they are empty or nought."""
MIXED = (
    "local",
    "fedmd",
    "fedmd_lf",
    "fedal",
    "fedproto",
    "fedssa",
    "fd",
    "lg_fedavg",
    "fedclassavg",
    "fedgh",
    "fedtgp",
    "fedcache",
)
"""Methods under which the devices of this fleet may have models of three architectures."""
MODELS = {"fedalign": "resnet"}
"""Models of methods that a cnn cannot take part in."""
FAULTS = """
[faults]
drop = 0.1
duplicate = 0.1
delay = 0.2
delay_s = 0.3
seed = 3
"""


def federation(method: str, folder: Path, *, faults: bool) -> Path:
    """A federation of six devices as a TOML file."""
    models = ("mlp", "cnn", "softmax") if method in MIXED else (MODELS.get(method, "cnn"),)
    rows = "".join(
        f'[[fleet]]\ncount = {6 // len(models)}\nmodel = "{model}"\nboard = "rpi4"\n'
        + ("power_cuts_per_day = 400\npower_cut_s = 20\n" if faults else "")
        for model in models
    )
    parameters = "".join(f"{key} = {json.dumps(value)}\n" for key, value in PARAMETERS.get(method, {}).items())
    path = folder / "federation.toml"
    path.write_text(
        f"""[federation]
name = "same"
method = "{method}"
rounds = 3
devices = 6
seed = 5
start = "own"
feature_dim = 64
deadline_s = 60
patience = 20
[method]
{parameters}
[train]
optimiser = "adam"
learning_rate = 3e-3
batch_size = 16
local_steps = 8
[data]
source = "digits"
public = 100
[partition]
kind = "dirichlet"
alpha = 0.5
min_samples = 6
{rows}[run]
standalone = false
{FAULTS if faults else ""}""",
        encoding="utf-8",
    )
    return path


def run(method: str, *, faults: bool = False, broker: str = "memory") -> dict[str, Any]:
    """One run: its exit code, its mean accuracy, and the digest of all that must stay."""
    with tempfile.TemporaryDirectory() as name:
        folder, said = Path(name), io.StringIO()
        file = federation(method, folder, faults=faults)
        with redirect_stdout(said), redirect_stderr(said):
            code = edge_sdk(["simulate", str(file), "--out", str(folder / "out"), "--broker", broker])
        out = folder / "out"
        if not (out / "summary.json").exists():
            return {"exit": code, "said": said.getvalue().strip().splitlines()[-1:]}
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        accuracies = {each["id"]: each.get("accuracy") for each in summary["per_device"]}
        if broker != "memory":
            return {"exit": code, "accuracies": accuracies}
        kept = {key: value for key, value in summary.items() if key not in MACHINE}
        kept["per_device"] = [{k: v for k, v in each.items() if k not in LATER} for each in kept["per_device"]]
        tables = {table: _table(out / table) for table in ("rounds.csv", "devices.csv")}
        return {
            "exit": code,
            "mean": summary["accuracy"].get("mean"),
            **{what: _digest(value) for what, value in (("summary", kept), *tables.items())},
        }


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return [{k: v for k, v in row.items() if not k.startswith("wall") and k not in LATER} for row in rows]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def results(names: list[str], broker: str) -> dict[str, dict[str, Any]]:
    """All runs of the set, by name."""
    found = {}
    for method in names:
        found[method] = run(method)
        found[f"{method} with faults"] = run(method, faults=True)
        if broker and method in OVER_BROKER:
            found[f"{method} over {broker}"] = run(method, broker=broker)
        print(method, json.dumps(found[method]), flush=True)
    return found


def main() -> int:
    """Write the digests of all runs, or compare them with those of a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--methods", type=lambda text: text.split(","), default=METHODS)
    parser.add_argument("--broker", default="", help="embedded, or mqtt://HOST:PORT: also runs over a broker")
    asked = parser.parse_args()
    found = results(list(asked.methods), asked.broker)
    if asked.what == "write":
        asked.file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return 0
    before = json.loads(asked.file.read_text(encoding="utf-8"))
    differ = [name for name, value in found.items() if before.get(name) != value]
    for name in differ:
        print(f"DIFFERS  {name}\n  before {before.get(name)}\n  now    {found[name]}")
    print(f"{len(found) - len(differ)} runs equal, {len(differ)} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
