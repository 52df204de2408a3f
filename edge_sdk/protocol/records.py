"""Makes and changes frozen records more quickly than a dataclass does itself.

A frozen dataclass sets each field through `object.__setattr__`, and `dataclasses.replace` looks up every field by its
name.  Sessions, rounds and messages make dozens of records for each frame.  Here an object of a twin class is
filled, which has the same slots and is not frozen, and then made an object of the frozen class.  A class that checks
its fields (`__post_init__`), inherits fields or has no slots is made and changed by the dataclass itself.

Events and commands are made once for each frame, and never changed: `record` makes their classes.
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
    """Make a class a dataclass with slots and a hash whose objects nobody changes, which the type checker ensures.

    An object is made in a third of the time that one takes which refuses changes by itself.
    """
    return dataclasses.dataclass(slots=True, unsafe_hash=True)(cls)


def maker(cls: type[_T]) -> Callable[..., _T]:
    """Return a function that makes an object of a dataclass from the same keywords as the class, with its defaults."""
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
            if isinstance(error.__cause__, KeyboardInterrupt):  # Python before 3.12 wraps it while it makes a class
                raise error.__cause__ from None
            raise
    else:
        _MAKERS[cls], _CHANGERS[cls] = cls, lambda record, changes: dataclasses.replace(record, **changes)


def _is_plain(cls: type) -> bool:
    """Whether the fields of a class are its slots, and nothing happens but that they are set."""
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
    # An object is of these classes only until it is filled, so they have nothing but slots.
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
