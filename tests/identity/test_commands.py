"""Operators' commands in a secure lab: only an operator's signature counts, once, and in the run that it names."""

from __future__ import annotations

from pathlib import Path

import fleets
import labs
import pytest

from edge_sdk.identity.crypto_keys import new_signing_key
from edge_sdk.identity.folder import open_identity
from edge_sdk.identity.registry import read_registry
from edge_sdk.identity.signatures import FrameSigner, Role
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import PublicBlock
from edge_sdk.protocol.model_offers import ModelOffer, OfferedFile
from edge_sdk.protocol.operator_messages import Control, ControlAnswer, DeviceEntry, Inquiry
from edge_sdk.transport.base import Incoming

STEADY, OTHER = "device-00", "device-01"


class Operator:
    """Publishes commands on the hub of a signed run."""

    def __init__(self, folder: Path, pictures: Path) -> None:
        self.folder = folder
        self.run = fleets.Run(fleets.built(pictures, devices=2, rounds=4, quorum=1), secured=folder)
        for each in self.run.devices:
            self.run.slow_down(each.device.kit.id, 3.0)
        self.link = self.run.hub.link("desk-1")
        self.link.connect(topics.operator_subscriptions("tiny", "desk-1"))
        self.signer = open_identity(folder / "lab" / "operator", Role.OPERATOR).started()

    def command(self, operation: str, *, run: bytes | None = None, request: int = 1, device: str = OTHER) -> Control:
        return Control(
            federation="tiny",
            operation=operation,
            device=device,
            operator="desk-1",
            request=bytes([request]) * 16,
            run=self.run.server.ledger.run if run is None else run,
        )

    def signed(self, control: Control | ModelOffer, signer: FrameSigner | None = None) -> bytes:
        signer = signer or self.signer
        return codec.encode(control, signer.stamp(), signer.sign)

    def say(self, frame: bytes, at_s: float = 4.0) -> None:
        self.run.clock.at(at_s, lambda: self.link.send(topics.control("tiny"), frame))

    def answers(self) -> list[bool]:
        return [answer.done for answer in self.received()]

    def received(self) -> list[ControlAnswer]:
        self.run.run()
        found = []
        while (event := self.link.poll(0.0)) is not None:
            if isinstance(event, Incoming):
                message = codec.decode(event.frame).message
                found += [message] if isinstance(message, ControlAnswer) else []
        return found


@pytest.fixture
def operator(tmp_path: Path, pictures: Path) -> Operator:
    labs.enrolled(labs.made(tmp_path), STEADY, OTHER)
    return Operator(tmp_path, pictures)


def test_a_signed_command_is_carried_out_once(operator: Operator) -> None:
    first = operator.signed(operator.command("pause", request=1))
    operator.say(first, 4.0)
    operator.say(first, 4.5)  # sent again: the same answer
    operator.say(operator.signed(operator.command("resume", request=2)), 5.0)
    operator.run.power_cut("coordinator", 5.5, 0.2)
    operator.say(first, 7.0)  # recorded, and played to a coordinator that forgot its answers
    assert operator.answers() == [True, True, True]
    assert operator.run.server.record.rounds_done[OTHER] >= 3
    assert operator.run.result.refused_frames["unknown"]["replayed"] == 1


def test_what_no_operator_signed_for_this_run_is_nothing(operator: Operator) -> None:
    device = open_identity(operator.folder / OTHER, Role.DEVICE)
    strangers = (
        FrameSigner(new_signing_key(), Role.OPERATOR, 9),
        FrameSigner(device.key, Role.OPERATOR, 9),
        FrameSigner(device.key, Role.DEVICE, 9),
    )
    operator.say(codec.encode(operator.command("drain")))
    for signer in strangers:
        operator.say(operator.signed(operator.command("drain"), signer))
    operator.say(operator.signed(operator.command("drain", run=bytes(16))))
    assert operator.answers() == []
    assert operator.run.server.record.rounds_done == {STEADY: 4, OTHER: 4}
    assert operator.run.result.refused_frames == {"unknown": {"signature": 4, "replayed": 1}}


def test_a_model_of_somebody_else_is_refused_and_counted(operator: Operator) -> None:
    file = OfferedFile(sha256=bytes(32), total_bytes=1, name="new.onnx")
    rollout = Control(
        federation="tiny", operation="rollout", operator="desk-1", request=bytes(16), file=file, share=1.0
    )
    block = PublicBlock(
        federation="tiny", device="desk-1", sha256=bytes(32), index=0, count=1, total_bytes=1, data=b"x"
    )
    run = operator.run.server.ledger.run
    offer = ModelOffer(federation="tiny", device=OTHER, file=file, number=1, run=run)
    for frame in (codec.encode(rollout), codec.encode(block)):
        operator.say(frame)
    for frame in (codec.encode(offer), operator.signed(offer)):  # an operator is not the coordinator
        operator.run.clock.at(4.0, lambda frame=frame: operator.link.send(topics.down("tiny", OTHER, "offer"), frame))
    assert operator.answers() == []
    assert operator.run.result.refused_frames["unknown"] == {"signature": 2}
    assert operator.run.devices[1].participant.incoming.refused == {"signature": 2}


def revoked(operator: Operator) -> None:
    operator.say(operator.signed(operator.command("revoke")), 4.0)
    for at_s in range(4, 8):
        operator.run.clock.at(at_s + 0.5, lambda: operator.run.server.look_for_revoked(operator.run.clock.now_s))
    operator.run.devices[1].excused = True


def test_a_revoked_device_counts_no_more(operator: Operator) -> None:
    revoked(operator)
    assert operator.answers() == [True]
    assert read_registry(operator.folder / "lab").revoked_devices == {OTHER}
    assert operator.run.server.record.rounds_done[STEADY] == 4
    assert operator.run.server.record.rounds_done[OTHER] <= 2
    assert operator.run.devices[1].participant.refusal is not None
    assert operator.run.devices[1].participant.refusal.reason == "revoked"


def test_a_revoked_device_is_told_as_such_also_after_a_restart(operator: Operator) -> None:
    revoked(operator)
    operator.run.power_cut("coordinator", 8.0, 0.2)
    for at_s, request in ((7.8, 2), (9.0, 3)):
        inquiry = Inquiry(federation="tiny", about="devices", operator="desk-1", request=bytes([request]) * 16)
        operator.say(codec.encode(inquiry, operator.signer.stamp(), operator.signer.sign), at_s)
    pages = [answer.devices for answer in operator.received() if answer.devices]
    found: list[DeviceEntry] = [entry for page in pages for entry in page if entry.device == OTHER]
    assert [(entry.state, entry.here_s) for entry in found] == [("revoked", None)] * 2
