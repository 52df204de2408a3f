"""The usual data sets, from tiny files in their own formats: idx, pickled batches, MATLAB."""

from __future__ import annotations

import importlib.util
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.errors import MissingExtra, UsageError

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("torchvision") is None:
    pytest.skip("needs torch and torchvision: pip install 'edge-sdk[vision]'", allow_module_level=True)

from edge_sim.data.sources import torch_sources  # only where torchvision is
from edge_sim.models.torch_vision import datasets

pytestmark = pytest.mark.torch
TRAIN, TEST = 7, 3


def pictures(count: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


def write_idx_set(folder: Path, parts: tuple[str, str], first_label: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The four files of MNIST's kind; the training part is returned."""
    for part, count in zip(parts, (TRAIN, TEST), strict=True):
        write_idx(folder / f"{part}-images-idx3-ubyte", pictures(count, (28, 28), count))
        write_idx(folder / f"{part}-labels-idx1-ubyte", (np.arange(count) + first_label).astype(np.uint8))
    return pictures(TRAIN, (28, 28), TRAIN), np.arange(TRAIN)


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_mnist_and_fashion_mnist(tmp_path: Path, name: str, folder: str) -> None:
    x, y = write_idx_set(tmp_path / folder / "raw", ("train", "t10k"))
    whole = torch_sources.read_torchvision(name, tmp_path, "balanced")
    assert (whole.name, whole.scale, len(whole.test)) == (name, 1 / 255, TEST)
    assert whole.class_names[:2] == {"mnist": ("0", "1"), "fashion-mnist": ("T-shirt/top", "Trouser")}[name]
    assert (whole.train.x.dtype, whole.train.y.dtype) == (np.uint8, np.int64)
    np.testing.assert_array_equal(whole.train.x, x)
    np.testing.assert_array_equal(whole.train.y, y)


@pytest.mark.parametrize(("split", "first_label"), [("balanced", 0), ("letters", 1)])
def test_emnist_is_turned_upright_and_counts_from_0(tmp_path: Path, split: str, first_label: int) -> None:
    x, y = write_idx_set(tmp_path / "EMNIST/raw", (f"emnist-{split}-train", f"emnist-{split}-test"), first_label)
    whole = torch_sources.read_torchvision("emnist", tmp_path, split)
    assert whole.class_names[9:11] == {"balanced": ("9", "A"), "letters": ("j", "k")}[split]
    np.testing.assert_array_equal(whole.train.x, x.transpose(0, 2, 1))
    np.testing.assert_array_equal(whole.train.y, y)


@pytest.fixture
def any_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loaders of CIFAR and SVHN know the checksums of the real files."""
    for module in ("cifar", "svhn"):
        target = importlib.import_module(f"torchvision.datasets.{module}")
        monkeypatch.setattr(target, "check_integrity", lambda path, _md5=None: Path(path).is_file())


def write_cifar(folder: Path, files: dict[str, int], labels: str, meta: dict[str, object]) -> None:
    folder.mkdir(parents=True)
    for seed, (name, count) in enumerate(files.items()):
        batch = {"data": pictures(count, (3, 32, 32), seed).reshape(count, -1), labels: list(range(count))}
        (folder / name).write_bytes(pickle.dumps(batch))
    name, content = meta.popitem()
    (folder / name).write_bytes(pickle.dumps(content))


@pytest.mark.usefixtures("any_checksum")
def test_cifar10_joins_its_batches(tmp_path: Path) -> None:
    files = {**{f"data_batch_{i}": TRAIN for i in range(1, 6)}, "test_batch": TEST}
    write_cifar(tmp_path / "cifar-10-batches-py", files, "labels", {"batches.meta": {"label_names": ["plane"]}})
    whole = torch_sources.read_torchvision("cifar10", tmp_path, "balanced")
    assert whole.train.x.shape == (5 * TRAIN, 32, 32, 3)
    assert whole.train.x.flags.c_contiguous
    np.testing.assert_array_equal(
        whole.train.x[TRAIN : 2 * TRAIN], pictures(TRAIN, (3, 32, 32), 1).transpose(0, 2, 3, 1)
    )
    np.testing.assert_array_equal(whole.train.y, np.tile(np.arange(TRAIN), 5))
    assert whole.class_names == ("plane",)


@pytest.mark.usefixtures("any_checksum")
def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    meta = {"meta": {"fine_label_names": ["apple"]}}
    write_cifar(tmp_path / "cifar-100-python", {"train": TRAIN, "test": TEST}, "fine_labels", meta)
    whole = torch_sources.read_torchvision("cifar100", tmp_path, "balanced")
    assert (whole.train.x.shape, len(whole.test)) == ((TRAIN, 32, 32, 3), TEST)
    np.testing.assert_array_equal(whole.train.y, np.arange(TRAIN))


def write_svhn(root: Path) -> np.ndarray:
    """MATLAB files as of the authors: (32, 32, 3, n), and a label of 10 for the digit 0."""
    savemat = pytest.importorskip("scipy.io", reason="svhn needs scipy").savemat
    for part, count in (("train", TRAIN), ("test", TEST)):
        x = pictures(count, (32, 32, 3), count).transpose(1, 2, 3, 0)
        savemat(root / f"{part}_32x32.mat", {"X": x, "y": np.arange(10, 10 - count, -1).astype(np.uint8)[:, None]})
    return pictures(TRAIN, (32, 32, 3), TRAIN)


@pytest.mark.usefixtures("any_checksum")
def test_svhn(tmp_path: Path) -> None:
    x = write_svhn(tmp_path)
    whole = torch_sources.read_torchvision("svhn", tmp_path, "balanced")
    np.testing.assert_array_equal(whole.train.x, x)
    np.testing.assert_array_equal(whole.train.y, [0, 9, 8, 7, 6, 5, 4])


@pytest.mark.parametrize("name", torch_sources.FILES)
def test_absent_files_are_named_on_one_line(tmp_path: Path, name: str) -> None:
    first = torch_sources.FILES[name][0].format("letters")
    with pytest.raises(UsageError) as caught:
        torch_sources.read_torchvision(name, tmp_path, "letters")
    message = str(caught.value)
    assert message.startswith(f"data.root: {tmp_path}: {name} needs {first} and ")
    assert "nothing is downloaded" in message
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_told_from_an_absent_one(tmp_path: Path) -> None:
    write_idx_set(tmp_path / "MNIST/raw", ("train", "t10k"))
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte").write_bytes(b"\x00\x00\x08")
    with pytest.raises(UsageError, match="mnist is damaged"):
        torch_sources.read_torchvision("mnist", tmp_path, "balanced")
    write_svhn(tmp_path)
    with pytest.raises(UsageError, match="svhn is damaged"):  # its checksum is not that of the real one
        torch_sources.read_torchvision("svhn", tmp_path, "balanced")


@pytest.mark.usefixtures("any_checksum")
def test_svhn_without_scipy_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_svhn(tmp_path)
    monkeypatch.setitem(importlib.import_module("sys").modules, "scipy.io", None)
    with pytest.raises(MissingExtra, match=r"svhn needs .*scipy.*\[vision\]"):
        torch_sources.read_torchvision("svhn", tmp_path, "balanced")


def test_every_listed_file_is_one_that_the_loader_looks_for() -> None:
    for name, loader in (("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)):
        asked = {file for file, _ in loader.train_list + loader.test_list} | {loader.meta["filename"]}
        assert {f"{loader.base_folder}/{file}" for file in asked} == set(torch_sources.FILES[name])
    assert {datasets.SVHN.split_list[part][1] for part in ("train", "test")} == set(torch_sources.FILES["svhn"])
    asked = {url.removesuffix(".gz") for url, _ in datasets.MNIST.resources}
    assert {f"MNIST/raw/{file}" for file in asked} == set(torch_sources.FILES["mnist"])
