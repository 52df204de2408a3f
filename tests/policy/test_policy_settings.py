"""A policy's settings: what they allow, and what a user hears of a mistake."""

from __future__ import annotations

import re

import pytest

from edge_sdk import Policy
from edge_sdk.errors import UsageError
from edge_sdk.policy.policy import load_policy


def test_a_file_gives_the_policy_that_code_gives(tmp_path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(
        'charging = true\nidle_below = 0.5\nhours = "22:00-06:00"\nmax_temperature_c = 70\nnice = 10\n'
        "min_memory_mib = 200\nunmetered = true\nthreads = 2\nround_time_s = 60\nround_energy_j = 500.5\n"
    )
    assert load_policy(file) == Policy(
        charging=True,
        idle_below=0.5,
        hours="22:00-06:00",
        max_temperature_c=70,
        nice=10,
        min_memory_mib=200,
        unmetered=True,
        threads=2,
        round_time_s=60,
        round_energy_j=500.5,
    )


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"max_temperature_c": 200}, "max_temperature_c"),
        ({"idle_below": 0}, "idle_below"),
        ({"nice": -5}, "nice"),
        ({"threads": 0}, "threads"),
        ({"round_time_s": -1.0}, "round_time_s"),
        ({"charging": "yes"}, "charging"),
        ({"hours": "22-6"}, "hours"),
        ({"hours": "25:00-06:00"}, "hours"),
        ({"hours": "24:00-06:00"}, "hours"),
        ({"hours": "22:00-24:01"}, "hours"),
        ({"hours": "06:00-06:00"}, "hours"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_key(tmp_path, wrong, key) -> None:
    with pytest.raises(UsageError, match=key):
        Policy(**wrong)
    file = tmp_path / "policy.toml"
    ((name, value),) = wrong.items()
    file.write_text(f"{name} = {value!r}\n")
    with pytest.raises(UsageError) as told:
        load_policy(file)
    assert str(told.value).startswith(f"{file}: {key}")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("temprature_c = 3", "temprature_c"),
        ("nice = ", "TOML"),
        ("[train]\nx = 1", "train"),
        ("[policy]\nnice = 1", "policy: unknown"),
    ],
)
def test_a_file_that_does_not_read_is_refused_in_one_line(tmp_path, text, word) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(word)) as told:
        load_policy(file)
    assert "\n" not in str(told.value)


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(UsageError, match="absent"):
        load_policy(tmp_path / "absent.toml")
