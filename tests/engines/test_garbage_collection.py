"""Python's collector looks seldom during a run, and as before after it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from edge_sim.engines.memory import rare_collection

FREEZE_COUNT = gc.get_freeze_count


@pytest.fixture(autouse=True)
def _nothing_is_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process of its own: conftest.py freezes what all tests share."""
    monkeypatch.setattr(gc, "get_freeze_count", FREEZE_COUNT)
    gc.unfreeze()
    yield
    gc.freeze()


def test_it_is_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with rare_collection():
        assert gc.get_threshold()[0] > before[0]
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_also_after_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), rare_collection():
        raise KeyError
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_what_its_owner_froze_stays_frozen() -> None:
    gc.freeze()
    with rare_collection():
        pass
    assert gc.get_freeze_count() > 0


def test_circles_are_found_even_so() -> None:
    class Node:
        def __init__(self) -> None:
            self.itself = self

    with rare_collection():
        for _ in range(3 * gc.get_threshold()[0]):
            Node()
        assert sum(isinstance(each, Node) for each in gc.get_objects()) < 2 * gc.get_threshold()[0]
