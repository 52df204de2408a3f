"""What is published: a wheel and a source archive that hold all files, and that run with the base dependencies alone."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from imports import PACKAGES, ROOT
from packaging.metadata import Metadata
from packaging.requirements import Requirement

from edge_sdk import toml
from edge_sdk.version import __version__

BASE = ("numpy", "msgpack", "paho-mqtt")
BESIDE = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "constraints.txt")
GENERATED = shutil.ignore_patterns("__pycache__", "*.pyc")


@dataclass(frozen=True)
class Built:
    """The two archives."""

    wheel: Path
    source: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    pytest.importorskip("build")
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tree / name, ignore=GENERATED)
    for name in BESIDE:
        shutil.copy(ROOT / name, tree)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")  # the wheel is made from the source archive
    return Built(wheel, source)


def files_of_the_tree() -> set[str]:
    found = (path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts}


@pytest.mark.long
def test_the_archives_hold_every_file_of_the_packages_and_no_other_package(built: Built) -> None:
    inside = zipfile.ZipFile(built.wheel).namelist()
    info = f"edge_sdk-{__version__}.dist-info/"
    assert {name for name in inside if not name.startswith(info)} == files_of_the_tree()
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(inside)
    assert f"{info}licenses/LICENSE" in inside
    with tarfile.open(built.source) as archive:
        told = {name.partition("/")[2] for name in archive.getnames()}
    assert files_of_the_tree() | {*BESIDE} <= told


@pytest.mark.long
def test_its_metadata_are_valid_and_ask_for_the_base_alone(built: Built) -> None:
    (name,) = (each for each in zipfile.ZipFile(built.wheel).namelist() if each.endswith(".dist-info/METADATA"))
    metadata = Metadata.from_email(zipfile.ZipFile(built.wheel).read(name), validate=True)
    assert str(metadata.version) == __version__
    assert metadata.license_expression == "Apache-2.0"
    assert "Typing :: Typed" in (metadata.classifiers or [])
    assert metadata.description_content_type == "text/markdown"
    wanted = {each.name for each in metadata.requires_dist or [] if "extra" not in str(each.marker or "")}
    assert wanted == {*BASE, "tomli"}


def test_version_changelog_and_citation_agree() -> None:
    changes = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert changes[0] in (__version__, "Unreleased")
    assert __version__ in changes
    assert f"version: {__version__}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_wheel_works_in_a_fresh_environment_with_the_base_dependencies(built: Built, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    zipfile.ZipFile(built.wheel).extractall(packages)
    for name in with_their_own(BASE):
        for part in {file.parts[0] for file in importlib.metadata.files(name) or ()} - {".."}:
            if not (packages / part).exists():
                (packages / part).symlink_to(importlib.metadata.distribution(name).locate_file(part))
    python = tmp_path / "env/bin/python"

    def run(*arguments: str, folder: Path = tmp_path) -> str:
        done = subprocess.run(
            [str(python), *arguments], cwd=folder, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "torch" not in run("-c", "import sys, edge_sdk, coordinator, edge_sim; print(*sys.modules)")
    assert "device-05 was refused" in run("-m", "edge_sdk.cli", "demo")
    assert "fedmd" in run("-m", "edge_sdk.cli", "methods")
    run("-m", "edge_sdk.cli", "new", "app", "--classes", "4", "--devices", "3")
    run("-m", "unittest", folder=tmp_path / "app")


def with_their_own(names: Sequence[str]) -> set[str]:
    """These distributions, and those that they need here."""
    found: set[str] = set()
    for name in names:
        own = [Requirement(text) for text in importlib.metadata.requires(name) or ()]
        needed = [each.name for each in own if not each.marker or each.marker.evaluate({"extra": ""})]
        found |= {name, *with_their_own(needed)}
    if sys.version_info < (3, 11):
        found.add("tomli")
    return found


def test_pictures_of_the_readme_are_absolute_once_the_project_has_an_address() -> None:
    """An index such as PyPI shows no relative ones; without an address there is nothing to make them absolute with."""
    project = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"), "pyproject.toml")["project"]
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert pictures
    if project.get("urls"):
        assert [each for each in pictures if not each.startswith("https://")] == []
    else:
        assert [each for each in pictures if not (ROOT / each).is_file()] == []


def test_an_editable_install_is_a_path_that_type_checkers_follow() -> None:
    """Otherwise setuptools finds packages by code, and mypy has no module "edge_sdk" in another folder."""
    settings = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"), "pyproject.toml")["tool"]["setuptools"]
    assert settings["package-dir"] == {"": "."}


LAZY = ("edge_sdk", "edge_sdk.methods", "edge_sdk.models", "edge_sdk.reductions", "edge_sdk.samples", "edge_sim")
"""The packages whose names are loaded when they are first used."""


def test_a_type_checker_finds_names_that_packages_do_not_have(tmp_path: Path) -> None:
    """Of other modules it sees nothing here, which takes a tenth of the time."""
    pytest.importorskip("mypy")
    packages = (*LAZY, "coordinator")
    wrong = [f"{package}.Agnet" for package in packages]
    right = ["edge_sdk.Agent", "edge_sdk.StoreError", "edge_sdk.UsageError", "edge_sdk.Damaged", "edge_sim.run"]
    user = tmp_path / "user.py"
    user.write_text("\n".join([*(f"import {package}" for package in packages), *wrong, *right]), encoding="utf-8")
    files = [str(ROOT / package.replace(".", "/") / "__init__.py") for package in packages]
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=skip", "--config-file="]
    command += ["--cache-dir", str(tmp_path / "cache"), str(user), *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith(str(user))]
    assert len(found) == len(wrong), done.stdout
    assert all('has no attribute "Agnet"' in line for line in found)
