"""The graph of imports between modules, and the circles in it.

Every import counts, wherever it stands: at the top of a file, inside a function, and under TYPE_CHECKING.
"""

from collections.abc import Iterable, Mapping

from imports import imports

Graph = Mapping[str, frozenset[str]]
"""Module -> the modules of the same graph that it imports."""


def module_name(path: str) -> str:
    """The dotted name of a source file, whose path is relative to the root and has slashes."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_graph(files: Iterable[tuple[str, str]]) -> Graph:
    """The graph of some files (path, source); imports of other packages are left out.

    `from package import name` leads to the module `package.name` where there is one, else to `package` itself.
    """
    sources = {module_name(path): source for path, source in files}
    return {module: frozenset(_imported(source, sources.keys()) - {module}) for module, source in sources.items()}


def _imported(source: str, modules: Iterable[str]) -> set[str]:
    known = set(modules)
    return {_nearest(found.name, known) for found in imports(source)} - {""}


def _nearest(name: str, known: set[str]) -> str:
    """The module itself or the innermost package around it that is in the graph; empty: there is none."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def circles(graph: Graph) -> list[list[str]]:
    """Groups of modules each of which leads back to itself through the others, sorted.

    A module and another are in one group where each can be reached from the other.
    """
    reachable = {module: _reachable(graph, module) for module in graph}
    groups = {
        tuple(sorted(other for other in reachable[module] if module in reachable[other]))
        for module in graph
        if module in reachable[module]
    }
    return [list(group) for group in sorted(groups)]


def _reachable(graph: Graph, module: str) -> set[str]:
    """What a module imports, directly or through others."""
    found: set[str] = set()
    left = list(graph[module])
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left.extend(graph[each])
    return found
