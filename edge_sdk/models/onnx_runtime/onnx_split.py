"""Where a file is split: a frozen body that gives features, and the last layer, which is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.errors import ModelError
from edge_sdk.models.onnx_file.graph import Graph, OnnxFile, read_graph
from edge_sdk.models.onnx_file.head import ending_of, with_new_head, with_rows
from edge_sdk.models.onnx_runtime.onnx_inputs import Adapter, Layout
from edge_sdk.models.onnx_runtime.onnx_session import OnnxSession, digest_of

How = Literal["layer", "outputs", "new"]
"""layer: the file's last linear layer is the head; outputs: the head starts as the identity on the file's outputs;
new: the head is drawn at random."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A file as a body and a head.  The file itself is read again when it is needed: it may be large."""

    source: OnnxFile
    name: str
    output: str
    """The output of the file that is meant."""
    cut: str
    """The Softmax, LogSoftmax or Sigmoid that is left out; "": none."""
    features: str
    """The tensor that the body gives."""
    how: How
    session: OnnxSession
    """The body."""
    rows: Floats | None  # (k, d + 1)
    """What the head starts from; None: it is drawn."""
    single: bool = False
    """Whether the file has one output for two classes, before a Sigmoid; class 0 has a row of zeros then."""

    @property
    def classes(self) -> int | None:
        """The classes of the file; None: it is no classifier that is known to be one."""
        return None if self.rows is None else len(self.rows)

    def written(self, rows: Floats, *, unit: bool) -> bytes:
        """Return the whole file with a trained head: rows (k, d + 1); unit: on features of length 1.

        Raises ModelError where the file is no longer the one that was split.
        """
        graph = read_graph(self.source, self.name)
        if digest_of(graph.up_to([self.features]).content()) != self.session.digest:
            raise ModelError(f"{self.name}: {self.source!s} has changed since the model was made of it: make it anew")
        rows = rows[1:] - rows[:1] if self.single else rows
        if self.how == "new":
            return with_new_head(graph, self.features, rows, unit=unit, output="logits").content()
        layer = ending_of(graph, self.output).layer
        if self.how == "layer" and layer is not None and not unit:
            return with_rows(graph, layer, rows).content()
        return with_new_head(graph, self.features, rows, unit=unit, output=self.output, then=self.cut).content()

    def remark(self) -> str:
        """Return in one line where the file is split, for reports."""
        cut = f"; its {self.cut} is left out" if self.cut else ""
        return {
            "layer": f"split at {self.features!r}: the head starts from the file's last layer{cut}",
            "outputs": f"the head starts as the identity on {self.features!r}{cut}",
            "new": f"frozen extractor up to {self.features!r}: the head starts at random",
        }[self.how]


def split_file(
    source: OnnxFile,
    graph: Graph,
    *,
    classes: int | None,
    features: str | None,
    input_shape: tuple[int, ...] | None,
    layout: Layout,
    adapter: Adapter | None,
) -> Split:
    """Find the body and the head of a file for a federation with some classes; None: as many as the file has.

    A classifier with as many classes is split before its last linear layer.  Where it has none, such as one that ends
    in a convolution and a mean, its outputs are the features, and the head starts as the identity.  `features` names a
    tensor to split at.  All other files are extractors.  Raises ModelError where nothing of this fits.
    """
    name = graph.name
    if classes is not None and classes < 1:
        raise ModelError(f"{name}: classes {classes}: expected at least 1")
    ending = ending_of(graph, graph.float_output())
    if features is not None:
        graph.check_name(features, "features")

    def split(tensor: str, how: How, rows: Floats | None = None, *, single: bool = False) -> Split:
        session = OnnxSession(graph.up_to([tensor]), name=name, input_shape=input_shape, layout=layout, adapter=adapter)
        cut = "" if how == "new" else ending.cut
        return Split(source, name, ending.output, cut, tensor, how, session, rows, single)

    layer = ending.layer
    if layer is not None and features in (None, layer.features):
        single = len(layer.rows) == 1 and ending.cut == "Sigmoid"
        rows = np.vstack([np.zeros_like(layer.rows), layer.rows]) if single else layer.rows
        if classes in (None, len(rows)):
            _check_finite(rows, name)
            return _checked(split(layer.features, "layer", rows, single=single), rows)
        if ending.cut:  # a classifier of other things: what it learnt up to its last layer is of use
            return split(layer.features, "new")
    if classes is None:
        raise ModelError(f"{name}: the file has no last linear layer that tells the number of classes: pass classes=")
    if features is not None:
        return split(features, "new")
    whole = split(ending.logits, "new")
    width = whole.session.width
    if width == classes and not ending.bounded:
        return replace(whole, how="outputs", cut=ending.cut, rows=np.eye(classes, classes + 1, dtype=np.float32))
    if ending.cut:
        raise ModelError(
            f"{name}: it ends in {ending.cut} over {width} numbers, the federation has {classes} classes: "
            "name a tensor before it with features="
        )
    return whole


def _checked(split: Split, rows: Floats) -> Split:
    """Raise ModelError unless the body gives what the layer's rows are for."""
    if split.session.width != rows.shape[1] - 1:
        raise ModelError(
            f"{split.name}: its last layer works on {rows.shape[1] - 1} numbers of {split.session.width} in "
            f"{split.features!r}, as where each step of a series is classified: name a tensor with features="
        )
    return split


def _check_finite(rows: Floats, name: str) -> None:
    if not np.isfinite(rows).all():
        raise ModelError(f"{name}: the weights of its last layer are not finite: export a sound model")
