"""Measures what docs/results/fleet.md says, and writes that page: no figure in it is typed by hand.

    python -m benchmarks.simulation.fleet SECTION...     measure some sections (default: all), then write the page
    python -m benchmarks.simulation.fleet --page         only write the page

Runs are left in EDGE_RUNS (default: runs/fleet), and finished ones are not run again.  EDGE_MNIST names an npz of
MNIST, without which the sections `testbed` and `thousand` cannot be measured.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.figures import Found, Page, Table

ROOT = Path(__file__).parents[2]
RUNS = Path(os.environ.get("EDGE_RUNS", "runs/fleet")).absolute()
MNIST = os.environ.get("EDGE_MNIST", "")
ROUNDS, SAMPLES = 60, 11_000
"""Rounds and samples of the test bed: a third of the paper's rounds, for two cores."""
Summary = Mapping[str, Any]

ESTIMATES = (
    "These are simulated boards. Their speed, power and links are profiles, most of them "
    "[estimates](../reference/boards.md): compare the methods, but not the seconds with those of your board. One seed."
)


def testbed() -> Found:
    """Measure FedAL's figure 5 at the paper's three alphas."""
    rows: Table = [["alpha", *COLUMNS, "until 80 %", "until 90 %"]]
    for alpha in ("5", "2", "1"):
        command = ["benchmarks/papers/fedal_pi.py", "--data", _mnist(), "--rounds", str(ROUNDS), "--alphas", alpha]
        _python(*command, "--set", f"data.train_samples={SAMPLES}", "--out", str(RUNS / "fedal-pi"))
        for name, told in _compared(RUNS / "fedal-pi" / f"alpha-{alpha}").items():
            rows.append([alpha, *_row(name, told), *(_until(told, target) for target in ("0.8", "0.9"))])
    how = (
        f"Ten Raspberry Pi 4 on Wi-Fi, LeNet-5, the paper's hyper-parameters, {SAMPLES:,} samples of MNIST of which "
        f"1,000 are public, tested on 1,000 (`benchmarks/papers/fedal-pi.toml`). FedAL and FedAvg run for {ROUNDS} "
        f"rounds of 5 local steps, FedMD and FedProto for {5 * ROUNDS} of one. `python benchmarks/papers/fedal_pi.py "
        f"--data mnist.npz --rounds {ROUNDS} --set data.train_samples={SAMPLES}` makes the same runs, and the pictures."
    )
    return Found(rows, [how, ESTIMATES])


def hundred() -> Found:
    """Run the fleet of examples/fleet under three methods."""
    _edge("compare", "examples/fleet/fleet.toml", "--methods", "fedssa,fedal,fedavg", "--out", str(RUNS / "hundred"))
    rows: Table = [[*COLUMNS, "waited longest for"]]
    rows += [[*_row(name, told), _waited_for(told)] for name, told in _compared(RUNS / "hundred").items()]
    how = (
        "`edge-sdk compare examples/fleet/fleet.toml --methods fedssa,fedal,fedavg`: Raspberry Pi 4, Zero 2 W at night "
        "only, Jetson Nano on LTE that drop out, Orin Nano, some of them busy; 11 digits each, 40 answers a round. "
        "`each alone` has no faults at all."
    )
    return Found(rows, [how, ESTIMATES])


def thousand() -> Found:
    """Run a thousand devices, a hundred of them in each round."""
    _edge(
        "simulate",
        str(_written("thousand.toml", THOUSAND.format(mnist=_mnist()))),
        *("--out", str(RUNS / "thousand"), "--stack"),
    )
    told = _summary(RUNS / "thousand")
    rows: Table = [
        ["devices", "rounds", "uploads", "virtual time", "wall clock", "peak memory"],
        [
            "1,000, 100 a round",
            str(told["rounds_done"]),
            f"{told['updates']['accepted']:,}",
            _time(told["time"]["virtual_s"]),
            f"{told['time']['wall_s']:.1f} s",
            f"{told['memory']['peak_mib']:,.0f} MiB",
        ],
    ]
    how = (
        "FedProto, a dense net (`mlp-wide`) on each device, 60 samples of MNIST each, Wi-Fi, drop-out and power "
        "cuts, over-selection; building the fleet and the last evaluation of all devices included. "
        f"Load of the machine over five minutes: {os.getloadavg()[1]:.1f}."
    )
    return Found(rows, [how])


def repeated() -> Found:
    """Run the same file in several ways and again, and compare hashes of the results."""
    rows: Table = [["run", "accuracies and bytes of all devices", "the coordinator's state"]]
    toml = _written("repeated.toml", REPEATED)
    ways = {"one process": (), "again": (), "two processes": ("--processes", "2")}
    ways["on Ray"] = ("--processes", "2", "--set", "run.cluster=local")
    for at, (way, options) in enumerate(ways.items()):
        out = RUNS / f"repeated-{at}"
        _edge("simulate", str(toml), "--out", str(out), *options, "--trace")
        replayed = json.loads(_edge("replay", str(out / "trace.edgt"), "--json"))
        rows.append([way, _hash(_summary(out)), replayed["state_sha256"][:16]])
    how = (
        "Thirty mixed boards with drop-out, power cuts and lost frames under FedSSA, ten rounds (SHA-256, the first 16 "
        "digits)."
    )
    return Found(rows, [how])


COLUMNS = ["method", "mean accuracy", "worst tenth", "sent and received by a device", "virtual time", "drawn by all"]


def _row(name: str, told: Summary) -> list[str]:
    accuracy, devices = told["accuracy"], told["devices"]
    moved_bytes = (told["bytes"]["up_total"] + told["bytes"]["down_total"]) / devices
    return [
        name,
        f"{accuracy['mean']:.1%}",
        f"{accuracy['worst']:.1%}",
        f"{moved_bytes / 1e6:.2f} MB",
        _time(told["time"]["virtual_s"]),
        f"{told['work']['device_j_total'] / 1000:.1f} kJ",
    ]


def _until(told: Summary, target: str) -> str:
    reached = told["to_target"].get(target)
    return _time(reached["time_s"]) if reached else "-"


def _waited_for(told: Summary) -> str:
    slowest = max(told["per_device"], key=lambda device: device.get("waited_s", 0.0))
    waited_s = slowest.get("waited_s", 0.0)
    return f"{slowest['id']}, {slowest['board']} on {slowest['link']}: {_time(waited_s)}" if waited_s else "nobody"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _compared(folder: Path) -> dict[str, Summary]:
    """Return the single run of each method of a comparison."""
    methods = json.loads((folder / "compare.json").read_text())["methods"]
    return {each["method"]: _summary(folder / each["runs"][0]["folder"]) for each in methods}


def _summary(folder: Path) -> Summary:
    found: Summary = json.loads((folder / "summary.json").read_text())
    return found


def _hash(told: Summary) -> str:
    """Return a hash of the part of a summary that does not depend on this machine."""
    kept = [told["accuracy"], told["bytes"], told["updates"], told["per_device"]]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def _mnist() -> str:
    if not MNIST:
        raise SystemExit("EDGE_MNIST: name an npz of MNIST")
    return str(Path(MNIST).absolute())


def _written(name: str, text: str) -> Path:
    RUNS.mkdir(parents=True, exist_ok=True)
    (RUNS / name).write_text(text)
    return RUNS / name


def _edge(command: str, file: str, *options: str) -> str:
    """Run a command of edge-sdk, unless its run is finished."""
    out = Path(options[options.index("--out") + 1]) if "--out" in options else None
    if out and any((out / name).exists() for name in ("summary.json", "compare.json")):
        return ""
    return _python("-m", "edge_sdk.cli", command, file, *options)


def _python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


THOUSAND = """\
[federation]
name = "thousand"
method = "fedproto"
rounds = 20
devices = 1000
participants = 100
over_selection = true
deadline_s = 60
feature_dim = 128

[train]
optimiser = "sgd"
learning_rate = 0.05
batch_size = 32
local_epochs = 1
evaluate_every = 10

[data]
source = "npz"
path = "{mnist}"
train_samples = 60000
test_samples = 1000
public = 0

[partition]
kind = "iid"

[[fleet]]
count = 1000
model = "mlp-wide"
board = "rpi4"
link = "wifi"
dropout = 0.05
power_cuts_per_day = 2

[run]
standalone = false
"""
REPEATED = """\
[federation]
name = "repeated"
method = "fedssa"
rounds = 10
devices = 30
feature_dim = 64
participants = 20
over_selection = true
quorum = 10
deadline_s = 60

[data]
source = "digits"

[partition]
kind = "dirichlet"
alpha = 0.5

[[fleet]]
count = 20
model = "cycle:mlp,cnn"
board = "rpi4"
link = "wifi"
dropout = 0.1
power_cuts_per_day = 400
power_cut_s = 20

[[fleet]]
count = 10
model = "cnn"
board = "jetson-nano"
link = "lte-cat1"

[faults]
drop = 0.02
duplicate = 0.05

[run]
standalone = false
"""

SECTIONS = {
    "testbed": ("FedAL's test bed", testbed),
    "hundred": ("A hundred mixed boards", hundred),
    "thousand": ("A thousand devices", thousand),
    "repeated": ("Again, and in other ways", repeated),
}


def main() -> None:
    """Measure the sections that the command line names, and write the page."""
    Page("fleet", "Fleets in virtual time", SECTIONS, "benchmarks.simulation.fleet").main(__doc__ or "")


if __name__ == "__main__":
    main()
