"""docs/reference/encodings.md against the code."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from coordinator.config import load_toml, read_section
from edge_sdk.protocol.encodings import ENCODINGS
from edge_sdk.protocol.frames.schema import tag_of
from edge_sdk.protocol.knowledge import kinds
from edge_sdk.protocol.messages import EncodingSpec
from edge_sdk.protocol.transforms import encodings_for

PAGE = (Path(__file__).parents[2] / "docs/reference/encodings.md").read_text()


def test_the_keys_and_what_they_may_be():
    rows = re.findall(r"^\| `(\w+)` \| .* \| ((?:`[a-z0-9-]+`(?:, )?)+) \|$", PAGE, re.MULTILINE)
    allowed = {tag_of(kind).replace("-", "_"): encodings_for(kind) for kind in kinds().values() if kind.coded}
    assert {key: tuple(re.findall(r"`(.*?)`", names)) for key, names in rows} == allowed
    fields = [field.name for field in dataclasses.fields(EncodingSpec) if field.name != "others"]
    assert [key for key, _ in rows][: len(fields)] == fields


def test_the_encodings():
    assert re.findall(r"^\| `([a-z0-9-]+)` \| \d", PAGE, re.MULTILINE) == list(ENCODINGS)


def test_the_example(tmp_path):
    file = tmp_path / "federation.toml"
    file.write_text(re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1])
    assert read_section(EncodingSpec, load_toml(file)["encoding"], "encoding", file) == EncodingSpec(
        logits="int8-row", class_rows="f16"
    )
