"""Which blocks are asked for and when: never more than a window, again when lost, and every one in the end."""

from __future__ import annotations

import random

import pytest

from edge_sdk.public_set.fetch import PAUSE_FIRST_S, PAUSE_MOST_S, WINDOW, Asking


def test_it_begins_with_one_and_opens_to_a_window():
    asking = Asking(range(40))
    assert asking.next_due_s() == 0.0
    asked = [*asking.ask(0.0)]
    assert asked == [0]
    most = 1
    for step in range(40):
        assert asking.arrived(asked.pop(0), step / 10)
        asked += asking.ask(step / 10)
        most = max(most, len(asked))
    assert most == WINDOW
    assert asking.complete
    assert asking.next_due_s() is None


def test_silence_makes_it_ask_again_and_wait_longer():
    asking = Asking(range(3))
    times, now_s = [], 0.0
    assert asking.ask(now_s) == (0,)
    for _ in range(6):
        due_s = asking.next_due_s()
        assert due_s is not None
        assert asking.ask(due_s - 0.01) == ()
        assert asking.ask(due_s) == (0,)
        times.append(due_s - now_s)
        now_s = due_s
    assert times == [PAUSE_FIRST_S, 8.0, 16.0, 32.0, PAUSE_MOST_S, PAUSE_MOST_S]
    assert asking.arrived(0, now_s + 1)
    assert asking.ask(now_s + 1) == (1, 2)
    assert asking.next_due_s() == now_s + 1 + PAUSE_FIRST_S


def test_a_slow_link_is_not_taken_for_a_lossy_one():
    """60 KiB in 6 s: nothing is asked for twice once it is known how long a block takes."""
    asking, asked, now_s = Asking(range(30)), [], 0.0
    twice, queue = 0, []
    while not asking.complete:
        chosen = asking.ask(now_s)
        twice += len(set(chosen) & set(asked))
        asked += chosen
        queue += chosen
        now_s += 6.0
        if queue:
            asking.arrived(queue.pop(0), now_s)
    assert twice <= 1


def test_a_link_that_is_back_is_asked_at_once():
    asking = Asking(range(20))
    for index in asking.ask(0.0):
        asking.arrived(index, 0.1)
    on_their_way = asking.ask(0.1)
    asking.begin_again()
    assert asking.next_due_s() == 0.0
    assert asking.ask(0.2) == on_their_way[:1]


def test_a_block_that_came_before_is_nothing_new():
    asking = Asking(range(2))
    assert asking.ask(0.0) == (0,)
    assert asking.arrived(0, 1.0)
    assert not asking.arrived(0, 1.0)
    assert asking.arrived(1, 1.0)  # not asked for, and still wanted
    assert asking.complete


@pytest.mark.parametrize("seed", range(50))
def test_every_block_comes_in_the_end(seed: int):
    """Loss, repetition and reordering: at most a window is on its way, and little is asked for in vain."""
    rng = random.Random(seed)
    loss = rng.choice([0.0, 0.1, 0.3])
    total = rng.randrange(1, 120)
    missing = set(rng.sample(range(total), rng.randrange(1, total + 1)))
    asking, sent, now_s, asks = Asking(missing), [], 0.0, 0
    come: set[int] = set()
    for _ in range(100_000):
        if asking.complete:
            break
        due_s = asking.next_due_s()
        assert due_s is not None
        chosen = asking.ask(now_s)
        assert len(asking._asked) <= WINDOW
        assert set(chosen) <= missing - come
        asks += len(chosen)
        for index in chosen:
            if rng.random() >= loss:
                sent += [index] * rng.choice([1, 1, 2])
        if rng.random() < 0.02:
            asking.begin_again()
        if sent:
            now_s += 0.01
            index = sent.pop(rng.randrange(min(4, len(sent))))
            assert asking.arrived(index, now_s) == (index not in come)
            come.add(index)
        else:
            now_s = max(now_s, asking.next_due_s() or 0.0)
    assert asking.complete
    assert come == missing
    assert asks <= 3 * len(missing) + WINDOW
