"""LEAF's layout: samples by user, and what is no such file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.errors import UsageError
from edge_sdk.sample_kind import SampleKind
from edge_sdk.samples.texts import hashed_words
from edge_sim.config import settings
from edge_sim.data.sources.leaf import read_leaf
from edge_sim.fleet.fleet import build_fleet

USERS = {"f01": 6, "f02": 9, "f10": 7}


def write(folder: Path, x=lambda user, row: [len(user) + row / 10, 0.0, 0.5, 1.0], y=lambda row: row % 2) -> Path:
    for part, share in (("train", 1), ("test", 3)):
        (folder / part).mkdir(parents=True)
        for place, (user, count) in enumerate(USERS.items()):
            rows = range(count // share)
            held = {"x": [x(user, row) for row in rows], "y": [y(row) for row in rows]}
            text = json.dumps({"users": [user], "num_samples": [len(rows)], "user_data": {user: held}})
            (folder / part / f"{place}.json").write_text(text)
    return folder


def test_samples_are_those_of_their_users(tmp_path: Path) -> None:
    found = read_leaf(write(tmp_path), (2, 2))
    assert found.train.x.shape == (22, 2, 2)
    assert found.test.y.shape == (7,)
    assert dict(zip(*np.unique(found.users, return_counts=True), strict=True)) == USERS


def test_labels_may_be_names_of_classes(tmp_path: Path) -> None:
    found = read_leaf(write(tmp_path / "names", y=lambda row: ["dog", "cat", "eel"][row % 3]), None)
    assert found.class_names == ("cat", "dog", "eel")
    numbers = read_leaf(write(tmp_path / "numbers", y=lambda row: [1, 0, 2][row % 3]), None)
    assert found.train.y.tolist() == numbers.train.y.tolist()
    assert found.test.y.tolist() == numbers.test.y.tolist()
    with pytest.raises(UsageError, match="labels that are all whole numbers, or all names"):
        read_leaf(write(tmp_path / "mixed", y=lambda row: ["dog", 1][row % 2]), None)
    mixed = write(tmp_path / "parts", y=lambda row: ["dog", "cat"][row % 2])
    (mixed / "test" / "0.json").write_text((tmp_path / "numbers" / "test" / "0.json").read_text())
    with pytest.raises(UsageError, match="some labels are names of classes, others numbers"):
        read_leaf(mixed, None)


def test_each_device_holds_one_user(tmp_path: Path) -> None:
    tables = {
        "federation": {"name": "x", "method": "fedavg", "rounds": 1, "devices": 3},
        "data": {"source": "leaf", "path": str(write(tmp_path)), "public": 0},
        "partition": {"kind": "user", "min_samples": 1},
        "fleet": [{"count": 3, "model": "softmax"}],
    }
    fleet = build_fleet(settings.parse(tables, tmp_path / "f.toml"))
    assert [len(device.data.train) for device in fleet.devices] == [*USERS.values()]


def test_texts_become_ids_of_their_words(tmp_path: Path) -> None:
    kind = SampleKind("tokens", 50)
    lines = read_leaf(write(tmp_path / "lines", x=lambda user, _row: f"my {user}"), None, kind=kind, length=3)
    assert lines.train.x.shape == (22, 3)
    assert lines.train.x[0].tolist() == hashed_words([f"my {lines.users[0]}"], vocabulary=50, length=3)[0].tolist()
    record = read_leaf(
        write(tmp_path / "tweets", x=lambda user, _row: ["1", "Mon", "NO_QUERY", user, f"my {user}", "training"]),
        None,
        kind=kind,
        length=3,
    )
    assert (record.train.x == lines.train.x).all()


def test_what_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no \.json"):
        read_leaf(tmp_path, None)
    with pytest.raises(UsageError, match="image_size"):
        read_leaf(write(tmp_path / "a"), (3, 3))
    with pytest.raises(UsageError, match=r'samples are texts: write data\.kind = "tokens" and data\.vocabulary'):
        read_leaf(write(tmp_path / "b", x=lambda _user, _row: "a line of Shakespeare"), None)
    with pytest.raises(UsageError, match=r"user .*: sample 0 has no word"):
        read_leaf(write(tmp_path / "d", x=lambda _user, _row: "..."), None, kind=SampleKind("tokens", 50))
    with pytest.raises(UsageError, match=r"different shapes|expected numbers"):
        read_leaf(write(tmp_path / "c", x=lambda user, _row: [1.0] * len(user.rstrip("0"))), None)
    (tmp_path / "a" / "train" / "0.json").write_text("[]")
    with pytest.raises(UsageError, match=r"0\.json"):
        read_leaf(tmp_path / "a", None)
