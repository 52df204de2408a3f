"""What stands in the blocks of the documentation is what it says: Python compiles, commands are commands, TOML is TOML."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from edge_sdk import cli

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
OURS = ("edge_sdk", "coordinator", "edge_sim", "firmware_profiles")
FOLDERS = ("how-to", "tutorial", "explanation", "reference")
PAGES = [
    *(page for folder in FOLDERS for page in sorted((ROOT / "docs" / folder).rglob("*.md"))),
    ROOT / "docs" / "index.md",
    *sorted((ROOT / "examples").glob("*/README.md")),
]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?<!install )\bedge-sdk (?=[a-z])")
FREE = re.compile(r"\.\.\.|[<>\[\]|]")
"""A command with one of these shows a form, or is part of a longer line of the shell."""


def blocks(language: str) -> list[tuple[str, str]]:
    """Every block of a language: page and line, and text."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            if block[2] == language:
                line = text.count("\n", 0, block.start()) + 2
                found.append(
                    (f"{page.relative_to(ROOT)}:{line}", re.sub(rf"^{block[1]}", "", block[3], flags=re.MULTILINE))
                )
    return found


def commands() -> list[tuple[str, str]]:
    """Every `edge-sdk` command of a block of the shell, and of an indented block."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for block in BLOCK.finditer(text):
            if block[2] in ("sh", "console"):
                found += [(page, line) for line in block[3].splitlines()]
        found += [(page, line) for line in re.findall(r"^    (edge-sdk .*)$", text, re.MULTILINE)]
    return [(page.relative_to(ROOT).as_posix(), line) for page, line in found if COMMAND.search(line)]


@pytest.mark.parametrize(("place", "text"), blocks("python"), ids=[place for place, _ in blocks("python")])
def test_python_compiles_and_its_imports_exist(place: str, text: str) -> None:
    for node in ast.walk(ast.parse(text, place)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            module = importlib.import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "edge_sdk":
            module = importlib.import_module("edge_sdk")
            assert hasattr(module, node.attr) or importlib.util.find_spec(f"edge_sdk.{node.attr}")


@pytest.mark.parametrize(("place", "text"), blocks("toml"), ids=[place for place, _ in blocks("toml")])
def test_toml_is_toml(place: str, text: str) -> None:
    assert tomllib.loads(text), place


@pytest.mark.parametrize(("place", "text"), blocks("json"), ids=[place for place, _ in blocks("json")])
def test_json_is_json(place: str, text: str) -> None:
    assert json.loads(text), place


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_commands_are_commands(page: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = COMMAND.split(line, maxsplit=1)[1].partition(" #")[0].strip().removesuffix("&").strip()
    if FREE.search(command):
        pytest.skip("shows a form")
    try:
        cli.parser().parse_args(shlex.split(command))
    except SystemExit:
        pytest.fail(f"{page}: {command}: {capsys.readouterr().err}")
