"""No module of the three packages imports itself through others: such modules cannot be read or tested one by one."""

import pytest
from import_graph import circles, import_graph
from imports import sources


def test_no_module_leads_back_to_itself():
    graph = import_graph(sources())
    assert len(graph) > 100
    assert sum(map(len, graph.values())) > 3 * len(graph)  # it has edges
    assert circles(graph) == []


PLANTED = {
    "at the top of the file": "from a import one",
    "of the module itself": "import a.one",
    "inside a function": "def f():\n    from a.one import f",
    "under TYPE_CHECKING": "if TYPE_CHECKING:\n    from a import one",
}


@pytest.mark.parametrize("back", PLANTED.values(), ids=PLANTED)
def test_a_planted_circle_is_found(back):
    files = [("a/__init__.py", '"""A package."""'), ("a/one.py", "from a.two import g"), ("a/two.py", back)]
    assert circles(import_graph(files)) == [["a.one", "a.two"]]


def test_a_circle_through_a_package_is_found():
    files = [("a/__init__.py", "from a import one"), ("a/one.py", "from a import VERSION")]
    assert circles(import_graph(files)) == [["a", "a.one"]]


def test_a_longer_circle_in_the_source_is_found():
    planted = [
        (path, f"{source}\nimport edge_sim.clock.virtual_fleet\n" if path == "edge_sim/clock/clock.py" else source)
        for path, source in sources()
        if path.startswith("edge_sim/")
    ]
    (found,) = circles(import_graph(planted))
    assert {"edge_sim.clock.clock", "edge_sim.clock.virtual_fleet"} <= set(found)


def test_two_modules_with_a_third_below_are_no_circle():
    files = [("a.py", "import c\nimport b"), ("b.py", "import c"), ("c.py", "import json")]
    assert circles(import_graph(files)) == []
