"""The rooms: what each folder may import, that they form no circle, and that every public class has one name."""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import pytest
import setuptools
from import_graph import import_graph
from imports import ROOT, sources

ALWAYS = {
    "edge_sdk.errors",
    "edge_sdk.arrays",
    "edge_sdk.class_names",
    "edge_sdk.given_arrays",
    "edge_sdk.lazy",
    "edge_sdk.sample_kind",
    "edge_sdk.version",
    "edge_sdk.durable",
    "edge_sdk.terminal",
    "edge_sdk.toml",
    "edge_sdk.at_rest",
}
"""Single files below all rooms, and the room that they use."""
NEUTRAL = {f"edge_sdk.{room}" for room in ("protocol", "objectives", "reductions", "privacy", "methods")}
DEVICE = {
    "edge_sdk.data",
    "edge_sdk.samples",
    "edge_sdk.models",
    "edge_sdk.public_set",
    "edge_sdk.boards",
    "edge_sdk.transport",
    "edge_sdk.identity",
}
CLIENT = {
    *NEUTRAL,
    *DEVICE,
    "edge_sdk.policy",
    "edge_sdk.device",
    "edge_sdk.serving",
    "edge_sdk.agent",
    "edge_sdk.loading",
}
SERVER = {
    f"coordinator.{room}"
    for room in (
        *("config", "federation_table", "rounds", "record", "ledger"),
        *("serving", "trace", "broker", "deploy"),
    )
}
SIMULATION = {f"edge_sim.{room}" for room in ("byzantine", "models", "config", "data", "fleet", "engines")}
MAY_IMPORT: Mapping[str, set[str]] = {
    "edge_sdk.at_rest": set(),
    "edge_sdk.protocol": set(),
    "edge_sdk.objectives": {"edge_sdk.protocol"},
    "edge_sdk.reductions": {"edge_sdk.protocol"},
    "edge_sdk.privacy": set(),
    "edge_sdk.methods": {*NEUTRAL, "edge_sdk.models"},
    "edge_sdk.models": {"edge_sdk.data", "edge_sdk.objectives"},
    "edge_sdk.public_set": {"edge_sdk.data", "edge_sdk.protocol"},
    "edge_sdk.samples": {"edge_sdk.data", "edge_sdk.public_set"},
    "edge_sdk.boards": {"edge_sdk.protocol"},
    "edge_sdk.transport": {"edge_sdk.protocol"},
    "edge_sdk.identity": {"edge_sdk.protocol"},
    "edge_sdk.policy": {"edge_sdk.boards", "edge_sdk.models", "edge_sdk.protocol"},
    "edge_sdk.device": {*NEUTRAL, *DEVICE, "edge_sdk.policy"},
    "edge_sdk.serving": {*NEUTRAL, *DEVICE, "edge_sdk.policy", "edge_sdk.device"},
    "edge_sdk.agent": {*CLIENT, "edge_sdk.plugins"},
    "edge_sdk.tools": {
        *NEUTRAL,
        *DEVICE,
        "edge_sdk.cli",
        "edge_sdk.device",
        "edge_sdk.plugins",
        "edge_sdk.loading",
        "edge_sdk.policy",
    },
    "coordinator.rounds": {"edge_sdk.protocol", "edge_sdk.reductions"},
    "coordinator.record": {*NEUTRAL},
    "coordinator.broker": set(),
    "coordinator.lab": {
        *("edge_sdk.protocol", "edge_sdk.identity", "edge_sdk.transport"),
        *("coordinator.broker", "coordinator.ledger", "coordinator.systemd"),
    },
    "coordinator.serving": {
        *NEUTRAL,
        *DEVICE,
        *("edge_sdk.loading", "coordinator.rounds", "coordinator.record", "coordinator.ledger", "coordinator.systemd"),
    },
    "coordinator.trace": {
        *NEUTRAL,
        *DEVICE,
        *("coordinator.record", "coordinator.rounds", "coordinator.ledger", "coordinator.serving"),
    },
    "coordinator.results": {
        *NEUTRAL,
        *("coordinator.address", "coordinator.record", "coordinator.rounds", "coordinator.serving"),
        *("coordinator.ledger", "coordinator.federation_table"),
    },
    "edge_sim.models": CLIENT,
    "edge_sim.config": {
        *CLIENT,
        "coordinator.config",
        "coordinator.federation_table",
        "edge_sim.byzantine",
        "edge_sim.models",
    },
    "edge_sim.data": {*CLIENT, "edge_sim.config", "edge_sim.models"},
    "edge_sim.fleet": {*CLIENT, *SERVER, "edge_sim.config", "edge_sim.data", "edge_sim.models"},
    "edge_sim.engines": {*CLIENT, *SIMULATION},
    "edge_sim.clock": {*CLIENT, *SERVER, *SIMULATION},
    "edge_sim.shards": {*CLIENT, *SERVER, *SIMULATION, "edge_sim.clock"},
    "edge_sim.over_broker": {*CLIENT, *SERVER, *SIMULATION},
    "edge_sim.replay": {*CLIENT, *SERVER, *SIMULATION},
    "edge_sim.runs": {
        *CLIENT,
        *SERVER,
        *SIMULATION,
        *(
            "coordinator.results",
            "edge_sim.clock",
            "edge_sim.shards",
            "edge_sim.over_broker",
        ),
    },
    "edge_sim.projects": {*CLIENT, *SERVER, *SIMULATION, "coordinator.results", "edge_sdk.tools"},
    "edge_sim.lab": {*CLIENT, *SERVER, *SIMULATION, "coordinator.results", "edge_sim.runs"},
    "edge_sim.notebook": {
        *CLIENT,
        *SERVER,
        *SIMULATION,
        *("coordinator.results", "edge_sim.clock", "edge_sim.runs", "edge_sim.studies"),
    },
    "edge_sim.studies": {
        *CLIENT,
        *SERVER,
        *SIMULATION,
        *("coordinator.results", "edge_sim.runs", "edge_sim.lab", "edge_sim.commands"),
    },
    "edge_sim.bench": {
        *(*NEUTRAL, "edge_sdk.boards", "edge_sdk.samples", "coordinator.record", "coordinator.results"),
        *("edge_sim.config", "edge_sim.fleet", "edge_sim.runs", "edge_sim.studies"),
    },
}
PACKAGES = ("edge_sdk", "coordinator", "edge_sim")
OWN_WORDS = {"Params", "State", "DeviceState"}
"""Each method's file has its own, by these names: a reader finds the same parts in every paper."""

SAME_PART: Mapping[str, str] = {
    "command": "the function that carries out a sub-command, named by its entry point",
    "main": "the entry point of a program",
    "loss": "the loss of a method's file, as its paper writes it",
}
"""The functions that several files define under one name, and why: a reader finds the same part in each."""


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


@cache
def imports_between_rooms() -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for module, imported in import_graph(sources()).items():
        found[room_of(module)] |= {room_of(each) for each in imported} - {room_of(module)}
    return found


def rooms() -> Iterator[str]:
    for package in ("edge_sdk", "coordinator", "edge_sim"):
        yield from (f"{package}.{path.parent.name}" for path in sorted((ROOT / package).glob("*/__init__.py")))


@pytest.mark.parametrize("room", list(rooms()))
def test_a_room_imports_only_what_it_may(room: str) -> None:
    assert imports_between_rooms()[room] - ALWAYS <= MAY_IMPORT[room]


def test_rooms_form_no_circle() -> None:
    left = {room: imported & MAY_IMPORT.keys() for room, imported in imports_between_rooms().items()}
    while free := [room for room, imported in left.items() if not imported]:
        left = {room: imported - {*free} for room, imported in left.items() if room not in free}
    assert left == {}


@pytest.mark.parametrize("room", list(rooms()))
def test_a_room_says_what_lives_in_it_and_what_it_may_import(room: str) -> None:
    text = (ROOT / room.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
    said = ast.get_docstring(ast.parse(text))
    assert said is not None
    assert len(said.splitlines()) >= 3
    assert "import" in said


def defined_twice(files: Iterable[tuple[str, str]], *kinds: type[ast.stmt]) -> set[str]:
    """The public names of classes, types or functions that two files define."""
    places = defaultdict(set)
    for path, source in files:
        for node in ast.parse(source).body:
            if isinstance(node, kinds) and isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                places[node.name].add(path)
            elif isinstance(node, kinds) and ast.unparse(getattr(node, "annotation", node)) == "TypeAlias":
                places[ast.unparse(node.target)].add(path)  # type: ignore[attr-defined]  # an AnnAssign
            elif isinstance(node, kinds) and ast.unparse(getattr(node, "value", node)).startswith("Annotated["):
                places[ast.unparse(node.targets[0])].add(path)  # type: ignore[attr-defined]  # an Assign
    return {name for name, where in places.items() if len(where) > 1 and name[0] != "_"}


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_a_public_class_or_type_has_one_name() -> None:
    assert defined_twice(sources(), ast.ClassDef, ast.AnnAssign, ast.Assign) <= OWN_WORDS


TESTED_IN = {"agent": "app", "at_rest": "durable", "broker": "transport", "trace": "replay"}
"""The folder of tests of a room, where it has another name."""


@pytest.mark.parametrize("room", list(rooms()))
def test_the_tests_of_a_room_stand_in_a_folder_with_its_name(room: str) -> None:
    name = room.split(".")[1]
    assert list((ROOT / "tests" / TESTED_IN.get(name, name)).rglob("test_*.py"))


def test_every_room_says_what_it_is_and_is_packed() -> None:
    """A folder without `__init__.py` works in a checkout, and is missing from the wheel."""
    packed = set(setuptools.find_packages(str(ROOT)))
    for folder in {module.parent for package in PACKAGES for module in (ROOT / package).rglob("*.py")}:
        room = ".".join(folder.relative_to(ROOT).parts)
        assert room in packed
        said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        assert said is not None
        assert len(said.splitlines()) >= 3
        assert "import" in said


def test_version_control_ignores_no_source() -> None:
    ignored = subprocess.run(
        ["git", "ls-files", "--others", "--ignored", "--exclude-standard", *PACKAGES, "tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if ignored.returncode:
        pytest.skip("not a checkout: no git, or an unpacked archive")
    assert [name for name in ignored.stdout.splitlines() if name.endswith(".py")] == []


def test_a_public_function_has_one_name() -> None:
    assert defined_twice(sources(), *FUNCTIONS) <= SAME_PART.keys()


def test_a_planted_second_type_is_found() -> None:
    files = [("a.py", "Word = Annotated[str, Text(16)]"), ("b.py", "class Word:\n    pass"), ("c.py", "Word = 3")]
    assert defined_twice(files, ast.ClassDef, ast.Assign) == {"Word"}
    assert not defined_twice(files[1:], ast.ClassDef, ast.Assign)


def test_a_planted_second_function_is_found() -> None:
    files = [
        ("a.py", "def load():\n    pass"),
        ("b.py", "async def load():\n    pass"),
        ("c.py", "class A:\n    x = 1"),
    ]
    assert defined_twice(files, *FUNCTIONS) == {"load"}
    assert not defined_twice(files[1:], *FUNCTIONS)
