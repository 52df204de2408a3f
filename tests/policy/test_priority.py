"""The niceness of the training thread, and the threads of the libraries that compute."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from edge_sdk.policy.priority import limit_threads, lower_priority

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="niceness of threads is Linux's")


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@linux
def test_the_training_thread_alone_is_nice() -> None:
    seen: list[int] = []

    def train() -> None:
        lower_priority(7)
        child = threading.Thread(target=lambda: seen.append(niceness()))
        child.start()
        child.join()
        seen.append(niceness())

    before = niceness()
    trainer = threading.Thread(target=train)
    trainer.start()
    trainer.join()
    assert seen == [7, 7]
    assert niceness() == before


@linux
def test_no_niceness_changes_nothing() -> None:
    before = niceness()
    lower_priority(0)
    assert niceness() == before


@pytest.fixture
def torch_threads() -> Iterator[object]:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    yield torch
    torch.set_num_threads(before)


def test_torch_computes_with_the_threads_of_the_policy(torch_threads) -> None:
    limit_threads(3)
    assert torch_threads.get_num_threads() == 3
    limit_threads(None)
    assert torch_threads.get_num_threads() == 3


def test_numpy_still_computes_after_its_threads_were_set(tmp_path) -> None:
    limit_threads(1)
    assert (np.ones((64, 64)) @ np.ones((64, 64)) == 64).all()
    limit_threads(1, maps=tmp_path / "no-such-file")
