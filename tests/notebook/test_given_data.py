"""What `edge_sim.run` makes of given data: pictures in any layout, tokens, tensors, frames, and no word of a file."""

from __future__ import annotations

import numpy as np
import pytest

import edge_sdk
import edge_sim
from edge_sdk.errors import ModelError, UsageError
from edge_sdk.models.torch_nets.torch_model import TorchModel

torch = pytest.importorskip("torch")
nn = torch.nn

CLASSES = 3
TABLES = {
    "federation": {"name": "given", "method": "local", "rounds": 1, "devices": 2},
    "data": {"public": 0},
    "partition": {"kind": "iid"},
    "run": {"standalone": False},
}
LABELS = np.arange(60) % CLASSES


def pictures(*shape):
    centres = np.random.default_rng(7).normal(size=(CLASSES, *shape))
    return (centres[LABELS] + 0.3 * np.random.default_rng(0).normal(size=(60, *shape))).astype(np.float32)


def run(x, y=LABELS, data=None, net=None, **keys):
    """The result, and the input_shape that the function was called with."""
    shapes = []

    def flat(classes, input_shape, _seed):
        shapes.append(input_shape)
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), classes))

    tables = {**TABLES, "data": {**TABLES["data"], **keys}}
    result = edge_sim.run(tables, models=net or flat, data=data or (x, y, x[:30], y[:30]))
    return result, shapes and shapes[0]


def said(result):
    return [line for line in result.warnings if "taken as pictures" in line]


@pytest.mark.parametrize(
    ("shape", "keys", "input_shape", "lines"),
    [
        ((3, 8, 8), {}, (3, 8, 8), 1),
        ((1, 8, 8), {}, (1, 8, 8), 1),
        ((8, 8, 3), {}, (3, 8, 8), 0),
        ((4, 4, 1), {}, (1, 4, 4), 0),
        ((8, 8), {}, (1, 8, 8), 0),
        ((3, 5, 3), {}, (3, 3, 5), 1),
        ((3, 5, 3), {"layout": "NCHW"}, (3, 5, 3), 0),
        ((3, 8, 8), {"layout": "NCHW"}, (3, 8, 8), 0),
        ((3, 8, 8), {"layout": "NHWC"}, (8, 3, 8), 0),
    ],
)
def test_models_see_pictures_as_they_were_meant(shape, keys, input_shape, lines):
    result, found = run(pictures(*shape), **keys)
    assert found == input_shape
    assert len(said(result)) == lines


def test_tensors_frames_and_lists_are_arrays():
    pandas = pytest.importorskip("pandas")
    x = pictures(6)
    whole, _ = run(x)
    as_tensors = run(torch.tensor(x), torch.tensor(LABELS))[0]
    as_frames = run(pandas.DataFrame(x), pandas.Series(LABELS))[0]
    as_lists = run(x.tolist(), LABELS.tolist())[0]
    one_hot = run(x.astype(np.float64), np.eye(CLASSES)[LABELS])[0]
    assert {each.data["sha256"] for each in (whole, as_tensors, as_frames, as_lists, one_hot)} == {whole.data["sha256"]}


def test_torch_data_sets_keep_the_layout_that_they_have():
    """Their tensors are (c, h, w); a layout is not applied twice, and holds for arrays beside a data set, too."""
    x = pictures(3, 5, 3)
    part = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(LABELS))
    for data, keys in (((part, part), {}), ((part, (x, LABELS)), {"layout": "NCHW"})):
        result, shape = run(None, data=data, **keys)
        assert shape == (3, 5, 3)
        assert not said(result)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.arange(300).reshape(60, 5)}, r"data: x_train: .* found int64: write x_train\.astype"),
        ({"x_train": np.full((60, 5), np.nan)}, "data: x_train: .* NaN or Inf in 60 samples"),
        ({"x_train": np.full((60, 5), "a")}, "data: x_train: expected uint8 or finite floats, found <U1"),
        ({"x_train": np.zeros((0, 5)), "y_train": []}, r"data: x_train: expected .* none of them 0, found \(0, 5\)"),
        ({"x_train": [[1.0], [1.0, 2.0]]}, "data: x_train: list makes no array of numbers"),
        ({"x_test": np.zeros((30, 4))}, "data: x_test: expected the shape of samples in x_train"),
        ({"x_test": np.zeros((30, 5), np.uint8)}, "data: x_test: expected float64, like x_train, found uint8"),
        ({"y_train": LABELS[:59]}, r"data: y_train: expected 60 integers, found int64 \(59,\)"),
        ({"y_test": LABELS[:30] - 1}, "data: y_test: expected class ids from 0"),
        ({"y_train": LABELS * 1.0}, r"data: y_train: .*write y_train\.astype\(int\)"),
        ({"y_train": np.full((60, 3), 1 / 3)}, r"data: y_train: .*write y_train\.argmax\(1\)"),
        ({"y_train": LABELS * 0, "y_test": LABELS[:30] * 0}, "data: y_train: expected at least 2 classes"),
        ({"user_train": np.zeros(3, int)}, "data: user_train: expected"),
    ],
)
def test_arrays_that_do_not_fit_are_named_as_they_were_given(changes, message):
    x = np.zeros((60, 5))
    given = {"x_train": x, "y_train": LABELS, "x_test": x[:30], "y_test": LABELS[:30], **changes}
    with pytest.raises(UsageError, match=f"^{message}") as raised:
        run(None, data=given)
    assert ".npz" not in str(raised.value)


def test_floats_of_0_to_255_are_said_to_be_far_from_unit_scale():
    result, _ = run(np.random.default_rng(0).uniform(0, 255, (60, 5)))
    assert any('normalise = "fit" brings them there' in line for line in result.warnings)


# -- whole numbers -------------------------------------------------------------------------------------------------------


class Tokens(nn.Module):
    def __init__(self, classes, *, casts=True):
        super().__init__()
        self.table, self.last, self.casts = nn.Embedding(50, 8), nn.Linear(8, classes), casts

    def forward(self, x):
        ids = x.flatten(1)
        return self.last(self.table(ids.long() if self.casts else ids).mean(1))


class Positions(nn.Module):
    """Begins with an Embedding, whose ids are places and no values of the samples."""

    def __init__(self, classes):
        super().__init__()
        self.table, self.last = nn.Embedding(5, 5), nn.Linear(5, classes)

    def forward(self, x):
        return self.last(x.flatten(1) + self.table(torch.arange(5)).mean(0))


IDS = np.random.default_rng(0).integers(0, 50, (60, 5))


def test_ids_in_bytes_are_never_scaled():
    with pytest.raises(UsageError, match=r"its Embedding takes whole numbers.*write data\.scale = 1"):
        run(IDS.astype(np.uint8), net=lambda classes, *_: Tokens(classes))
    with pytest.raises(UsageError, match=r"its Embedding takes whole numbers"):
        run(IDS.astype(np.float32), net=lambda classes, *_: Tokens(classes), normalise="fit")


class Bare(nn.Module):
    """Takes ids without an Embedding."""

    def __init__(self, classes, of):
        super().__init__()
        self.table, self.last, self.of = nn.Parameter(torch.ones(50, 8)), nn.Linear(8, classes), of

    def forward(self, x):
        return self.last(self.of(x.flatten(1), self.table).mean(1))


WITHOUT_EMBEDDING = {
    "embedding": lambda x, table: nn.functional.embedding(x.long(), table),
    "index": lambda x, table: table[x.to(torch.int32)],
    "one_hot": lambda x, table: nn.functional.one_hot(x.type(torch.int64), 50).float() @ table,
    "a part": lambda x, table: table[x[:, :2].long()] + x[:, 2:, None].mean(1, keepdim=True),
}


@pytest.mark.parametrize("of", WITHOUT_EMBEDDING.values(), ids=WITHOUT_EMBEDDING)
def test_ids_of_a_net_without_an_embedding_are_never_scaled(of):
    with pytest.raises(UsageError, match=r"its forward\(\), which makes whole numbers .* write data\.scale = 1"):
        run(IDS.astype(np.uint8), net=lambda classes, *_: Bare(classes, of))
    assert run(IDS.astype(np.uint8), net=lambda classes, *_: Bare(classes, of), scale=1.0)[0].completed


def test_whole_numbers_that_a_net_makes_of_fractions_are_no_ids():
    def of(x, table):
        return table[(x * 49).long()] + table[(x > 2).long()]

    assert run(IDS.astype(np.uint8), net=lambda classes, *_: Bare(classes, of))[0].completed


def test_ids_that_are_floats_are_not_said_to_need_normalising():
    result, _ = run(IDS.astype(np.float32), net=lambda classes, *_: Tokens(classes))
    (line,) = [line for line in result.warnings if "far from 0 and 1" in line]
    assert 'ids of tokens are right as they are: declare them with kind = "tokens" and vocabulary' in line


def test_ids_that_are_not_scaled_reach_the_embedding_as_they_are():
    seen = []

    def net(classes, *_):
        made = Tokens(classes)
        made.table.register_forward_pre_hook(lambda _layer, args: seen.append(args[0].clone()))
        return made

    for given, keys in ((IDS.astype(np.uint8), {"scale": 1.0}), (IDS.astype(np.float32), {})):
        seen.clear()
        run(given, net=net, **keys)
        assert max(int(each.max()) for each in seen) == IDS.max()


def test_bytes_for_a_net_with_a_table_of_positions_are_scaled():
    assert run(IDS.astype(np.uint8), net=lambda classes, *_: Positions(classes))[0].completed


def test_a_net_that_takes_floats_for_ids_is_told_what_to_write():
    with pytest.raises(UsageError, match=r"declare ids of tokens with Preprocess\(kind=.tokens., vocabulary="):
        run(IDS.astype(np.float32), net=lambda classes, *_: Tokens(classes, casts=False))


@pytest.mark.parametrize("input_shape", [(1, 1, 5), None])
def test_an_app_is_told_before_it_joins(input_shape):
    scaled = edge_sdk.Preprocess(scale=1 / 255)

    def first_answer():
        model = TorchModel(Tokens(CLASSES), CLASSES, input_shape=input_shape, preprocess=scaled)
        return model.logits(np.zeros((2, 1, 1, 5), np.float32))

    with pytest.raises(ModelError, match=r"its Embedding takes whole numbers.*leave its size, scale"):
        first_answer()
    for harmless in (edge_sdk.Preprocess(), edge_sdk.Preprocess(mean=1.0)):  # ids that count from 1
        TorchModel(Tokens(CLASSES), CLASSES, input_shape=(1, 1, 5), preprocess=harmless)
