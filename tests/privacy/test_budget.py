"""V4: the budget of a device's data cannot be overspent, by a crash, by another federation, or by asking again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.device.training.budget import BudgetLedger
from edge_sdk.errors import UsageError
from edge_sdk.privacy.release import Guarantee

BUDGET = Guarantee(4.0, 1e-5)
ONE = Guarantee(2.0, 1e-5)


def test_the_same_data_gets_the_same_bytes_and_costs_once(tmp_path: Path) -> None:
    drawn: list[int] = []

    def make() -> np.ndarray:
        drawn.append(1)
        return np.random.default_rng().normal(size=(3, 4))

    ledger = BudgetLedger(tmp_path / "privacy.db", BUDGET)
    first = ledger.released(b"v1", ONE, make)
    ledger.close()
    again = BudgetLedger(tmp_path / "privacy.db", BUDGET)
    assert np.array_equal(again.released(b"v1", ONE, make), first)
    assert len(drawn) == again.releases == 1
    assert again.spent_epsilon == pytest.approx(2.0)


def test_more_than_the_budget_is_refused_before_anything_is_drawn() -> None:
    ledger = BudgetLedger(None, BUDGET)
    for version in (b"1", b"2", b"3"):
        ledger.released(version, ONE, lambda: np.zeros((1, 2)))
    with pytest.raises(UsageError, match="budget") as caught:
        ledger.released(b"4", ONE, lambda: pytest.fail("drawn"))
    assert "\n" not in str(caught.value)
    assert ledger.releases == 3
    assert 3.0 < ledger.spent_epsilon <= BUDGET.epsilon


def test_a_budget_is_not_raised_afterwards(tmp_path: Path) -> None:
    BudgetLedger(tmp_path / "privacy.db", BUDGET).close()
    for other in (Guarantee(8.0, 1e-5), Guarantee(4.0, 1e-6), Guarantee(4.0, 1e-4)):
        with pytest.raises(UsageError, match="budget"):
            BudgetLedger(tmp_path / "privacy.db", other)


def test_what_another_federation_spends_while_the_sums_are_made_counts(tmp_path: Path) -> None:
    """Making them takes long, and the file is open to other federations meanwhile."""
    path = tmp_path / "privacy.db"
    ledger = BudgetLedger(path, BUDGET)

    def make() -> np.ndarray:
        BudgetLedger(path, BUDGET).released(b"other", BUDGET, lambda: np.zeros((1, 2)))
        return np.zeros((1, 2))

    with pytest.raises(UsageError, match="budget"):
        ledger.released(b"own", ONE, make)
    assert ledger.before(b"own") is None
    assert ledger.spent_epsilon == pytest.approx(BUDGET.epsilon)


WRITER = """
import sys
from pathlib import Path
import numpy as np
from edge_sdk.device.training.budget import BudgetLedger
from edge_sdk.privacy.release import Guarantee
ledger = BudgetLedger(Path(sys.argv[1]), Guarantee(1000.0, 1e-5))
print("up", flush=True)
for version in range(ledger.releases, 100_000):
    sums = ledger.released(b"%d" % version, Guarantee(0.5, 1e-5), lambda: np.full((1, 1), float(version)))
    print(f"sent {int(sums[0, 0])}", flush=True)
"""


@pytest.mark.parametrize(
    "kills", [5, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(900)])], ids=["few", "many"]
)
def test_what_has_left_is_in_the_ledger_after_a_kill(tmp_path: Path, kills: int) -> None:
    """Each line stands for bytes that left; the ledger of a killed process holds each of them."""
    path, rng = tmp_path / "privacy.db", np.random.default_rng(0)
    sent: set[int] = set()
    begun_s = time.monotonic()
    BudgetLedger(tmp_path / "other.db", BUDGET).released(b"1", ONE, lambda: np.zeros((1, 1)))
    most_s = 4 * (time.monotonic() - begun_s)  # some releases, however busy the disk is
    for _ in range(kills):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "up\n"
            time.sleep(float(rng.uniform(0.0, most_s)))
            os.kill(writer.pid, signal.SIGKILL)
            sent |= {int(line.split()[1]) for line in writer.stdout if line.endswith("\n")}
        ledger = BudgetLedger(path, Guarantee(1000.0, 1e-5))
        assert ledger.releases >= len(sent)
        ledger.close()
    assert sent
    ledger = BudgetLedger(path, Guarantee(1000.0, 1e-5))
    for version in sent:
        kept = ledger.released(b"%d" % version, ONE, lambda: pytest.fail("drawn anew"))
        assert kept.tolist() == [[float(version)]]
