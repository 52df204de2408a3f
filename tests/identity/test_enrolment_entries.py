"""The desk, and a board that enrols, survive any bytes: they refuse them, count them, and answer the next message."""

from __future__ import annotations

import logging
from pathlib import Path

import labs
import pytest
import strangers
from hypothesis import given
from properties import examples

from coordinator.lab import owner
from coordinator.lab.desk import EnrolmentDesk
from edge_sdk.errors import RemoteProtocolError, UsageError
from edge_sdk.identity import claims
from edge_sdk.identity.claims import (
    Claim,
    EnrolmentRequest,
    pack_enrolment_request,
    read_claim,
    unpack_enrolment_answer,
)
from edge_sdk.identity.crypto_keys import new_request, new_signing_key, new_tls_key
from edge_sdk.protocol import entry_guard
from edge_sdk.tools import enroll
from edge_sdk.transport.base import Connected, Incoming, TransportEvent

EXAMPLES = 300
LEGAL = {"text-no-object", "text-wrong-types", "text-nul", "text-not-base64"}
"""Kept texts that are legal JSON, and mean nothing."""


class Desk:
    """A desk with a used and an open claim."""

    def __init__(self, folder: Path) -> None:
        self.lab = labs.made(folder)
        self.used, self.open = (read_claim(path) for path in owner.issue_claims(self.lab, ["used", "open"]))
        self.desk = EnrolmentDesk(self.lab)
        self.asked = self.request(self.used)
        assert self.answered(self.used, self.asked)

    def request(self, claim: Claim) -> bytes:
        wanted = EnrolmentRequest(new_signing_key().public, new_request(new_tls_key(), claim.device))
        return pack_enrolment_request(claim.secret, wanted)

    def says(self, claim: Claim, message: bytes) -> bytes | None:
        found = self.desk.answer(f"{claims.CLAIMS_ROOT}/{claim.user}", message)
        return None if found is None else found[1]

    def answered(self, claim: Claim, message: bytes) -> bytes:
        answer = self.says(claim, message)
        assert answer is not None
        return unpack_enrolment_answer(claim.secret, answer)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"))


@pytest.mark.parametrize("state", ["used", "open"])
@pytest.mark.parametrize("name", strangers.kept("text"))
def test_a_kept_message_gets_no_answer_and_the_next_one_does(desk: Desk, name: str, state: str) -> None:
    message = strangers.kept("text")[name]
    assert desk.says(getattr(desk, state), message) is None
    sealed = claims._sealed(desk.used.secret, b"request", message)
    assert desk.says(getattr(desk, state), sealed[: claims.MOST_BYTES]) is None or state == "open"
    assert desk.answered(desk.used, desk.asked)


@examples(EXAMPLES)
@given(message=strangers.TEXTS)
def test_any_message_leaves_the_desk_open(desk: Desk, message: bytes) -> None:
    before = desk.desk.refused.total()
    assert desk.says(desk.used, message) is None
    told = desk.says(desk.open, message)
    assert told is None or b"the secret in this claim is not the one" in told
    assert desk.desk.refused.total() == before + 1 + (told is None)
    assert desk.answered(desk.used, desk.asked)


@examples(EXAMPLES)
@given(body=strangers.TEXTS)
def test_any_body_of_the_holder_of_a_claim_leaves_the_desk_open(desk: Desk, body: bytes) -> None:
    """Whoever has the file has the secret, too."""
    for claim in (desk.used, desk.open):
        assert desk.says(claim, claims._sealed(claim.secret, b"request", body)) is None
    assert desk.answered(desk.used, desk.asked)


def test_of_a_used_claim_nothing_is_parsed_that_its_secret_did_not_seal(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = list[bytes]()
    monkeypatch.setattr(claims, "foreign_json", parsed.append)
    for message in (*strangers.kept("text").values(), desk.request(desk.open)):
        assert desk.says(desk.used, message) is None
    assert parsed == []


def test_a_refused_message_is_one_line_and_a_flood_is_few(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    closed = EnrolmentDesk(desk.lab)
    with caplog.at_level(logging.WARNING):
        for _ in range(120):
            closed.answer(f"{claims.CLAIMS_ROOT}/{desk.used.user}", b'{"body": "", "mac": "\\ud800"}')
    assert closed.refused == {"schema": 120}
    assert len(caplog.records) == 3
    assert all("\n" not in record.getMessage() and record.exc_info is None for record in caplog.records)


class Answers:
    """A transport on which these answers come."""

    def __init__(self, *frames: bytes) -> None:
        self.events: list[TransportEvent] = [Connected(), *(Incoming("card", frame) for frame in frames)]

    def send(self, topic: str, frame: bytes) -> None:
        pass

    def poll(self, _timeout_s: float) -> TransportEvent | None:
        return self.events.pop(0) if self.events else None


@examples(EXAMPLES)
@given(message=strangers.TEXTS)
def test_a_board_waits_for_the_genuine_answer_whatever_else_comes(desk: Desk, message: bytes) -> None:
    check_a_board_waits(desk, message)


@pytest.mark.parametrize("name", strangers.kept("text"))
def test_a_board_waits_for_the_genuine_answer_after_a_kept_message(desk: Desk, name: str) -> None:
    check_a_board_waits(desk, strangers.kept("text")[name])


def check_a_board_waits(desk: Desk, message: bytes) -> None:
    genuine = claims.pack_enrolment_answer(desk.used.secret, b"the certificate")
    transport = Answers(message, b"[" * 100_000, genuine)
    try:
        found = enroll._ask(transport, desk.used, b"", 5.0)  # type: ignore[arg-type]  # as much of one as is used
    except UsageError:
        assert b'"fault"' in message  # a refusal needs no seal: it only ends the command
    else:
        assert found == b"the certificate"


@pytest.mark.parametrize("name", strangers.kept("text"))
def test_a_claim_file_of_a_stranger_is_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.claim"
    path.write_bytes(strangers.kept("text")[name])
    path.chmod(0o600)
    with pytest.raises(UsageError, match="is not a claim"):
        read_claim(path)


@pytest.mark.parametrize("name", sorted(strangers.kept("text").keys() - LEGAL))
def test_json_of_a_stranger_is_read_or_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        entry_guard.foreign_json(strangers.kept("text")[name])
    assert not isinstance(refused.value, RemoteProtocolError)
