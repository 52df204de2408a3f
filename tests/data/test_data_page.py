"""docs/reference/data.md says what the code does: every key with its default, every choice, every example."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import fleets
import numpy as np
import pytest

from edge_sdk.data import LocalData, Samples
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.methods.contract.requests import Evaluate
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.protocol.frames.schema import Text
from edge_sdk.protocol.toml_table import to_table
from edge_sim.config import settings
from edge_sim.config.settings import AugmentTable, DataTable, PartitionTable
from edge_sim.data import partition
from edge_sim.fleet import fleet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (Path(__file__).parents[2] / "docs/reference/data.md").read_text(encoding="utf-8")


def section(title: str, level: str = "##") -> str:
    """The text under a heading, up to the next of its level."""
    found = re.search(rf"^{level} {re.escape(title)}\n(.*?)(?=^{level} |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def rows(text: str, head: str) -> list[list[str]]:
    """The cells of the table under this head row."""
    _, _, below = text.partition(f"{head}\n")
    assert below, head
    lines = below.splitlines()[1:]
    table = lines[: next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def choices(table: type, field: str) -> set[str]:
    """The words that a field's pattern allows."""
    annotation = get_type_hints(table, include_extras=True)[field]
    assert get_origin(annotation) is Annotated
    rule = get_args(annotation)[1]
    assert isinstance(rule, Text)
    return set(rule.pattern.split("|"))


def shown(default: Any) -> str:
    """A default as the page writes it."""
    if default is None:
        return ""
    return f"`{json.dumps(list(default) if isinstance(default, tuple) else default)}`"


@pytest.mark.parametrize(("title", "table"), [("`[data]`", DataTable), ("`[partition]`", PartitionTable)])
def test_every_key_stands_there_with_its_default(title: str, table: type) -> None:
    documented = [(key.strip("`"), default) for key, default, _ in rows(section(title), "| key | default | meaning |")]
    assert documented == [(field.name, shown(field.default)) for field in dataclasses.fields(table)]


def test_every_key_of_augment_stands_there() -> None:
    documented = [
        (key.strip("`"), default) for key, default, _ in rows(PAGE, "| key of `augment` | default | meaning |")
    ]
    assert documented == [(field.name, shown(field.default)) for field in dataclasses.fields(AugmentTable)]


def names(cells: list[str]) -> set[str]:
    return {name for cell in cells for name in re.findall(r"`([a-z0-9_-]+)`", cell)}


def test_every_choice_stands_there() -> None:
    sources = [row[0] for row in rows(PAGE, "| `source` | samples | needs | where from |")]
    assert names(sources) == choices(DataTable, "source")
    kinds = [row[0] for row in rows(PAGE, "| `kind` | who holds what |")]
    assert names(kinds) == choices(PartitionTable, "kind")
    (said,) = [what for key, _, what in rows(PAGE, "| key | default | meaning |") if key == "`emnist_split`"]
    assert names([said]) == choices(DataTable, "emnist_split")


EXAMPLES = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_are_read(text: str) -> None:
    tables = tomllib.loads(text)
    parsed = settings.parse({"federation": {"name": "a", "rounds": 1, "devices": 2}, **tables}, Path("f.toml"))
    for name, table in tables.items():
        for key, value in table.items():
            found = getattr(getattr(parsed, name), key)
            expected = str(Path(value).resolve()) if key in ("path", "root", "file", "export") else value
            assert plain(found) == (tuple(expected) if isinstance(expected, list) else expected)


def plain(value: Any) -> Any:
    return to_table(value) if dataclasses.is_dataclass(value) else value


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 6


def test_the_partition_file_is_as_shown(pictures: Path, tmp_path: Path) -> None:
    (text,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    plain = fleets.tables(pictures, "local", 2)
    plain["partition"] = {"kind": "iid", "export": "part.json"}
    parsed = settings.parse(plain, tmp_path / "f.toml")
    fleet.export_partition(parsed, fleet.build_fleet(parsed))
    written, example = json.loads((tmp_path / "part.json").read_text(encoding="utf-8")), json.loads(text)
    assert list(written) == list(example)
    assert {key: type(value) for key, value in written.items()} == {key: type(value) for key, value in example.items()}
    assert set(written["devices"]) == set(example["devices"])
    assert example["version"] == partition.VERSION


def test_metrics_are_named_as_the_device_names_them() -> None:
    documented = names([row[0] for row in rows(PAGE, "| metric | measured on |")])
    one = Samples(np.zeros((1, 2, 2), np.float32), np.zeros(1, np.int64))
    bench = Workbench(NumpyModel(2, (1, 2, 2), seed=0), LocalData(train=one, test=one, validation=one, local_test=one))
    metrics: list[dict[str, float]] = []

    def work() -> Iterator[None]:
        metrics.append((yield from bench.serve(Evaluate(1), None)))

    assert len(list(work())) == 3  # a pause in each part
    assert set(metrics[0]) == documented
