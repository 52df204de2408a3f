"""Labels with gaps, and labels that are the names of classes: what a simulation makes of them, and where they show."""

from __future__ import annotations

import json

import numpy as np
import pytest

import edge_sim
from coordinator.results.report.run_files import read_run
from coordinator.results.report.run_table import run_table
from edge_sdk.data import LocalData, Samples
from edge_sdk.errors import UsageError
from edge_sdk.samples.readers import samples_from_folder, samples_from_npz
from edge_sdk.samples.store import SampleStore

NAMES = np.array(["cow", "cat", "pig"])
X = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
Y = np.arange(90) % 3
TABLES = {
    "federation": {"name": "named", "method": "local", "rounds": 1, "devices": 2},
    "fleet": [{"count": 2, "model": "softmax"}],
    "partition": {"kind": "iid"},
    "run": {"standalone": False},
}


def run(y, more=(), **options):
    tables = {**TABLES, "federation": {**TABLES["federation"], **dict(more)}}
    return edge_sim.run(tables, data=(X, y, X[:30], y[:30]), **options)


@pytest.mark.parametrize(
    ("labels", "empty", "write"),
    [
        (np.array([1, 2, 3]), "class 0:", "y = y - 1"),
        (np.array([0, 1, 5]), "class 2, 3, 4:", "np.searchsorted(np.unique(y_train), y)"),
    ],
)
def test_labels_with_gaps_are_refused_with_the_remedy(labels, empty, write):
    with pytest.raises(UsageError) as raised:
        run(labels[Y])
    assert empty in str(raised.value)
    assert write in str(raised.value)
    assert "\n" not in str(raised.value)
    classes = int(labels.max()) + 1
    assert len(run(labels[Y], {"classes": classes}).devices[0].class_counts) == classes  # they are meant to be there


def test_a_class_that_only_the_test_has_is_said():
    found = edge_sim.run(TABLES, data=(X[Y < 2], Y[Y < 2], X, Y))
    assert "no device has a training sample of class 2, which the test measures" in found.warnings


@pytest.mark.parametrize("kind", ["array", "list", "objects", "categorical"])
def test_names_are_labels_and_stand_in_every_output(tmp_path, kind):
    y = NAMES[Y]
    order = ("cat", "cow", "pig")
    if kind == "list":
        y = y.tolist()
    elif kind == "objects":
        y = y.astype(object)
    elif kind == "categorical":
        pandas = pytest.importorskip("pandas")
        y, order = pandas.Series(pandas.Categorical(y, categories=[*NAMES])), tuple(NAMES)
    found = run(y, out=tmp_path / "run")
    assert found.class_names == order
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["class_names"] == [*order]
    again = read_run(tmp_path / "run")
    assert again.class_names == order
    assert ", ".join(order) in {cell for row in run_table(again).rows for cell in row}


def test_names_mean_the_same_as_their_numbers():
    named, numbered = run(NAMES[Y]), run(np.array([1, 0, 2])[Y])
    assert named.accuracy == numbered.accuracy
    assert numbered.class_names == ()


def test_the_federation_may_give_the_order_or_the_names():
    order = {"class_names": ["pig", "cow", "cat"]}
    found, numbered = run(NAMES[Y], order), run(np.array([1, 2, 0])[Y], order)
    assert found.class_names == numbered.class_names == ("pig", "cow", "cat")
    assert found.devices[0].class_counts == numbered.devices[0].class_counts
    with pytest.raises(UsageError, match=r"federation\.class_names: lacks 'pig', a class of"):
        run(NAMES[Y], {"class_names": ["cat", "cow"]})
    with pytest.raises(UsageError, match=r"federation\.class_names: 'a' appears twice"):
        run(Y, {"class_names": ["a", "b", "a"]})
    with pytest.raises(UsageError, match=r"class_names: 2 names, but y_train of data has label 2"):
        run(Y, {"class_names": ["a", "b"]})


def test_names_in_one_part_and_numbers_in_the_other_are_refused():
    with pytest.raises(UsageError, match="one part has names, the other numbers"):
        edge_sim.run(TABLES, data=(X, NAMES[Y], X, Y))


def test_samples_take_names_and_a_list_gives_their_order():
    assert Samples(X, NAMES[Y]).class_names == ("cat", "cow", "pig")
    given = Samples(X, NAMES[Y], class_names=("pig", "dog", "cat", "cow"))
    assert given.y[:3].tolist() == [3, 2, 0]
    with pytest.raises(UsageError, match="class 'pig': no such class; there are cat, cow"):
        Samples(X, NAMES[Y], class_names=("cat", "cow"))
    with pytest.raises(UsageError, match=r"give all of them one class_names"):
        LocalData(train=Samples(X, NAMES[Y]), test=Samples(X[Y > 0], NAMES[Y[Y > 0]]))
    with pytest.raises(UsageError, match="subtract 1"):
        LocalData(train=Samples(X, Y + 1)).class_counts(3)


def test_files_with_names(tmp_path):
    np.savez(tmp_path / "own.npz", x=X, y=NAMES[Y])
    assert samples_from_npz(tmp_path / "own.npz").class_names == ("cat", "cow", "pig")
    for name in NAMES:
        (tmp_path / "own" / name).mkdir(parents=True)
        np.save(tmp_path / "own" / name / "0.npy", X[0])
    assert samples_from_folder(tmp_path / "own").class_names == ("cat", "cow", "pig")


def test_a_store_takes_names(tmp_path):
    with SampleStore(tmp_path / "own.db", classes=[*NAMES]) as store:
        store.observe(X[0], "pig")
        store.label(store.observe(X[1]), "cat")
        with pytest.raises(UsageError, match="class 'dog': no such class; there are cow, cat, pig"):
            store.observe(X[2], "dog")
        store.flush()
    with SampleStore(tmp_path / "own.db", classes=3) as again:
        assert again.class_names == ("cow", "cat", "pig")
    with pytest.raises(UsageError, match="made with class_names"):
        SampleStore(tmp_path / "own.db", classes=["cat", "cow", "pig"])


def test_names_that_differ_by_spaces_are_refused():
    with pytest.raises(UsageError, match="'cow' and 'cow ' differ by spaces alone"):
        Samples(np.zeros((2, 2)), ["cow", "cow "])


def test_names_that_are_numbers_count_by_size():
    assert Samples(np.zeros((4, 2)), ["10", "2", "1", "2"]).class_names == ("1", "2", "10")


def test_names_come_in_every_container_and_with_either_layout():
    pictures = np.zeros((90, 3, 6, 6), np.float32)
    named = Samples(pictures, NAMES[Y][:, None], layout="NCHW")
    assert named.x.shape == (90, 6, 6, 3)
    assert (named.y[:3].tolist(), named.class_names) == ([1, 0, 2], ("cat", "cow", "pig"))
    part = named.at(Y > 0)
    assert (len(part), part.x.shape, part.class_names) == (60, (60, 6, 6, 3), named.class_names)
    one_hot = Samples(pictures, np.eye(3)[Y], (*NAMES,), "NCHW")
    assert (one_hot.y.tolist(), one_hot.class_names) == (Y.tolist(), ("cow", "cat", "pig"))
    for y, word in (
        (np.where(Y, NAMES[Y], None), "sample 0 has no label"),
        (["cow", 1] * 45, "sample 1 has the label 1, sample 0 'cow'"),
        (["cow", " "] * 45, "sample 1 has no label"),
        (Y * 0.5, "float64"),
    ):
        with pytest.raises(UsageError, match=word):
            Samples(X, y, (*NAMES,))


class Pairs:
    """A data set as torchvision has them."""

    classes = ("pig", "cat", "cow")

    def __len__(self):
        return len(X)

    def __getitem__(self, place):
        return X[place], int(Y[place])


def test_a_torch_data_set_and_its_subset_have_their_names():
    data = pytest.importorskip("torch.utils.data")
    found = edge_sim.run(TABLES, data=(Pairs(), data.Subset(Pairs(), range(30))))
    assert found.class_names == Pairs.classes
    mixed = edge_sim.run(TABLES, data=(Pairs(), (X[:30], np.array(Pairs.classes)[Y[:30]])))
    assert (mixed.class_names, mixed.accuracy) == (found.class_names, found.accuracy)


class Numbered(Pairs):
    """Such a set without names."""

    classes = ()


def test_names_of_one_torch_data_set_stand_for_numbers_in_the_other():
    pytest.importorskip("torch")
    found = edge_sim.run(TABLES, data=(Pairs(), Pairs()))
    for data in ((Pairs(), Numbered()), (Numbered(), Pairs()), (Pairs(), (X, Y))):
        one = edge_sim.run(TABLES, data=data)
        assert (one.class_names, one.accuracy) == (found.class_names, found.accuracy)
    with pytest.raises(
        UsageError, match="one part has the classes pig, cat, cow, the other has no names and labels up"
    ):
        edge_sim.run(TABLES, data=(Pairs(), (X, Y + 1)))


def test_parts_that_order_their_classes_otherwise_have_the_order_of_the_training_part():
    pandas = pytest.importorskip("pandas")
    y = pandas.Categorical(NAMES[Y], categories=[*NAMES])
    found = edge_sim.run(TABLES, data=(X, y, X[:30], NAMES[Y[:30] % 2]))
    assert (found.class_names, found.accuracy) == (
        ("cow", "cat", "pig"),
        edge_sim.run(TABLES, data=(X, Y, X[:30], Y[:30] % 2)).accuracy,
    )
