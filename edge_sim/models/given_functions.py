"""Functions that make models and were given as Python objects, under the names that settings and processes know.

A name is HOME:FUNCTION_DIGEST.  Another process of the same run finds a function by the module that it stands in, and
checks the digest there: a module whose globals were changed by hand would make other nets.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from edge_sdk.data import Preprocess
from edge_sdk.errors import UsageError
from edge_sdk.protocol.frames.leaves import one_line
from edge_sim.models.function_digest import function_digest
from edge_sim.models.model_types import HeadKind, InputShape

HOME = "edge_sim_given_models"
"""The module under whose name functions stand that no file has."""
_GIVEN: dict[str, Callable[..., Any]] = {}
"""The functions of this process, by HOME:FUNCTION_DIGEST."""


def names_of_functions(functions: Sequence[Callable[..., Any]]) -> list[str]:
    """Return HOME:FUNCTION_DIGEST of functions that make models; different functions have different names.

    A name holds a digest of what the function does, so that a folder with runs of another function is noticed.
    """
    owners: dict[str, Callable[..., Any]] = {}
    for make in functions:
        if not callable(make):
            raise UsageError(f"models: expected functions (classes, input_shape, seed), found {type(make).__name__}")
        if hasattr(make, "state_dict"):  # a net of torch can be called, too
            raise UsageError(
                f"models: found a net ({type(make).__name__}), expected a function that makes one for each device: "
                "write models=lambda classes, input_shape, seed: copy.deepcopy(net)"
            )
        named = f"{_plain_name(make)}_{function_digest(make)}"
        candidates = (named, *(f"{named}_{i}" for i in range(2, len(functions) + 2)))
        owners[next(name for name in candidates if owners.get(name, make) is make)] = make
    names = {id(make): name for name, make in owners.items()}
    for name, make in owners.items():
        _give(name, make)
    return [f"{HOME}:{names[id(make)]}" for make in functions]


def _plain_name(make: Callable[..., Any]) -> str:
    return str(getattr(make, "__name__", "model")).strip("<>")


def _give(name: str, make: Callable[..., Any]) -> None:
    """Let a name in our module stand for a function."""

    def factory(  # noqa: PLR0917  # build_model passes them by name
        classes: int,
        input_shape: InputShape,
        seed: int,
        preprocess: Preprocess,  # noqa: ARG001  # to be given the shape that it makes
        head: HeadKind,  # noqa: ARG001  # for the function makes what it makes
        device: str,  # noqa: ARG001  # likewise
    ) -> Any:
        return make(classes, input_shape, seed)

    setattr(sys.modules.setdefault(HOME, ModuleType(HOME)), name, factory)
    _GIVEN[f"{HOME}:{name}"] = make


def check_sendable(functions: Iterable[Callable[..., Any]]) -> None:
    """Raise UsageError for a function that other processes cannot import."""
    for make in functions:
        _sendable(make)


def known_elsewhere(name: str) -> bool:
    """Whether another process can load what MODULE:FACTORY names."""
    if name in _GIVEN:
        try:
            check_sendable([_GIVEN[name]])
        except UsageError:
            return False
        return True
    module = sys.modules.get(name.partition(":")[0])
    return module is None or module.__spec__ is not None


def sent_functions(names: Iterable[str]) -> dict[str, bytes]:
    """Return the given functions among models' names, by name, for `receive_functions` in another process."""
    return {name: _sendable(_GIVEN[name]) for name in names if name in _GIVEN}


def receive_functions(sent: Mapping[str, bytes]) -> None:
    """Give functions of another process their names here.  Raises UsageError where one is not the same here."""
    for name, pickled in sent.items():
        if name in _GIVEN:  # the process that sent it
            continue
        own = name.partition(":")[2]
        try:
            make = pickle.loads(pickled)  # noqa: S301  # pickled by the simulation itself
        except Exception as error:  # noqa: BLE001  # importing its module runs the user's code
            told = one_line(f"{type(error).__name__}: {error}")
            raise UsageError(f"models: {own} cannot be loaded in another process of this run: {told}") from None
        if not own.startswith(f"{_plain_name(make)}_{function_digest(make)}"):
            raise UsageError(
                f"models: {_plain_name(make)} of {make.__module__} is another function in another process of this run: "
                "it uses globals that were changed, or its file was edited after the import; pass values by "
                "functools.partial, and restart this process"
            )
        _give(own, make)


def _sendable(make: Callable[..., Any]) -> bytes:
    """Return a function as a reference to its module, with the arguments of a functools.partial."""
    try:
        pickled = pickle.dumps(make)
    except Exception:  # noqa: BLE001  # objects of the user's may raise anything; functions inside others do
        pickled = b""
    if not pickled or b"__main__" in pickled:
        raise UsageError(
            f"models: with several processes (run.processes, run.cluster, a broker) {_plain_name(make)!r} must stand "
            "at the top of a module that they can import: move it to a file of its own, such as my_models.py, and "
            "write from my_models import ...; or leave run.processes, run.cluster and the broker out"
        )
    return pickled
