"""Claims: each enrols one device once; what is wrong with one is a line, and secrets leave no file of the owner."""

from __future__ import annotations

import json
import random
import shlex
from dataclasses import replace
from pathlib import Path

import labs
import pytest

from coordinator.lab import owner
from coordinator.lab.broker_settings import ACCESS, REVOKED
from coordinator.lab.desk import EnrolmentDesk
from edge_sdk.cli import main
from edge_sdk.errors import UsageError
from edge_sdk.identity.claims import (
    CLAIMS_ROOT,
    Claim,
    EnrolmentRequest,
    new_claim_secret,
    pack_enrolment_request,
    read_claim,
    unpack_enrolment_answer,
)
from edge_sdk.identity.crypto_keys import new_request, new_signing_key, new_tls_key
from edge_sdk.identity.registry import REGISTRY, read_registry


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return labs.made(tmp_path)


class Board:
    """A board with keys of its own and a claim."""

    def __init__(self, claim: Claim) -> None:
        self.claim, self.public = claim, new_signing_key().public
        request = EnrolmentRequest(self.public, new_request(new_tls_key(), claim.device))
        self.message = pack_enrolment_request(claim.secret, request)

    def asks(self, desk: EnrolmentDesk) -> bytes | str | None:
        """The certificate, why there is none, or None if nobody answers."""
        found = desk.answer(f"{CLAIMS_ROOT}/{self.claim.user}", self.message)
        if found is None:
            return None
        try:
            return unpack_enrolment_answer(self.claim.secret, found[1])
        except UsageError as error:
            return str(error)


def claimed(lab: Path, device: str = "device-01") -> Claim:
    return read_claim(owner.issue_claims(lab, [device])[0])


def test_a_claim_works_once_and_its_holder_may_ask_again(lab: Path) -> None:
    desk, claim = EnrolmentDesk(lab), claimed(lab)
    first, second = Board(claim), Board(claim)
    certificate = first.asks(desk)
    assert isinstance(certificate, bytes)
    refused = second.asks(desk)
    assert isinstance(refused, str)
    assert "used" in refused
    assert first.asks(desk) == certificate
    assert first.asks(EnrolmentDesk(lab)) == certificate  # also from a desk that was started again
    assert read_registry(lab).devices["device-01"].public == first.public.hex()


@pytest.mark.parametrize("claims", [3, pytest.param(200, marks=pytest.mark.long)])
def test_of_many_boards_with_one_claim_one_wins(lab: Path, claims: int) -> None:
    desk, rng = EnrolmentDesk(lab), random.Random(5)
    for number in range(claims):
        claim = claimed(lab, f"device-{number}")
        boards = [Board(claim) for _ in range(3)]
        order = [board for board in boards for _ in range(2)]
        rng.shuffle(order)
        won = {board.public for board in order if isinstance(board.asks(desk), bytes)}
        assert won == {order[0].public}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda lab, _claim: owner.issue_claims(lab, ["device-01"]), "newer"),
        (lambda lab, _claim: owner.revoke_device(lab, "device-01"), "revoked"),
    ],
)
def test_a_claim_that_is_replaced_or_revoked_enrols_nobody(lab: Path, change: object, word: str) -> None:
    claim = claimed(lab)
    change(lab, claim)  # type: ignore[operator]
    answer = Board(claim).asks(EnrolmentDesk(lab))
    assert isinstance(answer, str)
    assert word in answer
    assert read_registry(lab).devices == {}


def test_a_claim_of_another_lab_and_a_forged_request_get_nothing(lab: Path, tmp_path: Path) -> None:
    desk, claim = EnrolmentDesk(lab), claimed(lab)
    other = claimed(labs.made(tmp_path / "other"), "device-77")
    assert Board(other).asks(desk) is not None  # told that it is unknown
    forger = Board(claim)
    for place in range(0, len(forger.message), 31):
        forger.message = bytes([*forger.message[:place], forger.message[place] ^ 1, *forger.message[place + 1 :]])
        assert not isinstance(forger.asks(desk), bytes)
        forger.message = Board(claim).message
    assert read_registry(lab).devices == {}


def test_a_new_claim_replaces_the_keys_of_a_device(lab: Path) -> None:
    desk = EnrolmentDesk(lab)
    first = Board(claimed(lab))
    old = first.asks(desk)
    second = Board(claimed(lab))
    assert isinstance(second.asks(desk), bytes)
    registry = read_registry(lab)
    assert registry.devices["device-01"].public == second.public.hex()
    assert isinstance(old, bytes)
    assert registry.revoked == [old.decode()]


def test_revoking_closes_the_broker_for_a_device(lab: Path) -> None:
    labs.enrolled(lab, "device-01", "device-02")
    before = (lab / REVOKED).read_bytes()
    assert "device-01" in owner.revoke_device(lab, "device-01")
    assert "user device-01\ntopic deny fl/v1/+/up/#\ntopic deny fl/v1/+/st/#\n" in (lab / ACCESS).read_text()
    assert "user device-02\ntopic deny" not in (lab / ACCESS).read_text()
    assert (lab / REVOKED).read_bytes() != before
    owner.revoke_device(lab, "device-01")  # once more changes nothing
    assert len(read_registry(lab).revoked) == 1


def test_thirty_devices_from_a_table(lab: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "boards.csv"
    table.write_text("device,place\n" + "".join(f"board-{n:02},shelf {n}\n" for n in range(30)))
    assert main(["lab", "claim", "--lab", str(lab), "--csv", str(table)]) == 0
    files = sorted((lab / "claims").iterdir())
    assert [path.stem for path in files] == [f"board-{n:02}" for n in range(30)]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert str(files[0]) in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["claim", "coordinator"],
        ["claim", "Device"],
        ["claim", "a", "a"],
        ["claim"],
        ["claim", "--csv", "missing.csv"],
        ["revoke", "nobody"],
        ["init", "LAB"],
        *(
            ["init", "NEW", "--host", host]
            for host in ("", "a b", "mqtts://lab", "lab:8883", "999.1.1.1", "lab\u00f6r", "a" * 64)
        ),
        *(["init", "NEW", "--host", "lab", "--bind", bind] for bind in ("a b", "192.0.2.7", "foo.invalid")),
    ],
)
def test_mistakes_of_the_owner_are_one_line(
    lab: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    own = [{"LAB": str(lab), "NEW": str(lab.parent / "new")}.get(each, each) for each in arguments]
    assert main(["lab", *own, *(["--lab", str(lab)] if own[0] != "init" else [])]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (lab.parent / "new").exists()


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_wait_that_is_none(seconds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told before the claim is read."""
    assert main(["enroll", "--claim", str(tmp_path / "a.claim"), "--timeout", seconds]) == 2
    assert f"--timeout {seconds}: expected seconds" in capsys.readouterr().err


def test_a_long_name_of_a_host_and_a_lab_that_was_never_finished(tmp_path: Path) -> None:
    host = ".".join(["a" * 40] * 3)
    owner.make_lab(tmp_path / "lab", [host], 8883, "::1")
    assert host in owner.broker_of(tmp_path / "lab")
    (tmp_path / "lab" / REGISTRY).unlink()
    with pytest.raises(UsageError, match=REGISTRY):
        owner.make_lab(tmp_path / "lab", ["lab"], 8883, "::1")


@pytest.mark.parametrize("folder", ["none", "my lab"])
@pytest.mark.parametrize(
    "command",
    [
        ["lab", "claim", "a", "--lab"],
        ["lab", "revoke", "a", "--lab"],
        ["lab", "serve"],
        ["lab", "restored"],
        ["coordinator", "federation.toml", "--lab"],
    ],
)
def test_a_folder_that_is_no_lab(
    tmp_path: Path, command: list[str], folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = tmp_path / folder
    (tmp_path / "my lab").mkdir()
    assert main([*command, str(lab)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"lab init {shlex.quote(str(lab))} " in line
    assert list(tmp_path.rglob("*")) == [tmp_path / "my lab"]


@pytest.mark.parametrize(
    ("part", "value"),
    [("device", "../x"), ("device", "device-02"), ("user", 7), ("broker", 5), ("broker", ""), ("tls_key", None)],
)
def test_a_claim_whose_parts_do_not_fit_makes_nothing(
    lab: Path, tmp_path: Path, part: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    path = owner.issue_claims(lab, ["device-01"])[0]
    path.write_text(json.dumps({**json.loads(path.read_text()), part: value}))
    assert main(["enroll", "--claim", str(path), "--identity", str(tmp_path / "x")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_a_claim_with_a_wrong_secret_is_told_so(lab: Path) -> None:
    desk, claim = EnrolmentDesk(lab), claimed(lab)
    wrong = replace(claim, secret=new_claim_secret())
    board = Board(wrong)
    answer = board.asks(desk)
    assert isinstance(answer, str)
    assert "secret" in answer
    assert read_registry(lab).devices == {}
    assert isinstance(Board(claim).asks(desk), bytes)


@pytest.mark.parametrize("key", ["z" * 64, "ab", "", 5, None])
@pytest.mark.parametrize("part", ["devices", "operators"])
def test_a_registry_with_a_key_that_is_none_is_one_line(
    lab: Path, part: str, key: object, capsys: pytest.CaptureFixture[str]
) -> None:
    labs.enrolled(lab, "device-01")
    path = lab / REGISTRY
    plain = json.loads(path.read_text())
    if part == "devices":
        plain["devices"]["device-01"]["public"] = key
    else:
        plain["operators"] = dict.fromkeys(plain["operators"], key)
    path.write_text(json.dumps(plain))
    assert main(["lab", "claim", "device-02", "--lab", str(lab)]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert REGISTRY in said


@pytest.mark.parametrize("damage", ["cut", "letter", "nothing", "else"])
def test_a_damaged_claim_is_one_line(
    lab: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = owner.issue_claims(lab, ["device-01"])[0]
    text = path.read_text()
    secret = json.loads(text)["secret"]
    path.write_text({"cut": text[:200], "letter": text.replace(secret, "z"), "nothing": "", "else": "[1]"}[damage])
    assert main(["enroll", "--claim", str(path), "--identity", str(tmp_path / "x")]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert secret[:16] not in said
