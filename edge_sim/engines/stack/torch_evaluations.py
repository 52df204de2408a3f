"""Evaluates several torch nets on their shared test set in one call that releases the interpreter lock.

Each net's products are computed separately and in the usual order, so the bits are those of single evaluations.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from edge_sdk.arrays import Floats
from edge_sdk.device.training.workbench import Workbench, slices
from edge_sdk.methods.contract.requests import Evaluate
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sdk.models.torch_nets.torch_tracing import answers_of
from edge_sim.engines.base import DeviceAnswer, DeviceRequest, KnownLogits, serve_alone

NETS_A_CALL = 8
"""Nets in one call: enough for a thread to run for some milliseconds without the lock."""


def evaluation_key(asked: DeviceRequest) -> Hashable:
    """Return a key that is equal for evaluations that may share a call, or None if the model is not a torch net."""
    bench, request = asked.bench, asked.request
    if not (isinstance(request, Evaluate) and isinstance(bench.predictor, TorchModel)):
        return None
    return bench.model.spec.name, bench.model.spec.layout, id(bench.test), request.model, request.prototypes is None


def evaluated(asked: Sequence[DeviceRequest], known: KnownLogits) -> list[DeviceAnswer]:
    """Compute evaluations with the same key; known: logits of models that several devices share."""
    request, test = asked[0].request, asked[0].bench.test
    models = [each.bench.model for each in asked if isinstance(each.bench.model, TorchModel)]
    personal = isinstance(request, Evaluate) and request.model == "personal"
    parts = [test[part] for part in slices(len(test))] if test is not None and personal else []
    by_part = list(_answers(models, parts, with_features=getattr(request, "prototypes", None) is not None))
    if not parts or len(by_part) < len(parts):
        return [serve_alone(each, known) for each in asked]
    places = [_place(part) for part in parts]
    answers = []
    for each, own in zip(asked, zip(*by_part, strict=True), strict=True):
        told = dict(zip(places, own, strict=True))
        answers.append(serve_alone(replace(each, bench=_knowing(each.bench, told))))
        told.clear()  # frees megabytes: the workbench and its closures form a cycle
    return answers


def _answers(
    models: Sequence[TorchModel], parts: Sequence[Floats], *, with_features: bool
) -> Iterator[list[list[Floats]]]:
    """Yield each model's outputs for each part of the test set that one call can compute."""
    for part in parts:
        found = answers_of([each.tracing for each in models], "outputs" if with_features else "logits", part)
        if found is None:
            return
        yield found


def _place(x: Floats) -> tuple[int, int]:
    """Return the address of samples in memory, and their number."""
    place: int = x.__array_interface__["data"][0]
    return place, len(x)


def _knowing(bench: Workbench, answers: Mapping[tuple[int, int], Sequence[Floats]]) -> Workbench:
    """Return a workbench that knows its model's outputs for the samples at these addresses; all are metered."""
    found = copy.copy(bench)

    def logits(x: Floats) -> Floats:
        if _place(x) not in answers:
            return bench.logits(x)
        found.count_inference(len(x))
        return answers[_place(x)][0]

    def outputs(x: Floats) -> tuple[Floats, Floats]:
        if _place(x) not in answers:
            return bench.outputs(x)
        found.count_inference(len(x))
        found.count_inference(len(x))
        own, features = answers[_place(x)]
        return own, features

    found.logits, found.outputs = logits, outputs  # type: ignore[method-assign]  # of this copy only
    return found
