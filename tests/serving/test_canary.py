"""The guard of the coordinator: a round whose result loses a class on the canary samples has no result."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fleets
import numpy as np
import pytest

from coordinator.config import read_section
from coordinator.record import saved_record
from coordinator.record.observer import RunObserver
from coordinator.serving.aggregation import Aggregation
from coordinator.serving.intake.canary import ALL, HELD_ROUNDS, Canary, GuardTable, read_canary
from edge_sdk.data import Preprocess
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.models.base import Model
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.public_set.samples import PublicSet

ROUNDS, BAD, FORGOTTEN = 10, 6, 2
"""The rounds, the one whose result is bad, and the class that it forgets."""


class Lines(RunObserver):
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def noted(self, message: str) -> None:
        self.said.append(message)


def labelled(pictures: Path) -> PublicSet:
    with np.load(pictures) as found:
        return PublicSet(found["x_test"], labels=found["y_test"].astype(np.int64))


def guarded(pictures: Path, *, guard: bool) -> tuple[fleets.Run, Lines, list[float]]:
    """A run of FedAvg whose sixth mean forgets a class; returns its accuracies on that class by round, too."""
    lines, seen = Lines(), list[float]()
    given = {"rounds": ROUNDS, "start": "equal"}
    run = fleets.Run(fleets.config(pictures, "fedavg", **given), observer=lines)
    samples, net = labelled(pictures), run.fleet.devices[0].kit.model(None)
    server = run.server
    if guard:
        server._commands._aggregation._canary = Canary(samples, [net], 0.1)  # a simulation has no [guard]
    reduce, mine = server.method.reduce, samples.labels == FORGOTTEN

    def forgetting(spec: Any, state: Any, at: Any, uploads: Any) -> Any:
        found = reduce(spec, state, at, uploads)
        if at.round != BAD:
            return found
        net.set_weights(found.weights.values)
        rows = net.head_rows().copy()  # (k, d + 1), the bias last
        rows[FORGOTTEN, -1] -= 100.0
        net.set_head_rows(np.array([FORGOTTEN]), rows[[FORGOTTEN]])
        values = net.weights().copy()
        return dataclasses.replace(found, weights=dataclasses.replace(found.weights, values=values))

    server.method.reduce = forgetting  # type: ignore[method-assign]  # a fault

    def measure(model: Model, values: np.ndarray) -> float:
        model.set_weights(values.astype(np.float32))
        rows = model.logits(model.spec.preprocess(samples.samples))
        return float((rows.argmax(axis=1) == FORGOTTEN)[mine].mean())

    def done(*_: object) -> None:
        seen.append(measure(net, server.method_state.weights.values))

    lines.round_done = done  # type: ignore[method-assign]  # to look at each round
    run.finished()
    return run, lines, seen


def test_a_round_that_forgets_a_class_reaches_nobody(pictures: Path) -> None:
    run, lines, seen = guarded(pictures, guard=True)
    assert run.result.completed, run.result.reason
    assert [entry.contributors for entry in run.result.history] == [6] * BAD + [0] + [6] * (ROUNDS - BAD - 1)
    (line,) = [line for line in lines.said if "held back" in line]
    assert line.startswith("round 7 has no result: held back everywhere, devices continue from the last state: on the")
    assert f"class {FORGOTTEN} " in line
    assert min(seen[1:]) > 0.5
    assert seen[BAD] == seen[BAD - 1]
    standing = [line for line in lines.said if line.startswith("the canary guards")]
    assert standing[0].startswith("the canary guards 0 of")
    assert standing[-1].startswith("the canary guards all")
    _restarted(run, Canary(labelled(pictures), [run.fleet.devices[0].kit.model(None)], 0.1))


def _restarted(run: fleets.Run, canary: Canary) -> None:
    """Restore the record as a restart does: this canary must know what the one before knew."""
    server = run.server
    record = saved_record.from_json(json.loads(json.dumps(saved_record.to_json(server.record))), {})
    Aggregation(server._registry, server.reduction, record, 1, canary=canary)
    assert canary.to_json() == server.record.canary
    assert canary.news()[0].startswith("the canary guards all")


def test_without_the_guard_everybody_gets_it(pictures: Path) -> None:
    _, lines, seen = guarded(pictures, guard=False)
    assert seen[BAD] == 0.0
    assert not [line for line in lines.said if "held back" in line]


class Scripted(Canary):
    """A canary with a given accuracy of each state: on class 0 and on class 1, of 20 samples each."""

    def __init__(self, shade: int = 0) -> None:
        samples = PublicSet(np.full((40, 4), shade, np.uint8), labels=np.arange(40) % 2)
        net: Any = SimpleNamespace(spec=SimpleNamespace(layout=b"layout"))
        super().__init__(samples, [net], 0.1)

    def _rights(self, method: Any, state: Any, at: ExchangeId) -> Any:  # noqa: ARG002  # of Canary
        found = {each: np.arange(20) < round(20 * share) for each, share in enumerate(state)}
        found[ALL] = np.concatenate([*found.values()])
        return {(b"layout", each): right for each, right in found.items()}

    def after(self, *states: tuple[float, float]) -> list[str]:
        """The faults of rounds that reach these accuracies, in order."""
        return [self.fault(None, states[0], state, ExchangeId(0, 0)) for state in states]  # type: ignore[arg-type]  # no spec is read


def test_a_class_of_a_young_model_may_swing_and_a_class_that_held_may_not() -> None:
    canary = Scripted()
    assert canary.after((0.2, 0.6), (0.9, 0.2), (0.5, 0.8), (0.9, 0.4)) == [""] * 4
    assert canary.young == (0, 1)
    assert canary.after(*[(0.9, 0.8)] * HELD_ROUNDS)[-1] == ""
    assert canary.young == (1,)  # it has risen one round ago
    assert "not yet guarded, because their accuracy has not held for 3 rounds: 1" in canary.news()[0]
    assert canary.after((0.9, 0.8)) == [""]
    assert canary.news() == ["the canary guards all 2 classes"]
    assert canary.news() == []
    assert "class 0 90% -> 40%" in canary.after((0.4, 1.0))[0]


def test_all_samples_together_are_guarded_from_the_first_round_on() -> None:
    canary = Scripted()
    assert canary.after((0.9, 0.9)) == [""]
    assert "all classes 90% -> 50%" in canary.after((0.0, 1.0))[0]


def test_one_lucky_round_is_no_level_to_keep() -> None:
    canary = Scripted()
    assert not any(canary.after(*[(0.5, 0.7)] * (HELD_ROUNDS + 1), (0.9, 0.7), (0.5, 0.8)))
    assert "class 0 50% -> 10%" in canary.after((0.1, 1.0))[0]


def test_a_restart_forgets_nothing() -> None:
    before = Scripted()
    before.after(*[(0.9, 0.9)] * (HELD_ROUNDS - 1), (0.2, 0.9))
    before.after(*[(0.9, 0.9)] * HELD_ROUNDS)
    kept, again = json.loads(json.dumps(before.to_json())), Scripted()
    again.restore(kept)
    assert again.to_json() == kept
    assert again.after((0.0, 0.9)) == before.after((0.0, 0.9)) != [""]
    again.after((0.9, 0.9))
    again.restore({})
    assert again.after((0.0, 0.9)) == [""]
    other = Scripted(shade=1)
    other.restore(kept)  # of other samples
    assert other.young == ()
    assert other.after((0.0, 0.9)) == [""]


def stub(*, classes: int = 3, layout: bytes = b"layout", preprocess: Preprocess | None = None) -> Any:
    """A net of pictures of 4 x 4."""

    def logits(x: np.ndarray) -> np.ndarray:
        return np.zeros((len(x), classes), np.float32) + x.reshape(len(x), 16)[:, :1]

    spec = SimpleNamespace(layout=layout, name="stub", classes=classes, preprocess=preprocess or Preprocess())
    return SimpleNamespace(spec=spec, logits=logits if preprocess is None else lambda x: np.zeros((len(x), classes)))


@pytest.mark.parametrize(
    ("method", "table", "words"),
    [
        ("fedproto", {"canary": "c.npz"}, r"f: guard.canary: fedproto has no global model that the coordinator could"),
        ("fedavg", {"canary": "c.npz"}, r"f: guard.canary: c.npz needs `labels`, with at least 7 of some class"),
        ("fedavg", {"canary": "none.npz"}, r"f: guard.canary: .*none.npz: no such file$"),
        ("fedavg", {"canary": "no.npz"}, r"f: guard.canary: .*no.npz: .*not a readable npz file"),
        ("fedavg", {"canary": "c.npz", "max_drop": 3}, r"f: guard.max_drop: .*3"),
    ],
)
def test_a_mistake_gets_one_line(tmp_path: Path, method: str, table: dict[str, Any], words: str) -> None:
    np.savez(tmp_path / "c.npz", public=np.zeros((9, 4, 4), np.float32))
    (tmp_path / "no.npz").write_bytes(b"no")
    with pytest.raises(UsageError, match=words):
        read_canary(
            read_section(GuardTable, table, "guard", Path("f")), load_method(method)(), tmp_path, [stub()], "f: guard"
        )


@pytest.mark.parametrize(
    ("nets", "side", "words"),
    [
        ([], 4, r"f: guard.canary: no net of federation.nets takes shared weights, so nothing is tried"),
        ([stub(layout=b"")], 4, r"no net of federation.nets takes shared weights"),
        ([stub(classes=2)], 4, r"f: guard.canary: c.npz: label 2, and stub has the classes 0 to 1"),
        ([stub()], 5, r"f: guard.canary: c.npz: stub cannot take its samples: .*reshape"),
    ],
)
def test_nets_that_cannot_try_the_samples_get_one_line(tmp_path: Path, nets: Any, side: int, words: str) -> None:
    np.savez(tmp_path / "c.npz", public=np.zeros((30, side, side), np.float32), labels=np.arange(30) % 3)
    with pytest.raises(UsageError, match=words) as caught:
        read_canary(GuardTable(canary="c.npz"), load_method("fedavg")(), tmp_path, nets, "f: guard")
    assert "\n" not in str(caught.value)


def test_a_model_that_no_net_can_try_is_said(pictures: Path) -> None:
    canary = Canary(labelled(pictures), [stub()], 0.1)
    weights = Weights(values=np.zeros(4, np.float32), layout=b"\x01" * 32)
    method: Any = SimpleNamespace(common=lambda _state, _at: {"model": weights})
    assert canary.fault(method, None, None, ExchangeId(0, 0)) == ""
    assert canary.news() == [
        "the canary guards nothing; it tries no model of layout 01010101, because federation.nets has no such net"
    ]


def test_a_canary_of_whole_numbers_is_of_the_kind_that_the_nets_declare(tmp_path: Path) -> None:
    tokens = Preprocess(kind="tokens", vocabulary=9)
    np.savez(tmp_path / "c.npz", public=np.full((9, 5), 3), labels=np.arange(9) % 9 // 8)
    found = read_canary(
        GuardTable(canary="c.npz"), load_method("fedavg")(), tmp_path, [stub(preprocess=tokens)], "f: guard"
    )
    assert found is not None
    assert found.classes == (0,)


def test_no_canary_is_no_guard(tmp_path: Path) -> None:
    assert read_canary(GuardTable(), load_method("fedavg")(), tmp_path, [], "f: guard") is None
