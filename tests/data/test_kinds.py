"""The declared kind of samples, from the array that somebody gives to the tensor that a net takes."""

import numpy as np
import pytest

import edge_sdk
import edge_sim
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import ModelError, UsageError
from edge_sim.data.datasets import statistics
from edge_sim.models import families

WORDS = 50
IDS = np.array([[1, 2, 3, 0], [49, 4, 0, 0], [5, 5, 5, 5]])
Y = np.array([0, 1, 0])
TOKENS = {"kind": "tokens", "vocabulary": WORDS}
RAGGED = {"kind": "ragged-series"}


def test_ids_stay_whole_numbers_up_to_the_largest() -> None:
    samples = edge_sdk.Samples(np.array([[2**24 - 1, 2**24 - 2]]), [0], kind="tokens", vocabulary=2**24)
    assert edge_sdk.Preprocess(kind="tokens", vocabulary=2**24)(samples.x).tolist() == [[[[2**24 - 1, 2**24 - 2]]]]
    assert samples.at(np.array([0])).vocabulary == 2**24


@pytest.mark.parametrize(
    ("x", "declared", "said"),
    [
        (np.array([[1, 2], [3, 50]]), TOKENS, "sample 1 has the id 50 at place 1: .* has the ids 0..49"),
        (np.array([[1, -1], [3, 4]]), TOKENS, "sample 0 has the id -1 at place 1"),
        (np.array([[1, 2.5], [3, 4]]), TOKENS, "sample 0 has the id 2.5"),
        (np.zeros((2, 3, 4), int), TOKENS, r'kind "tokens": expected samples \(n, t\), found \(2, 3, 4\)'),
        (np.array(["a text", "another"]), TOKENS, r"found texts, .*hashed_words\(texts, vocabulary=50"),
        (np.zeros((2, 3)), {"kind": "tokens"}, "needs vocabulary"),
        (np.zeros((2, 3)), {"kind": "vector", "vocabulary": 5}, 'no effect on kind = "vector"'),
        (np.zeros((2, 3)), {"kind": "texts"}, "kind 'texts': expected picture, vector, series, ragged-series, tokens"),
        (np.zeros((2, 3, 4)), {"kind": "vector"}, r'kind "vector": expected samples \(n, d\), found \(2, 3, 4\)'),
        (np.full((2, 3), np.nan), {"kind": "series"}, "NaN or Inf in 2 samples"),
        (np.array([[1, 2], [0, 0]]), TOKENS, "x: sample 1 has no tokens, all of it is 0"),
        (
            np.array([[1, 2], [3, 0]]),
            TOKENS | {"lengths": [2, 3]},
            "sample 1 has the length 3: expected 1 to 2, the tok",
        ),
        (np.array([[1, 2], [3, 0]]), TOKENS | {"lengths": [2, 0]}, "sample 1 has no tokens: leave it"),
        (np.array([[0, 2], [3, 0]]), TOKENS | {"lengths": [1, 1]}, "sample 0 has the id 0, which pads"),
        (
            np.ones((2, 3)),
            {"kind": "series", "lengths": [3, 2]},
            'sample 1 has 2 steps, others have 3: .*"ragged-series"',
        ),
        (np.ones((2, 3)), {"kind": "vector", "lengths": [3, 2]}, 'lengths have no effect on kind = "vector"'),
        (np.ones((2, 3)), {"lengths": [3, 2]}, "lengths have no effect without kind"),
        (np.ones((2, 3)), RAGGED | {"lengths": [3, 2.5]}, "expected a whole number for each of 2 samples"),
        (np.ones((2, 3)), RAGGED | {"lengths": [3, 4]}, "sample 1 has the length 4: expected 1 to 3, the steps"),
        ([[1, 2], [[3, 0]]], RAGGED, r"sample 1 has the shape \(1, 2\), but the first has \(2,\)"),
        ([1, 2], TOKENS, "found one sample, or numbers alone"),
        ([[0, 2, 4], [3]], TOKENS, "sample 0 has the id 0, which pads"),
        (np.array([[1, 0], [1, 1]], bool), TOKENS, "found True and False, expected ids"),
        (np.ones((2, 2), np.float16), TOKENS | {"vocabulary": 5000}, "found float16, which rounds ids above 2,048"),
        ({"input_ids": IDS}, TOKENS, r'found a dict, .* x=found\["input_ids"\]'),
        (np.zeros((2, 4, 0)), {"kind": "series"}, r"samples of shape \(4, 0\) are empty"),
        (np.full((2, 3, 2), np.nan), {"kind": "series"}, r"the first of them 0, at \[0, 0\]"),
        ([np.ones((2, 3)), np.ones((4, 3))], {}, r'sample 1 has the shape \(4, 3\), .*kind="ragged-series"'),
    ],
)
def test_what_is_not_of_the_kind_is_refused_in_one_line(x: np.ndarray, declared: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        edge_sdk.Samples(x, [0, 1], **declared)
    assert "\n" not in str(refused.value)


def test_shorter_texts_are_padded_with_the_id_0() -> None:
    samples = edge_sdk.Samples([[7, 8, 9], np.array([5])], [0, 1], **TOKENS)
    assert samples.x.tolist() == [[7, 8, 9], [5, 0, 0]]
    with pytest.raises(UsageError, match="sample 1 has no tokens"):
        edge_sdk.Samples([[7, 8, 9], []], [0, 1], **TOKENS)
    with pytest.raises(UsageError, match="sample 1 has the id 0, which pads"):
        edge_sdk.Samples([[7, 8, 9], [0, 1]], [0, 1], **TOKENS)


def test_shorter_series_are_padded_with_steps_that_stay_0() -> None:
    samples = edge_sdk.Samples([[[1, 9], [2, 3]], [[1, 3]]], [0, 1], **RAGGED)
    assert samples.x.tolist() == [[[1, 9], [2, 3]], [[1, 3], [0, 0]]]
    scaled = edge_sdk.Preprocess(**RAGGED, mean=(1, 3), std=(1, 6))(samples.x)[:, 0]
    assert scaled[0].tolist() == [[0, 1], [1, 0]]
    assert 0 < scaled[1, 0].max() < 1e-20  # a step that is there stays apart from padding
    assert scaled[1, 1].tolist() == [0, 0]
    cut = edge_sdk.Samples(np.full((2, 3), 7), [0, 1], **RAGGED, lengths=[3, 1])
    assert cut.x[:, :, 0].tolist() == [[7, 7, 7], [7, 0, 0]]
    found = statistics(cut.x, 1.0, cut.declared)
    assert found.mean == (7.0,)


def test_a_series_that_ends_in_steps_of_0_keeps_its_length() -> None:
    series = [np.ones((4, 2)), np.array([[1, 1], [0, 0], [0, 0]]), np.zeros((2, 2))]
    found = edge_sdk.Samples(series, [0, 1, 0], **RAGGED)
    assert (found.x != 0).any(2).tolist() == [[True] * 4, [True, False, True, False], [False, True, False, False]]
    assert found.x[1:].max() == 1
    assert abs(found.x[2]).max() < 1e-20
    with edge_sdk.SampleStore(None, classes=2, split=(1, 0, 0), shape=(5, 2), dtype="float32", **RAGGED) as store:
        store.observe(series[1], 0)
        assert (store.take_snapshot().data.train.x[0] != 0).any(1).tolist() == [True, False, True, False, False]


@pytest.mark.parametrize("kind", [RAGGED, TOKENS])
def test_arrays_and_columns_that_hold_samples_of_several_lengths_are_taken(kind: dict) -> None:
    pandas = pytest.importorskip("pandas")
    rows = [[7, 8, 9], [5]] if kind is TOKENS else [np.ones((3, 2)), np.ones((1, 2))]
    whole = np.empty(2, object)
    whole[:] = rows
    plain = edge_sdk.Samples(rows, [0, 1], **kind).x
    for given in (whole, pandas.Series(rows), (row for row in rows), tuple(rows)):
        assert (edge_sdk.Samples(given, [0, 1], **kind).x == plain).all()


def test_what_looks_like_another_padding_or_like_exchanged_axes_is_said(caplog: pytest.LogCaptureFixture) -> None:
    edge_sdk.Samples([[7, 8, 1, 1, 1], [6, 1, 1, 1, 1], [2, 3, 4, 5, 6]], [0, 1, 0], **TOKENS)
    assert "2 of 3 texts end in the id 1 3 times and more" in caplog.text
    assert "lengths=(x != 1).sum(1)" in caplog.text
    caplog.clear()
    turned = edge_sdk.Samples(np.ones((2, 3, 40)), [0, 1], kind="series")
    assert "3 steps of 40 sensors" in caplog.text
    caplog.clear()
    turned.at(np.array([0]))
    edge_sdk.Samples(IDS, Y, **TOKENS)
    assert not caplog.text


def test_parts_of_a_device_that_are_declared_in_different_ways_are_refused() -> None:
    x = np.ones((2, 4, 3))
    with pytest.raises(UsageError, match="the parts are declared as ragged-series and series"):
        edge_sdk.LocalData(train=edge_sdk.Samples(x, [0, 1], kind="series"), test=edge_sdk.Samples(x, [0, 1], **RAGGED))


def test_a_dense_model_refuses_ids_as_amounts() -> None:
    with pytest.raises(ModelError, match=r"ids of tokens are names: give edge_sdk\.SequenceModel"):
        edge_sdk.NumpyModel(2, (4,), seed=0, preprocess=edge_sdk.Preprocess(**TOKENS))


def test_a_simulation_of_series_of_several_lengths() -> None:
    rng, y = np.random.default_rng(0), np.arange(80) % 2
    x = (rng.normal(size=(80, 12)) + np.outer(2 * y - 1, np.arange(12) % 2)).astype(np.float32) + 5
    lengths, part = rng.integers(6, 13, 80), np.arange(80) < 60
    arrays = {"x": x, "y": y, "lengths": lengths}
    data = {f"{key}_{name}": a[w] for key, a in arrays.items() for name, w in (("train", part), ("test", ~part))}
    tables = {
        "federation": {"name": "a", "rounds": 1, "devices": 2},
        "data": {"kind": "ragged-series", "normalise": "fit"},
        "partition": {"kind": "iid"},
        "fleet": [{"count": 2, "model": "numpy-series"}],
    }
    result = edge_sim.run(tables, data=data)
    assert result.completed
    with pytest.raises(UsageError, match="data: x_test: sample 3 has the length 13: expected 1 to 12"):
        edge_sim.run(tables, data=data | {"lengths_test": np.r_[6, 6, 6, 13, np.full(16, 6)]})
    longest = {"x_train": data["x_train"][:, :6], "lengths_train": np.minimum(data["lengths_train"], 6)}
    assert edge_sim.run(tables, data=data | longest).completed  # of the training part and the test each its own


def test_own_samples_and_a_test_of_other_lengths_are_padded_to_what_the_model_takes() -> None:
    """Each device has a longest series of its own; the model's input_shape has room for all of them."""
    model = edge_sdk.SequenceModel(2, (6, 2), seed=0, preprocess=edge_sdk.Preprocess(**RAGGED))
    own = edge_sdk.Samples([np.ones((2, 2)), np.ones((4, 2))], [0, 1], **RAGGED)
    test = edge_sdk.Samples(np.ones((1, 3, 2)), [1], **RAGGED)
    bench = Workbench(model, edge_sdk.LocalData(train=own, test=test))
    assert bench.samples.shape == (2, 1, 6, 2)
    assert bench.samples[:, 0, :, 0].sum(1).tolist() == [2, 4]
    assert bench.test is not None
    assert bench.test[0, 0, :, 1].tolist() == [1, 1, 1, 0, 0, 0]
    padded = edge_sdk.Samples(np.ones((1, 9, 2)), [1], **RAGGED, lengths=[5])  # longer by padding alone
    assert Workbench(model, edge_sdk.LocalData(train=padded)).samples.shape == (1, 1, 6, 2)
    with pytest.raises(UsageError, match="sample 1 has 7 steps, 6 fit: cut it, or give more room in the model"):
        Workbench(
            model, edge_sdk.LocalData(train=edge_sdk.Samples([np.ones((1, 2)), np.ones((7, 2))], Y[:2], **RAGGED))
        )


def test_a_store_pads_to_the_length_that_was_declared() -> None:
    with edge_sdk.SampleStore(None, classes=2, split=(1, 0, 0), shape=(5, 2), dtype="float32", **RAGGED) as store:
        store.observe(np.ones((3, 2), np.float32), 0)
        assert store.take_snapshot().data.train.x[0, :, 0].tolist() == [1, 1, 1, 0, 0]
        with pytest.raises(UsageError, match=r"the store: sample 0 has 6 steps, 5 fit: .* the store's shape="):
            store.observe(np.ones((6, 2), np.float32), 0)
    with edge_sdk.SampleStore(None, classes=2, split=(1, 0, 0), **TOKENS) as store:  # the first text is the longest
        store.observe([7, 8, 9], 0)
        store.observe([5], 1)
        assert sorted(store.take_snapshot().data.train.x.tolist()) == [[5, 0, 0], [7, 8, 9]]


def test_series_of_one_sensor_get_an_axis_and_are_normalised_by_sensor() -> None:
    assert edge_sdk.Samples(np.arange(6).reshape(2, 3), [0, 1], kind="series").x.shape == (2, 3, 1)
    two = edge_sdk.Samples(np.array([[[1, 10], [3, 30]]]), [0], kind="series")
    scaled = edge_sdk.Preprocess(kind="series", mean=(2, 20), std=(1, 10))(two.x)
    assert scaled.tolist() == [[[[-1, -1], [1, 1]]]]


@pytest.mark.parametrize("settings", [{"scale": 0.5}, {"mean": 1}, {"size": (2, 2)}])
def test_nothing_changes_ids(settings: dict) -> None:
    with pytest.raises(UsageError, match="leave them out"):
        edge_sdk.Preprocess(**TOKENS, **settings)


def test_words_have_one_id_everywhere_and_a_text_without_any_is_refused() -> None:
    ids = edge_sdk.hashed_words(["The cat, the dog", "dog"], vocabulary=1000, length=3)
    assert ids.tolist() == [[ids[0, 0], ids[0, 1], ids[0, 0]], [ids[1, 0], 0, 0]]
    assert ids[1, 0] == 1 + 0x812C397D % 999  # the CRC-32 of dog, on every machine
    with pytest.raises(UsageError, match="text 1 has no word"):
        edge_sdk.hashed_words(["a", "..."], vocabulary=1000, length=3)


def test_a_store_keeps_ids_and_its_kind(tmp_path) -> None:
    path = tmp_path / "samples.db"
    with edge_sdk.SampleStore(path, classes=2, split=(1, 0, 0), **TOKENS) as store:
        for row, label in zip(IDS, Y, strict=True):
            store.observe(row, int(label))
        train = store.take_snapshot().data.train
        assert train.x.tolist() == IDS.tolist()
        assert (train.kind, train.vocabulary) == ("tokens", WORDS)
    with pytest.raises(UsageError, match="made with kind"):
        edge_sdk.SampleStore(path, classes=2, split=(1, 0, 0), kind="tokens", vocabulary=60)


def test_a_public_set_of_whole_numbers_is_that_of_the_same_ids_in_f4() -> None:
    public = edge_sdk.PublicSet(IDS, **TOKENS)
    assert public.spec == edge_sdk.PublicSet(IDS.astype(np.float32)).spec


def test_a_model_that_does_not_take_the_kind_is_refused_with_what_to_write() -> None:
    data = edge_sdk.LocalData(train=edge_sdk.Samples(IDS, Y, **TOKENS))
    with pytest.raises(UsageError, match=r'Preprocess\(kind="tokens", vocabulary=50\)'):
        Workbench(edge_sdk.NumpyModel(2, (1, 1, 4), seed=0), data)


def test_a_family_for_another_kind_is_refused_before_a_run() -> None:
    x, y = np.tile(IDS, (40, 1)), np.tile([0, 1, 2], 40)
    tables = {
        "federation": {"name": "a", "rounds": 1, "devices": 2},
        "data": TOKENS,
        "fleet": [{"count": 2, "model": "cnn"}],
    }
    with pytest.raises(UsageError, match=r"'cnn' takes picture, the samples are tokens .* choose one of .*text-cnn"):
        edge_sim.run(tables, data=(x[:60], y[:60], x[60:], y[60:]))
    with pytest.raises(UsageError, match="x_train: sample 1 has the id 49"):
        edge_sim.run(tables, data=(x[:60], y[:60], x[60:], y[60:]), settings={"data.vocabulary": 49})


@pytest.mark.torch
def test_a_net_gets_what_was_declared() -> None:
    torch = pytest.importorskip("torch")
    seen = []

    class Net(torch.nn.Sequential):
        def forward(self, x):
            seen.append((x.dtype, tuple(x.shape[1:]), int(x.max())))
            return super().forward(x)

    ids = edge_sdk.Preprocess(**TOKENS)
    net = Net(torch.nn.Embedding(WORDS, 3), torch.nn.Flatten(), torch.nn.Linear(12, 2))
    model = edge_sdk.TorchModel(net, 2, input_shape=(4,), preprocess=ids)
    assert {(dtype, shape) for dtype, shape, _ in seen} == {(torch.int64, (4,))}
    assert 0 < max(most for _, _, most in seen) < WORDS  # it was tried with ids of the vocabulary, not with noise
    assert model.logits(ids(IDS)).shape == (3, 2)
    assert model.net(torch.tensor(IDS)).shape == (3, 2)  # and still takes ids from elsewhere
    series = edge_sdk.Preprocess(kind="series")
    net = Net(torch.nn.Flatten(), torch.nn.Linear(10, 2))
    edge_sdk.TorchModel(net, 2, input_shape=(5, 2), preprocess=series).logits(series(np.zeros((1, 5, 2), np.float32)))
    assert seen[-1][:2] == (torch.float32, (5, 2))


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_net_that_hides_padding_is_tried_with_more_than_padding() -> None:
    torch = pytest.importorskip("torch")

    class Encoder(torch.nn.Module):
        def __init__(self, table: torch.nn.Module) -> None:
            super().__init__()
            layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.table, self.blocks = table, torch.nn.TransformerEncoder(layer, 1)
            self.head = torch.nn.Linear(8, 2)

        def forward(self, x):
            hidden = (x == 0) if x.dim() == 2 else (x == 0).all(2)
            return self.head(self.blocks(self.table(x), src_key_padding_mask=hidden)[:, 0])

    ids, ragged = edge_sdk.Preprocess(**TOKENS), edge_sdk.Preprocess(**RAGGED)
    model = edge_sdk.TorchModel(Encoder(torch.nn.Embedding(WORDS, 8)), 2, input_shape=(4,), preprocess=ids)
    assert np.isfinite(model.logits(model.spec.preprocess(IDS[:, :3]))).all()
    edge_sdk.TorchModel(Encoder(torch.nn.Linear(3, 8)), 2, input_shape=(6, 3), preprocess=ragged)
    with pytest.raises(ModelError, match=r"ids are 0\.\.49: its nn\.Embedding needs 50 rows"):
        edge_sdk.TorchModel(Encoder(torch.nn.Embedding(40, 8)), 2, input_shape=(4,), preprocess=ids)


@pytest.mark.torch
@pytest.mark.parametrize("name", [n for n, f in families.FAMILIES.items() if "picture" not in f.takes])
def test_a_net_for_sequences_learns_and_pads_with_nothing(name: str, monkeypatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("EDGE_SDK_TRACED", "off")  # recording takes longer than 30 steps
    from edge_sdk.models.base import Batches
    from edge_sdk.objectives import CrossEntropy, Optim

    tokens = families.FAMILIES[name].takes == ("tokens",)
    rng = np.random.default_rng(0)
    y = np.arange(8) % 2
    raw = rng.integers(1, 9, (8, 6)) + 9 * y[:, None] if tokens else rng.normal(y[:, None, None], 0.3, (8, 6, 3))
    own = edge_sdk.Preprocess(kind="tokens", vocabulary=20) if tokens else edge_sdk.Preprocess(kind="series")
    model = families.build_model(name, classes=2, raw_shape=raw.shape[1:], preprocess=own, seed=0, feature_dim=5)
    x = own(raw)
    batches = Batches(inputs=x, labels=y, indices=np.tile(np.arange(8), (30, 1)))
    first = model.fit(batches, (CrossEntropy(),), Optim(kind="adam", learning_rate=0.02)).loss
    assert first < 0.3
    assert model.features(x).shape == (8, 5 if families.chooses_width(name) else model.spec.feature_dim)
    np.testing.assert_allclose(model.head(model.features(x)), model.logits(x), rtol=1e-4, atol=1e-5)
    own = own if tokens else edge_sdk.Preprocess(**RAGGED, mean=0.5)
    short, long = (
        families.build_model(name, classes=2, raw_shape=(t, *raw.shape[2:]), preprocess=own, seed=0) for t in (6, 9)
    )
    if hasattr(long, "net"):
        weights = long.net.state_dict()
        short.net.load_state_dict({key: each[:6] if "places" in key else each for key, each in weights.items()})
    padded = np.pad(raw, ((0, 0), (0, 3), (0, 0))[: raw.ndim])
    np.testing.assert_allclose(short.logits(own(raw)), long.logits(own(padded)), rtol=1e-4, atol=1e-5)
