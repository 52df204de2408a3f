"""What is imported inside functions: only what is optional, and the modules of ours that need it.

Everything else stands at the top of its file, where it is seen; commands are loaded as whole modules when they run.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from imports import HEAVY, sources

OPTIONAL = {*HEAVY, "scipy"}


def late_imports(source: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each import in a function."""
    if not re.search(r"^[ \t]+(import|from) ", source, re.MULTILINE):  # reading the tree takes a hundred times as long
        return
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                yield from ((node.lineno, name) for name in imported(node))


def imported(node: ast.AST) -> list[str]:
    """`package.module` for `import package.module`, `package.module.name` for `from package.module import name`."""
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def at_top(node: ast.AST) -> Iterator[str]:
    """What a module imports as it is loaded."""
    for child in ast.iter_child_nodes(node):
        typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not typing_only:
            yield from imported(child)
            yield from at_top(child)


@cache
def graph() -> dict[str, tuple[str, ...]]:
    """What each of our modules imports at its top."""
    named = ((path.removesuffix(".py").removesuffix("/__init__").replace("/", "."), text) for path, text in sources())
    return {name: tuple(at_top(ast.parse(text))) for name, text in named}


@cache
def optional(name: str) -> bool:
    """Whether a name is of an optional package, or of one of our modules that cannot be loaded without one."""
    seen, todo = set(), [name]
    while todo:
        each = todo.pop()
        if each.split(".")[0] in OPTIONAL:
            return True
        module = each if each in graph() else each.rpartition(".")[0]
        if module in graph() and module not in seen:
            seen.add(module)
            todo += graph()[module]
    return False


def objections(path: str, source: str) -> list[str]:
    return [f"{path}:{line}: import {name} at the top" for line, name in late_imports(source) if not optional(name)]


def test_only_what_is_optional_is_imported_late():
    assert [line for path, source in sources() for line in objections(path, source)] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f():\n    import json", ["a.py:2: import json at the top"]),
        (
            "def f():\n    from coordinator.config import load_toml",
            ["a.py:2: import coordinator.config.load_toml at the top"],
        ),
        ("def f():\n    import torch", []),
        ("def f():\n    from edge_sim.engines.torch_threads import one_thread", []),
        ("def f():\n    from edge_sim.over_broker.processes import over_broker", []),
    ],
)
def test_a_planted_one_is_found(source, found):
    assert objections("a.py", source) == found
