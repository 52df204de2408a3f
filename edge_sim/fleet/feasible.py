"""Checks before a run starts: models to stack, what the method needs, runtimes, memory, deadlines."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from coordinator.serving.devices import admission
from coordinator.serving.devices.admission import RefusalReason
from edge_sdk.boards import profiles
from edge_sdk.boards.profiles import Board, Link
from edge_sdk.device.training.meter import Meter
from edge_sdk.device.training.workbench import joint_capabilities, joint_terms
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.registry import method_of, requests_of
from edge_sdk.methods.contract.requests import ReadSplice
from edge_sdk.models.base import ModelSpec
from edge_sdk.models.spliced import splice_fault
from edge_sdk.protocol.encodings import DEFAULT_ENCODING
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import FederationSpec, Hello
from edge_sim.fleet.fleet import Device, Fleet

MOST_REASONS = 2
"""The most reasons that a message gives for devices that would be refused."""
DORMANT_FROM = 500
"""From this many devices on, a fleet builds an agent only for devices that have work; smaller ones start fast
enough."""
_MIB = 2**20
SYSTEM_BYTES = 128 * _MIB
"""Memory that Linux without a desktop uses."""
RUNTIME_BYTES = {"numpy": 64 * _MIB, "onnx": 128 * _MIB, "torch": 280 * _MIB}
"""Memory of Python with a runtime loaded, before any model."""
_F4 = 4


@dataclass(frozen=True)
class MemoryNeed:
    """Memory that one device needs, in bytes."""

    runtime: int
    model: int
    activations: int
    data: int

    @property
    def total(self) -> int:
        """All memory that the device needs, in bytes."""
        return self.runtime + self.model + self.activations + self.data


def check_feasible(
    fleet: Fleet, stacked: Sequence[str] = (), memory_bytes: int | None = None, out: Path | None = None
) -> None:
    """Raise UsageError for a fleet that cannot run its models, lacks memory or disk, or cannot meet its deadline.

    stacked: names of the models to stack; some device must have each.  memory_bytes, out: as for `check_disk`.
    """
    check_disk(fleet, memory_bytes, out)
    specs, proxies = dict(_specs(fleet)), dict(_proxies(fleet))
    check_stacked(stacked, specs)
    check_abilities(fleet, specs, proxies)
    check_runtimes(fleet, specs, proxies)
    check_memory(fleet, specs, proxies)
    check_deadline(fleet, specs, proxies)


def check_stacked(stacked: Sequence[str], specs: Mapping[str, ModelSpec]) -> None:
    """Raise UsageError for a name that is not the name of any device's model.

    specs: of each device's model, by device id.
    """
    names = sorted({spec.name for spec in specs.values()})
    unknown = [name for name in stacked if name not in names]
    if unknown:
        raise UsageError(f"run.stacked: no model of the fleet is called {unknown[0]!r}; it has {', '.join(names)}")


NO_PROXIES: Mapping[str, ModelSpec] = {}


def check_abilities(
    fleet: Fleet, specs: Mapping[str, ModelSpec], proxies: Mapping[str, ModelSpec] = NO_PROXIES
) -> None:
    """Raise UsageError if too few models for a quorum can do what the method needs and be averaged with each other.

    So it does where a proxy's features do not fit.

    specs, proxies: of each device's models, by device id.
    """
    method, quorum = method_of(fleet.federation.spec), fleet.federation.policy.quorum
    splices = ReadSplice in requests_of(type(method))
    kinds: dict[tuple[int, int], list[Device]] = {}
    """The devices of each kind of model and proxy; the specs of a kind are one object."""
    for device in fleet.devices:
        kinds.setdefault((id(specs[device.kit.id]), id(proxies.get(device.kit.id))), []).append(device)
    unable: dict[str, int] = {}
    able: list[tuple[Hello, int]] = []
    for (device, *_), count in ((alike, len(alike)) for alike in kinds.values()):
        own, proxy = specs[device.kit.id], proxies.get(device.kit.id)
        held, terms = joint_capabilities(own, proxy), joint_terms(own, proxy)
        held |= {"sample-codes"}  # the owners of simulated devices agree to share them
        if splices and proxy is not None and (fault := splice_fault(own, proxy)):
            raise UsageError(f"method.proxy: {device.kit.id}: {fault}")
        if method.learnt_by(held, terms) or method.taught_by(held):
            able.append((_hello(device, own, proxy, fleet.federation.spec), count))
            continue
        lacking = ", ".join(sorted(method.needs - held) or sorted(method.terms - terms))
        said = f"{device.kit.family} cannot do: {lacking}"
        unable[said] = unable.get(said, 0) + count
    remedy = (
        "give them a model that can, lower federation.quorum, or choose another method (edge-sdk methods lists what "
        "each needs)"
    )
    for reason, count in _unlike(able, fleet.federation.spec, method):
        unable[reason.message] = unable.get(reason.message, 0) + count
        remedy = f"{reason.remedy}; or lower federation.quorum"
    refused = sum(unable.values())
    if len(fleet.devices) - refused < quorum:
        raise UsageError(
            f"fleet.model: {method.name} can begin with {quorum} devices, and would refuse {refused} of the "
            f"{len(fleet.devices)}: {'; '.join([*unable][:MOST_REASONS])}; {remedy}"
        )


def _hello(device: Device, own: ModelSpec, proxy: ModelSpec | None, spec: FederationSpec) -> Hello:
    """Return what a device says of its model when it asks to take part."""
    shared = proxy or own
    return Hello(
        federation=spec.federation,
        device=device.kit.id,
        classes=own.classes,
        feature_dim=own.feature_dim,
        model=own.name,
        weight_count=shared.parameters,
        layout=shared.layout or None,
    )


def _unlike(
    able: Sequence[tuple[Hello, int]], spec: FederationSpec, method: Method[Any]
) -> Iterator[tuple[RefusalReason, int]]:
    """Yield why the coordinator would not let models in beside the most frequent ones, and how many devices have them.

    able: the Hello of the first device of each kind, and how many there are.
    """
    layouts: Counter[bytes | None] = Counter()
    for hello, count in able:
        layouts[hello.layout] += count
    usual = layouts.most_common(1)[0][0] if layouts else None
    agreed = next((hello for hello, _ in able if hello.layout == usual), None)
    for hello, count in able:
        if reason := admission.unlike(hello, spec, method, agreed):
            yield reason, count


def check_runtimes(fleet: Fleet, specs: Mapping[str, ModelSpec], proxies: Mapping[str, ModelSpec] = NO_PROXIES) -> None:
    """Raise UsageError if some device's board lacks the runtime of its model or proxy.

    specs, proxies: of each device's models, by device id.
    """
    for device, *_ in _alike_devices(fleet, specs, proxies):
        profile = profiles.load_board(device.kit.board)
        for key, family, known in (
            ("fleet.model", device.kit.family, specs),
            ("method.proxy", device.kit.proxy, proxies),
        ):
            runtime = known[device.kit.id].runtime if device.kit.id in known else profile.runtimes[0]
            if runtime not in profile.runtimes:
                raise UsageError(
                    f"{key}: {device.kit.id} cannot run the model: {family} computes in {runtime}, and "
                    f"{profile.name} has {', '.join(profile.runtimes)} (runtimes in its profile); give it another "
                    "model or another board"
                )


def check_memory(fleet: Fleet, specs: Mapping[str, ModelSpec], proxies: Mapping[str, ModelSpec] = NO_PROXIES) -> None:
    """Raise UsageError, with the numbers, if some device's memory is too small for its model and its proxy.

    specs, proxies: of each device's models, by device id.
    """
    federation = fleet.federation.spec
    lacking: list[tuple[Device, MemoryNeed]] = []
    count = 0
    for alike in _alike_devices(fleet, specs, proxies):
        device = alike[0]
        found = memory_need(device, specs[device.kit.id], federation, proxies.get(device.kit.id))
        if found.total + SYSTEM_BYTES > profiles.load_board(device.kit.board).ram_bytes:
            lacking.append((device, found))
            count += len(alike)
    if not lacking:
        return
    device, found = max(lacking, key=lambda each: each[1].total)
    profile = profiles.load_board(device.kit.board)
    others = f" and {count - 1} more" if count > 1 else ""
    raise UsageError(
        f"fleet: {device.kit.id}{others} cannot hold the model: {_families(device)} on {profile.name} needs about "
        f"{_mib(found.total)} (weights, gradients, moments and a copy {_mib(found.model)}, activations of a batch "
        f"{_mib(found.activations)}, samples {_mib(found.data)}, runtime {_mib(found.runtime)}), and {_left(profile)}: "
        "give it a smaller model, fewer samples, a smaller train.batch_size or another board"
    )


def _families(device: Device) -> str:
    return f"{device.kit.family} beside the proxy {device.kit.proxy}" if device.kit.proxy else device.kit.family


def check_deadline(fleet: Fleet, specs: Mapping[str, ModelSpec], proxies: Mapping[str, ModelSpec] = NO_PROXIES) -> None:
    """Raise UsageError if even the fastest device needs longer for a round's training than the deadline."""
    spec, deadline_s = fleet.federation.spec, fleet.federation.policy.deadline_s
    times = (
        (least_s(device, specs[device.kit.id], spec, proxies.get(device.kit.id)), device)
        for device, *_ in _alike_devices(fleet, specs, proxies)
    )
    fastest_s, device = min(times, key=lambda each: each[0])
    if fastest_s <= deadline_s:
        return
    raise UsageError(
        f"federation.deadline_s: {deadline_s:g} s is too short for every device: the fastest, {device.kit.id} "
        f"({device.kit.family} on {device.kit.board_name}, {device.kit.link_name}), needs {fastest_s:.3g} s at "
        f"least for {_steps(device, spec)} steps and its messages; allow more, or give fewer train.local_steps"
    )


_Alike: TypeAlias = tuple[object, ...]


def _alike_devices(
    fleet: Fleet, specs: Mapping[str, ModelSpec], proxies: Mapping[str, ModelSpec]
) -> list[list[Device]]:
    """Return the devices in groups with equal needs, in the order of the first device of each.

    The specs of a kind are one object.
    """
    groups: dict[_Alike, list[Device]] = {}
    for device in fleet.devices:
        kit, held = device.kit, device.held
        alike = id(specs.get(kit.id)), id(proxies.get(kit.id)), kit.board, kit.link, held.counts, held.sample_bytes
        groups.setdefault(alike, []).append(device)
    return [*groups.values()]


def check_disk(fleet: Fleet, memory_bytes: int | None, out: Path | None = None) -> None:
    """Raise UsageError if the disk cannot take what the devices keep that sleep after their work.

    memory_bytes: of it is in memory (run.memory_bytes), None: all.  out: the run's folder, whose checkpoint has all of
    it.  Each drawn device keeps at least its weights and their moments.
    """
    policy, count = fleet.federation.policy, len(fleet.devices)
    if count < DORMANT_FROM:
        return
    share = min(1.0, (policy.participants or count) / count)
    worked = 1.0 - (1.0 - share) ** policy.rounds  # the share of devices that some round draws
    kept = 1 + _moments(fleet.federation.spec)
    needed = worked * _F4 * kept * sum(spec.parameters for _, spec in _specs(fleet))
    if memory_bytes is not None:
        named = os.environ.get("TMPDIR")
        if named and not Path(named).is_dir():  # else the system's own folder would be used without a word
            raise UsageError(f"TMPDIR: {named} is not a folder: make it, or name another, for run.memory_bytes")
        _check_free(
            needed - memory_bytes,
            Path(tempfile.gettempdir()),
            "run.memory_bytes: the weights and moments of sleeping devices",
            "name another folder in TMPDIR, or raise memory_bytes",
        )
    if out is not None:
        _check_free(needed, out, "--out: the stores of the devices that have worked", "or name another folder")


def _check_free(needed: float, folder: Path, of: str, remedy: str) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UsageError(
            f"{of} need about {_mib(int(needed))} in {folder}, which has {_mib(free)} free: free space there, {remedy}"
        )


def _moments(federation: FederationSpec) -> int:
    """Return how many moments of each weight the optimiser keeps."""
    return 2 if federation.train.optimiser == "adam" else int(federation.train.momentum > 0)


def memory_need(
    device: Device, spec: ModelSpec, federation: FederationSpec, proxy: ModelSpec | None = None
) -> MemoryNeed:
    """Estimate the memory for training one device's model, and its proxy if it has one, from sizes alone.

    It counts weights, gradients, the optimiser's moments, their copy at the start of the round, and a message with the
    shared weights.  The two models take their steps one after the other.
    """
    moments = _moments(federation)
    copies = 2 + moments + (1 + moments)
    both = [spec] if proxy is None else [spec, proxy]
    sent = 2 * both[-1].parameters * _sends_weights(federation)
    return MemoryNeed(
        runtime=max(RUNTIME_BYTES[each.runtime] for each in both),
        model=_F4 * (copies * sum(each.parameters for each in both) + sent),
        activations=2 * max(each.activation_bytes_per_sample for each in both) * federation.train.batch_size,
        data=sum(raw_bytes + _F4 * values for raw_bytes, values in _samples(device)),
    )


def least_s(device: Device, spec: ModelSpec, federation: FederationSpec, proxy: ModelSpec | None = None) -> float:
    """Return the minimum seconds of a round's training and messages, on a cold board."""
    profile: Board = profiles.load_board(device.kit.board)
    link: Link = profiles.load_link(device.kit.link)
    meter = Meter()
    both = [spec] if proxy is None else [spec, proxy]
    for each in both:
        meter.trained(each, federation.train.batch_size, "all")
    trained_s = profile.compute_s(meter.train) * (_steps(device, federation) if spec.terms else 0)
    sent_bytes = (
        _F4 * both[-1].parameters
        if _sends_weights(federation) and federation.encoding.weights == DEFAULT_ENCODING
        else 0
    )
    return link.transfer_s(0, up=False) + trained_s + link.transfer_s(sent_bytes, up=True)


def _steps(device: Device, federation: FederationSpec) -> int:
    """Return the number of mini-batches of a round, counted like Job.local_steps."""
    return federation.train.steps(device.held.counts.train)


def _sends_weights(federation: FederationSpec) -> bool:
    """Whether an upload has all weights in it."""
    rows = method_of(federation).exchanges
    return any(slot.kind is Weights and not slot.without_head for row in rows for slot in row.up.values())


def _specs(fleet: Fleet) -> Iterator[tuple[str, ModelSpec]]:
    """Yield (device id, spec of its model); builds one model for each kind of device."""
    known: dict[tuple[object, ...], ModelSpec] = {}
    for device in fleet.devices:
        kit = device.kit
        kind = (kit.family, kit.size, kit.feature_dim, kit.classes, kit.raw_shape)
        if kind not in known:
            known[kind] = kit.model(device.public).spec
        yield kit.id, known[kind]


def _proxies(fleet: Fleet) -> Iterator[tuple[str, ModelSpec]]:
    """Yield (device id, spec of its proxy) of the devices that have one; all of a kind have equal ones."""
    known: dict[tuple[object, ...], ModelSpec] = {}
    for device in fleet.devices:
        kit = device.kit
        kind = (kit.proxy, kit.proxy_features, kit.size, kit.classes, kit.raw_shape)
        if kit.proxy and kind not in known:
            try:
                proxy = kit.proxy_model(device.public)
            except UsageError as error:
                raise UsageError(f"method.proxy: {error}") from error
            known |= {kind: proxy.spec} if proxy is not None else {}
        if kind in known:
            yield kit.id, known[kind]


def _samples(device: Device) -> Iterator[tuple[int, int]]:
    """Yield (raw bytes, number of values) of each part on a device; it also keeps a preprocessed copy, as f4."""
    values = math.prod(device.kit.raw_shape)
    for count in device.held.counts:
        yield count * device.held.sample_bytes, count * values
    if device.public is not None:
        yield device.public.samples.nbytes, device.public.samples.size


def _left(profile: Board) -> str:
    """Describe how much of a board's memory the system leaves."""
    if profile.ram_bytes <= SYSTEM_BYTES:
        return f"its {_mib(profile.ram_bytes)} do not hold even the system, which takes {_mib(SYSTEM_BYTES)}"
    return f"of its {_mib(profile.ram_bytes)} the system leaves {_mib(profile.ram_bytes - SYSTEM_BYTES)}"


def _mib(count: int) -> str:
    return f"{count / _MIB:,.0f} MiB" if count >= _MIB or not count else f"{count:,} bytes"
