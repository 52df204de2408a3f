"""The room of results is a ring: a coordinator that nobody asks for a report runs a whole federation without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fleets
from imports import ROOT

RUN = """
import sys
from pathlib import Path
from coordinator.ledger import Ledger
from edge_sim.clock.virtual_fleet import VirtualFleet
from edge_sim.config import settings
from edge_sim.fleet.fleet import build_fleet

config = settings.parse(eval(sys.argv[1]), Path("test.toml"))
run = VirtualFleet(build_fleet(config), ledger=Ledger(Path(sys.argv[2])))
run.run()
print(run.server.rounds.phase.value, len(run.server.record.rounds), run.server.warnings == ())
run.server.close()
print(*(name for name in sys.modules if name.startswith("coordinator.results")))
"""


def test_a_coordinator_without_reports_imports_no_results(tmp_path: Path) -> None:
    tables = fleets.tables(fleets.write_pictures(tmp_path / "pictures.npz"), "fedavg", devices=3)
    done = subprocess.run(
        [sys.executable, "-c", RUN, repr(tables), str(tmp_path / "ledger.db")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.splitlines() == ["done 3 True", ""], done.stdout + done.stderr
