"""The ONNX runtime: a frozen body under a trainable head, and a predict-only teacher; no torch on the device."""

from __future__ import annotations

from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Literal

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.data import Preprocess
from edge_sdk.errors import UsageError
from edge_sdk.models.base import unpack_arrays
from edge_sdk.models.body_model import BodyModel
from edge_sdk.models.checks import check_whole_inputs, check_width, with_steps
from edge_sdk.models.cosine_head import CosineHead, make_head
from edge_sdk.models.linear_head import LinearHead
from edge_sdk.models.onnx_file.ending import chosen_endings
from edge_sdk.models.onnx_file.graph import Graph, OnnxFile, own_constants, read_graph
from edge_sdk.models.onnx_file.inputs import Adapter, Layout
from edge_sdk.models.onnx_runtime.onnx_session import OnnxEngine, OnnxSession
from edge_sdk.models.onnx_runtime.onnx_split import Split, is_single, scores_of, split_file, sure_ending
from edge_sdk.models.onnx_training.body import GraphBody, arranged
from edge_sdk.models.predict_only import PredictOnly
from edge_sdk.models.trained_body import ArrangedBody

_NAME = "onnx"
_COPIES = 4
"""Weights, slopes and the two moments of Adam."""


class OnnxModel(BodyModel):
    """An .onnx file with a frozen body, under a head that is trained in numpy.

    A classifier is split before its last linear layer, and the head starts from that layer's weights.  An extractor
    gets a random head, drawn from `seed`.
    """

    def __init__(
        self,
        file: OnnxFile,
        classes: int | None = None,
        *,
        seed: int = 0,
        features: str | None = None,
        output: str | None = None,
        preprocess: Preprocess | None = None,
        input_shape: tuple[int, ...] | None = None,
        layout: Layout = "auto",
        adapter: Adapter | None = None,
        name: str = _NAME,
        flops_per_sample: int = 0,
        note: str = "",
        head: Literal["linear", "cosine"] = "linear",
        train: str = "head",
    ) -> None:
        """Read and split a file.

        file: a path, or the file's bytes.
        classes: the number of classes.  None takes it from a classifier.
        features: the name of the tensor to split at, if not before the last layer.
        output: the name of the output with the scores, if the file has several and does not mark it.
        input_shape: of a sample, if the file leaves it open.
        layout: the order of a picture's axes.
        adapter: makes the file's inputs from one sample (1, c, h, w), for files with several or unusual inputs.
        head: "linear" for logits, "cosine" for scaled cosines.
        train: the layers that learn: the `head` alone, `all` layers, the last ones with the head (`last-4`), or all
        from a named layer, weight or tensor on.  Statistics of batches stay as they are in the file.
        flops_per_sample, note: replace the file's metadata entry `flops_per_sample` and its description.

        Raises ModelError for a file that cannot be used like this, and UsageError for anything that is not a file.
        """
        if not isinstance(file, str | PathLike | bytes):
            raise UsageError(f"OnnxModel: found {type(file).__name__}: give the path of an .onnx file, or its bytes")
        graph = read_graph(file, name if name != _NAME or isinstance(file, bytes) else fspath(file))
        split = split_file(
            file if isinstance(file, bytes) else Path(fspath(file)).resolve(),
            graph,
            classes=classes,
            features=features,
            output=output,
            input_shape=input_shape,
            layout=layout,
            adapter=adapter,
        )
        session = split.session
        if session.inputs.whole:
            check_whole_inputs(name, "the file", preprocess)
        self.split = split
        """Where the file is split."""
        self.train = train
        """What learns."""
        count = classes or split.classes or 0
        layer = make_head(head, session.width, count, seed)
        if split.rows is not None:
            layer.set_rows(split.rows, np.arange(count))
        learning = None if train == "head" else _learning(split, graph, layer, train)
        body = None if learning is None else learning.body
        super().__init__(
            learning or session.rows,
            layer,
            name=name,
            runtime="onnx",
            preprocess=with_steps(preprocess, session.inputs.sample_shape),
            flops=flops_per_sample or _flops(graph) or (body.flops if body else 0),
            note="; ".join([note or graph.description or split.remark(), *([body.report.remark()] if body else [])]),
        )

    def rows_together(self) -> int:
        """Return how many samples the body computes together: one, if it is frozen."""
        return super().rows_together() or 1

    def memory_bytes(self, size: int) -> int:
        """Return about how much memory a training step of a mini-batch of this size takes, weights included."""
        body = self.learning
        return 0 if body is None else size * body.written_bytes + _COPIES * 4 * self.spec.parameters

    @property
    def learning(self) -> GraphBody | None:
        """The body, if layers of it learn."""
        return self._body if isinstance(self._body, GraphBody) else None

    def weight_names(self) -> tuple[str, ...]:
        """Return the names of the arrays that learn, in the order of `weights`."""
        return () if self._learned is None else self._learned.arrangement.names

    def load_state(self, state: bytes) -> None:
        """Restore exactly what state_bytes gave.  Raises StoreError if it does not fit this model.

        A head on a classifier's own outputs, as it was before files were split, is composed with the last layer.
        """
        stored, start = unpack_arrays(state), self.split.rows if self._body is None else None
        rows = stored.get("rows")
        k, d = self.spec.classes, self.spec.feature_dim
        on_logits = self.split.how == "layer" and not self.split.place.then
        if on_logits and start is not None and rows is not None and rows.shape == (k, k + 1) and k != d:
            composed: Floats = rows[:, :-1] @ start
            composed[:, -1] += rows[:, -1]
            stored = {"rows": composed}
        self._load(stored)

    def frozen_digest(self) -> bytes:
        """Return what identifies all that does not learn: 32 bytes."""
        return self.split.session.digest if self.learning is None else self.learning.frozen_digest()

    def onnx_bytes(self, _x: Floats) -> bytes:
        """Return the file with the trained weights in it: what it gave it still gives, by the present weights."""
        weights = None if self.learning is None else self.learning.arrays_by_name()
        return self.split.written(self._head.linear_rows(), unit=isinstance(self._head, CosineHead), weights=weights)


class OnnxTeacher(PredictOnly):
    """A finished classifier from an .onnx file.  It can teach in logit methods, and does not learn."""

    def __init__(
        self,
        classifier: OnnxFile,
        classes: int,
        *,
        output: str | None = None,
        preprocess: Preprocess | None = None,
        input_shape: tuple[int, ...] | None = None,
        layout: Layout = "auto",
        adapter: Adapter | None = None,
        name: str = "onnx-teacher",
        flops_per_sample: int = 0,
        note: str = "",
    ) -> None:
        """Load a file.

        classifier: a path, or the file's bytes.  It returns logits or probabilities (n, k).
        output: the name of the output with these, if the file has several and does not mark it.

        Raises ModelError if the file does not load, or does not return one number per class.
        """
        graph = read_graph(classifier, name)
        opens = partial(OnnxSession, name=name, input_shape=input_shape, layout=layout, adapter=adapter)
        ending = sure_ending(graph, chosen_endings(graph, output, classes), classes, opens)
        session, gives = scores_of(graph, ending, opens)
        if session.inputs.whole:
            check_whole_inputs(name, "the file", preprocess)
        single = is_single(name, ending, session, classes)
        check_width(name, (1, 2 if single else session.width), 1, classes)

        def scores(x: Floats) -> Floats:
            rows = session.rows(x)
            return np.hstack([np.zeros_like(rows), rows]) if single else rows

        super().__init__(
            scores,
            classes,
            gives="probabilities" if gives == "probabilities" else "logits",
            preprocess=with_steps(preprocess, session.inputs.sample_shape),
            name=name,
            runtime="onnx",
            flops_per_sample=flops_per_sample or _flops(graph),
            note=note or graph.description or "predict-only: teaches, does not learn",
        )


def _learning(split: Split, graph: Graph, head: LinearHead, train: str) -> ArrangedBody[GraphBody]:
    """Return the body of a file, whose part `train` learns, and the order of its weights and the head's.

    Raises ModelError.
    """
    whole = own_constants(graph)
    part, held = split.body(whole), split.head_weights(whole)
    body = GraphBody(part, split.session.inputs, OnnxEngine(), train=train)
    return arranged(body, head, held, [*whole.constants], split.head_constants(whole))


def _flops(graph: Graph) -> int:
    """Return the file's own figure of its cost, or 0 if it has none."""
    text = graph.notes.get("flops_per_sample", "")
    return int(text) if text.isdecimal() else 0
