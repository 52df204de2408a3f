"""[data] source = "csv", and sounds and texts in folders: what a simulation reads, and one line about what is wrong."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_sdk import cli
from edge_sdk.errors import UsageError
from edge_sim.config.settings import DataTable
from edge_sim.data.datasets import load_dataset, read_source

TOKENS = {"kind": "tokens", "vocabulary": 50}


def table(**given: Any) -> DataTable:
    return DataTable(**{"source": "csv", "path": "own.csv", "test_fraction": 0.5, "public": 0, **given})


def lines(path: Path, head: str, rows: list[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")


def test_a_table_with_users_and_a_column_to_leave_out(tmp_path: Path) -> None:
    rows = [f"2026-01-0{n % 9},{'ab'[n % 2]}{n // 2 % 2},{['ok', 'worn'][n % 2]},{n}.5,{n}" for n in range(8)]
    lines(tmp_path / "own.csv", "time,machine,state,speed,load", rows)
    given = table(label_column="state", user_column="machine", ignored_columns=("time",))
    whole = read_source(given, 0, tmp_path)
    assert (whole.class_names, whole.train.kind, len(whole.test)) == (("ok", "worn"), "vector", 4)
    assert whole.users is not None
    for x, y, user in zip(whole.train.x, whole.train.y, whole.users, strict=True):
        n = int(x[1])
        assert (x[0], y, user) == (n + 0.5, n % 2, f"{'ab'[n % 2]}{n // 2 % 2}")


def test_texts_and_a_test_file_of_its_own(tmp_path: Path) -> None:
    lines(tmp_path / "news/train.csv", "label,text", ['0,"The cat, the dog"', "1,dog"])
    lines(tmp_path / "news/test.csv", "label,text", ["1,A Dog"])
    whole = read_source(table(path="news", text_column="text", length=4, **TOKENS), 0, tmp_path)
    assert whole.train.x.shape == (2, 4)
    assert whole.train.x[1, 0] == whole.test.x[0, 1] > 0
    lines(tmp_path / "news/test.csv", "label,words", ["1,A Dog"])
    with pytest.raises(UsageError, match=r"test\.csv: row 1: expected one column 'text'; there are label, words"):
        read_source(table(path="news", text_column="text", **TOKENS), 0, tmp_path)


def test_columns_that_change_from_training_to_test_are_refused(tmp_path: Path) -> None:
    lines(tmp_path / "own/train.csv", "label,a,b", ["0,1,2", "1,3,4"])
    lines(tmp_path / "own/test.csv", "label,b,a", ["0,1,2"])
    with pytest.raises(UsageError, match=r"own/test\.csv: row 1: .* are b, a; those of train\.csv are a, b"):
        read_source(table(path="own"), 0, tmp_path)


def test_series_step_by_step(tmp_path: Path) -> None:
    rows = [f"{run},{run % 2},{step},{run}" for run in range(8) for step in range(1, 3 + run % 3)]
    lines(tmp_path / "own.csv", "run,label,x,y", rows)
    whole = read_source(table(kind="ragged-series", series_column="run"), 0, tmp_path)
    assert whole.train.x.shape[1:] == (4, 2)
    assert sorted(np.concatenate([part.x[:, 0, 1] for part in (whole.train, whole.test)])) == [*range(8)]


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("label,a\n0,1\n1,2,3\n", {}, "own.csv: row 3: 3 columns, '3' too; row 1 has 2"),
        ("label,a\n0,1\n,2\n", {}, "own.csv: row 3, column label: no label: leave the row out"),
        (
            "label,a\n0.5,1\n0.25,2\n",
            {},
            "own.csv: row 2, column label: '0.5': labels are whole numbers from 0 or names",
        ),
        (
            "label,a\n0,red\n",
            {},
            "own.csv: row 2, column a: 'red' is not a finite number: write numbers, with a decimal",
        ),
        ("label,a\n0,50\n1,2\n", TOKENS, "own.csv: row 2, column a: the id 50: a vocabulary of 50 has the ids 0..49"),
        ("label,a\n0,1.5\n1,2\n", TOKENS, "own.csv: row 2, column a: the id 1.5: a vocabulary of 50"),
        ("label,t\n0,a\n1,...\n", TOKENS | {"text_column": "t"}, "own.csv: row 3, column t: the text has no word"),
        ("label,t,n\n0,a,1\n", TOKENS | {"text_column": "t"}, "own.csv: row 1: beside the text there are n: name them"),
        ("label,a\n0,1\n", {"series_column": "run"}, 'data.series_column: needs kind = "series" or "ragged-series"'),
        ("label,a\n0,1\n", {"kind": "series"}, 'data.series_column: kind = "series" needs it'),
        ("label,a\n0,1\n", {"text_column": "a"}, 'data.text_column: needs kind = "tokens" and vocabulary'),
        ("label,a\n0,1\n", {"rate": 8000}, "data.rate: has no effect with source = 'csv'; it is of folder"),
        (
            "run,label,who,a\nx,0,ann,1\nx,0,bob,1\n",
            {"kind": "series", "series_column": "run", "user_column": "who"},
            "own.csv: row 3, column who: 'bob', but the same series ('x') began with 'ann'",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_row(tmp_path: Path, text: str, given: dict[str, Any], said: str) -> None:
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(UsageError) as refused:
        load_dataset(table(**given), 0, tmp_path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def sound(path: Path, steps: int, rate: int = 8000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(np.full(steps, 2**14, "<i2").tobytes())


def test_a_folder_of_sounds(tmp_path: Path) -> None:
    for label in ("hum", "knock"):
        for n in range(4):
            sound(tmp_path / "own" / label / f"{n}.wav", 3 + n)
    whole = read_source(table(source="folder", path="own", kind="ragged-series", rate=8000), 0, tmp_path)
    assert (whole.train.x.shape, len(whole.test), whole.class_names) == ((4, 6, 1), 4, ("hum", "knock"))
    assert set(np.unique(whole.train.x)) <= {0, 0.5}
    with pytest.raises(
        UsageError, match=r'hum: holds no pictures .*; declare \.wav files as data.kind = "ragged-serie'
    ):
        read_source(table(source="folder", path="own"), 0, tmp_path)
    sound(tmp_path / "own/knock/3.wav", 3, rate=44100)
    with pytest.raises(UsageError, match=r"knock/3\.wav: has a rate of 44,100 Hz, but 0\.wav has 8,000 Hz"):
        read_source(table(source="folder", path="own", kind="ragged-series"), 0, tmp_path)


def test_a_folder_of_texts(tmp_path: Path) -> None:
    for label, words in (("cats", "the cat"), ("dogs", "a dog barks")):
        for part in ("train", "test"):
            lines(tmp_path / part / label / "1.txt", words, []) if (tmp_path / part).exists() else None
            (tmp_path / part / label).mkdir(parents=True, exist_ok=True)
            (tmp_path / part / label / "1.txt").write_text(words)
    whole = read_source(table(source="folder", path="", length=5, **TOKENS), 0, tmp_path)
    assert (whole.train.x > 0).sum(axis=1).tolist() == [2, 3]
    assert (whole.test.x == whole.train.x).all()
    (tmp_path / "test/dogs/2.txt").write_text("--")
    with pytest.raises(UsageError, match=r"dogs/2\.txt: the text has no word \('--'\)"):
        read_source(table(source="folder", path="", **TOKENS), 0, tmp_path)


def test_a_federation_of_texts_in_a_csv_file_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    words = [["goal", "team", "match", "win"], ["share", "market", "price", "bank"]]
    rows = [f"{['sport', 'money'][n % 2]},{' '.join(rng.choice(words[n % 2], 6))} {n}" for n in range(80)]
    lines(tmp_path / "news.csv", "topic,text", rows)
    (tmp_path / "news.toml").write_text(
        '[federation]\nname = "news"\nmethod = "fd"\nrounds = 2\ndevices = 3\n'
        '[data]\nsource = "csv"\npath = "news.csv"\nkind = "tokens"\nvocabulary = 500\n'
        'label_column = "topic"\ntext_column = "text"\nlength = 8\n'
        '[partition]\nkind = "iid"\n[[fleet]]\ncount = 3\nmodel = "numpy-text"\n'
    )
    assert cli.main(["simulate", str(tmp_path / "news.toml"), "--out", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["class_names"] == ["money", "sport"]
    assert summary["accuracy"]["mean"] > 0.9
    (tmp_path / "news.csv").write_text("topic,text\nsport,goal\nmoney,?!\n")
    assert cli.main(["simulate", str(tmp_path / "news.toml"), "--out", str(tmp_path / "other")]) == 2
    said = capsys.readouterr().err
    assert "news.csv: row 3, column text: the text has no word ('?!'): leave it and its label out" in said


def test_columns_of_very_different_size_are_learnt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The classes differ in the second column alone, a thousandth of the first."""
    rng = np.random.default_rng(0)
    rows = [f"{['ok', 'worn'][n % 2]},{rng.normal(1000, 100):.1f},{rng.normal(n % 2, 0.1):.3f}" for n in range(120)]
    lines(tmp_path / "own.csv", "label,speed,vibration", rows)
    (tmp_path / "own.toml").write_text(
        '[federation]\nname = "own"\nmethod = "fedavg"\nrounds = 3\ndevices = 3\n'
        '[data]\nsource = "csv"\npath = "own.csv"\nnormalise = "fit"\n'
        '[partition]\nkind = "iid"\n[train]\nlearning_rate = 0.3\n[[fleet]]\nmodel = "softmax"\n'
    )
    assert cli.main(["simulate", str(tmp_path / "own.toml"), "--out", str(tmp_path / "run"), "--no-plots"]) == 0
    assert json.loads((tmp_path / "run/summary.json").read_text())["accuracy"]["mean"] > 0.95
    capsys.readouterr()
