"""Federations for tests that need no run: what a method's halves are told."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict
from typing import Any

import numpy as np

from edge_sdk.methods.base import Evaluate, Fit, Job, Logits
from edge_sdk.models.base import FitReport
from edge_sdk.protocol.messages import FederationSpec, PublicSetSpec, TrainSpec
from edge_sdk.protocol.wires import load_registered

CLASSES = 3
TRAIN = TrainSpec(optimiser="sgd", learning_rate=0.5, batch_size=4, local_steps=2)
PUBLIC = PublicSetSpec(sha256=bytes(range(32)), count=30)


def spec_of(
    method: str, *, classes: int = CLASSES, rounds: int = 5, evaluate_every: int = 1, **params: Any
) -> FederationSpec:
    """A federation of one method."""
    contract = load_registered("coordinator.methods", method).contract
    read = contract.read(params)
    return FederationSpec(
        federation="tiny",
        method=method,
        params=asdict(read),
        contract=contract.digest(read),
        classes=classes,
        rounds=rounds,
        seed=11,
        train=TrainSpec(**{**asdict(TRAIN), "evaluate_every": evaluate_every}),
        public=PUBLIC,
    )


def job(spec: FederationSpec, round_: int, exchange: int = 0, *, number: int = 0, learns: bool = True) -> Job:
    """An exchange; one at the end of the rounds is the closing one."""
    return Job(
        spec=spec,
        number=number,
        round=round_,
        exchange=exchange,
        closing=round_ == spec.rounds,
        samples=9,
        learns=learns,
    )


class FakeDevice:
    """Answers requests without a model: logits that tell which request they answer."""

    def __init__(self, classes: int = CLASSES) -> None:
        self.requests: list[Fit | Logits | Evaluate] = []
        self._classes = classes

    def logits(self, request: int, shape: tuple[int, ...]) -> np.ndarray:
        """What the request of this place in the list was answered with: (steps, b, k)."""
        return np.random.default_rng(request).normal(size=(*shape, self._classes)).astype(np.float32)

    def run(self, step: Generator[Any, Any, Any]) -> tuple[Any, Any]:
        """Drive one exchange to its end; its new state and its upload."""
        self.requests = []
        answer: Any = None
        while True:
            try:
                request = step.send(answer)
            except StopIteration as stop:
                return stop.value
            self.requests.append(request)
            answer = self._answer(request)

    def _answer(self, request: Fit | Logits | Evaluate) -> Any:
        if isinstance(request, Logits):
            return self.logits(len(self.requests) - 1, request.source.indices.shape)
        if isinstance(request, Fit):
            return FitReport(steps=len(request.source.indices), loss=0.5)
        return {"accuracy": 0.5}

    @property
    def kinds(self) -> list[str]:
        """What was asked for, and of which data."""
        return [_kind(request) for request in self.requests]


def _kind(request: Fit | Logits | Evaluate) -> str:
    if isinstance(request, Evaluate):
        return f"evaluate {request.rounds_done}"
    source = type(request.source).__name__.lower()
    if isinstance(request, Logits):
        return f"logits of {source}"
    return f"fit {source}: {' + '.join(term.name for term in request.objective)}"
