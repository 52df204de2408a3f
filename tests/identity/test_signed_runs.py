"""Runs in which every frame is signed: they end as unsigned ones do, and what was recorded, forged or altered is nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import fleets
import labs
import pytest
from notes import Notes

from coordinator.ledger import Ledger
from edge_sdk.identity import key_files
from edge_sdk.identity.folder import COORDINATOR_FOLDER, STARTS, open_identity
from edge_sdk.identity.signatures import FrameSigner, Role
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import Refusal


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    """A folder with a lab, and the identities of all devices of the fleet beside it."""
    folder = tmp_path_factory.mktemp("secured")
    labs.enrolled(labs.made(folder), *fleets.built(pictures).federation.roster)
    return folder


@pytest.fixture(scope="module")
def clean(pictures: Path) -> fleets.Run:
    return fleets.Run(fleets.built(pictures)).finished()


def test_signing_changes_no_bit_of_what_is_learnt(pictures: Path, clean: fleets.Run, secured: Path) -> None:
    run = fleets.Run(fleets.built(pictures), secured=secured).finished()
    assert run.result.completed
    assert labs.models(run) == labs.models(clean)
    assert run.result.refused_frames == {}


def test_faults_and_power_cuts_leave_the_same_bits(pictures: Path, clean: fleets.Run, secured: Path) -> None:
    assert labs.models(labs.run_with_faults(pictures, secured)) == labs.models(clean)


def test_a_coordinator_whose_lab_came_back_from_a_backup_says_why_nobody_answers(
    tmp_path: Path, pictures: Path
) -> None:
    fleet = fleets.built(pictures, devices=2, rounds=1, deadline_s=5.0)
    labs.enrolled(labs.made(tmp_path), *fleet.federation.roster)
    counter = tmp_path / "lab" / COORDINATOR_FOLDER / STARTS
    backup = counter.read_bytes() if counter.exists() else b"0"
    notes = {word: Notes() for word in ("before", "after")}
    assert fleets.Run(
        fleet, secured=tmp_path, ledger=twice_opened(tmp_path / "1.db"), observer=notes["before"]
    ).finished()
    key_files.raise_counter(counter, 9)
    assert fleets.Run(fleet, secured=tmp_path).finished().result.completed
    counter.write_bytes(backup)
    run = fleets.Run(fleet, secured=tmp_path, ledger=twice_opened(tmp_path / "2.db"), observer=notes["after"])
    run.clock.at(20.0, enough)
    with pytest.raises(InterruptedError):  # the devices would wait for another start
        run.run()
    assert [sum("edge-sdk lab restored" in line for line in each.lines) for each in notes.values()] == [0, 1]


def enough() -> None:
    raise InterruptedError


def twice_opened(path: Path) -> Ledger:
    """The ledger of a run that is resumed."""
    Ledger(path).close()
    return Ledger(path)


def test_a_device_whose_key_the_lab_does_not_know_hears_why_nobody_answers(tmp_path: Path, pictures: Path) -> None:
    """As where it has enrolled again since, or the lab's registry came back from a backup."""
    fleet = fleets.built(pictures, devices=2, rounds=1, quorum=1)
    first, _ = fleet.federation.roster
    labs.enrolled(lab := labs.made(tmp_path), *fleet.federation.roster)
    shutil.copytree(tmp_path / first, tmp_path / "former")
    labs.enrolled(lab, first)
    shutil.copytree(tmp_path / "former", tmp_path / first, dirs_exist_ok=True)
    run = fleets.Run(fleet, secured=tmp_path)
    said: dict[str, list[str]] = {}
    for each in run.devices:
        each.agent.on_news = said.setdefault(each.device.kit.id, []).append  # type: ignore[method-assign]  # as an app
    run.clock.at(20.0, enough)
    with pytest.raises(InterruptedError):
        run.run()
    told = {device: [line for line in lines if "signed with the key" in line] for device, lines in said.items()}
    assert [len(lines) for lines in told.values()] == [1, 0]
    assert "enrol this device" in told[first][0]


def hello_of(run: fleets.Run, folder: Path, *, start: int, instance: bytes) -> bytes:
    """What another process with the keys of the first device says, once it has sent many frames."""
    own, hello = open_identity(folder, Role.DEVICE), run.server.hellos[folder.name]
    signer = FrameSigner(own.key, Role.DEVICE, start)
    stamp = [signer.stamp() for _ in range(1000)][-1]
    return codec.encode(replace(hello, instance=instance), stamp, signer.sign)


def test_a_copy_of_an_identity_folder_that_counts_a_later_start_takes_the_place_of_the_device(
    tmp_path: Path, pictures: Path
) -> None:
    """It looks like the device after a restart; so the device is refused, as the page on embedding says."""
    fleet = fleets.built(pictures, devices=2, rounds=3)
    first, _ = fleet.federation.roster
    labs.enrolled(labs.made(tmp_path), *fleet.federation.roster)
    run = fleets.Run(fleet, secured=tmp_path)
    for device in fleet.federation.roster:
        run.slow_down(device, 4.0)
    agent = next(each.agent for each in run.devices if each.device.kit.id == first)
    agent.instance = b"original"
    start, sent, link = key_files.read_counter(tmp_path / first / STARTS), run.tap(), run.hub.link("copy")
    link.connect([])

    def say(start: int, instance: bytes) -> None:
        link.send(topics.up("tiny", first, "hello"), hello_of(run, tmp_path / first, start=start, instance=instance))

    run.clock.at(5.0, lambda: say(start + 1, b"the copy"))
    run.clock.at(5.5, lambda: say(start, b"original"))
    run.clock.at(30.0, enough)
    with pytest.raises(InterruptedError):
        run.run()
    assert {(each.reason, each.instance) for each in sent if isinstance(each, Refusal)} == {("restored", b"original")}
    assert agent.refusal is not None


@pytest.mark.parametrize("cut", [False, True])
def test_a_copy_of_an_identity_folder_that_counts_the_same_start_is_refused(
    tmp_path: Path, pictures: Path, cut: bool
) -> None:
    """Its frames look newer, as it has sent more of them; its instance tells, also after a restart of the coordinator."""
    fleet = fleets.built(pictures, devices=2, rounds=3)
    first, _ = fleet.federation.roster
    labs.enrolled(labs.made(tmp_path), *fleet.federation.roster)
    run = fleets.Run(fleet, secured=tmp_path)
    for device in fleet.federation.roster:
        run.slow_down(device, 4.0)
    agent = next(each.agent for each in run.devices if each.device.kit.id == first)
    agent.instance = b"original"
    start, sent, link = key_files.read_counter(tmp_path / first / STARTS), run.tap(), run.hub.link("copy")
    link.connect([])

    def say(start: int, instance: bytes) -> None:
        link.send(topics.up("tiny", first, "hello"), hello_of(run, tmp_path / first, start=start, instance=instance))

    if cut:
        run.power_cut("coordinator", 2.0, 0.5)
    run.clock.at(5.0, lambda: say(start, b"the copy"))
    run.clock.at(5.5, lambda: say(start, agent.instance or b""))  # the device itself may greet again
    run.finished()
    refusals = [each for each in sent if isinstance(each, Refusal)]
    assert [(each.reason, each.instance) for each in refusals] == [("restored", b"the copy")]
    assert "there is a copy of it" in refusals[0].message
    assert run.result.refused_frames == {first: {"replayed": 1}}
    assert agent.refusal is None
    assert run.result.completed
