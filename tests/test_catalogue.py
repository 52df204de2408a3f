"""edge-sdk methods: what a device in another language must know of a method stands in its JSON."""

from __future__ import annotations

import json

import pytest

from coordinator.catalogue import describe, render
from edge_sdk import cli
from edge_sdk.protocol.wires import load_registered, registered_names

ROWS = {row["name"]: row for row in describe()}


def test_every_registered_method_has_a_row():
    assert set(ROWS) == set(registered_names("coordinator.methods"))


@pytest.mark.parametrize("name", registered_names("coordinator.methods"))
def test_a_row_says_what_the_contract_says(name):
    contract = load_registered("coordinator.methods", name).contract
    params = contract.params()
    row = ROWS[name]
    assert row["contract"] == contract.digest(params).hex()
    assert len(row["exchanges"]) == row["exchanges_per_round"] == len(contract.exchanges(params))
    for said, meant in zip(
        [*row["exchanges"], row["closing"]], [*contract.exchanges(params), contract.closing(params)], strict=True
    ):
        assert set(said["up"]) == set(meant.up)
        assert set(said["down"]) == set(meant.down)


def test_the_roles_of_fedmd():
    slot = {"kind": "logits", "personal": False, "optional": False, "rows": 32}
    down = {"mean": slot | {"optional": True}, "others": slot | {"optional": True, "personal": True}}
    assert ROWS["fedmd"]["exchanges"] == [{"down": down, "up": {"logits": slot}}]
    assert ROWS["fedmd"]["closing"] == {"down": down, "up": {}}


def test_the_command_prints_both_forms(capsys):
    assert cli.main(["methods", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(describe()))
    assert cli.main(["methods"]) == 0
    assert capsys.readouterr().out == render(describe()) + "\n"
