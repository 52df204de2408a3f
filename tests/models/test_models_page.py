"""docs/reference/models.md says what the code does: every family with its sizes, every rule, every example."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.boards.profiles import load_board
from edge_sdk.data import Preprocess
from edge_sdk.models.base import ModelSpec
from edge_sim.config import device_conditions, settings
from edge_sim.models import families

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (Path(__file__).parents[2] / "docs/reference/models.md").read_text(encoding="utf-8")
SEQUENCES = "| family for series and texts |"
SHAPES = [(8, 8), (28, 28), (32, 32, 3)]
PACKAGES = {"numpy": ["numpy"], "torch": ["torch"], "onnx": ["onnx", "onnxruntime"]}


def family_rows(heading: str = "| family | what it is | 8 x 8") -> dict[str, list[str]]:
    table = PAGE.partition(heading)[2].partition("\n\n")[0]
    found = re.findall(r"^\| `([a-z0-9-]+)` \| (.+) \|$", table, re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in found}


def test_every_family_stands_there_with_its_description() -> None:
    of_pictures, others = family_rows(), family_rows(SEQUENCES)
    for rows, pictures in ((of_pictures, True), (others, False)):
        assert [(name, cells[0]) for name, cells in rows.items()] == [
            (name, each.description)
            for name, each in families.FAMILIES.items()
            if ("picture" in each.takes) == pictures
        ]


@pytest.mark.torch
@pytest.mark.parametrize("name", [n for n, f in families.FAMILIES.items() if "picture" not in f.takes])
def test_sizes_of_nets_for_series_and_texts(name: str) -> None:
    family = families.FAMILIES[name]
    if family.runtime == "torch":
        pytest.importorskip("torch")
    tokens = family.takes == ("tokens",)
    own = Preprocess(kind=family.takes[0], vocabulary=5000 if tokens else None)
    made = families.build_model(name, classes=10, raw_shape=(64,) if tokens else (128, 9), preprocess=own, seed=0).spec
    flops = f"{made.flops_per_sample / 1e6:,.1f}"
    assert family_rows(SEQUENCES)[name][1:] == [f"{made.parameters:,}", str(made.feature_dim), flops]
    assert family.parameters == made.parameters


def spec(name: str, raw_shape: tuple[int, ...]) -> ModelSpec:
    public = np.random.default_rng(0).integers(0, 255, (30, *raw_shape), np.uint8)
    preprocess = Preprocess(scale=1 / 255)
    return families.build_model(
        name, classes=10, raw_shape=raw_shape, preprocess=preprocess, seed=0, public=public
    ).spec


@pytest.mark.parametrize(
    "name", [n for n, f in families.FAMILIES.items() if "picture" in f.takes and n != "onnx-teacher"]
)
def test_sizes_are_those_of_the_models(name: str) -> None:
    family = families.FAMILIES[name]
    for package in PACKAGES[family.runtime] + (["torchvision"] if family.extra == "vision" else []):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    specs = [spec(name, shape) for shape in SHAPES]
    colour = specs[-1]
    assert family_rows()[name][1:] == [
        *(f"{each.parameters:,}" for each in specs),
        str(colour.feature_dim),
        f"{colour.flops_per_sample / 1e6:,.1f}",
    ]
    assert family.parameters == colour.parameters


def test_which_need_another_extra_is_said() -> None:
    (said,) = re.findall(r"others `torch`; (.*?) also the extra `vision`", PAGE, re.DOTALL)
    assert set(re.findall(r"`([a-z0-9-]+)`", said)) == {n for n, f in families.FAMILIES.items() if f.extra == "vision"}


def test_every_rule_stands_there() -> None:
    named = re.findall(r'^\| `"([a-z]+):(?:LIST|NAME)"` \|', PAGE, re.MULTILINE)
    assert sorted(named) == sorted(device_conditions.RULES)
    groups = dict(re.findall(r"^\| `group:([a-z0-9-]+)` \| `(.+)` \|$", PAGE, re.MULTILINE))
    assert groups == families.GROUPS
    assert f"the same with `{device_conditions.FOR_BOARDS}`" in PAGE
    assert f"below {device_conditions.FAST_FLOPS_PER_S:.0e} ".replace("e+0", "e") in PAGE


def test_examples_are_read() -> None:
    examples = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    for text in examples:
        tables = {"federation": {"name": "a", "rounds": 1, "devices": 4}, **tomllib.loads(text)}
        parsed = settings.parse(tables, Path("f.toml"))
        for number, row in enumerate(parsed.rows):
            assert device_conditions.model_of(row.model, load_board(row.board), number, 0) in families.FAMILIES
