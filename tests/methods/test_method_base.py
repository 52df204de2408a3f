"""What a method is: reading hyper-parameters, naming what both sides agree on, and finding it by name."""

from __future__ import annotations

import importlib.metadata
import math
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import pytest
from method_specs import spec_of

from edge_sdk.errors import MissingExtra, UsageError
from edge_sdk.methods.contract.base import CAPABILITIES, Method
from edge_sdk.methods.contract.description import Range
from edge_sdk.methods.contract.registry import check_registered, load_method, method_names
from edge_sdk.methods.fedal import FedAL
from edge_sdk.methods.fedal import Params as FedALParams
from edge_sdk.methods.fedmd import FedMD
from edge_sdk.methods.local import Local
from edge_sdk.objectives import terms
from edge_sdk.protocol import registry
from edge_sdk.protocol.knowledge import ClassRows, PublicLogits, Slot, Weights
from edge_sdk.protocol.wires import Exchange

EVERY = pytest.mark.parametrize("name", method_names())


# -- reading --------------------------------------------------------------------------------------------------------


def refused(method: type[Method[Any]], **table: Any) -> str:
    with pytest.raises(UsageError) as caught:
        method.read(table)
    return str(caught.value)


@EVERY
def test_an_empty_table_gives_the_defaults(name):
    assert load_method(name).read({}) == load_method(name)().params


def test_an_unknown_key_lists_the_known_ones():
    text = refused(FedMD, temprature=2.0)
    assert text.startswith("method.temprature: ")
    assert text.endswith("align, digest_steps, error, form, public_batch, target, temperature")
    assert refused(Local, tau=1).endswith("allowed are none")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("tau", "5", "an integer from 1 to 1000, found '5'"),
        ("tau", True, "an integer from 1 to 1000, found true"),
        ("tau", 5.0, "an integer from 1 to 1000, found 5.0"),
        ("tau", 0, "an integer from 1 to 1000, found 0"),
        ("tau", -1, "an integer from 1 to 1000, found -1"),
        ("tau", 10**400, "an integer from 1 to 1000"),
        ("temperature", math.nan, "a number from 0.01 to 100, found nan"),
        ("temperature", math.inf, "a number from 0.01 to 100, found inf"),
        ("temperature", "1", "a number from 0.01 to 100, found '1'"),
        ("temperature", True, "a number from 0.01 to 100, found true"),
        ("temperature", 10**400, "a number from 0.01 to 100, found 1000"),
        ("temperature", 0.0, "a number from 0.01 to 100, found 0.0"),
        ("temperature", -1, "a number from 0.01 to 100, found -1"),
        ("target", "everyone", "leave-one-out or all, found 'everyone'"),
        ("target", 1, "leave-one-out or all, found 1"),
        ("device", True, "a string, found true"),
        ("device", "gpu", "cpu or cuda:N, found 'gpu'"),
        ("device", "cuda:", "cpu or cuda:N"),
        ("device", "cuda:²", "cpu or cuda:N"),
        ("device", "cpu\n", "at most 256 printable characters"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(key, value, expected):
    assert refused(FedAL, **{key: value}).startswith(f"method.{key}: expected {expected}")


def test_a_whole_number_may_stand_for_a_number():
    params = FedAL.read({"temperature": 2})
    assert params == FedALParams(temperature=2.0)
    assert type(params.temperature) is float


@dataclass(frozen=True)
class Bare:
    """Parameters of somebody else's method: one without a default."""

    steps: int
    rate: float = 0.5
    verbose: bool = False
    share: Annotated[float, Range(0, 1)] = 0.5
    word: Literal["this", "that"] = "this"


class BareMethod(Method[Bare]):
    name = "bare"
    title = citation = discloses = ""
    exchanges = (Exchange(up={"x": Slot(Weights)}), Exchange())


def test_types_are_checked_even_where_nothing_else_is_said():
    assert BareMethod.read({"steps": 3, "rate": 1}) == Bare(3, 1.0)
    assert refused(BareMethod) == "method.steps: missing"
    assert refused(BareMethod, steps="3").startswith("method.steps: ")
    assert refused(BareMethod, steps=3, verbose=1).startswith("method.verbose: ")
    assert refused(BareMethod, steps=3, rate=math.nan).startswith("method.rate: ")


@pytest.mark.parametrize("value", [math.nan, math.inf, True, None, "1", -0.1, 1.1, 10**400])
def test_a_range_refuses_what_is_not_in_it(value):
    assert refused(BareMethod, steps=1, share=value).startswith("method.share: expected a")


def test_one_of_a_few_words():
    assert re.match("method.word: .*this or that, .*'other'$", refused(BareMethod, steps=1, word="other"))


# -- digest ---------------------------------------------------------------------------------------------------------


def test_equal_parameters_give_equal_digests():
    assert FedAL().digest == FedAL.under({"tau": 5}).digest
    assert FedAL(FedALParams(temperature=2)).digest == FedAL.under({"temperature": 2.0}).digest
    assert len(FedAL().digest) == 16


def test_every_parameter_counts():
    other = {
        "tau": 6, "public_batch": 33, "temperature": 1.5, "discriminator_temperature": 1.0, "discriminator_rate": 1e-3,
        "discriminator_optimiser": "sgd", "discriminator_schedule": "cosine", "discriminator_factor": 0.5,
        "discriminator_every_rounds": 2, "discriminator_layers": "64", "held_ratio": 0.5, "preset": "paper", "adversarial": 0.5, "less_forgetting": 0.0, "gradient_clip": 2.0,
        "target": "all", "max_devices": 65, "device": "cuda:0",
    }  # fmt: skip
    assert set(other) == set(FedAL().table)
    digests = {FedAL.under({key: value}).digest for key, value in other.items()}
    assert len(digests | {FedAL().digest}) == len(other) + 1


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


NOTHING = Exchange()


def bare(exchanges: tuple[Exchange, ...], closing: Exchange = NOTHING, name: str = "bare") -> bytes:
    """The digest of a method with these exchanges."""
    method = BareMethod(Bare(1))
    method.exchanges, method.closing, method.name = exchanges, closing, name
    return method.digest


def test_every_slot_counts_and_so_does_its_place():
    assert len({bare(*rows) for rows in ROWS.values()}) == len(ROWS)


def test_the_order_in_which_roles_are_written_does_not_count():
    assert bare((Exchange(up={"x": A, "y": B}),)) == bare((Exchange(up={"y": B, "x": A}),))


def test_the_name_counts():
    assert bare(()) != bare((), name="bear")


def test_digests_are_those_of_the_first_version():
    """Devices in the field refuse a coordinator whose digest is another; a new parameter is a new contract."""
    assert FedAL().digest.hex() == "1aad824be19aa6bd4c84cd6e0ceaaca0"
    assert load_method("fedavg")().digest.hex() == "bdd756144b086c12afe43d4eba3244a3"
    assert load_method("fedhkd").under({"share_weights": False}).digest.hex() == "8fc2acbd957bfa564df4dd541be77b0b"


# -- our own methods ------------------------------------------------------------------------------------------------


@EVERY
def test_a_method_speaks_known_words(name):
    method = load_method(name)()
    assert method.needs | method.teaches <= set(CAPABILITIES)
    assert method.terms <= set(terms())
    assert method.warnings(spec_of(name, feature_dim=64)) is not None


@pytest.mark.parametrize("tau", [1, 2, 5, 1000])
def test_fedal_has_one_exchange_more_than_iterations(tau):
    method = FedAL(FedALParams(tau=tau))
    assert len(method.exchanges) == tau + 1
    assert [bool(row.up) for row in method.exchanges] == [True] * tau + [False]
    assert [bool(row.down) for row in method.exchanges] == [False] + [True] * tau
    assert method.closing == Exchange()


def test_fedmd_closes_with_the_last_mean():
    method = FedMD.under({"public_batch": 16})
    (row,) = method.exchanges
    assert method.closing.down == row.down
    assert row.down["mean"].rows == row.up["logits"].rows == 16


def test_local_trades_nothing():
    assert Local().every_exchange == (Exchange(), Exchange())


def test_warnings_come_from_the_parameters():
    spec = spec_of("fedal")
    assert FedAL().warnings(spec) == ()
    assert any(text.startswith("W4") for text in FedAL(FedALParams(tau=1)).warnings(spec))
    assert any(text.startswith("W5") for text in FedAL(FedALParams(tau=1000)).warnings(replace(spec, rounds=9)))


# -- registration ---------------------------------------------------------------------------------------------------


class Point:
    """An entry point."""

    def __init__(self, name: str, method: object) -> None:
        self.name, self.value, self._method = name, f"somewhere:{name}", method

    def load(self) -> object:
        if isinstance(self._method, Exception):
            raise self._method
        return self._method


@pytest.fixture
def installed(monkeypatch):
    """Only these methods are registered."""
    real = importlib.metadata.entry_points

    def forget() -> None:
        for each in (registry.points, registry.is_own, registry.load_entry, check_registered):
            each.cache_clear()

    def install(*points: Point) -> None:
        monkeypatch.setattr(
            importlib.metadata,
            "entry_points",
            lambda group: points if group == "edge_sdk.methods" else real(group=group),
        )
        forget()

    yield install
    monkeypatch.undo()
    forget()


def test_methods_are_found_by_name(installed):
    installed(
        Point("bare", BareMethod),
        Point("awry", object()),
        Point("broken", ImportError("no module named torch_scatter")),
        Point("extra", MissingExtra("torch", "torch", "this method")),
    )
    assert load_method("bare") is BareMethod
    assert method_names() == ("awry", "bare", "broken", "extra")
    with pytest.raises(UsageError, match=r"'fedx'; .*awry, bare, broken, extra"):
        load_method("fedx")
    with pytest.raises(UsageError, match=r"somewhere:awry .*not a class .*Method"):
        load_method("awry")
    with pytest.raises(UsageError, match=r"somewhere:broken .*load: .*torch_scatter"):
        load_method("broken")
    with pytest.raises(MissingExtra, match="pip install"):
        load_method("extra")


def test_no_method_at_all(installed):
    installed()
    with pytest.raises(UsageError, match=r"method 'good'; .*none"):
        load_method("good")
