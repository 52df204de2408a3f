"""Measures the training on the coordinator: FedAL's discriminator and FedDF's distillation, by number of devices.

    python -m benchmarks.coordinator_load.coordinator_training [SECTION ...]

Each figure is one `finish`, everything that is done between the last upload of an exchange and the next Assign.  Where
torch finds a GPU, each section has a column for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.common.figures import Found, Page, quantiles
from coordinator.serving.equipment import Equipment, ready_method
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.fedal import FedAL
from edge_sdk.methods.feddf import FedDF
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import PublicLogits, Weights
from edge_sdk.protocol.messages import FederationSpec, PublicSetSpec
from edge_sdk.protocol.public_batch import batch_digest, batch_indices
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.reductions import Contribution

CLASSES, BATCH = 10, 32
COUNTS = (10, 100, 1000)
REPEATS = 15
PUBLIC = PublicSet(np.random.default_rng(0).random((1000, 28, 28)).astype(np.float32))


def main() -> None:
    """Measure, and write docs/results/coordinator-training.md."""
    Page(
        "coordinator-training",
        "What the coordinator trains",
        SECTIONS,
        "benchmarks.coordinator_load.coordinator_training",
    ).main(__doc__ or "")


def devices() -> list[str]:
    """Return the torch devices on which to compute."""
    return ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])]


def fedal() -> Found:
    """Time one iteration of the transfer stage."""
    rows = [_row("FedAL", f"{n} devices", lambda where, n=n: _fedal_finish(n, where)) for n in COUNTS]
    return Found([_head(), *rows], [f"{BATCH} public samples, {CLASSES} classes, N outputs of the discriminator."])


def feddf() -> Found:
    """Time one round of a net with 85,002 weights."""
    rows = [_row("FedDF", f"{n} devices", lambda where, n=n: _feddf_finish(n, where)) for n in (10, 100)]
    told = "All models answer for 1,000 public samples of 28 x 28; then 200 steps with batches of 128."
    return Found([_head(), *rows], [told])


def _head() -> list[str]:
    return ["method", "devices", *(f"{where}: ms, {q}" for where in devices() for q in ("p50", "p95"))]


def _row(name: str, what: str, work: Callable[[str], Callable[[], Any]]) -> list[str]:
    cells: list[str] = []
    for where in devices():
        finish = work(where)
        finish()
        cells += quantiles([_took_ms(finish) for _ in range(REPEATS)])
    return [name, what, *cells]


def _took_ms(work: Callable[[], Any]) -> float:
    begun_s = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - begun_s) * 1000


def _spec(method: type[Method[Any]], **params: Any) -> FederationSpec:
    made = method.under(params)
    return FederationSpec(
        federation="bench",
        method=made.name,
        params=made.table,
        contract=made.digest,
        classes=CLASSES,
        rounds=5,
        public=PublicSetSpec(sha256=PUBLIC.spec.sha256, count=len(PUBLIC.samples)),
    )


def _gathered(method: Any, ups: Sequence[Contribution]) -> Any:
    aggregate = method.zero()
    for up in ups:
        aggregate = method.add(aggregate, up)
    return aggregate


def _fedal_finish(count: int, where: str) -> Callable[[], Any]:
    rng, at = np.random.default_rng(1), ExchangeId(0, 0)
    spec = _spec(FedAL, max_devices=count, device=where)
    batch = batch_digest(spec, batch_indices(spec, 0, 0, BATCH))
    ups = [
        Contribution(
            number=i,
            samples=10,
            knowledge={
                "logits": PublicLogits(values=rng.normal(size=(BATCH, CLASSES)).astype(np.float32), batch=batch)
            },
        )
        for i in range(count)
    ]
    method = method_of(spec)
    state, aggregate = method.begin(spec), _gathered(method, ups)
    return lambda: method.finish(spec, state, at, aggregate)


def _net(where: str) -> TorchModel:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 60), nn.ReLU(), nn.Linear(60, CLASSES)
    )
    return TorchModel(net, CLASSES, input_shape=(1, 28, 28), device=where)


def _feddf_finish(count: int, where: str) -> Callable[[], Any]:
    model, rng, at = _net(where), np.random.default_rng(1), ExchangeId(0, 0)
    spec, start = _spec(FedDF), model.weights()
    method = ready_method(spec, Equipment(nets=lambda: [model], public=lambda: PUBLIC))
    ups = []
    for i in range(count):
        values = start + rng.normal(0, 0.01, start.shape).astype(np.float32)
        weights = Weights(values=values, layout=model.spec.layout, count=10)
        ups.append(Contribution(number=i, samples=10, knowledge={"weights": weights}))
    aggregate = _gathered(method, ups)
    return lambda: method.finish(spec, method.begin(spec), at, aggregate)


SECTIONS = {
    "fedal": ("FedAL: an iteration of the discriminator", fedal),
    "feddf": ("FedDF: a round's distillation", feddf),
}

if __name__ == "__main__":
    main()
