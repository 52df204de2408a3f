"""What a client half is: a generator of requests.

`step` never touches a model.  It yields what it wants done (train on these samples with this objective; give me logits)
and receives the results, so that an agent can stop between batches, and a simulator may gather the equal requests of
many devices into one.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.requests import Private, Request
from edge_sdk.objectives import Ints, Optim
from edge_sdk.protocol.knowledge import LogitGradients, Payload, PublicLogits
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.wires import Contract
from edge_sdk.public_set.samples import batch_digest

S = TypeVar("S")


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
