"""What a device's computing takes: counted as it is done, and turned into time and energy by a board's profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edge_sdk.boards.profiles import Effort
from edge_sdk.models.base import ModelSpec
from edge_sdk.objectives.optim import Part

_F4_BYTES = 4
TRAIN_PASSES: Mapping[Part, int] = {"all": 3, "body": 3, "head": 1}
"""What a step costs, in forward passes: backwards through the body is twice forwards, through the head hardly more."""


def forward(spec: ModelSpec, samples: int) -> Effort:
    """One forward pass of a batch: each layer reads what the one before it wrote, and its weights."""
    moved_bytes = 2 * spec.activation_bytes_per_sample * samples + _F4_BYTES * spec.parameters
    return Effort(spec.flops_per_sample * samples, moved_bytes, spec.calls_per_pass)


@dataclass
class Meter:
    """What has been computed so far."""

    train_flops: int = 0
    infer_flops: int = 0
    train_bytes: int = 0
    infer_bytes: int = 0
    train_calls: int = 0
    infer_calls: int = 0

    def trained(self, spec: ModelSpec, samples: int, part: Part, extra_flops: int = 0) -> None:
        """One optimiser step on a batch, and what its objective computed beside it."""
        flops, moved_bytes, calls = (TRAIN_PASSES[part] * int(each) for each in forward(spec, samples))
        self.train_flops += flops + extra_flops
        self.train_bytes += moved_bytes
        self.train_calls += calls

    def inferred(self, spec: ModelSpec, samples: int) -> None:
        """One forward pass of a batch."""
        flops, moved_bytes, calls = forward(spec, samples)
        self.infer_flops += int(flops)
        self.infer_bytes += int(moved_bytes)
        self.infer_calls += int(calls)

    @property
    def train(self) -> Effort:
        """All training so far."""
        return Effort(self.train_flops, self.train_bytes, self.train_calls)

    @property
    def infer(self) -> Effort:
        """All inference so far."""
        return Effort(self.infer_flops, self.infer_bytes, self.infer_calls)
