"""Runs in which every frame is signed: they end as unsigned ones do, and what was recorded, forged or altered is nothing."""

from __future__ import annotations

from pathlib import Path

import fleets
import labs
import pytest

from edge_sdk.transport.memory.hub import Faults


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    """A folder with a lab, and the identities of all devices of the fleet beside it."""
    folder = tmp_path_factory.mktemp("secured")
    labs.enrolled(labs.made(folder), *fleets.built(pictures).federation.roster)
    return folder


@pytest.fixture(scope="module")
def clean(pictures: Path) -> fleets.Run:
    return fleets.Run(fleets.built(pictures)).finished()


def models(run: fleets.Run) -> dict[str, bytes]:
    return {each.device.kit.id: each.agent.bench.model.state_bytes() for each in run.devices}


def test_signing_changes_no_bit_of_what_is_learnt(pictures: Path, clean: fleets.Run, secured: Path) -> None:
    run = fleets.Run(fleets.built(pictures), secured=secured).finished()
    assert run.result.completed
    assert models(run) == models(clean)
    assert run.result.refused_frames == {}


def test_faults_and_power_cuts_leave_the_same_bits(pictures: Path, clean: fleets.Run, secured: Path) -> None:
    faults = Faults(drop=0.05, duplicate=0.2, delay=0.2)
    run = fleets.Run(fleets.built(pictures), secured=secured, faults=faults, seed=3)
    run.power_cut("coordinator", 3.0, 2.0)
    run.power_cut(run.fleet.federation.roster[0], 5.0, 2.0)
    run.finished()
    assert models(run) == models(clean)
