"""An extension of griffe: the words `name: what it is` of a docstring become a list, where `name` is a parameter.

Docstrings here say what parameters are in sentences, one behind the other, which reads well in the source.  On the
site a list is found faster.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class ParameterLists(griffe.Extension):
    """Rewrites the docstrings of classes and functions while they are loaded."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Take in the parameters of the constructor, and the fields of a dataclass."""
        constructor = cls.members.get("__init__")
        names = {each.name for each in constructor.parameters} if isinstance(constructor, griffe.Function) else set()
        _rewrite(cls, names | {name for name, member in cls.members.items() if isinstance(member, griffe.Attribute)})

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Take in the parameters of the function."""
        _rewrite(func, {parameter.name for parameter in func.parameters})


def _rewrite(item: griffe.Object, names: set[str]) -> None:
    if item.docstring is not None and names:
        item.docstring.value = listed(item.docstring.value, names)


def listed(text: str, names: set[str]) -> str:
    """Return the text with an item for each part that begins with a name and a colon, `a, b: ...` included."""
    names = {name.lstrip("*") for name in names}
    either = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    beginning = re.compile(rf"(?:(?<=[.;)])\s+|^\s*)((?:{either})(?:, (?:{either}))*):\s+(?=\S)", re.MULTILINE)
    return "\n\n".join(_paragraph(part, beginning) for part in text.split("\n\n"))


def _paragraph(text: str, beginning: re.Pattern[str]) -> str:
    first, *rest = beginning.split(text)
    if not rest:
        return text
    items = [f"- {_code(names)}: {_sentence(what)}" for names, what in zip(rest[::2], rest[1::2], strict=True)]
    return "\n".join([*([first.strip(), ""] if first.strip() else []), *items])


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


def _sentence(text: str) -> str:
    return " ".join(text.split())
