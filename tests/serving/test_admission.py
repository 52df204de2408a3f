"""Who may take part: each refusal names the device, what is amiss, and what mends it."""

from __future__ import annotations

import dataclasses

import pytest

from coordinator.serving.devices.admission import RefusalReason, learns, refusal
from edge_sdk.methods.contract.base import CAPABILITIES
from edge_sdk.methods.fedal import FedAL
from edge_sdk.methods.fedmd import FedMD
from edge_sdk.methods.local import Local
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import PROTOCOL_VERSION, FederationSpec, Hello, PublicSetSpec, Refusal

OURS, OTHERS = bytes(range(32)), bytes(32)
METHODS = {method.name: method for method in (FedMD(), FedAL(), Local())}
LOGITS = pytest.mark.parametrize("method", [FedMD(), FedAL()], ids=["fedmd", "fedal"])
EVERY = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def spec(method) -> FederationSpec:
    return FederationSpec(
        federation="lab",
        method=method.name,
        params=method.table,
        contract=method.digest,
        classes=10,
        rounds=1,
        public=PublicSetSpec(sha256=OURS, count=100),
    )


FIT = Hello(
    federation="lab",
    device="cam-7",
    classes=10,
    capabilities=CAPABILITIES,
    terms=("cross-entropy", "distill", "less-forgetting", "logit-gradient"),
    public_sha256=OURS,
    model="resnet",
    runtime="torch",
)


def judged(method, roster: tuple[str, ...] = (), **changes: object) -> RefusalReason | None:
    turned = refusal(dataclasses.replace(FIT, **changes), spec(method), method, roster)
    if turned is not None:
        assert turned.message.startswith("cam-7")
        assert turned.remedy
        assert "\n" not in turned.message + turned.remedy
        message = Refusal(federation="lab", device="cam-7", **dataclasses.asdict(turned))
        assert codec.decode(codec.encode(message, codec.Stamp(1, 1))).message == message  # it can be sent
    return turned


def told(turned: RefusalReason | None) -> tuple[str, str] | None:
    """The reason and the remedy of a refusal."""
    return None if turned is None else (turned.reason, turned.remedy)


@EVERY
def test_a_fit_device_may_take_part(method):
    assert judged(method) is None
    assert judged(method, ("cam-6", "cam-7")) is None
    assert learns(FIT, method)


# -- version --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versions", [(PROTOCOL_VERSION,), (PROTOCOL_VERSION, PROTOCOL_VERSION + 1)])
def test_one_version_in_common_is_enough(versions):
    assert judged(FedMD(), versions=versions) is None


@pytest.mark.parametrize(
    ("versions", "spoken", "older"),
    [
        ((2,), "2", "coordinator"),
        ((3, 2), "3, 2", "coordinator"),
        ((255,), "255", "coordinator"),
        ((), "none", "device"),
    ],
)
def test_without_one_the_older_side_is_to_be_upgraded(versions, spoken, older):
    turned = judged(FedMD(), versions=versions)
    assert told(turned) == ("version", f"upgrade the {older}'s edge-sdk")
    assert turned is not None
    assert f" {spoken}," in turned.message


def test_a_device_of_tomorrow_finds_a_coordinator_of_tomorrow(monkeypatch):
    monkeypatch.setattr("coordinator.serving.devices.admission.PROTOCOL_VERSION", 2)
    assert judged(FedMD(), versions=(2, 3)) is None
    skipped = judged(FedMD(), versions=(1, 3))
    assert skipped is not None
    assert skipped.remedy == "upgrade the coordinator's edge-sdk"
    assert told(judged(FedMD(), versions=(1,))) == ("version", "upgrade the device's edge-sdk")


def test_the_version_is_looked_at_first():
    turned = judged(FedMD(), ("cam-6",), versions=(9,), classes=3, capabilities=())
    assert turned is not None
    assert turned.reason == "version"


# -- roster and classes ---------------------------------------------------------------------------------------------


def test_who_is_not_on_the_roster():
    assert told(judged(Local(), ("cam-6", "cam-70"))) == ("roster", "add it to federation.roster")


@EVERY
@pytest.mark.parametrize("classes", [1, 9, 11])
def test_other_classes(method, classes):
    turned = judged(method, classes=classes)
    assert turned is not None
    assert turned.reason == "classes"
    assert f" {classes} classes" in turned.message
    assert "10 outputs" in turned.remedy


# -- public set -----------------------------------------------------------------------------------------------------


@LOGITS
def test_no_public_set(method):
    turned = judged(method, public_sha256=None)
    assert turned is not None
    assert turned.reason == "public-set"
    assert method.name in turned.message
    assert OURS.hex() in turned.remedy


@LOGITS
def test_another_public_set(method):
    turned = judged(method, public_sha256=OTHERS)
    assert turned is not None
    assert turned.reason == "public-set"
    assert OURS.hex() in turned.message
    assert OTHERS.hex() in turned.message
    assert "public set" in turned.remedy


def test_who_trains_alone_needs_no_public_set():
    assert judged(Local(), public_sha256=None) is None
    assert judged(Local(), public_sha256=OTHERS) is None


# -- abilities ------------------------------------------------------------------------------------------------------


@EVERY
def test_a_model_that_can_only_predict_may_teach(method):
    assert judged(method, capabilities=("predict",), terms=()) is None
    assert not learns(dataclasses.replace(FIT, capabilities=("predict",), terms=()), method)


def test_a_capability_that_is_missing_is_named():
    turned = judged(FedAL(), capabilities=("features", "logit-gradients"))
    assert turned is not None
    assert turned.reason == "capability"
    assert turned.message.startswith("cam-7: fedal needs predict, ")
    assert "torch model resnet" in turned.message
    assert "edge-sdk methods" in turned.remedy


def test_all_capabilities_that_are_missing_are_named_where_nobody_may_only_teach():
    strict = FedMD()
    strict.name, strict.needs, strict.teaches = "fedavg", frozenset({"weights", "head-rows"}), frozenset()
    turned = judged(strict, capabilities=("predict",), model="", runtime="")
    assert turned is not None
    assert "head-rows, weights" in turned.message
    assert "unknown model" in turned.message


@pytest.mark.parametrize(
    ("method", "terms", "missing"),
    [
        (FedAL(), ("cross-entropy", "distill"), "less-forgetting, logit-gradient"),
        (FedAL(), (), "cross-entropy, distill, less-forgetting, logit-gradient"),
        (FedMD(), ("cross-entropy", "less-forgetting"), "distill"),
        (Local(), (), "cross-entropy"),
    ],
)
def test_a_term_that_is_missing_is_named(method, terms, missing):
    """A model that could learn but for a term does not silently become a teacher."""
    turned = judged(method, terms=terms)
    assert turned is not None
    assert turned.reason == "term"
    assert turned.message.startswith(f"cam-7: {method.name} minimises {missing}, ")
    assert not learns(dataclasses.replace(FIT, terms=terms), method)
