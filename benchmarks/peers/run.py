"""Other frameworks on the task of benchmarks/simulation, each beside the bare loop: docs/results/peers.{json,md}.

    python benchmarks/peers/run.py [--peers edge,flower,pfl,fedml] [--devices 20,100] [--nets mlp,cnn]
    python benchmarks/peers/run.py --page        measure nothing, write the page from the JSON

Every figure is a ratio to the bare sequential loop, which runs right before the peer in the same environment.  A peer
that cannot be installed is skipped.  A pair of runs during which others took over 12 % of the machine is repeated, up
to --tries times.  Rows measured before are kept for the cases that are not measured now.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))

import task
from figures_of import Pair, Run, against, enough, figures, table
from process import Failed, fence, measure
from venvs import OURS, NotInstalled, python_of

from benchmarks.common.figures import RESULTS, markdown

PEERS = (OURS, "flower", "pfl", "fedml")
JSON, PAGE = RESULTS / "peers.json", RESULTS / "peers.md"
Known = dict[str, Any]


def main() -> None:
    """Measure what was asked, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=_names(PEERS), default=list(PEERS))
    parser.add_argument("--devices", type=lambda text: [int(each) for each in text.split(",")], default=[20, 100])
    parser.add_argument("--nets", type=_names(("mlp", "cnn")), default=["mlp", "cnn"])
    parser.add_argument("--pairs", type=int, default=3, help="quiet pairs wanted of each case")
    parser.add_argument("--tries", type=int, default=6, help="pairs of a case after which no quiet one is waited for")
    parser.add_argument("--venvs", type=Path, default=HERE.parents[1] / "build" / "peers", help="one for each peer")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page from the JSON")
    arguments = parser.parse_args()
    known: Known = json.loads(JSON.read_text()) if JSON.exists() else {"peers": {}, "pairs": []}
    if not arguments.page:
        pythons = _install(arguments.peers, arguments.venvs, known)
        _measure(list(product(pythons, arguments.nets, arguments.devices)), pythons, arguments, known)
    PAGE.write_text(page(known))


def _names(allowed: Sequence[str]) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if strangers := set(names) - set(allowed):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(strangers))}: expected some of {', '.join(allowed)}")
        return names

    return parse


def _install(peers: Sequence[str], folder: Path, known: Known) -> dict[str, Path]:
    """The interpreters of those that can be had."""
    found = {peer: python_of(peer, folder) for peer in peers}
    for peer, python in found.items():
        if isinstance(python, NotInstalled):
            print(f"{peer}: skipped, {python.why}", flush=True)
            known["peers"][peer] = {"skipped": python.why}
    return {peer: python for peer, python in found.items() if isinstance(python, Path)}


def _measure(
    cases: list[tuple[str, str, int]], pythons: dict[str, Path], arguments: argparse.Namespace, known: Known
) -> None:
    """One pair of each case in turn, until each has enough; what is known is kept after each pair."""
    pairs: dict[tuple[str, str, int], list[Pair]] = {case: [] for case in cases}
    known["pairs"] = [row for row in known["pairs"] if (row["peer"], row["net"], row["devices"]) not in pairs]
    with tempfile.TemporaryDirectory() as folder:
        tasks = {devices: Path(folder) / f"{devices}.npz" for devices in arguments.devices}
        for devices, path in tasks.items():
            task.write(path, devices)
        while open_ones := [case for case in cases if not enough(pairs[case], arguments.pairs, arguments.tries)]:
            for case in open_ones:
                peer, net, devices = case
                try:
                    bare, _ = measure(pythons[peer], "bare", tasks[devices], net, devices)
                    theirs, versions = measure(pythons[peer], peer, tasks[devices], net, devices)
                except Failed as error:
                    print(error, flush=True)
                    known["peers"][peer] = {"failed": f"{net}, {devices} devices"}
                    cases.remove(case)
                    continue
                pair = Pair(peer, net, devices, bare, theirs)
                pairs[case].append(pair)
                known["peers"][peer] = {"versions": versions}
                known["pairs"].append(asdict(pair))
                _keep(known)
                print(f"{peer} {net} {devices}: {theirs.ms / bare.ms:.2f} x bare, quiet: {pair.quiet}", flush=True)
    _keep(known)


def _keep(known: Known) -> None:
    known |= {
        "command": "python benchmarks/peers/run.py",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "offline": bool(fence()),
        "figures": figures(_pairs(known)),
    }
    JSON.write_text(json.dumps(known, indent=1) + "\n")


def _pairs(known: Known) -> list[Pair]:
    return [
        Pair(row["peer"], row["net"], row["devices"], Run(**row["bare"]), Run(**row["theirs"]))
        for row in known["pairs"]
    ]


HOW = """\
FedAvg on scikit-learn's digits, 80/20, with our simulator's Dirichlet(0.5) partition (seed 0, at least 4 samples each).
Batches of 32 in one fixed order, one local epoch, SGD 0.05, 10 rounds, all devices in each round, no evaluation in the
timed rounds. MLP 64-256-256-10; CNN of two padded 3 x 3 convolutions (32, 64 channels), a pool, 1024-64-10. All start
from the same weights. Milliseconds are the median of rounds 2 to 10, over the number of devices. In brackets is the
bare sequential PyTorch loop, which ran right before in the same environment (one process, one thread). `peer / bare` is
the median over the pairs, with their range. CPU is the computing time of all processes of a run. PSS counts shared
pages once."""
OFFLINE = "Only the loopback network was available."

REMARKS = """\
Flower runs one client on each core and polls for replies every 0.1 s, so the times of its short rounds are multiples of
that. It and ours use both cores, hence the two ratios. `lost` counts device-rounds whose result never reached the mean:
Flower logs this and continues. `edge` is our own simulator, a whole federation with every weight through the codec. Its
mini-batches differ in each round, so its test loss is not compared. Whole devices are in two processes (engine
`shards`), with the bits of one. FedML's first round is sequential training, not FedAvg, unless it gets a copied state
dict, as it does here."""

HTFLLIB = {"20": 1.65, "100": 2.72}
"""HtFLlib over its bare loop, by the number of devices: FedProto, mixed CNNs, its source at e959261, measured once."""


def page(known: Known) -> str:
    """The page's text."""
    cases = known.get("figures", [])
    lines = ["# Other simulators, beside the bare loop", ""]
    lines += ["Written by `python benchmarks/peers/run.py`; nothing here is typed by hand.", "", *HOW.split("\n"), ""]
    lines += [
        *markdown(table(cases)),
        "",
        *REMARKS.split("\n"),
        *([OFFLINE] if known.get("offline") else []),
        "",
        *_beside_htfllib(),
        "",
        *_loaded(cases),
        *_checked(cases),
    ]
    if any(case["peer"] == OURS for case in cases):
        lines += ["## Ours against each", "", *markdown(against(OURS, cases)), ""]
    for peer, told in sorted(known["peers"].items()):
        found = told.get("versions")
        text = ", ".join(f"{name} {version}" for name, version in found.items()) if found else json.dumps(told)
        lines.append(f"- {peer}: {text}")
    lines += ["", f"`{known.get('command')}`, {known.get('date')}, {known.get('cores')} cores"]
    return "\n".join(lines) + "\n"


def _beside_htfllib() -> list[str]:
    """What can be said of HtFLlib: an earlier measurement of it, and ours of the same kind of fleet."""
    ours = json.loads((RESULTS / "simulation.json").read_text())["shards"]["table"]
    head, *rows = ours
    at = [head.index(name) for name in ("method", "fleet", "devices", "ours / bare (each pair)")]
    found = {row[at[2]]: row[at[3]].split()[0] for row in rows if [row[at[0]], row[at[1]]] == ["fedproto", "mixed"]}
    told = " and ".join(f"{ratio} times ({count} devices)" for count, ratio in HTFLLIB.items())
    own = " and ".join(found[count] for count in HTFLLIB)
    return [
        "This script can install no package of HtFLlib. Its FedProto with mixed CNNs was measured once from its source",
        f"(commit e959261, adapted to today's torch), on another day. It takes {told}",
        f"as long as its bare loop of the same steps. Ours takes {own} of its own ([simulation](simulation.md),",
        "`fedproto` `mixed`).",
    ]


def _loaded(cases: Sequence[dict[str, Any]]) -> list[str]:
    loud = [case for case in cases if not case["quiet"]]
    if not loud:
        return ["No other program took over 12 % of the machine during these runs.", ""]
    worst = max(case["others_cpu"] for case in loud)
    told = (
        f"The machine was not quiet: in {len(loud)} of {len(cases)} rows others took over 12 % of its CPU time, up to "
        f"{worst:.0%}, and every repetition was disturbed. There the times are too long on both sides and their ratios "
        "rough; the CPU ratio is the better figure."
    )
    return [told, ""]


def _checked(cases: Sequence[dict[str, Any]]) -> list[str]:
    apart = [
        f"{case['peer']} {case['net']} {case['devices']}"
        for case in cases
        if not case["same_work"] and case["peer"] != OURS
    ]
    told = f"but for {', '.join(apart)}" if apart else "so the work was the same"
    return [f"Test losses after the last round agree with the bare loop's, {told}.", ""]


if __name__ == "__main__":
    main()
