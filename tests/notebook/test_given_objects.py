"""Models and data that are given as objects: which functions are one model, and that no data of a run are replaced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import edge_sim
from edge_sdk.errors import RunFailed, UsageError
from edge_sdk.models.predict_only import PredictOnly
from edge_sim.engines import choice
from edge_sim.fleet import feasible
from edge_sim.models.given_functions import function_digest
from edge_sim.runs.runner import check_taken_part

RNG = np.random.default_rng(0)
MEANS = RNG.normal(size=(3, 4, 4))
SCALE = 1.0


def samples(count, noise):
    y = np.arange(count) % 3
    return (MEANS[y] + noise * RNG.normal(size=(count, 4, 4))).astype(np.float32), y


DATA = (*samples(120, 0.3), *samples(30, 0.3))
OTHER = (*samples(120, 3.0), *samples(30, 3.0))
TABLES = {
    "federation": {"name": "given", "method": "local", "rounds": 1, "devices": 2},
    "data": {"public": 0},
    "partition": {"kind": "iid"},
    "run": {"standalone": False},
}


def net(hidden, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def net_of(hidden):
    def model(classes, _shape, _seed):
        return net(hidden, classes)

    return model


def widths(result):
    return [result.trained[device].spec.feature_dim for device in sorted(result.trained)]


def test_functions_that_differ_in_what_they_took_in_are_different_models():
    result = edge_sim.run(TABLES, models=[net_of(8), net_of(16)], data=DATA)
    assert widths(result) == [8, 16]
    rows = {"fleet": [{"model": "small"}, {"model": "large"}]}
    named = edge_sim.run({**TABLES, **rows}, models={"small": net_of(8), "large": net_of(16)}, data=DATA)
    assert widths(named) == [8, 16]


def test_auto_keeps_functions_in_this_process(monkeypatch):
    monkeypatch.setattr(choice, "WORTH_S", 0.0)
    tables = {**TABLES, "run": {**TABLES["run"], "processes": "auto", "stack": "auto"}}
    assert edge_sim.run(tables, models=net_of(8), data=DATA).completed


def test_objects_whose_contents_nobody_knows_make_different_models_too():
    class Box:
        def __init__(self, hidden):
            self.hidden = hidden

    def of(box):
        return lambda classes, _shape, _seed: net(box.hidden, classes)

    assert function_digest(of(Box(8))) == function_digest(of(Box(16)))
    assert widths(edge_sim.run(TABLES, models=[of(Box(8)), of(Box(16))], data=DATA)) == [8, 16]


def test_a_digest_follows_code_closures_defaults_and_globals(monkeypatch):
    def scaled(*_given):
        return SCALE

    before = function_digest(scaled)
    assert before == function_digest(scaled)
    monkeypatch.setattr(f"{__name__}.SCALE", 2.0)
    assert function_digest(scaled) != before
    assert function_digest(net_of(8)) == function_digest(net_of(8))
    assert function_digest(lambda w=1: w) != function_digest(lambda w=2: w)
    assert function_digest(net_of(np.zeros(3))) != function_digest(net_of(np.ones(3)))


def test_a_digest_of_functions_that_call_each_other_ends():
    def even(n):
        return odd(n - 1) if n else True

    def odd(n):
        return even(n - 1) if n else False

    assert len(function_digest(even)) == 8


def test_runs_of_another_function_are_not_taken_for_those_of_this_one(tmp_path):
    edge_sim.compare(TABLES, ["local"], models=net_of(8), data=DATA, out=tmp_path)
    with pytest.raises(UsageError, match="holds a run with other settings"):
        edge_sim.compare(TABLES, ["local"], models=net_of(16), data=DATA, out=tmp_path)


@pytest.mark.parametrize("resume", [False, True])
def test_data_of_a_run_are_not_replaced(tmp_path, resume):
    edge_sim.run(TABLES, models=net_of(8), data=DATA, out=tmp_path)
    before = (tmp_path / "data.npz").read_bytes()
    with pytest.raises(UsageError, match="holds other data, of earlier runs"):
        edge_sim.run(TABLES, models=net_of(8), data=OTHER, out=tmp_path, resume=resume)
    assert (tmp_path / "data.npz").read_bytes() == before


def test_a_study_without_a_folder_of_its_own_can_be_repeated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = edge_sim.compare(TABLES, ["local"], models=net_of(8), data=DATA)
    began = (tmp_path / "runs" / "given-compare" / "local" / "seed-0" / "summary.json").stat().st_mtime_ns
    again = edge_sim.compare(TABLES, ["local"], models=net_of(8), data=DATA)
    assert again.folder == first.folder
    assert (tmp_path / "runs" / "given-compare" / "local" / "seed-0" / "summary.json").stat().st_mtime_ns == began


def test_data_that_are_none_are_refused():
    with pytest.raises(UsageError, match="data: expected x_train"):
        edge_sim.run(TABLES, data=5)


def test_a_run_in_which_nobody_could_take_part_raises_with_the_refusals(monkeypatch):
    monkeypatch.setattr(feasible, "check_feasible", lambda *_: None)  # which foresees most of such runs
    tables = {**TABLES, "federation": {**TABLES["federation"], "method": "fedavg"}}
    with pytest.raises(RunFailed, match=r"no device of 2 could take part: 2 were refused: .*weights.*; "):
        edge_sim.run(tables, models=lambda classes, *_: PredictOnly(lambda x: x[:, 0, 0, :3], classes), data=DATA)


def test_devices_that_waited_for_a_refused_one_are_not_said_to_be_unable_to_take_part():
    result = edge_sim.run(TABLES, models=net_of(8), data=DATA)
    refused = ({"device": "device-01", "reason": "model", "message": "other weights", "remedy": "bring the same"},)
    idle = tuple(replace(device, rounds_done=0) for device in result.devices)
    failed = replace(result, completed=False, devices=idle, refused_devices=refused)
    with pytest.raises(
        RunFailed, match=r"^no device of 2 took part, because 1 was refused: other weights; bring the same$"
    ):
        check_taken_part(failed)


def test_devices_that_joined_and_gave_nothing_took_no_part():
    result = edge_sim.run(TABLES, models=net_of(8), data=DATA)
    check_taken_part(result)
    idle = tuple(replace(device, rounds_done=0) for device in result.devices)
    for without in (idle, tuple(replace(device, joined=False) for device in result.devices)):
        with pytest.raises(RunFailed, match=r"^no device of 2 could take part: the rounds are over$"):
            check_taken_part(replace(result, completed=False, reason="the rounds are over", devices=without))
    some = replace(result, completed=False, devices=(idle[0], result.devices[1]))
    check_taken_part(some)


class Several(nn.Module):
    """A net that gives a dict."""

    def __init__(self, classes):
        super().__init__()
        self.last = nn.Linear(16, classes)

    def forward(self, x):
        return {"features": x.flatten(1), "logits": self.last(x.flatten(1))}


def test_what_was_taken_of_several_outputs_is_said_in_the_warnings():
    result = edge_sim.run(TABLES, models=lambda classes, *_: Several(classes), data=DATA)
    (line,) = [line for line in result.warnings if "logits" in line]
    assert line.endswith(": logits: output 'logits' of a dict")
    assert not [line for line in edge_sim.run(TABLES, models=net_of(8), data=DATA).warnings if "logits" in line]


def test_a_pair_of_arrays_is_told_the_four_that_are_expected():
    for given in ((DATA[0], DATA[1]), [torch.tensor(DATA[0]), torch.tensor(DATA[1])]):
        with pytest.raises(UsageError, match=r"pair of arrays, expected x_train, y_train, x_test, y_test, or .*x\[:"):
            edge_sim.run(TABLES, models=net_of(8), data=given)


def test_arrays_in_the_order_of_scikit_learn_are_told_the_order():
    x_train, y_train, x_test, y_test = DATA
    with pytest.raises(UsageError, match="in the order x_train, y_train, x_test, y_test"):
        edge_sim.run(TABLES, models=net_of(8), data=(x_train, x_test, y_train, y_test))


def test_samples_that_are_dicts_are_told_the_pairs_to_write():
    dicts = [{"image": x, "label": y} for x, y in zip(*DATA[2:], strict=True)]
    with pytest.raises(UsageError, match=r"sample 0 of the dataset: a dict with image, label, expected a pair"):
        edge_sim.run(TABLES, models=net_of(8), data=(dicts, dicts))


def test_a_label_that_is_missing_is_named():
    y = DATA[1].astype(float)
    y[5] = np.nan
    with pytest.raises(UsageError, match="y_train: sample 5 has no label; leave it out"):
        edge_sim.run(TABLES, models=net_of(8), data=(DATA[0], y, *DATA[2:]))


def test_a_net_where_a_function_is_expected_is_told_so():
    with pytest.raises(UsageError, match=r"found a net \(Sequential\), expected a function.*write models=lambda"):
        edge_sim.run(TABLES, models=net(8, 3), data=DATA)


def test_no_samples_are_taken_away_for_a_method_without_a_public_set():
    tables = {name: table for name, table in TABLES.items() if name != "data"}
    held = sum(device.samples for device in edge_sim.run(tables, models=net_of(8), data=DATA).devices)
    assert held == 120
    found = edge_sim.run(tables, models=net_of(8), data=DATA, settings={"federation.method": "fedmd"})
    assert (sum(device.samples for device in found.devices), found.card["samples"]["public"]) == (80, 40)
    assert "40 of the 120 training samples are the public set (data.public)" in found.warnings
    asked = edge_sim.run(
        tables, models=net_of(8), data=DATA, settings={"federation.method": "fedmd", "data.public": 40}
    )
    assert not any("public set" in line for line in asked.warnings)


def test_methods_that_are_compared_have_one_public_set(tmp_path):
    tables = {name: table for name, table in TABLES.items() if name != "data"}
    found = edge_sim.compare(tables, ["fedavg", "fedmd"], models=net_of(8), data=DATA, out=tmp_path / "study")
    samples = [line.trials[0].result.card["samples"] for line in found.lines]
    assert [each["public"] for each in samples] == [40, 40, 40]
    without = edge_sim.compare(tables, ["fedavg"], models=net_of(8), data=DATA, out=tmp_path / "other")
    assert all("public" not in line.trials[0].result.card["samples"] for line in without.lines)
