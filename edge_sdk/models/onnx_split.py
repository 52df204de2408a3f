"""Where a file is split: a frozen body that gives features, and the last layer, which is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.errors import ModelError
from edge_sdk.models.onnx_file.graph import Graph
from edge_sdk.models.onnx_file.head import Ending, ending_of, with_new_head, with_rows
from edge_sdk.models.onnx_inputs import Adapter, Layout
from edge_sdk.models.onnx_session import OnnxSession

How = Literal["layer", "outputs", "new"]
"""layer: the file's last linear layer is the head; outputs: the head starts as the identity on the file's outputs;
new: the head is drawn at random."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A file as a body and a head."""

    graph: Graph
    ending: Ending
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
        """Return the whole file with a trained head: rows (k, d + 1); unit: on features of length 1."""
        if self.single:
            rows = rows[1:] - rows[:1]
        if self.how == "layer" and self.ending.layer is not None and not unit:
            return with_rows(self.graph, self.ending.layer, rows).content()
        if self.how == "new":
            return with_new_head(self.graph, self.features, rows, unit=unit, output="logits").content()
        output, then = self.ending.output, self.ending.cut
        return with_new_head(self.graph, self.features, rows, unit=unit, output=output, then=then).content()

    def remark(self) -> str:
        """Return in one line where the file is split, for reports."""
        cut = f"; its {self.ending.cut} is left out" if self.ending.cut and self.how != "new" else ""
        return {
            "layer": f"split at {self.features!r}: the head starts from the file's last layer{cut}",
            "outputs": f"the head starts as the identity on {self.features!r}{cut}",
            "new": f"frozen extractor up to {self.features!r}: the head starts at random",
        }[self.how]


def split_file(
    graph: Graph,
    *,
    name: str,
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
    if classes is not None and classes < 1:
        raise ModelError(f"{name}: classes {classes}: expected at least 1")
    ending = ending_of(graph, graph.float_output())

    def body(tensor: str) -> OnnxSession:
        part = graph.up_to([tensor])
        return OnnxSession(part, name=name, input_shape=input_shape, layout=layout, adapter=adapter)

    if features is not None:
        graph.check_name(features, "features")
    layer = ending.layer
    if layer is not None and features in (None, layer.features):
        single = len(layer.rows) == 1 and ending.cut == "Sigmoid"
        rows = np.vstack([np.zeros_like(layer.rows), layer.rows]) if single else layer.rows
        if classes in (None, len(rows)):
            session = body(layer.features)
            if session.width != rows.shape[1] - 1:
                raise ModelError(
                    f"{name}: its last layer works on {rows.shape[1] - 1} numbers of {session.width} in "
                    f"{layer.features!r}, as where each step of a series is classified: name a tensor with features="
                )
            _check_finite(rows, name)
            return Split(graph, ending, layer.features, "layer", session, rows, single)
        if ending.cut:  # a classifier of other things: what it learnt up to its last layer is of use
            return Split(graph, ending, layer.features, "new", body(layer.features), None)
    if classes is None:
        raise ModelError(f"{name}: the file has no last linear layer that tells the number of classes: pass classes=")
    if features is not None:
        return Split(graph, ending, features, "new", body(features), None)
    session = body(ending.logits)
    if session.width == classes and not ending.bounded:
        identity = np.eye(classes, classes + 1, dtype=np.float32)
        return Split(graph, ending, ending.logits, "outputs", session, identity)
    if ending.cut:
        raise ModelError(
            f"{name}: it ends in {ending.cut} over {session.width} numbers, the federation has {classes} classes: "
            "name a tensor before it with features="
        )
    return Split(graph, ending, ending.logits, "new", session, None)


def _check_finite(rows: Floats, name: str) -> None:
    if not np.isfinite(rows).all():
        raise ModelError(f"{name}: the weights of its last layer are not finite: export a sound model")
