from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from edge_sdk import data
from edge_sdk.data import LocalData, Preprocess, Samples
from edge_sdk.errors import UsageError


@pytest.mark.torch
@pytest.mark.parametrize("target", [(14, 14), (28, 28), (5, 9), (56, 31), (1, 1), (7, 28)])
@pytest.mark.parametrize("source", [(28, 28), (8, 8), (9, 4)])
def test_resizes_as_torch_does(source: tuple[int, int], target: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    raw = np.random.default_rng(0).random((3, *source, 2), np.float32)
    planes = torch.from_numpy(raw.transpose(0, 3, 1, 2).astype(np.float64))  # in f4 its own coordinates are off by 1e-6
    expected = torch.nn.functional.interpolate(planes, size=target, mode="bilinear", align_corners=False)
    np.testing.assert_allclose(Preprocess(size=target)(raw), expected.numpy(), atol=1e-6)


def test_resizing_by_hand() -> None:
    """Two pixels to four: centres at -1/4, 1/4, 3/4, 5/4 of the old grid, clamped at the ends."""
    out = Preprocess(size=(1, 4))(np.array([[[0, 8]]], np.uint8))
    np.testing.assert_array_equal(out, [[[[0, 2, 6, 8]]]])


@pytest.mark.parametrize(
    ("raw", "shape"),
    [((5, 7), (5, 1, 1, 7)), ((5, 4, 6), (5, 1, 4, 6)), ((5, 4, 6, 3), (5, 3, 4, 6))],
)
@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_every_raw_form_becomes_planes(raw: tuple[int, ...], shape: tuple[int, ...], dtype: str) -> None:
    values = np.arange(np.prod(raw)).reshape(raw).astype(dtype)
    out = Preprocess()(values)
    assert (out.shape, out.dtype) == (shape, np.dtype("f4"))
    assert out.flags.c_contiguous
    flat = values if values.ndim < 4 else values.transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(out.reshape(5, -1), flat.reshape(5, -1))


def test_never_writes_into_the_raw_samples() -> None:
    raw = np.ones((2, 3, 3), np.float32)
    raw.setflags(write=False)
    out = Preprocess()(raw)
    out[...] = 5
    assert raw.sum() == 18


def test_channels() -> None:
    colour = np.array([[[[3, 6, 9]]]], np.uint8)  # one pixel
    grey = np.array([[[4]]], np.uint8)
    assert Preprocess(channels=1)(colour).tolist() == [[[[6]]]]
    assert Preprocess(channels=3)(grey).tolist() == [[[[4]], [[4]], [[4]]]]
    assert Preprocess(channels=3)(colour).ravel().tolist() == [3, 6, 9]


@pytest.mark.parametrize("together", [1, 300, 2**20])
@pytest.mark.parametrize("raw", [(7, 70), (7, 9, 8), (7, 9, 8, 3), (0, 9, 8, 3), (7, 0)])
def test_pieces_are_as_the_whole(raw: tuple[int, ...], together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=raw).astype(np.float32)
    preprocess = Preprocess(size=(5, 6) if len(raw) > 2 else None, scale=0.3, mean=0.1, std=0.7)
    whole = preprocess(values)
    monkeypatch.setattr(data, "_TOGETHER_VALUES", together)
    np.testing.assert_array_equal(preprocess(values), whole)


def test_needs_little_memory_beside_what_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_TOGETHER_VALUES", 2**14)
    raw = np.ones((4000, 32, 32), np.uint8)
    tracemalloc.start()
    out = Preprocess(scale=1 / 255, mean=0.5)(raw)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1.1 * out.nbytes


def test_scale_comes_before_mean_and_std() -> None:
    out = Preprocess(scale=1 / 16, mean=0.5, std=0.25)(np.array([[0, 8, 16]], np.uint8))
    assert out.ravel().tolist() == [-2, 0, 2]


@pytest.mark.parametrize("shape", [(), (3,), (2, 2, 2, 2, 2)])
def test_refuses_other_ranks(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="expected"):
        Preprocess()(np.zeros(shape))


def test_refuses_to_resize_flat_samples() -> None:
    with pytest.raises(UsageError, match="no height and width"):
        Preprocess(size=(8, 8))(np.zeros((2, 64)))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"std": std} for std in (0.0, -1.0, float("nan"), float("inf"), 1e-60, "1", None, (), (1.0, 0.0))),
        *({"mean": mean} for mean in (float("nan"), (0.0, float("inf")), 1e60, "0", None, [[1.0], [1.0, 2.0]])),
        *({"scale": scale} for scale in (0, float("nan"), float("-inf"), 1e-60, "1/255", None, (1.0,), True)),
        *({"size": size} for size in ((0, 8), 28, (28,), "28", (28.0, 28.0), (1, 2, 3), (True, 2))),
        *({"channels": channels} for channels in (2, "3", 1.0, True)),
    ],
    ids=str,
)
def test_refuses_settings_without_meaning(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="preprocess"):
        Preprocess(**wrong)


def test_class_counts() -> None:
    data = LocalData(train=Samples(np.zeros((4, 2)), np.array([2, 0, 2, 2])))
    assert data.class_counts(4) == (1, 0, 3, 0)
    with pytest.raises(UsageError, match="from 0 to 2"):
        data.class_counts(2)
    with pytest.raises(UsageError, match=r"3 samples .*2 labels"):
        Samples(np.zeros((3, 2)), np.zeros(2, np.int64))
