from __future__ import annotations

import gc
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_suite import ADAM, CLASSES, SHAPE, ModelSuite, batches, check_unsupported, samples

from edge_sdk.data import Preprocess
from edge_sdk.errors import ModelError, StoreError, Unsupported, UsageError
from edge_sdk.models import body_model
from edge_sdk.models.body_model import FeatureCache
from edge_sdk.objectives import CrossEntropy

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper

from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel, OnnxTeacher
from edge_sim.models.onnx_extractors import random_extractor, teacher


def flatten_model(
    inputs: Sequence[Sequence[object]] = (("n", 1, 6, 6),), operator: str = "Flatten", kind: int = TensorProto.FLOAT
) -> bytes:
    """A graph of one operator on its first input."""
    ports = [helper.make_tensor_value_info(f"x{i}", kind, list(shape)) for i, shape in enumerate(inputs)]
    out = helper.make_tensor_value_info("y", kind, None)
    node = helper.make_node(operator, ["x0"], ["y"])
    graph = helper.make_graph([node], "g", ports, [out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_a_file_that_takes_whole_numbers_is_given_ids_as_they_are() -> None:
    ports = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 5])]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])
    node = helper.make_node("Cast", ["ids"], ["y"], to=TensorProto.FLOAT)
    graph = helper.make_graph([node], "g", ports, [out])
    opset = [helper.make_opsetid("", 17)]
    file = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    for scaled in (Preprocess(scale=1 / 255), Preprocess(mean=0.5), Preprocess(std=0.5)):
        with pytest.raises(ModelError, match=r"the file takes whole numbers.*in a simulation write data\.scale = 1"):
            OnnxModel(file, CLASSES, preprocess=scaled)
    ids = np.array([[0, 7, 255, 3, 1]], np.uint8)
    model = OnnxModel(file, CLASSES, preprocess=Preprocess())
    np.testing.assert_array_equal(model.features(model.spec.preprocess(ids)), ids)


class TestOnnxModel(ModelSuite):
    def make(self, seed: int = 0) -> OnnxModel:
        return OnnxModel(random_extractor(SHAPE, 0, filters=4), CLASSES, seed=seed)

    def test_the_extractor_is_frozen(self, model: OnnxModel) -> None:
        x, _ = samples()
        before = model.features(x)
        model.fit(batches(3), (CrossEntropy(),), ADAM)
        np.testing.assert_array_equal(model.features(x.copy()), before)
        check_unsupported(model, "weights")

    def test_a_warm_cache_gives_the_bits_of_a_cold_one(self) -> None:
        """Whatever was asked for before, in whatever order: a restarted device repeats itself."""
        warm, cold = self.make(), self.make()
        x, _ = samples()
        for index in ([5, 3, 3], [0, 39], range(40)):
            warm.feature_rows(x, np.array(index))
        np.testing.assert_array_equal(warm.logits(x), cold.logits(x[::-1].copy())[::-1])

    def test_the_file_tells_cost_and_origin(self, model: OnnxModel) -> None:
        width = model.spec.feature_dim
        assert model.spec.flops_per_sample == 2 * 4 * 9 * 36 + 2 * width * CLASSES
        assert "3x3 filters, seed 0" in model.spec.note
        told = OnnxModel(flatten_model(), CLASSES, seed=0, flops_per_sample=1000, note="of the vendor")
        assert (told.spec.flops_per_sample, told.spec.note) == (1000 + 2 * 36 * CLASSES, "of the vendor")

    def test_from_a_path(self, tmp_path: Path) -> None:
        file = tmp_path / "extractor.onnx"
        file.write_bytes(random_extractor(SHAPE, 0, filters=4))
        x, _ = samples()
        for source in (file, str(file)):
            np.testing.assert_array_equal(OnnxModel(source, CLASSES, seed=0).logits(x), self.make().logits(x))

    @pytest.mark.parametrize("file", [None, 5, ["extractor.onnx"]])
    def test_what_is_no_file_is_one_line(self, file: Any) -> None:
        with pytest.raises(UsageError, match=r"^OnnxModel: found \w+: give the path of an \.onnx file, or its bytes$"):
            OnnxModel(file, CLASSES)

    def test_a_damaged_file_is_named(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.onnx"
        file.write_bytes(b"not a model")
        with pytest.raises(ModelError, match=r"mine\.onnx"):
            OnnxModel(file, CLASSES)

    def test_a_head_that_there_is_not(self) -> None:
        with pytest.raises(ModelError, match="'square'"):
            OnnxModel(flatten_model(), CLASSES, head="square")  # type: ignore[arg-type]  # a user's typing error


class TestOnnxTeacher:
    @pytest.fixture
    def model(self) -> OnnxTeacher:
        x, y = samples()
        return OnnxTeacher(teacher(x, y, CLASSES, seed=0, steps=20), CLASSES)

    def test_predicts(self, model: OnnxTeacher) -> None:
        x, _ = samples()
        assert model.logits(x).shape == (40, CLASSES)
        assert model.logits(x[:0]).shape == (0, CLASSES)
        assert model.spec.capabilities == {"predict"}
        assert model.spec.terms == frozenset()
        assert model.spec.parameters == 0
        assert re.search("^teacher .*40 .*images, seed 0$", model.spec.note)

    @pytest.mark.parametrize("capability", ["features", "head-rows", "weights", "logit-gradients"])
    def test_and_nothing_else(self, model: OnnxTeacher, capability: str) -> None:
        check_unsupported(model, capability)
        with pytest.raises(Unsupported):
            model.head(np.zeros((1, 4), np.float32))

    def test_has_no_state(self, model: OnnxTeacher) -> None:
        model.load_state(model.state_bytes())
        with pytest.raises(StoreError, match="keeps no state"):
            model.load_state(b"weights of another")

    def test_must_give_one_logit_per_class(self) -> None:
        with pytest.raises(ModelError, match=r"\(1, 36\), .*\(1, 4\)"):
            OnnxTeacher(flatten_model(), CLASSES)


class TestFiles:
    """What other people's .onnx files do."""

    def open(self, file: bytes | str, shape: tuple[int, int, int] | None = None) -> OnnxModel:
        return OnnxModel(file, CLASSES, seed=0, input_shape=shape, name="theirs")

    def test_a_batch_of_exactly_one_serves_any_number(self) -> None:
        x, _ = samples()
        model = self.open(flatten_model([(1, 1, 6, 6)]))
        np.testing.assert_array_equal(model.features(x), x.reshape(40, 36))

    def test_open_sizes_are_filled_in(self) -> None:
        file = flatten_model([("n", 1, "h", "w")])
        assert self.open(file, SHAPE).spec.feature_dim == 36
        with pytest.raises(ModelError, match="pass input_shape"):
            self.open(file)

    @pytest.mark.parametrize(
        ("file", "message"),
        [
            (flatten_model([(0, 1, 6, 6)]), "batches of 0"),
            (flatten_model(kind=TensorProto.STRING), "no output"),
            (flatten_model(kind=TensorProto.INT64), "no output"),
            (b"not a model", "not an .onnx file"),
            ("/nowhere/model.onnx", "No such file"),
        ],
        ids=["batch", "strings", "integers", "noise", "nowhere"],
    )
    def test_refused(self, file: bytes | str, message: str) -> None:
        with pytest.raises(ModelError, match=f"theirs: .*{message}"):
            self.open(file)

    def test_features_of_any_rank_are_flattened(self) -> None:
        x, _ = samples()
        np.testing.assert_array_equal(self.open(flatten_model(operator="Identity")).features(x), x.reshape(40, 36))

    def test_another_shape_than_declared(self) -> None:
        with pytest.raises(ModelError, match=r"\(1, 6, 6\), .*input_shape.*\(1, 8, 8\)"):
            self.open(flatten_model(), (1, 8, 8))

    def test_a_graph_that_cannot_run_the_shape(self) -> None:
        file = random_extractor((3, 6, 6), 0)
        model = onnx.load_from_string(file)
        for dimension in model.graph.input[0].type.tensor_type.shape.dim:
            dimension.dim_param = "any"
        with pytest.raises(ModelError, match=r"\(1, 6, 6\).* not run"):
            self.open(model.SerializeToString(), SHAPE)


class TestFeatureCache:
    """The function doubles each sample and counts the samples that it was given."""

    def cache(self) -> tuple[FeatureCache, list[int]]:
        runs: list[int] = []

        def double(x: np.ndarray) -> np.ndarray:
            runs.append(len(x))
            return 2 * x

        return FeatureCache(double, 3), runs

    def samples(self, n: int = 10) -> np.ndarray:
        return np.random.default_rng(0).random((n, 3), np.float32)

    def test_each_sample_runs_once(self) -> None:
        cache, runs = self.cache()
        x = self.samples()
        for _ in range(3):
            np.testing.assert_array_equal(cache.rows(x, np.array([7, 2, 7])), 2 * x[[7, 2, 7]])
        assert runs == [2]
        np.testing.assert_array_equal(cache.rows(x, np.arange(10)), 2 * x)
        assert runs == [2, 8]

    def test_slices_of_an_array_share_its_features(self) -> None:
        cache, runs = self.cache()
        x = self.samples()
        for start in (0, 4, 8, 0, 4, 8):
            part = x[start : start + 4]
            np.testing.assert_array_equal(cache.rows(part, np.arange(len(part))), 2 * part)
        assert sum(runs) == 10
        assert len(cache) == 1

    def test_other_views_stand_for_themselves(self) -> None:
        cache, _ = self.cache()
        x = self.samples()
        for view in (x[::2], x[::-1], x.reshape(5, 6)[:, :3], x[:0], x.T.copy().T):
            np.testing.assert_array_equal(cache.rows(view, np.arange(len(view))), 2 * view)

    def test_forgets_with_the_samples(self) -> None:
        cache, _ = self.cache()
        x = self.samples()
        cache.rows(x, np.arange(10))
        assert len(cache) == 1
        del x
        gc.collect()
        assert len(cache) == 0

    def test_keeps_the_four_arrays_used_last(self) -> None:
        cache, runs = self.cache()
        arrays = [self.samples(1) for _ in range(5)]
        for x in (*arrays[:4], arrays[0], arrays[4]):
            cache.rows(x, np.array([0]))
        assert len(cache) == body_model.CACHED_ARRAYS
        assert len(runs) == 5
        cache.rows(arrays[0], np.array([0]))
        assert len(runs) == 5
        cache.rows(arrays[1], np.array([0]))
        assert len(runs) == 6

    def test_does_not_keep_what_is_too_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(body_model, "CACHED_BYTES", 10 * 3 * 4 - 1)
        cache, runs = self.cache()
        x = self.samples()
        for _ in range(2):
            np.testing.assert_array_equal(cache.rows(x, np.array([1, 1])), 2 * x[[1, 1]])
        assert (len(cache), runs) == (0, [2, 2])

    def test_answers_are_copies(self) -> None:
        cache, _ = self.cache()
        x = self.samples()
        cache.rows(x, np.arange(10))[...] = -1
        np.testing.assert_array_equal(cache.rows(x, np.arange(10)), 2 * x)
