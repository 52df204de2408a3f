"""[data] source = "npz": what fits is read as it is, what does not is refused with the array and the find."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.errors import UsageError
from edge_sim.data.sources import npz


def arrays(n: int = 12, m: int = 6, shape: tuple[int, ...] = (4, 5), dtype: type = np.uint8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 200, (n, *shape)).astype(dtype),
        "y_train": np.arange(n) % 3,
        "x_test": rng.integers(0, 200, (m, *shape)).astype(dtype),
        "y_test": (np.arange(m) % 3).astype(np.uint8),
    }


def write(path: Path, **changes: object) -> Path:
    np.savez(path, **{**arrays(), **changes})
    return path


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3), (7,)])
@pytest.mark.parametrize(("dtype", "scale"), [(np.uint8, 1 / 255), (np.float32, 1.0)])
def test_samples_stay_as_they_were_recorded(tmp_path: Path, shape, dtype, scale) -> None:
    given = arrays(shape=shape, dtype=dtype)
    np.savez(tmp_path / "plants.npz", **given)
    whole = npz.read_npz(tmp_path / "plants.npz")
    assert (whole.name, whole.scale, whole.users) == ("plants", scale, None)
    for part, samples in (("train", whole.train), ("test", whole.test)):
        assert samples.x.dtype == dtype
        assert samples.y.dtype == np.int64
        np.testing.assert_array_equal(samples.x, given[f"x_{part}"])
        np.testing.assert_array_equal(samples.y, given[f"y_{part}"])


@pytest.mark.parametrize("users", [np.arange(12) // 4, np.array(["ann", "bo"] * 6)])
def test_users_come_along(tmp_path: Path, users) -> None:
    np.testing.assert_array_equal(npz.read_npz(write(tmp_path / "a.npz", user_train=users)).users, users)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x_train": np.where(np.arange(240).reshape(12, 4, 5) < 60, 1, np.nan)},
            r"x_train: .* NaN or Inf in 9 .* first of them 3",
        ),
        ({"y_train": np.array([0, 1, -1] * 4)}, r"y_train: .* found -1 to 1, .* sample 2"),
        ({"y_test": np.array([0, 70_000] * 3)}, r"y_test: .* found 0 to 70000, .* sample 1"),
        (
            {"user_train": np.zeros(5, int)},
            r"user_train: expected .* 12 .* int64 \(5,\)",
        ),
        ({"user_train": np.zeros(12)}, r"user_train: expected .* found float64 \(12,\)"),
        ({"y_train": np.array([{}] * 12)}, r"not a readable npz file: y_train: it holds Python objects"),
    ],
)
def test_the_sample_or_the_array_at_fault_is_named(tmp_path: Path, changes, message) -> None:
    """What else is refused: tests/data/test_datasets.py."""
    if "x_train" in changes:
        changes = {**changes, "x_test": np.ones((6, 4, 5))}
    with pytest.raises(UsageError, match=rf"a\.npz: {message}"):
        npz.read_npz(write(tmp_path / "a.npz", **changes))


@pytest.mark.parametrize("least_mapped", [1, 2**30])
def test_a_file_with_a_flipped_byte_is_an_error_that_names_it_or_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least_mapped: int
) -> None:
    monkeypatch.setattr(npz, "LEAST_MAPPED_BYTES", least_mapped)
    whole = write(tmp_path / "a.npz").read_bytes()
    for at in range(len(whole)):
        (tmp_path / "b.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 0x15]) + whole[at + 1 :])
        try:
            npz.read_npz(tmp_path / "b.npz")
        except UsageError as error:
            assert "b.npz: " in str(error)  # noqa: PT017  # either will do


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_large_samples_for_training_stay_in_the_file(tmp_path: Path, monkeypatch, dtype, save) -> None:
    given = arrays(shape=(30, 30), dtype=dtype)
    save(tmp_path / "a.npz", **given)
    monkeypatch.setattr(npz, "LEAST_MAPPED_BYTES", 1000)
    whole = npz.read_npz(tmp_path / "a.npz")
    x = whole.train.x
    np.testing.assert_array_equal(x, given["x_train"])
    while isinstance(x.base, np.ndarray):
        x = x.base
    in_the_file = isinstance(x.base, mmap.mmap)
    assert in_the_file == (save is np.savez and dtype is not np.float64)
    assert type(whole.train.x) is np.ndarray
    assert type(whole.train.at(np.arange(3)).x.base) is not mmap.mmap  # what a device takes is a copy


def test_what_stays_in_the_file_needs_no_memory_and_the_test_set_does(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(npz, "LEAST_MAPPED_BYTES", 10_000)
    monkeypatch.setattr(npz, "machine_bytes", lambda: 2**20)
    np.savez(tmp_path / "a.npz", **arrays(n=400, shape=(64, 64)))  # 1.6 MiB to train on
    assert len(npz.read_npz(tmp_path / "a.npz").train) == 400
    np.savez_compressed(tmp_path / "b.npz", **arrays(n=400, shape=(64, 64)))
    with pytest.raises(UsageError, match=r"^data\.path: .*its arrays take 2 MiB.*uncompressed \(numpy\.savez\)"):
        npz.read_npz(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", **arrays(m=90, shape=(64, 64)))
    with pytest.raises(
        UsageError, match=r"the test set as models take it 1 MiB, and this machine has 1 MiB: write fewer"
    ):
        npz.read_npz(tmp_path / "c.npz")
