"""What a plug-in method uses must be registered: what was forgotten is refused before anybody trains."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from coordinator.config import federation, read_settings
from edge_sdk import plugins
from edge_sdk.cli import main
from edge_sdk.device.membership import join
from edge_sdk.errors import RemoteProtocolError, UsageError
from edge_sdk.methods import Exchange, Method, Slot
from edge_sdk.methods.contract.registry import METHODS, check_registered, load_method
from edge_sdk.methods.contract.requests import REQUESTS, Request, serves
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import TERMS, CrossEntropy
from edge_sdk.protocol import registry
from edge_sdk.protocol.frames.schema import Vector, wire
from edge_sdk.protocol.knowledge import PAYLOADS, Payload
from edge_sdk.protocol.messages import Welcome
from edge_sdk.tools.doctor.finding import Level
from edge_sdk.tools.doctor.machine import judge_plugin

Register = Callable[[str, Mapping[str, str]], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DoubleEntropy(CrossEntropy):
    name: ClassVar[str] = "double-entropy"


@dataclass(frozen=True)
class Ask(Request):
    """Answered with nothing."""


@serves(Ask)
def answer(_bench: Any, _request: Ask, _job: Any) -> None:
    return None


@wire("test-vocabulary")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Note(Payload):
    values: Vector

    def check(self, expect: Any) -> None:
        pass

    @classmethod
    def most_bytes(cls, _expect: Any) -> tuple[int, ...]:
        return (4,)


@dataclass(frozen=True, kw_only=True)
class Params:
    pass


def objective() -> tuple[CrossEntropy, ...]:
    return (DoubleEntropy(),)


class Wordy(Method[Params]):
    name = "wordy"
    title = "A method with words of its own"
    citation = "this test"
    exchanges = (Exchange(up={"own": Slot(Note)}),)
    terms = frozenset({"double-entropy"})
    discloses = "nothing"

    def train(self, device):
        yield Ask()
        yield from device.fit(objective())


PARTS = {
    TERMS: {"double-entropy": f"{__name__}:DoubleEntropy"},
    REQUESTS: {"Ask": f"{__name__}:answer"},
    PAYLOADS: {"test-vocabulary": f"{__name__}:Note"},
}
NAMES = {TERMS: "DoubleEntropy", REQUESTS: "Ask", PAYLOADS: "Note"}


@pytest.fixture
def install(register: Register) -> Callable[..., None]:
    def install(*, without: str = "", **others: str) -> None:
        register(METHODS, {"wordy": f"{__name__}:Wordy", **others})
        for group, points in PARTS.items():
            register(group, points if group != without else {})

    return install


def settings_of(method: str) -> Any:
    return read_settings({"federation": {"name": "lab", "method": method, "rounds": 1, "devices": 2}}, Path("lab.toml"))


def test_a_method_with_all_parts_registered_loads(install: Callable[..., None]) -> None:
    install()
    assert load_method("wordy") is Wordy
    assert not plugins.plugin_faults()
    assert {(each.group, each.name) for each in plugins.installed_plugins()} == {
        (METHODS, "wordy"),
        *((group, name) for group, points in PARTS.items() for name in points),
    }


@dataclass(frozen=True, kw_only=True)
class Demanding:
    weight: float


class Nameless(Method[Params]):
    pass


class Untitled(Method[Params]):
    name = "wordy"


class Renamed(Wordy):
    name = "fedavg"


class Bare(Method):  # type: ignore[type-arg]  # what is forgotten here
    name = title = citation = discloses = "wordy"


class WithoutDefault(Wordy, Method[Demanding]):
    pass


@dataclass(frozen=True, kw_only=True)
class Several:
    weights: list[float] = field(default_factory=list)


class Listed(Method[Several]):
    name = title = citation = discloses = "wordy"


@pytest.mark.parametrize(
    ("cls", "told"),
    [
        ("Nameless", "has no name"),
        ("Untitled", "has no title"),
        ("Renamed", "has the name 'fedavg': register it under that name"),
        ("Bare", r"names no parameters: derive it from Method\[Params\]"),
        ("Listed", "cannot be made with its defaults: .*list"),
    ],
)
def test_a_method_that_does_not_say_what_it_is_stops_nobody_else(
    install: Callable[..., None], cls: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    install(wordy=f"{__name__}:{cls}")
    with pytest.raises(UsageError, match=f"^method 'wordy': {__name__}:{cls} {told}.*; uninstall"):
        load_method("wordy")
    assert main(["methods"]) == 0
    said = capsys.readouterr()
    assert said.err.count("method 'wordy'") == 1
    assert "fedavg" in said.out
    assert main(["methods", "wordy"]) == 2
    assert cls in capsys.readouterr().err
    assert len(plugins.plugin_faults()) == 1


def test_a_method_with_a_parameter_without_a_default_is_not_listed(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install(wordy=f"{__name__}:WithoutDefault")
    assert load_method("wordy") is WithoutDefault
    assert main(["methods"]) == 0
    assert "method 'wordy' is not listed: it needs method.weight, which has no default" in capsys.readouterr().err
    assert main(["init", "-", "--method", "wordy"]) == 2
    assert "--method wordy: it needs method.weight" in capsys.readouterr().err


def test_a_handler_that_was_not_declared_one_is_named_when_the_settings_are_read(
    install: Callable[..., None], register: Register
) -> None:
    install(without=REQUESTS)
    register(REQUESTS, {"Ask": f"{__name__}:objective"})
    with pytest.raises(UsageError, match=rf"'Ask': {__name__}:objective does not serve {__name__}.Ask"):
        federation(settings_of("wordy"), classes=3)


@pytest.mark.parametrize("group", PARTS)
def test_a_forgotten_entry_point_is_named_when_the_settings_are_read(install: Callable[..., None], group: str) -> None:
    install(without=group)
    with pytest.raises(UsageError) as caught:
        federation(settings_of("wordy"), classes=3)
    line = str(caught.value)
    assert line.startswith("lab.toml: ")
    assert "\n" not in line
    for part in (NAMES[group], group, *PARTS[group]):
        assert part in line
    (fault,) = plugins.plugin_faults()
    assert fault in line
    assert federation(settings_of("fedavg"), classes=3).spec.method == "fedavg"


def test_a_device_with_a_broken_handler_is_told_so_at_its_welcome(
    install: Callable[..., None], register: Register
) -> None:
    install()
    spec = federation(settings_of("wordy"), classes=3).spec
    welcome = Welcome(federation="lab", run=bytes(16), epoch=1, device="one", number=0, spec=spec)
    model = NumpyModel(3, (1, 2, 2), seed=0)
    assert join(welcome, model.spec, shares_weights=False).method.name == "wordy"
    register(REQUESTS, {"Ask": "acme_parts:ask"})
    with pytest.raises(RemoteProtocolError, match=r"'Ask' .*twice"):
        join(welcome, model.spec, shares_weights=False)


def test_a_broken_plug_in_is_listed_with_its_remedy(register: Register) -> None:
    register(REQUESTS, {"Lost": "acme_parts:lost"})
    (found,) = plugins.installed_plugins()
    assert (found.group, found.name, found.package) == (REQUESTS, "Lost", "acme_parts")
    judged = judge_plugin(found)
    assert judged.level is Level.FAIL
    assert "acme_parts:lost" in judged.found
    assert "acme_parts" in judged.remedy


def test_the_metadata_of_a_package_are_read_once_for_all_its_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = registry.package

    def package(point: importlib.metadata.EntryPoint) -> str:
        asked.append(real(point))
        return asked[-1]

    registry.points.cache_clear()
    monkeypatch.setattr(registry, "package", package)
    plugins.installed_plugins([METHODS])
    assert len(registry.names(METHODS)) > len(asked) == len(set(asked))


def test_the_metadata_are_not_read_again_for_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    real = importlib.metadata.Distribution.metadata.fget

    def metadata(package: importlib.metadata.Distribution) -> object:
        read.append(package)
        return real(package)

    monkeypatch.setattr(importlib.metadata.Distribution, "metadata", property(metadata))
    registry.is_own.cache_clear()
    check_registered.cache_clear()
    load_method("fedmd")
    first = len(read)
    for _ in range(20):
        load_method("fedmd")
    assert len(read) == first > 0
