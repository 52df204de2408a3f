"""Checks an Agent's arguments, makes identity and transport from them, and keeps two agents from sharing a model."""

from __future__ import annotations

import gc
import os
import random
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_sdk import samples
from edge_sdk.agent.state_folder import lasting
from edge_sdk.data import LocalData
from edge_sdk.device.training.data_supply import OwnData
from edge_sdk.errors import UsageError
from edge_sdk.identity.folder import ABOUT, Identity, open_identity
from edge_sdk.identity.signatures import Role
from edge_sdk.models.base import Model, ModelSpec
from edge_sdk.policy.energy import PowerMeter
from edge_sdk.policy.policy import Policy
from edge_sdk.policy.sensors import Sensors
from edge_sdk.privacy.release import Guarantee
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.transport.base import Transport
from edge_sdk.transport.mqtt import send_queue
from edge_sdk.transport.mqtt.tls import NO_FILES, OF_DEVICE, TlsFiles

_DEVICE_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,35}")
_YES_OR_NO = (bool, "True or False")
_OPTIONS: Mapping[str, tuple[Any, str]] = {
    "public": (PublicSet | None, "edge_sdk.PublicSet.load(path), or None to fetch it"),
    "policy": (Policy | None, "edge_sdk.Policy(...), or None"),
    "privacy": (Guarantee | None, "edge_sdk.privacy.release.Guarantee(epsilon, delta), or None"),
    "meter": (PowerMeter | None, "edge_sdk.PowerMeter(watts=...), or None"),
    "tls": (TlsFiles | None, "edge_sdk.TlsFiles(...), or None"),
    "disclose_classes": _YES_OR_NO,
    "share_weights": _YES_OR_NO,
    "share_sample_codes": _YES_OR_NO,
    "cloud_safe": _YES_OR_NO,
    "quarantine": _YES_OR_NO,
    "sends_logs": _YES_OR_NO,
    "stay": _YES_OR_NO,
    "accepts_models": _YES_OR_NO,
    "board": (str, "the name of the device's board, a str"),
    "secret": (bytes, "bytes"),
    "max_public_bytes": (int | np.integer, "a whole number of bytes"),
    "clock": (Callable, "a function that returns the time in seconds"),
}
"""The type of each argument, and how to describe it.  Flags must be bool, because the text "no" would count as true,
and so as consent."""
_SENSES = tuple(name for name in vars(Sensors) if not name.startswith("_"))


def check_places(federation: object, identity: object, broker: object, state: object, public_cache: object) -> None:
    """Raise UsageError for arguments that are not a name, an address or a path."""
    if not isinstance(federation, str):
        raise UsageError(f"federation: found {type(federation).__name__}: give its name, a str")
    if not _is_path(identity):
        raise UsageError(f"identity: found {_shown(identity)}: give the device's id, or the path of its folder")
    if not isinstance(broker, str | None) and not _has(broker, "connect", "send", "poll"):
        raise UsageError(f"broker: found {_shown(broker)}: give its address, as mqtt://HOST:1883, or a Transport")
    if state is not None and not _is_path(state) and not _has(state, "saved_round", "round_start"):
        raise UsageError(f"state: found {_shown(state)}: give the path of a folder, a Store, or None")
    if public_cache is not None and not _is_path(public_cache):
        raise UsageError(f"public_cache: found {_shown(public_cache)}: give the path of a folder, or None")


def check_names(identity: str | Path, device: str, federation: str) -> None:
    """Raise UsageError for an id that is not legal in a broker's topic.  device: the id in `identity`."""
    for what, given, name in (("identity", str(identity), device), ("federation", federation, federation)):
        if not _DEVICE_ID.fullmatch(name):
            raise UsageError(f"{what} {given!r}: use a-z, 0-9 and -, at most 36 of them")


def check_kinds(model: object, data: object, proxy: object) -> None:
    """Raise UsageError for arguments that are often confused: a bare net, a pair of arrays."""
    models = {"model": model} if proxy is None else {"model": model, "proxy": proxy}
    for name, given in models.items():
        if not isinstance(getattr(given, "spec", None), ModelSpec):
            raise UsageError(
                f"{name}: found {type(given).__name__}, which has no spec: "
                "wrap it, as in edge_sdk.TorchModel(net, classes=10)"
            )
    # SampleStore is looked up second, because that loads its module
    if not isinstance(data, LocalData) and not isinstance(data, samples.SampleStore):
        raise UsageError(
            f"data: found {type(data).__name__}: give edge_sdk.LocalData(train=edge_sdk.Samples(x, y)) of numpy "
            "arrays, or an edge_sdk.SampleStore"
        )


def check_options(**given: object) -> None:
    """Raise UsageError for an argument of an Agent, by its name, that has the wrong type."""
    for name, option in given.items():
        kind, meant = _OPTIONS[name]
        if not isinstance(option, kind) or (isinstance(option, bool) and kind is not bool):
            raise UsageError(f"{name}: found {type(option).__name__}: give {meant}")


def check_sensors(sensors: object) -> None:
    """Raise UsageError for an object that lacks a method of Sensors."""
    if sensors is not None and not _has(sensors, *_SENSES):
        raise UsageError(f"sensors: found {type(sensors).__name__}: give an object with {', '.join(_SENSES)}, or None")


def _is_path(given: object) -> bool:
    return isinstance(given, str | Path) and "\0" not in str(given)


def _has(given: object, *methods: str) -> bool:
    return not isinstance(given, type) and all(callable(getattr(given, name, None)) for name in methods)


def _shown(given: object) -> str:
    return repr(given) if isinstance(given, str | Path | int | float) else type(given).__name__


# -- what an agent holds, made from its arguments ----------------------------------------------------------------------


class SimulatedId(str):
    """The id of a simulated device, which ignores the folder of a board with the same id."""

    __slots__ = ()


def enrolled(identity: str | Path) -> Identity | None:
    """Open the identity if it is a folder made by `edge-sdk enroll`; return None for a plain id."""
    if isinstance(identity, SimulatedId):
        return None
    folder = lasting(Path(identity))
    return open_identity(folder, Role.DEVICE) if (folder / ABOUT).exists() else None


def reached_by(
    own: Identity | None, broker: str | Transport | None, tls: TlsFiles | None
) -> tuple[str | Transport, TlsFiles | None]:
    """Return the broker and its certificates: the given ones, or else the identity's."""
    if own is None:
        if broker is None:
            raise UsageError("broker: give its address, or an identity folder that edge-sdk enroll made")
        return broker, tls
    broker = own.broker if broker is None else broker
    if tls is None and isinstance(broker, str) and broker.startswith("mqtts:"):
        tls = TlsFiles(own.authority, own.certificate, own.tls_key, OF_DEVICE)
    return broker, tls


def lone_parts(model: Model, proxy: Model | None, data: OwnData) -> Mapping[str, object]:
    """Return the objects, by argument name, that only one agent may use: models that learn, and a sample store."""
    found: dict[str, object] = {"model": model} if model.spec.terms else {}
    if proxy is not None:
        found["proxy"] = proxy
    nets = {f"{argument}.net": getattr(learns, "net", None) for argument, learns in found.items()}
    found |= {argument: net for argument, net in nets.items() if net is not None}  # two models may wrap one net
    return found if isinstance(data, LocalData) else {**found, "data": data}


def transport_to(
    broker: str | Transport, tls: TlsFiles | None, client_id: str, *, cloud_safe: bool, chunk_file: Path | None
) -> Transport:
    """Return the transport to a broker's address, or the given one.  Raises UsageError for options that it lacks."""
    if not isinstance(broker, str):
        if tls is not None or cloud_safe:
            raise UsageError(
                "tls and cloud_safe need a broker's address, but broker is a transport: set them on the transport"
            )
        return broker
    from edge_sdk.transport.mqtt.transport import MqttTransport

    pace = send_queue.cloud_safe() if cloud_safe else None
    seed = random.SystemRandom().getrandbits(32)
    return MqttTransport(broker, client_id, tls=tls or NO_FILES, seed=seed, pace=pace, chunk_file=chunk_file)


@dataclass(frozen=True, slots=True)
class _Holder:
    agent: weakref.ref[object]
    process: int
    """The process id: after a fork the child owns copies of the parent's objects, so the entry does not bind it."""
    name: str


_holders: dict[int, _Holder] = {}
"""By `id` of an object; ids stay valid because the holder keeps its objects alive."""
_changing = threading.Lock()


def hold_alone(agent: object, name: str, parts: Mapping[str, object]) -> None:
    """Reserve objects for an agent until `let_go`, or until the agent is collected.

    name: the agent's name in errors.
    parts: the objects by argument name.

    Raises UsageError, and reserves nothing, if another agent of this process holds one of the objects.
    """
    if _is_held(agent, parts):
        gc.collect()  # an unused agent survives in a reference cycle until it is collected
    with _changing:
        for part, each in parts.items():
            other = _other_holder(agent, each)
            if other is not None:
                raise UsageError(
                    f"{part}: {other.name} in this process has the same {type(each).__name__}: give each Agent one of "
                    "its own (a factory makes one at each call), or stop() that agent first"
                )
        for each in parts.values():
            _holders[id(each)] = _Holder(weakref.ref(agent), os.getpid(), name)


def let_go(agent: object) -> None:
    """Release this agent's objects, and those of agents that no longer exist."""
    with _changing:
        for key, holder in list(_holders.items()):
            if holder.agent() in (None, agent):
                del _holders[key]


def _is_held(agent: object, parts: Mapping[str, object]) -> bool:
    return any(_other_holder(agent, each) is not None for each in parts.values())


def _other_holder(agent: object, each: object) -> _Holder | None:
    holder = _holders.get(id(each))
    gone = holder is None or holder.agent() in (None, agent) or holder.process != os.getpid()
    return None if gone else holder
