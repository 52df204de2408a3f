"""What is installed is locked and listed, and nothing here runs what came over a wire or lies in a file."""

from __future__ import annotations

import ast
import json
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from imports import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

LOCK = runpy.run_path(str(ROOT / "scripts" / "lock.py"), run_name="lock")
LOCKED: dict[str, Any] = json.loads(LOCK["LOCK"].read_text(encoding="utf-8"))
PLACES = [f"{python}-{machine}" for python in LOCK["PYTHONS"] for machine in LOCK["MACHINES"]]

# -- the lock -------------------------------------------------------------------------------------------------------


def test_the_lists_and_the_sbom_are_those_of_the_lock() -> None:
    for path, text in LOCK["contents"](LOCKED).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run scripts/lock --offline"


@pytest.mark.parametrize("extra", LOCK["EXTRAS"])
@pytest.mark.parametrize("place", PLACES)
def test_the_lock_has_what_the_project_asks_for(extra: str, place: str) -> None:
    python, machine = place.split("-")
    versions = dict(key.split("==") for key in LOCKED["lists"][extra][place])
    for requirement in LOCK["wanted"](extra):
        if LOCK["applies"](requirement, python, machine):
            version = versions.get(canonicalize_name(requirement.name))
            assert version is not None, f"{requirement.name}: run scripts/lock"
            assert version in requirement.specifier, f"{requirement}: run scripts/lock"


@pytest.mark.parametrize("place", PLACES)
def test_every_locked_package_has_a_file_for_this_machine(place: str) -> None:
    python, machine = place.split("-")
    for key in {key for extra in LOCKED["lists"].values() for key in extra[place]}:
        files = LOCKED["packages"][key]["files"]
        assert all(len(bytes.fromhex(each)) == 32 for each in files.values())
        assert any(_fits(file, python, machine) for file in files), key


def _fits(file: str, python: str, machine: str) -> bool:
    tags = parse_wheel_filename(file)[3]
    own = f"cp{python.replace('.', '')}"
    return any(
        (tag.platform == "any" or tag.platform.endswith(machine))
        and (tag.interpreter in ("py3", own) or tag.abi == "abi3")
        for tag in tags
    )


def test_the_base_install_has_at_most_six_packages() -> None:
    assert all(len(LOCKED["lists"]["base"][place]) <= 6 for place in PLACES)


def test_the_sbom_names_every_package_with_its_hashes() -> None:
    told = json.loads(LOCK["SBOM"].read_text(encoding="utf-8"))
    assert (told["bomFormat"], told["specVersion"]) == ("CycloneDX", "1.5")
    refs = [component["bom-ref"] for component in told["components"]]
    assert len(refs) == len(set(refs)) == len(LOCKED["packages"])
    for component in told["components"]:
        assert component["purl"] == f"pkg:pypi/{component['name']}@{component['version']}"
        assert component["hashes"]
    ours = told["metadata"]["component"]["bom-ref"]
    assert {node["ref"] for node in told["dependencies"]} == {ours, *refs}
    assert {ref for node in told["dependencies"] for ref in node["dependsOn"]} <= set(refs)
    direct = next(node["dependsOn"] for node in told["dependencies"] if node["ref"] == ours)
    assert {"numpy", "msgpack", "paho-mqtt"} <= {ref.removeprefix("pkg:pypi/").partition("@")[0] for ref in direct}


def test_a_version_that_two_machines_do_not_share_says_where_it_is() -> None:
    places = {"3.11-aarch64": ["a==1", "b==2"], "3.11-x86_64": ["a==2", "b==2"]}
    packages = {key: {"files": {f"{key}.whl": "00"}} for key in ("a==1", "a==2", "b==2")}
    lines = LOCK["requirements"]({"lists": {"base": places}, "packages": packages}, "base").splitlines()
    asked = [Requirement(line.removesuffix(" \\")) for line in lines if "==" in line and not line.startswith("#")]
    assert [(str(each.specifier), each.name) for each in asked] == [("==1", "a"), ("==2", "a"), ("==2", "b")]
    assert asked[0].marker is not None
    assert asked[0].marker.evaluate({"python_version": "3.11", "platform_machine": "aarch64"})
    assert not asked[0].marker.evaluate({"python_version": "3.11", "platform_machine": "x86_64"})
    assert asked[2].marker is None


# -- nothing that arrives is run ------------------------------------------------------------------------------------

BETWEEN_OWN_PROCESSES = ("edge_sim/shards/ray_", "edge_sim/models/given_functions.py")
"""The processes of one simulation hand pickles to each other, as Ray does itself; no frame and no file is one."""
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__"}


def ours() -> list[Path]:
    """Every Python file of the repository but the tests."""
    told = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    names = told.split() or [str(path.relative_to(ROOT)) for path in ROOT.glob("*/**/*.py")]
    return [ROOT / name for name in names if not name.startswith(("tests/", ".")) and (ROOT / name).exists()]


def faults(tree: ast.AST) -> Iterator[str]:
    """What a source does that would run bytes or text as code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"imports {alias.name}" for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield f"imports {node.module}"
        elif isinstance(node, ast.Call):
            yield from _faults_of_call(node)


def _faults_of_call(node: ast.Call) -> Iterator[str]:
    name, told = ast.unparse(node.func), {each.arg: ast.unparse(each.value) for each in node.keywords}
    if name in CALLS:
        yield f"calls {name}"
    if name in ("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"):
        yield f"calls {name}"
    if name.endswith("torch.load") and told.get("weights_only") != "True":
        yield f"calls {name} without weights_only=True"
    if told.get("allow_pickle", "False") != "False":
        yield f"calls {name} with allow_pickle"


def test_nothing_here_runs_what_it_reads() -> None:
    files = ours()
    assert len(files) > 300
    found = {
        str(path.relative_to(ROOT)): [*faults(ast.parse(path.read_text(encoding="utf-8")))]
        for path in files
        if not str(path.relative_to(ROOT)).startswith(BETWEEN_OWN_PROCESSES)
    }
    assert {path: told for path, told in found.items() if told} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import dill.session",
        "eval(x)",
        "exec(x)",
        "yaml.load(x)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_what_would_run_it_is_found(source: str) -> None:
    assert [*faults(ast.parse(source))]


def test_what_does_not_run_it_is_let_be() -> None:
    source = "torch.load(p, weights_only=True)\nmodel.eval()\nnp.load(p, allow_pickle=False)\nyaml.safe_load(x)\nre.compile(x)"
    assert [*faults(ast.parse(source))] == []
