"""edge_sim.run, compare and sweep: models as functions, data as arrays or data sets, figures, frames and pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest

import edge_sim
from coordinator.results.report.run_files import read_run
from edge_sdk.errors import RunFailed, UsageError
from edge_sdk.models.numpy_model import NumpyModel
from edge_sim.studies.axes import axes_of, given_methods, given_seeds

RNG = np.random.default_rng(0)
MEANS = RNG.normal(size=(3, 4, 4))


def samples(count):
    y = np.arange(count) % 3
    return (MEANS[y] + 0.3 * RNG.normal(size=(count, 4, 4))).astype(np.float32), y


DATA = (*samples(120), *samples(30))
TABLES = {
    "federation": {"name": "nb", "method": "fedavg", "rounds": 2, "devices": 3},
    "train": {"learning_rate": 0.1},
    "data": {"public": 20, "split": [8, 1, 1]},
    "partition": {"kind": "iid"},
}


def softmax(classes, shape, seed):
    return NumpyModel(classes, shape, seed=seed)


@pytest.fixture(scope="module")
def result():
    return edge_sim.run(TABLES, models=softmax, data=DATA)


def test_figures_have_short_names(result):
    assert result.completed
    assert 0 < result.accuracy <= 1
    assert result.gm == next(iter(result.history[-1].global_accuracy.values()))
    assert result.pm.v == pytest.approx(result.metrics["pm_v_mean"])
    assert result.own_task() == result.own_task(result.history[-1].local_accuracy)
    assert {"amp", "fm", "wlp"} <= result.own_task().keys()


def test_tables_need_no_name():
    tables = {**TABLES, "federation": {"method": "local", "rounds": 1, "devices": 3}}
    assert edge_sim.run(tables, data=DATA).completed


def test_it_is_shown_in_a_line_and_in_a_notebook(result):
    assert len(repr(result)) < 100
    html = result._repr_html_()
    assert "<table>" in html
    assert "device-02" in html
    assert "<nb>" not in html


def test_the_trained_models_are_there(result, tmp_path):
    x = result.trained["device-00"].spec.preprocess(DATA[2])
    right = np.mean(result.trained["device-00"].logits(x).argmax(1) == DATA[3])
    assert right == pytest.approx(result.devices[0].accuracy)
    kept = edge_sim.run(TABLES, models=softmax, data=DATA, out=tmp_path / "run", keep_models=True)
    assert {path.stem for path in kept.models_folder.iterdir()} == {"device-00", "device-01", "device-02"}
    fresh = softmax(3, (1, 4, 4), 1)
    fresh.load_state((kept.models_folder / "device-00.state").read_bytes())
    assert np.array_equal(fresh.logits(x), kept.trained["device-00"].logits(x))
    assert read_run(tmp_path / "run").devices == result.devices


def test_callbacks_hear_of_devices_and_rounds():
    rounds, devices = [], []
    settings = {"run.standalone": False}
    edge_sim.run(TABLES, models=softmax, data=DATA, settings=settings, on_round=rounds.append, on_device=devices.append)
    assert [(news.round, news.of, news.part) for news in rounds] == [(1, 2, ""), (2, 2, "")]
    assert rounds[1].result.bytes_up > 0
    assert set(rounds[1].accuracy) == {"device-00", "device-01", "device-02"}
    assert [(news.count, news.expected, news.refusal) for news in devices] == [(i, 3, "") for i in (1, 2, 3)]


@pytest.mark.parametrize("table", ["rounds", "devices", "accuracy", "missed"])
def test_tables_are_data_frames(result, table):
    pytest.importorskip("pandas")
    frame = result.to_pandas(table)
    assert len(frame) == {"rounds": 2, "devices": 3, "accuracy": 6, "missed": 0}[table]
    with pytest.raises(UsageError):
        result.to_pandas("nope")


@pytest.mark.draws
def test_pictures_are_functions(result, tmp_path):
    pytest.importorskip("matplotlib")
    assert "accuracy_by_round" in dir(result.plot)
    saved = result.plot.accuracy_by_round(width="column").save(tmp_path / "a.svg")
    assert "<svg" in saved.read_text()
    with pytest.raises(AttributeError):
        result.plot.nope()
    with pytest.raises(UsageError):
        result.plot.accuracy_by_round(width="wide")
    with pytest.raises(UsageError):
        result.plot.accuracy_by_round().save(tmp_path / "a.gif")


@pytest.mark.torch
def test_nets_and_data_sets_of_torch():
    torch = pytest.importorskip("torch")

    class Pairs(torch.utils.data.Dataset):
        def __init__(self, x, y):
            self.x, self.y = x, y

        def __len__(self):
            return len(self.x)

        def __getitem__(self, place):
            return torch.tensor(self.x[place])[None], int(self.y[place])

    def net(classes, shape, _seed):
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape[1] * shape[2], classes))

    parts = (Pairs(*DATA[:2]), Pairs(*DATA[2:]))
    first, second = (edge_sim.run(TABLES, models=net, data=parts) for _ in range(2))
    assert first.devices == second.devices
    assert first.devices[0].runtime == "torch"


def test_several_functions_take_turns_and_names_of_rows_are_functions():
    def other(classes, shape, seed):
        return NumpyModel(classes, shape, seed=seed, name="other")

    tables = {**TABLES, "federation": {**TABLES["federation"], "method": "fedmd"}}
    turns = edge_sim.run(tables, models=[softmax, other], data=DATA)
    assert sum(device.model == "other" for device in turns.devices) == 1
    rows = {**tables, "fleet": [{"count": 1, "model": "mine"}, {"count": 2, "model": "softmax"}]}
    named = edge_sim.run(rows, models={"mine": other}, data=DATA)
    assert named.devices[0].model == "other"


def test_a_comparison_and_its_table(tmp_path):
    found = edge_sim.compare(TABLES, ["fedavg", "fedprox"], models=softmax, data=DATA, out=tmp_path / "cmp")
    assert json.loads((tmp_path / "cmp" / "compare.json").read_text())["baseline"] == "fedavg"
    assert "fedprox" in repr(found)
    assert "FedProx" in found.to_latex("mean")
    assert "at 1.0 MB" in found.at_budget("1MB")
    before = (tmp_path / "cmp" / "fedavg" / "seed-0" / "summary.json").stat().st_mtime_ns
    edge_sim.compare(TABLES, ["fedavg", "fedprox"], models=softmax, data=DATA, out=tmp_path / "cmp")
    assert (tmp_path / "cmp" / "fedavg" / "seed-0" / "summary.json").stat().st_mtime_ns == before


def test_methods_seeds_and_axes_may_be_written_as_on_the_command_line():
    assert given_methods("fedavg,fedmd") == given_methods(["fedavg", "fedmd"]) == ("fedavg", "fedmd")
    assert given_seeds("0,1") == given_seeds([0, np.int64(1)]) == (0, 1)
    assert given_seeds(3) == (3,)
    rates = axes_of({"train.learning_rate": [0.01, 0.05]})
    assert axes_of("train.learning_rate=0.01,0.05") == axes_of(["train.learning_rate=0.01,0.05"]) == rates
    for seeds in ("one", [0.5]):
        with pytest.raises(UsageError, match="seeds: expected whole numbers"):
            given_seeds(seeds)


def test_a_sweep_and_what_was_chosen(tmp_path):
    over = {"train.learning_rate": [0.001, 0.1]}
    found = edge_sim.sweep(TABLES, over, models=softmax, data=DATA, out=tmp_path / "sweep")
    assert found.chosen["fedavg"]["train.learning_rate"] in over["train.learning_rate"]
    assert len(found.comparisons) == 1
    assert (tmp_path / "sweep" / "sweep.json").exists()


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"models": 5}, "models"),
        ({"models": []}, "models"),
        ({"models": {"nobody": softmax}}, "nobody"),
        ({"data": DATA[:3]}, "y_test"),
        ({"data": {"x_train": 1}}, "y_train"),
        ({"data": ([1, 2], [3, 4])}, "found"),
        ({"broker": "embedded", "models": lambda classes, shape, seed: softmax(classes, shape, seed + 1)}, "a broker"),
        ({"keep_models": True}, "out"),
        ({"settings": {"train.nope": 1}}, "nope"),
    ],
)
def test_what_does_not_fit_is_said(given, word):
    with pytest.raises(UsageError, match=word):
        edge_sim.run(TABLES, **{"models": softmax, "data": DATA, **given})


def test_a_function_that_fails_is_named():
    def broken(_classes, _shape, _seed):
        raise ValueError("no such layer")

    with pytest.raises((UsageError, RunFailed), match="no such layer"):
        edge_sim.run(TABLES, models=broken, data=DATA)
