"""edge-sdk methods: what a device in another language must know of a method stands in its JSON."""

from __future__ import annotations

import pytest

from edge_sdk.methods.contract.registry import load_method, method_names
from edge_sim.projects.methods_command import describe_methods

ROWS = {row["name"]: row for row in describe_methods()}


def test_every_registered_method_has_a_row():
    assert set(ROWS) == set(method_names())


@pytest.mark.parametrize("name", method_names())
def test_a_row_says_what_the_method_says(name):
    method, row = load_method(name)(), ROWS[name]
    assert row["contract"] == method.digest.hex()
    assert len(row["exchanges"]) == row["exchanges_per_round"] == len(method.exchanges)
    for said, meant in zip([*row["exchanges"], row["closing"]], method.every_exchange, strict=True):
        assert set(said["up"]) == set(meant.up)
        assert set(said["down"]) == set(meant.down)


def test_the_roles_of_fedmd():
    slot = {"kind": "logits", "personal": False, "optional": False, "rows": 32}
    down = {"mean": slot | {"optional": True}, "others": slot | {"optional": True, "personal": True}}
    assert ROWS["fedmd"]["exchanges"] == [{"down": down, "up": {"logits": slot}}]
    assert ROWS["fedmd"]["closing"] == {"down": down, "up": {}}


def test_bytes_are_those_of_the_table_of_methods():
    """methods.md G.2, with K = 10, d = 500 and P = 2,621,558; class ids and counts beside rows, where it has counts."""
    up = {name: row["bytes_per_round"]["up"]["example"] for name, row in ROWS.items()}
    down = {name: row["bytes_per_round"]["down"]["example"] for name, row in ROWS.items()}
    assert up["fedavg"] == down["fedavg"] == 10_486_232
    assert up["qffl"] == 10_486_236
    assert down["fedgkd"] == 20_972_464
    assert (up["fedal"], down["fedal"]) == (6_400, 12_800)
    assert up["fedmd"] == 1_280
    assert up["fd"] == 400 + 80
    assert up["fedproto"] == 20_000 + 80
    assert up["fedper"] == 10_486_232 - 4 * 10 * 501
    assert ROWS["fedhkd"]["bytes_per_round"]["up"]["formula"] == "4 (P + K d + K K + 2 K)"
    assert ROWS["local"]["bytes_per_round"]["up"] == {"formula": "0", "example": 0}


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("local", "17"),
        ("fedavg", "13 17"),
        ("qffl", "13 15 17"),
        ("fedproto", "3 12 16 17 18"),
        ("fedssa", "3 11 12 16 17 18"),
        ("fedal", "4 5 5 6 17"),
        ("fedhkd", "1 2 3 12 13 16 17 18"),
        ("lg_fedavg", "12 17"),
        ("fedkf", "7 8 13 17"),
    ],
)
def test_warnings_are_listed(name, numbers):
    assert [warning.split(":")[0] for warning in ROWS[name]["warnings"]] == [f"W{n}" for n in numbers.split()]
