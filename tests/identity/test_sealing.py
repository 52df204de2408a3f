"""Encrypted frames: only the two ends open them, no nonce comes twice, sizes say little, and runs keep their bits."""

from __future__ import annotations

import shutil
from pathlib import Path

import fleets
import labs
import pytest

from coordinator.lab.desk import EnrolmentDesk
from edge_sdk.errors import RemoteProtocolError, UsageError
from edge_sdk.identity.claims import (
    CLAIMS_ROOT,
    EnrolmentRequest,
    pack_enrolment_request,
    read_claim,
    unpack_enrolment_answer,
)
from edge_sdk.identity.crypto_keys import (
    X25519Key,
    is_genuine,
    new_exchange_key,
    new_request,
    new_signing_key,
    new_tls_key,
)
from edge_sdk.identity.folder import SEALING, open_identity
from edge_sdk.identity.sealing import TAG_BYTES, Sealing, padded_bytes
from edge_sdk.identity.signatures import FrameSigner, Key, Role, key_id, verifier
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import CONTROL_LIMITS, HEADER_BYTES, SIGNATURE_BYTES
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.messages import Bye
from edge_sdk.transport.memory.hub import MemoryTransport

CANARY = "canary-7f3a"
BYE = Bye(federation="cameras", device="device-07", reason=CANARY)
PLAIN = codec.encode(BYE)


class Ends:
    """A device and a coordinator that have enrolled each other."""

    def __init__(self, *, federation: str = "cameras", device: str = "device-07") -> None:
        self.device_key, self.coordinator_key = new_exchange_key(), new_exchange_key()
        self.key = new_signing_key()
        self.verify = verifier(Role.DEVICE, {key_id(self.key.public): self.key.public}, is_genuine)
        self.device = self.end(self.device_key, self.coordinator_key.public, Role.DEVICE, federation, device)
        self.coordinator = self.end(self.coordinator_key, self.device_key.public, Role.COORDINATOR, federation, device)

    @staticmethod
    def end(key: X25519Key, peer: bytes, role: Role, federation: str = "cameras", device: str = "device-07") -> Sealing:
        return Sealing(key, peer, federation=federation, device=device, role=role)

    def signer(self, start: int = 3, key: Key | None = None) -> FrameSigner:
        return FrameSigner(key or self.key, Role.DEVICE, start)


@pytest.fixture(scope="module")
def ends() -> Ends:
    return Ends()


def test_the_other_end_reads_what_was_sent(ends: Ends) -> None:
    signer = ends.signer()
    sealed = ends.device.sealed(PLAIN, signer)
    assert CANARY.encode() in PLAIN
    assert CANARY.encode() not in sealed
    found = codec.decode(ends.coordinator.opened(sealed, CONTROL_LIMITS, ends.verify))
    assert (found.message, found.stamp.boot_epoch, found.stamp.sequence) == (BYE, 3, 1)
    assert found.stamp.key_id == key_id(ends.key.public)


def test_every_bit_of_an_encrypted_frame_counts(ends: Ends) -> None:
    sealed = ends.device.sealed(PLAIN, ends.signer())
    for place in range(0, 8 * len(sealed), 7):
        altered = bytearray(sealed)
        altered[place // 8] ^= 1 << place % 8
        with pytest.raises(RemoteProtocolError):
            ends.coordinator.opened(bytes(altered), CONTROL_LIMITS, ends.verify)


def test_the_header_is_protected_by_the_encryption_too(ends: Ends) -> None:
    sealed = ends.device.sealed(PLAIN, ends.signer())
    body = sealed[HEADER_BYTES + SIGNATURE_BYTES :]
    key = new_signing_key()
    other = FrameSigner(key, Role.DEVICE, 3)
    known = verifier(Role.DEVICE, {other.key_id: key.public}, is_genuine)  # to sign a stolen body
    stolen = codec.seal_frame(PLAIN, other.stamp(), other.sign, lambda _: len(body), lambda *_: body)
    with pytest.raises(RemoteProtocolError) as refused:
        ends.coordinator.opened(stolen, CONTROL_LIMITS, known)
    assert refused.value.kind == "encryption"


@pytest.mark.parametrize(
    "reader",
    [
        pytest.param(lambda ends: ends.end(new_exchange_key(), ends.device_key.public, Role.COORDINATOR), id="key"),
        pytest.param(
            lambda ends: ends.end(ends.coordinator_key, ends.device_key.public, Role.COORDINATOR, "attic"),
            id="federation",
        ),
        pytest.param(
            lambda ends: ends.end(
                ends.coordinator_key, ends.device_key.public, Role.COORDINATOR, "cameras", "device-08"
            ),
            id="device",
        ),
        pytest.param(lambda ends: ends.end(ends.coordinator_key, ends.device_key.public, Role.DEVICE), id="direction"),
    ],
)
def test_nobody_else_reads_it(ends: Ends, reader: object) -> None:
    sealed = ends.device.sealed(PLAIN, ends.signer())
    with pytest.raises(RemoteProtocolError) as refused:
        reader(ends).opened(sealed, CONTROL_LIMITS, ends.verify)  # type: ignore[operator]
    assert refused.value.kind == "encryption"


def test_a_message_that_is_sent_twice_is_encrypted_anew(ends: Ends) -> None:
    signer = ends.signer()
    first, second = ends.device.sealed(PLAIN, signer), ends.device.sealed(PLAIN, signer)
    assert codec.open_frame(second, CONTROL_LIMITS, version=codec.SEALED_VERSION)[0].sequence == 2
    copied = ends.device.sealed(PLAIN, ends.signer())  # the same start and sequence, by a copy of the folder
    bodies = [frame[HEADER_BYTES + SIGNATURE_BYTES + 16 : -TAG_BYTES] for frame in (first, second, copied)]
    assert len(set(bodies)) == 3


def test_plain_and_encrypted_frames_are_told_apart(ends: Ends) -> None:
    sealed = ends.device.sealed(PLAIN, ends.signer())
    assert (codec.is_sealed(sealed), codec.is_sealed(PLAIN)) == (True, False)
    for open_ in (
        lambda: codec.decode(sealed),
        lambda: ends.coordinator.opened(PLAIN, CONTROL_LIMITS, ends.verify),
    ):
        with pytest.raises(RemoteProtocolError) as refused:
            open_()
        assert refused.value.kind == "encryption"


def test_sizes_are_powers_of_two() -> None:
    sizes = [padded_bytes(n) for n in range(1, 200_000, 13)]
    assert len(set(sizes)) == 9
    assert all(size & (size - 1) == 0 for size in sizes)
    assert [padded_bytes(n) for n in (0, 1020, 1021, 2044, 2045)] == [1024, 1024, 2048, 2048, 4096]


def test_a_key_that_agrees_on_nothing_is_none(ends: Ends) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # of the library
        ends.device_key.agreed(bytes(32))
    assert "PRIVATE" not in repr(ends.device_key)


# -- labs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    """A folder with a lab that encrypts, and the identities of all devices of the fleet beside it."""
    folder = tmp_path_factory.mktemp("sealed")
    labs.enrolled(labs.made(folder, encrypts=True), *fleets.built(pictures).federation.roster)
    return folder


@pytest.fixture(scope="module")
def clean(pictures: Path) -> fleets.Run:
    return fleets.Run(fleets.built(pictures)).finished()


def tapped(run: fleets.Run) -> list[tuple[str, bytes]]:
    """A list that fills with what is sent from now on."""
    sent: list[tuple[str, bytes]] = []
    publish = run.hub.publish

    def listen(sender: MemoryTransport, topic: str, frame: Frame, *, retain: bool) -> None:
        sent.append((topic, bytes(frame)))
        publish(sender, topic, frame, retain=retain)

    run.hub.publish = listen  # type: ignore[method-assign]  # as a tap
    return sent


def test_encryption_changes_no_bit_of_what_is_learnt(pictures: Path, clean: fleets.Run, secured: Path) -> None:
    run = fleets.Run(fleets.built(pictures), secured=secured)
    sent = tapped(run)
    run.finished()
    assert run.result.completed
    assert labs.models(run) == labs.models(clean)
    assert run.result.refused_frames == {}
    own = [frame for topic, frame in sent if "/st" not in topic]
    plain = {type(codec.decode(frame).message).__name__ for frame in own if not codec.is_sealed(frame)}
    assert plain <= {"CoordinatorStatus"}
    sealed = [frame for frame in own if codec.is_sealed(frame)]
    assert len({len(frame) for frame in sealed}) <= 4
    stamps = [frame[16:48] for frame in sealed]
    frames_of: dict[bytes, set[bytes]] = {}
    for stamp, frame in zip(stamps, sealed, strict=True):
        frames_of.setdefault(stamp, set()).add(frame)
    assert all(len(frames) == 1 for frames in frames_of.values())


def test_faults_and_power_cuts_leave_the_same_bits(pictures: Path, clean: fleets.Run, secured: Path) -> None:
    assert labs.models(labs.run_with_faults(pictures, secured)) == labs.models(clean)


@pytest.fixture
def folder(secured: Path, tmp_path: Path, pictures: Path) -> Path:
    """The identity folder of a device of the lab, to be damaged."""
    device = fleets.built(pictures).federation.roster[0]
    return Path(shutil.copytree(secured / device, tmp_path / device))


def without_key(folder: Path) -> None:
    (folder / SEALING).unlink()


def open_to_others(folder: Path) -> None:
    (folder / SEALING).chmod(0o644)


def cut(folder: Path) -> None:
    (folder / SEALING).write_bytes((folder / SEALING).read_bytes()[:60])


def no_public_key(folder: Path) -> None:
    labs.change_card(folder, sealing="00" * 32)


@pytest.mark.parametrize("damage", [without_key, open_to_others, cut, no_public_key])
def test_what_is_wrong_with_a_key_is_one_line(folder: Path, damage: object) -> None:
    damage(folder)  # type: ignore[operator]
    with pytest.raises(UsageError) as told:
        open_identity(folder, Role.DEVICE)
    assert SEALING in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("sealing", [b"", bytes(32)])
def test_a_board_without_a_key_is_not_enrolled_and_keeps_its_claim(tmp_path: Path, sealing: bytes) -> None:
    lab = labs.made(tmp_path, encrypts=True)
    (path,) = labs.owner.issue_claims(lab, ["device-07"])
    claim, key, tls_key, desk = read_claim(path), new_signing_key(), new_tls_key(), EnrolmentDesk(lab)
    assert len(claim.sealing) == 64

    def asked(sealing: bytes) -> bytes:
        request = EnrolmentRequest(key.public, new_request(tls_key, "device-07"), sealing)
        answer = desk.answer(f"{CLAIMS_ROOT}/{claim.user}", pack_enrolment_request(claim.secret, request))
        assert answer is not None
        return answer[1]

    with pytest.raises(UsageError, match="encrypt"):
        unpack_enrolment_answer(claim.secret, asked(sealing))
    assert b"CERTIFICATE" in unpack_enrolment_answer(claim.secret, asked(new_exchange_key().public))


def test_a_device_that_does_not_encrypt_is_refused(tmp_path: Path, pictures: Path) -> None:
    fleet = fleets.built(pictures, devices=2, rounds=1, quorum=1)
    first, _ = fleet.federation.roster
    labs.enrolled(labs.made(tmp_path, encrypts=True), *fleet.federation.roster)
    labs.change_card(tmp_path / first, sealing="")
    run = fleets.Run(fleet, secured=tmp_path)
    participant = next(each.participant for each in run.devices if each.device.kit.id == first)
    participant.context.instance = b"of-a-process"
    run.finished()
    assert participant.refusal is not None
    assert participant.refusal.reason == "encryption"
    assert "edge-sdk enroll" in participant.refusal.remedy


def test_a_coordinator_that_does_not_encrypt_is_told_of(tmp_path: Path, pictures: Path) -> None:
    fleet = fleets.built(pictures, devices=2, rounds=1, quorum=1)
    first, _ = fleet.federation.roster
    labs.enrolled(labs.made(tmp_path), *fleet.federation.roster)
    key = new_exchange_key()
    labs.change_card(tmp_path / first, sealing=new_exchange_key().public.hex(), own_sealing=key.public.hex())
    (tmp_path / first / SEALING).write_bytes(key.to_pem())
    (tmp_path / first / SEALING).chmod(0o600)
    run = fleets.Run(fleet, secured=tmp_path)
    said: list[str] = []
    participant = next(each.participant for each in run.devices if each.device.kit.id == first)
    participant.context.owner.news = said.append  # type: ignore[method-assign]  # as an app hears it
    run.server.connect()
    for each in run.devices:
        each.connect()
    while run.clock.next_s < 5.0:
        run.clock.step()
    assert run.server.record.refused_frames["unknown"]["encryption"] >= 1
    assert sum("encrypted" in line for line in said) == 1
