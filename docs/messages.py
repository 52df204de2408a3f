"""The page with every message of an error, made while the site is built: the source is its only copy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from source_texts import ROOT, calls, modules, template, texts_of

from edge_sdk import errors

HEAD = """\
# Every message of an error

What an error can say, by the part of the program that says it: search for some words of the line that you see. What
stands in braces is filled in. [Errors, refusals and warnings](errors.md) has codes and meanings,
[troubleshooting](../how-to/troubleshooting.md) goes by what you see. The site's builder makes this page of the source.
"""

KINDS = {
    name: error
    for name, error in vars(errors).items()
    if isinstance(error, type) and issubclass(error, errors.EdgeError) and error is not errors.EdgeError
}

TEXT_AT = {"Refused": 1, "RemoteProtocolError": 1, "Damaged": 1}
"""The place of the text among an error's arguments, where it is not the first."""


def page() -> str:
    """Return the whole page."""
    by_place: dict[str, set[tuple[str, str]]] = {}
    for place, kind, text in _messages():
        by_place.setdefault(place, set()).add((text, kind))
    parts = [HEAD]
    for place in sorted(by_place):
        rows = [
            f"| {_cell(text)} | `{KINDS[kind].code}` | {KINDS[kind].exit_code} |"
            for text, kind in sorted(by_place[place])
        ]
        parts += [f"## {place}\n", "| message | code | exit code |", "|---|---|---|", *rows, ""]
    return "\n".join(parts)


def _messages() -> Iterator[tuple[str, str, str]]:
    """Yield room, class and text of each error that is made in the source."""
    for path, tree in modules():
        constants = texts_of(tree.body)
        for scope, node in calls(tree):
            kind = getattr(node.func, "id", "")
            if kind in KINDS and node.args and kind != "MissingExtra":
                known = constants if scope is None else {**constants, **texts_of(ast.walk(scope))}
                text = template(node.args[min(TEXT_AT.get(kind, 0), len(node.args) - 1)], known)
                if re.sub(r"\{[^}]*\}", "", text).strip(" :;,"):
                    yield _place(path), kind, text


def _place(path: Path) -> str:
    parts = path.relative_to(ROOT).parts[:-1]
    return "/".join(parts[:2])


def _cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"\{([^{}]*)\}", r"`{\1}`", text)
