"""How devices begin: with equal weights in a simulation, with their own where the file or a deployment says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from coordinator import config as coordinators
from edge_sdk.errors import UsageError
from edge_sim.config import settings
from edge_sim.fleet import fleet


def built(pictures: Path, method: str = "fedavg", params: dict[str, Any] | None = None, **federation: Any) -> Any:
    plain = fleets.tables(pictures, method, devices=4, **federation)
    plain["fleet"] = [{"count": 3, "model": "softmax"}, {"count": 1, "model": "softmax", "size": [2, 2]}]
    plain["method"] = params or {}
    return fleet.build_fleet(settings.parse(plain, Path("f.toml")))


def weights(found: Any) -> list[np.ndarray]:
    return [device.kit.model(device.public).weights() for device in found.devices]


def test_devices_of_one_architecture_begin_alike_unless_told_otherwise(pictures: Path) -> None:
    one, two, three, other = weights(built(pictures, "local"))
    assert (one == two).all()
    assert (one == three).all()
    assert other.shape != one.shape
    own = weights(built(pictures, "local", start="own"))
    assert (own[0] != own[1]).any()
    np.testing.assert_array_equal(own[0], one)


@pytest.mark.parametrize(
    ("federation", "params", "expected"),
    [
        ({}, {}, "equal"),
        ({"start": "own"}, {}, "first"),
        ({}, {"start": "first"}, "first"),
        ({"start": "equal"}, {"fedavg": {"start": "equal"}}, "equal"),
    ],
)
def test_the_start_of_methods_follows(
    pictures: Path, federation: dict[str, Any], params: dict[str, Any], expected: str
) -> None:
    assert built(pictures, "fedavg", params, **federation).federation.spec.params["start"] == expected


def test_methods_without_the_parameter_are_left_alone(pictures: Path) -> None:
    assert "start" not in built(pictures, "fedmd", {"public_batch": 8}).federation.spec.params


def test_what_contradicts_is_refused(pictures: Path) -> None:
    with pytest.raises(UsageError, match=r"^f.toml: method\.start: .*federation\.start"):
        built(pictures, "fedavg", {"start": "equal"}, start="own")
    with pytest.raises(UsageError, match=r"^f.toml: federation\.start: expected equal or own"):
        built(pictures, start="first")


@pytest.mark.parametrize(("start", "expected"), [(None, "first"), ("equal", "equal"), ("own", "first")])
def test_a_deployment_begins_with_the_owners_weights(start: str | None, expected: str) -> None:
    table = {"name": "a", "method": "fedavg", "rounds": 1, "devices": 2, "classes": 2}
    tables = {"federation": {**table, **({"start": start} if start else {})}}
    ready = coordinators.federation(coordinators.read_settings(tables, Path("f.toml")))
    assert ready.spec.params["start"] == expected


def test_the_resolved_settings_name_it(pictures: Path) -> None:
    config = settings.parse(fleets.tables(pictures, "local"), Path("f.toml"))
    assert config.tables["federation"]["start"] == "equal"
    assert settings.parse(config.tables, Path("f.toml")) == config
