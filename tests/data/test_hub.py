"""Data sets of the Hugging Face Hub: a stand-in for the library `datasets`, whose parts are columns with features."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge_sdk import cli
from edge_sdk.errors import UsageError
from edge_sdk.sample_kind import SampleKind
from edge_sim.config import settings
from edge_sim.data.sources.hub import Columns, read_hub
from edge_sim.fleet.fleet import build_fleet

PIL = pytest.importorskip("PIL.Image")


class ClassLabel:
    """A feature; only its name matters."""


class Image:
    """A feature; only its name matters."""


class Value:
    """A feature; only its name matters."""


class Part:
    """One part of a data set."""

    def __init__(self, features: Mapping[str, type], columns: Mapping[str, list[Any]]) -> None:
        self.features = {name: feature() for name, feature in features.items()}
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key: str | int) -> Any:
        if isinstance(key, str):
            return self._columns[key]
        return {name: values[key] for name, values in self._columns.items()}


PICTURES = {"image": Image, "label": ClassLabel, "writer_id": Value}


def pictures(count: int, mode: str = "L", side: int = 4) -> Part:
    images = [PIL.new(mode, (side, side + 1), number if mode == "L" else (number, 0, 0)) for number in range(count)]
    return Part(
        PICTURES, {"image": images, "label": [i % 3 for i in range(count)], "writer_id": [i % 4 for i in range(count)]}
    )


@pytest.fixture(name="cached")
def _cached(monkeypatch: pytest.MonkeyPatch) -> dict[str, Mapping[str, Part]]:
    """What the cache holds, by name; asking for anything else without `offline` fails the test."""
    found: dict[str, Mapping[str, Part]] = {}
    hub = SimpleNamespace(constants=SimpleNamespace(HF_HUB_OFFLINE=False))
    config = SimpleNamespace(HF_HUB_OFFLINE=False)

    def load_dataset(name: str, subset: str | None) -> Mapping[str, Part]:
        assert config.HF_HUB_OFFLINE
        assert hub.constants.HF_HUB_OFFLINE
        if name not in found:
            raise ConnectionError(f"Couldn't reach {name}/{subset}\nand more")
        return found[name]

    level = SimpleNamespace(
        get_verbosity=lambda: 1, set_verbosity=lambda _level: None, set_verbosity_error=lambda: None
    )
    module = SimpleNamespace(load_dataset=load_dataset, config=config, logging=level)
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    yield found
    assert not config.HF_HUB_OFFLINE
    assert not hub.constants.HF_HUB_OFFLINE


def read(name: str, columns: Columns = Columns(), size: tuple[int, int] | None = None) -> Any:  # noqa: B008  # a constant
    return read_hub(name, None, columns, size, hold_out=(0.25, 0))


def test_pictures_labels_and_users(cached: dict[str, Any]) -> None:
    cached["a/b"] = {"train": pictures(12), "validation": pictures(3)}
    found = read("a/b", Columns(user="writer_id"))
    assert found.train.x.shape == (12, 5, 4)
    assert found.train.x[7].max() == 7
    assert found.train.y.tolist() == [0, 1, 2] * 4
    assert len(found.test) == 3
    assert found.users.tolist() == ["0", "1", "2", "3"] * 3
    assert found.scale == 1 / 255


def test_one_picture_in_colour_makes_all_so_and_sizes_can_be_made_one(cached: dict[str, Any]) -> None:
    cached["a/b"] = {"train": pictures(6, "RGB"), "test": pictures(3, side=6)}
    with pytest.raises(UsageError, match="image_size"):
        read("a/b")
    found = read("a/b", size=(3, 2))
    assert found.train.x.shape == (6, 3, 2, 3)


def test_without_a_test_a_share_is_held_out_with_its_users(cached: dict[str, Any]) -> None:
    cached["a/b"] = {"train": pictures(24)}
    found = read("a/b", Columns(user="writer_id"))
    assert (len(found.train), len(found.test)) == (18, 6)
    pixel = found.train.x[:, 0, 0]
    assert [str(value % 4) for value in pixel] == found.users.tolist()


def test_each_device_holds_its_users(cached: dict[str, Any], tmp_path: Path) -> None:
    cached["a/b"] = {"train": pictures(12), "test": pictures(3)}
    tables = {
        "federation": {"name": "x", "method": "fedavg", "rounds": 1, "devices": 4},
        "data": {"source": "hugging-face", "dataset": "a/b", "user_column": "writer_id", "public": 0},
        "partition": {"kind": "user", "min_samples": 1},
        "fleet": [{"count": 4, "model": "softmax"}],
    }
    fleet = build_fleet(settings.parse(tables, tmp_path / "f.toml"))
    assert [len(device.data.train) for device in fleet.devices] == [3, 3, 3, 3]


def numbers(**columns: list[Any]) -> Mapping[str, Part]:
    return {"train": Part(dict.fromkeys(columns, Value), columns)}


def test_numbers_and_a_column_called_label(cached: dict[str, Any]) -> None:
    cached["n"] = numbers(signal=[[0.5, 1.0, 2.0]] * 8, label=[0, 1] * 4, note=["a"] * 8)
    found = read("n")
    assert (found.train.x.shape, found.train.x.dtype, found.scale) == ((6, 3), np.float32, 1.0)


def test_labels_that_are_names(cached: dict[str, Any]) -> None:
    cached["n"] = numbers(signal=[[1.0]] * 8, label=["dog", "cat"] * 4)
    found = read("n")
    assert found.class_names == ("cat", "dog")
    assert sorted(found.train.y.tolist() + found.test.y.tolist()) == [0] * 4 + [1] * 4


LABELS = [0, 1] * 4


@pytest.mark.parametrize(
    ("held", "columns", "word"),
    [
        ({"test": pictures(3)}, Columns(), "train"),
        (numbers(signal=[[1.0]] * 8, fine=LABELS), Columns(), "label_column"),
        (numbers(signal=[[1.0]] * 8, fine=LABELS), Columns(label="coarse"), "coarse"),
        (numbers(signal=[[1.0]] * 8, label=LABELS), Columns(user="writer"), "user_column"),
        (numbers(note=["a"] * 8, label=LABELS), Columns(), "found none"),
        (numbers(a=[[1.0]] * 8, b=[[1.0]] * 8, label=LABELS), Columns(), "a, b"),
        (numbers(signal=[[1.0]] * 8, label=[-1] * 8), Columns(), "label"),
        (numbers(signal=[[1.0]] * 8, label=[None] * 8), Columns(), "label"),
        (numbers(signal=[[1.0], [1.0, 2.0]] * 4, label=LABELS), Columns(), "signal"),
        (numbers(signal=[[float("nan")]] * 8, label=LABELS), Columns(), "finite"),
    ],
)
def test_what_does_not_fit_is_one_line(cached: dict[str, Any], held: Any, columns: Columns, word: str) -> None:
    cached["a/b"] = held
    with pytest.raises(UsageError, match=word) as caught:
        read("a/b", columns)
    assert "\n" not in str(caught.value)


def test_what_is_not_cached_says_how_to_get_it(cached: dict[str, Any]) -> None:
    assert not cached
    with pytest.raises(UsageError, match=r"load_dataset\('a/b'\)") as caught:
        read("a/b")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("line", "word"), [('dataset = "a/b"', "edge-sdk[flwr]"), ("", "data.dataset")])
def test_without_the_library_or_a_name_it_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, word: str
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    file = tmp_path / "f.toml"
    file.write_text(f'[federation]\nname = "x"\nrounds = 1\ndevices = 2\n[data]\nsource = "hugging-face"\n{line}\n')
    assert cli.main(["simulate", str(file), "--out", str(tmp_path / "run")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert word in said


def test_texts_and_ids_of_several_lengths_are_tokens(cached: dict[str, Any]) -> None:
    labels, tokens = [0, 1, 0, 1], SampleKind("tokens", 50)
    texts = {"text": ["the cat", "a dog barks", "cats", "dogs"], "label": labels, "title": ["a", "b", "c", "d"]}
    part = Part({"text": Value, "title": Value, "label": ClassLabel}, texts)
    cached["a/texts"] = {"train": part, "test": part}
    found = read("a/texts", Columns(kind=tokens, text="text", length=4))
    assert (found.test.x > 0).sum(axis=1).tolist() == [2, 3, 1, 1]
    with pytest.raises(UsageError, match=r"one column of texts or ids; found text, title; name it with data\.text_col"):
        read("a/texts", Columns(kind=tokens))
    with pytest.raises(UsageError, match=r'found none; kind = "tokens" takes the texts of text, title$'):
        read("a/texts")
    ids = Part({"input_ids": Value, "label": ClassLabel}, {"input_ids": [[1, 2], [3], [4, 5], [6]], "label": labels})
    longer = Part({"input_ids": Value, "label": ClassLabel}, {"input_ids": [[7, 8, 9]], "label": [0]})
    cached["a/ids"] = {"train": ids, "test": longer}
    found = read("a/ids", Columns(kind=tokens))
    assert (found.train.x[1].tolist(), found.test.x.tolist()) == ([3, 0, 0], [[7, 8, 9]])
