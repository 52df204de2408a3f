"""Contracts: reading hyper-parameters, naming what both halves agree on, and what may stand in an exchange."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from protocol_samples import ADDRESS, BATCH, PAYLOADS, SPEC, VALUES

from edge_sdk.errors import MissingExtra, RemoteProtocolError, UsageError
from edge_sdk.protocol import wires
from edge_sdk.protocol.codec import CONTROL_LIMITS, HEADER_BYTES, decode, encode
from edge_sdk.protocol.contracts import ranges
from edge_sdk.protocol.contracts.fedal import FEDAL, FedALParams
from edge_sdk.protocol.contracts.fedmd import FEDMD, FedMDParams
from edge_sdk.protocol.contracts.fedproto import FEDPROTO
from edge_sdk.protocol.contracts.fedssa import FEDSSA
from edge_sdk.protocol.contracts.local import LOCAL, LocalParams
from edge_sdk.protocol.knowledge import KINDS, ClassRows, Expect, HyperKnowledge, PublicLogits, Weights, payload_bytes
from edge_sdk.protocol.messages import Upload
from edge_sdk.protocol.wires import (
    CAPABILITIES,
    Contract,
    Exchange,
    Slot,
    check_roles,
    expectation,
    frame_limits,
    load_registered,
    registered_names,
)

OURS = (FEDAL, FEDMD, FEDPROTO, FEDSSA, LOCAL)
TERMS = {"cross-entropy", "distill", "less-forgetting", "logit-gradient", "prototype-pull"}


# -- reading --------------------------------------------------------------------------------------------------------


def refused(contract: Contract, **table) -> str:
    with pytest.raises(UsageError) as caught:
        contract.read(table)
    return str(caught.value)


@pytest.mark.parametrize("contract", OURS, ids=lambda contract: contract.name)
def test_an_empty_table_gives_the_defaults(contract):
    assert contract.read({}) == contract.params()


def test_an_unknown_key_lists_the_known_ones():
    text = refused(FEDMD, temprature=2.0)
    assert (
        text
        == "method.temprature: fedmd has no such parameter; it has align, digest_steps, error, form, public_batch, target, temperature"
    )
    assert refused(LOCAL, tau=1) == "method.tau: local has no such parameter; it has none"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("tau", "5", "an integer, found '5'"),
        ("tau", True, "an integer, found True"),
        ("tau", 5.0, "an integer, found 5.0"),
        ("tau", 0, "an integer from 1 to 1000, found 0"),
        ("tau", -1, "an integer from 1 to 1000, found -1"),
        ("tau", 10**400, "an integer from 1 to 1000"),
        ("temperature", math.nan, "a finite number, found nan"),
        ("temperature", math.inf, "a finite number, found inf"),
        ("temperature", "1", "a finite number, found '1'"),
        ("temperature", True, "a finite number, found True"),
        ("temperature", 10**400, "a finite number, found 1000"),
        ("temperature", 0.0, "a number from 0.01 to 100, found 0.0"),
        ("temperature", -1, "a number from 0.01 to 100, found -1.0"),
        ("target", "everyone", "leave-one-out or all, found 'everyone'"),
        ("target", 1, "a string, found 1"),
        ("device", True, "a string, found True"),
        ("device", "gpu", "cpu or cuda:N, found 'gpu'"),
        ("device", "cuda:", "cpu or cuda:N"),
        ("device", "cuda:²", "cpu or cuda:N"),
        ("device", "cpu\n", "cpu or cuda:N"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(key, value, expected):
    assert refused(FEDAL, **{key: value}).startswith(f"method.{key}: expected {expected}")


def test_a_whole_number_may_stand_for_a_number():
    params = FEDAL.read({"temperature": 2})
    assert params == FedALParams(temperature=2.0)
    assert type(params.temperature) is float


@dataclass(frozen=True)
class Bare:
    """Parameters of somebody else's method: no checks of their own, and one without a default."""

    steps: int
    rate: float = 0.5
    verbose: bool = False


BARE: Contract[Bare] = Contract(
    name="bare",
    title="",
    citation="",
    params=Bare,
    exchanges=lambda _params: (Exchange(up={"x": Slot(Weights)}), Exchange()),
    closing=lambda _params: Exchange(),
    needs=frozenset(),
)


def test_types_are_checked_even_where_a_method_does_not():
    assert BARE.read({"steps": 3, "rate": 1}) == Bare(3, 1.0)
    assert refused(BARE) == "method.steps: missing, and bare has no default for it"
    assert refused(BARE, steps="3") == "method.steps: expected an integer, found '3'"
    assert refused(BARE, steps=3, verbose=1) == "method.verbose: expected true or false, found 1"
    assert refused(BARE, steps=3, rate=math.nan) == "method.rate: expected a finite number, found nan"


@pytest.mark.parametrize("value", [math.nan, math.inf, True, None, "1", -0.1, 1.1, 10**400])
def test_a_range_refuses_what_is_not_in_it(value):
    with pytest.raises(ValueError, match="key: expected a number from 0 to 1"):
        ranges.real("key", value, 0, 1)


# -- digest ---------------------------------------------------------------------------------------------------------


def test_equal_parameters_give_equal_digests():
    assert FEDAL.digest(FedALParams()) == FEDAL.digest(FEDAL.read({"tau": 5}))
    assert FEDAL.digest(FedALParams(temperature=2)) == FEDAL.digest(FEDAL.read({"temperature": 2.0}))
    assert len(FEDAL.digest(FedALParams())) == 16


def test_every_parameter_counts():
    other = {
        "tau": 6, "public_batch": 33, "temperature": 1.5, "discriminator_temperature": 1.0, "discriminator_rate": 1e-3,
        "discriminator_optimiser": "adam", "adversarial": 0.5, "less_forgetting": 0.0, "gradient_clip": 2.0,
        "target": "all", "max_devices": 65, "device": "cuda:0",
    }  # fmt: skip
    assert set(other) == set(FedALParams.__dataclass_fields__)
    digests = {FEDAL.digest(FEDAL.read({key: value})) for key, value in other.items()}
    assert len(digests | {FEDAL.digest(FedALParams())}) == len(other) + 1


A, B = Slot(PublicLogits, rows=8), Slot(ClassRows)
ROWS = {
    "base": ((Exchange(up={"x": A}), Exchange()), Exchange()),
    "one exchange later": ((Exchange(), Exchange(up={"x": A})), Exchange()),
    "in the closing one": ((Exchange(), Exchange()), Exchange(up={"x": A})),
    "down instead of up": ((Exchange(down={"x": A}), Exchange()), Exchange()),
    "one exchange more": ((Exchange(up={"x": A}), Exchange(), Exchange()), Exchange()),
    "one exchange less": ((Exchange(up={"x": A}),), Exchange()),
    "another role": ((Exchange(up={"y": A}), Exchange()), Exchange()),
    "another kind": ((Exchange(up={"x": B}), Exchange()), Exchange()),
    "one more role": ((Exchange(up={"x": A, "y": B}), Exchange()), Exchange()),
    "optional": ((Exchange(up={"x": replace(A, optional=True)}), Exchange()), Exchange()),
    "personal": ((Exchange(up={"x": replace(A, personal=True)}), Exchange()), Exchange()),
    "more rows": ((Exchange(up={"x": replace(A, rows=9)}), Exchange()), Exchange()),
    "wider": ((Exchange(up={"x": replace(A, extra_columns=1)}), Exchange()), Exchange()),
}


def test_every_slot_counts_and_so_does_its_place():
    digests = {
        name: replace(BARE, exchanges=lambda _p, rows=rows: rows, closing=lambda _p, closing=closing: closing).digest(
            Bare(1)
        )
        for name, (rows, closing) in ROWS.items()
    }
    assert len(set(digests.values())) == len(ROWS)


def test_the_order_in_which_roles_are_written_does_not_count():
    one = replace(BARE, exchanges=lambda _p: (Exchange(up={"x": A, "y": B}),))
    two = replace(BARE, exchanges=lambda _p: (Exchange(up={"y": B, "x": A}),))
    assert one.digest(Bare(1)) == two.digest(Bare(1))


def test_the_name_counts():
    assert BARE.digest(Bare(1)) != replace(BARE, name="bear").digest(Bare(1))


# -- our own contracts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contract", OURS, ids=lambda contract: contract.name)
def test_a_contract_speaks_known_words(contract):
    assert contract.needs | contract.teaches <= set(CAPABILITIES)
    assert contract.terms <= TERMS
    assert contract.citation
    assert contract.discloses
    assert contract.warnings(contract.params(), SPEC) is not None


@pytest.mark.parametrize("tau", [1, 2, 5, 1000])
def test_fedal_has_one_exchange_more_than_iterations(tau):
    params = FedALParams(tau=tau)
    rows = FEDAL.exchanges(params)
    assert len(rows) == tau + 1
    assert [bool(row.up) for row in rows] == [True] * tau + [False]
    assert [bool(row.down) for row in rows] == [False] + [True] * tau
    assert FEDAL.closing(params) == Exchange()


def test_fedmd_closes_with_the_last_mean():
    params = FedMDParams(public_batch=16)
    (row,) = FEDMD.exchanges(params)
    assert FEDMD.closing(params).down == row.down
    assert row.down["mean"].rows == row.up["logits"].rows == 16


def test_local_trades_nothing():
    assert LOCAL.exchanges(LocalParams()) == (Exchange(),)


def test_warnings_come_from_the_parameters():
    assert FEDAL.warnings(FedALParams(), SPEC) == ()
    assert any(text.startswith("W4") for text in FEDAL.warnings(FedALParams(tau=1), SPEC))
    assert any(text.startswith("W5") for text in FEDAL.warnings(FedALParams(tau=1000), SPEC))


# -- roles ----------------------------------------------------------------------------------------------------------

EXPECT = Expect(classes=3, rows=4, batch=BATCH)
SLOTS = {"logits": Slot(PublicLogits), "rows": Slot(ClassRows, optional=True)}


def role_refused(given) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        check_roles(given, SLOTS, EXPECT)
    assert caught.value.kind == "knowledge"
    return str(caught.value)


def test_the_roles_of_an_exchange():
    check_roles({"logits": PAYLOADS["logits"]}, SLOTS, EXPECT)
    check_roles({"logits": PAYLOADS["logits"], "rows": PAYLOADS["class-rows"]}, SLOTS, EXPECT)
    assert role_refused({}) == "role 'logits' is missing"
    assert role_refused({"rows": PAYLOADS["class-rows"]}) == "role 'logits' is missing"
    assert "role 'more'" in role_refused({"logits": PAYLOADS["logits"], "more": PAYLOADS["logits"]})
    assert (
        role_refused({"logits": PAYLOADS["logit-gradients"]}) == "logits: expected PublicLogits, found LogitGradients"
    )
    assert "shape (2, 3), expected (4, 3)" in role_refused({"logits": PublicLogits(values=VALUES[:2], batch=BATCH)})


def test_a_slot_states_its_own_rows():
    check_roles({"x": PAYLOADS["logits"]}, {"x": Slot(PublicLogits, rows=4)}, replace(EXPECT, rows=99))
    with pytest.raises(RemoteProtocolError, match=r"expected \(5, 3\)"):
        check_roles({"x": PAYLOADS["logits"]}, {"x": Slot(PublicLogits, rows=5)}, EXPECT)


def test_a_slot_may_be_wider_than_the_features():
    """PAYLOADS["class-rows"] has 3 columns: header rows of 2 features with their bias."""
    slots = {"header": Slot(ClassRows, extra_columns=1)}
    given = {"header": PAYLOADS["class-rows"]}
    check_roles(given, slots, replace(EXPECT, feature_dim=2))
    check_roles(given, slots, EXPECT)  # no width is agreed on
    with pytest.raises(RemoteProtocolError, match="width 3, expected 4"):
        check_roles(given, slots, replace(EXPECT, feature_dim=3))


def test_a_wider_slot_has_a_larger_frame():
    wide, narrow = (
        frame_limits((Exchange(up={"x": Slot(ClassRows, extra_columns=extra)}),), SIZES) for extra in (1, 0)
    )
    assert wide.tensor_bytes - narrow.tensor_bytes == 4 * SIZES.classes == wide.frame_bytes - narrow.frame_bytes


def test_what_a_spec_fixes_is_expected():
    assert expectation(SPEC) == Expect(classes=3, feature_dim=64)


# -- limits ---------------------------------------------------------------------------------------------------------

SIZES = Expect(classes=100, rows=2048, feature_dim=512, weight_count=1_000_000)


def filled(kind: type, rows_more: int = 0):
    """The largest payload that fits SIZES, or one with so many rows more."""
    classes = 100 + (rows_more if kind in (ClassRows, HyperKnowledge) else 0)
    ids, counts = np.arange(classes, dtype=np.int32), np.full(classes, 2**31 - 1, np.int32)
    if kind is Weights:
        return Weights(values=np.ones(1_000_000 + rows_more, np.float32), layout=bytes(16))
    if kind is ClassRows:
        return ClassRows(classes=ids, rows=np.ones((classes, 512), np.float32), counts=counts)
    if kind is HyperKnowledge:
        soft = np.full((classes, 100), 0.01, np.float32)
        return HyperKnowledge(classes=ids, features=np.ones((classes, 512), np.float32), soft=soft, counts=counts)
    return kind(values=np.ones((2048 + rows_more, 100), np.float32), batch=bytes(32))


def upload(**knowledge) -> bytes:
    metrics = {f"{'m' * 62}{i:02}": 1e300 for i in range(64)}
    return encode(Upload(**ADDRESS, round=2**32 - 1, exchange=1, knowledge=knowledge, metrics=metrics))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_largest_payload_passes_and_one_row_more_does_not(kind):
    slots = {"x": Slot(kind)}
    limits = frame_limits((Exchange(up=slots), Exchange()), SIZES)
    largest = decode(upload(x=filled(kind)), limits).message
    check_roles(largest.knowledge, slots, SIZES)
    with pytest.raises(RemoteProtocolError) as caught:
        decode(upload(x=filled(kind, 1)), limits)
    assert caught.value.kind == "limit"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_frame_may_be_larger_by_exactly_its_tensors(kind):
    limits = frame_limits((Exchange(down={"x": Slot(kind)}),), SIZES)
    assert limits.frame_bytes - CONTROL_LIMITS.frame_bytes == payload_bytes(filled(kind))


def test_the_largest_of_many_exchanges_counts():
    logits, weights = Slot(PublicLogits), Slot(Weights)
    rows = (Exchange(up={"x": logits}), Exchange(down={"a": weights, "b": weights}, up={"x": logits}))
    limits = frame_limits(rows, SIZES)
    assert limits.tensor_bytes == 4_000_000
    assert limits.frame_bytes == 8_000_000 + CONTROL_LIMITS.frame_bytes
    frame = upload(a=filled(Weights), b=filled(Weights))
    assert len(decode(frame, limits).message.knowledge) == 2
    with pytest.raises(RemoteProtocolError, match="at most"):
        decode(upload(a=filled(Weights), b=filled(Weights), c=filled(Weights)), limits)


@pytest.mark.parametrize("contract", OURS, ids=lambda contract: contract.name)
def test_control_messages_pass_under_the_limits_of_any_method(contract):
    params = contract.params()
    limits = frame_limits((*contract.exchanges(params), contract.closing(params)), expectation(SPEC))
    assert limits.covering(CONTROL_LIMITS) == limits
    assert frame_limits((), SIZES) == CONTROL_LIMITS


def test_a_small_payload_with_a_row_too_many_is_refused_by_its_check():
    slots = FEDMD.exchanges(FedMDParams())[0].up
    limits = frame_limits(FEDMD.exchanges(FedMDParams()), expectation(SPEC))
    logits = PublicLogits(values=np.ones((33, 3), np.float32), batch=BATCH)
    arrived = decode(upload(logits=logits), limits).message.knowledge
    with pytest.raises(RemoteProtocolError, match=r"shape \(33, 3\), expected \(32, 3\)"):
        check_roles(arrived, slots, expectation(SPEC))


def test_everything_but_tensors_fits_beside_them():
    """64 roles with the longest names and 64 metrics stay within what a frame has beside its tensors."""
    tiny = {f"{'r' * 62}{i:02}": PublicLogits(values=np.ones((1, 2), np.float32), batch=bytes(32)) for i in range(64)}
    assert len(upload(**tiny)) - 64 * 8 < CONTROL_LIMITS.frame_bytes - HEADER_BYTES


# -- registration ---------------------------------------------------------------------------------------------------


class Point:
    """An entry point."""

    def __init__(self, name: str, half: object) -> None:
        self.name, self.value, self._half = name, f"somewhere:{name}", half

    def load(self) -> object:
        if isinstance(self._half, Exception):
            raise self._half
        return self._half


def test_halves_are_found_by_name(monkeypatch):
    good = type("Half", (), {"contract": BARE})()
    points = [
        Point("good", good),
        Point("bare", object()),
        Point("broken", ImportError("no module named torch_scatter")),
        Point("extra", MissingExtra("torch", "torch", "this method")),
    ]
    monkeypatch.setattr(wires.importlib.metadata, "entry_points", lambda group: points if group == "g" else [])
    assert load_registered("g", "good") is good
    assert registered_names("g") == ("bare", "broken", "extra", "good")
    with pytest.raises(UsageError, match="no method 'fedx'; registered are bare, broken, extra, good"):
        load_registered("g", "fedx")
    with pytest.raises(UsageError, match="no method 'good'; registered are none"):
        load_registered("other", "good")
    with pytest.raises(UsageError, match="somewhere:bare does not carry a contract"):
        load_registered("g", "bare")
    with pytest.raises(UsageError, match="somewhere:broken does not load: no module named torch_scatter"):
        load_registered("g", "broken")
    with pytest.raises(MissingExtra, match="pip install"):
        load_registered("g", "extra")
