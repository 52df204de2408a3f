"""Compares the gradients of random graphs with torch's autograd; writes docs/results/random-graphs.md.

    python -m benchmarks.on_device.random_graphs [--graphs 20000] [--seed 0] [--processes 1]
    python -m benchmarks.on_device.random_graphs --again      the page's graphs above 1e-5, in double precision, too

Each graph has two to six operators of tests/models/drawn_graphs.py.  ONNX Runtime, numpy and torch compute its
gradients, torch in double precision, too.  A graph counts where torch's own single precision is within 1e-5 of it,
and where no number lies so near to a kink that rounding decides.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edge_sdk.errors import EdgeError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "random-graphs.md"
TOLERANCE = 1e-5
"""Relative to the largest slope of a graph."""
HISTORY = "## What was run\n"
TEXT = """# Gradients of random graphs, beside torch's

Written by `python -m benchmarks.on_device.random_graphs --graphs {graphs}` on {date}; the table is not typed by hand.
{counted} of {drawn} drawn graphs count. Each has two to six of {operators} kinds of operators
(`tests/models/drawn_graphs.py`). In the graphs that count, torch's own single precision is within 1e-5 of double
precision, and no number is so near to a kink that rounding decides. A difference is the largest one of a slope, as a
share of the largest slope.

| engine | graphs above 1e-5 | largest difference | torch's own there | did not run |
|---|---:|---:|---:|---:|
{rows}

The goal is 20,000 graphs with none above 1e-5. {told}
"""


@dataclass
class Tally:
    """What some graphs gave."""

    counted: int = 0
    drawn: int = 0
    above: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    worst: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By engine: the largest difference, and torch's own of that graph."""
    lines: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take in what another process found."""
        self.counted, self.drawn = self.counted + other.counted, self.drawn + other.drawn
        self.above.update(other.above)
        self.failed.update(other.failed)
        self.lines += other.lines
        for engine, found in other.worst.items():
            self.worst[engine] = max(self.worst.get(engine, (0.0, 0.0)), found)


def tried(names: Sequence[str], seed: int, into: Tally) -> None:
    """Draw a graph of these operators, and note what both engines give."""
    drawn_graphs, compared_graphs = _tools()
    into.drawn += 1
    try:
        found = compared_graphs.compared(drawn_graphs.drawn(names, seed), seed)
    except EdgeError as error:
        into.failed[str(error).partition(":")[0]] += 1
        into.lines.append(f"{list(names)} seed {seed}: {error}")
        return
    into.counted += found is not None
    for each in found or ():
        into.worst[each.engine] = max(into.worst.get(each.engine, (0.0, 0.0)), (each.slope, each.own))
        if not (each.slope < TOLERANCE and each.output < 1):
            into.above[each.engine] += 1
            into.lines.append(f"{list(names)} seed {seed}: {each}")


def tally(wanted: int, seed: int, at: int) -> Tally:
    """Compare graphs until so many count; at: of the process."""
    torch, operators = importlib.import_module("torch"), sorted(_tools()[0].OPERATORS)
    torch.set_num_threads(1)
    rng, found = random.Random(f"{seed}/{at}"), Tally()
    while found.counted < wanted:
        tried([rng.choice(operators) for _ in range(rng.randint(2, 6))], rng.getrandbits(32), found)
        if not found.drawn % 1000:
            sys.stdout.write(f"process {at}: {found.counted} of {wanted}, above: {dict(found.above)}\n")
            sys.stdout.flush()
    return found


def again() -> None:
    """Say how far the graphs that the page lists are, in single precision and in double."""
    drawn_graphs, compared_graphs = _tools()
    listed = re.findall(r"`(\[.*?\]) seed (\d+)", PAGE.read_text(encoding="utf-8"))
    for text, number in dict.fromkeys(listed):
        names, seed = ast.literal_eval(text), int(number)
        single = {
            each.engine: f"{each.slope:.1e}" for each in compared_graphs.compared(drawn_graphs.drawn(names, seed), seed)
        }
        double = compared_graphs.away_in_double(drawn_graphs.drawn(names, seed), seed)
        sys.stdout.write(f"{seed}: {single}, in double precision {double:.1e}\n")


def _tools() -> tuple[Any, Any]:
    """Return the tests' modules that draw graphs, and compare them."""
    for folder in (str(ROOT / "tests"), str(ROOT / "tests" / "models")):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    return importlib.import_module("drawn_graphs"), importlib.import_module("compared_graphs")


def main() -> None:
    """Compare, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="only the graphs that the page lists; write nothing")
    args = parser.parse_args()
    if args.again:
        again()
        return
    total = Tally()
    with ProcessPoolExecutor(args.processes) as pool:
        for each in pool.map(partial(tally, -(-args.graphs // args.processes), args.seed), range(args.processes)):
            total.add(each)
    sys.stdout.write("\n".join([*total.lines, ""]))
    kinds = len(_tools()[0].OPERATORS)
    rows = [
        f"| {engine} | {total.above[engine]} | {worst:.1e} | {own:.1e} | {sum(total.failed.values())} |"
        for engine, (worst, own) in sorted(total.worst.items())
    ]
    told = "\n".join(
        ["Those above, with the seed that draws them again:", "", *(f"- `{line}`" for line in total.lines)]
    )
    history = PAGE.read_text(encoding="utf-8").partition(HISTORY)[2]  # is written by hand
    PAGE.write_text(
        TEXT.format(graphs=args.graphs, date=time.strftime("%Y-%m-%d"), counted=f"{total.counted:,}",
                    drawn=f"{total.drawn:,}", operators=kinds, rows="\n".join(rows), told=told if total.lines else "")
        + (f"\n{HISTORY}{history}" if history else ""),
        encoding="utf-8",
    )  # fmt: skip


if __name__ == "__main__":
    main()
