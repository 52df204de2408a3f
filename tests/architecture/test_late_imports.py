"""What is imported inside functions: only what is optional, and the modules of ours that need it.

Everything else stands at the top of its file, where it is seen; commands are loaded as whole modules when they run.
"""

from functools import cache

import pytest
from imports import HEAVY, imports, sources

OPTIONAL = {*HEAVY, "scipy"}


@cache
def graph() -> dict[str, tuple[str, ...]]:
    """What each of our modules imports at its top."""
    named = ((path.removesuffix(".py").removesuffix("/__init__").replace("/", "."), text) for path, text in sources())
    return {name: tuple(found.name for found in imports(text) if found.eager) for name, text in named}


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
    late = [found for found in imports(source) if found.late]
    return [f"{path}:{each.line}: import {each.name} at the top" for each in late if not optional(each.name)]


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
