"""What several folders of tests share."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

# One thread for torch, in the processes that tests start, too: results are promised to the bit for that, and more would
# only wait for each other.  It is read when torch is loaded.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.pop("COLUMNS", None)  # tables are as wide as they are, whatever terminal the tests run in

import fleets
import pytest
from hypothesis import HealthCheck, settings
from properties import SHARE

from coordinator.results.plots import drawing
from coordinator.results.plots.look import chosen_look
from edge_sdk import objectives
from edge_sdk.methods.contract.registry import check_registered
from edge_sdk.protocol import registry

# Property tests try the same few examples in each run, so that a failure is one's own, and more and other ones with
# --all, where a failure prints the line that repeats it.  Nor does a slow machine fail them: examples have no deadline, and may take
# their time to be made.
_COMMON: dict[str, Any] = {"database": None, "deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same_examples", derandomize=True, max_examples=-(-100 // SHARE), **_COMMON)
settings.register_profile("new_examples", derandomize=False, max_examples=100, print_blob=True, **_COMMON)
settings.load_profile("same_examples")

RENDER = drawing.render_figure


def render_nothing(_figure: object, path: Path, _heading: object) -> None:
    """Stands for drawing.render_figure, which takes most of the time of a small run, where no test looks at the pictures."""
    for name in chosen_look().formats:
        path.with_suffix(f".{name}").write_bytes(b"<svg></svg>" if name == "svg" else b"not rendered")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run the tests that are marked long or costly")
    parser.addoption("--costly", action="store_true", help="also run the tests that are marked costly, as CI does")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the examples before any test is read, because a decorator keeps the profile of its time."""
    if config.getoption("--all") and not config.getoption("--hypothesis-profile"):
        settings.load_profile("new_examples")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what is marked `traced` twice: as it is, and traced from the first step on.

    test_torch_traced compares the bits of traced and of other fits, net by net, term by term.  Marked are the tests that
    do something to a model between its fits, or give it a net that is not in that list.
    """
    if metafunc.definition.get_closest_marker("traced"):
        metafunc.fixturenames.insert(0, "traces")
        ways = [pytest.param("auto", id=""), pytest.param("always", marks=pytest.mark.costly, id="traced")]
        metafunc.parametrize("traces", ways, indirect=True)


@pytest.fixture
def traces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_SDK_TRACED", request.param)


def pytest_collection() -> None:
    """No collections while hundreds of modules are imported, which leave nothing to collect."""
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the costly tests first, so that no process is left alone with a long one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("costly") is None)


def pytest_collection_finish() -> None:
    """Leave out of every later collection what all tests share: millions of objects, which take half a second each time."""
    gc.freeze()
    frozen = gc.get_freeze_count()
    gc.get_freeze_count = lambda: frozen  # the real one, which each simulation calls, walks through all of them
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("long") and not item.config.getoption("--all"):
        pytest.skip("long: scripts/test --all runs it, too")
    if item.get_closest_marker("costly") and not (item.config.getoption("--costly") or item.config.getoption("--all")):
        pytest.skip("costly: .ci/run and scripts/test --costly run it, too")
    drawing.render_figure = RENDER if item.get_closest_marker("draws") else render_nothing


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


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The matplotlib figures that a test draws, in order, without rendering them."""
    pytest.importorskip("matplotlib")
    drawn: list[Any] = []

    def render(figure: Any, path: Path, heading: object) -> None:
        render_nothing(figure, path, heading)
        drawn.append(figure)

    monkeypatch.setattr(drawing, "render_figure", render)
    return drawn


_installed = functools.cache(importlib.metadata.entry_points)  # reads the metadata of all packages for each group


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Mapping[str, str]], None]]:
    """A function (group, {name: "MODULE:OBJECT"}) that stands for a package with these entry points, beside our own."""
    extra: list[importlib.metadata.EntryPoint] = []
    caches = (
        registry.points,
        registry.is_own,
        registry.load_entry,
        check_registered,
        objectives.terms,
        objectives.form_of,
    )

    def forget() -> None:
        for each in caches:
            each.cache_clear()

    def also(group: str, values: Mapping[str, str]) -> None:
        extra.extend(importlib.metadata.EntryPoint(name, value, group) for name, value in values.items())
        forget()

    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda group: [*_installed(group=group), *(point for point in extra if point.group == group)],
    )
    yield also
    forget()
