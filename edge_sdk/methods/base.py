"""What a client half is: a generator of requests.

`step` never touches a model.  It yields what it wants done (train on these samples with this objective; give me logits)
and receives the results, so that an agent can stop between batches, and a simulator may gather the equal requests of
many devices into one.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.models.base import Part
from edge_sdk.objectives import Floats, Ints, Objective, Optim
from edge_sdk.protocol.knowledge import ClassRows, LogitGradients, Payload, PublicLogits
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.wires import Contract
from edge_sdk.public_set.samples import batch_digest

S = TypeVar("S")


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
Up: TypeAlias = Mapping[str, Payload]
Stage: TypeAlias = Generator[Request, Any, S]
"""Part of a step: requests out, results in, and something to return."""
Step: TypeAlias = Generator[Request, Any, tuple[S, Up]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One exchange, as a client half sees it."""

    spec: FederationSpec
    number: int
    """This device's place in the roster."""
    round: int
    exchange: int
    closing: bool
    samples: int
    """Private training samples on this device."""
    learns: bool
    """False: a predict-only model, which takes part as a teacher."""
    class_counts: tuple[int, ...] = ()
    """Private training samples of each class, on this device."""
    secret: bytes = field(default=b"", repr=False)
    """What noise is drawn from: 32 bytes that nobody else knows."""

    @property
    def optim(self) -> Optim:
        """The optimiser that the federation prescribes."""
        train = self.spec.train
        return Optim(kind=train.optimiser, learning_rate=train.learning_rate, momentum=train.momentum)

    @property
    def evaluates(self) -> bool:
        """Whether devices measure themselves in this round."""
        return (self.round + 1) % self.spec.train.evaluate_every == 0 or self.round + 1 == self.spec.rounds

    @property
    def evaluates_last(self) -> bool:
        """Whether devices measure themselves as the round before left them, once its knowledge is there."""
        return self.closing or (self.round > 0 and self.round % self.spec.train.evaluate_every == 0)

    @property
    def classes(self) -> Ints:
        """The classes that this device holds samples of, ascending: (m,)."""
        return np.flatnonzero(self.class_counts)

    @property
    def local_steps(self) -> int:
        """Mini-batches of private data in this round: as many as prescribed, or as the prescribed epochs take.

        Mini-batches are all of one size, so the last one of the last epoch may reach into another permutation.
        """
        train = self.spec.train
        if not train.local_epochs:
            return train.local_steps
        return -(-train.local_epochs * self.samples // min(train.batch_size, self.samples))

    def private_batches(self, steps: int) -> Private:
        """`steps` mini-batches (at least one) of private samples, epoch after epoch; the same for every method.

        Seeded by (seed, round, 0, number), so that a standalone run sees the very same batches.
        """
        size = min(self.spec.train.batch_size, self.samples)
        rng = np.random.default_rng([self.spec.seed, self.round, 0, self.number])
        need = steps * size
        epochs = [rng.permutation(self.samples) for _ in range(-(-need // self.samples))]
        return Private(np.concatenate(epochs)[:need].reshape(steps, size))


def check_batch(payload: PublicLogits | LogitGradients, spec: FederationSpec, indices: Ints) -> None:
    """Raise RemoteProtocolError unless knowledge that came down was made on these public samples (warning W6)."""
    expected = batch_digest(spec, indices)
    if payload.batch != expected:
        raise RemoteProtocolError(
            "knowledge",
            f"{type(payload).__name__}: made on public batch {payload.batch.hex()}, expected {expected.hex()}",
        )


class ClientMethod(Protocol[S]):
    """A method on the device."""

    @property
    def contract(self) -> Contract[Any]:
        """What both halves agree on."""

    def init(self, spec: FederationSpec) -> S:
        """Device-local state: a @wire dataclass, stored at round starts, never sent."""

    def step(self, state: S, down: Mapping[str, Payload], job: Job) -> Step[S]:
        """One exchange: requests out, results in; at the end the new state and what to upload."""
