"""Local training alone: nothing is exchanged; the line that every method must beat."""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class Params:
    """No hyper-parameters."""


class Local(Method[Params]):
    """The same private steps as under any method, and nothing else."""

    name = "local"
    title = "Local training, no exchange"
    citation = "baseline"
    teaches = frozenset({"predict"})
    discloses = "the number of samples and the device's own accuracies"
