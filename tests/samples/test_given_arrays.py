"""What people hand over as samples and labels: every entry takes the same, says what it took, or what to write."""

from __future__ import annotations

import json
import logging
import re

import numpy as np
import pytest

import edge_sdk
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import layout_told
from edge_sim.data.sources.leaf import read_leaf
from edge_sim.data.sources.npz import of_arrays, read_npz

LABELS = np.array([0, 1, 2, 0, 1, 2])


def pictures(*shape, dtype=np.float32):
    """Samples all of whose values differ."""
    return np.arange(6 * np.prod(shape)).reshape(6, *shape).astype(dtype)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((3, 32, 32), "NCHW"),
        ((1, 28, 28), "NCHW"),
        ((3, 24, 32), "NCHW"),
        ((4, 64, 64), "NCHW"),
        ((2, 32, 48), "NCHW"),
        ((1, 4, 4), "NCHW"),
        ((3, 2, 2), "NCHW"),
        ((16, 8, 8), "NCHW"),
        ((32, 32, 3), "NHWC"),
        ((28, 28, 1), "NHWC"),
        ((32, 48, 2), "NHWC"),
        ((4, 4, 1), "NHWC"),
        ((4, 5, 3), "NHWC"),
        ((3, 3, 1), "NHWC"),
        ((8, 8, 16), "NHWC"),
        ((3, 3, 3), None),
        ((3, 32, 3), None),
        ((3, 3, 4), None),
        ((1, 1, 9), None),
        ((1, 8, 1), None),
        ((30, 40, 60), None),
    ],
)
def test_a_layout_is_told_by_sizes_that_allow_for_one_alone(shape, layout) -> None:
    assert layout_told(shape) == layout


def by_samples(x, _tmp_path, layout):
    return edge_sdk.Samples(x, LABELS, layout=layout).x


def by_reader(x, tmp_path, layout):
    np.savez(tmp_path / "s.npz", x=x, y=LABELS)
    return edge_sdk.samples_from_npz(tmp_path / "s.npz", layout=layout).x


def by_folder(x, tmp_path, layout):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for i, sample in enumerate(x):
        np.save(tmp_path / "ab"[i // 3] / f"{i}.npy", sample)
    return edge_sdk.samples_from_folder(tmp_path, layout=layout).x


def by_pairs(x, _tmp_path, layout):
    return edge_sdk.samples_from_torch(list(zip(x, LABELS, strict=True)), layout=layout).x


def by_store(x, _tmp_path, layout):
    store = edge_sdk.SampleStore(None, classes=3, split=(1, 0, 0), layout=layout)
    for sample, y in zip(x, LABELS, strict=True):
        store.observe(sample, y)
    return store.take_snapshot().data.train.x


def by_public_set(x, tmp_path, layout):
    np.savez(tmp_path / "public.npz", x)
    return edge_sdk.PublicSet.load(tmp_path / "public.npz", layout).samples


def by_source(x, tmp_path, layout):
    np.savez(tmp_path / "s.npz", x_train=x, y_train=LABELS, x_test=x, y_test=LABELS)
    whole = read_npz(tmp_path / "s.npz", layout)
    logging.getLogger().warning("%s", whole.remark) if whole.remark else None
    assert (whole.test.x == whole.train.x).all()
    return whole.train.x


def by_leaf(x, tmp_path, layout):
    user = {"users": ["u"], "user_data": {"u": {"x": x.tolist(), "y": LABELS.tolist()}}}
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "one.json").write_text(json.dumps(user), encoding="utf-8")
    whole = read_leaf(tmp_path, None, layout)
    logging.getLogger().warning("%s", whole.remark) if whole.remark else None
    return whole.train.x


ENTRIES = (by_samples, by_reader, by_folder, by_pairs, by_store, by_public_set, by_source, by_leaf)
every_entry = pytest.mark.parametrize("entry", ENTRIES)


@every_entry
def test_channels_first_is_recognised_and_said_in_a_line(entry, tmp_path, caplog) -> None:
    x = pictures(3, 8, 8)
    np.testing.assert_array_equal(entry(x, tmp_path, None), np.moveaxis(x, 1, -1))
    (line,) = caplog.messages
    assert "(3, 8, 8) are taken as pictures with channels first: 3 channels of 8 x 8; write layout = " in line
    assert '"NCHW"' in line


@every_entry
def test_one_channel_first_is_grey(entry, tmp_path, caplog) -> None:
    x = pictures(1, 8, 8)
    np.testing.assert_array_equal(entry(x, tmp_path, None), x[:, 0])
    (line,) = caplog.messages
    assert "1 channel of 8 x 8" in line


@every_entry
@pytest.mark.parametrize("shape", [(8, 8, 3), (4, 4, 1), (8, 8), (5,), (1, 1, 1)])
def test_what_is_as_it_lies_in_memory_is_taken_without_a_word(entry, shape, tmp_path, caplog) -> None:
    x = pictures(*shape)
    np.testing.assert_array_equal(entry(x, tmp_path, None), x)
    assert not caplog.messages


@every_entry
def test_sizes_that_allow_for_both_are_said_with_both_remedies(entry, tmp_path, caplog) -> None:
    x = pictures(3, 3, 3)
    np.testing.assert_array_equal(entry(x, tmp_path, None), x)
    (line,) = caplog.messages
    assert 'channels last: 3 channels of 3 x 3; write layout = "NHWC" if that is right, or "NCHW"' in line


@every_entry
@pytest.mark.parametrize(("layout", "shape"), [("NCHW", (3, 3, 3)), ("NHWC", (3, 3, 3)), ("NCHW", (3, 8, 8))])
def test_a_layout_that_is_given_is_taken_without_a_word(entry, layout, shape, tmp_path, caplog) -> None:
    x = pictures(*shape)
    np.testing.assert_array_equal(entry(x, tmp_path, layout), np.moveaxis(x, 1, -1) if layout == "NCHW" else x)
    assert not caplog.messages


@every_entry
def test_a_layout_that_there_is_not_is_refused(entry, tmp_path) -> None:
    with pytest.raises(UsageError, match='layout \'HWC\': expected "NCHW" or "NHWC"'):
        entry(pictures(8, 8, 3), tmp_path, "HWC")


@every_entry
def test_fortran_order_is_the_same_data(entry, tmp_path) -> None:
    x = pictures(3, 8, 8)
    np.testing.assert_array_equal(entry(np.asfortranarray(x), tmp_path, None), np.moveaxis(x, 1, -1))


def test_parts_of_samples_keep_what_was_taken(caplog) -> None:
    samples = edge_sdk.Samples(pictures(3, 3, 3), LABELS, layout="NCHW")
    data = edge_sdk.split_samples(samples, (0.5, 0.25, 0.25))
    held = np.concatenate([part.x for part in (data.train, data.validation, data.local_test) if part is not None])
    assert sorted(held[:, 0, 0, 1]) == sorted(pictures(3, 3, 3)[:, 1, 0, 0])
    assert not caplog.messages


def test_a_store_goes_by_the_samples_that_it_holds(tmp_path, caplog) -> None:
    x = pictures(3, 8, 8)
    for sample in x[:3]:
        with edge_sdk.SampleStore(tmp_path / "s.db", classes=3) as store:
            first = store.observe(sample, 0)
            assert store.observe(np.moveaxis(sample, 0, -1), 0) == first
    assert len(caplog.messages) == 1
    with edge_sdk.SampleStore(None, classes=3, shape=(3, 8, 8), dtype="float32") as store:
        assert store.observe(x[0], np.array(2))
        assert store.counts().train[2] + store.counts().validation[2] + store.counts().test[2] == 1


# -- values and types ---------------------------------------------------------------------------------------------------

READ = (by_reader, by_folder, by_pairs, by_store, by_source)
every_reader = pytest.mark.parametrize("entry", READ)


@every_reader
@pytest.mark.parametrize("dtype", [np.float16, np.float64, bool])
def test_floats_and_truths_become_f4_unscaled(entry, dtype, tmp_path) -> None:
    x = np.random.default_rng(0).integers(0, 2, (6, 5)).astype(dtype)
    x[:, 0] = np.arange(6) % 2
    x = np.unique(np.concatenate([x, 1 - x.astype(np.uint8)]).astype(dtype), axis=0)[:6]  # a store holds each once
    found = entry(x, tmp_path, None)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, x)


@every_reader
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16])
def test_whole_numbers_are_refused_with_what_to_write(entry, dtype, tmp_path) -> None:
    with pytest.raises(UsageError, match=rf"found {np.dtype(dtype)}: write .*astype\(np\.float32\) .*ids of tokens"):
        entry(pictures(5, dtype=dtype), tmp_path, None)


NO_NUMBERS = {
    "objects": (lambda x: x.astype(object), r"astype\(np\.float32\)"),
    "texts": (lambda x: x.astype(str), r"astype\(np\.float32\)"),
    "complex": (lambda x: x.astype(complex), r"np\.abs\("),
    "dates": (lambda x: x.astype("M8[s]"), "make numbers of them first"),
}


@every_reader
@pytest.mark.parametrize(("of", "remedy"), NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_what_are_no_numbers_is_refused_with_what_to_write(entry, of, remedy, tmp_path) -> None:
    x = of(pictures(5, dtype=np.float64))
    found = re.escape(f"found {x.dtype}: ")
    with pytest.raises(UsageError, match=rf"{found}.*{remedy}|holds Python objects; expected an array of numbers"):
        entry(x, tmp_path, None)


def test_an_array_of_arrays_is_told_how_to_stack_them() -> None:
    rows = np.empty(3, object)
    rows[:] = [np.zeros(4)] * 3
    arrays = {"x_train": rows, "y_train": np.arange(3), "x_test": rows, "y_test": np.arange(3)}
    with pytest.raises(UsageError, match=r"x_train: .* write np\.stack\(list\(x_train\)\)\.astype\(np\.float32\)"):
        of_arrays(arrays, "data", "data", None)


@every_reader
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_what_is_not_finite_is_refused(entry, value, tmp_path) -> None:
    x = pictures(5, dtype=np.float64)
    x[4, 2] = value
    with pytest.raises(UsageError, match="NaN or Inf"):
        entry(x, tmp_path, None)


def test_samples_keep_their_type() -> None:
    """An app's values are for its own Preprocess: nothing is scaled."""
    for dtype in (np.uint8, np.int64, np.float16, np.float64, bool):
        assert edge_sdk.Samples(pictures(5).astype(dtype), LABELS).x.dtype == dtype


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (LABELS[:, None], LABELS),
        (np.eye(3)[LABELS], LABELS),
        (np.eye(3, dtype=bool)[LABELS], LABELS),
        (LABELS.tolist(), LABELS),
        (LABELS == 1, LABELS == 1),
        (LABELS.astype(np.uint8), LABELS),
    ],
)
def test_labels_that_can_mean_one_thing_alone_are_taken(y, classes, tmp_path) -> None:
    np.savez(tmp_path / "s.npz", x=pictures(5), y=y)
    for samples in (edge_sdk.Samples(pictures(5), y), edge_sdk.samples_from_npz(tmp_path / "s.npz")):
        assert samples.y.dtype.kind in "iu"
        np.testing.assert_array_equal(samples.y, classes)


@pytest.mark.parametrize(
    ("y", "remedy"),
    [
        (LABELS.astype(float), r"write y\.astype\(int\)"),
        (np.full((6, 2), 0.5), r"one-hot rows .*write y\.argmax\(1\)"),
        (np.ones((6, 2), int), "one class for each sample"),
        (np.zeros((6, 2), int), "one class for each sample"),
        (LABELS + 0.5, r"\(n,\); numbers to predict \(regression\) are not supported$"),
        (np.zeros((6, 2, 2), int), r"\(n,\)$"),
        ([[0], [1, 2]], "makes no array"),
    ],
)
def test_other_labels_are_refused_with_what_to_write(y, remedy) -> None:
    with pytest.raises(UsageError, match=remedy) as raised:
        edge_sdk.Samples(pictures(5), y)
    assert str(raised.value).startswith("y: ")


def test_lists_and_masked_and_sparse_arrays() -> None:
    np.testing.assert_array_equal(edge_sdk.Samples(pictures(5).tolist(), LABELS).x, pictures(5))
    masked = np.ma.masked_less(pictures(5), 3)
    with pytest.raises(UsageError, match=r"^x: some values are masked: write x\.filled\(0\)"):
        edge_sdk.Samples(masked, LABELS)
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(UsageError, match=r"^x: csr_array is sparse: write x\.toarray\(\)"):
        edge_sdk.Samples(sparse.csr_array(pictures(5)), LABELS)
    with pytest.raises(UsageError, match=r"6 samples but 5 labels"):
        edge_sdk.Samples(pictures(5), LABELS[:5])


def test_frames_and_columns_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(pictures(4), columns=list("abcd"), index=[9, 7, 5, 3, 1, 0])
    samples = edge_sdk.Samples(frame, pandas.Series(LABELS, index=frame.index))
    np.testing.assert_array_equal(samples.x, pictures(4))
    np.testing.assert_array_equal(samples.y, LABELS)
    np.testing.assert_array_equal(edge_sdk.Samples(frame, pandas.DataFrame({"y": LABELS})).y, LABELS)
    np.testing.assert_array_equal(edge_sdk.Samples(frame, pandas.get_dummies(LABELS)).y, LABELS)
    for kind in ("str", "category"):
        names = pandas.DataFrame({"y": list("babbaa")}, dtype=kind)
        np.testing.assert_array_equal(edge_sdk.Samples(frame, names).y, [1, 0, 1, 1, 0, 0])
    with pytest.raises(UsageError, match=r"^x: columns .*: 'name' \(str\); .*x\.select_dtypes\(\"number\"\)"):
        edge_sdk.Samples(frame.assign(name=list("uvwxyz")), LABELS)
    with pytest.raises(UsageError, match=r"^x: values are missing in 'b': write x\.fillna\(x\.mean\(\)\)"):
        edge_sdk.Samples(frame.assign(b=pandas.array([1, None, 3, 4, 5, 6], "Int64")), LABELS)


@pytest.mark.parametrize(
    "kinds", [["Float32"], ["Int64", "bool"], ["Float64", "Int64", "boolean"], ["int8", "float32"]]
)
def test_a_frame_whose_columns_have_different_types_of_numbers(kinds: list[str]) -> None:
    pandas = pytest.importorskip("pandas")
    columns = [pandas.Series([0, 1, 1, 0, 1, 0]).astype(kind) for kind in kinds]
    x = edge_sdk.Samples(pandas.concat(columns, axis=1), LABELS).x
    assert x.dtype.kind in "fi"
    np.testing.assert_array_equal(x, np.repeat([[0], [1], [1], [0], [1], [0]], len(kinds), axis=1))


@pytest.mark.parametrize("kind", ["Float32", "Float64", "UInt8", "boolean"])
def test_nullable_frames_of_pandas(kind) -> None:
    pandas = pytest.importorskip("pandas")
    values = np.arange(12).reshape(6, 2) % 2
    frame = pandas.DataFrame(values, columns=["a", "b"]).astype(kind)
    np.testing.assert_array_equal(edge_sdk.Samples(frame, LABELS).x, values)
    mixed = frame.assign(b=pandas.array([0, 1, 0, 1, 0, 1], "Int64"), c=0.5)
    np.testing.assert_array_equal(edge_sdk.Samples(mixed, LABELS).x[:, 2], np.full(6, 0.5))
    frame.loc[4, "b"] = pandas.NA
    with pytest.raises(UsageError, match=r"^x: values are missing in 'b': write x\.fillna"):
        edge_sdk.Samples(frame, LABELS)


@pytest.mark.parametrize("kind", ["Int64", "Float32", "boolean", "string", "category", "object"])
def test_nullable_labels_of_pandas(kind) -> None:
    pandas = pytest.importorskip("pandas")
    words = kind in {"string", "category", "object"}
    column = pandas.Series(["cat", "dog"] * 3 if words else [0, 1] * 3).astype(kind)
    for given in (column, pandas.DataFrame({"y": column})):
        if kind == "Float32":
            with pytest.raises(UsageError, match=r"write y\.astype\(int\)"):
                edge_sdk.Samples(pictures(4), given)
            continue
        samples = edge_sdk.Samples(pictures(4), given)
        np.testing.assert_array_equal(samples.y, [0, 1] * 3)
        assert samples.class_names == (("cat", "dog") if words else ())
    column[3] = None
    for given in (column, pandas.DataFrame({"y": column})):
        with pytest.raises(UsageError, match=r"^y: sample 3 has no label; leave it out$"):
            edge_sdk.Samples(pictures(4), given)


def test_labels_that_are_objects_are_told_how_to_become_names() -> None:
    with pytest.raises(UsageError, match=r"names of classes.*write y\.astype\(str\)"):
        edge_sdk.Samples(pictures(4), np.array([range(i, i + 2) for i in range(6)] + [None], object)[:6])


@pytest.mark.torch
def test_tensors(caplog) -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor(pictures(3, 8, 8), requires_grad=True)
    samples = edge_sdk.Samples(x, torch.tensor(LABELS))
    np.testing.assert_array_equal(samples.x, np.moveaxis(pictures(3, 8, 8), 1, -1))
    np.testing.assert_array_equal(samples.y, LABELS)
    assert edge_sdk.Samples(x.bfloat16(), torch.tensor(LABELS)).x.dtype == np.float32
    assert edge_sdk.Samples(list(x), LABELS).x.shape == (6, 8, 8, 3)
    store = edge_sdk.SampleStore(None, classes=3)
    assert store.observe(x[0], torch.tensor(1)) == store.observe(pictures(3, 8, 8)[0], 1)
    caplog.clear()
    tensors = torch.utils.data.TensorDataset
    cube = torch.tensor(pictures(3, 3, 3))
    assert (
        edge_sdk.samples_from_torch(tensors(cube, torch.tensor(LABELS))).x == np.moveaxis(cube.numpy(), 1, -1)
    ).all()
    assert "channels first" in caplog.messages[-1]  # as tensors have them
    last = tensors(torch.tensor(pictures(8, 8, 3)), torch.tensor(LABELS))
    assert (edge_sdk.samples_from_torch(last).x == pictures(8, 8, 3)).all()
    assert "channels last" in caplog.messages[-1]
    with pytest.raises(UsageError, match=r"^DataLoader: .*give its \.dataset"):
        edge_sdk.samples_from_torch(torch.utils.data.DataLoader(last))


def test_pictures_of_pillow_are_read_as_from_a_folder(tmp_path) -> None:
    image = pytest.importorskip("PIL.Image")
    colours = np.random.default_rng(0).integers(0, 256, (8, 6, 3), np.uint8)
    rgb = image.fromarray(colours)
    palette, cmyk, grey = rgb.quantize(16), rgb.convert("CMYK"), rgb.convert("L")
    (tmp_path / "a").mkdir()
    palette.save(tmp_path / "a" / "0.png")
    cmyk.save(tmp_path / "a" / "1.tiff")
    grey.save(tmp_path / "a" / "2.png")
    wanted = edge_sdk.samples_from_folder(tmp_path).x
    assert wanted.shape == (3, 8, 6, 3)
    given = [palette, cmyk, grey]
    np.testing.assert_array_equal(edge_sdk.samples_from_torch([(each, 0) for each in given]).x, wanted)
    np.testing.assert_array_equal(edge_sdk.Samples(given, [0, 0, 0]).x, wanted)
    np.testing.assert_array_equal(by_store_of([palette]), wanted[:1])
    with pytest.raises(UsageError, match=r"the dataset, sample 1: more than 8 bits"):
        edge_sdk.samples_from_torch([(grey, 0), (grey.convert("I"), 0)])
    with pytest.raises(UsageError, match=r"the dataset, sample 1: 4 x 4 pixels"):
        edge_sdk.samples_from_torch([(grey, 0), (grey.resize((4, 4)), 0)])


def by_store_of(samples):
    store = edge_sdk.SampleStore(None, classes=3, split=(1, 0, 0))
    for sample in samples:
        store.observe(sample, 0)
    return store.take_snapshot().data.train.x
