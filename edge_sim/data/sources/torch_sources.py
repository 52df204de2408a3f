"""Common data sets, read by torchvision's loaders from files that already exist: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.data import Samples
from edge_sdk.errors import MissingExtra, UsageError
from edge_sim.data.sources.base import SourceData
from edge_sim.models.torch_vision import datasets

Loader = Callable[[Path, bool], Samples]
"""A function (root, whether to read the training part) -> raw samples."""


def read_torchvision(name: str, root: Path, emnist_split: str) -> SourceData:
    """Read the data set of this name as unscaled bytes: u1 (n, 28, 28) or (n, 32, 32, 3).

    Raises UsageError saying which files are missing or damaged, MissingExtra for SVHN without scipy.
    """
    files = [file.format(emnist_split) for file in FILES[name]]
    missing = [file for file in files if not (root / file).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UsageError(
            f"data.root: {root}: {name} needs {missing[0]}{more} there, as torchvision lays them out; "
            f"nothing is downloaded.  Expected are {', '.join(files)}"
        )
    load = partial(_emnist, emnist_split) if name == "emnist" else LOADERS[name]
    try:
        train, test = load(root, True), load(root, False)  # noqa: FBT003  # the loaders' own flag
    except ImportError as error:
        raise MissingExtra(error.name or "scipy", "vision", name) from None
    except Exception as error:  # noqa: BLE001  # a damaged file makes the loaders raise a dozen kinds of errors
        raise UsageError(f"data.root: {root}: a file of {name} is damaged ({error}); get it again") from None
    return SourceData(name=name, train=train, test=test, scale=1 / 255, class_names=train.class_names)


def _grey(dataset: Any, root: Path, train: bool) -> Samples:
    """Read MNIST or Fashion-MNIST: (n, 28, 28)."""
    found = dataset(root, train=train, download=False)
    names = tuple(name.partition(" - ")[0] for name in found.classes)  # MNIST's are as "0 - zero"
    return Samples(found.data.numpy(), found.targets.numpy(), names)


def _emnist(split: str, root: Path, train: bool) -> Samples:
    """Read EMNIST: (n, 28, 28).  Its files hold the pictures transposed, and count the letters from 1."""
    found = datasets.EMNIST(root, split=split, train=train, download=False)
    first = 1 if split == "letters" else 0
    x, y = found.data.numpy().transpose(0, 2, 1), found.targets.numpy() - first
    return Samples(np.ascontiguousarray(x), y, tuple(found.classes[first:]))


def _colour(dataset: Any, root: Path, train: bool) -> Samples:
    """Read CIFAR-10 or, with its fine labels, CIFAR-100: (n, 32, 32, 3)."""
    found = dataset(root, train=train, download=False)
    return Samples(_bytes(found.data), np.array(found.targets, np.int64), tuple(found.classes))


def _svhn(root: Path, train: bool) -> Samples:
    """Read SVHN without its `extra` part: (n, 32, 32, 3)."""
    found = datasets.SVHN(root, split="train" if train else "test", download=False)
    return Samples(_bytes(found.data.transpose(0, 2, 3, 1)), found.labels)


def _bytes(x: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(x, np.uint8)


def _idx(folder: str, train: str, test: str) -> tuple[str, ...]:
    parts = (train, test)
    return tuple(f"{folder}/raw/{part}-{kind}" for part in parts for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))


FILES: dict[str, tuple[str, ...]] = {
    "mnist": _idx("MNIST", "train", "t10k"),
    "fashion-mnist": _idx("FashionMNIST", "train", "t10k"),
    "emnist": _idx("EMNIST", "emnist-{0}-train", "emnist-{0}-test"),
    "svhn": ("train_32x32.mat", "test_32x32.mat"),
    "cifar10": (
        *(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)),
        "cifar-10-batches-py/test_batch",
        "cifar-10-batches-py/batches.meta",
    ),
    "cifar100": tuple(f"cifar-100-python/{file}" for file in ("train", "test", "meta")),
}
"""Files of each data set under the root; {0} stands for EMNIST's split."""

LOADERS: dict[str, Loader] = {
    "mnist": partial(_grey, datasets.MNIST),
    "fashion-mnist": partial(_grey, datasets.FashionMNIST),
    "svhn": _svhn,
    "cifar10": partial(_colour, datasets.CIFAR10),
    "cifar100": partial(_colour, datasets.CIFAR100),
}
