"""Where a file is split: a frozen body that gives features, and the last layer, which is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.errors import ModelError
from edge_sdk.models.checks import LEAST_PROBABILITY, sum_to_one
from edge_sdk.models.onnx_file.ending import CLASSIFIER, Ending, OutputLayer, chosen_endings, class_labels, ending_of
from edge_sdk.models.onnx_file.graph import Graph, OnnxFile, own_constants, read_graph, with_values
from edge_sdk.models.onnx_file.head import (
    HeadPlace,
    HeadWeights,
    as_floats_in,
    constants_of_layer,
    weights_of_layer,
    with_head_at,
    with_new_head,
    with_rows,
)
from edge_sdk.models.onnx_file.inputs import Adapter, Layout
from edge_sdk.models.onnx_runtime.onnx_session import OnnxSession, digest_of

How = Literal["layer", "outputs", "new"]
"""How the head starts: `layer`, as the file's last linear layer; `outputs`, as the identity on the file's outputs; or
`new`, at random."""
Gives = Literal["logits", "probabilities", "log-probabilities"]
Opens: TypeAlias = Callable[[Graph], OnnxSession]
_QUANTISED_SUM = 0.05
"""How far the sum of probabilities may be from 1: in a quantised file, each is rounded to 1/256."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A file as a body and a head.  The file itself is read again when it is needed: it may be large."""

    source: OnnxFile
    name: str
    output: str
    """The output of the file that is meant."""
    cut: str
    """The Softmax, LogSoftmax or Sigmoid that is left out; "": none."""
    place: HeadPlace
    """The tensor that the body gives, and the one that a new head replaces."""
    how: How
    session: OnnxSession
    """The body."""
    rows: Floats | None  # (k, d + 1)
    """The head's first weights, or None to draw them."""
    single: bool = False
    """Whether the file has one output for two classes; class 0 then has a row of zeros."""
    cast: bool = False
    """Whether the body's last operator converts the features to f4."""
    others: tuple[str, ...] = ()
    """The file's other outputs."""
    labels: tuple[int | str, ...] = ()
    """The names of the classes in the file, or () if it has none or they are 0, 1, 2 ..."""

    @property
    def features(self) -> str:
        """The tensor that the body gives."""
        return self.place.features

    @property
    def classes(self) -> int | None:
        """The number of classes of the file, or None unless it is recognised as a classifier."""
        return None if self.rows is None else len(self.rows)

    def body(self, graph: Graph) -> Graph:
        """Return the part of the file's graph that gives the features."""
        return _body(graph, self.place, cast=self.cast)

    def head_weights(self, graph: Graph) -> HeadWeights | None:
        """Return the constants that are the head, where they are in the file as they are used; graph: the file's."""
        layer = None if self.single else self._last_layer(graph)
        return None if layer is None else weights_of_layer(graph, layer)

    def head_constants(self, graph: Graph) -> frozenset[str]:
        """Return the constants that hold numbers of the layer that the head starts from; graph: the file's."""
        layer = self._last_layer(graph)
        return frozenset() if layer is None else constants_of_layer(graph, layer)

    def _last_layer(self, graph: Graph) -> OutputLayer | None:
        if self.how != "layer":
            return None
        return ending_of(graph, self.output, graph.score_outputs(self.output)[self.output]).layer

    def written(self, rows: Floats, *, unit: bool, weights: Mapping[str, Floats] | None = None) -> bytes:
        """Return the whole file with a trained head: rows (k, d + 1); unit: on features of length 1.

        weights: of layers of the body that were trained, too, by name.  Raises ModelError where the file is no longer
        the one that was split.
        """
        graph = read_graph(self.source, self.name)
        if digest_of(self.body(graph).content()) != self.session.digest:
            raise ModelError(f"{self.name}: {self.source!s} has changed since the model was made: make it again")
        if weights is not None:
            graph = with_values(own_constants(graph), weights)
            held = self.head_weights(graph)
            if held is not None and not unit:
                return with_values(graph, held.of_rows(rows)).content()
        rows = rows[1:] - rows[:1] if self.single else rows
        if self.how == "new":
            return with_new_head(graph, self.features, rows, unit=unit, output="logits").content()
        if self.how == "layer" and not unit:
            layer = ending_of(graph, self.output, graph.score_outputs(self.output)[self.output]).layer
            if layer is not None:
                return with_rows(graph, layer, rows).content()
        return with_head_at(graph, self.place, rows, unit=unit).content()

    def remark(self) -> str:
        """Return in one line where the file is split, for reports."""
        cut = f"; its {self.cut} is left out" if self.cut else ""
        of = "the logarithm of the probabilities " if self.place.least else ""
        found = {
            "layer": f"split at {self.features!r}: the head starts from the file's last layer{cut}",
            "outputs": f"the head starts as the identity on {of}{self.features!r}{cut}",
            "new": f"frozen extractor up to {self.features!r}: the head starts at random",
        }[self.how]
        if self.labels:
            found += f"; its classes are {', '.join(map(str, self.labels[:10]))}{' ...' * (len(self.labels) > 10)}"
        if self.others and self.how != "new":
            found += f"; output {self.output!r} is trained, beside it are {', '.join(self.others)}"
        return found


def split_file(
    source: OnnxFile,
    graph: Graph,
    *,
    classes: int | None,
    features: str | None,
    output: str | None,
    input_shape: tuple[int, ...] | None,
    layout: Layout,
    adapter: Adapter | None,
) -> Split:
    """Find the body and the head of a file.

    classes: the federation's number of classes, or None for the file's own.
    features: names a tensor to split at.

    A classifier with this number of classes is split before its last linear layer.  A classifier without such a layer,
    for example one that ends in a convolution and a mean, uses its outputs as features, or their logarithms if they are
    probabilities.  Its head starts as the identity.  All other files are extractors.

    Raises ModelError for a file that fits none of these cases.
    """
    name = graph.name
    if classes is not None and classes < 1:
        raise ModelError(f"{name}: classes {classes}: expected at least 1")
    if features is not None:
        graph.check_name(features, "features")

    opens = partial(OnnxSession, name=name, input_shape=input_shape, layout=layout, adapter=adapter)
    endings = chosen_endings(graph, output, classes)
    if features is not None:
        at_layer = [each for each in endings if each.layer is not None and each.layer.features == features]
        endings = (at_layer or endings)[:1]
    ending = sure_ending(graph, endings, classes, opens)

    def split(
        place: HeadPlace,
        how: How,
        rows: Floats | None = None,
        *,
        single: bool = False,
        session: OnnxSession | None = None,
    ) -> Split:
        cast = how == "layer" and ending.layer is not None and ending.layer.operators[0].operator == CLASSIFIER
        session = session or opens(_body(graph, place, cast=cast))
        labels = () if rows is None else class_labels(graph, len(rows))
        return Split(
            source=source,
            name=name,
            output=ending.output,
            cut="" if how == "new" else ending.cut,
            place=place,
            how=how,
            session=session,
            rows=rows,
            single=single,
            cast=cast,
            others=tuple(each for each in graph.outputs if each != ending.output),
            labels=() if labels == tuple(range(len(labels))) else labels,
        )

    layer = ending.layer
    if layer is not None and features in (None, layer.features):
        single = len(layer.rows) == 1 and (ending.cut == "Sigmoid" or classes == 2)
        rows = np.vstack([np.zeros_like(layer.rows), layer.rows]) if single else layer.rows
        if classes is None and len(rows) == 1:
            raise ModelError(f"{name}: it gives one number for a sample: pass classes=2 if it is the score of class 1")
        if classes in (None, len(rows)):
            _check_finite(rows, name)
            place = HeadPlace(layer.features, ending.scores, ending.then, dtype=layer.dtype)
            return _checked(split(place, "layer", rows, single=single), rows)
        if ending.cut:  # a classifier of other classes: its layers before the last one are useful
            return split(HeadPlace(layer.features, layer.features), "new")
    if features is not None:
        return split(HeadPlace(features, features), "new")
    session, gives = scores_of(graph, ending, opens)
    place, start, single = _outputs_as_features(graph, ending, classes, session, gives)
    how: How = "new" if start is None else "outputs"
    return split(place, how, start, single=single, session=None if place.least else session)


def sure_ending(graph: Graph, endings: Sequence[Ending], classes: int | None, opens: Opens) -> Ending:
    """Return the intended ending, by the file's outputs if its structure is ambiguous.

    Raises ModelError if several endings fit.
    """
    found = [each if not each.guessed or _holds(graph, each, opens) else _bare(graph, each) for each in endings]
    if len(found) > 1:
        scores = [(each, *scores_of(graph, each, opens)) for each in found]
        fitting = [each for each, session, _ in scores if session.width == classes and not each.bounded]
        found = [each for each, _, gives in scores if gives != "logits"] or fitting or found
    if len(found) > 1:
        raise ModelError(
            f"{graph.name}: the scores may be in any of the outputs {', '.join(each.output for each in found)}: name "
            "one with output=, or a tensor to split at with features="
        )
    return found[0]


def scores_of(graph: Graph, ending: Ending, opens: Opens) -> tuple[OnnxSession, Gives]:
    """Return the file up to its scores, and what they are: by the structure, or by those of made-up samples."""
    session = opens(graph.up_to([ending.scores]))
    if ending.then == "Sigmoid":
        raise ModelError(f"{graph.name}: its probabilities do not sum to 1: take it as OnnxModel with as many classes")
    if ending.then:
        return session, "probabilities"
    if not (ending.cut or ending.bounded) and session.width > 1:
        rows = session.trial()
        if sum_to_one(rows, _QUANTISED_SUM).all():
            return session, "probabilities"
        if rows.max() <= 0 and sum_to_one(np.exp(rows)).all():
            return session, "log-probabilities"
    return session, "logits"


def is_single(name: str, ending: Ending, session: OnnxSession, classes: int) -> bool:
    """Return whether one number is the score of class 1 of two.  Raises ModelError where it may be a probability."""
    if (session.width, classes) != (1, 2) or ending.bounded:
        return False
    rows = session.trial()
    if ending.cut != "Sigmoid" and 0 <= rows.min() <= rows.max() <= 1:
        raise ModelError(
            f"{name}: it gives one number from 0 to 1 for a sample, and no Sigmoid: export it with one probability for "
            "each class"
        )
    return True


def _body(graph: Graph, place: HeadPlace, *, cast: bool) -> Graph:
    """Return the part of a file that stays as it is."""
    if place.least or cast:
        return as_floats_in(graph, place.features, place.least)
    return graph.up_to([place.features])


def _bare(graph: Graph, ending: Ending) -> Ending:
    """Return the ending without a guess at its structure."""
    return Ending(ending.output, graph.score_outputs(ending.output)[ending.output])


def _holds(graph: Graph, ending: Ending, opens: Opens) -> bool:
    """Return whether a file gives what its last layer does, as the ending has it."""
    if ending.layer is None:
        return False
    expected = opens(as_floats_in(graph, ending.layer.features, None)).trial()
    if expected.shape[1] != ending.layer.rows.shape[1] - 1:
        return False
    expected = expected @ ending.layer.rows[:, :-1].T + ending.layer.rows[:, -1]
    if ending.cut == "Sigmoid":
        expected = 1 / (1 + np.exp(-expected))
    elif ending.cut:
        expected = np.exp(expected - expected.max(axis=1, keepdims=True))
        expected /= expected.sum(axis=1, keepdims=True)
    found = opens(graph.up_to([_bare(graph, ending).scores])).trial()
    return found.shape == expected.shape and np.allclose(found, expected, rtol=1e-3, atol=1e-4)


def _outputs_as_features(
    graph: Graph, ending: Ending, classes: int | None, session: OnnxSession, gives: Gives
) -> tuple[HeadPlace, Floats | None, bool]:
    """Return where a head on the file's own scores comes, the rows (k, d + 1) that keep them, and whether it is single.

    Rows are None where the scores are features for a new head.
    """
    name, width = graph.name, session.width
    if classes is None and gives != "logits":
        classes = width
    if classes is None:
        raise ModelError(f"{name}: the file has no last linear layer that shows the number of classes: pass classes=")
    place = HeadPlace(
        ending.scores,
        ending.scores,
        {"probabilities": "Softmax", "log-probabilities": "LogSoftmax"}.get(gives, ""),
        LEAST_PROBABILITY if gives == "probabilities" else None,
        session.dtype,
    )
    if width == classes and not ending.bounded:
        return place, np.eye(classes, classes + 1, dtype=np.float32), False
    if is_single(name, ending, session, classes):
        return place, np.array([[0, 0], [1, 0]], np.float32), True
    if ending.cut or gives != "logits":
        raise ModelError(
            f"{name}: it ends in {ending.cut or gives} over {width} numbers, the federation has {classes} classes: "
            "name a tensor to take as features with features="
        )
    if width < classes and not ending.bounded:
        before = [] if ending.layer is None else [ending.layer.features]
        tensors = " or ".join(f"features={tensor!r}" for tensor in (*before, ending.scores))
        raise ModelError(
            f"{name}: it gives {width} numbers, and classes is {classes}: pass classes={width} if they are its logits, "
            f"or {tensors}, the tensor behind which a new head comes"
        )
    return HeadPlace(ending.scores, ending.scores), None, False


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
