"""Digests of the user's own code on which a run depends: the modules that its settings name, and what those import.

Source files count as they are, so that a change of a comment counts, too.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from edge_sdk.loading import is_foreign
from edge_sdk.methods.brought_code import OURS
from edge_sdk.methods.registry import METHODS, load_method
from edge_sdk.protocol import registry
from edge_sim.config.named_functions import named_functions
from edge_sim.config.settings import Config


def code_digests(config: Config) -> dict[str, str]:
    """Return the digest of each module that settings name and that is neither of this project nor of Python.

    Raises UsageError for a method that does not load.
    """
    method = config.federation.method
    if _root(registry.value(METHODS, method)) not in OURS:
        load_method(method)  # says in a line what is wrong with it
    named = {registry.value(METHODS, method), *named_functions(config.tables)}
    modules = {name.partition(":")[0] for name in named if _root(name) not in OURS | sys.stdlib_module_names}
    found = {module: _sources(module) for module in sorted(modules)}
    return {module: _digest(sources) for module, sources in found.items() if sources}


def _sources(module: str) -> dict[str, bytes]:
    """Return the source of a module, and of those of its package and of the user's that it imports, by name."""
    found: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = _file(name, _root(module)) if name not in found else None
        if file is None:
            continue
        with suppress(OSError, SyntaxError, ValueError):
            found[name] = file.read_bytes()
            package = name if file.name == "__init__.py" else name.rpartition(".")[0]
            waiting += _imported(found[name], package)
    return found


def _file(module: str, root: str) -> Path | None:
    """Return the source file of a module; None: it is none of the user's, and not of the package `root` either."""
    own = _root(module)
    with suppress(ImportError, ValueError, AttributeError):
        top = importlib.util.find_spec(own)  # imports nothing, as the search for an inner module may
        if top is None or own in OURS | sys.stdlib_module_names or not top.origin:
            return None
        if own != root and is_foreign(top.origin):
            return None
        spec = top if own == module else importlib.util.find_spec(module)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            return Path(spec.origin)
    return None


def _imported(source: bytes, package: str) -> Iterator[str]:
    """Yield the modules that a source may import: of `from A import B` both A and A.B."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _digest(sources: dict[str, bytes]) -> str:
    plain = sorted((name, hashlib.sha256(source).hexdigest()) for name, source in sources.items())
    return hashlib.sha256(repr(plain).encode()).hexdigest()


def _root(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]
