"""Measures the devices of a simulation after every measured round, including those not invited to it.

An invited device measures itself, on the virtual clock.  All others are measured here without virtual cost, on copies
of the model's state only: the shared models as they would arrive, and a personal model that has changed since its last
measurement.  An unchanged personal model keeps its figures.  Measuring changes no device.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from coordinator.record.observer import RunObserver
from coordinator.record.round_result import PREFIXES
from coordinator.serving.devices import admission
from coordinator.serving.server import Server
from edge_sdk.device.participant import Participant
from edge_sdk.device.training.meter import Meter
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.methods.contract.base import Method, OnDevice
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.contract.requests import Evaluate, MeasuredModel
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.transforms import Coding
from edge_sim.engines.base import KnownLogits


class Wanted(NamedTuple):
    """The models to measure on one device."""

    number: int
    personal: bool
    """Whether to measure its own model."""
    shared: tuple[MeasuredModel, ...]
    """Shared models to measure as they would arrive."""


Figures: TypeAlias = Mapping[MeasuredModel, Mapping[str, float]]
"""The figures of one device, by model."""
MeasureAll: TypeAlias = Callable[[int, Any, Sequence[Wanted]], Sequence[Figures]]
"""Measures devices after some rounds, given the coordinator's state after them; returns the figures of each."""


class WholeFleet(RunObserver):
    """An observer of the server that adds the figures of devices that were not invited."""

    def __init__(self, server: Callable[[], Server], numbers: Mapping[str, int], measure: MeasureAll) -> None:
        """numbers: of the devices to measure, by id."""
        self._server, self._numbers, self._measured = server, numbers, measure
        self._unchanged: set[str] = set()
        """Devices whose personal model is unchanged since it was measured; empty after a resume."""
        self._round = -1
        """The last opened round."""
        self._open: tuple[int, Any] | None = None
        """The measured round that invited devices are still measuring, and the coordinator's state after it."""
        self._whole = 0
        """The last round that all devices measured."""

    def opened(self, at: ExchangeId, devices: Collection[str]) -> None:
        """Measure the devices that are not invited, when the first exchange of a round opens."""
        if at.exchange:
            return
        server = self._server()
        if at.round != self._round:
            self.complete()
            self._round, every = at.round, server.spec.train.evaluate_every
            closing = at.round == server.spec.rounds
            rounds = server.record.done if closing else at.round
            server.record.whole = self._whole, len(self._numbers)
            if rounds and (closing or rounds % every == 0):
                self._open = rounds, server.method_state
                told = _told(server.method, closing=closing)
                self._measure(rounds, server.method_state, dict.fromkeys(server.rounds.invited, told))
        self._unchanged -= set(devices)

    def complete(self) -> None:
        """Measure invited devices that did not report, because they or their uploads were lost."""
        if self._open is not None:
            (rounds, state), self._open = self._open, None
            self._measure(rounds, state, {})
            self._whole = rounds

    def _measure(self, rounds: int, state: Any, told: Mapping[str, Collection[MeasuredModel]]) -> None:
        """Add the missing figures of a round.

        state: the coordinator's after the round; told: the models that invited devices measure themselves.
        """
        record = self._server().record
        missing = self._missing(rounds, told)
        wanted = [
            Wanted(self._numbers[name], personal and name not in self._unchanged, shared)
            for name, (personal, shared) in missing.items()
        ]
        found = dict(zip(missing, self._asked(rounds, state, wanted), strict=True))
        for name, (personal, _) in missing.items():
            figures = found[name]
            if personal and "personal" not in figures and not record.stands(name, rounds):
                alone = Wanted(self._numbers[name], personal=True, shared=())
                figures = {**self._asked(rounds, state, [alone])[0], **figures}
            for model, values in figures.items():
                record.measured(name, rounds, values, model)
            if personal:
                self._unchanged.add(name)

    def _asked(self, rounds: int, state: Any, wanted: Sequence[Wanted]) -> list[Figures]:
        """Measure the devices whose figures are wanted; the others have none."""
        asked = [each for each in wanted if each.personal or each.shared]
        found = iter(self._measured(rounds, state, asked) if asked else ())
        return [next(found) if each.personal or each.shared else {} for each in wanted]

    def _missing(
        self, rounds: int, told: Mapping[str, Collection[MeasuredModel]]
    ) -> dict[str, tuple[bool, tuple[MeasuredModel, ...]]]:
        """Return, by device, whether to measure its personal model, and which shared models."""
        server, seen = self._server(), self._figures(rounds)
        method = method_of(server.spec)
        found: dict[str, tuple[bool, tuple[MeasuredModel, ...]]] = {}
        for name in self._numbers:
            hello = server.hellos.get(name)
            alone = name in server.record.control.alone
            if hello is None or alone or not admission.learns(hello, server.method):
                continue
            if name in seen["personal"] and method.personal_after == "training":
                self._unchanged.add(name)
            missing = [m for m in method.measured_models if name not in seen[m] and m not in told.get(name, ())]
            if missing:
                found[name] = "personal" in missing, tuple(model for model in missing if model != "personal")
        return found

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


class FleetMeasurements:
    """Measures models on the devices of this process."""

    def __init__(
        self, spec: FederationSpec, participants: Callable[[int], Participant], settle: Callable[[Participant], None]
    ) -> None:
        """participants: returns the present participant of a device, by number.

        settle: waits until no computation uses a participant's model.
        """
        self._spec, self._participants, self._settle = spec, participants, settle
        self._coding = Coding(spec.encoding)

    def measure(self, rounds: int, state: Any, wanted: Sequence[Wanted]) -> list[Figures]:
        """Implement MeasureAll."""
        shared = KnownLogits()
        return [self._device(each, rounds, state, shared) for each in wanted]

    def _device(self, wanted: Wanted, rounds: int, state: Any, known: KnownLogits) -> Figures:
        participant = self._participants(wanted.number)
        self._settle(participant)
        measuring = _Measuring(participant.context.bench, self._spec, wanted.number, rounds, known)
        found: dict[MeasuredModel, Mapping[str, float]] = {}
        if wanted.personal:
            found["personal"] = measuring.personal_model()
        if wanted.shared:
            models = method_of(self._spec).shared_models(self._spec, state, wanted.number)
            for model in wanted.shared:
                if model in models:
                    arrived = self._coding.undo(self._coding.apply(models[model]))
                    found[model] = measuring.shared_model(model, arrived)
        return found


def _told(method: Method[Any], *, closing: bool) -> Collection[MeasuredModel]:
    """The models that an invited device measures in an exchange before it trains."""
    if not method.global_model:
        return {"personal"} if closing or method.personal_after == "arrival" else ()
    found: set[MeasuredModel] = {method.arrives(closing=closing)}
    return found | {"personal"} if method.personal_after == "arrival" else found


class _Measuring:
    """Measures models on one device with its data, leaving its model and meter unchanged."""

    def __init__(self, bench: Workbench, spec: FederationSpec, number: int, rounds: int, shared: KnownLogits) -> None:
        self._shared = shared
        self._method = method_of(spec)
        self._bench = copy.copy(bench)
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
            bench = self._shared.sharing(bench, hashlib.sha256(bench.predictor.state_bytes()).digest())
        steps = bench.serve(request, self._job)
        try:
            while True:
                next(steps)
        except StopIteration as stop:
            return stop.value
