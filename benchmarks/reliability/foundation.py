"""Measures what docs/results/foundation.md says, and writes that page: no figure in it is typed by hand.

    python -m benchmarks.reliability.foundation SECTION...     measure some sections (default: all), then write the page
    python -m benchmarks.reliability.foundation --page         only write the page

Each section's figures are kept in docs/results/foundation.json, with the command, the versions and the date.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common import stub
from benchmarks.common.figures import ROOT, Found, Page, Table, quantiles
from benchmarks.coordinator_load import frame_floor, ingest
from benchmarks.messages import encoding_costs
from benchmarks.methods import local_accuracy
from benchmarks.reliability import killing, storms
from coordinator.broker.embedded import Kind
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.knowledge import ClassRows, Payload, PublicLogits
from edge_sdk.protocol.messages import Upload

KILLS = 20
FASHION = os.environ.get("EDGE_FASHION_MNIST", "")
"""Path of an npz with x_train, y_train, x_test and y_test; without it the section uses the digits only."""
FASHION_TRAIN = 10_000
FASHION_SAMPLES = (f"data.train_samples={FASHION_TRAIN}", "data.test_samples=1000")
OWN_TEST = ("data.split=[8, 0, 2]", "data.public=200")
DIGITS = ("data.source=digits",)
FAULT_SEEDS = int(os.environ.get("EDGE_SEEDS", "1000"))
DISK_TESTS = ("tests/durable/test_disk.py", "tests/federation/test_full_disks.py")
BROKERS: tuple[Kind, ...] = ("mosquitto", "amqtt")
METHODS = ("fedmd", "fedal", "fedproto", "fedssa")


def faults() -> Found:
    """Compare runs with faults of frames and power cuts on the memory hub with the run without."""
    head = [
        "method",
        "bit-equal to the run without faults",
        "frames lost",
        "doubled",
        "held up",
        "power cuts of devices",
        "of the coordinator",
        "seconds",
    ]
    rows: Table = [head]
    unequal = []
    for method in METHODS:
        calm, found, took_s = storms.survive(method, range(FAULT_SEEDS), processes=2)
        equal = sum(outcome.digest == calm.digest for outcome in found)
        for seed, outcome in enumerate(found):
            if outcome.digest != calm.digest:
                unequal.append(f"{method}, seed {seed}: {outcome.error or 'another result'}")
        happened = sum((outcome.happened for outcome in found), Counter())
        counts = [f"{happened[name]:,}" for name in ("drop", "duplicate", "delay", "device", "coordinator")]
        rows.append([method, f"{equal} of {len(found)}", *counts, f"{took_s:.0f}"])
        print(rows[-1], flush=True)
    return Found(rows, [f"Not equal: {'; '.join(unequal)}."] if unequal else [])


def kills() -> Found:
    """Compare runs with SIGKILL of each kind of process over mosquitto with the run without."""
    rows = [["killed", "kills", "run", "accuracies equal to the run without kills", "seconds"]]
    with tempfile.TemporaryDirectory() as folder:
        killing.write_app(Path(folder))
        calm = killing.run(Path(folder), "mosquitto", victim="", kills=0)
        rows.append(["nobody", "0", "completed", "", f"{calm.seconds:.0f}"])
        for victim in ("coordinator", "device", "broker"):
            found = killing.run(Path(folder), "mosquitto", victim, KILLS)
            same = "yes" if found.accuracies == calm.accuracies else "NO"
            rows.append([victim, str(found.kills), "completed", same, f"{found.seconds:.0f}"])
    how = (
        "Each kill comes at a random moment after the run has recovered from the previous one. The broker stores "
        "nothing, and restarts on the same port. Links that lasted less than 2 s pause before they reconnect, longer "
        "each time. This explains the seconds of a broker that dies repeatedly."
    )
    return Found(rows, [how])


def disks() -> Found:
    """Run the tests of full and write-protected disks."""
    command = [sys.executable, "-m", "pytest", "-rA", *DISK_TESTS]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    ended = Counter(re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED) (tests/[\w/.]+::\w+)", said, re.MULTILINE))
    rows: Table = [["test", "cases", "verdict"]]
    rows += [[f"`{test}`", str(cases), verdict.lower()] for (verdict, test), cases in sorted(ended.items(), key=str)]
    promise = (
        "Before training: an error that names the file, the cause and the remedy. During a round, either side keeps "
        "the data and tries again, and the run ends bit-equal to one without the fault. The kernel causes the failures "
        "(a limit on the size of files, rights, a file instead of a folder) or, occasionally under a seed, a stand-in."
    )
    return Found(rows, [promise])


def methods() -> Found:
    """Compare FedProto and FedSSA with the same devices alone, on each device's own test part."""
    rows: Table = [["data", "fleet", "classes per device", "method", "alone", "federated", "gain in points"]]
    sources = {"digits": DIGITS}
    if FASHION:
        sources["Fashion-MNIST"] = (*FASHION_SAMPLES, "data.source=npz", f"data.path={FASHION}")
    for data, overrides in sources.items():
        for fleet, family, held in (("five architectures", "", 3), ("ten mlp", "mlp", 3), ("ten mlp", "mlp", 5)):
            for method in ("fedproto", "fedssa"):
                settings = (*overrides, *OWN_TEST, f"partition.classes_per_device={held}")
                alone, federated, gain, _ = local_accuracy.measured(method, family, settings)
                rows.append([data, fleet, str(held), method, alone, federated, gain])
                print(rows[-1], flush=True)
    sizes = (
        "Ten devices, 64 features, 40 rounds of 5 steps of 32 samples; each device keeps a fifth of its samples as its "
        f"test part. Digits: about 100 samples a device. Fashion-MNIST: {FASHION_TRAIN:,} of the 60,000 training "
        "images, about 980 a device; the file is given by EDGE_FASHION_MNIST, an npz."
    )
    return Found(rows, [sizes])


def codec_speed() -> Table:
    """Time encoding and decoding of whole frames of two typical uploads, on one core."""
    rng = np.random.default_rng(0)
    logits, features = (rng.normal(0, 5, shape).astype(np.float32) for shape in ((1000, 10), (10, 500)))
    classes, counts = np.arange(10, dtype=np.int32), np.full(10, 60, np.int32)
    payloads: dict[str, tuple[int, Payload]] = {
        "1000x10 logits": (logits.nbytes, PublicLogits(values=logits, batch=bytes(8))),
        "10x500 class rows": (features.nbytes, ClassRows(classes=classes, rows=features, counts=counts)),
    }
    rows: Table = [["payload", "raw, B", "frame, B", "over raw", "goal", "encode, MB/s", "decode and check, MB/s"]]
    for name, (raw_bytes, payload) in payloads.items():
        upload = Upload(federation="lab", device="cam-07", round=7, exchange=0, knowledge={"up": payload}, samples=600)
        frame = codec.encode(upload)
        acts = (partial(codec.encode, upload), partial(codec.decode, frame))
        speeds = [_mb_per_s(act, len(frame)) for act in acts]
        over = f"{len(frame) / raw_bytes - 1:.2%}"
        rows.append([name, f"{raw_bytes:,}", f"{len(frame):,}", over, "2 %", *(f"{speed:,.0f}" for speed in speeds)])
    return rows


def _mb_per_s(act: Callable[[], object], size_bytes: int) -> float:
    """Return the median throughput of many calls in MB/s."""
    times_s = timeit.repeat(act, number=20, repeat=101)
    return size_bytes * 20 / statistics.median(times_s) / 1e6


def encodings() -> Found:
    """Return the figures that benchmarks/messages/encoding_costs.py measured."""
    figures = json.loads(encoding_costs.FIGURES.read_text())
    rows = [line.strip("| ").split(" | ") for line in encoding_costs.table(figures) if "---" not in line]
    frames = ", ".join(f"{name} {size:,}" for name, size in figures["frame_bytes"].items())
    what = f"Bytes are of whole frames, per device and round. A frame with 1000x10 logits, in bytes: {frames}."
    run = f"`{figures['command']}`, {figures['date']}: the demo's fleet, {figures['rounds']} rounds"
    return Found(rows, [what, f"Measured by {run}, {len(figures['seeds'])} seeds."])


def latency() -> Table:
    """Time empty rounds in which every device is a process of its own on this machine."""
    rows: Table = [["broker", "devices", "p50 ms", "p95 ms", "rounds"]]
    for kind in BROKERS:
        for devices, rounds in ((10, 200), (50, 100)):
            broker, waits = stub.waits_ms(kind, "local", devices=devices, rounds=rounds)
            rows.append([broker, str(devices), *quantiles(waits), str(len(waits))])
    return rows


def ingest_rate() -> Found:
    """Compare uploads of 1000x10 logits a second into a coordinator with those into a subscriber that only counts."""
    head = ["broker", "taken in, uploads/s", "MB/s", "the broker's own limit, frames/s", "MB/s", "share", "goal"]
    rows: Table = [head]
    memory: list[str] = []
    for kind in BROKERS:
        with tempfile.TemporaryDirectory() as folder:
            found = ingest.measure(kind, Path(folder))
        taken_in, delivered = statistics.median(found.taken_in), statistics.median(found.delivered)
        mega = found.frame_bytes / 1e6
        speeds = [f"{taken_in:,.0f}", f"{taken_in * mega:.0f}", f"{delivered:,.0f}", f"{delivered * mega:.0f}"]
        rows.append([found.broker, *speeds, f"{taken_in / delivered:.0%}", "50 %"])
        status = found.coordinator
        memory.append(f"over {found.broker} {status.resident_mib:.0f} MiB, at its peak {status.peak_mib:.0f}")
    how = (
        f"{ingest.DEVICES} devices send {found.frame_bytes:,} bytes each as fast as they can, from {ingest.LOADERS} "
        "processes, with QoS 0 as devices do. Figures are from the first upload to the last receipt, each receipt "
        f"after its commit; median of {ingest.ROUNDS} rounds, without the uploads that close them. Between the rounds "
        "the same processes send the same frames to a subscriber process that only counts. All of them share the "
        "cores of one machine."
    )
    return Found(rows, [how, f"Resident in the coordinator's process after these rounds: {'; '.join(memory)}."])


def memory() -> Table:
    """Report resident memory of coordinator processes of small federations, and whether torch is mapped."""
    rows: Table = [["method", "resident, MiB", "peak, MiB", "goal", "torch loaded"]]
    with tempfile.TemporaryDirectory() as folder:
        killing.write_app(Path(folder))
        for method in ("local", "fedmd", "fedproto", "fedssa"):
            status = killing.coordinator_status(Path(folder), "mosquitto", method)
            sizes = [f"{status.resident_mib:.1f}", f"{status.peak_mib:.1f}"]
            rows.append([method, *sizes, "80", "YES" if status.has_torch else "no"])
    return rows


def floor() -> Found:
    """Measure the least that a frame costs the coordinator: paho's reading, our reading, and its durable row."""
    rows: Table = [["frame, B", "paho alone reads it, us", "our connection reads it, us", "its row in the ledger, us"]]
    for size in (300, 40_223):
        found = [frame_floor.smallest(each, size) for each in FLOORS]
        rows.append([f"{size:,}", *(f"{each:.0f}" for each in found)])
    how = (
        f"Processor time of the thread that does the work: the minimum of three times {frame_floor.FRAMES:,} frames, "
        "QoS 0, MQTT 5, which a thread sends as fast as they are read. The row is written in groups of "
        f"{frame_floor.GROUP}, with its SHA-256 digest and a sync of the disk for each group. The last two columns "
        "together are the coordinator's minimum for a frame. Decoding, checks, adding up and the receipt are extra."
    )
    return Found(rows, [how, f"Load of the machine when this section ended: {os.getloadavg()[0]:.1f}."])


FLOORS = (frame_floor.read_alone_us, frame_floor.read_us, frame_floor.row_us)

SECTIONS = {
    "faults": (
        (
            f"{FAULT_SEEDS:,} seeds of faults: 6 devices, 4 rounds, {storms.STORM.drop:.0%} of frames lost, "
            f"{storms.STORM.duplicate:.0%} doubled, {storms.STORM.delay:.0%} held up by up to "
            f"{storms.STORM.delay_s:g} s and so reordered, {storms.CUTS} power cuts at random moments"
        ),
        faults,
    ),
    "kills": (f"kill -9 in a running federation over mosquitto, 3 devices, FedMD, {killing.ROUNDS} rounds", kills),
    "disks": ("Disks that are full or may not be written to", disks),
    "methods": ("FedProto and FedSSA against local training, on a device's own test part, 3 seeds", methods),
    "codec": ("The codec", codec_speed),
    "encodings": ("Encodings: accuracy and bytes", encodings),
    "latency": ("An empty round, from the first Assign to the last receipt", latency),
    "ingest": ("The coordinator's intake of uploads of 1000x10 logits", ingest_rate),
    "floor": ("The least that a frame costs the coordinator", floor),
    "memory": ("The coordinator's memory, 3 devices", memory),
}


if __name__ == "__main__":
    Page("foundation", "The foundation: measured", SECTIONS, "benchmarks.reliability.foundation").main(__doc__ or "")
