"""One federation with a board on the ARM instruction set, and the same with that device on x86, compared.

    python benchmarks/arm/run.py [FOLDER]          writes docs/results/arm64.md

scripts/arm64 emulates the board; the coordinator, mosquitto and two devices with torch run on this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from coordinator.broker.embedded import EmbeddedBroker
from coordinator.trace.log import NAME as TRACE
from coordinator.trace.log import Heard, Trace
from edge_sdk.arrays import Floats
from edge_sdk.data import Preprocess
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Limits
from edge_sdk.protocol.knowledge import ClassRows, PublicLogits
from edge_sdk.protocol.messages import Upload
from edge_sdk.transport.base import Incoming
from edge_sim.models.onnx_extractors import kmeans_extractor

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EMULATED = ROOT / "scripts" / "arm64"
PAGE = ROOT / "docs" / "results" / "arm64.md"
BOARD, PCS = "board", ("pc-1", "pc-2")
ROUNDS = 20
PATIENCE_S = 300.0
FEATURES = 32
TOLERANCE = 1e-5
"""The largest difference, as a share of the largest value, that another order of float32 sums explains."""
_LIMITS = Limits(2**24, 2**24)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A federation, and what its first device runs on."""

    name: str
    title: str
    method: str
    factory: str
    """The function of apps.py that makes the first device."""
    emulated: tuple[str, ...]
    """Options of scripts/arm64 for that device."""


CASES = (
    Case(name="base", title="base install, aarch64", method="fedmd", factory="softmax", emulated=()),
    Case(name="onnx", title="with ONNX Runtime, aarch64", method="fedproto", factory="extractor", emulated=("--onnx",)),
    Case(name="armhf", title="base install, armv7", method="fedmd", factory="softmax", emulated=("--arch", "armhf")),
)


@dataclass(frozen=True)
class Outcome:
    """What came of one federation."""

    folder: Path
    seconds: float
    """Wall-clock time until every process had ended."""
    accuracies: Mapping[str, float]
    sent: Sequence[Floats]
    """What the first device sent in each round: class prototypes, or logits of public samples."""

    def log(self, who: str) -> str:
        """What a process printed."""
        return (self.folder / f"{who}.log").read_text(encoding="utf-8")


def write_parts(folder: Path) -> None:
    """Write what every device of a case needs: digits dealt out, public digits, an extractor."""
    digits = load_digits()
    x, y = digits.images.astype(np.uint8), digits.target.astype(np.int64)
    np.savez(folder / "public.npz", public=x[:300])
    np.savez(folder / "data.npz", x=x[300:1200], y=y[300:1200], x_test=x[1200:], y_test=y[1200:])
    images = Preprocess(scale=1 / 16)(x[:300])
    (folder / "extractor.onnx").write_bytes(kmeans_extractor(images, seed=0, feature_dim=FEATURES))
    (folder / "apps.py").write_text((HERE / "apps.py").read_text(encoding="utf-8"), encoding="utf-8")


def prepare(case: Case) -> str:
    """Prepare the emulated board of a case; why that is not possible here, or an empty string."""
    made = subprocess.run([EMULATED, *case.emulated], capture_output=True, text=True, check=False)
    return "" if made.returncode == 0 else made.stderr.strip().rpartition("\n")[2] or f"exit code {made.returncode}"


def run(case: Case, folder: Path, *, emulated: bool, rounds: int = ROUNDS) -> Outcome:
    """Run one federation in a folder; emulated: its first device runs on the emulated board, else on this machine.

    Raises RuntimeError where a process fails or hangs.
    """
    folder.mkdir(parents=True)
    write_parts(folder)
    (folder / "federation.toml").write_text(_toml(case, rounds), encoding="utf-8")
    here = (sys.executable, "-m", "edge_sdk.cli")
    board = (str(EMULATED), *case.emulated, "edge-sdk") if emulated else here
    begun_s = time.monotonic()
    with EmbeddedBroker("mosquitto") as broker:
        running = {"coordinator": _start(folder, "coordinator", (*here, *_coordinator(broker.url)), 0)}
        for share, (who, factory) in enumerate(((BOARD, case.factory), *((pc, "net") for pc in PCS))):
            program = board if who == BOARD else here
            running[who] = _start(folder, who, (*program, *_device(broker.url, case, who, factory)), share)
        _await(folder, running)
    seconds = time.monotonic() - begun_s
    summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    if not summary["completed"]:
        raise RuntimeError(f"{folder}: {summary['reason']}")
    accuracies = {row["id"]: row["accuracy"] for row in summary["per_device"]}
    return Outcome(folder, seconds, accuracies, _sent(folder / "run" / TRACE))


def largest_difference(one: Outcome, other: Outcome) -> float:
    """Return the largest difference of what two first devices sent, as a share of the largest value of its round.

    Raises RuntimeError unless both sent arrays of the same shapes.
    """
    shapes = [[array.shape for array in outcome.sent] for outcome in (one, other)]
    if shapes[0] != shapes[1] or not shapes[0]:
        raise RuntimeError(f"the devices sent other arrays: {shapes}")
    shares = [np.abs(a - b).max() / np.abs(b).max() for a, b in zip(one.sent, other.sent, strict=True)]
    return float(max(shares))


def _toml(case: Case, rounds: int) -> str:
    roster = json.dumps([BOARD, *PCS])
    return (
        f'[federation]\nname = "{case.name}"\nmethod = "{case.method}"\nrounds = {rounds}\ndevices = 3\nclasses = 10\n'
        f"feature_dim = {FEATURES}\nseed = 1\nroster = {roster}\n"
        f'[train]\nlocal_steps = 10\nevaluate_every = 5\n[public]\npath = "public.npz"\n'
    )


def _coordinator(url: str) -> tuple[str, ...]:
    return ("coordinator", "federation.toml", "--broker", url, "--out", "run", "--trace")


def _device(url: str, case: Case, who: str, factory: str) -> tuple[str, ...]:
    return ("device", "--broker", url, "--federation", case.name, "--app", f"apps:{factory}", "--id", who)


def _start(folder: Path, who: str, command: Sequence[str], share: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "SHARE": str(share), "WIDTH": str(FEATURES), "OMP_NUM_THREADS": "1"}
    with (folder / f"{who}.log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _await(folder: Path, running: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Wait until all processes have ended well, or the first has failed; none is left behind."""
    end_s = time.monotonic() + PATIENCE_S
    try:
        while any(process.poll() is None for process in running.values()):
            _check(folder, running)
            if time.monotonic() > end_s:
                raise RuntimeError(f"{folder}: not over within {PATIENCE_S:g} s; see the logs there")
            time.sleep(0.05)
        _check(folder, running)
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def _check(folder: Path, running: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Raise RuntimeError if a process has failed."""
    for who, process in running.items():
        if process.poll():
            said = (folder / f"{who}.log").read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"{who} ended with {process.returncode}:\n{said[-2000:]}")


def _sent(trace: Path) -> list[Floats]:
    """Return what the first device sent, round by round, from the coordinator's message log."""
    sent: dict[tuple[int, int], Floats] = {}
    for entry in Trace(trace):
        if isinstance(entry, Heard) and isinstance(entry.event, Incoming):
            message = codec.decode(entry.event.frame, _LIMITS).message
            if isinstance(message, Upload) and message.device == BOARD:
                for payload in message.knowledge.values():
                    if isinstance(payload, ClassRows | PublicLogits):
                        values = payload.rows if isinstance(payload, ClassRows) else payload.values
                        sent[message.round, message.exchange] = values
    return [sent[key] for key in sorted(sent)]


HEAD = """\
# Boards, on the ARM instruction set

Written by `python benchmarks/arm/run.py` on {date}; nothing here is typed by hand. `scripts/arm64` makes an ARM board
of Debian's own packages and the wheels that its owner would install, and runs `edge-sdk device` on it under qemu's
user-mode emulation. The coordinator, mosquitto and two devices with torch run natively on x86-64, on one machine with
the board. Each federation runs twice: with the board emulated, and with the same device on x86. Everything that the
board sent is taken from the coordinator's message log and compared.

This proves that the packages install and run on the processor, and compute the same as elsewhere. It does not prove
speed, memory, heat and radio of a board; an emulated processor is slower by an unknown factor. A Raspberry Pi's kernel
and a Jetson's GPU were not tested either, because no board was available. The seconds are those of a machine with other
work.

| board | method, rounds | what the board sent | difference to x86 | accuracy, ARM | x86 | took, ARM | x86 |
|---|---|---|---|---|---|---|---|
"""

AFTER = """
The difference is the largest of any number in any round, divided by the largest number of its round. The accuracies
are those of the board's own model after the last round. `tests/boards/test_arm.py` repeats the runs and fails above
{tolerance:g}.

## What is installed on the boards

"""


def page(outcomes: Mapping[str, tuple[Outcome, Outcome]], missing: Mapping[str, str]) -> str:
    """The text of docs/results/arm64.md; outcomes: on ARM and on x86, by the name of the case."""
    ran = [case for case in CASES if case.name in outcomes]
    parts = [HEAD.format(date=time.strftime("%Y-%m-%d")), *(_row(case, *outcomes[case.name]) for case in ran)]
    parts += [
        f"| {case.title} | not run: {missing[case.name]} | | | | | | |\n" for case in CASES if case.name in missing
    ]
    parts += [AFTER.format(tolerance=TOLERANCE), *(f"- {case.title}: {installed(case)}\n" for case in ran)]
    for case in ran:
        arm = outcomes[case.name][0]
        logs = "".join(f"{arm.log(who).rstrip()}\n" for who in (BOARD, "coordinator"))
        parts.append(f"\n## The log of {case.title}\n\nThe board, then the coordinator.\n\n```text\n{logs}```\n")
    return "".join(parts)


def installed(case: Case) -> str:
    """Return what the emulated board of a case says of itself: processor, Python and packages."""
    shown = subprocess.run(
        [EMULATED, *case.emulated, "python", "-c", _SHOW], cwd="/", capture_output=True, text=True, check=True
    )
    return shown.stdout.strip()


_SHOW = """
import importlib.metadata as m, platform
own = sorted({(d.name.lower(), d.version) for d in m.distributions()})
print(platform.machine(), "Python", platform.python_version(), "glibc", platform.libc_ver()[1] + ";",
      ", ".join(" ".join(each) for each in own))
"""


def _row(case: Case, arm: Outcome, x86: Outcome) -> str:
    what = {"fedproto": "class prototypes", "fedmd": "logits of public samples"}[case.method]
    shape = " x ".join(map(str, arm.sent[0].shape))
    return (
        f"| {case.title} | {case.method}, {len(arm.sent)} | {what}, {shape} | {largest_difference(arm, x86):.1e} "
        f"| {arm.accuracies[BOARD]:.4f} | {x86.accuracies[BOARD]:.4f} | {arm.seconds:.0f} s | {x86.seconds:.0f} s |\n"
    )


def main(base: Path) -> None:
    """Run all cases and write the page."""
    outcomes: dict[str, tuple[Outcome, Outcome]] = {}
    missing: dict[str, str] = {}
    for case in CASES:
        why = prepare(case)
        if why:
            missing[case.name] = why
            continue
        runs = (run(case, base / f"{case.name}-{kind}", emulated=kind == "arm") for kind in ("arm", "x86"))
        outcomes[case.name] = (next(runs), next(runs))
        print(_row(case, *outcomes[case.name]), end="", flush=True)
    PAGE.write_text(page(outcomes, missing), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
