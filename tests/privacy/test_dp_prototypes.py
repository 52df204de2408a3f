"""Mode A over a federation: what leaves, what devices predict from it, what is promised, and who is refused."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from laws import spec_of

from coordinator.report.summary import summary
from coordinator.serving.intake.upload_screen import outliers
from edge_sdk.data import LocalData, Samples
from edge_sdk.device.training.budget import BudgetLedger
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import NotReleased, UsageError
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import Released, ReleaseSums
from edge_sdk.methods.dp_prototypes import DPPrototypes, Params
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.privacy.noise import KeyedStream
from edge_sdk.privacy.release import (
    GRID,
    SHARES,
    Guarantee,
    contributions,
    head_of,
    means_of,
    merged,
    noised,
    sums_by_class,
)
from edge_sdk.protocol.knowledge import ClassRows, Payload
from edge_sdk.protocol.messages import Assign, Hello, Upload
from edge_sim.config import settings

BUDGET = Guarantee(8.0, 1e-5)
CLASSES, SIDE = 3, 4


# -- worked numbers -------------------------------------------------------------------------------------------------


def test_the_worked_number_of_the_page() -> None:
    features = np.array([[2.0, 0.0], [0.0, 1.0], [0.0, 4.0]])
    sums = noised(sums_by_class(contributions(features, 2.0), np.zeros(3, int), 2), None)
    assert sums[0] == pytest.approx([SHARES[0], 1.5 * SHARES[0], 3 * SHARES[1]], abs=1e-5)
    classes, means, counts = means_of(sums, 2.0, 2)
    assert (classes.tolist(), counts.tolist()) == ([0], [pytest.approx(3, abs=1e-4)])
    assert means[0] == pytest.approx([2 / 3, 1], abs=1e-4)
    head = head_of(classes, means, 2, -1e6)
    assert head[0] == pytest.approx([2 / 3, 1, -0.7222], abs=1e-4)
    assert head[1].tolist() == [0, 0, -1e6]


def test_the_largest_logit_is_that_of_the_nearest_prototype() -> None:
    rng = np.random.default_rng(2)
    means, x = rng.normal(size=(5, 8)), rng.normal(size=(200, 8))
    head = head_of(np.arange(5), means, 5, -1e6)
    nearest = np.linalg.norm(x[:, None] - means, axis=2).argmin(axis=1)
    assert np.array_equal((x @ head[:, :-1].T + head[:, -1]).argmax(axis=1), nearest)


def upload_of(samples: int, seed: int, length: float = 4.0) -> dict[str, Payload]:
    """The noised sums of a device with so many samples of 10 classes; length: that of their features; clip: 4."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(samples, 16)).astype(np.float32)
    features *= length / np.linalg.norm(features, axis=1, keepdims=True)
    exact = sums_by_class(contributions(features, 4.0), rng.integers(0, 10, samples), 10)
    noise = rng.normal(size=exact.shape) / BUDGET.mu
    rows = (exact / GRID + noise).astype(np.float32)
    return {"sums": ClassRows(classes=np.arange(10, dtype=np.int32), rows=rows, counts=np.ones(10, np.int32))}


@pytest.mark.parametrize("sizes", [(12000, 80, 80, 80, 80), (1, 3000, 3000, 3000), (0, 0, 0, 100_000)])
def test_a_device_with_much_data_or_little_is_no_outlier(sizes: tuple[int, ...]) -> None:
    method = DPPrototypes(Params())
    for length in (0.1, 4.0):
        found = {str(each): method.size_of(upload_of(n, each, length)) for each, n in enumerate(sizes)}
        assert not outliers({device: size for device, size in found.items() if size is not None})
        assert None not in found.values()


def test_sums_beyond_what_their_own_counts_allow_are_outliers() -> None:
    method = DPPrototypes(Params())
    uploads = [upload_of(80, each) for each in range(5)]
    uploads[2]["sums"].rows[3, 0] = 1e4  # type: ignore[attr-defined]  # it has rows
    uploads[2]["sums"].rows[7, -1] = 1e4  # type: ignore[attr-defined]  # a count of another class hides nothing
    sizes = {str(each): method.size_of(upload) or 0.0 for each, upload in enumerate(uploads)}
    assert outliers(sizes).keys() == {"2"}


def test_sums_add_up_to_the_same_bits_in_any_order_and_one_device_moves_them_by_a_bound() -> None:
    rng = np.random.default_rng(3)
    parts = [(np.arange(2), rng.normal(size=(2, 3)) * 10.0**size) for size in (-6, 0, 3, 5)]
    found = {merged(order, 2, 1e6).tobytes() for order in itertools.permutations(parts)}
    assert len(found) == 1
    liar = (np.arange(2), np.full((2, 3), 1e6))
    assert np.abs(merged([*parts, liar], 2, 100.0) - merged(parts, 2, 100.0)).max() == 100.0


def test_numbers_of_a_secret_are_uniform_repeat_and_differ_by_use() -> None:
    streams = [KeyedStream(bytes(32), use) for use in (b"a", b"a", b"b")]
    drawn = [[stream.below(7) for _ in range(7000)] for stream in streams]
    assert drawn[0] == drawn[1] != drawn[2]
    counts = np.bincount(drawn[0], minlength=7)
    assert ((counts - 1000) ** 2 / 1000).sum() < 22.5  # chi-square, 6 degrees, one in a thousand
    with pytest.raises(ValueError, match="secret"):
        KeyedStream(b"short", b"")


# -- on a device ----------------------------------------------------------------------------------------------------


def bench(ledger: BudgetLedger | None, count: int = 60) -> Workbench:
    rng = np.random.default_rng(0)
    y = np.arange(count) % CLASSES
    x = (np.eye(CLASSES)[y] @ rng.normal(size=(CLASSES, SIDE * SIDE))).reshape(-1, SIDE, SIDE).astype(np.float32)
    model = NumpyModel(CLASSES, (1, SIDE, SIDE), seed=0)
    return Workbench(model, LocalData(train=Samples(x, y)), budget=ledger)


def released(at: Workbench, cost: Guarantee | None = BUDGET, secret: int = 1, **more: Any) -> Released:
    job = Job(
        spec=spec_of(DPPrototypes),
        number=0,
        round=0,
        exchange=0,
        closing=False,
        samples=len(at.data.train),
        learns=True,
        secret=bytes([secret]) * 32,
    )
    answers: list[Released] = []

    def work() -> Iterator[None]:
        answers.append((yield from at.serve(ReleaseSums(**{"clip": 4.0, "cost": cost, "insists": True, **more}), job)))

    list(work())
    return answers[0]


def test_the_same_data_leave_as_the_same_bytes_also_where_the_ledger_was_lost(tmp_path: Path) -> None:
    ledger = BudgetLedger(tmp_path / "a.db", BUDGET)
    first, again = (released(bench(ledger)).sums.tobytes() for _ in range(2))
    assert first == again == released(bench(BudgetLedger(None, BUDGET))).sums.tobytes()
    assert ledger.releases == 1
    assert released(bench(BudgetLedger(None, BUDGET)), secret=2).sums.tobytes() != first


def test_beyond_the_budget_the_earlier_sums_leave_again() -> None:
    ledger = BudgetLedger(None, BUDGET)
    first = released(bench(ledger))
    second = released(bench(ledger, 90), version=first.version)
    assert second.version == first.version
    assert second.sums.tobytes() == first.sums.tobytes()
    with pytest.raises(NotReleased) as caught:
        released(bench(ledger, 90))
    assert "budget" in caught.value.remedy


def test_without_a_budget_nothing_is_released_where_a_guarantee_is_wanted() -> None:
    for ledger, cost in ((None, BUDGET), (BudgetLedger(None, BUDGET), None)):
        with pytest.raises(UsageError, match="no formal guarantee") as caught:
            released(bench(ledger), cost)
        assert "epsilon" not in str(caught.value)
    bare = released(bench(None), None, insists=False).sums
    assert bare[:, -1] / SHARES[1] == pytest.approx([20] * CLASSES, abs=20 / GRID * 10)


# -- V4: a ledger that was copied or restored -----------------------------------------------------------------------


def test_a_copied_ledger_is_refused(tmp_path: Path) -> None:
    first, copy = tmp_path / "a" / "privacy.db", tmp_path / "b.db"
    BudgetLedger(first, BUDGET).close()
    shutil.copy(first, copy)
    with pytest.raises(UsageError, match="copy") as caught:
        BudgetLedger(copy, BUDGET)
    assert "\n" not in str(caught.value)
    BudgetLedger(first.rename(tmp_path / "moved.db"), BUDGET).close()


def test_a_ledger_that_was_restored_in_place_is_refused_however_often_the_device_restarts(tmp_path: Path) -> None:
    path = tmp_path / "privacy.db"
    ledger = BudgetLedger(path, BUDGET)
    begun = path.read_bytes()
    first = released(bench(ledger)).version
    newest = path.read_bytes()
    path.write_bytes(begun)  # the same file, with what it held before
    with pytest.raises(NotReleased) as caught:
        released(bench(ledger, 90), version=first)
    assert "older budget ledger" in caught.value.remedy
    for _ in range(8):
        with pytest.raises(UsageError, match=r"older budget ledger, .*put the newest ledger back") as refused:
            BudgetLedger(path, BUDGET)
        assert "\n" not in str(refused.value)
    path.write_bytes(newest)
    assert BudgetLedger(path, BUDGET).releases == 1


@pytest.mark.parametrize("left", [None, b""])
def test_a_ledger_that_was_deleted_or_emptied_is_refused(tmp_path: Path, left: bytes | None) -> None:
    path = tmp_path / "privacy.db"
    ledger = BudgetLedger(path, BUDGET)
    released(bench(ledger))
    newest = path.read_bytes()
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    for _ in range(3):
        with pytest.raises(UsageError, match="missing or empty: put the newest ledger back"):
            BudgetLedger(path, BUDGET)
    with pytest.raises(NotReleased):
        released(bench(ledger, 90))
    path.unlink(missing_ok=True)
    path.write_bytes(newest)  # another file, which is the newest ledger in its place
    assert BudgetLedger(path, BUDGET).releases == 1


def test_a_ledger_that_began_anew_is_refused_by_what_the_state_of_a_federation_knows(tmp_path: Path) -> None:
    path = tmp_path / "privacy.db"
    first = released(bench(BudgetLedger(path, BUDGET))).version
    for each in tmp_path.iterdir():
        each.unlink()
    with pytest.raises(NotReleased) as caught:
        released(bench(BudgetLedger(path, BUDGET), 90), version=first)
    assert "lacks what this device has released" in caught.value.remedy


def test_a_power_cut_before_the_witness_was_written_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "privacy.db"
    BudgetLedger(path, BUDGET)
    before = path.with_suffix(".seen").read_bytes()
    released(bench(BudgetLedger(path, BUDGET)))
    path.with_suffix(".seen").write_bytes(before)
    assert BudgetLedger(path, BUDGET).releases == 1
    assert path.with_suffix(".seen").read_bytes() != before


def test_a_ledger_of_before_there_were_marks_opens(tmp_path: Path) -> None:
    path = tmp_path / "privacy.db"
    released(bench(BudgetLedger(path, BUDGET)))
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE marks")
    path.with_suffix(".seen").unlink()
    assert [BudgetLedger(path, BUDGET).releases for _ in range(2)] == [1, 1]


def test_two_federations_share_a_ledger_at_once(tmp_path: Path) -> None:
    ledgers = [BudgetLedger(tmp_path / "privacy.db", BUDGET) for _ in range(2)]
    first, again = (released(bench(each)).sums.tobytes() for each in ledgers)
    assert first == again
    assert [each.releases for each in ledgers] == [1, 1]
    with pytest.raises(NotReleased):
        released(bench(ledgers[0], 90))


# -- numbers that no clipping bounds --------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_features_that_are_not_finite_are_not_released(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = BudgetLedger(None, BUDGET)
    at = bench(ledger)
    spoilt = at.model.features(at.samples).copy()
    spoilt[1, 0] = wrong
    monkeypatch.setattr(at, "features", lambda _: spoilt)
    with pytest.raises(NotReleased) as caught:
        released(at)
    assert "1 samples, of class 1, hold NaN or Inf" in caught.value.remedy
    assert "class" not in str(caught.value)  # which travels
    assert ledger.releases == 0


# -- over a federation ----------------------------------------------------------------------------------------------


def tables(pictures: Path, **method: Any) -> dict[str, Any]:
    found = fleets.tables(pictures, "dp_prototypes", devices=4)
    found["method"] = {"min_samples": 5, **method}
    found["partition"] = {"kind": "iid"}
    return found


def run_of(found: dict[str, Any]) -> fleets.Run:
    return fleets.Run(settings.parse(found, Path("test.toml")))


def test_a_run_predicts_from_prototypes_and_says_what_it_promises(pictures: Path) -> None:
    run = run_of(tables(pictures))
    sent = run.tap()
    run.finished()
    whole = summary(run.result)
    assert whole["privacy"].items() >= {"mode": "A", "epsilon": 8.0, "delta": 1e-5, "unit": "training record"}.items()
    assert whole["privacy"]["of"] == "one version of the data"
    assert any(line.startswith("W25") and "epsilon = 8 " in line for line in whole["warnings"])
    assert run.result.metrics.keys() <= {"accuracy_mean"}
    assert whole["accuracy"]["mean"] > 0.6
    ups = [each for each in sent if isinstance(each, Upload) and each.knowledge and each.device == "device-00"]
    rows = {each.knowledge["sums"].rows.tobytes() for each in ups}  # type: ignore[attr-defined]
    assert (len(ups), len(rows)) == (3, 1)


def test_no_number_of_samples_leaves_but_in_the_sums(pictures: Path) -> None:
    """V5: Hello and uploads of a device with a budget are the same whatever it holds."""
    run = run_of(tables(pictures))
    sent = run.tap()
    run.finished()
    hellos = [each for each in sent if isinstance(each, Hello)]
    assert hellos
    for each in hellos:
        assert (each.samples, each.class_counts, each.capacity, each.test_samples) == (0, (), 0, 0)
    ups = [each for each in sent if isinstance(each, Upload)]
    for each in ups:
        assert (each.samples, each.class_counts, each.busy_s, each.energy_j) == (0, (), 0.0, 0.0)
        assert each.metrics.keys() <= {"accuracy"}
        assert (each.personal_metrics, each.joining_metrics, each.instruments) == ({}, {}, {})
        assert all((payload.counts == 1).all() for payload in each.knowledge.values())  # type: ignore[attr-defined]


def test_without_noise_a_run_promises_nothing(pictures: Path) -> None:
    whole = summary(run_of(tables(pictures, epsilon=0.0, without_guarantee="tell")).finished().result)
    assert whole["privacy"]["mode"] == "C"
    assert "epsilon" not in whole["privacy"]
    assert "epsilon" not in " ".join([whole["privacy"]["promise"], *whole["warnings"]])
    assert whole["accuracy"]["mean"] > 0.6


def test_a_class_with_too_few_samples_is_held_back(pictures: Path) -> None:
    run = run_of(tables(pictures, min_samples=10**4))
    sent = run.tap()
    run.finished()
    assert [each.down for each in sent if isinstance(each, Assign) and each.down] == []


GOOD = Hello(
    federation="tiny", device="d", sdk="1", capabilities=(), terms=(), classes=3, feature_dim=16, samples=0,
    class_counts=(), public_sha256=None, inert_terms=("prototype-pull",),
)  # fmt: skip


@pytest.mark.parametrize("wrong", [{"inert_terms": ()}, {"samples": 60}, {"class_counts": (1, 2, 3)}, {"capacity": 9}])
def test_a_device_whose_guarantee_fails_is_refused_or_told(wrong: dict[str, Any]) -> None:
    """V3: and no epsilon is printed."""
    hello, refusing = dataclasses.replace(GOOD, **wrong), DPPrototypes()
    assert refusing.objection(GOOD) == ""
    assert refusing.objection(hello).startswith("no formal guarantee")
    telling = DPPrototypes(Params(without_guarantee="tell"))
    assert telling.objection(hello) == ""
    told = telling.promise([GOOD, hello])
    assert told["mode"] == "C"
    assert "epsilon" not in f"{told} {telling.warnings(spec_of(DPPrototypes))} {refusing.objection(hello)}"
    assert telling.promise([GOOD])["epsilon"] == 8.0


def test_a_device_with_a_budget_leaves_what_would_tell_more(pictures: Path) -> None:
    for method in ("fedavg", "dp_prototypes"):
        found = fleets.tables(pictures, method, devices=2)
        run = run_of(found)
        for each in run.devices:
            each.agent.bench.budget = BudgetLedger(None, Guarantee(1.0, 1e-5))
        run.finished()
        assert {each.agent.refusal.reason for each in run.devices if each.agent.refusal} == {"privacy"}
