"""FedAL's figure 5: accuracy against time for FedAL, FedMD, FedProto and FedAvg, at alpha 5, 2 and 1.

    python benchmarks/papers/fedal_pi.py --data mnist.npz [--out runs/fedal-pi] [--rounds 200] [--alphas 5,2,1]
    python benchmarks/papers/fedal_pi.py --digits            # minutes: scikit-learn's digits instead of MNIST
    python benchmarks/papers/fedal_pi.py --data mnist.npz --export boards    # files for real boards

It is `edge-sdk compare` on fedal-pi.toml, once for each alpha; finished runs are not run again.  In the paper FedMD and
FedProto have tau = 1 where FedAL has 5: here they take one local step a round, and five times as many rounds, so that
all methods take as many local steps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coordinator.results.comparison.compare import Comparison
from coordinator.results.comparison.compare_files import write_comparison
from coordinator.results.comparison.compare_table import compare_table
from coordinator.results.plots.plots import draw_comparison
from coordinator.results.report.progress import Progress
from coordinator.results.report.tables import show_table
from edge_sdk.errors import EdgeError
from edge_sim.config import settings
from edge_sim.config.settings import Config
from edge_sim.fleet.fleet import build_fleet
from edge_sim.studies.planned_runs import Setting, lines, plan, run_missing

FILE = Path(__file__).with_name("fedal-pi.toml")
METHODS = ("fedal", "fedmd", "fedproto", "fedavg")
ONE_STEP = frozenset({"fedmd", "fedproto"})
"""Methods with tau = 1."""
DIGITS = ("data.source=digits", "data.public=300", "data.test_samples=300", "partition.min_samples=8")


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is not there yet, and draw; the exit code."""
    args = _arguments().parse_args(argv)
    if args.data is None and not args.digits:
        _arguments().error("give --data FILE.npz, or --digits for a short try")
    overrides = [*(DIGITS if args.digits else (f"data.path={args.data.resolve()}",)), *args.overrides]
    if args.rounds is not None:
        overrides.append(f"federation.rounds={args.rounds}")
    try:
        for alpha in args.alphas.split(","):
            config = settings.load_config(FILE, [*overrides, f"partition.alpha={float(alpha)}"])
            if args.export is not None:
                export(config, args.export)
                return 0
            compare(config, args.out / f"alpha-{alpha}")
    except EdgeError as error:
        sys.stderr.write(f"fedal_pi: {error}\n")
        return error.exit_code
    return 0


def compare(config: Config, out: Path) -> Comparison:
    """The four methods and the devices alone under one alpha, with table and pictures in `out`."""
    planned = plan(config, METHODS, (config.federation.seed,), lambda method: (setting(config, method),))
    run_missing(planned, out, lambda label: Progress(label, brief=True))
    comparison = Comparison(lines=lines(planned, out), baseline=METHODS[0])
    write_comparison(comparison, out)
    show_table(compare_table(comparison), sys.stdout)
    for path in draw_comparison(comparison, out / "plots"):
        print(f"picture: {path}")
    return comparison


def setting(config: Config, method: str) -> Setting:
    """Return the values that differ from the file under one method."""
    if method not in ONE_STEP:
        return {}
    steps = config.train.local_steps
    every = config.train.evaluate_every * steps
    return {
        "train.local_steps": 1,
        "train.evaluate_every": every,
        "federation.rounds": config.federation.rounds * steps,
    }


def export(config: Config, folder: Path) -> None:
    """The public set for the coordinator, and each device's samples, as files to copy to the boards."""
    folder.mkdir(parents=True, exist_ok=True)
    fleet = build_fleet(config)
    if fleet.dataset.public is not None:
        np.savez_compressed(folder / "fedal-pi-public.npz", public=fleet.dataset.public.samples)
    for device in fleet.devices:
        device.write(folder / device.kit.id)
    print(f"{folder}: fedal-pi-public.npz for the coordinator, and a folder for each of {len(fleet.devices)} boards")


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="FedAL's test bed in virtual time")
    parser.add_argument("--data", type=Path, metavar="FILE.npz", help="MNIST: x_train, y_train, x_test, y_test")
    parser.add_argument("--digits", action="store_true", help="scikit-learn's digits instead")
    parser.add_argument("--out", type=Path, default=Path("runs/fedal-pi"), metavar="DIR")
    parser.add_argument("--rounds", type=int, metavar="N", help="of FedAL and FedAvg (default: the file's)")
    parser.add_argument("--alphas", default="5,2,1", metavar="A,B,C")
    parser.add_argument(
        "--export", type=Path, metavar="DIR", help="write the files of a real test bed, and run nothing"
    )
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="SECTION.KEY=VALUE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
