"""Counts a device's operations, memory traffic and calls, which a board's profile converts to time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edge_sdk.boards.profiles import Effort
from edge_sdk.models.base import ModelSpec
from edge_sdk.objectives.optim import Part

_F4_BYTES = 4
TRAIN_PASSES: Mapping[Part, int] = {"all": 3, "body": 3, "head": 1}
"""The cost of a training step in forward passes.  A backward pass through the body costs two; one through the head
alone costs next to nothing."""


def forward(spec: ModelSpec, samples: int) -> Effort:
    """Return the effort of one forward pass of a batch: each layer reads its input and weights, and writes its output.

    Activations and weights are f4.
    """
    moved_bytes = 2 * spec.activation_bytes_per_sample * samples + _F4_BYTES * spec.parameters
    return Effort(spec.flops_per_sample * samples, moved_bytes, spec.calls_per_pass)


@dataclass(slots=True)
class Meter:
    """Counts what a device has computed so far."""

    train_flops: int = 0
    infer_flops: int = 0
    train_bytes: int = 0
    infer_bytes: int = 0
    train_calls: int = 0
    infer_calls: int = 0
    steps: int = 0
    """Optimiser steps, on private and on public samples."""

    def trained(self, spec: ModelSpec, samples: int, part: Part, extra_flops: int = 0, steps: int = 1) -> None:
        """Count optimiser steps on batches of one size; extra_flops: computed by the objective in addition."""
        (flops, moved_bytes, calls), passes = forward(spec, samples), steps * TRAIN_PASSES[part]
        self.train_flops += passes * int(flops) + extra_flops
        self.train_bytes += passes * int(moved_bytes)
        self.train_calls += passes * int(calls)
        self.steps += steps

    def inferred(self, spec: ModelSpec, samples: int) -> None:
        """Count one forward pass of a batch."""
        flops, moved_bytes, calls = forward(spec, samples)
        self.infer_flops += int(flops)
        self.infer_bytes += int(moved_bytes)
        self.infer_calls += int(calls)

    @property
    def train(self) -> Effort:
        """The effort of all training so far."""
        return Effort(self.train_flops, self.train_bytes, self.train_calls)

    @property
    def infer(self) -> Effort:
        """The effort of all inference so far."""
        return Effort(self.infer_flops, self.infer_bytes, self.infer_calls)

    def since(self, before: Meter) -> tuple[Effort, Effort, int]:
        """Return the effort of training and of inference, and the steps, since a copy of this meter was made."""
        return (
            Effort(
                self.train_flops - before.train_flops,
                self.train_bytes - before.train_bytes,
                self.train_calls - before.train_calls,
            ),
            Effort(
                self.infer_flops - before.infer_flops,
                self.infer_bytes - before.infer_bytes,
                self.infer_calls - before.infer_calls,
            ),
            self.steps - before.steps,
        )
