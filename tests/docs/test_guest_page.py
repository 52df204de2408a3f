"""docs/how-to/be-a-good-guest.md: every setting and every reason is on it, and its file is a policy."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from edge_sdk import Policy
from edge_sdk.policy.policy import CONDITIONS, load_policy

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "be-a-good-guest.md").read_text(encoding="utf-8")


def test_every_setting_has_its_row() -> None:
    first_cells = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    assert {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} == {
        field.name for field in dataclasses.fields(Policy)
    }
    assert CONDITIONS.keys() <= {field.name for field in dataclasses.fields(Policy)}


def test_the_file_of_the_page_is_a_policy(tmp_path) -> None:
    found = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert found
    file = tmp_path / "policy.toml"
    file.write_text(found[1])
    assert load_policy(file).round_time_s == 120
