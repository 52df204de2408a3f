"""The interface of an engine, which computes the requests of many simulated devices, and the exact engine.

ExactEngine computes them one after the other with each device's own model, as a board would; other engines are compared
with it.  The engine decides how long a simulation takes on this machine.  It changes nothing on the virtual clock, and
models at most by the rounding of floats.

With a method that has one global model, every device measures it as it arrives, and the test set of all devices is one
array.  So the logits of equal models on the same samples are computed once.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.methods.contract import brought_code
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import Evaluate, Request
from edge_sdk.protocol.messages import FederationSpec


class KnownLogits:
    """Cache of logits, so that a model that N devices share is evaluated once; valid while models and samples stay."""

    def __init__(self) -> None:
        self._known: dict[tuple[Hashable, int, int], tuple[weakref.ref[Floats], Floats]] = {}
        """By state, address and number of samples: the array that holds these samples, and their logits."""
        self._newest: dict[Hashable, tuple[int, bytes]] = {}
        """The newest state of the shared models of each architecture, and its number."""

    def bench(self, bench: Workbench, request: Request) -> Workbench:
        """Return the workbench that serves a request: a caching one, if it measures a model that all devices share."""
        if not isinstance(request, Evaluate) or request.model == "personal" or request.prototypes is not None:
            return bench
        kind, state = (bench.model.spec.name, bench.model.spec.layout), bench.model.state_bytes()
        number, before = self._newest.get(kind, (0, b""))
        if state != before:
            number += 1
            self._newest[kind] = number, state
        return self.sharing(bench, (kind, number))

    def sharing(self, bench: Workbench, state: Hashable) -> Workbench:
        """Return a workbench that computes only logits that are not cached for this state; all are metered.

        state: equal for models of one architecture in the same state.
        """
        found = copy.copy(bench)

        def logits(x: Floats) -> Floats:
            found.count_inference(len(x))
            return self._of(state, x, found.predictor.logits)

        found.logits = logits  # type: ignore[method-assign]  # of this copy only
        return found

    def _of(self, state: Hashable, x: Floats, compute: Callable[[Floats], Floats]) -> Floats:
        """Return the logits of samples (n, c, h, w), which may be a slice of an array.

        A freed array's address may become that of another device's samples, so the array itself must still be there.
        """
        key, held = (state, x.__array_interface__["data"][0], len(x)), _holder(x)
        found = self._known.get(key)
        if found is not None and found[0]() is held:
            return found[1]
        logits = compute(x)
        self._known[key] = weakref.ref(held, lambda _gone: self._known.pop(key, None)), logits
        return logits


def _holder(x: Floats) -> Floats:
    """Return the array whose memory an array shows: itself, or the one that it was cut from."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRequest:
    """One request of one device."""

    bench: Workbench
    request: Request
    job: Job
    brought: tuple[str, ...] = ()
    """MODULE:FACTORY of the device's models, if they are the user's own."""


DeviceAnswer: TypeAlias = Any
"""The result of a request, or an exception, which is raised where the device waits."""


class Engine(Protocol):
    """Computes the requests of devices."""

    def attach(self, number: int, bench: Workbench) -> None:
        """Register a device when it is switched on, also again, before its first request."""

    def ready(self) -> None:
        """Prepare for requests: all devices of the run are attached, and none has trained yet."""

    def serve(self, asked: Sequence[DeviceRequest]) -> list[DeviceAnswer]:
        """Return one answer for each request, in their order; each device has at most one request."""

    def close(self) -> None:
        """Release threads and memory."""


class ExactEngine:
    """Computes in this process, one request after the other."""

    def attach(self, number: int, bench: Workbench) -> None:
        """Implement Engine."""

    def ready(self) -> None:
        """Implement Engine."""

    def close(self) -> None:
        """Implement Engine."""

    def serve(self, asked: Sequence[DeviceRequest]) -> list[DeviceAnswer]:
        """Implement Engine."""
        known = KnownLogits()
        return [serve_alone(each, known) for each in asked]


def serve_alone(asked: DeviceRequest, known: KnownLogits | None = None) -> DeviceAnswer:
    """Compute one request with the device's own workbench; known: logits of other requests in this batch."""
    try:
        with np.errstate(all="ignore"):  # as on a device (edge_sdk/device/work.py)
            bench = asked.bench if known is None else known.bench(asked.bench, asked.request)
            steps = bench.serve(asked.request, asked.job)
            while True:
                next(steps)
    except StopIteration as stop:
        return stop.value
    except (Exception, SystemExit) as error:  # raised again where the device asked
        begun = min(asked.job.round + 1, asked.job.spec.rounds)  # the closing exchange belongs to the last round
        told = brought_code.model_error(error, asked.brought, f" in round {begun}")
        if isinstance(told, SystemExit):  # raised by the interpreter, not by a net
            raise
        return told


MethodWrapper: TypeAlias = Callable[[Method[Any]], Method[Any]]
"""Turns a coordinator method into one that adds up uploads elsewhere, with the same bits."""


def unchanged(method: Method[Any]) -> Method[Any]:
    """Return the method itself: uploads are added up in the coordinator's process, as in a deployment."""
    return method


def job_at(spec: FederationSpec, number: int, round_: int, exchange: int, samples: int) -> Job:
    """Return the description of an exchange that a workbench needs to compute its requests without a session."""
    return Job(
        spec=spec,
        number=number,
        round=round_,
        exchange=exchange,
        closing=False,
        samples=samples,
        learns=True,
    )


def ask(
    bench: Workbench, brought: tuple[str, ...], request: Request, job: Job
) -> Generator[DeviceRequest, DeviceAnswer, Any]:
    """Yield a request to the caller that drives the device, and return its answer.

    `partial(ask, bench, brought)` is Participant.serve.  brought: see DeviceRequest.
    """
    answer = yield DeviceRequest(bench.of(request), request, job, brought)
    if isinstance(answer, Exception):
        raise answer
    return answer


Untraced: TypeAlias = frozenset[tuple[str, str]]
"""Names of models, each with the reason."""
NONE: Untraced = frozenset()


def untraced_of(benches: Iterable[Workbench]) -> Untraced:
    """Return the untraced models and proxies of these workbenches."""
    own = list(benches)
    models = [bench.model for bench in [*own, *filter(None, (bench.proxy for bench in own))]]
    return frozenset((model.spec.name, why) for model in models for why in getattr(model, "untraced", ()))
