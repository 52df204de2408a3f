"""Measures what a federation without an end keeps after many rounds: record, ledger, log, progress file and memory.

    python -m benchmarks.coordinator_load.years [--devices 20] [--rounds 1000 10000 100000]

The rounds are stubs, one an hour: 20 devices each send 700 bytes, and measure themselves.  Everything that a
coordinator keeps of a round is real: the record, the ledger on disk with its syncs, log.jsonl, progress.json and the
live page's state.  Each number of rounds has a process of its own, so that memory is that of this number.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common.proc import process_status
from coordinator.ledger import Ledger
from coordinator.record import saved_record
from coordinator.record.run_record import RunRecord
from coordinator.results.page.values import HistoryRows
from coordinator.results.report.progress import EventLog
from coordinator.results.report.progress_file import About, ProgressFile
from coordinator.rounds import RoundPolicy
from coordinator.serving.round_pacing import RoundPacing, Timetable
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.messages import FOREVER

HOUR_S = 3600.0
FROM_S = 1_767_225_600.0
"""1 January 2026, in seconds since 1970."""


def main() -> None:
    """Print a table, one line for each number of rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--rounds", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(lived(args.one, args.devices)))
        return
    print("rounds   record   ledger   log      progress  page     memory    ms a round, the last 1000")
    for rounds in args.rounds:
        command = [sys.executable, "-m", __spec__.name, "--one", str(rounds), "--devices", str(args.devices)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        sizes = "".join(f"{found[name] / 1000:>6.0f} kB" for name in ("record", "ledger", "log", "progress", "page"))
        print(f"{rounds:<7}{sizes}  {found['mib']:>5.1f} MiB  {found['last_ms']:.2f}", flush=True)


def lived(rounds: int, devices: int) -> dict[str, float]:
    """Live through so many rounds; return the sizes in bytes, the memory, and the time of a round."""
    names = [f"device-{number:02d}" for number in range(devices)]
    now_s = FROM_S
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        ledger = Ledger(out / "ledger.db")
        record = RunRecord()
        policy = RoundPolicy(expected=devices, quorum=2, rounds=FOREVER, exchanges=1, paced=True, forever=True)
        pacing = RoundPacing(Timetable(wall=lambda: now_s), policy, record, lambda: 0.0)
        about = About(federation="years", method="fedproto", seed=0, rounds=FOREVER, expected=devices)
        observers = (EventLog(out / "log.jsonl"), ProgressFile(out, about, say=print, clock=lambda: now_s))
        page = HistoryRows()
        shown: tuple[object, ...] = ()
        begun_s = time.perf_counter()
        for number in range(rounds):
            if number == rounds - min(1000, rounds):
                begun_s = time.perf_counter()
            now_s += HOUR_S
            pacing.asked(now_s, skipped=False)
            for name in names:
                record.bytes_up[name] += 700
                record.bytes_down[name] += 700
                record.measured(name, number, {"accuracy": 0.5, "local_accuracy": 0.6})
            record.closed_without((), names[:1] if number % 3 == 0 else (), at=ExchangeId(number, 0))
            record.round_done(devices, 1, now_s)
            pacing.roll_up()
            rolled = pacing.completed()
            ledger.checkpoint(
                number + 1,
                b"s" * 1000,
                saved_record.to_json(record),
                None,
                saved_record.new_history(record),
                rolled=rolled,
            )
            record.saved()
            for observer in observers:
                observer.round_done(record.rounds[-1], FOREVER, record)
            shown = page.rows(record.rounds, lambda name: getattr(record, name))
        last_ms = (time.perf_counter() - begun_s) / min(1000, rounds) * 1000
        ledger.close()
        return {
            "record": len(json.dumps(saved_record.to_json(record))),
            "ledger": (out / "ledger.db").stat().st_size,
            "log": sum(path.stat().st_size for path in out.glob("log*.jsonl")),
            "progress": (out / "progress.json").stat().st_size,
            "page": len(json.dumps(shown)),
            "mib": process_status(os.getpid()).resident_mib,
            "last_ms": last_ms,
        }


if __name__ == "__main__":
    main()
