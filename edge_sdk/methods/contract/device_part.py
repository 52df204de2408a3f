"""The part of a method that runs on a device: a generator of requests.

It never touches a model: it yields requests (train on these samples with this objective; return logits) and receives
the results.  So an agent can stop between batches, and a simulator can merge equal requests of many devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from edge_sdk.arrays import Ints
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.contract.description import Description
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import Evaluate, Fit, Private, Request
from edge_sdk.objectives import CrossEntropy, Objective
from edge_sdk.objectives.optim import Part
from edge_sdk.protocol.knowledge import ClassRows, LogitGradients, Payload, PublicFeatures, PublicLogits
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.public_batch import batch_digest

P = TypeVar("P")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")

Up: TypeAlias = Mapping[str, Payload]
"""Knowledge by role."""
Stage: TypeAlias = Generator[Request, Any, R]
"""Part of an exchange: yields requests, receives results, and returns a value."""
Step: TypeAlias = Generator[Request, Any, tuple[S, Up]]
"""A whole exchange; returns the device's new state and the upload."""


@dataclass(eq=False)
class OnDevice(Generic[S]):
    """A device in one exchange, as the stages of a method see it."""

    job: Job
    state: S
    """The method's state on this device.  The value at the end of the exchange is stored."""
    down: Up
    """The received knowledge, by role."""
    kept: Any = None
    """A value that one stage passes to a later stage of the same exchange."""

    def received(self, kind: type[T], role: str) -> T | None:
        """Return the payload received in a role, which must be of `kind`, or None if nothing was received."""
        payload = self.down.get(role)
        return payload if isinstance(payload, kind) else None

    @property
    def batches(self) -> Private:
        """The mini-batches of this round, drawn from the device's own samples."""
        return self.job.private_batches(self.job.local_steps)

    def fit(self, objective: Objective, *, part: Part = "all") -> Stage[None]:
        """Train on this round's mini-batches, and release the received knowledge.

        The model or the objective now holds that knowledge, and memory may lack room for another copy.
        """
        self.down = {}
        if self.job.local_steps:
            yield Fit(source=self.batches, objective=objective, optim=self.job.optim, part=part)


class DevicePart(Description[P]):
    """The second part of a method.  A method's file overrides the stages that its paper describes."""

    def step(self, state: Any, down: Up, job: Job) -> Step[Any]:
        """Run one exchange: yield requests, receive their results, return the new state and the upload."""
        device: OnDevice[Any] = OnDevice(job=job, state=state, down=down)
        del down
        trained = self.personal_after == "training"
        if job.closing and trained and not self.global_model:
            yield Evaluate(job.round)
            return state, {}
        up = yield from self.exchange(device)
        if trained and job.evaluates and not job.closing and job.exchange == len(self.exchanges) - 1:
            yield Evaluate(job.round + 1)
        return device.state, up

    def exchange(self, device: OnDevice[Any]) -> Stage[Up]:
        """Run the stages of a round that has one exchange, and return the upload."""
        job = device.job
        yield from self.receive(device)
        if job.evaluates_last and (self.global_model or self.personal_after == "arrival"):
            yield from self.measure(device)
        if job.closing:
            return {}
        if job.learns and job.local_steps:
            yield from self.train(device)
        up = yield from self.share(device)
        yield from self.personalise(device)
        return up

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Process the received knowledge."""
        yield from ()

    def measure(self, device: OnDevice[Any]) -> Stage[None]:
        """Measure the last round's result on arrival: the global model, or without one the personal model."""
        model = self.arrives(closing=device.job.closing)
        yield Evaluate(device.job.round, model=model, of="own" if model == "personal" else self.global_of)

    def measure_personal(self, device: OnDevice[Any]) -> Stage[None]:
        """Measure the personal model of a device that does not train this round; a simulation does this on a copy."""
        yield Evaluate(device.job.round)

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train on the device's own samples."""
        yield from device.fit((CrossEntropy(),))

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Make the upload."""
        yield from ()
        return {}

    def personalise(self, device: OnDevice[Any]) -> Stage[None]:
        """Make the device's own model from the shared one."""
        yield from ()


def as_sent(rows: ClassRows, weighting: str) -> ClassRows:
    """Return class rows as they are sent: with the numbers of samples only if the weighting needs them."""
    return rows if weighting == "samples" else dataclasses.replace(rows, counts=np.ones_like(rows.counts))


def check_batch(payload: PublicLogits | LogitGradients | PublicFeatures, spec: FederationSpec, indices: Ints) -> None:
    """Raise RemoteProtocolError unless knowledge that came down was made on these public samples (warning W6)."""
    expected = batch_digest(spec, indices)
    if payload.batch != expected:
        raise RemoteProtocolError(
            "knowledge",
            f"{type(payload).__name__}: made on public batch {payload.batch.hex()}, expected {expected.hex()}",
        )
