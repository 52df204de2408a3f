"""A digest of what a function does: its code, and the values that it has taken in, the same in every process.

Values are those of its defaults, of the variables around it, and of the globals that it names.  Numbers, texts, arrays,
tensors and containers count with their contents, and so do functions and classes of the same module; all else counts
with its name or type.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

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
        """The ids of all values that the one at hand is part of."""
        self._told: set[int] = set()
        """The ids of the functions and classes whose contents are told already."""

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
        """Return containers and arrays with their contents, and of all else the type."""
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
