"""The register: who takes part, who only fetches the public set, and which life of a device a frame is from."""

from __future__ import annotations

import dataclasses

import pytest

from coordinator.serving.devices.device_registry import DeviceRegistry
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.contract.base import CAPABILITIES
from edge_sdk.methods.fedmd import FedMD
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.messages import FederationSpec, Hello, PublicSetSpec

OURS = bytes(range(32))
SPEC = FederationSpec(
    federation="lab",
    method="fedmd",
    contract=FedMD().digest,
    classes=3,
    rounds=1,
    public=PublicSetSpec(sha256=OURS, count=100),
)
FIT = Hello(
    federation="lab",
    device="a",
    classes=3,
    capabilities=CAPABILITIES,
    terms=("cross-entropy", "distill"),
    samples=9,
    public_sha256=OURS,
)


def hello(device: str, **changes: object) -> Hello:
    return dataclasses.replace(FIT, device=device, **changes)


def register(*roster: str) -> DeviceRegistry:
    return DeviceRegistry(SPEC, FedMD(), roster, serving=True)


def test_one_that_says_hello_again_is_not_new_and_its_newest_word_counts() -> None:
    found = register()
    found.enter(hello("a"), 4)
    assert found.take_in(hello("a"))
    found.enter(hello("a", samples=5), 4)
    assert not found.take_in(hello("a", samples=5))
    assert (found.numbers, found.samples, found.hellos["a"].samples) == ({"a": 4}, {"a": 5}, 5)


def test_the_roster_is_known_before_anybody_came() -> None:
    found = register("a", "b")
    assert [found.place_on_roster(device) for device in "abc"] == [0, 1, None]
    assert [found.known(device) for device in "abc"] == [True, True, False]
    turned = found.refusal(hello("c"))
    assert turned is not None
    assert turned.reason == "roster"
    assert found.refusal(hello("b")) is None


def test_a_restart_knows_them_again_and_who_fetches_takes_no_part_yet() -> None:
    fetcher = hello("b", public_sha256=None, fetches_public=True)
    frames = {each.device: codec.encode(each, Stamp(2, 7)) for each in (hello("a"), fetcher)}
    found = register()
    found.restore({device: (number, frames[device]) for number, device in enumerate(frames)})
    assert (found.numbers, list(found.hellos)) == ({"a": 0, "b": 1}, ["a"])
    with pytest.raises(RemoteProtocolError, match=r"^b .*hello since"):
        found.check_news("b", Stamp(2, 7))
    found.check_news("b", Stamp(2, 8))


def test_only_the_life_that_said_hello_last_can_end() -> None:
    found = register()
    assert not found.lives("a", 0)
    found.greeted("a", Stamp(3, 1))
    assert found.lives("a", 3)
    assert not found.lives("a", 2)
    for older in (Stamp(3, 1), Stamp(2, 9)):
        with pytest.raises(RemoteProtocolError, match=r"^a .*hello since"):
            found.check_news("a", older)
    found.check_news("a", Stamp(4, 0))


def test_one_that_can_train_is_enough() -> None:
    found = register()
    found.take_in(hello("teacher", capabilities=("predict",)))
    found.take_in(hello("pupil"))
    assert not found.anybody_learns(["teacher"])
    assert found.anybody_learns(["teacher", "pupil"])
