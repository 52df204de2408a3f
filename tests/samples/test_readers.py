"""Labelled samples that lie somewhere already: npz files, folders, datasets of torch."""

from __future__ import annotations

import numpy as np
import pytest

import edge_sdk
from edge_sdk.errors import UsageError

X = np.arange(24, dtype=np.float32).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2])


def test_npz(tmp_path):
    np.savez(tmp_path / "s.npz", x=X, y=Y, x_later=X[:2].astype(np.uint8), y_later=Y[:2])
    samples = edge_sdk.samples_from_npz(tmp_path / "s.npz")
    assert (samples.x == X).all()
    assert (samples.y == Y).all()
    assert edge_sdk.samples_from_npz(tmp_path / "s.npz", x="x_later", y="y_later").x.dtype == np.uint8


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"x": X}, "y"),
        ({"x": X, "y": Y[:3]}, "s.npz: y: expected 6 labels"),
        ({"x": X, "y": Y - 1}, "labels"),
        ({"x": X, "y": Y * 1.5}, "s.npz: y: expected 6 labels"),
        ({"x": X * np.nan, "y": Y}, "NaN"),
        ({"x": X.astype(int), "y": Y}, "int64"),
        ({"x": X[:, 0], "y": Y}, "(6,)"),
        ({"x": X.astype(object), "y": Y}, "npz"),
    ],
)
def test_npz_that_does_not_fit(tmp_path, arrays, named):
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(UsageError) as raised:
        edge_sdk.samples_from_npz(tmp_path / "s.npz")
    assert named in str(raised.value)
    assert "s.npz" in str(raised.value)


def test_npz_that_is_none(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        edge_sdk.samples_from_npz(tmp_path / "s.npz")
    (tmp_path / "s.npz").write_bytes(b"PK rubbish")
    with pytest.raises(UsageError, match=r"s\.npz"):
        edge_sdk.samples_from_npz(tmp_path / "s.npz")


@pytest.fixture
def folder(tmp_path):
    for name, y in (("inner", 1), ("outer", 2)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(3):
            np.save(tmp_path / "data" / name / f"{i}.npy", np.full(4, 10 * y + i, np.float32))
    return tmp_path / "data"


def test_a_folder_of_arrays(folder):
    samples = edge_sdk.samples_from_folder(folder, classes=["healthy", "inner", "outer"])
    assert samples.x[:, 0].tolist() == [10, 11, 12, 20, 21, 22]
    assert samples.y.tolist() == [1, 1, 1, 2, 2, 2]
    assert edge_sdk.samples_from_folder(folder).y.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_folder_of_pictures(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name, value in (("a", 10), ("b", 200)):
        (tmp_path / name).mkdir()
        image.fromarray(np.full((8, 6), value, np.uint8)).save(tmp_path / name / "one.png")
    samples = edge_sdk.samples_from_folder(tmp_path)
    assert samples.x.shape == (2, 8, 6)
    assert samples.x[1, 0, 0] == 200
    assert edge_sdk.samples_from_folder(tmp_path, size=(4, 4)).x.shape == (2, 4, 4)
    image.fromarray(np.zeros((3, 3), np.uint8)).save(tmp_path / "a" / "two.png")
    with pytest.raises(UsageError, match=r"two\.png|one\.png"):
        edge_sdk.samples_from_folder(tmp_path)


def test_a_folder_that_does_not_fit(folder, tmp_path):
    with pytest.raises(UsageError, match="outer"):
        edge_sdk.samples_from_folder(folder, classes=["inner"])
    with pytest.raises(UsageError, match="nowhere"):
        edge_sdk.samples_from_folder(tmp_path / "nowhere")
    (tmp_path / "empty" / "a").mkdir(parents=True)
    with pytest.raises(UsageError, match="empty"):
        edge_sdk.samples_from_folder(tmp_path / "empty")
    (folder / "inner" / "0.npy").write_bytes(b"rubbish")
    with pytest.raises(UsageError, match=r"0\.npy"):
        edge_sdk.samples_from_folder(folder)
    np.save(folder / "inner" / "0.npy", np.zeros(5, np.float32))
    with pytest.raises(UsageError, match=r"1\.npy"):
        edge_sdk.samples_from_folder(folder)
    (folder / "inner" / "0.npy").rename(folder / "inner" / "0.png")
    with pytest.raises(UsageError, match="one kind"):
        edge_sdk.samples_from_folder(folder)


def test_a_sequence_of_pairs():
    samples = edge_sdk.samples_from_torch([(X[i], int(Y[i])) for i in range(6)])
    assert (samples.x == X).all()
    assert (samples.y == Y).all()


@pytest.mark.parametrize(
    "dataset",
    [
        iter([]),
        [],
        [1, 2],
        [(X[0], 0, 1)],
        [(X[0], 0), (X[0, :2], 1)],
        [(X[0], 0.5)],
        [("text", 0)],
        [(X[0] * np.nan, 0)],
    ],
)
def test_a_dataset_that_does_not_fit(dataset):
    with pytest.raises(UsageError):
        edge_sdk.samples_from_torch(dataset)


@pytest.mark.torch
def test_a_dataset_of_torch():
    torch = pytest.importorskip("torch")
    data = torch.utils.data
    colour = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    samples = edge_sdk.samples_from_torch(data.TensorDataset(colour, torch.tensor([1, 0])))
    assert (samples.x == np.moveaxis(colour.numpy(), 1, -1)).all()
    assert samples.y.tolist() == [1, 0]
    grey = data.Subset(data.TensorDataset(colour[:, :1], torch.tensor([1, 0])), [1])
    assert (edge_sdk.samples_from_torch(grey).x == colour.numpy()[1:, 0]).all()

    class Endless(data.IterableDataset):
        def __iter__(self):
            yield colour[0], 0

    with pytest.raises(UsageError, match="SampleStore"):
        edge_sdk.samples_from_torch(Endless())


def test_parts_are_those_of_a_store():
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    samples = edge_sdk.Samples(x, np.arange(200) % 3)
    data = edge_sdk.split_samples(samples, (0.5, 0.25, 0.25), seed=3)
    store = edge_sdk.SampleStore(None, classes=3, split=(0.5, 0.25, 0.25), seed=3)
    for one, y in zip(samples.x, samples.y, strict=True):
        store.observe(one, y)
    kept = store.take_snapshot().data
    for part in ("train", "validation", "local_test"):
        assert (getattr(data, part).x == getattr(kept, part).x).all()
        assert (getattr(data, part).y == getattr(kept, part).y).all()
    nan = float("nan")
    for wrong in ((0.5, 0.6, 0.1), (nan, 0, 0), (0.8, nan, 0.1), 0.8, ("0.8", "0.1", "0.1"), None):
        with pytest.raises(UsageError, match="split"):
            edge_sdk.split_samples(samples, wrong)


@pytest.mark.torch
def test_texts_and_series_of_several_lengths_in_datasets_of_torch() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, TensorDataset

    tokens, ragged = {"kind": "tokens", "vocabulary": 10}, {"kind": "ragged-series"}
    padded = TensorDataset(torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([0, 1]))
    loader = DataLoader(padded, batch_size=2)
    with pytest.raises(UsageError, match=r"DataLoader: .*: give its \.dataset"):
        edge_sdk.samples_from_torch(loader, **tokens)
    assert edge_sdk.samples_from_torch(loader.dataset, **tokens).x.tolist() == [[1, 2, 3], [4, 0, 0]]
    texts = [(torch.tensor([1, 2, 3]), 0), (torch.tensor([4]), 1)]
    assert edge_sdk.samples_from_torch(texts, **tokens).x.tolist() == [[1, 2, 3], [4, 0, 0]]
    series = [(torch.ones(2, 3), 0), (torch.ones(4, 3), 1)]
    assert edge_sdk.samples_from_torch(series, **ragged).x[:, :, 0].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    with pytest.raises(UsageError, match='sample 0 has 2 steps, others have 4: declare kind="ragged-series"'):
        edge_sdk.samples_from_torch(series, kind="series")
    with pytest.raises(UsageError, match="sample 1 has no tokens"):
        edge_sdk.samples_from_torch([texts[0], (torch.tensor([], dtype=torch.int64), 1)], **tokens)


def test_rows_of_a_dataset_of_hugging_face_are_made_pairs_as_the_line_says() -> None:
    rows = [{"input_ids": [1, 2], "label": 0}, {"input_ids": [3], "label": 1}]
    with pytest.raises(UsageError, match=r'write a list of pairs, such as \[\(each\["input_ids"\], each\["label"\]\)'):
        edge_sdk.samples_from_torch(rows, kind="tokens", vocabulary=9)
    pairs = [(each["input_ids"], each["label"]) for each in rows]
    assert edge_sdk.samples_from_torch(pairs, kind="tokens", vocabulary=9).x.tolist() == [[1, 2], [3, 0]]
    with pytest.raises(UsageError, match=r"found texts, expected the ids .* edge_sdk\.hashed_words"):
        edge_sdk.samples_from_torch([("a text", 0), ("another", 1)], kind="tokens", vocabulary=9)
