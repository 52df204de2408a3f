"""Measures what docs/results/simulation.md says, and writes that page: no figure in it is typed by hand.

    python -m benchmarks.simulation.measure SECTION...     measure some sections (default: all), then write the page
    python -m benchmarks.simulation.measure --page         only write the page

Each figure of ours is a ratio to the bare sequential loop (bare.py), which runs right before it, in a process of its
own; medians over several such pairs.  EDGE_REPEATS (default 3) says how many; EDGE_CASES, such as
fedproto-mlp-100,fedavg-cnn-20, which cases (default: all); EDGE_MNIST names an npz of MNIST, without which the section
`scale` cannot be measured.  Without a GPU the section `gpu` says that it was not measured.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from task import Timing

from benchmarks.common.figures import Found, Page, Table
from benchmarks.simulation.progress import progress
from edge_sdk.models.torch_nets.torch_device import device_name

IN_PROCESSES = ("shards",)
"""Runs in several processes, of which this one's computing time says little."""
REPEATS = int(os.environ.get("EDGE_REPEATS", "3"))
CASES = os.environ.get("EDGE_CASES", "")
MNIST = os.environ.get("EDGE_MNIST", "")
GPU = "cuda:0"
GOALS = {
    ("fedproto", "mlp", 20): 0.4,
    ("fedproto", "mlp", 100): 0.45,
    ("fedssa", "mlp", 20): 0.4,
    ("fedssa", "mlp", 100): 0.45,
    ("fedproto", "cnn", 20): 0.5,
    ("fedproto", "cnn", 100): 0.5,
    ("fedproto", "mixed", 20): 0.5,
    ("fedproto", "mixed", 100): 0.5,
    ("fedavg", "mlp", 20): 0.7,
    ("fedavg", "mlp", 100): 0.8,
    ("fedavg", "cnn", 20): 0.5,
    ("fedavg", "cnn", 100): 0.5,
}
"""Goals: the largest ratio to the bare loop's time, by case: method, fleet, devices."""
DENSE = {case: goal for case, goal in GOALS.items() if case[1] == "mlp"}
ALONE = {("fedproto", "mlp", count): 0.9 for count in (20, 100)}
"""Goals of one process with the bits of autograd."""


EVALUATED = (
    ("fedproto", "mlp", "cohort", 20),
    ("fedproto", "mlp", "cohort", 100),
    ("fedproto", "mlp", "exact", 20),
    ("fedavg", "mlp", "cohort", 20),
    ("fedavg", "mlp", "cohort", 100),
    ("fedproto", "cnn", "shards", 20),
)
"""The cases of the section `evaluated`: method, fleet, engine, devices."""
EVALUATED_GOAL = 1.3


def timed(
    script: str, *arguments: str, device: str = "cpu", every: int = 10**6, rounds: int = 11, stacked: bool = True
) -> Timing:
    """Time one run in a process of its own."""
    return Timing(**output(script, *arguments, device=device, every=every, rounds=rounds, stacked=stacked))


def output(
    script: str, *arguments: str, device: str = "cpu", every: int = 10**6, rounds: int = 11, stacked: bool = True
) -> Any:
    """Run a script in a process of its own and return the JSON value that it prints."""
    told = {"EDGE_DEVICE": device, "EDGE_EVERY": str(every), "EDGE_ROUNDS": str(rounds)}
    if not stacked:
        told["EDGE_STACKED"] = "off"
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        cwd=HERE,
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{script} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def ratios(engine: str, goals: Mapping[tuple[str, str, int], float] = GOALS, *, stacked: bool = True) -> Found:
    """Each case of some goals on one engine, against the bare loop.

    stacked: whether dense nets are stacked, where the engine can; else results have the bits of `exact`.
    """
    head = ["method", "fleet", "devices", "bare loop, ms", "ours, ms", "ours / bare (each pair)", "goal"]
    more = [] if engine in IN_PROCESSES else ["of computing time"]
    rows: Table = [[*head, *more, "first round done after, s (bare)", "peak, MiB (bare)"]]
    for (method, fleet, devices), goal in goals.items():
        if CASES and f"{method}-{fleet}-{devices}" not in CASES.split(","):
            continue
        bare, ours = [], []
        for _ in range(REPEATS):
            bare.append(timed("bare.py", method, fleet, str(devices)))
            ours.append(timed("ours.py", method, fleet, str(devices), engine, stacked=stacked))
        shares = [a.ms_per_device_round / b.ms_per_device_round for a, b in zip(ours, bare, strict=True)]
        figures = [median([each.ms_per_device_round for each in side]) for side in (bare, ours)]
        starts = [median([each.first_round_s for each in side]) for side in (ours, bare)]
        peaks = [median([each.peak_mib for each in side]) for side in (ours, bare)]
        spread = ", ".join(f"{share:.2f}" for share in sorted(shares))
        rows.append(
            [
                method,
                fleet,
                str(devices),
                *(f"{figure:.2f}" for figure in figures),
                f"**{median(shares):.2f}** ({spread})",
                f"{goal:g}" + (" met" if median(shares) <= goal and not busy() else ""),
                *([] if engine in IN_PROCESSES else [_computing(ours, bare)]),
                f"{starts[0]:.1f} ({starts[1]:.1f})",
                f"{peaks[0]:,.0f} ({peaks[1]:,.0f})",
            ]
        )
        print(rows[-1], flush=True)
    return Found(rows, [HOW, load()])


def _computing(ours: Sequence[Timing], bare: Sequence[Timing]) -> str:
    shares = [a.cpu_ms_per_device_round / b.cpu_ms_per_device_round for a, b in zip(ours, bare, strict=True)]
    return f"{median(shares):.2f}"


def busy() -> bool:
    """Whether others want the machine, too: our own processes are at most as many as its cores."""
    return os.getloadavg()[1] > 1.25 * (os.cpu_count() or 1)


def load() -> str:
    """How busy the machine was, in words."""
    five, cores = os.getloadavg()[1], os.cpu_count()
    if busy():
        return (
            f"The machine was shared: {five:.0f} processes wanted its {cores} cores over the last five minutes. Its "
            "wall times are not reliable, and no goal counts as met. Both sides lost about the same computing time."
        )
    return f"Load of the machine over five minutes when this section ended, our own processes included: {five:.1f}."


HOW = (
    "Milliseconds per device and round, median over rounds 2 to 10, in which no model is evaluated: "
    "`train.evaluate_every` is 10^6 instead of its default 1 (see *Every round evaluated*). Ours is a whole "
    "simulated federation: sessions, rounds, every frame through the codec, the ledger in memory. "
    "The bare loop shares objects and encodes nothing. "
    "`Of computing time`: the same ratio for the processes' own computing time, which other work on the machine "
    "disturbs less. Peak memory counts worker processes fully, including the pages that they share."
)


def evaluated() -> Found:
    """A round in which every device evaluates, as is the default, against one in which none does."""
    head = ["method", "fleet", "engine", "devices", "without, ms", "evaluated, ms", "ratio (each pair)", "goal"]
    rows: Table = [[*head, "of computing time", "passes alone, ms", "floor of that"]]
    for method, fleet, engine, devices in EVALUATED:
        if CASES and f"{method}-{fleet}-{devices}" not in CASES.split(","):
            continue
        case = "ours.py", method, fleet, str(devices), engine
        triples = [
            (timed(*case), timed(*case, every=1), timed("passes.py", fleet, str(devices))) for _ in range(REPEATS)
        ]
        shares = [b.ms_per_device_round / a.ms_per_device_round for a, b, _ in triples]
        without, measured, passes = ([_both_ms(each) for each in side] for side in zip(*triples, strict=True))
        computing = [b / a for a, b in zip(without, measured, strict=True)]
        floors = [(a + b) / a for a, b in zip(without, passes, strict=True)]
        figures = [median([each.ms_per_device_round for each in side]) for side in list(zip(*triples, strict=True))[:2]]
        spread = ", ".join(f"{share:.2f}" for share in sorted(shares))
        met = " met" if median(shares) <= EVALUATED_GOAL and not busy() else ""
        rows.append(
            [
                *(method, fleet, engine, str(devices)),
                *(f"{figure:.2f}" for figure in figures),
                *(f"**{median(shares):.2f}** ({spread})", f"{EVALUATED_GOAL:g}{met}", f"{median(computing):.2f}"),
                *(f"{median(passes):.2f}", f"{median(floors):.2f}"),
            ]
        )
        print(rows[-1], flush=True)
    return Found(rows, [HOW_EVALUATED, load()])


def _both_ms(found: Timing) -> float:
    """Computing time a device and round, of this process and the one beside it."""
    return found.cpu_ms_per_device_round + found.child_cpu_ms_per_device_round


HOW_EVALUATED = (
    "Milliseconds per device and round as above; `evaluated` with the default `train.evaluate_every = 1`. The test set "
    "has 359 samples. One of 20 devices has some 72 samples to train on, one of 100 some 14, so an evaluation passes "
    "more samples through the net than the training does. FedAvg evaluates twice: the global model, which all share, "
    "and the personal one. `Of computing time`: the same ratio for the computing time of all processes. `Passes "
    "alone`: computing time of the test set's passes in a bare loop (`passes.py`). `Floor of that`: the ratio of "
    "computing time with these passes alone, without metrics and records."
)


def computing() -> Found:
    """Computing time of a device's round on each engine: what two cores would need if no process ever waited."""
    head = ["method", "fleet", "devices", "engine", "this process, ms", "slowest other, ms", "on two free cores, ms"]
    rows: Table = [[*head, "of `exact` (each time)"]]
    for method, fleet, devices in COMPUTED:
        if CASES and f"{method}-{fleet}-{devices}" not in CASES.split(","):
            continue
        found: dict[str, list[Timing]] = {engine: [] for engine in ENGINES}
        for _ in range(REPEATS):
            for engine, timings in found.items():
                timings.append(timed("ours.py", method, fleet, str(devices), engine))
        alone = [each.cpu_ms_per_device_round for each in found["exact"]]
        for engine, timings in found.items():
            own = [each.cpu_ms_per_device_round for each in timings]
            child = [each.child_cpu_ms_per_device_round for each in timings]
            together = max if engine == "shards" else sum
            least = [together(each) for each in zip(own, child, strict=True)]
            shares = sorted(one / other for one, other in zip(least, alone, strict=True))
            rows.append(
                [
                    *(method, fleet, str(devices), engine),
                    *(f"{median(each):.2f}" for each in (own, child, least)),
                    f"**{median(shares):.2f}** ({', '.join(f'{share:.2f}' for share in shares)})",
                ]
            )
            print(rows[-1], flush=True)
    return Found(rows, [HOW_COMPUTING, load()])


ENGINES = ("exact", "shards", "cohort")
COMPUTED = tuple(
    (method, fleet, devices)
    for method, fleet in (("fedproto", "mlp"), ("fedavg", "mlp"), ("fedavg", "cnn"))
    for devices in (20, 100)
)
"""The cases of the section `computing`: method, fleet, devices."""
HOW_COMPUTING = (
    "Milliseconds of computing time per device and round, rounds as above: of the process with the coordinator, and of "
    "the shard beside the coordinator's own. The coordinator computes its own shard at the same time as the other. So "
    "a round on two free cores takes about the larger of both. With EDGE_STACKED=off nothing is stacked; otherwise "
    "dense nets are stacked, except in `exact`."
)


def parts() -> Found:
    """Where the computing time of a device's round goes, in one process."""
    columns: list[dict[str, float]] = []
    for method, fleet, devices in COMPUTED_BY_PART:
        runs: list[dict[str, float]] = [output("parts.py", method, fleet, str(devices)) for _ in range(REPEATS)]
        names = {name for run in runs for name in run}
        columns.append({name: sum(run.get(name, 0.0) for run in runs) / REPEATS for name in names})
    shown = sorted({part for each in columns for part in each}, key=lambda part: -columns[0].get(part, 0.0))
    rows: Table = [["part", *(f"{method} {fleet} {devices}, ms" for method, fleet, devices in COMPUTED_BY_PART)]]
    rows += [[f"`{part}`", *(f"{each.get(part, 0.0):.3f}" for each in columns)] for part in shown]
    rows.append(["all", *(f"**{sum(each.values()):.3f}**" for each in columns)])
    return Found(rows, [HOW_PARTS, load()])


COMPUTED_BY_PART = (("fedproto", "mlp", 100), ("fedavg", "mlp", 100), ("fedproto", "cnn", 20))
"""The cases of the section `parts`: method, fleet, devices."""
HOW_PARTS = (
    "Milliseconds of computing time per device and round, rounds 4 to 9, engine `exact`. A sample each millisecond "
    "counts for our innermost function, with the libraries that it calls, and so for the room that contains the "
    "function. `edge_sdk/models` is the training itself, with torch."
)


def scale() -> Found:
    """1,000 devices against 100, 60 samples of MNIST each: time and memory per device."""
    if not MNIST:
        raise SystemExit("EDGE_MNIST: name an npz of MNIST")
    rows: Table = [
        ["method", "engine", "100 devices, ms", "1,000 devices, ms", "ratio", "goal", "MiB per added device"]
    ]
    for method, engine in (("fedproto", "cohort"), ("fedavg", "cohort")):
        few, many = (
            [timed("ours.py", method, "mlp", n, engine, MNIST) for _ in range(REPEATS)] for n in ("100", "1000")
        )
        shares = [b.ms_per_device_round / a.ms_per_device_round for a, b in zip(few, many, strict=True)]
        figures = [median([each.ms_per_device_round for each in side]) for side in (few, many)]
        added = (median([each.peak_mib for each in many]) - median([each.peak_mib for each in few])) / 900
        rows.append(
            [method, engine, *(f"{figure:.2f}" for figure in figures), f"{median(shares):.2f}", "1.05", f"{added:.2f}"]
        )
        print(rows[-1], flush=True)
    return Found(rows, ["The MLP has 269,322 parameters, 1.03 MiB; the goal for memory is that and 1.2 MiB.", load()])


def memory() -> Found:
    """Peak memory of 2,000 devices against 100; the samples are drawn, as MNIST has too few."""
    rows: Table = [
        ["method", "engine", "100 devices, MiB", "2,000 devices, MiB", "goal", "MiB per added device", "goal"]
    ]
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        parts = {"train": 60 * 2000, "test": 1000}
        arrays = {f"x_{part}": draw.integers(0, 256, (n, 28, 28), np.uint8) for part, n in parts.items()}
        arrays |= {f"y_{part}": draw.integers(0, 10, n) for part, n in parts.items()}
        np.savez(f"{folder}/drawn.npz", **arrays)
        for method, goal in (("fedproto", ""), ("fedavg", "8,192")):
            few, many = (
                timed("ours.py", method, "mlp", n, "cohort", f"{folder}/drawn.npz", rounds=4).peak_mib
                for n in ("100", "2000")
            )
            added = (many - few) / 1900
            rows.append([method, "cohort", f"{few:,.0f}", f"{many:,.0f}", goal, f"{added:.2f}", "2.23"])
            print(rows[-1], flush=True)
    return Found(rows, ["The MLP has 1.03 MiB of parameters; the goal for an added device is that and 1.2 MiB."])


def stub() -> Found:
    """Rounds of very many devices whose model is nothing: what a message costs the coordinator."""
    rows: Table = [["engine", "devices", "ms per device and round", "goal", "peak, MiB"]]
    for engine, devices in product(("exact", "shards"), (100, 1000, 10_000)):
        found = timed("stub_fleet.py", str(devices), engine)
        told = f"{found.ms_per_device_round:.3f}", "0.2", f"{found.peak_mib:,.0f}"
        rows.append([engine, f"{devices:,}", *told])
        print(rows[-1], flush=True)
    return Found(rows, ["FedProto with a model that answers at once; both sides of every frame.", load()])


def gpu() -> Found:
    """100 small CNNs on a GPU: stacked, one by one in the simulator, and in the bare loop."""
    if not torch.cuda.is_available():
        return Found([["not measured: this machine has no GPU that torch can use"]])
    rows: Table = [["method", "fleet", "devices", "bare loop, ms", "engine", "ours, ms", "ours / bare (each pair)"]]
    for method, engine in product(("fedproto", "fedavg"), ("exact", "cohort")):
        bare, ours = [], []
        for _ in range(REPEATS):
            bare.append(timed("bare.py", method, "cnn", "100", device=GPU))
            ours.append(timed("ours.py", method, "cnn", "100", engine, device=GPU))
        shares = [a.ms_per_device_round / b.ms_per_device_round for a, b in zip(ours, bare, strict=True)]
        figures = [f"{median([each.ms_per_device_round for each in side]):.2f}" for side in (bare, ours)]
        spread = ", ".join(f"{share:.2f}" for share in sorted(shares))
        rows.append([method, "cnn", "100", figures[0], engine, figures[1], f"**{median(shares):.2f}** ({spread})"])
        print(rows[-1], flush=True)
    return Found(rows, [f"On {device_name(GPU)}, both sides in full f4, by cuDNN's repeatable algorithms.", load()])


SECTIONS = {
    "exact": ("One process, the bits of autograd", lambda: ratios("exact", ALONE, stacked=False)),
    "cohort": ("One process, dense nets stacked", lambda: ratios("cohort", DENSE)),
    "shards": ("Whole devices in two processes, with the bits of `exact`", lambda: ratios("shards", stacked=False)),
    "shards-stacked": ("Whole devices in two processes, dense nets stacked", lambda: ratios("shards", DENSE)),
    "computing": ("Computing time of each engine", computing),
    "parts": ("A device's round by part", parts),
    "evaluated": ("Every round evaluated", evaluated),
    "scale": ("1,000 devices", scale),
    "memory": ("Memory of 2,000 devices", memory),
    "stub": ("10,000 devices", stub),
    "gpu": ("On a GPU", gpu),
    "progress": ("Before traced steps and shards, and now", lambda: progress(GOALS)),
}


if __name__ == "__main__":
    page = Page("simulation", "The simulator: measured", SECTIONS, "benchmarks.simulation.measure")
    page.main(__doc__ or "")
