"""The tasks of the benchmark: data, division among devices, nets by board, and the scales at which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.at_rest.foreign import UNREADABLE
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.registry import load_method, method_fault, method_names, needed_parameters
from edge_sdk.samples.texts import hashed_words
from edge_sim.bench import vibration
from edge_sim.config import settings
from edge_sim.config.settings import Config

Arrays: TypeAlias = "dict[str, NDArray[Any]]"
"""x_train (n, ...), y_train (n,), x_test (m, ...), y_test (m,), and where persons are known user_train (n,)."""
NetGroup: TypeAlias = Literal["mixed", "one-net"]
GROUPS: tuple[NetGroup, ...] = ("mixed", "one-net")
"""Nets of several sizes, each for its board; or one net for all, for methods that average whole nets."""
VOCABULARY, WORDS = 5000, 32
"""Ids of hashed words, and how many words of a text are kept."""
DIRICHLET = {"kind": "dirichlet", "alpha": 0.3, "min_samples": 8}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of each task is run."""

    rounds: int
    local_steps: int
    train_samples: int
    """Samples of all devices and the public set together; a task of persons takes all that it has."""
    test_samples: int
    public: int
    devices: int
    """Number of devices at most; a task of persons has one for each person if that is fewer."""
    shrink: int = 2
    """Pixels of the source for one pixel here, along each side."""
    seeds: tuple[int, ...] = (0, 1, 2)
    methods: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Parameters of methods that are not at their defaults, so that the coordinator's steps keep to the scale."""


FEWER: Mapping[str, Mapping[str, int]] = {
    "creff": {"match_steps": 20, "retrain_epochs": 30},
    "feddf": {"steps": 20},
    "feddf_al": {"tau": 5},
}
"""A tenth to a third of the default steps, for scales with a tenth of the default rounds."""
SCALES: Mapping[str, Scale] = {
    "smoke": Scale(
        rounds=1, local_steps=1, train_samples=240, test_samples=40, public=16, devices=3, seeds=(0,), methods=FEWER
    ),
    "small": Scale(
        rounds=20, local_steps=5, train_samples=1500, test_samples=400, public=200, devices=6, methods=FEWER
    ),
    "full": Scale(
        rounds=100, local_steps=10, train_samples=10_000, test_samples=2000, public=1000, devices=30, shrink=1
    ),
}


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of the benchmark."""

    name: str
    modality: str
    about: str
    """The samples and their division, in words."""
    nets: tuple[str, ...]
    """Families from small to large: the faster a board, the larger its net.  The first is the one net for all."""
    partition: Mapping[str, Any]
    prepare: Callable[[Arrays, Scale], Arrays] = lambda arrays, _scale: arrays
    """Turns the arrays of the file into those that the run reads."""
    file: str = ""
    """The file in the data folder, or empty if the data are generated."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Keys of [data] for samples that are not pictures or vectors."""
    train: Mapping[str, Any] = field(default_factory=dict)
    """Keys of [train] where the samples need other ones."""
    times: int = 1
    """The factor on the scale's training samples."""
    asked: int = 0
    """Number of devices that take part in a round, where these are not all."""
    persons: int = 0
    """Number of persons who recorded the samples, if they are the devices."""
    source: str = ""
    """Where to get the data, and what the file must hold."""

    def devices(self, scale: Scale) -> int:
        """Return the number of devices at a scale."""
        return self.persons if self.persons and scale.devices > 3 else scale.devices

    def missing(self, data: Path) -> str:
        """Return the line that says how to get the data, or empty if they are there."""
        path = data / self.file
        if not self.file or path.is_file():
            return ""
        return f"{self.name}: no {path}: {self.source} (EDGE_DATA or --data names the folder)"

    def written(self, data: Path, out: Path, scale: Scale) -> Path:
        """Write the data at a scale into `out`, unless they are there, and return the file.  Raises UsageError."""
        path = out / f"{self.name}.npz"
        if not path.exists():
            arrays: dict[str, Any] = self.prepare(_read(data / self.file) if self.file else {}, scale)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".part.npz")
            np.savez(partial, **arrays)
            partial.replace(path)
        return path


def config_of(task: Task, group: NetGroup, path: Path, scale: Scale, boards: Sequence[str]) -> Config:
    """Return the federation of a task whose data lie in `path`.  Raises UsageError for an unknown board."""
    devices, rounds = task.devices(scale), scale.rounds
    model = f"board:{','.join(task.nets)}" if group == "mixed" else task.nets[0]
    shares = [len(part) for part in np.array_split(np.arange(devices), len(boards))]
    kept = {} if task.persons else {"train_samples": task.times * scale.train_samples}
    tables = {
        "federation": {
            "name": f"{task.name}-{group}",
            "method": "local",
            "rounds": rounds,
            "devices": devices,
            "feature_dim": 64,
            **({"participants": task.asked} if 0 < task.asked < devices else {}),
        },
        "train": {
            "optimiser": "sgd",
            "learning_rate": 0.05,
            "momentum": 0.9,
            "batch_size": 16,
            "local_steps": scale.local_steps,
            "evaluate_every": max(1, rounds // 4),
            "instrument_every": 0,
            **task.train,
        },
        "data": {
            "source": "npz",
            "path": str(path),
            "normalise": "fit",
            "public": scale.public,
            "test_samples": scale.test_samples,
            **kept,
            **task.data,
        },
        "partition": dict(task.partition),
        "method": {**{name: dict(params) for name, params in scale.methods.items()}, **_proxies(task)},
        "run": {"standalone": False},
        "fleet": [
            {"count": count, "board": board, "model": model}
            for board, count in zip(boards, shares, strict=True)
            if count
        ],
    }
    return settings.parse(tables, path.with_name(f"{task.name}.toml"))


def _proxies(task: Task) -> Mapping[str, Mapping[str, str]]:
    """Return the smallest net as the proxy of each method that has one, where the methods' default does not fit."""
    names = [name for name in method_names() if not method_fault(name)] if task.nets[0] != "mlp" else []
    methods = {name: load_method(name) for name in names}
    return {
        name: {"proxy": task.nets[0]}
        for name, method in methods.items()
        if not needed_parameters(method) and "proxy" in method().needs
    }


def _read(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except UNREADABLE as error:
        raise UsageError(f"{path}: not a readable npz file ({type(error).__name__}); {TASKS_NEED}") from None


TASKS_NEED = "put x_train, y_train, x_test and y_test there"


def _some(arrays: Arrays, scale: Scale) -> Arrays:
    """Return a random part of the samples, four times as many as a run takes: each seed draws its own from it."""
    rng, found = np.random.default_rng(0), dict(arrays)
    for part, count in (("train", 4 * scale.train_samples), ("test", 4 * scale.test_samples)):
        y = arrays[f"y_{part}"]
        rows = np.sort(rng.permutation(len(y))[:count])
        found |= {name: arrays[name][rows] for name in arrays if name.endswith(f"_{part}")}
    return found


def _pictures(arrays: Arrays, scale: Scale) -> Arrays:
    """Return a part of the pictures, (n, h, w) or (n, h, w, c), each pixel the mean of shrink x shrink pixels."""
    found, side = _some(arrays, scale), scale.shrink
    for name in ("x_train", "x_test"):
        x = found[name]
        h, w = x.shape[1] // side, x.shape[2] // side
        blocks = x.reshape(len(x), h, side, w, side, *x.shape[3:])
        found[name] = blocks.mean(axis=(2, 4)).round().astype(np.uint8)
    return found


def _texts(arrays: Arrays, scale: Scale) -> Arrays:
    """Return texts (n,) as hashed ids of their words (n, WORDS)."""
    found = _some(arrays, scale)
    for name in ("x_train", "x_test"):
        found[name] = hashed_words(map(str, found[name]), vocabulary=VOCABULARY, length=WORDS)
    return found


def _windows(arrays: Arrays, scale: Scale) -> Arrays:
    """Return windows (n, t, d) with the mean of shrink x shrink steps in place of each."""
    steps, found = scale.shrink**2, dict(arrays)
    for name in ("x_train", "x_test"):
        n, t, d = arrays[name].shape
        found[name] = arrays[name].reshape(n, t // steps, steps, d).mean(axis=2)
    return found


def _spectra(_arrays: Arrays, scale: Scale) -> Arrays:
    train, test = 2 * scale.train_samples, 2 * scale.test_samples
    x, y = vibration.samples(train + test, vibration.SEED)
    return {"x_train": x[:train], "y_train": y[:train], "x_test": x[train:], "y_test": y[train:]}


def _of_pictures(name: str, modality: str, about: str, dataset: str, shape: str) -> Task:
    """Return the task of a data set of torchvision, whose pictures have this shape."""
    return Task(
        name=name,
        modality=modality,
        about=f"{about}; Dirichlet(0.3)",
        nets=("mlp", "mlp-wide", "cnn"),
        partition=DIRICHLET,
        prepare=_pictures,
        file=f"{name}.npz",
        source=f"{dataset}: x_train and x_test (n, {shape}) uint8, y_train and y_test; "
        f"torchvision.datasets.{dataset} downloads it",
    )


TASKS: tuple[Task, ...] = (
    Task(
        name="vibration",
        modality="spectra",
        about="spectra of a synthesised vibration signal, eight conditions; Dirichlet(0.3)",
        nets=("mlp", "mlp-wide", "cnn"),
        partition=DIRICHLET,
        prepare=_spectra,
    ),
    Task(
        name="ag-news",
        modality="text",
        about="the first 32 words of short news, four topics; Dirichlet(1), four times the samples, Adam at 0.01",
        nets=("text-bag", "text-cnn"),
        partition={**DIRICHLET, "alpha": 1.0},
        train={"optimiser": "adam", "learning_rate": 0.01, "momentum": 0.0},
        times=4,
        data={"kind": "tokens", "vocabulary": VOCABULARY, "normalise": "none"},
        prepare=_texts,
        file="ag_news.npz",
        source="AG News (Zhang et al. 2015): x_train and x_test are texts (n,), y_train and y_test topics from 0",
    ),
    Task(
        name="uci-har",
        modality="sensor windows",
        about="windows of a phone's sensors, six activities; one device for each of 21 persons, 7 in each round",
        nets=("mlp", "series-cnn", "series-cnn-wide"),
        partition={"kind": "user"},
        data={"kind": "series"},
        prepare=_windows,
        asked=7,
        file="uci_har.npz",
        persons=21,
        source="UCI HAR (Anguita et al. 2013, archive.ics.uci.edu, dataset 240): x_train and x_test (n, 128, 9), "
        "y_train and y_test activities from 0, user_train the person of each window",
    ),
    _of_pictures("mnist", "grey pictures", "handwritten digits", "MNIST", "28, 28"),
    _of_pictures("cifar10", "colour pictures", "small photographs of ten kinds", "CIFAR10", "32, 32, 3"),
)
"""All tasks, the cheapest first."""
