from __future__ import annotations

import contextlib
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from model_suite import SHAPE

import edge_sdk.models
from edge_sdk.data import Preprocess
from edge_sdk.errors import MissingExtra, UsageError
from edge_sdk.models.base import Model
from edge_sim.models import families

RAW_SHAPES = [(8, 8), (28, 28), (32, 32, 3), (64,), (1, 1)]
LARGE = ("resnet18", "resnet34")
"""At one shape only, in test_nets.py: a pass through them takes seconds."""
PICTURES = [name for name, family in families.FAMILIES.items() if "picture" in family.takes]
TORCH = [name for name in PICTURES if families.FAMILIES[name].runtime == "torch" and name not in LARGE]
ONNX = ["onnx-random", "onnx-kmeans"]
NUMPY = ["softmax", "numpy-random", "numpy-filters"]


def public(raw_shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (30, *raw_shape), np.uint8)


def build(name: str, raw_shape: tuple[int, ...] = (8, 8), seed: int = 0, **more: object) -> Model:
    options = {"preprocess": Preprocess(scale=1 / 255), "public": public(raw_shape), **more}
    return families.build_model(name, classes=10, raw_shape=raw_shape, seed=seed, **options)


@pytest.mark.parametrize("raw_shape", RAW_SHAPES)
@pytest.mark.parametrize("name", [*NUMPY, *(pytest.param(name, marks=pytest.mark.torch) for name in TORCH), *ONNX])
def test_every_family_takes_every_shape(name: str, raw_shape: tuple[int, ...]) -> None:
    _needs(name)
    if name == "onnx-kmeans" and raw_shape == (1, 1):
        with pytest.raises(UsageError, match="patches with contrast"):
            build(name, raw_shape)
        return
    model = build(name, raw_shape)
    assert model.spec.name == name
    assert model.spec.runtime == families.FAMILIES[name].runtime
    assert model.logits(model.spec.preprocess(public(raw_shape))).shape == (30, 10)
    assert model.spec.flops_per_sample > 0


@pytest.mark.parametrize("name", [*NUMPY, *(pytest.param(name, marks=pytest.mark.torch) for name in TORCH), *ONNX])
def test_the_same_seed_gives_the_same_model_and_another_another(name: str) -> None:
    _needs(name)
    one, two, other = build(name), build(name), build(name, seed=1)
    x = one.spec.preprocess(public((8, 8)))
    assert one.state_bytes() == two.state_bytes() != other.state_bytes()
    np.testing.assert_array_equal(one.logits(x), two.logits(x))


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.torch) for name in TORCH), *ONNX])
def test_a_family_can_be_built_at_any_width(name: str) -> None:
    _needs(name)
    assert families.chooses_width(name)
    own = build(name)
    for width in (7, own.spec.feature_dim):
        model = build(name, feature_dim=width)
        x = model.spec.preprocess(public((8, 8)))
        assert model.spec.feature_dim == width == model.features(x).shape[1] == model.head_rows().shape[1] - 1
        if name != "mobilenet-v3-small" or width == 7:  # MobileNet's own features come out of a hard swish
            assert (model.features(x) >= 0).all()  # a ReLU stands in front of the last layer, as ever
        assert 0.1 < np.sqrt((model.features(x) ** 2).mean() / (own.features(x) ** 2).mean()) < 10
    assert model.state_bytes() == own.state_bytes()


def test_the_others_keep_theirs() -> None:
    assert not any(families.chooses_width(name) for name in (*NUMPY, "onnx-teacher", "my_models:plain"))
    assert build("softmax", feature_dim=7).spec.feature_dim == 64


def _needs(name: str) -> None:
    family = families.FAMILIES[name]
    if family.runtime != "numpy":
        pytest.importorskip({"torch": "torch", "onnx": "onnxruntime"}[family.runtime])
    if family.extra == "vision" and importlib.util.find_spec("torchvision") is None:
        pytest.skip("needs torchvision: pip install 'edge-sdk[vision]'")


@pytest.mark.torch
def test_architectures_differ_in_size() -> None:
    pytest.importorskip("torch")
    names = [name for name in TORCH if not families.FAMILIES[name].extra]
    sizes = [build(name, (28, 28)).spec.parameters for name in names]
    assert len(set(sizes)) == len(names)


def test_the_onnx_families_read_files(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    extractors = importlib.import_module("edge_sim.models.onnx_extractors")
    images = np.random.default_rng(0).random((30, *SHAPE), np.float32)
    extractor, classifier = tmp_path / "extractor.onnx", tmp_path / "teacher.onnx"
    extractor.write_bytes(extractors.random_extractor(SHAPE, 5, filters=3))
    classifier.write_bytes(extractors.teacher(images, np.arange(30) % 10, 10, seed=0, steps=3))
    for name in ONNX:
        assert "3x3 filters, seed 5" in build(name, (6, 6), extractor_path=extractor).spec.note
    model = build("onnx-teacher", (6, 6), extractor_path=classifier)
    assert model.spec.capabilities == {"predict"}
    assert model.spec.runtime == families.FAMILIES["onnx-teacher"].runtime


def test_what_cannot_be_made_without_a_file_says_so() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    with pytest.raises(UsageError, match="onnx-teacher needs the file"):
        build("onnx-teacher")
    with pytest.raises(UsageError, match=r"onnx-kmeans .*public samples"):
        build("onnx-kmeans", public=None)


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(UsageError, match=r"'cmn'; .*softmax, mlp, mlp-wide, cnn,"):
        build("cmn")
    with pytest.raises(UsageError, match="no model family"):
        families.check_family("cmn")
    with pytest.raises(UsageError, match=r"near to it: resnet18.*resnet"):
        families.check_family("resnet12")
    families.check_family("cnn")


class TestOwnFactories:
    SOURCE = """
from edge_sdk.errors import ModelError
from edge_sdk.models.numpy_model import NumpyModel

def plain(classes, input_shape, seed):
    return NumpyModel(classes, input_shape, seed=seed, name="plain")

def informed(classes, input_shape, seed, preprocess):
    return NumpyModel(classes, input_shape, seed=seed, preprocess=preprocess, name="informed")

def deaf(classes, input_shape, seed):
    return NumpyModel(3, input_shape, seed=seed)

def wrong(classes, input_shape, seed):
    raise ModelError("the net gives 5 outputs, expected 10")

def empty(classes, input_shape, seed):
    return None

constant = 5
"""

    @pytest.fixture(autouse=True)
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "my_models.py").write_text(self.SOURCE, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.delitem(sys.modules, "my_models", raising=False)

    def test_from_the_working_directory(self) -> None:
        model = build("my_models:plain", (8, 6, 3), seed=4)
        assert (model.spec.name, model.spec.feature_dim) == ("plain", 144)
        assert model.state_bytes() == build("my_models:plain", (8, 6, 3), seed=4).state_bytes()

    def test_may_ask_for_the_preprocessing(self) -> None:
        preprocess = Preprocess(size=(4, 4), scale=0.5)
        model = build("my_models:informed", (8, 8), preprocess=preprocess)
        assert model.spec.preprocess == preprocess
        assert model.spec.feature_dim == 16
        assert build("my_models:plain", (8, 8), preprocess=preprocess).spec.feature_dim == 64

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("no_such_module_here:f", "does not import"),
            ("my_models:missing", "does not import"),
            (":f", "expected MODULE:FUNCTION"),
            ("my_models:constant", "is not a function"),
            ("my_models:deaf", "gave a NumpyModel for 3 classes, expected 10"),
            ("my_models:wrong", "^the net gives 5 outputs, expected 10$"),
            ("my_models:empty", r"gave NoneType, expected a Model or a torch\.nn\.Module$"),
        ],
    )
    def test_refused(self, name: str, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            build(name)


def test_nothing_heavy_loads_before_it_is_asked_for() -> None:
    script = """
import sys
import edge_sdk, edge_sdk.models, edge_sim.models.families
from edge_sdk.models import Batches, LinearHead, Model, NumpyModel
NumpyModel(2, (1, 2, 2), seed=0)
print(sorted({"torch", "onnxruntime", "onnx", "sklearn", "paho"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_names_what_it_lacks() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Jax"):
        edge_sdk.models.JaxModel  # noqa: B018  # the access is the test
    for name in edge_sdk.models.__all__:
        with contextlib.suppress(MissingExtra):
            assert getattr(edge_sdk.models, name).__name__ == name


def test_where_torch_is_missing_numpy_trains_dense_nets(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the default proxy of fml and fedkd needs no torch."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    for name, options in (("mlp", {}), ("mlp-wide", {}), ("mlp", {"feature_dim": 12})):
        model = build(name, (32, 32, 3), **options)
        assert model.spec.runtime == families.runtime(name) == "numpy"
        assert model.spec.parameters == families.FAMILIES[name].parameters or options
        assert model.spec.feature_dim == options.get("feature_dim", families.FAMILIES[name].hidden[-1])


@pytest.mark.parametrize(
    ("package", "module", "name"),
    [
        ("torch", "edge_sdk.models.torch_nets.torch_model", "cnn"),
        ("onnxruntime", "edge_sdk.models.onnx_runtime.onnx_session", "onnx-random"),
        ("onnx", "edge_sim.models.onnx_extractors", "onnx-random"),
        ("torchvision", "edge_sim.models.torch_vision", "resnet18"),
    ],
)
def test_a_missing_runtime_names_its_extra(
    package: str, module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None in sys.modules makes an import fail as if the package were not installed."""
    stale = ("edge_sdk.models.onnx", "edge_sim.onnx", "edge_sim.models.torch_vision")
    for loaded in [m for m in sys.modules if m.startswith(stale) or m == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"needs the package {package}: pip install 'edge-sdk\["):
        build(name)
