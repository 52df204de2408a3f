"""Checks that every runtime makes with the same messages before it changes anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import Preprocess
from edge_sdk.errors import ModelError, StoreError, Unsupported
from edge_sdk.models.base import Batches, Model, ModelSpec
from edge_sdk.objectives import Objective, Shapes
from edge_sdk.sample_kind import OF_LENGTHS

LEAST_PROBABILITY = 1e-4
"""Probabilities are at least this before their logarithm: trees and rounded outputs give 0, and a sure teacher's logits
must stay comparable with those that they are averaged with."""


def require(spec: ModelSpec, capability: str) -> None:
    """Raise Unsupported unless the model has a capability."""
    if capability not in spec.capabilities:
        raise lacks(spec, capability)


def lacks(spec: ModelSpec, capability: str) -> Unsupported:
    """The error of a model that does not have a capability."""
    has = ", ".join(sorted(spec.capabilities))
    return Unsupported(f"model {spec.name!r} cannot do {capability!r}; it can do {has}: choose another model")


def check_fit(spec: ModelSpec, batches: Batches, objective: Objective) -> None:
    """Raise Unsupported for a term that the model cannot minimise, ModelError for knowledge of other batches."""
    if {term.name for term in objective} <= spec.inert_terms:
        raise ModelError(f"model {spec.name!r}: nothing to minimise, no term reaches what it can train")
    steps, batch = batches.indices.shape
    shapes = Shapes(steps, batch, spec.classes, spec.feature_dim, spec.parameters)
    for term in objective:
        if term.name not in spec.terms:
            has = ", ".join(sorted(spec.terms)) or "no term: it only predicts"
            raise Unsupported(f"model {spec.name!r} cannot minimise {term.name!r}; it can minimise {has}")
        if misfit := term.misfit(shapes):
            raise ModelError(f"model {spec.name!r}, term {term.name!r}: {misfit}")


def check_rows(spec: ModelSpec, classes: Ints, rows: Floats) -> None:
    """Raise ModelError unless `rows` are head rows of `classes`."""
    expected = (len(classes), spec.feature_dim + 1)
    if rows.shape != expected:
        raise ModelError(f"head rows of shape {rows.shape} for model {spec.name!r}: expected {expected}")
    if len(classes) and not (classes.min() >= 0 and classes.max() < spec.classes):
        raise ModelError(f"head rows for classes {classes.tolist()}: model {spec.name!r} has 0..{spec.classes - 1}")


def check_logits(spec: ModelSpec, logits: Floats, samples: int) -> None:
    """Raise ModelError unless `logits` are one for each sample and class."""
    if np.shape(logits) != (samples, spec.classes):
        count = "one sample" if samples == 1 else f"{samples} samples"
        raise ModelError(f"the model gave {np.shape(logits)} for {count}, expected ({samples}, {spec.classes})")


def check_weights(spec: ModelSpec, values: Floats) -> None:
    """Raise ModelError unless `values` are all of the model's trainable scalars."""
    if values.shape != (spec.parameters,):
        raise ModelError(f"weights of shape {values.shape} for model {spec.name!r}: expected {(spec.parameters,)}")


def check_whole_number(name: str, what: str, value: object, least: int) -> None:
    """Raise ModelError unless a setting of a model is a whole number of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ModelError(f"model {name!r}: {what} {value!r}: expected a whole number of at least {least}")


def input_shape_of(name: str, shape: object) -> tuple[int, int, int]:
    """Return the shape (c, h, w) of a model's preprocessed samples: (t, d) is (1, t, d), and (d,) or (t,) (1, 1, d).

    Raises ModelError for anything else than a shape without zeros.
    """
    sides = shape if isinstance(shape, tuple | list) else ()
    if not 1 <= len(sides) <= 3 or not all(isinstance(each, int | np.integer) and each >= 1 for each in sides):
        raise ModelError(
            f"model {name!r}: input_shape {shape!r}: expected (channels, height, width), whole numbers of at least 1; "
            "of series (t, d), of vectors (d,), of tokens (t,)"
        )
    c, h, w = (1,) * (3 - len(sides)) + tuple(sides)
    return c, h, w


def with_steps(preprocess: Preprocess | None, shape: tuple[int, int, int] | None) -> Preprocess:
    """Return a model's preprocess, which pads ragged series and texts to the length that the model takes.

    shape: (c, h, w) of its input, or None if unknown.
    """
    preprocess = preprocess or Preprocess()
    if shape is None or preprocess.kind not in OF_LENGTHS:
        return preprocess
    return replace(preprocess, steps=shape[2] if preprocess.kind == "tokens" else shape[1])


def check_samples(name: str, x: Floats, input_shape: tuple[int, int, int] | None) -> None:
    """Raise ModelError unless x is (n, c, h, w) with the model's own c, h, w, if those are known."""
    if input_shape is not None and x.shape[1:] != input_shape:
        raise ModelError(
            f"model {name!r} takes samples of shape {input_shape}, found {x.shape[1:]}: "
            "set its preprocess so that the raw samples become that"
        )


def check_whole_inputs(name: str, why: str, preprocess: Preprocess | None) -> None:
    """Raise ModelError where preprocess makes fractions of the whole numbers that a model takes, as of tokens' ids.

    why: what takes them.
    """
    if preprocess is None or preprocess.keeps_whole_numbers:
        return
    raise ModelError(
        f"model {name!r}: {why} takes whole numbers, and preprocess makes fractions of them: leave its size, scale, "
        'mean and std out; in a simulation write data.scale = 1, and normalise = "none"'
    )


def check_width(name: str, shape: tuple[int, ...], rows: int, classes: int) -> None:
    """Raise ModelError unless a model answered `rows` samples with one logit per class."""
    if shape != (rows, classes):
        remedy = "its last layer must give one logit per class of the federation"
        if len(shape) != len((rows, classes)):
            remedy = (
                "samples reach it as (n, c, h, w), flat ones as (n, 1, 1, d): it must flatten them, as nn.Flatten does"
            )
        raise ModelError(
            f"model {name!r} answers {rows} samples with shape {shape}, expected {(rows, classes)}: {remedy}"
        )


def sum_to_one(rows: NDArray[Any], within: float = 1e-2) -> NDArray[np.bool_]:
    """Return which rows (n, k) are probabilities, not negative and with the sum 1: (n,)."""
    near: NDArray[np.bool_] = (rows >= -1e-6).all(axis=1) & (np.abs(rows.sum(axis=1) - 1) < within)
    return near


def check_state(stored: Mapping[str, NDArray[Any]], own: Mapping[str, NDArray[Any]]) -> None:
    """Raise StoreError unless stored arrays have the names, shapes and types of the model's own."""
    differing = [name for name in {**own, **stored} if _layout(stored.get(name)) != _layout(own.get(name))]
    if differing:
        name = differing[0]
        raise StoreError(
            f"saved model state does not fit this model: {name!r} is stored as {_layout(stored.get(name))}, "
            f"the model has {_layout(own.get(name))} ({len(differing)} such entries): "
            "was the architecture changed?  Remove FEDERATION.db in the state folder to start again"
        )


def _layout(array: NDArray[Any] | None) -> str:
    return "nothing" if array is None else f"{array.dtype.str}{list(array.shape)}"


class Directed(Protocol):
    """The interface of a model with the capability `guidance-gradients`, in addition to Model."""

    def directional(self, x: Floats, direction: Floats, of_what: Literal["features", "logits"]) -> Floats:
        """Return the derivative of features (n, d) or logits (n, k) in a direction (p,) of the trainable scalars.

        x: (n, c, h, w); it is that of inference mode.
        """


def directed(model: Model) -> Directed:
    """Return the model as Directed.  Raises Unsupported if it gives no such derivatives."""
    require(model.spec, "guidance-gradients")
    return cast("Directed", model)
