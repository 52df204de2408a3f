"""A device that meets other federations and other runs, with other public sets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import fleets
import numpy as np
import pytest

from edge_sdk.protocol.messages import PublicRequest
from edge_sdk.public_set.samples import PublicSet
from edge_sim.fleet.fleet import Fleet


@pytest.fixture
def fleet(pictures: Path) -> Fleet:
    return fleets.built(pictures, devices=3)


def with_another_set(fleet: Fleet) -> Fleet:
    """The same federation, anew, with other public samples."""
    public = PublicSet(fleet.dataset.public.samples[::-1].copy())
    dataset = dataclasses.replace(fleet.dataset, public=public)
    spec = dataclasses.replace(fleet.federation.spec, public=public.spec)
    return dataclasses.replace(
        fleet,
        dataset=dataset,
        devices=tuple(dataclasses.replace(each, public=public) for each in fleet.devices),
        federation=dataclasses.replace(fleet.federation, spec=spec),
    )


def stores(run: fleets.Run) -> dict:
    kept = {each.device.kit.id: each.participant.context.store for each in run.devices}
    for store in kept.values():
        store.boot_epoch += 1
    return kept


def test_another_run_with_another_set_is_fetched_too(fleet: Fleet, tmp_path: Path) -> None:
    """What the owner gave is refused where it is another; what was fetched gives way to what is wanted now."""
    first = fleets.Run(fleet, caches=tmp_path).finished()
    other = with_another_set(fleet)
    second = fleets.Run(other, caches=tmp_path, stores=stores(first))
    sent = second.tap()
    second.finished()
    assert second.result.completed, second.result.reason
    assert {m.sha256 for m in sent if isinstance(m, PublicRequest)} == {other.dataset.public.spec.sha256}
    for each in second.devices:
        np.testing.assert_array_equal(each.participant.context.bench.public.samples, other.dataset.public.samples)
        names = {path.stem for path in (tmp_path / each.device.kit.id).iterdir()}
        assert names == {one.dataset.public.spec.sha256.hex() for one in (fleet, other)}
    third = fleets.Run(fleet, caches=tmp_path, stores=stores(second))  # and back: both are on the disk
    sent = third.tap()
    third.finished()
    assert third.result.completed
    assert not [m for m in sent if isinstance(m, PublicRequest)]


def test_the_coordinator_is_replaced_while_devices_fetch(fleet: Fleet, tmp_path: Path) -> None:
    """A run that was begun and given up: its devices find the next one, with another set, in the midst of fetching."""
    first = fleets.Run(fleet, caches=tmp_path)
    first.server.connect()
    for each in first.devices:
        each.participant.connect()
    while not any(each.participant.context.session.phase.value == "fetching" for each in first.devices):
        assert first.clock.step()
    first.server.close()
    second = fleets.Run(with_another_set(fleet), caches=tmp_path, stores=stores(first)).finished()
    assert second.result.completed, second.result.reason


def test_a_method_that_needs_no_set_fetches_none(pictures: Path, tmp_path: Path) -> None:
    run = fleets.Run(fleets.built(pictures, "local", 3), caches=tmp_path)
    sent = run.tap()
    run.finished()
    assert run.result.completed
    assert not [m for m in sent if isinstance(m, PublicRequest)]
    assert list(tmp_path.iterdir()) == []
