"""Federations for tests that need no run: what a method's halves are told."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict
from typing import Any

import numpy as np

from edge_sdk.methods.contract.base import Step, Up
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.registry import load_method, method_of
from edge_sdk.methods.contract.requests import ClassMeans, Evaluate, Fit, Logits, ReadHead, Request, WriteHead
from edge_sdk.models.base import FitReport
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.messages import FederationSpec, PublicSetSpec, TrainSpec

CLASSES = 3
TRAIN = TrainSpec(optimiser="sgd", learning_rate=0.5, batch_size=4, local_steps=2)
PUBLIC = PublicSetSpec(sha256=bytes(range(32)), count=30)


def spec_of(
    method: str,
    *,
    classes: int = CLASSES,
    rounds: int = 5,
    evaluate_every: int = 1,
    feature_dim: int = 0,
    local_steps: int = 2,
    **params: Any,
) -> FederationSpec:
    """A federation of one method."""
    made = load_method(method).under(params)
    return FederationSpec(
        federation="tiny",
        method=method,
        params=made.table,
        contract=made.digest,
        classes=classes,
        rounds=rounds,
        seed=11,
        train=TrainSpec(**{**asdict(TRAIN), "evaluate_every": evaluate_every, "local_steps": local_steps}),
        public=PUBLIC,
        feature_dim=feature_dim,
    )


def rows_of(classes: list[int], rows: Any, counts: list[int] | None = None) -> ClassRows:
    """Class rows from lists; one sample a class by default."""
    return ClassRows(
        classes=np.array(classes, np.int32),
        rows=np.array(rows, np.float32),
        counts=np.array(counts or [1] * len(classes), np.int32),
    )


def job(
    spec: FederationSpec,
    round_: int,
    exchange: int = 0,
    *,
    number: int = 0,
    learns: bool = True,
    class_counts: tuple[int, ...] = (4, 0, 5),
) -> Job:
    """An exchange; one at the end of the rounds is the closing one."""
    return Job(
        spec=spec,
        number=number,
        round=round_,
        exchange=exchange,
        closing=round_ == spec.rounds,
        samples=9,
        learns=learns,
        class_counts=class_counts,
    )


def first_step(down: Up, job_: Job) -> Step[Any]:
    """An exchange of a federation's method on a device that has no state yet."""
    method = method_of(job_.spec)
    return method.step(method.device_state(), down, job_)


class FakeDevice:
    """Answers requests without a model: logits that tell which request they answer, given means, a head that a fit
    raises by 1."""

    def __init__(self, classes: int = CLASSES, *, head: Any = None, means: ClassRows | None = None) -> None:
        self.requests: list[Request] = []
        self.head = np.zeros((classes, 3), np.float32) if head is None else np.array(head, np.float32)
        self._classes = classes
        self._means = means

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
            answer = self.answer(request)

    def answer(self, request: Request) -> Any:
        if isinstance(request, Logits):
            return self.logits(len(self.requests) - 1, request.source.indices.shape)
        if isinstance(request, Fit):
            self.head += 1
            return FitReport(steps=len(request.source.indices), loss=0.5)
        if isinstance(request, ClassMeans):
            return self._means
        if isinstance(request, ReadHead):
            return self.head.copy()
        if isinstance(request, WriteHead):
            self.head[request.classes] = request.rows
            return None
        return {"accuracy": 0.5}

    @property
    def kinds(self) -> list[str]:
        """What was asked for, and of which data."""
        return [_kind(request) for request in self.requests]


def _kind(request: Request) -> str:
    if isinstance(request, Evaluate):
        return f"evaluate {request.rounds_done}" + (" with prototypes" if request.prototypes else "")
    if isinstance(request, WriteHead):
        return f"write head {request.classes.tolist()}"
    if isinstance(request, (ClassMeans, ReadHead)):
        return {ClassMeans: "class means", ReadHead: "read head"}[type(request)]
    source = type(request.source).__name__.lower()
    if isinstance(request, Logits):
        return f"logits of {source}"
    return f"fit {source}: {' + '.join(term.name for term in request.objective)}"
