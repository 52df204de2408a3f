"""Local training alone: nothing is exchanged.  It is the baseline for every method."""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.methods.contract.base import Method


@dataclass(frozen=True, kw_only=True)
class Params:
    """Local training has no hyper-parameters."""


class Local(Method[Params]):
    """Takes the same private steps as any method, and does nothing else."""

    name = "local"
    title = "Local training, no exchange"
    citation = "baseline"
    teaches = frozenset({"predict"})
    discloses = "the number of samples and the device's own accuracies"
