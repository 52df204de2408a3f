"""The global model and the devices' personal models: both are measured in a round, and reported apart."""

import csv
import dataclasses
from pathlib import Path

import pytest

from coordinator.record import saved_record
from coordinator.record.round_result import CURVES, RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.results.comparison.compare import Comparison, MethodRuns, Trial
from coordinator.results.figures import outcome
from coordinator.results.figures.result import DeviceResult, Result
from coordinator.results.plots import curve_plots
from coordinator.results.report.run_files import read_run, write_run
from coordinator.results.report.run_table import run_table
from coordinator.results.report.summary import summary
from edge_sdk.methods.contract.registry import load_method
from edge_sim.config import settings
from edge_sim.runs.runner import run
from tests import fleets as tiny

GLOBAL = {
    "fedavg", "fedprox", "fedkf", "fedgkd", "qffl", "moon", "fedhkd", "fednh", "feddf", "fedgen", "fedbabu", "ditto", "fedrod",
}  # fmt: skip
PERSONAL = {
    "local", "fedmd", "fedmd_lf", "fedal", "feddf_al", "fedproto", "fedssa", "fd", "lg_fedavg", "fedclassavg", "fedper", "fedrep",
    "fedgh", "fedtgp", "fedcache", "fedl2g", "fedmrl",
}  # fmt: skip


def result(pictures, method):
    tables = tiny.tables(pictures, method, devices=3, rounds=3)
    if method == "fedbabu":  # shares what is in front of the last layer
        tables["fleet"][0]["model"] = "mlp"
    return run(settings.parse(tables, Path("f.toml")))


def rounds_csv(folder):
    with (folder / "rounds.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", sorted(GLOBAL | PERSONAL))
def test_which_models_a_method_has(name):
    models = load_method(name)().measured_models
    assert models[0] == "personal"
    assert ("global" in models) is (name in GLOBAL)


def test_parameters_decide_which_models_there_are():
    assert load_method("fedhkd").under({"share_weights": False}).measured_models == ("personal",)
    assert load_method("fednh").under({"share_body": False}).measured_models == ("personal",)
    assert load_method("fedavg").under({"cached": True}).measured_models == ("personal", "global", "active")


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedrod", "fedbabu"])
def test_both_models_are_measured_after_every_round(pictures, tmp_path, method):
    found = result(pictures, method)
    devices = {device.id for device in found.devices}
    for entry in found.history:
        assert set(entry.accuracy) == set(entry.global_accuracy) == devices
        assert len(set(entry.global_accuracy.values())) == 1
    assert any(entry.accuracy != entry.global_accuracy for entry in found.history)
    write_run(found, "", tmp_path)
    assert read_run(tmp_path) == found
    rows = rounds_csv(tmp_path)
    assert [row["global_measured"] for row in rows] == [row["measured"] for row in rows] == ["3"] * 3
    assert all(row["gm"] and row["global_amp"] and row["amp"] for row in rows)


def test_after_one_round_the_personal_model_is_that_of_the_devices_alone(pictures):
    """In the first round FedAvg trains what `local` trains: the same steps from the same start."""
    found = result(pictures, "fedavg")
    alone = result(pictures, "local")
    assert found.history[0].accuracy == alone.history[0].accuracy
    assert alone.history[0].global_accuracy == {}


def test_the_headline_compares_personal_models_and_names_the_global_one(pictures):
    found = result(pictures, "fedavg")
    whole = summary(found)
    table = run_table(found)
    personal, common = whole["accuracy"]["mean"], whole["global_model"]["accuracy"]["mean"]
    assert f"{100 * personal:.1f} %" in table.headline
    assert f"global model {100 * common:.1f} %" in table.headline
    assert whole["accuracy"]["gm"] == common
    assert "global" in [column.name for column in table.columns]
    assert "global" not in [column.name for column in run_table(result(pictures, "fedmd")).columns]


def test_a_comparison_has_the_global_models_apart(pictures):
    runs = [MethodRuns(name, (Trial(0, result(pictures, name)),)) for name in ("fedmd", "fedavg")]
    shared = Comparison(tuple(runs), "fedmd").of_shared_models()
    assert shared is not None
    assert [bool(line.trials[0].curve()) for line in shared.lines] == [False, True]
    assert Comparison((runs[0],), "fedmd").of_shared_models() is None
    assert runs[0].accuracy("gm") is None
    assert runs[1].accuracy("gm").mean == runs[1].accuracy("global_mean").mean


def test_below_all_devices_amp_alone_is_known(pictures, tmp_path):
    """As over a broker, where only those who were asked measure themselves."""
    whole = result(pictures, "fedmd")
    last = whole.history[-1]
    first = min(last.accuracy)
    part = {name: {first: getattr(last, name)[first]} for name in ("accuracy", "local_accuracy")}
    some = dataclasses.replace(whole, history=(*whole.history[:-1], dataclasses.replace(last, **part)))
    assert {"fm", "wlp"} <= whole.own_task(last.local_accuracy).keys()
    assert not {"fm", "wlp"} & some.own_task(part["local_accuracy"]).keys()
    assert "amp" in some.own_task(part["local_accuracy"])
    write_run(some, "", tmp_path)
    rows = rounds_csv(tmp_path)
    assert [row["measured"] for row in rows] == ["3", "3", "1"]
    assert (rows[-1]["fm"], rows[-1]["wlp"]) == ("", "")
    assert rows[0]["fm"]


def test_the_global_model_at_the_end_is_that_of_the_last_round_that_some_measured(pictures):
    """The others' newest figure is of an earlier model."""
    whole = result(pictures, "fedavg")
    last = whole.history[-1]
    first = min(last.global_accuracy)
    part = {"global_accuracy": {first: 0.9}, "global_local_accuracy": {first: 0.8}}
    some = dataclasses.replace(whole, history=(*whole.history[:-1], dataclasses.replace(last, **part)))
    found = summary(some)
    assert found["global_model"]["accuracy"]["mean"] == found["accuracy"]["gm"] == 0.9
    assert found["global_model"]["own_task"]["amp"] == pytest.approx(0.8)
    nobody = dataclasses.replace(last, global_accuracy={}, global_local_accuracy={})
    before = summary(dataclasses.replace(whole, history=(*whole.history[:-1], nobody)))
    assert before["global_model"]["accuracy"]["gm"] == whole.history[-2].global_accuracy[first]


def test_means_of_one_global_model_are_of_the_devices_that_measured_its_last_version(pictures):
    record = RunRecord()
    for device, round_, value in (("a", 1, 0.2), ("b", 2, 0.6), ("c", 2, 0.6)):
        record.measured(device, round_, {"accuracy": value, "local_accuracy": value / 2}, "global")
        record.measured(device, round_, {"accuracy": 0.5, "local_accuracy": value}, "personal")
    run = dataclasses.replace(
        result(pictures, "fedavg"),
        devices=tuple(DeviceResult(id=name, number=0, metrics=found) for name, found in record.metrics.items()),
        history=tuple(RoundResult(round=n, **{c: getattr(record, c).get(n, {}) for c in CURVES}) for n in (1, 2, 3)),
    )
    means = outcome.means(run)
    assert (means["global_accuracy_mean"], means["global_local_accuracy_mean"]) == (0.6, 0.3)
    assert means["local_accuracy_mean"] == pytest.approx(1.4 / 3)  # own models: the newest of each device
    means = outcome.means(dataclasses.replace(run, one_model=False))
    assert means["global_accuracy_mean"] == pytest.approx(1.4 / 3)  # no two devices have the same model


def test_the_subtitle_counts_the_devices_that_were_measured(pictures, tmp_path, figures):
    whole = result(pictures, "fedmd")
    first, *others = whole.history
    one = dataclasses.replace(first, accuracy=dict([next(iter(first.accuracy.items()))]))
    some = dataclasses.replace(whole, history=(one, *others))
    comparison = Comparison((MethodRuns("fedmd", (Trial(0, some),)),), "fedmd")
    curve_plots.accuracy_by_round(comparison, tmp_path / "p.png")
    assert "1 to 3 of 3" in figures[0].texts[1].get_text()


def test_amp_weighs_by_own_test_samples():
    devices = (
        DeviceResult(id="a", number=0, samples=10, test_samples=3),
        DeviceResult(id="b", number=1, samples=1, test_samples=1),
    )
    found = Result(
        federation="f", method="fedmd", seed=0, rounds=1, completed=True, rounds_done=1, devices=devices
    )  # fmt: skip
    assert found.own_task({"a": 1.0, "b": 0.0})["amp"] == 0.75


def test_figures_of_one_model_do_not_replace_those_of_the_other():
    record = RunRecord()
    record.measured("a", 2, {"accuracy": 0.5, "local_accuracy": 0.6, "pm_v": 0.7})
    record.measured("a", 1, {"accuracy": 0.4, "local_accuracy": 0.3}, "global")
    assert record.metrics["a"] == {
        "local_accuracy": 0.6, "pm_v": 0.7, "global_accuracy": 0.4, "global_local_accuracy": 0.3,
    }  # fmt: skip
    record.measured("a", 3, {"accuracy": 0.9})
    assert record.metrics["a"] == {"global_accuracy": 0.4, "global_local_accuracy": 0.3}
    again = saved_record.from_json(saved_record.to_json(record), saved_record.new_history(record))
    assert (again.accuracy, again.global_accuracy) == ({2: {"a": 0.5}, 3: {"a": 0.9}}, {1: {"a": 0.4}})
