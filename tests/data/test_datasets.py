"""Data sets: how they are split, what they are named by, and which files are refused."""

from __future__ import annotations

import re
import zipfile

import numpy as np
import pytest

from edge_sdk.errors import UsageError
from edge_sim.config.settings import DataTable
from edge_sim.data.datasets import Dataset, load_dataset


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Dataset:
    return load_dataset(DataTable(public=400), 0, tmp_path_factory.getbasetemp())


def rows(x: np.ndarray) -> set[bytes]:
    return {sample.tobytes() for sample in x}


# -- digits ---------------------------------------------------------------------------------------------------------


def test_digits_are_split_into_private_public_and_test(digits):
    assert digits.public is not None
    assert (len(digits.private), len(digits.public), len(digits.test)) == (1038, 400, 359)
    assert digits.raw_shape == (8, 8)
    assert digits.private.x.dtype == np.uint8
    assert digits.classes == 10
    assert digits.private.x.max() * digits.scale == 1.0


def test_no_sample_stands_in_two_parts(digits):
    parts = [rows(digits.private.x), rows(digits.public.samples), rows(digits.test.x)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 1797  # all digits differ


def test_the_test_has_its_share_of_each_class(digits):
    _, all_y = zip(*_whole(digits), strict=True)
    whole, test = np.bincount(all_y), np.bincount(digits.test.y)
    assert [round(0.2 * int(n)) for n in whole] == test.tolist()


def _whole(digits: Dataset):
    """Every labelled digit of scikit-learn's."""
    from sklearn.datasets import load_digits  # heavy

    bunch = load_digits()
    assert rows(bunch.images.astype(np.uint8)) >= rows(digits.private.x)
    return list(zip(bunch.images, bunch.target, strict=True))


def test_the_test_fraction(tmp_path):
    half = load_dataset(DataTable(public=0, test_fraction=0.5), 0, tmp_path)
    assert abs(len(half.test) - 1797 / 2) <= 5
    assert half.public is None


def test_the_same_seed_is_the_same_split_and_another_is_another(digits, tmp_path):
    same, other = (load_dataset(DataTable(public=400), seed, tmp_path) for seed in (0, 1))
    assert same.sha256 == digits.sha256
    assert same.public.spec == digits.public.spec
    assert np.array_equal(same.private.x, digits.private.x)
    assert np.array_equal(same.private.y, digits.private.y)
    assert other.public.spec != digits.public.spec
    assert not np.array_equal(other.test.y, digits.test.y)


def test_the_hash_is_that_of_today(digits):
    """It stands in reports: another one for the same data would say that the data changed."""
    assert digits.sha256.startswith("8d669f1894754a87")
    assert digits.public.spec.sha256.hex().startswith("731937f2a35830c6")


def test_the_scale_can_be_given(tmp_path):
    assert load_dataset(DataTable(scale=0.5), 0, tmp_path).scale == 0.5


# -- npz ------------------------------------------------------------------------------------------------------------

GOOD = {
    "x_train": np.arange(80, dtype=np.uint8).reshape(20, 2, 2),
    "y_train": np.arange(20) % 4,
    "x_test": np.arange(32, dtype=np.uint8).reshape(8, 2, 2),
    "y_test": np.arange(8) % 4,
}


def loaded(folder, table: DataTable | None = None, **arrays) -> Dataset:
    kept = {name: array for name, array in {**GOOD, **arrays}.items() if array is not None}
    np.savez(folder / "mine.npz", **kept)
    return load_dataset(table or DataTable(source="npz", path="mine.npz", public=5), 0, folder)


def test_a_file_of_one_s_own(tmp_path):
    data = loaded(tmp_path)
    assert (len(data.private), len(data.public), len(data.test)) == (15, 5, 8)
    assert (data.name, data.classes, data.raw_shape, data.scale) == ("mine", 4, (2, 2), 1 / 255)
    assert rows(data.private.x) | rows(data.public.samples) == rows(GOOD["x_train"])
    assert np.array_equal(data.test.x, GOOD["x_test"])
    labels = {sample.tobytes(): y for sample, y in zip(GOOD["x_train"], GOOD["y_train"], strict=True)}
    assert [labels[sample.tobytes()] for sample in data.private.x] == data.private.y.tolist()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
def test_floats_become_f4_and_keep_their_scale(tmp_path, dtype):
    data = loaded(tmp_path, x_train=np.linspace(0, 1, 80).reshape(20, 4).astype(dtype), x_test=np.ones((8, 4), dtype))
    assert data.private.x.dtype == data.public.samples.dtype == data.test.x.dtype == np.dtype("<f4")
    assert data.scale == 1.0


@pytest.mark.parametrize("shape", [(4,), (2, 2), (2, 2, 1), (1, 2, 3)])
def test_flat_grey_and_coloured_samples(tmp_path, shape):
    data = loaded(tmp_path, x_train=np.zeros((20, *shape), np.uint8), x_test=np.zeros((8, *shape), np.uint8))
    assert data.raw_shape == shape


def test_a_class_that_only_the_test_has_counts(tmp_path):
    assert loaded(tmp_path, y_test=np.arange(8)).classes == 8


def test_the_hash_names_the_content_not_the_file(tmp_path):
    first = loaded(tmp_path)
    (tmp_path / "mine.npz").rename(tmp_path / "other.npz")
    other = load_dataset(DataTable(source="npz", path="other.npz", public=7), 3, tmp_path)
    assert other.sha256 == first.sha256
    assert loaded(tmp_path, y_test=np.zeros(8, int)).sha256 != first.sha256


X20, X8 = np.zeros((20, 2, 2), np.uint8), np.zeros((8, 2, 2), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y_test": None}, ("lacks the array y_test; ", ", found x_train, y_train, x_test")),
        ({"x_test": np.zeros((8, 3, 2), np.uint8)}, ("x_test: ", "x_train, (2, 2), found (3, 2)")),
        ({"x_train": np.zeros(20, np.uint8)}, ("x_train: ", "(n, h, w), (n, h, w, c) or (n, d)", "found (20,)")),
        ({"x_train": np.zeros((0, 2, 2), np.uint8), "y_train": np.zeros(0, int)}, ("x_train: ", "(n, h, w), ")),
        ({"x_train": X20.astype(np.int64)}, ("x_train: ", "uint8 or finite floats, found int64")),
        ({"x_train": X20.astype(str)}, ("x_train: ", "uint8 or finite floats, found <U")),
        ({"x_train": np.full((20, 2, 2), np.nan)}, ("x_train: ", "uint8 or finite floats, found float64")),
        ({"x_test": np.zeros((8, 2, 2))}, ("x_test: ", "uint8, like x_train, found float64")),
        ({"y_train": np.zeros(19, int)}, ("y_train: ", "20 integers, found int64 (19,)")),
        ({"y_train": np.zeros((20, 2), int)}, ("y_train: ", "20 integers, found int64 (20, 2)")),
        ({"y_train": np.zeros(20)}, ("y_train: ", "20 integers, found float64 (20,)")),
        ({"y_test": np.arange(8) - 1}, ("y_test: ", "from 0 to 65534", "found -1 to 6")),
        ({"y_test": np.arange(8) * 10**9}, ("y_test: ", "from 0 to 65534", "found 0 to 7000000000")),
        ({"y_train": np.zeros(20, int), "y_test": np.zeros(8, int)}, ("y_train: ", "2 classes", "only class 0")),
    ],
)
def test_a_file_that_is_not_as_it_should_be(tmp_path, arrays, words):
    with pytest.raises(UsageError) as caught:
        loaded(tmp_path, **arrays)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'mine.npz'}: {words[0]}")
    assert all(word in message for word in words)
    assert "\n" not in message


def _one_array(path):
    with path.open("wb") as file:
        np.save(file, GOOD["x_train"])


def _pickled(path):
    np.savez(path, **{**GOOD, "x_train": np.array([{"code": 1}], object)})


def _cut(path):
    np.savez_compressed(path, **GOOD)
    path.write_bytes(path.read_bytes()[:-100])


def _flipped(path, at: int = 60):
    np.savez_compressed(path, **{**GOOD, "x_train": np.random.default_rng(0).integers(0, 255, (20, 50, 50), np.uint8)})
    content = bytearray(path.read_bytes())
    content[at : at + 100] = bytes(100)
    path.write_bytes(content)


def _other_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", b"no array")
        for name in ("y_train", "x_test", "y_test"):
            archive.writestr(f"{name}.npy", b"")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"once upon a time"),
        lambda path: path.write_bytes(b"PK\x03\x04 not a zip file"),
        lambda path: path.mkdir(),
        _one_array,
        _pickled,
        _cut,
        _flipped,
        lambda path: _flipped(path, 10_000),
        _other_zip,
    ],
    ids=[
        "empty",
        "text",
        "half a zip",
        "a folder",
        "one array",
        "pickled",
        "cut off",
        "damaged",
        "damaged later",
        "another zip",
    ],
)
def test_a_file_that_is_no_npz(tmp_path, make):
    make(tmp_path / "mine.npz")
    with pytest.raises(UsageError, match=r"^data\.path: .*mine\.npz: .*readable npz") as caught:
        load_dataset(DataTable(source="npz", path="mine.npz"), 0, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"^data\.path: .*none\.npz: .*such file$"):
        load_dataset(DataTable(source="npz", path="none.npz"), 0, tmp_path)


def test_some_samples_must_stay_private(tmp_path):
    with pytest.raises(UsageError) as caught:
        loaded(tmp_path, DataTable(source="npz", path="mine.npz", public=20))
    assert re.match("data.public: .*fewer .*20 .*found 20", str(caught.value))
