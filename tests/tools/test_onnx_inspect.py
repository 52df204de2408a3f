"""`edge-sdk inspect` on files as they are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_sdk.cli import main

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from onnx_files import CLASSES, WIDTH, classifier, linear_classifier  # only where onnx is installed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(classifier(("n", 6, 6, 1), endings=["Softmax"]))
    return path


def described(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main(["inspect", *arguments, "--json"]) == 0
    found: dict = json.loads(capsys.readouterr().out)
    return found


def test_a_classifier(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = described(capsys, str(file))
    assert found["bytes"] == file.stat().st_size
    assert found["opsets"] == {"ai.onnx": 17}
    assert (found["layout"], found["sample_shape"], found["batch"]) == ("NHWC", [1, 6, 6], "any")
    assert (found["split_at"], found["head_starts"], found["cut"]) == ("features", "layer", "Softmax")
    assert (found["features"], found["classes"]) == (WIDTH, CLASSES)
    assert found["parameters"] == 36 * WIDTH + WIDTH + (WIDTH + 1) * CLASSES
    assert found["trained_parameters"] == (WIDTH + 1) * CLASSES


def test_what_learns_if_all_layers_do(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = described(capsys, str(file))["training_all"]
    assert (found["remark"], found["layers"], found["learning_layers"]) == ("learns: 2 of 2 layers", 2, 2)
    assert found["parameters"] == 36 * WIDTH + WIDTH + (WIDTH + 1) * CLASSES
    assert found["names_of_the_exporter"] == []
    assert found["bytes_of_a_batch_of_8"] > 4 * 4 * found["parameters"]  # the head's, too
    assert main(["inspect", str(file)]) == 0
    text = capsys.readouterr().out
    assert 'train="all"  learns: 2 of 2 layers; 209 parameters; about 0 MiB for batches of 8' in text
    assert "average with the net" in text


def test_a_last_layer_without_a_bias_is_not_blamed_on_the_exporter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(classifier(form="matmul"))
    assert main(["inspect", str(path)]) == 0
    (line,) = (each for each in capsys.readouterr().out.splitlines() if each.startswith("layout"))
    assert "the last layer is no torch Linear with a bias (rows): they average with equal files" in line
    assert "export it" not in line


def test_a_linear_classifier_of_scikit_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "linear.onnx"
    path.write_bytes(linear_classifier())
    found = described(capsys, str(path))
    assert found["head_starts"] == "layer"
    assert found["training_all"]["remark"].startswith("no layer before the last one can learn")


def test_why_no_layer_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "extractor.onnx"
    path.write_bytes(classifier(endings=["Relu"], classes=9, form="half"))
    found = described(capsys, str(path), "--classes", "3")["training_all"]
    assert list(found) == ["remark"]
    assert "float16 (w2): to train all layers, export them as float32" in found["remark"]


def test_what_it_could_take_part_in_and_why_not(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    methods = described(capsys, str(file))["methods"]
    assert {methods[name]["part"] for name in ("local", "fedmd", "fedssa")} == {"learns"}
    assert methods["fedavg"]["part"] == "none"
    assert methods["fedavg"]["note"] == 'lacks weights: train="all" lets its body learn'
    assert methods["fednh"]["note"].endswith('train="all" lets its body learn; build it with head="cosine"')
    assert methods["fedalign"]["note"].endswith("at a share of its width: take a torch net that does")
    assert f"feature_dim must be {WIDTH}" in methods["fedssa"]["note"]
    assert "prototype-pull" in methods["fedproto"]["note"]


def test_an_extractor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "extractor.onnx"
    path.write_bytes(classifier(endings=["Relu"], classes=9))
    open_width = described(capsys, str(path))
    assert (open_width["features"], open_width["classes"], open_width["classes_known"]) == (9, 9, False)
    told = described(capsys, str(path), "--classes", "3")
    assert (told["classes"], told["head_starts"], told["classes_known"]) == (3, "new", True)


def test_another_place_and_an_open_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "open.onnx"
    path.write_bytes(classifier(("n", "d")))
    assert main(["inspect", str(path)]) == 2
    assert "pass --input-shape C,H,W" in capsys.readouterr().err
    path.write_bytes(classifier(("n", 1, 6, "w")))
    arguments = [str(path), "--input-shape", "1,6,1", "--features", "hidden"]
    assert described(capsys, *arguments)["split_at"] == "hidden"


@pytest.mark.parametrize(
    ("shape", "batch"), [(("n", 6), "any"), ((1, 6), "1"), ((8, 6), "8"), (("n", "t", 3), "any")], ids=str
)
def test_batches(shape: tuple[object, ...], batch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(classifier(shape))
    found = described(capsys, str(path), "--input-shape", "1,3" if len(shape) == 3 else "6")
    assert (found["batch"], found["samples_per_run"]) == (batch, 1)


def test_as_text(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(file)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["classes", str(CLASSES)] in lines
    assert any(line[:2] == ["fedmd", "learns"] for line in lines)


RUBBISH = {"empty": b"", "text": b"not a model", "zeros": bytes(100), "truncated": classifier()[:200], "absent": None}


@pytest.mark.parametrize("content", RUBBISH.values(), ids=RUBBISH)
def test_rubbish_is_one_line(content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    assert main(["inspect", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert "model.onnx" in said.err


@pytest.mark.parametrize(
    "arguments", [["--classes", "0"], ["--classes", "-1"], ["--features", "nowhere"], ["--input-shape", "2,6,6"]]
)
def test_arguments_that_do_not_fit(arguments: list[str], file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(file), *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
