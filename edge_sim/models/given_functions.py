"""Functions that make models and were given as Python objects, under the names that settings and processes know.

A name is HOME:FUNCTION_DIGEST.  Another process of the same run finds a function by the module that it stands in, and
checks the digest there: a module whose globals were changed by hand would make other nets.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from edge_sdk.data import Preprocess
from edge_sdk.errors import UsageError
from edge_sdk.protocol.frames.leaves import one_line
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
        pickled = b"" if "<" in getattr(make, "__qualname__", "") else pickle.dumps(make)  # dill makes lambdas pickle
    except Exception:  # noqa: BLE001  # objects of the user's may raise anything; functions inside others do
        pickled = b""
    if not pickled or b"__main__" in pickled:
        raise UsageError(
            f"models: with several processes (run.processes, run.cluster, a broker) {_plain_name(make)!r} must stand "
            "at the top of a module that they can import: move it to a file of its own, such as my_models.py, and "
            "write from my_models import ...; or leave run.processes, run.cluster and the broker out"
        )
    return pickled


_CODE = (FunctionType, MethodType, functools.partial, CodeType, type, ModuleType)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))


def function_digest(function: Callable[..., Any]) -> str:
    """Return 8 hexadecimal digits."""
    plain = _Plain(str(getattr(function, "__module__", ""))).of(function)
    return hashlib.sha256(repr(plain).encode()).hexdigest()[:8]


class _Plain:
    """Turns values into nested tuples of plain values."""

    def __init__(self, home: str) -> None:
        """home: the module whose functions and classes count with their contents; others count with their names."""
        self._home = home
        self._inside: list[int] = []
        """The ids of all values that contain the current one."""
        self._told: set[int] = set()
        """The ids of the functions and classes whose contents are included already."""

    def of(self, value: Any) -> object:
        """Return a value as plain values."""
        if isinstance(value, _PLAIN):
            return value
        if id(value) in self._inside:
            return "itself"
        self._inside.append(id(value))
        try:
            return self._code(value) if isinstance(value, _CODE) else self._contents(value)
        finally:
            self._inside.pop()

    def _all(self, values: Iterable[Any]) -> tuple[object, ...]:
        return tuple(map(self.of, values))

    def _code(self, value: Any) -> object:
        """Return functions, classes and modules."""
        if isinstance(value, MethodType):
            return "method", *self._all((value.__func__, value.__self__))
        if isinstance(value, functools.partial):
            return "partial", *self._all((value.func, value.args, value.keywords))
        if isinstance(value, CodeType):
            return value.co_code, value.co_names, self.of(value.co_consts)
        named = "named", getattr(value, "__module__", ""), value.__name__
        if isinstance(value, ModuleType) or value.__module__ != self._home or id(value) in self._told:
            return named
        self._told.add(id(value))
        if isinstance(value, type):
            return *named, self.of(_functions(value))
        return "function", *self._all((value.__code__, value.__defaults__, value.__kwdefaults__, _taken_in(value)))

    def _contents(self, value: Any) -> object:
        """Return containers and arrays with their contents, and of other values the type."""
        if isinstance(value, Mapping):
            return "mapping", *(self._all(pair) for pair in value.items())
        if isinstance(value, (set, frozenset)):
            return "set", *sorted(repr(self.of(each)) for each in value)
        if isinstance(value, (tuple, list)):
            return type(value).__name__, *self._all(value)
        array = np.asarray(value.detach().cpu()) if hasattr(value, "detach") else value
        if isinstance(array, (np.ndarray, np.generic)) and array.dtype != object:
            sha256 = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
            return "array", array.dtype.str, array.shape, sha256
        return "of", type(value).__module__, type(value).__qualname__


def _taken_in(function: FunctionType) -> dict[str, Any]:
    """Return the values of the variables around a function, and of the globals that its code names."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    around = {name: each for name, cell in cells for each in _content(cell)}
    named = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    return named | around


def _content(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # nothing is assigned to it yet
        return ()


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in code, that of inner functions included."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _functions(of: type) -> dict[str, Any]:
    """Return the methods of a class, and the classes that it is made from."""
    methods = {name: each for name, each in vars(of).items() if isinstance(each, FunctionType)}
    return {**methods, "bases": [each for each in of.__bases__ if each is not object]}
