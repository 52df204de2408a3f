"""What a method may ask of its device: requests, served one by one on the device's model.

A request says what is wanted (train on these samples with this objective; give me logits) and its docstring what it is
answered with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from edge_sdk.objectives import Floats, Ints, Objective, Optim
from edge_sdk.objectives.optim import Part
from edge_sdk.protocol.knowledge import ClassRows


@dataclass(frozen=True, slots=True, eq=False)
class Private:
    """Mini-batches of the device's own data, by index."""

    indices: Ints  # (steps, b)


@dataclass(frozen=True, slots=True, eq=False)
class Public:
    """Mini-batches of the public set, by index."""

    indices: Ints  # (steps, b)


Source: TypeAlias = Private | Public


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """Train: one optimiser step per row of the source.  Answered with a FitReport."""

    source: Source
    objective: Objective
    optim: Optim
    part: Part = "all"
    """The rest of the model stays as it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Logits:
    """Answered with the logits of the source: f4 (steps, b, k)."""

    source: Source


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Answered with the features of the source, as in inference: f4 (steps, b, d)."""

    source: Source


@dataclass(frozen=True, slots=True)
class ClassMeans:
    """Answered with ClassRows: the mean of each class of the private data, as in inference, and its samples.

    `of`: what is averaged, `features` (m, d) or `probabilities` (m, k), the softmax of the logits.
    """

    of: Literal["features", "probabilities"] = "features"


@dataclass(frozen=True, slots=True)
class HyperMeans:
    """Answered with HyperKnowledge: what one pass over the private data gives, as in inference.

    Of each class the mean feature and the mean prediction, softmax(head(feature) / temperature).
    """

    temperature: float
    clip: float = math.inf
    """Longer features are shortened to this L2 norm before they are averaged; predictions are of the whole feature."""


@dataclass(frozen=True, slots=True)
class ReadHead:
    """Answered with the rows of the last layer, the bias as last column: f4 (k, d + 1)."""


@dataclass(frozen=True, slots=True, eq=False)
class WriteHead:
    """Overwrite the rows of some classes."""

    classes: Ints  # (m,)
    rows: Floats  # (m, d + 1)


@dataclass(frozen=True, slots=True)
class SetScale:
    """Of a cosine head: another scale, None: as it is; whether fits that train the body change it, from now on."""

    value: float | None
    trains: bool


@dataclass(frozen=True, slots=True)
class ReadWeights:
    """Answered with all trainable scalars as Weights, a copy; or with those in front of the last layer."""

    without_head: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class WriteWeights:
    """Overwrite all trainable scalars, or those in front of the last layer; the optimiser's moments are reset."""

    values: Floats  # (p,)
    without_head: bool = False


@dataclass(frozen=True, slots=True)
class MeanLoss:
    """Answered with the mean cross-entropy over all private samples as in inference: a float."""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluate:
    """Measure the model as it is now; the figures go into this exchange's upload, as those of so many rounds.

    `accuracy`: on the whole test set.  `local_accuracy`: on its samples of classes that this device holds.
    `prototype_accuracy`: on those, by the nearest of the given prototypes of these classes instead of by the head.
    """

    rounds_done: int
    prototypes: ClassRows | None = None


Request: TypeAlias = (
    Fit
    | Logits
    | Features
    | ClassMeans
    | HyperMeans
    | ReadHead
    | WriteHead
    | SetScale
    | ReadWeights
    | WriteWeights
    | MeanLoss
    | Evaluate
)
