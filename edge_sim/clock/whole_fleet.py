"""Measures all devices of a simulation after every measured round, whoever was asked in it.

A device that is asked measures itself, on the virtual clock.  All others are measured here, at no virtual cost, on
copies of nothing but the model's state: the shared models as they would arrive, and a personal model that has changed
since it was measured last.  A personal model that has not changed keeps its figures.  No device changes.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any

from coordinator.record.metrics import PREFIXES
from coordinator.record.observer import RunObserver
from coordinator.serving import admission
from coordinator.serving.server import Server
from edge_sdk.agent import Agent
from edge_sdk.device.meter import Meter
from edge_sdk.methods.base import Method, OnDevice
from edge_sdk.methods.job import Job
from edge_sdk.methods.registry import method_of
from edge_sdk.methods.requests import Evaluate, MeasuredModel
from edge_sdk.protocol import transforms
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.messages import FederationSpec
from edge_sim.engines.same_models import KnownLogits


class WholeFleet(RunObserver):
    """An observer of the server that adds the figures of devices that were not asked."""

    def __init__(
        self,
        server: Callable[[], Server],
        devices: Callable[[], Sequence[tuple[int, Agent]]],
        settle: Callable[[Agent], None],
    ) -> None:
        """devices: returns their numbers and agents.  settle: waits until nothing is computed on an agent's model."""
        self._server, self._devices, self._settle = server, devices, settle
        self._unchanged: set[str] = set()
        """Devices whose personal model is the one that was measured last; after a resume all are measured again."""
        self._round = -1
        """The round that opened last."""
        self._open: tuple[int, Any] | None = None
        """The measured round that asked devices are still measuring, and the coordinator's state after it."""

    def opened(self, at: ExchangeId, devices: Collection[str]) -> None:
        """Measure those who are not asked, when the first exchange of a round opens."""
        if at.exchange:
            return
        server = self._server()
        if at.round != self._round:
            self.complete()
            self._round, every = at.round, server.spec.train.evaluate_every
            closing = at.round == server.spec.rounds
            rounds = len(server.record.rounds) if closing else at.round
            if rounds and (closing or rounds % every == 0):
                self._open = rounds, server.method_state
                told = _told(server.method, closing=closing)
                self._measure(rounds, server.method_state, dict.fromkeys(server.rounds.invited, told))
        self._unchanged -= set(devices)

    def complete(self) -> None:
        """Measure what asked devices did not tell, because they or their uploads were lost."""
        if self._open is not None:
            (rounds, state), self._open = self._open, None
            self._measure(rounds, state, {})

    def _measure(self, rounds: int, state: Any, told: Mapping[str, Collection[MeasuredModel]]) -> None:
        """Add the missing figures of a round.

        state: the coordinator's after the round; told: the models that asked devices measure themselves.
        """
        server = self._server()
        method, shared, seen = method_of(server.spec), KnownLogits(), self._figures(rounds)
        chain = transforms.chain(server.spec)
        for number, agent in self._devices():
            name, hello = agent.device, server.hellos.get(agent.device)
            if hello is None or not admission.learns(hello, server.method):
                continue
            if name in seen["personal"] and method.personal_after == "training":
                self._unchanged.add(name)
            missing = [m for m in method.measured_models if name not in seen[m] and m not in told.get(name, ())]
            if not missing:
                continue
            self._settle(agent)
            measuring = _Measuring(agent, server.spec, number, rounds, shared)
            if "personal" in missing:
                self._measure_personal(measuring, name, rounds)
            if missing == ["personal"]:
                continue
            for model, knowledge in method.shared_models(server.spec, state, number).items():
                if model in missing:
                    arrived = chain.undo(chain.apply(knowledge))
                    server.record.measured(name, rounds, measuring.shared_model(model, arrived), model)

    def _measure_personal(self, measuring: _Measuring, name: str, rounds: int) -> None:
        record = self._server().record
        if name in self._unchanged and record.stands(name, rounds):
            return
        record.measured(name, rounds, measuring.personal_model())
        self._unchanged.add(name)

    def _figures(self, rounds: int) -> dict[MeasuredModel, Collection[str]]:
        """The devices that have figures of a round, by model."""
        record = self._server().record
        return {
            model: {
                *getattr(record, f"{prefix}accuracy").get(rounds, {}),
                *getattr(record, f"{prefix}local_accuracy").get(rounds, {}),
            }
            for model, prefix in PREFIXES.items()
        }


def _told(method: Method[Any], *, closing: bool) -> Collection[MeasuredModel]:
    """The models that an asked device measures in an exchange before it trains."""
    if not method.global_model:
        return {"personal"} if closing or method.personal_after == "arrival" else ()
    found: set[MeasuredModel] = {method.arrives(closing=closing)}
    return found | {"personal"} if method.personal_after == "arrival" else found


class _Measuring:
    """Measures models on one device, with its data, without a trace on its model or its meter."""

    def __init__(self, agent: Agent, spec: FederationSpec, number: int, rounds: int, shared: KnownLogits) -> None:
        self.agent, self._shared = agent, shared
        self._method = method_of(spec)
        self._bench = copy.copy(agent.bench)
        self._bench.meter = Meter()
        if self._bench.proxy is not None:
            self._bench.proxy = copy.copy(self._bench.proxy)
            self._bench.proxy.meter = Meter()
        self._job = Job(
            spec=spec,
            number=number,
            round=rounds,
            exchange=0,
            closing=True,
            samples=len(self._bench.data.train),
            class_counts=self._bench.class_counts,
            learns=True,
        )

    def personal_model(self) -> Mapping[str, float]:
        """Measure the device's own model as it is."""
        return self._undone(self._method.measure_personal(self._on_device({})), "personal")

    def shared_model(self, model: MeasuredModel, knowledge: Mapping[str, Any]) -> Mapping[str, float]:
        """Measure a shared model that this knowledge brings."""
        return self._undone(self._arriving(model, knowledge), model)

    def _arriving(self, model: MeasuredModel, knowledge: Mapping[str, Any]) -> Generator[Any, Any, None]:
        device = self._on_device(knowledge)
        yield from self._method.receive(device)
        if model == self._method.arrives(closing=True):
            yield from self._method.measure(device)
        else:
            yield Evaluate(self._job.round, model=model, of=self._method.global_of)

    def _on_device(self, knowledge: Mapping[str, Any]) -> OnDevice[Any]:
        return OnDevice(job=self._job, state=self._method.device_state(), down=knowledge)

    def _undone(self, stage: Generator[Any, Any, None], model: MeasuredModel) -> Mapping[str, float]:
        """Serve the requests of a stage up to the evaluation of a model, return its figures, and restore the models."""
        before = self._bench.state_bytes()
        answer: Any = None
        try:
            while True:
                request = stage.send(answer)
                answer = self._served(request)
                if isinstance(request, Evaluate) and request.model == model:
                    return dict(answer)
        except StopIteration:
            return {}
        finally:
            stage.close()
            if self._bench.state_bytes() != before:
                self._bench.load_state(before)

    def _served(self, request: Any) -> Any:
        bench = self._bench.of(request)
        if isinstance(request, Evaluate):
            bench = self._shared.sharing(bench, hashlib.sha256(bench.model.state_bytes()).digest())
        steps = bench.serve(request, self._job)
        try:
            while True:
                next(steps)
        except StopIteration as stop:
            return stop.value
