"""Lives through a year of a service in virtual time, and writes docs/results/year.md.

    python -m benchmarks.coordinator_load.year [--boards 100] [--days 365]
    python -m benchmarks.coordinator_load.year --boards 20 --days 30       # a month, printed, in 12 s of computing

The boards of a secure lab, whose frames are signed, train each night.  The service has three generations: the
second one learns so fast that it forgets classes, and the guard of the coordinator holds its rounds back; the third one
is the operator's answer.  Boards lose power, some are slow or on at night only; the coordinator loses its power on the
first day of each month; the lab's certificates are renewed once.  A day of 20 boards takes about .4 s of computing, and
1 s on a busy machine; one of 100 boards takes 4.5 s there.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.common.proc import process_status
from coordinator.lab import owner
from coordinator.lab.desk import EnrolmentDesk
from coordinator.ledger import Ledger
from coordinator.record import saved_record
from coordinator.record.observer import RunObserver
from coordinator.record.periods import Period
from coordinator.record.remarks import FRAME_FAULTS
from coordinator.record.run_record import RunRecord
from coordinator.record.units import human_bytes
from coordinator.results.figures.outcome import versions
from coordinator.results.figures.uplift import uplift
from coordinator.serving.intake.canary import Canary
from coordinator.serving.server import Server
from edge_sdk.device.store import MemoryStore
from edge_sdk.identity import key_files
from edge_sdk.identity.claims import (
    CLAIMS_ROOT,
    EnrolmentRequest,
    pack_enrolment_request,
    read_claim,
    unpack_enrolment_answer,
)
from edge_sdk.identity.crypto_keys import new_request, new_signing_key, new_tls_key
from edge_sdk.identity.folder import ABOUT, AUTHORITY, CERTIFICATE, SIGNING, TLS_KEY, IdentityCard
from edge_sdk.public_set.samples import PublicSet
from edge_sim.clock.virtual_fleet import VirtualFleet
from edge_sim.config.settings import parse
from edge_sim.fleet.fleet import build_fleet

PAGE = Path(__file__).parents[2] / "docs" / "results" / "year.md"
DAY_S = 86_400.0
FIRST, YEAR = date(2026, 1, 1), 365
SETTINGS: Sequence[Mapping[str, Any]] = (
    {"learning_rate": 0.02},
    {"learning_rate": 1000.0, "local_steps": 1, "batch_size": 1},
    {"learning_rate": 0.01},
)
"""What a device trains with, by generation: the second one is bad, and the third one mends it."""
FLEET = (
    (0.2, {"dropout": 0.01, "dropout_s": 3600}),
    (0.6, {"available": "00:00-06:00", "power_cuts_per_day": 0.2}),
    (0.2, {"available": "00:00-06:00", "slow_share": 0.3, "slow_factor": 5.0}),
)
"""Shares of the boards, and their conditions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens when; in a shorter time than a year all of it, too."""

    days: int = YEAR
    boards: int = 100

    def day(self, of_a_year: int) -> date:
        """Return the day that is as far into this time as that one into a year."""
        return FIRST + timedelta(days=round(self.days * of_a_year / YEAR))

    @property
    def starts(self) -> tuple[date, ...]:
        """The first days of the generations, and the day after the last one of all."""
        bad = self.day(151)
        return FIRST, bad, max(self.day(158), bad + timedelta(days=2)), self.day(YEAR)

    @property
    def renewed(self) -> date:
        """The day on which the lab's certificates are renewed."""
        return self.day(243)

    @property
    def unpowered(self) -> tuple[date, ...]:
        """Days on which the coordinator has no power for an hour: the first of each month, or each tenth day."""
        if self.days >= YEAR:
            return tuple(date(FIRST.year, month, 1) for month in range(2, 13))
        return tuple(FIRST + timedelta(days=day) for day in range(10, self.days, 10))


class Stopped(Exception):
    """The operator stops the coordinator, to change its file."""


class Diary(RunObserver):
    """Keeps what the coordinator says, by day."""

    def __init__(self) -> None:
        self.begins, self.said, self.now_s = FIRST, list[tuple[date, str]](), lambda: 0.0

    def noted(self, message: str) -> None:
        """Note a line."""
        self.said.append((self.begins + timedelta(seconds=self.now_s()), message))

    def count(self, words: str) -> int:
        """Return how many lines have these words."""
        return sum(words in line for _, line in self.said)


def main(given: Sequence[str] | None = None) -> None:
    """Live through the year, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=YEAR, help="fewer for a look; then the page is only printed")
    parser.add_argument("--boards", type=int, default=100, help="at least 10")
    args = parser.parse_args(given)
    plan = Plan(args.days, args.boards)
    if plan.boards < 10 or not 10 <= plan.days <= YEAR:
        parser.error("give 10 boards or more, and 10 to 365 days")
    begun_s, diary = time.process_time(), Diary()
    with tempfile.TemporaryDirectory() as folder:
        record = lived(Path(folder), plan, diary)
        kept = (Path(folder) / "ledger.db").stat().st_size
    page = _page(record, plan, diary, kept, time.process_time() - begun_s)
    if plan.days < YEAR:
        print(page)
    else:
        PAGE.write_text(page, encoding="utf-8")


def lived(folder: Path, plan: Plan, diary: Diary) -> RunRecord:
    """Live through the generations, each with the ledger, the devices and the lab of the one before."""
    lab = folder / "lab"
    owner.make_lab(lab, ["localhost"], 8883, "127.0.0.1")
    names = [f"device-{number:02}" for number in range(plan.boards)]
    _enrol(lab, names)
    stores = {name: MemoryStore() for name in names}
    hardware = dict[str, Any]()
    *_, mended, until = plan.starts
    for settings, (start, end) in zip(SETTINGS, pairwise(plan.starts), strict=True):
        if start == mended:
            owner.rotate_signing_key(lab)
        diary.begins, diary.now_s = start, lambda: 0.0
        run = _generation(folder, start, plan, diary, stores, settings=settings, hardware=hardware)
        clock = run.clock
        diary.now_s = lambda clock=clock: clock.now_s  # type: ignore[misc]  # this generation's
        if start <= plan.renewed < end:
            clock.at((plan.renewed - start).days * DAY_S + DAY_S / 2, partial(_renew, lab, diary))
        if end < until:
            clock.at((end - start).days * DAY_S - DAY_S / 2, _stop)
        with suppress(Stopped):
            run.run()
        hardware = run.to_json()["hardware"]
        run.server.ledger.copy_to(folder / "ledger.db")
        run.close()
    return run.server.record


def _generation(
    folder: Path,
    start: date,
    plan: Plan,
    diary: Diary,
    stores: Mapping[str, MemoryStore],
    *,
    settings: Mapping[str, Any],
    hardware: Mapping[str, Any],
) -> VirtualFleet:
    """Return the fleet with the settings of a generation, which takes up the ledger of the one before."""
    until = plan.starts[-1]
    lost_s = [(day - start).days * DAY_S for day in plan.unpowered if start < day < until]
    tables = {
        "federation": {
            "name": "year",
            "method": "fedavg",
            "rounds": "forever",
            "devices": len(stores),
            "every": "20h",
            "window": "02:00-06:00",
            "time_zone": "Europe/Berlin",
            "participants": 0.4,
            "over_selection": True,
            "quorum": len(stores) // 5,
            "control": 0.1,
            "control_rounds": 60,
            "deadline_s": 600.0,
        },
        "train": {"local_steps": 5, "batch_size": 8, "evaluate_every": 7, "instrument_every": 0, **settings},
        "partition": {"kind": "dirichlet", "alpha": 5.0},
        "fleet": [
            {"count": round(share * len(stores)), "model": "softmax", "board": "rpi4", **row} for share, row in FLEET
        ],
        "scenario": {
            "starts_on": f"{start}",
            "until_days": (until - start).days,
            "coordinator_lost_at_s": lost_s,
            "coordinator_lost_for_s": 3600.0,
        },
        "run": {"standalone": False},
    }
    fleet = build_fleet(parse(tables, Path("year.toml")))
    test = fleet.dataset.test
    canary = Canary(PublicSet(test.x, labels=test.y), [fleet.devices[0].kit.model(None)], 0.1)
    before = folder / "ledger.db"
    return VirtualFleet(
        fleet,
        ledger=Ledger(None, before) if before.exists() else Ledger(None),
        observer=diary,
        stores=stores,
        state={"now_s": 0.0, "begun_s": None, "hardware": hardware},
        secured=folder,
        new_server=partial(Server, canary=canary),
    )


def _stop() -> None:
    raise Stopped


def _renew(lab: Path, diary: Diary) -> None:
    owner.renew_lab(lab)
    diary.noted("edge-sdk lab renew: broker, coordinator, operator and desk have new TLS keys and certificates")


def _enrol(lab: Path, names: Sequence[str]) -> None:
    """Make identity folders beside the lab, as `edge-sdk enroll` does over a network."""
    desk = EnrolmentDesk(lab)
    for path in owner.issue_claims(lab, names):
        claim, key, tls_key = read_claim(path), new_signing_key(), new_tls_key()
        wanted = EnrolmentRequest(key.public, new_request(tls_key, claim.device), b"")
        answer = desk.answer(f"{CLAIMS_ROOT}/{claim.user}", pack_enrolment_request(claim.secret, wanted))
        assert answer is not None, claim.device
        card = IdentityCard(
            role="device",
            name=claim.device,
            broker=claim.broker,
            coordinator=claim.coordinator,
            own=key.public.hex(),
        )
        files = {
            SIGNING: key.to_pem(),
            TLS_KEY: tls_key,
            CERTIFICATE: unpack_enrolment_answer(claim.secret, answer[1]),
            AUTHORITY: claim.authority.encode(),
            ABOUT: card.to_json(),
        }
        for name, content in files.items():
            key_files.write_whole(lab.parent / claim.device / name, content, key_files.PRIVATE)


def _page(record: RunRecord, plan: Plan, diary: Diary, ledger_bytes: int, took_s: float) -> str:
    software = ", ".join(f"{package} {version}" for package, version in versions().items())
    found, peak = uplift(record.control), process_status(os.getpid()).peak_mib
    refused = Counter[str]()
    for words in record.refused_frames.values():
        refused.update(words)
    _, bad, mended, _ = plan.starts
    unpowered = "the first of each month" if plan.days == YEAR else "each tenth day"
    kinds = ", ".join(f"{count} {FRAME_FAULTS.get(word, word)}" for word, count in refused.most_common())
    heads = ["month", "rounds", "skipped", "held back", "answers a round", "bytes", "MJ", "accuracy"]
    counts = f"{diary.count('is skipped for now')} lines about skipped rounds, {diary.count('held back everywhere')}"
    boards = f"{plan.boards} simulated boards"
    lines = [
        "# A year of a service" if plan.days == YEAR else f"# {plan.days} days of a service",
        "",
        f"Written by `python -m benchmarks.coordinator_load.year --boards {plan.boards}`, nothing by hand.",
        f"{boards} of a secure lab on digits, `fedavg`, one round a night with four tenths of them, a",
        "control group of a tenth, and a canary of the test samples. Virtual time; coordinator, ledger, devices and",
        "signed frames are those of a deployment. A fifth of the boards lose power in one computation of a hundred,",
        "three fifths are on from 0:00 to 6:00 only and lose power each fifth day, a fifth are slow in three rounds of",
        f"ten. The coordinator is without power for an hour on {unpowered}.",
        "",
        f"On {bad} an operator rolls out settings under which the model forgets classes. On {mended} the operator",
        "repairs the settings, and gives the coordinator a new signing key (`edge-sdk lab rotate`). On",
        f"{plan.renewed} the certificates are renewed (`edge-sdk lab renew`).",
        "",
        "Accuracy: the newest mean over devices, on all classes. MJ: of all boards while they are on, computing or",
        "not. Answers of a round that is held back do not count. The canary guards all samples together from the first",
        "round on. The classes of a young model swing, so it guards each once its accuracy has held for three rounds.",
        "",
        *("| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *_months(record, diary))),
        "",
        "The coordinator's messages (each once):",
        "",
        "```text",
        *_said(diary),
        "```",
        "",
        f"In all {counts} about held-back rounds.",
        f"Messages that did not count: {kinds or 'none'}.",
        f"At the end: {found.text if found else 'no uplift'}.",
        f"Ledger {human_bytes(ledger_bytes)}; record {human_bytes(len(str(saved_record.to_json(record))))};",
        f"at most {peak:.0f} MiB of memory with all boards; {took_s:.0f} s of computing.",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}, {os.uname().machine}, {os.cpu_count()} cores; {software}.",
    ]
    return "\n".join(lines) + "\n"


def _months(record: RunRecord, diary: Diary) -> list[list[str]]:
    held = Counter((day.year, day.month) for day, line in diary.said if "held back everywhere" in line)
    found: dict[tuple[int, int], list[Period]] = {}
    for key, period in record.periods.newest("day", 400).items():
        day = date.fromordinal(key.number)
        found.setdefault((day.year, day.month), []).append(period)
    rows = []
    for (year, month), days in found.items():
        rounds = sum(each.rounds for each in days)
        accuracy = next((each.accuracy for each in reversed(days) if each.accuracy is not None), None)
        rows.append(
            [
                f"{year}-{month:02}",
                f"{rounds}",
                f"{sum(each.skipped for each in days)}",
                f"{held[year, month]}",
                f"{sum(each.contributors for each in days) / rounds:.1f}",
                human_bytes(sum(each.bytes_up + each.bytes_down for each in days)),
                f"{sum(each.device_j for each in days) / 1e6:.1f}",
                "-" if accuracy is None else f"{accuracy:.1%}",
            ]
        )
    return rows


def _said(diary: Diary) -> list[str]:
    """Return the first line of each kind, with its day."""
    kinds, found = set[str](), []
    for day, line in diary.said:
        kind = "held back" if "held back" in line else " ".join(line.split(":")[-1].split()[:4])
        kind = "skipped" if "is skipped" in line else kind
        if kind not in kinds or line.startswith("a new generation"):
            kinds.add(kind)
            found.append(f"{day}  {line}")
    return found


if __name__ == "__main__":
    main()
