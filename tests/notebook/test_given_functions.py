"""Functions that make models, in several processes: those of an importable module travel, others are one clear line."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import given_nets
import numpy as np
import pytest

import edge_sim
from edge_sdk.errors import UsageError
from edge_sim.models import given_functions
from edge_sim.models.given_functions import names_of_functions, receive_functions, sent_functions

X = np.random.default_rng(0).normal(size=(60, 4, 4)).astype(np.float32)
DATA = (X[:48], np.arange(48) % 3, X[48:], np.arange(12) % 3)
TABLES = {
    "federation": {"name": "given", "method": "fedavg", "rounds": 2, "devices": 4},
    "data": {"public": 0},
    "partition": {"kind": "iid"},
    "run": {"standalone": False},
}


def nested():
    def make(classes, input_shape, seed):
        return given_nets.net(classes, input_shape, seed)

    return make


NESTED = nested()


@pytest.mark.processes
def test_functions_of_a_module_compute_the_same_bits_in_two_processes():
    models = {"fleet": [{"model": "a", "count": 2}, {"model": "b", "count": 2}]}
    given = {"models": {"a": given_nets.net, "b": given_nets.wide}, "data": DATA}
    tables = {**TABLES, **models, "federation": {**TABLES["federation"], "method": "local"}}
    alone = edge_sim.run(tables, **given)
    divided = edge_sim.run(tables, settings={"run.processes": 2}, **given)
    assert [divided.trained[each].spec.feature_dim for each in sorted(divided.trained)] == [8, 8, 12, 12]
    for device, model in alone.trained.items():
        assert model.weights().tobytes() == divided.trained[device].weights().tobytes()


@pytest.mark.parametrize("settings", [{"run.processes": 2}, {"run.cluster": "local"}])
@pytest.mark.parametrize("make", [NESTED, partial(NESTED)])
def test_a_function_that_no_module_has_is_one_line(make, settings):
    with pytest.raises(UsageError, match=r"my_models\.py") as raised:
        edge_sim.run(TABLES, models=make, data=DATA, settings=settings)
    assert "\n" not in str(raised.value)


def test_a_function_of_main_is_one_line(tmp_path):
    script = tmp_path / "script.py"
    lines = (
        "import edge_sim, numpy as np",
        "from edge_sdk.errors import UsageError",
        "from given_nets import net",
        "def mine(*given): return net(*given)",
        f"tables = {TABLES!r}",
        "x, y = np.zeros((40, 4, 4), np.float32), np.arange(40) % 2",
        "try: edge_sim.run(tables, models=mine, data=(x, y, x, y), settings={'run.processes': 2})",
        "except UsageError as error: print(error)",
    )
    script.write_text("\n".join(lines))
    search = "import sys, runpy; sys.path[:0] = sys.argv[2:]; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-c", search, str(script), *sys.path]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found.startswith("models: with several processes")
    assert "'mine'" in found


def test_a_function_whose_globals_were_changed_is_refused_in_the_other_process(monkeypatch):
    (name,) = names_of_functions([given_nets.net])
    sent = sent_functions([name, "mlp"])
    assert [*sent] == [name]
    monkeypatch.setattr(given_functions, "_GIVEN", {})  # as in another process
    receive_functions(sent)
    monkeypatch.setattr(given_functions, "_GIVEN", {})
    monkeypatch.setattr(given_nets, "HIDDEN", 9)
    with pytest.raises(UsageError, match="net of given_nets is another function"):
        receive_functions(sent)


def test_a_module_that_the_other_process_lacks_is_named(monkeypatch):
    (name,) = names_of_functions([given_nets.wide])
    sent = sent_functions([name])
    monkeypatch.setattr(given_functions, "_GIVEN", {})
    monkeypatch.setitem(sys.modules, "given_nets", None)
    with pytest.raises(UsageError, match="given_nets"):
        receive_functions(sent)


@pytest.mark.processes
def test_a_function_of_a_module_runs_over_a_broker(tmp_path):
    two = {**TABLES, "federation": {**TABLES["federation"], "devices": 2}}
    found = edge_sim.run(two, models=given_nets.net, data=DATA, broker="embedded:amqtt", out=tmp_path / "run")
    assert found.completed
    assert all(device.rounds_done == 2 for device in found.devices)


def test_a_function_that_no_module_has_is_one_line_over_a_broker(tmp_path):
    with pytest.raises(UsageError, match=r"a broker\) 'make' must stand at the top of a module.*my_models\.py"):
        edge_sim.run(TABLES, models=NESTED, data=DATA, broker="embedded", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
