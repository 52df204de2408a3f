"""Lives through a real hour of a service with everything that may happen to it, and writes what came of it.

    python -m benchmarks.reliability.hour                     # an hour: docs/results/hour.json and hour.md
    python -m benchmarks.reliability.hour --minutes 5         # the same plan in a shorter time, printed

Ten devices are processes of an app (hour_app.py) with a `SampleStore` that fills; the lab's mosquitto speaks TLS on
the loopback address; coordinator and one device begin with the build of an earlier commit.  All run from copies of
their packages in a temporary folder, so that the working tree may change meanwhile.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from benchmarks.reliability.hour_figures import figures, page, trouble
from benchmarks.reliability.hour_place import DEVICES, Builds, Place

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
EARLIER = "98032a7d"
"""The commit of the earlier build: before min_new_samples, certificates' ends and lab renew."""
SLOW, OLD, PRIVATE, TAKEN_OUT, DRAINED, PAUSED = (
    "device-09",
    "device-04",
    "device-06",
    "device-10",
    "device-03",
    "device-05",
)
"""Has few new samples; begins with the earlier build; shares no weights; is revoked; is drained; is paused."""
HOUR = 60.0


@dataclass(frozen=True)
class Step:
    """What happens at a time of the plan."""

    at: float
    """As a share of the whole time."""
    name: str
    do: Callable[[], object]
    device: str = ""
    """The device that it is about, if it is about one."""


class Hour:
    """The plan, and what each step did."""

    def __init__(self, folder: Path, minutes: float, builds: Builds, *, has_earlier: bool) -> None:
        self._minutes = minutes
        self.every_s = max(4.0, 30.0 * minutes / HOUR)
        gap = timedelta(minutes=max(1, round(minutes / 20)))
        self._shut = datetime.now(timezone.utc).replace(second=0, microsecond=0) + timedelta(minutes=minutes * 0.6)
        federation = {
            "name": "hour",
            "method": "fedproto",
            "rounds": "forever",
            "every": f"{self.every_s:g}s",
            "window": f"{self._shut + gap:%H:%M}-{self._shut:%H:%M}",
            "bytes_per_day": 10**9,
            "devices": len(DEVICES),
            "quorum": 6,
            "classes": 10,
            "feature_dim": 64,
            "deadline_s": self.every_s / 2,
            "retry_s": 2.0,
            "join_grace_s": 2.0,
        }
        settings = {"federation": federation, "train": {"local_steps": 5, "learning_rate": 0.01}}
        between_s = dict.fromkeys(DEVICES, self.every_s / 60) | {SLOW: self.every_s / 5}
        self.place = Place(folder, builds, settings, between_s, PRIVATE)
        if has_earlier:
            self.place.old |= {OLD, "coordinator"}
        else:
            federation["min_new_samples"] = 20
        self.steps: list[dict[str, Any]] = []
        self.unused = folder / "before.tar"

    def plan(self) -> Sequence[Step]:
        """All steps, in order."""
        place, period_s = self.place, self.every_s
        half = DEVICES[:5]
        return (
            Step(0.03, "SIGKILL of a device", lambda: place.kill("device-01"), "device-01"),
            Step(0.06, "SIGKILL of the coordinator", lambda: place.kill("coordinator")),
            Step(0.09, "SIGKILL of mosquitto", lambda: place.signal_mosquitto(signal.SIGKILL)),
            Step(0.12, "mosquitto stands still (SIGSTOP)", lambda: place.signal_mosquitto(signal.SIGSTOP)),
            Step(0.17, "upgrade of the coordinator, by its page; min_new_samples = 20", self._upgrade),
            Step(0.21, "upgrade of a device", lambda: self._exchange(OLD, old=False), OLD),
            Step(0.25, "a generation: train.learning_rate 0.01 becomes 0.005", self._slower),
            Step(0.29, "half of the devices are off for four periods", lambda: place.kill(*half, off_s=4 * period_s)),
            Step(0.35, "backup", self._back_up),
            Step(0.39, "the coordinator's disk is lost; restore of that backup", self._restore),
            Step(0.43, "lab renew: certificates", lambda: place.command("lab", "renew", "lab")),
            Step(0.46, "lab rotate: the coordinator's signing key", self._rotate),
            Step(0.49, "revoke", lambda: place.command("lab", "revoke", "--lab", "lab", TAKEN_OUT), TAKEN_OUT),
            Step(0.52, "claim, enroll and start again", self._let_in, TAKEN_OUT),
            Step(0.54, "drain of a device", self._drain_one, DRAINED),
            Step(0.56, "drain --undo", lambda: place.operator("drain", DRAINED, "--undo"), DRAINED),
            Step(0.57, "pause", lambda: place.operator("pause", PAUSED), PAUSED),
            Step(0.59, "resume", lambda: place.operator("resume", PAUSED), PAUSED),
            Step(0.66, "the day's budget is spent", lambda: self._generation("federation", bytes_per_day=10_000)),
            Step(0.69, "a larger budget", lambda: self._generation("federation", bytes_per_day=10**9)),
            Step(0.72, "SIGTERM of the lab, and its start", self._lab_again),
            Step(0.75, "SIGKILL of the desk; the broker stays", lambda: place.kill("lab")),
            Step(
                0.78, "a generation: fedproto becomes fedavg", lambda: self._generation("federation", method="fedavg")
            ),
            Step(0.83, "back to fedproto", lambda: self._generation("federation", method="fedproto")),
            Step(0.87, "return of a device to the earlier build", lambda: self._exchange(OLD, old=True), OLD),
            Step(0.9, "power cut of all devices", lambda: place.kill(*DEVICES)),
            Step(0.93, "power cut of everything", self._everything),
        )

    def live(self) -> None:
        """Carry out the plan."""
        place = self.place
        place.open()
        place.until(lambda: place.progress.get("round", 0) >= 1, "the first round")
        begun_s = time.time()
        for step in self.plan():
            self._wait(begun_s + step.at * 60 * self._minutes)
            entry: dict[str, Any] = {"name": step.name, "device": step.device, "at_s": time.time(), "fault": ""}
            print(f"{datetime.now(timezone.utc):%H:%M:%S} {step.name}", flush=True)
            try:
                step.do()
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                entry["fault"] = str(error)
                print(f"  {error}", flush=True)
            entry["done_s"] = time.time()
            self.steps.append(entry)
        self._wait(begun_s + 60 * self._minutes)

    def seen(self) -> dict[str, Any]:
        """What no log of the processes has, as plain values."""
        return {
            "minutes": self._minutes,
            "every_s": self.every_s,
            "shut": f"{self._shut:%H:%M} UTC",
            "load": os.getloadavg(),
            "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
            "steps": self.steps,
            "closed": self.place.closed,
            "memory": self.place.memory,
        }

    # -- the steps --------------------------------------------------------------------------------------------------

    def _wait(self, until_s: float) -> None:
        while time.time() < until_s:
            time.sleep(min(0.2, max(0.0, until_s - time.time())))
            for name, process in list(self.place.running.items()):
                if process.poll() is not None:
                    self.steps.append(
                        {
                            "name": f"{name} ended by itself with {process.returncode}",
                            "device": "",
                            "at_s": time.time(),
                            "done_s": time.time(),
                            "fault": self.place.said(name)[-500:],
                        }
                    )
                    del self.place.running[name]
                    time.sleep(1.0)
                    self.place.start(name)

    def _drain(self) -> None:
        """Stop the coordinator after its round."""
        self.place.operator("drain")
        self.place.running["coordinator"].wait(2 * self.every_s + 60.0)
        del self.place.running["coordinator"]

    def _upgrade(self) -> None:
        place = self.place
        self._drain()
        place.command("lab", "backup", "run", str(self.unused))
        place.old.discard("coordinator")
        place.settings["federation"]["min_new_samples"] = 20
        place.start("coordinator")

    def _exchange(self, device: str, *, old: bool) -> None:
        self.place.end(device)
        (self.place.old.add if old else self.place.old.discard)(device)
        self.place.start(device)

    def _slower(self) -> None:
        self._generation("train", learning_rate=0.005)

    def _generation(self, section: str, **changed: Any) -> None:
        place = self.place
        place.end("coordinator", signal.SIGINT)
        place.settings[section].update(changed)
        place.start("coordinator")

    def _back_up(self) -> None:
        self._drain()
        self.place.command("lab", "backup", "run", "run.tar")
        self.place.start("coordinator")

    def _restore(self) -> None:
        place = self.place
        place.end("coordinator", signal.SIGKILL)
        (place.folder / "run").rename(place.folder / "lost")
        place.command("lab", "restore", "run.tar", "run")
        place.start("coordinator")

    def _rotate(self) -> None:
        self._drain()
        self.place.command("lab", "rotate", "lab")
        self.place.start("coordinator")

    def _let_in(self) -> None:
        place = self.place
        place.end(TAKEN_OUT)
        place.enrol(TAKEN_OUT)
        place.start(TAKEN_OUT)

    def _drain_one(self) -> None:
        self.place.operator("drain", DRAINED)
        time.sleep(self.every_s)

    def _lab_again(self) -> None:
        self.place.end("lab")
        time.sleep(5.0)
        self.place.start("lab")

    def _everything(self) -> None:
        place = self.place
        place.signal_mosquitto(signal.SIGKILL, keeper=True)
        place.kill("lab", "coordinator", *DEVICES, off_s=5.0)


def build(commit: str, folder: Path) -> Path:
    """Build the wheel of a commit, and return the folder of its packages.  Raises RuntimeError where that fails."""
    folder.mkdir()
    tree = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if tree.returncode:
        raise RuntimeError(f"this clone does not hold the commit {commit}")
    source, built = folder / "source", folder / "built"
    source.mkdir()
    subprocess.run(["tar", "-x", "-C", str(source)], input=tree.stdout, check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(built), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"no wheel can be built here: {done.stderr[-300:]}")
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    compileall.compile_dir(folder / "site", quiet=1)  # else each of the processes would, which start all at once
    return folder / "site"


def lived(folder: Path, minutes: float) -> dict[str, Any]:
    """Live through the time in a folder that exists, and return what came of it."""
    now = build("HEAD", folder / "now")
    try:
        earlier, has_earlier = build(EARLIER, folder / "earlier"), True
    except RuntimeError:
        earlier, has_earlier = now, False
    hour = Hour(folder / "hour", minutes, Builds(now, earlier), has_earlier=has_earlier)
    try:
        hour.live()
        hour.place.close()
        (folder / "seen.json").write_text(json.dumps(hour.seen()), encoding="utf-8")
        return figures(folder)
    finally:
        hour.place.kill_all()


def main(given: Sequence[str] | None = None) -> int:
    """Live through it; the exit code says whether anything went wrong."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and pass that on
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=HOUR, help="fewer for a look, at least 4: then it is printed")
    parser.add_argument("--of", type=Path, help="write the figures of a folder that --keep left, in place of an hour")
    parser.add_argument("--keep", type=Path, help="a new folder for all files, which stays")
    args = parser.parse_args(given)
    if not 4 <= args.minutes <= HOUR:
        parser.error(f"--minutes: expected 4 to {HOUR:g}, found {args.minutes:g}")
    if args.of is not None:
        told = figures(args.of)
    elif args.keep is not None:
        args.keep.mkdir(parents=True)
        told = lived(args.keep, args.minutes)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            told = lived(Path(scratch), args.minutes)
    if told["minutes"] == HOUR:
        (RESULTS / "hour.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        (RESULTS / "hour.md").write_text(page(told), encoding="utf-8")
    else:
        print(page(told))
    for line in trouble(told):
        print(line, file=sys.stderr)
    return int(bool(trouble(told)))


if __name__ == "__main__":
    sys.exit(main())
