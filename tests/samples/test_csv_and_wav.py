"""Samples in CSV and WAV files: what is read, and one line with the place of what does not fit."""

from __future__ import annotations

import struct
import wave
from pathlib import Path
from typing import Any

import numpy as np
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
        ("label;a\n0;1,5\n", {}, "row 1: its cells are separated by ';': write them with commas"),
        ("label,a,\n0,1,\n", {}, "row 1: column 3 has no name"),
        (",label,a\n0,0,1\n", {}, "row 1: column 1 has no name: .* pandas writes its index so"),
        ("label,a\n0,1_500\n", {}, "row 2, column a: '1_500' is not a finite number"),
        ("label,a\n0,1e300\n", {}, "row 2, column a: '1e300' is not a finite number of float32"),
        ("label,a\n0,1700000001\n1,1700000002\n", {}, "column a: values near 1,700,000,001 differ by about 0.5"),
        ("label,a\n0,1\ncat,2\n", {}, "row 3: the label 'cat', but the first is '0'"),
        ("label,a\n0.0,1\n", {}, "row 2, column label: '0.0': labels are whole numbers: write 0"),
        ("label,a\nnan,1\n", {}, "row 2, column label: no label"),
        ('label,t\n0,"a\nb"\n1,...\n', TEXTS | {"text": "t"}, "row 3 (line 4), column t: the text has no word"),
        ('label,t\n0,"a\n', TEXTS | {"text": "t"}, "row 2: not readable as CSV"),
        ("label,t\n0,a\n", TEXTS | {"text": "t", "length": 0}, "length 0: expected a whole number of at least 1"),
        ("label,a,b\n0,1,2\n1,0,\n", TEXTS, "row 3 has the id 0, which pads shorter texts"),
        ("label,a,b\n0,1,2\n1,0,0\n", TEXTS, "row 3 has no tokens"),
        ("run,label,a\n,0,1\n", STEPS, "row 2, column run: the cell is empty"),
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
    assert all(part in str(refused.value) for part in said.split(" .* "))
    assert str(refused.value).startswith(str(path))


def test_what_spreadsheets_add_to_a_csv_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_bytes("\ufefflabel,a,time\r\n 7 ,1,1700000001\r\n\r\n9,3,1700000002\r\n".encode())
    found = edge_sdk.samples_from_csv(path, ignored="time", classes=["9", "7"])
    assert (found.x.tolist(), found.y.tolist(), found.class_names) == ([[1], [3]], [1, 0], ("9", "7"))


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
    with pytest.raises(UsageError, match=r'b/1\.wav has 1 steps, others have 2: declare kind="ragged-series"'):
        edge_sdk.samples_from_folder(tmp_path)
    with pytest.raises(UsageError, match=r"1\.wav: has a rate of 8,000 Hz, but rate=16000"):
        edge_sdk.samples_from_folder(tmp_path, kind="ragged-series", rate=16000)
    sound(tmp_path / "b" / "2.wav", [[1, 1]], rate=44100)
    with pytest.raises(UsageError, match=r"b/2\.wav: has a rate of 44,100 Hz, but 1\.wav has 8,000 Hz"):
        edge_sdk.samples_from_folder(tmp_path)
    sound(tmp_path / "b" / "2.wav", [[1]], width=4)
    with pytest.raises(UsageError, match=r"2\.wav: has 1 channels, but 1\.wav has 2"):
        edge_sdk.samples_from_folder(tmp_path)
    for content in (b"RIFF", b"", (tmp_path / "a" / "1.wav").read_bytes()[:20]):
        (tmp_path / "b" / "2.wav").write_bytes(content)
        with pytest.raises(UsageError, match=r"2\.wav: not a readable WAV file of PCM .*: it ends early"):
            edge_sdk.samples_from_folder(tmp_path)
    (tmp_path / "b" / "2.wav").write_bytes((tmp_path / "a" / "1.wav").read_bytes()[:-8])
    with pytest.raises(UsageError, match=r"2\.wav: ends early: its header says 2 samples, and 1 are there"):
        edge_sdk.samples_from_folder(tmp_path)


def headed(tag: int, bits: int, data: bytes, *, extensible: bool) -> bytes:
    """Return a WAV file of one channel at 8,000 Hz."""
    width = bits // 8
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else tag, 1, 8000, 8000 * width, width, bits)
    if extensible:
        form += (
            struct.pack("<HHI", 22, bits, 4) + struct.pack("<H", tag) + bytes.fromhex("000000001000800000aa00389b71")
        )
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def test_wav_files_as_recorders_write_them(tmp_path: Path) -> None:
    halves = np.array([0.5, -0.25])
    files = {
        "24 bits": headed(1, 24, b"\x00\x00\x40\x00\x00\xe0", extensible=True),
        "floats": headed(3, 32, halves.astype("<f4").tobytes(), extensible=False),
        "long floats": headed(3, 64, halves.astype("<f8").tobytes(), extensible=True),
    }
    for name, content in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.wav").write_bytes(content)
    found = edge_sdk.samples_from_folder(tmp_path, kind="series")
    assert found.x[:, :, 0].tolist() == [halves.tolist()] * 3
    (tmp_path / "floats" / "2.wav").write_bytes(headed(3, 32, np.array([1, np.nan], "<f4").tobytes(), extensible=False))
    with pytest.raises(UsageError, match=r"floats/2\.wav: holds NaN or Inf at 1"):
        edge_sdk.samples_from_folder(tmp_path)
    (tmp_path / "floats" / "2.wav").write_bytes(headed(2, 8, b"12", extensible=False))
    with pytest.raises(UsageError, match=r"floats/2\.wav: not a readable WAV .* unknown format: 2"):
        edge_sdk.samples_from_folder(tmp_path)


def test_sounds_that_end_in_silence_keep_their_length(tmp_path: Path) -> None:
    sound(tmp_path / "a" / "1.wav", [[9], [9], [9]])
    sound(tmp_path / "b" / "1.wav", [[9], [0], [0]])
    sound(tmp_path / "b" / "2.wav", [[0], [0]])
    there = edge_sdk.samples_from_folder(tmp_path, kind="ragged-series").x[:, :, 0] != 0
    assert there.tolist() == [[True, True, True], [True, False, True], [False, True, False]]


def test_a_folder_as_people_have_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("10", "9", ".git", "__MACOSX", "__pycache__", "@eaDir"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "1.npy", np.array([int(name), 2] if name.isdecimal() else [3, 3]))
    (tmp_path / "9" / "Thumbs.db").write_bytes(b"")
    found = edge_sdk.samples_from_folder(tmp_path, kind="tokens", vocabulary=99)
    assert (found.x.tolist(), found.y.tolist(), found.class_names) == ([[9, 2], [10, 2]], [0, 1], ("9", "10"))
    assert not caplog.text
    (tmp_path / "9" / "2.flac").write_bytes(b"")
    (tmp_path / "9" / "more").mkdir()
    edge_sdk.samples_from_folder(tmp_path, kind="tokens", vocabulary=99)
    assert "2 of its files are not read (.flac, folders)" in caplog.text
    np.save(tmp_path / "9" / "2.npy", np.array([1, 99]))
    with pytest.raises(UsageError, match=r"9/2\.npy has the id 99 at place 1"):
        edge_sdk.samples_from_folder(tmp_path, kind="tokens", vocabulary=99)
    np.save(tmp_path / "9" / "2.npy", np.array([1, np.nan]))
    with pytest.raises(UsageError, match=r"the first of them .*9/2\.npy, at \[1\]"):
        edge_sdk.samples_from_folder(tmp_path, kind="vector")


def test_lengths_and_class_names_of_an_npz_file_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=[[7, 8], [5, 9]], y=[0, 1], lengths=[2, 1], class_names=["bad", "good"])
    found = edge_sdk.samples_from_npz(tmp_path / "s.npz", kind="tokens", vocabulary=10)
    assert (found.x.tolist(), found.class_names) == ([[7, 8], [5, 0]], ("bad", "good"))
