"""Records are made and changed as dataclasses do it themselves."""

import dataclasses
import pickle

import pytest

from edge_sdk.device.session import SessionPhase, SessionState
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.frames.records import field_names, getter, maker, replace
from edge_sdk.protocol.messages import Assign, Receipt, Upload


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """A record that checks its fields."""

    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(self.size)


@dataclasses.dataclass(frozen=True)
class Open:
    """A record without slots, and one that inherits."""

    items: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Wider(Open):
    """A record with inherited fields."""

    more: str = ""


MADE = {"federation": "f", "device": "d-1", "round": 2, "exchange": 1, "closing": False, "verdict": "accepted"}


@pytest.mark.parametrize(
    ("cls", "given"),
    [(Receipt, MADE), (SessionState, {}), (SessionState, {"epoch": 3}), (Checked, {"size": 2}), (Wider, {"more": "x"})],
)
def test_the_maker_makes_what_the_class_makes(cls, given):
    one = maker(cls)(**given)
    assert type(one) is cls
    assert one == cls(**given)
    assert repr(one) == repr(cls(**given))
    assert pickle.loads(pickle.dumps(one)) == one


def test_a_default_factory_makes_a_new_object_each_time():
    made = [maker(Open)(), maker(Open)()]
    made[0].items.append(1)
    assert made[1].items == []
    assert maker(Upload)(federation="f", device="d", round=0, exchange=0, samples=1).metrics == {}


def test_a_changed_record_is_a_new_one_and_stays_frozen():
    before = SessionState(epoch=1)
    after = replace(before, epoch=2, phase=SessionPhase.WORKING, exchange_id=ExchangeId(1, 0))
    assert (before.epoch, before.phase) == (1, SessionPhase.JOINING)
    expected = dataclasses.replace(before, epoch=2, phase=SessionPhase.WORKING, exchange_id=ExchangeId(1, 0))
    assert after == expected
    assert hash(after) == hash(expected)
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.epoch = 3


@pytest.mark.parametrize("record", [SessionState(), Wider(), Checked()])
def test_an_unknown_field_is_refused(record):
    with pytest.raises(TypeError):
        replace(record, unknown=1)
    with pytest.raises(TypeError):
        maker(type(record))(unknown=1)


def test_a_missing_field_is_refused():
    with pytest.raises(TypeError):
        maker(Assign)(federation="f")


def test_checks_of_a_class_are_made():
    with pytest.raises(ValueError, match="-1"):
        maker(Checked)(size=-1)
    with pytest.raises(ValueError, match="-1"):
        replace(Checked(), size=-1)


def test_values_come_in_the_order_of_the_fields():
    for record in (Checked(3), Receipt(**MADE), SessionState()):
        values = tuple(getattr(record, name) for name in field_names(type(record)))
        assert getter(type(record))(record) == values


def test_ctrl_c_while_a_class_is_made_stays_one(monkeypatch):
    @dataclasses.dataclass(frozen=True, slots=True)
    class New:
        size: int

    def interrupted(*_given, **_named):
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr(dataclasses, "make_dataclass", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace(New(1), size=2)


def test_a_record_is_a_value():
    one, same = Stamp(1, 2), Stamp(boot_epoch=1, sequence=2)
    assert one == same
    assert len({one, same}) == 1
    assert replace(one, sequence=3) == Stamp(1, 3)
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(AttributeError):
        one.another = 1
