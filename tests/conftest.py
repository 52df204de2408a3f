"""What several folders of tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

# One thread for torch, in the processes that tests start, too: results are promised to the bit for that, and more would
# only wait for each other.  It is read when torch is loaded.
os.environ["OMP_NUM_THREADS"] = "1"

import fleets
import pytest
from hypothesis import settings

# The same examples in each run, so that a failure is one's own: `pytest --hypothesis-profile default` looks for others.
settings.register_profile("same_examples", derandomize=True, database=None)
settings.load_profile("same_examples")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run the tests that are marked long")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("long") and not item.config.getoption("--all"):
        pytest.skip("long: scripts/test --all runs it, too")


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """Also where a script started the tests in the background, and so with Ctrl-C ignored by all their processes."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set of four classes."""
    return fleets.write_pictures(tmp_path_factory.mktemp("pictures") / "pictures.npz")
