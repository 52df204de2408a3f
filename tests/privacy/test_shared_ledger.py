"""A ledger that several federations use at once: each waits for its turn, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from edge_sdk.device.training.budget import NAME, BudgetLedger
from edge_sdk.privacy.release import Guarantee

BUDGET, COST = Guarantee(50.0, 1e-5), Guarantee(1.0, 1e-5)
SCRIPT = """
import sys
from pathlib import Path
import test_shared_ledger as shared
shared.release(Path(sys.argv[1]), sys.argv[2], 6)
"""


def release(path: Path, who: str, count: int) -> None:
    """Open a ledger, and release so many versions of the data."""
    ledger = BudgetLedger(path, BUDGET)
    for number in range(count):
        ledger.released(f"{who} {number}".encode(), COST, lambda: np.ones((2, 3)))


def test_processes_that_begin_it_together_lose_no_release(tmp_path: Path) -> None:
    path = tmp_path / NAME
    command = [sys.executable, "-c", SCRIPT, str(path)]
    running = [
        subprocess.Popen([*command, f"process {each}"], cwd=Path(__file__).parent, stderr=subprocess.PIPE)
        for each in range(3)
    ]
    for process in running:
        _, said = process.communicate(timeout=100)
        assert process.returncode == 0, said.decode()
    assert BudgetLedger(path, BUDGET).releases == 18


def test_threads_that_begin_it_together_lose_no_release(tmp_path: Path) -> None:
    path, failed = tmp_path / NAME, list[BaseException]()

    def work(who: str) -> None:
        try:
            release(path, who, 5)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work, args=(f"thread {each}",)) for each in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not failed
    assert BudgetLedger(path, BUDGET).releases == 20
