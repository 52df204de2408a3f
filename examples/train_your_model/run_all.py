"""Runs the boards three times, alone, by FedAvg and by FedMD, over mosquitto on this machine, and prints a table.

python run_all.py [--set federation.rounds=4]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from coordinator.broker.embedded import EmbeddedBroker

RUNTIMES = {"door": "torch", "yard": "torch", "gate": "onnx", "shed": "onnx", "lane": "numpy"}
METHODS = {"alone": "local", "FedAvg": "fedavg", "FedMD": "fedmd"}


def run(broker: str, method: str, options: list[str]) -> dict[str, dict[str, float]]:
    """Run one federation; return each board's entry in its summary."""
    where = ["--broker", broker]
    chosen = ["--set", f"federation.name={method}", "--set", f"federation.method={method}", *options]
    commands = [["-m", "edge_sdk.cli", "coordinator", "federation.toml", *where, "--out", f"runs/{method}", *chosen]]
    for board, runtime in RUNTIMES.items():
        commands.append(["board.py", "--id", board, "--runtime", runtime, *where, "--federation", method])
    with ExitStack() as stack:
        running = [stack.enter_context(subprocess.Popen([sys.executable, *each])) for each in commands]
        for each in running:
            stack.callback(each.kill)
        while any(each.poll() is None for each in running) and not any(each.returncode for each in running):
            time.sleep(0.1)
        if any(each.returncode for each in running):  # the others would wait for it without an end
            sys.exit(f"run_all.py: a process of {method} failed, see above")
    summary = json.loads(Path("runs", method, "summary.json").read_text(encoding="utf-8"))
    return {each["id"]: each for each in summary["per_device"]}


def main() -> None:
    """Run all, and print the table."""
    with EmbeddedBroker("mosquitto") as broker:
        found = {title: run(broker.url, method, sys.argv[1:]) for title, method in METHODS.items()}
    print(f"\n{'board':8}{'runtime':10}{'before':>8}" + "".join(f"{title:>8}" for title in METHODS))
    first, *_ = found.values()  # all begin with the same net
    for board, runtime in RUNTIMES.items():
        shares = [first[board]["joining"]["accuracy"], *(each[board]["accuracy"] for each in found.values())]
        print(f"{board:8}{runtime:10}" + "".join(f"{share:8.1%}" for share in shares))


if __name__ == "__main__":
    main()
