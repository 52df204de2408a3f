"""Samples in CSV and WAV files: what is read, and one line with the place of what does not fit."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import pytest

import edge_sdk
from edge_sdk.errors import UsageError

TEXTS = {"kind": "tokens", "vocabulary": 9}
STEPS = {"kind": "ragged-series", "series": "run"}


def test_a_csv_file_of_each_kind(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("label,speed,load\nok,1,2.5\nworn,3,4\n")
    table = edge_sdk.samples_from_csv(path, classes=["new", "ok", "worn"])
    assert (table.x.tolist(), table.y.tolist(), table.kind) == ([[1, 2.5], [3, 4]], [1, 2], None)
    path.write_text("a,b,c,topic\n3,4,5,1\n6,,,0\n")
    texts = edge_sdk.samples_from_csv(path, label="topic", **TEXTS)
    assert (texts.x.tolist(), texts.y.tolist()) == ([[3, 4, 5], [6, 0, 0]], [1, 0])
    path.write_text("run,label,x,y\na,0,1,2\na,0,3,4\nb,1,5,6\n")
    series = edge_sdk.samples_from_csv(path, **STEPS)
    assert (series.x.tolist(), series.y.tolist()) == ([[[1, 2], [3, 4]], [[5, 6], [0, 0]]], [0, 1])


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("label,a,b\n0,1,2\n1,2\n", {}, "s.csv: row 3: 2 columns, nothing for 'b'; row 1 has 3"),
        ("label,a\n0,1\n1,2,7\n", {}, "s.csv: row 3: 3 columns, '7' too; row 1 has 2"),
        ("label,a\n0,1\n1,fast\n", {}, "s.csv: row 3, column a: 'fast' is not a finite number"),
        ("label,a\n0,nan\n", {}, "row 2, column a: 'nan' is not a finite number"),
        ("class,a\n0,1\n", {}, "s.csv: row 1: expected one column 'label'; there are class, a"),
        ("label,a,a\n0,1,1\n", {}, "row 1: two columns 'a'"),
        ("label,a\n", {}, "has no rows of samples"),
        ("", {}, "the file is empty"),
        ("label,a,b\n0,1,2\n1,,\n", TEXTS, "row 3: a text without tokens"),
        ("label,a,b\n0,1,2\n1,9,1\n", TEXTS, "s.csv: row 3, column a: the id 9: a vocabulary of 9 has the ids 0..8"),
        ("run,label,a\nx,0,1\nx,1,1\n", STEPS, "row 3, column label: '1', but the same series ('x') began with '0'"),
        ("run,label,a\nx,0,1\ny,1,1\nx,0,1\n", STEPS, "row 4, column run: 'x' continues after another began"),
        ("run,label,a\nx,0,1\n", {"kind": "series"}, 'series="COLUMN"'),
        (
            "run,label,a\nx,0,1\nx,0,1\ny,1,1\n",
            STEPS | {"kind": "series"},
            "column run: 'y' has 1 steps, 'x' has 2: declare",
        ),
    ],
)
def test_a_csv_file_that_does_not_fit(tmp_path: Path, text: str, given: dict[str, Any], said: str) -> None:
    path = tmp_path / "s.csv"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        edge_sdk.samples_from_csv(path, **given)
    assert said in str(refused.value)
    assert str(refused.value).startswith(str(path))


def sound(path: Path, values: list[list[int]], rate: int = 8000, width: int = 2) -> None:
    path.parent.mkdir(exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((len(values[0]), width, rate, 0, "NONE", ""))
        file.writeframes(b"".join(int(v).to_bytes(width, "little", signed=width > 1) for row in values for v in row))


def test_wav_files_are_series(tmp_path: Path) -> None:
    for width, unit, zero in ((1, 64, 128), (2, 2**14, 0), (3, 2**22, 0), (4, 2**30, 0)):
        sound(tmp_path / "a" / "1.wav", [[zero + unit, zero - unit], [zero, zero + unit]], width=width)
        sound(tmp_path / "b" / "1.wav", [[zero - unit, zero]], width=width)
        read = edge_sdk.samples_from_folder(tmp_path, kind="ragged-series", rate=8000)
        assert read.x.tolist() == [[[0.5, -0.5], [0, 0.5]], [[-0.5, 0], [0, 0]]], width
    with pytest.raises(UsageError, match='sample 1 has 1 steps, others have 2: declare kind="ragged-series"'):
        edge_sdk.samples_from_folder(tmp_path)
    with pytest.raises(UsageError, match=r"1\.wav: has a rate of 8,000 Hz, but rate=16000"):
        edge_sdk.samples_from_folder(tmp_path, kind="ragged-series", rate=16000)
    sound(tmp_path / "b" / "2.wav", [[1, 1]], rate=44100)
    with pytest.raises(UsageError, match=r"b/2\.wav: has a rate of 44,100 Hz, but 1\.wav has 8,000 Hz"):
        edge_sdk.samples_from_folder(tmp_path)
    sound(tmp_path / "b" / "2.wav", [[1]], width=4)
    with pytest.raises(UsageError, match=r"2\.wav: has 1 channels, but 1\.wav has 2"):
        edge_sdk.samples_from_folder(tmp_path)
    (tmp_path / "b" / "2.wav").write_bytes(b"RIFF")
    with pytest.raises(UsageError, match=r"2\.wav: not a readable WAV file of PCM"):
        edge_sdk.samples_from_folder(tmp_path)
