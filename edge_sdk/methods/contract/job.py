"""Describes one exchange to a method on a device."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from edge_sdk.arrays import Ints
from edge_sdk.methods.contract.requests import Private
from edge_sdk.objectives import Optim, optim_of
from edge_sdk.protocol.messages import FederationSpec

SECRET_BYTES = 32
"""The length of a device's secret, the seed of its noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One exchange on one device."""

    spec: FederationSpec
    number: int
    """The device's number in the roster."""
    round: int
    exchange: int
    closing: bool
    samples: int
    """The number of private training samples on this device."""
    learns: bool
    """Whether the model learns; a predict-only model takes part as a teacher."""
    after: int | None = None
    """The number of completed rounds, only in the closing exchange of a run that ends before its last round."""
    inert_terms: frozenset[str] = frozenset()
    """The loss terms without effect on this device's model, such as those on features of a frozen extractor."""
    class_counts: tuple[int, ...] = ()
    """The number of private training samples of each class on this device."""
    secret: bytes = field(default=b"", repr=False)
    """The seed of the noise: 32 bytes that only this device knows."""

    @property
    def round_before(self) -> int:
        """The last completed round, or -1 before the first."""
        return (self.round if self.after is None else self.after) - 1

    @property
    def optim(self) -> Optim:
        """The optimiser that the federation prescribes in this round."""
        return optim_of(self.spec, self.round)

    @property
    def evaluates(self) -> bool:
        """Whether devices measure themselves in this round."""
        return (self.round + 1) % self.spec.train.evaluate_every == 0 or self.round + 1 == self.spec.rounds

    @property
    def evaluates_last(self) -> bool:
        """Whether devices measure the model of the round before, once its knowledge has arrived."""
        return self.closing or (self.round > 0 and self.round % self.spec.train.evaluate_every == 0)

    @property
    def instruments(self) -> bool:
        """Whether devices measure in this round each loss term's contribution to their gradients."""
        return not self.closing and has_instruments(self.spec, self.round)

    @property
    def classes(self) -> Ints:
        """The classes that this device holds samples of, ascending: (m,)."""
        return np.array(self.class_counts).nonzero()[0]

    @property
    def local_steps(self) -> int:
        """The number of mini-batches of private data in this round, from local_steps or local_epochs.

        Methods use this number, and never read those settings.
        """
        return self.spec.train.steps(self.samples)

    def private_batches(self, steps: int) -> Private:
        """Draw `steps` mini-batches (at least one) of private samples, epoch after epoch; the same for every method.

        The seed is (seed, round, 0, number), so that a standalone run sees exactly the same batches.
        """
        size = min(self.spec.train.batch_size, self.samples)
        rng = np.random.default_rng([self.spec.seed, self.round, 0, self.number])
        need = steps * size
        epochs = [rng.permutation(self.samples) for _ in range(-(-need // self.samples))]
        return Private(np.concatenate(epochs)[:need].reshape(steps, size))


def has_instruments(spec: FederationSpec, round_: int) -> bool:
    """Return whether instruments are read in this round, by `train.instrument_every`."""
    every = spec.train.instrument_every
    due = round_ == 1 or (round_ + 1) % max(1, every) == 0 or round_ + 1 == spec.rounds
    return every > 0 and due
