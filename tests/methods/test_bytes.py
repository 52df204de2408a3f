"""What a round costs on the wire: the formulas of each paper, counted on real messages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import fleets
import pytest
from payload_bytes import payload_bytes

from edge_sdk.protocol.messages import Assign, Upload
from edge_sim.config import settings

CLASSES = 10
B = 32
ROUNDS = 3


@pytest.fixture(scope="module")
def ten_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fleets.write_pictures(tmp_path_factory.mktemp("ten") / "ten.npz", classes=CLASSES)


def counted(pictures: Path, method: str, params: dict[str, Any]) -> Counter[tuple[str, str]]:
    """Tensor bytes by (direction, device)."""
    tables = fleets.tables(pictures, method, devices=3, rounds=ROUNDS)
    tables["method"] |= params
    tables["partition"] = {"kind": "iid"}
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    sent = run.tap()
    run.finished()
    found: Counter[tuple[str, str]] = Counter()
    for message in sent:
        if isinstance(message, Upload):
            size, way = sum(map(payload_bytes, message.knowledge.values())), "up"
        elif isinstance(message, Assign):
            size, way = sum(map(payload_bytes, message.down.values())), "down"
        else:
            continue
        found[way, message.device] += size
    return found


DEVICES = ("device-00", "device-01", "device-02")


def test_fedmd_sends_its_logits_once_each_way(ten_classes: Path) -> None:
    found = counted(ten_classes, "fedmd", {"public_batch": B})
    each = ROUNDS * B * CLASSES * 4
    assert each == ROUNDS * 1280
    assert found == {(way, device): each for way in ("up", "down") for device in DEVICES}


@pytest.mark.parametrize("tau", [1, 5])
def test_fedal_sends_logits_up_and_twice_as_much_down(ten_classes: Path, tau: int) -> None:
    pytest.importorskip("torch")
    found = counted(ten_classes, "fedal", {"public_batch": B, "tau": tau, "max_devices": 3})
    each = ROUNDS * tau * B * CLASSES * 4
    assert each == ROUNDS * 1280 * tau
    assert found == {
        **{("up", device): each for device in DEVICES},
        **{("down", device): 2 * each for device in DEVICES},
    }


def test_local_sends_nothing(ten_classes: Path) -> None:
    found = counted(ten_classes, "local", {})
    assert set(found.values()) == {0}
