"""How well virtual time predicts real time: a profile's seconds against those of this machine, for nets of no fit.

    OMP_NUM_THREADS=1 python -m benchmarks.simulation.virtual_time [--board x86] [--budget 1.0]

Each net's training step and inference pass, the shortest of many, through the code that runs on a device.  The nets
that `edge-sdk boards --measure` fits its figures to are others.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator

import numpy as np

from edge_sdk.boards.profiles import Board, Effort, load_board
from edge_sdk.data import Preprocess
from edge_sdk.device.training.meter import Meter
from edge_sdk.models.base import Batches
from edge_sdk.objectives import CrossEntropy, Optim
from edge_sdk.tools.measure.fit import Speed as Figures
from edge_sdk.tools.measure.fit import Timed, shortest_s, typical_factor
from edge_sim.models import families

NETS = (
    ("mlp", 8, 32),
    ("mlp-wide", 28, 32),
    ("cnn", 8, 32),
    ("cnn", 28, 32),
    ("cnn-wide", 28, 32),
    ("lenet5", 28, 32),
    ("lenet5", 28, 128),
    ("resnet", 28, 32),
    ("resnet8", 8, 32),
    ("wresnet-10-1", 28, 32),
    ("fednh-cnn", 28, 32),
    ("fedssa-cnn-1", 28, 32),
)
"""Family, side of a grey picture in pixels, batch."""


def main() -> None:
    """Print a table in Markdown, and by what factor predictions are off."""
    parser = argparse.ArgumentParser(description="virtual time against real time")
    parser.add_argument("--board", default="x86")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds for each figure")
    args = parser.parse_args()
    board = load_board(args.board)
    found = list(timed(args.budget))
    print("| net, picture, batch | | measured | predicted | ratio |\n|---|---|---|---|---|")
    for each in found:
        predicted_s = seconds(board, each)
        kind = "training" if each.training else "inference"
        cells = (each.what, kind, f"{1e3 * each.took_s:.2f} ms", f"{1e3 * predicted_s:.2f} ms")
        print("| " + " | ".join((*cells, f"{predicted_s / each.took_s:.2f}")) + " |")
    figures = Figures(**{name: getattr(board, name) for name in Figures.__slots__})
    for word, training in (("training", True), ("inference", False)):
        some = [each for each in found if each.training is training]
        ratios = [seconds(board, each) / each.took_s for each in some]
        middle = statistics.median(ratios)
        print(f"{word}: typical factor {typical_factor(figures, some):.2f}, median ratio {middle:.2f}")
    rates = [each.effort.flops / each.took_s / 1e9 for each in found]
    print(f"FLOPs alone: {min(rates):.1f} to {max(rates):.1f} GFLOP/s, a factor of {max(rates) / min(rates):.0f}")


def seconds(board: Board, each: Timed) -> float:
    """Return the seconds that the profile predicts."""
    return board.compute_s(each.effort) if each.training else board.compute_s(Effort(), each.effort)


def timed(budget_s: float) -> Iterator[Timed]:
    """Time every net."""
    for family, side, batch in NETS:
        model = families.build_model(family, classes=10, raw_shape=(side, side), preprocess=Preprocess(), seed=0)
        x = np.random.default_rng(0).normal(size=(batch, 1, side, side)).astype(np.float32)  # (b, 1, h, w)
        batches = Batches(inputs=x, labels=np.arange(batch) % 10, indices=np.arange(batch)[None])
        what = f"{family}, {side} x {side}, {batch}"
        train, infer, optim = Meter(), Meter(), Optim()
        train.trained(model.spec, batch, "all")
        infer.inferred(model.spec, batch)
        trained_s = shortest_s(lambda: model.fit(batches, (CrossEntropy(),), optim), budget_s)  # noqa: B023  # called here
        yield Timed(train.train, trained_s, training=True, what=what)
        inferred_s = shortest_s(lambda: model.logits(x), budget_s)  # noqa: B023
        yield Timed(infer.infer, inferred_s, training=False, what=what)


if __name__ == "__main__":
    main()
