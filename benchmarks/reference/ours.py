"""Our methods on the reference's partition, nets, rate, batch and rounds."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.results.figures.outcome import versions
from edge_sdk.arrays import AnyArray, Floats, Ints
from edge_sdk.data import LocalData, Samples
from edge_sdk.device.training.evaluation import NearestPrototype
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import Private
from edge_sim.config.settings import Config, parse
from edge_sim.data.held_samples import CopiedSamples
from edge_sim.fleet.fleet import Fleet, build_fleet
from edge_sim.runs.runner import VirtualRun, run_in

DEVICES, ROUNDS, BATCH, RATE = 20, 40, 10, 0.01
SEEDS = (0, 1, 2, 3, 4)
_NETS = "benchmarks.reference.nets"
_SMALL = {"proxy": f"{_NETS}:a", "start": "equal"}
HOW_TO_GET_IT = (
    "set EDGE_REFERENCE to the folder with htfllib.json and fm20_rows.npz (HtFLlib's figures, and the partition that "
    "they were measured on), and EDGE_DATA to the folder with fmnist.npz (x_train, y_train, x_test, y_test of "
    "Fashion-MNIST, or packed beside its unpack.py)"
)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One algorithm of the reference, and the method that is held against it."""

    theirs: str
    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = ROUNDS
    measured: str = "accuracy"
    """`accuracy`: of the personal model after its rounds; `prototype`: by the nearest prototype at the end; else the
    instrument of this name in the last round."""


LINES = (
    Line(theirs="Local", method="local"),
    Line(theirs="LG-FedAvg", method="lg_fedavg"),
    Line(theirs="FML", method="fml", params={**_SMALL, "alpha": 0.5, "beta": 0.5}),
    Line(theirs="FedKD", method="fedkd", params=_SMALL),
    Line(
        theirs="FedProto", method="fedproto", params={"mse_weight": 10.0, "weighting": "uniform"}, measured="prototype"
    ),
    Line(theirs="FedGH", method="fedgh"),
    Line(theirs="FedTGP", method="fedtgp"),
    Line(
        theirs="FedGen",
        method="fedgen",
        params={
            "shares": "head",
            "hidden": 64,
            "generator_rate": 0.1,
            "generator_steps": 100,
            "generator_batch": BATCH,
        },
    ),
    Line(
        theirs="FedMRL",
        method="fedmrl",
        params={"proxy": f"{_NETS}:a_of_32", "start": "equal", "weighting": "uniform"},
        rounds=ROUNDS + 1,
        measured="arrival_accuracy",
    ),
    Line(theirs="FedL2G-feat", method="fedl2g"),
    Line(theirs="FedL2G-logit", method="fedl2g", params={"on": "logits"}),
)

FED_AS_THERE = {"Local": (0,), "FedProto": (0,), "FedKD": (1,), "FedMRL": (0, 1, 2), "FedGen": (0, 1, 2)}
"""By algorithm the seeds that are run again with mini-batches as there: does their order matter, and the last one,
which is dropped?"""


@dataclass(frozen=True)
class Reference:
    """The reference's figures, and its partition of Fashion-MNIST."""

    figures: Mapping[str, Mapping[str, list[float]]]
    """Algorithm -> seed -> curve."""
    commit: str
    x: Floats  # (n, 28, 28)
    y: Ints  # (n,)
    device: Ints  # (n,)
    test: NDArray[np.bool_]  # (n,)

    def of(self, number: int) -> LocalData:
        """Return the samples of one device."""
        own, tested = self.device == number, self.test
        train, test = (Samples(self.x[own & part], self.y[own & part]) for part in (~tested, tested))
        return LocalData(train=train, test=test)


def read_reference() -> Reference:
    """Read both folders.  Raises UsageError, which says how to get them, where one is missing."""
    where, data = (os.environ.get(name) for name in ("EDGE_REFERENCE", "EDGE_DATA"))
    if not where or not data:
        raise UsageError(HOW_TO_GET_IT)
    try:
        table = json.loads((Path(where) / "htfllib.json").read_text(encoding="utf-8"))
        with np.load(Path(where) / "fm20_rows.npz") as rows:
            row, device, test = (rows[name] for name in ("row", "device", "test"))
        x, y = (array[row] for array in _pictures(Path(data)))
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}; {HOW_TO_GET_IT}") from error
    curves = {name: each["seeds"] for name, each in table["runs"].items()}
    scaled = ((x / 255 - 0.5) / 0.5).astype(np.float32)
    return Reference(curves, table["commit"], scaled, y.astype(np.int64), device.astype(np.int64), test.astype(bool))


def _pictures(folder: Path) -> tuple[AnyArray, AnyArray]:
    """Return all pictures of Fashion-MNIST and their labels, first those for training."""
    with tempfile.TemporaryDirectory() as made:
        file = folder / "fmnist.npz"
        if "x_train" not in np.load(file).files:
            packed, file = file, Path(made) / "fmnist.npz"
            subprocess.run([sys.executable, str(packed.with_name("unpack.py")), "fmnist", str(file)], check=True)
        with np.load(file) as given:
            return tuple(np.concatenate([given[f"{each}_train"], given[f"{each}_test"]]) for each in "xy")  # type: ignore[return-value]  # two


@dataclass(frozen=True)
class Run:
    """One run of ours: an algorithm of theirs, a seed, and how it departs from our defaults."""

    line: Line
    seed: int
    as_fed: bool = False
    """Whether mini-batches come as there: in the order of the samples, without a last one that is shorter."""

    @property
    def theirs(self) -> str:
        """Their algorithm."""
        return self.line.theirs

    @property
    def name(self) -> str:
        """The key of its figures."""
        return f"{self.line.theirs}{' as fed there' if self.as_fed else ''}, seed {self.seed}"

    @property
    def settings(self) -> dict[str, Any]:
        """The tables of the federation, without its data."""
        line = self.line
        return {
            "federation": {
                "name": "reference",
                "method": line.method,
                "rounds": line.rounds,
                "devices": DEVICES,
                "seed": self.seed,
                "feature_dim": 64,
                "start": "equal",
            },
            "train": {
                "optimiser": "sgd",
                "learning_rate": RATE,
                "batch_size": BATCH,
                "local_epochs": 1,
                "evaluate_every": ROUNDS,
                "instrument_every": ROUNDS + 1 if line.measured not in ("accuracy", "prototype") else 0,
            },
            "method": dict(line.params),
            "run": {"standalone": "off", "stack": False},
            "fleet": [{"count": 1, "model": f"{_NETS}:{'abc'[number % 3]}"} for number in range(DEVICES)],
        }

    @property
    def digest(self) -> str:
        """Return 12 hexadecimal digits that change with the settings."""
        whole = json.dumps([self.settings, self.line.measured, self.as_fed], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:12]

    def measured(self, reference: Reference) -> dict[str, Any]:
        """Run it, and return its figures: accuracies weighted by the devices' test samples."""
        begun_s = time.process_time()
        fleet, config = self._fleet(reference)
        tested = {each.kit.id: len(each.data.test or ()) for each in fleet.devices}
        found: dict[str, float] = {}

        def look(virtual: VirtualRun) -> None:
            if self.line.measured == "prototype":
                found["prototype"] = weighted(_by_prototypes(virtual), tested)

        with fed_in_order() if self.as_fed else nullcontext():
            result = run_in(None, config, fleet=fleet, finished=look)
        by_round = {entry.round: entry for entry in result.history}
        found["accuracy"] = weighted(by_round[ROUNDS].accuracy, tested)
        newest = result.history[-1].instruments
        found |= {name: weighted(newest[name], tested) for name in newest if name.endswith("_accuracy")}
        return {
            "ours": found[self.line.measured],
            "figures": found,
            "settings": self.digest,
            "cpu_s": time.process_time() - begun_s,
            "versions": versions(),
        }

    def _fleet(self, reference: Reference) -> tuple[Fleet, Config]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "data.npz"
            x, y = reference.x, reference.y  # only their shape and classes count: each device is given its own
            np.savez(file, x_train=x, y_train=y, x_test=x[:BATCH], y_test=y[:BATCH])
            tables = {
                **self.settings,
                "data": {"source": "npz", "path": str(file), "public": 0, "scale": 1.0},
                "partition": {"kind": "iid"},
            }
            config = parse(tables, Path(folder) / "reference.toml")
            fleet = build_fleet(config)
        devices = []
        for number, device in enumerate(fleet.devices):
            data = reference.of(number)
            if self.as_fed:
                data = dataclasses.replace(data, train=data.train.at(np.arange(len(data.train) // BATCH * BATCH)))
            devices.append(dataclasses.replace(device, held=CopiedSamples(data)))
        return dataclasses.replace(fleet, devices=tuple(devices)), config


def weighted(accuracies: Mapping[str, float], samples: Mapping[str, int]) -> float:
    """Return the mean accuracy over devices, weighted by their test samples."""
    return sum(accuracies[each] * samples[each] for each in samples) / sum(samples.values())


def _by_prototypes(virtual: VirtualRun) -> dict[str, float]:
    """Return each device's accuracy by the nearest prototype of all, those of the end."""
    prototypes, found = virtual.server.method_state.prototypes, {}
    for device, model in virtual.models():
        test = device.data.test
        nearest = NearestPrototype(prototypes, np.ones(model.spec.classes, np.int64))
        found[device.kit.id] = float((nearest(model.features(model.spec.preprocess(test.x))) == test.y).mean())
    return found


@contextmanager
def fed_in_order() -> Iterator[None]:
    """Let devices take their samples in the order in which they lie, in every round."""
    drawn = Job.private_batches

    def in_order(job: Job, steps: int) -> Private:
        size = min(job.spec.train.batch_size, job.samples)
        return Private((np.arange(steps * size) % job.samples).reshape(steps, size))

    Job.private_batches = in_order  # type: ignore[method-assign]  # what is measured here is what the order does
    try:
        yield
    finally:
        Job.private_batches = drawn  # type: ignore[method-assign]
