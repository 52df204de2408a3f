"""Creates and copies frozen records faster than dataclasses do.

A frozen dataclass sets each field through `object.__setattr__`, and `dataclasses.replace` looks up every field by its
name; sessions, rounds and messages create dozens of records per frame.  The trick here: fill an object of an unfrozen
twin class with the same slots, then assign the frozen class to its `__class__`.  Classes that check their fields
(`__post_init__`), inherit fields or have no slots fall back to the dataclass itself.

Events and commands are created once per frame and never changed: `record` makes their classes.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[_T], _T]:
        """Do nothing: only the type checker reads it."""
        return lambda marked: marked


_T = TypeVar("_T")
_MAKERS: dict[type, Callable[..., Any]] = {}
_CHANGERS: dict[type, Callable[[Any, dict[str, Any]], Any]] = {}


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[_T]) -> type[_T]:
    """Make a class a dataclass with slots and a hash; only the type checker enforces that its objects never change.

    Creating an object takes a third of the time of a dataclass with frozen=True.
    """
    return dataclasses.dataclass(slots=True, unsafe_hash=True)(cls)


def maker(cls: type[_T]) -> Callable[..., _T]:
    """Return a faster constructor of a dataclass: the same keywords, the same defaults."""
    if cls not in _MAKERS:
        _prepare(cls)
    return _MAKERS[cls]


def replace(record: _T, /, **changes: Any) -> _T:
    """Return a copy of an object of a dataclass with some fields changed, as `dataclasses.replace` does."""
    cls = type(record)
    if cls not in _CHANGERS:
        _prepare(cls)
    changed: _T = _CHANGERS[cls](record, changes)
    return changed


@functools.cache
def field_names(cls: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(cls))


@functools.cache
def getter(cls: type) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of an object's fields, in the order of `field_names`."""
    fields = field_names(cls)
    if len(fields) > 1:
        return operator.attrgetter(*fields)
    return lambda value: tuple(getattr(value, name) for name in fields)


def _prepare(cls: type) -> None:
    if _is_plain(cls):
        try:
            _MAKERS[cls], _CHANGERS[cls] = _generated(cls)
        except RuntimeError as error:
            if isinstance(error.__cause__, KeyboardInterrupt):  # Python before 3.12 wraps it while creating a class
                raise error.__cause__ from None
            raise
    else:
        _MAKERS[cls], _CHANGERS[cls] = cls, lambda record, changes: dataclasses.replace(record, **changes)


def _is_plain(cls: type) -> bool:
    """Whether the fields of a class are its slots, and its constructor only sets them."""
    fields = dataclasses.fields(cls)
    return (
        cls.__bases__ == (object,)
        and vars(cls).get("__slots__") == tuple(field.name for field in fields)
        and not hasattr(cls, "__post_init__")
        and all(field.init for field in fields)
    )


def _generated(cls: type) -> tuple[Callable[..., Any], Callable[[Any, dict[str, Any]], Any]]:
    """Return the functions that make and change objects of a class."""
    fields, values = dataclasses.fields(cls), getter(cls)
    given_by_name = [(each.name, each.type, _default(each)) for each in fields]
    # an object has these classes only until it is filled, so slots are all they need
    bare = functools.partial(dataclasses.make_dataclass, slots=True, repr=False, eq=False)
    by_name, in_order = bare(cls.__name__, given_by_name, kw_only=True), bare(cls.__name__, field_names(cls))

    def make(**given: Any) -> Any:
        one = by_name(**given)
        one.__class__ = cls
        return one

    def change(record: Any, changes: dict[str, Any]) -> Any:
        one = in_order(*values(record))
        try:
            for name, value in changes.items():
                setattr(one, name, value)
        except AttributeError:
            raise TypeError(f"{cls.__name__} has no field {name}") from None
        one.__class__ = cls
        return one

    return make, change


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=field.default_factory)
    return dataclasses.field(default=field.default)
