"""The ONNX runtime: a frozen extractor under a trainable head, and a predict-only teacher; no torch on the device."""

from __future__ import annotations

from typing import Literal

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import Preprocess
from edge_sdk.models.base import ModelSpec
from edge_sdk.models.checks import check_width
from edge_sdk.models.cosine_head import make_head
from edge_sdk.models.feature_cache import FeatureCache
from edge_sdk.models.numpy_model import BY_SLOPE, HeadModel
from edge_sdk.models.onnx_session import OnnxFile, OnnxSession
from edge_sdk.models.predict_only import PredictOnly
from edge_sdk.objectives import names_on


class OnnxModel(HeadModel):
    """A frozen extractor from an .onnx file under a head that is trained in numpy."""

    def __init__(
        self,
        extractor: OnnxFile,
        classes: int,
        *,
        seed: int,
        preprocess: Preprocess | None = None,
        input_shape: tuple[int, int, int] | None = None,
        name: str = "onnx",
        flops_per_sample: int = 0,
        note: str = "",
        head: Literal["linear", "cosine"] = "linear",
    ) -> None:
        """`extractor`: (n, c, h, w) -> (n, d), a path or the file's bytes; head: of logits, or of scaled cosines.

        `flops_per_sample` and `note` tell of it what the file itself does not (its metadata entry `flops_per_sample`,
        its description).  Raises ModelError where the file does not load or does not give (n, d).
        """
        session = OnnxSession(extractor, name=name, input_shape=input_shape)
        layer = make_head(head, session.width, classes, seed)
        spec = ModelSpec(
            name=name,
            runtime="onnx",
            classes=classes,
            feature_dim=session.width,
            capabilities=layer.abilities | {"predict", "logit-gradients", "features", "head-rows", "head-weights"},
            terms=names_on(*BY_SLOPE),
            inert_terms=names_on("features"),
            preprocess=preprocess or Preprocess(),
            parameters=layer.values().size,
            flops_per_sample=(flops_per_sample or session.flops_per_sample) + 2 * session.width * classes,
            activation_bytes_per_sample=4 * (session.width + classes),
            calls_per_pass=2,
            note=note or session.description or "frozen extractor: only the head learns",
        )
        super().__init__(spec, layer)
        self._cache = FeatureCache(session.rows, session.width)

    def feature_rows(self, x: Floats, index: Ints) -> Floats:
        """Return the extractor's output for some samples: x (n, c, h, w), index (m,) -> (m, d), a copy."""
        return self._cache.rows(x, index)


class OnnxTeacher(PredictOnly):
    """A finished classifier from an .onnx file: it can teach the logit methods, and does not learn."""

    def __init__(
        self,
        classifier: OnnxFile,
        classes: int,
        *,
        preprocess: Preprocess | None = None,
        input_shape: tuple[int, int, int] | None = None,
        name: str = "onnx-teacher",
        flops_per_sample: int = 0,
        note: str = "",
    ) -> None:
        """`classifier`: (n, c, h, w) -> logits (n, k) before softmax, a path or the file's bytes.

        Raises ModelError where the file does not load or does not give one logit per class.
        """
        self._session = OnnxSession(classifier, name=name, input_shape=input_shape)
        check_width(name, (1, self._session.width), 1, classes)
        spec = ModelSpec(
            name=name,
            runtime="onnx",
            classes=classes,
            preprocess=preprocess or Preprocess(),
            flops_per_sample=flops_per_sample or self._session.flops_per_sample,
            activation_bytes_per_sample=4 * classes,
            calls_per_pass=1,
            note=note or self._session.description or "predict-only: teaches, does not learn",
        )
        super().__init__(spec)

    def logits(self, x: Floats) -> Floats:
        """Return the logits before softmax: (n, c, h, w) -> (n, k)."""
        return self._session.rows(x)
