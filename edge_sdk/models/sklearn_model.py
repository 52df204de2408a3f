"""Estimators of scikit-learn: a linear one learns, after any steps of its pipeline.

Nothing of scikit-learn is imported: an estimator brings its own methods and arrays.
"""

from __future__ import annotations

import copy
import hashlib
from math import prod
from typing import Any

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import Preprocess
from edge_sdk.errors import ModelError, Unsupported
from edge_sdk.models import onnx_file
from edge_sdk.models.base import ModelSpec, layout_digest
from edge_sdk.models.body_model import FeatureCache
from edge_sdk.models.checks import check_samples
from edge_sdk.models.linear_head import LinearHead
from edge_sdk.models.numpy_model import BY_SLOPE, HeadModel
from edge_sdk.objectives import names_on

_ABSENT_BIAS = -10.0
"""The start of the bias of a class that the estimator has not seen, so that it is not predicted before it is learnt."""


class SklearnModel(HeadModel):
    """A fitted linear estimator, such as SGDClassifier or LogisticRegression, alone or at the end of a Pipeline.

    The head starts from the estimator's weights and is trained as softmax regression, like NumpyModel.  Earlier steps
    of a pipeline are frozen.  `estimator()` returns an estimator with the trained weights.
    """

    def __init__(
        self,
        estimator: Any,
        classes: int | None = None,
        *,
        input_shape: tuple[int, int, int] | None = None,
        preprocess: Preprocess | None = None,
        name: str | None = None,
        note: str = "",
    ) -> None:
        """Wrap an estimator.

        estimator: fitted on flat samples, with the federation's class ids as labels.
        classes: the federation's number of classes, or None for the estimator's.
        input_shape: (c, h, w) of samples before flattening, or None for any shape with the same count of numbers.

        Raises ModelError for an estimator that is not fitted or not linear.  A non-linear one can teach as
        `PredictOnly`.
        """
        steps = [step for _, step in getattr(estimator, "steps", [("", estimator)])]
        last = steps[-1]
        self._given, self._input_shape = estimator, input_shape
        self._before = [step for step in steps[:-1] if hasattr(step, "transform")]
        name = name or type(last).__name__.lower()
        rows, seen = _linear_rows(last, name)
        count = int(seen.max()) + 1 if classes is None else classes
        if seen.min() < 0 or seen.max() >= count:
            raise ModelError(f"{name}: fitted on the classes {seen.tolist()}: expected class ids from 0 to {count - 1}")
        head = LinearHead(rows.shape[1] - 1, count, seed=0)
        head.rows[:] = 0
        head.rows[:, -1] = _ABSENT_BIAS
        head.rows[seen] = rows
        own: frozenset[str] = frozenset() if self._before else frozenset({"weights"})
        spec = ModelSpec(
            name=name,
            runtime="scikit-learn",
            classes=count,
            feature_dim=rows.shape[1] - 1,
            capabilities=own | {"predict", "logit-gradients", "features", "head-rows", "head-weights"},
            terms=names_on(*BY_SLOPE),
            inert_terms=names_on("features"),
            preprocess=preprocess or Preprocess(),
            parameters=head.values().size,
            shapes=head.shapes,
            layout=b"" if self._before else layout_digest([(head.kind, head.rows.shape)]),
            flops_per_sample=2 * rows[:, :-1].size,
            activation_bytes_per_sample=4 * (rows.shape[1] + count),
            calls_per_pass=1 + len(self._before),
            note=note or f"starts from a fitted {type(last).__name__}",
        )
        super().__init__(spec, head)
        self._cache: FeatureCache | None = None
        """Features of samples that every epoch uses, or None without steps before the classifier, and in a copy."""
        if self._before:
            self._cache = FeatureCache(self._transformed, spec.feature_dim)

    def separate(self) -> None:
        """Take a head of its own, and no cache: several threads may ask this copy."""
        super().separate()
        self._cache = None

    def feature_rows(self, x: Floats, index: Ints) -> Floats:
        """Return what the last step of the pipeline takes: x (n, c, h, w), index (m,) -> (m, d), a copy."""
        check_samples(self.spec.name, x, self._input_shape)
        return self._transformed(x[index]) if self._cache is None else self._cache.rows(x, index)

    def frozen_digest(self) -> bytes:
        """Return what identifies the steps before the last, by what they make of two samples: 32 bytes."""
        if not self._before:
            return hashlib.sha256(b"").digest()
        ramp = np.linspace(-1, 1, self._before[0].n_features_in_, dtype=np.float32)
        return hashlib.sha256(self._transformed(np.stack([ramp, ramp[::-1]])).tobytes()).digest()

    def estimator(self) -> Any:
        """Return a copy of the given estimator, or pipeline, with the trained weights."""
        given = copy.deepcopy(self._given)
        last = given.steps[-1][1] if hasattr(given, "steps") else given
        rows, kind = self.head_rows(), last.coef_.dtype
        if len(last.coef_) == 1 and len(rows) == 2:  # two classes have one row, that of the second
            rows = rows[1:] - rows[:1]
        else:
            last.classes_ = np.arange(len(rows))
        last.coef_, last.intercept_ = rows[:, :-1].astype(kind), rows[:, -1].astype(kind)
        return given

    def onnx_bytes(self, x: Floats) -> bytes:
        """Return the model as an .onnx file: input `samples` (n, c, h, w), output `logits` (n, k).

        Raises Unsupported where steps of a pipeline come before it.
        """
        if self._before:
            raise Unsupported(
                f"model {self.spec.name!r}: the pipeline's steps are scikit-learn's: write estimator() with skl2onnx"
            )
        whole = onnx_file.samples_graph("samples", x.shape[1:])
        return onnx_file.with_new_head(whole, "samples", self.head_rows(), unit=False, output="logits").content()

    def _transformed(self, x: Floats) -> Floats:
        """Return the features of samples: (n, c, h, w) -> (n, d); one at a time, so that neighbours change no bit."""
        flat = x.reshape(len(x), prod(x.shape[1:]))
        width = self.spec.feature_dim
        out = np.empty((len(x), width), np.float32)
        for i in range(len(x) if self._before else 0):
            row: Any = flat[i : i + 1]
            for step in self._before:
                row = step.transform(row)
            out[i] = row.toarray() if hasattr(row, "toarray") else row
        if self._before:
            return out
        if flat.shape[1] != width:
            raise ModelError(f"model {self.spec.name!r} takes {width} numbers a sample, found {flat.shape[1]}")
        out[:] = flat
        return out


def _linear_rows(last: Any, name: str) -> tuple[Floats, Ints]:
    """Return the rows of the classes that an estimator has seen (m, d + 1), and their ids (m,)."""
    if not callable(getattr(last, "fit", None)):
        raise ModelError(f"{name}: found {type(last).__name__}: give an estimator of scikit-learn, or a Pipeline")
    if not hasattr(last, "classes_"):
        raise ModelError(f"{name}: it is not fitted, or not a classifier: fit it once, or use edge_sdk.NumpyModel")
    factors = getattr(last, "coef_", None)
    if not isinstance(factors, np.ndarray) or factors.ndim != 2:
        raise ModelError(
            f"{name}: it has no linear weights (coef_) to train: as a teacher, take "
            "edge_sdk.PredictOnly(lambda x: it.predict_proba(x.reshape(len(x), -1)), classes, gives='probabilities')"
        )
    seen = np.asarray(last.classes_)
    if seen.dtype.kind not in "iu":
        raise ModelError(
            f"{name}: fitted on labels of {seen.dtype}: expected the federation's class ids, whole numbers"
        )
    bias = np.broadcast_to(np.asarray(last.intercept_, np.float64).reshape(-1), (len(factors),))
    rows = np.column_stack([factors, bias]).astype(np.float32)
    if len(seen) == 2 and len(rows) == 1:
        rows = np.vstack([np.zeros_like(rows), rows])
    if not np.isfinite(rows).all():
        raise ModelError(f"{name}: its weights are not finite: fit it again")
    return rows, seen.astype(np.int64)
