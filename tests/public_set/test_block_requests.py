"""Which blocks are asked for and when: never more than a window, again when lost, and every one in the end."""

from __future__ import annotations

import random

import pytest

from edge_sdk.public_set.transfer import FIRST_TIMEOUT_S, LONGEST_TIMEOUT_S, WINDOW, BlockRequests


def test_it_begins_with_one_and_opens_to_a_window():
    requests = BlockRequests(range(40))
    assert requests.next_due_s() == 0.0
    asked = [*requests.next_requests(0.0)]
    assert asked == [0]
    most = 1
    for step in range(40):
        assert requests.note_received(asked.pop(0), step / 10)
        asked += requests.next_requests(step / 10)
        most = max(most, len(asked))
    assert most == WINDOW
    assert requests.complete
    assert requests.next_due_s() is None


def test_silence_makes_it_ask_again_and_wait_longer():
    requests = BlockRequests(range(3))
    times, now_s = [], 0.0
    assert requests.next_requests(now_s) == (0,)
    for _ in range(6):
        due_s = requests.next_due_s()
        assert due_s is not None
        assert requests.next_requests(due_s - 0.01) == ()
        assert requests.next_requests(due_s) == (0,)
        times.append(due_s - now_s)
        now_s = due_s
    assert times == [FIRST_TIMEOUT_S, 8.0, 16.0, 32.0, LONGEST_TIMEOUT_S, LONGEST_TIMEOUT_S]
    assert requests.note_received(0, now_s + 1)
    assert requests.next_requests(now_s + 1) == (1, 2)
    assert requests.next_due_s() == now_s + 1 + FIRST_TIMEOUT_S


def test_a_slow_link_is_not_taken_for_a_lossy_one():
    """60 KiB in 6 s: nothing is asked for twice once it is known how long a block takes."""
    requests, asked, now_s = BlockRequests(range(30)), [], 0.0
    twice, queue = 0, []
    while not requests.complete:
        chosen = requests.next_requests(now_s)
        twice += len(set(chosen) & set(asked))
        asked += chosen
        queue += chosen
        now_s += 6.0
        if queue:
            requests.note_received(queue.pop(0), now_s)
    assert twice <= 1


def test_a_link_that_is_back_is_asked_at_once():
    requests = BlockRequests(range(20))
    for index in requests.next_requests(0.0):
        requests.note_received(index, 0.1)
    on_their_way = requests.next_requests(0.1)
    requests.request_again()
    assert requests.next_due_s() == 0.0
    assert requests.next_requests(0.2) == on_their_way[:1]


def test_a_block_that_came_before_is_nothing_new():
    requests = BlockRequests(range(2))
    assert requests.next_requests(0.0) == (0,)
    assert requests.note_received(0, 1.0)
    assert not requests.note_received(0, 1.0)
    assert requests.note_received(1, 1.0)  # not asked for, and still wanted
    assert requests.complete


@pytest.mark.parametrize("seed", range(50))
def test_every_block_comes_in_the_end(seed: int):
    """Loss, repetition and reordering: at most a window is on its way, and little is asked for in vain."""
    rng = random.Random(seed)
    loss = rng.choice([0.0, 0.1, 0.3])
    total = rng.randrange(1, 120)
    missing = set(rng.sample(range(total), rng.randrange(1, total + 1)))
    requests, sent, now_s, asks = BlockRequests(missing), [], 0.0, 0
    come: set[int] = set()
    for _ in range(100_000):
        if requests.complete:
            break
        due_s = requests.next_due_s()
        assert due_s is not None
        chosen = requests.next_requests(now_s)
        assert len(requests._requested) <= WINDOW
        assert set(chosen) <= missing - come
        asks += len(chosen)
        for index in chosen:
            if rng.random() >= loss:
                sent += [index] * rng.choice([1, 1, 2])
        if rng.random() < 0.02:
            requests.request_again()
        if sent:
            now_s += 0.01
            index = sent.pop(rng.randrange(min(4, len(sent))))
            assert requests.note_received(index, now_s) == (index not in come)
            come.add(index)
        else:
            now_s = max(now_s, requests.next_due_s() or 0.0)
    assert requests.complete
    assert come == missing
    assert asks <= 3 * len(missing) + WINDOW
