"""The texts of the program as its source has them, with `{name}` for what is filled in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("edge_sdk", "coordinator", "edge_sim")


def modules(pattern: str = "") -> Iterator[tuple[Path, ast.Module]]:
    """Yield every module of the program whose text has a match of a regular expression."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if re.search(pattern, text):
                yield path, ast.parse(text)


def calls(node: ast.AST, scope: ast.FunctionDef | None = None) -> Iterator[tuple[ast.FunctionDef | None, ast.Call]]:
    """Yield every call with the function that it stands in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield scope, child
        yield from calls(child, child if isinstance(child, ast.FunctionDef) else scope)


def texts_of(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return the texts that names stand for; one that stands for several has them all."""
    found: dict[str, dict[str, None]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            for value in _choices(node.value):
                text = template(value, {}) if isinstance(value, ast.Constant | ast.JoinedStr) else ""
                if text:
                    found.setdefault(node.targets[0].id, {})[text] = None
    return {name: "; or: ".join(texts) for name, texts in found.items()}


def _choices(node: ast.expr) -> list[ast.expr]:
    return [*_choices(node.body), *_choices(node.orelse)] if isinstance(node, ast.IfExp) else [node]


def template(node: ast.expr, constants: dict[str, str]) -> str:
    """Return a text with `{name}` for each value that is filled in; empty where it is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.Name):
        return constants.get(node.id, f"{{{node.id}}}")
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part, constants) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return f"{{{_name(node.value).strip('_')}}}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "replace":
        return template(node.func.value, constants)
    return f"{{{_name(node)}}}"


def _name(node: ast.expr) -> str:
    """Return a word for a value: the last name that leads to it."""
    if isinstance(node, ast.Call) and node.args and _called(node) in ("len", "str", "sorted", "max", "min", "join"):
        return _name(node.args[0])
    if isinstance(node, ast.Call):
        return _name(node.func.value if isinstance(node.func, ast.Attribute) and not node.args else node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    inner = next((each for each in ast.walk(node) if isinstance(each, ast.Attribute | ast.Name)), None)
    return _name(inner) if inner is not None and inner is not node else "..."


def _called(node: ast.Call) -> str:
    return getattr(node.func, "id", "") or getattr(node.func, "attr", "")
