"""The import rule (docs: the device side knows nobody, heavy packages load late), read from the source and tried."""

import json
import subprocess
import sys

import pytest
from imports import HEAVY, PACKAGES, light_modules, sources, violations


def test_every_file_keeps_the_rule():
    files = list(sources())
    assert len(files) > 20
    assert [line for path, source in files for line in violations(path, source)] == []


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("edge_sdk/agent/agent.py", "import coordinator.rounds", "device side"),
        ("edge_sdk/agent/agent.py", "def f():\n    from edge_sim import run", "device side"),
        ("edge_sdk/agent/agent.py", "from . import errors", "relative"),
        ("coordinator/serving/server.py", "from edge_sim import run", "coordinator must not"),
        (
            "coordinator/serving/server.py",
            "from edge_sdk.device.session import Session",
            "not edge_sdk.device.session.Session",
        ),
        ("coordinator/serving/server.py", "import edge_sdk.agent", "not edge_sdk.agent"),
        ("coordinator/serving/server.py", "from edge_sdk import protocol, agent", "not edge_sdk.agent"),
        ("coordinator/serving/server.py", "from edge_sdk.cli import Subcommand", "not edge_sdk.cli"),
        (
            "coordinator/serving/server.py",
            "from coordinator.results.report.summary import summary",
            "only commands and deploy show",
        ),
        (
            "coordinator/serving/restart.py",
            "def f():\n    from coordinator import results",
            "only commands and deploy show",
        ),
        ("edge_sdk/methods/fedavg.py", "from edge_sdk.agent.agent import Agent", "methods may import"),
        ("edge_sdk/methods/fedavg.py", "from edge_sdk.models.base import Model", "methods may import"),
        (
            "edge_sdk/methods/fedavg.py",
            "def f():\n    from edge_sdk.device.training.workbench import Workbench",
            "methods may import",
        ),
        ("edge_sdk/reductions/bag.py", "from edge_sdk.methods.contract.base import At", "reductions may import"),
        ("edge_sdk/objectives/base.py", "from edge_sdk.reductions import Bag", "objectives may import"),
        ("edge_sdk/protocol/frames/codec.py", "from edge_sdk.objectives import Term", "protocol may import"),
        ("edge_sdk/methods/fedal.py", "def f():\n    import torch", "torch belongs in torch_*"),
        ("edge_sdk/models/tool.py", "class A:\n    import onnxruntime", "onnxruntime belongs in onnx_*"),
        (
            "edge_sdk/transport/memory/hub.py",
            "import paho.mqtt.client",
            "paho belongs in edge_sdk/transport/mqtt/transport.py",
        ),
        ("edge_sim/mqtt.py", "import paho.mqtt.client", "paho belongs in edge_sdk/transport/mqtt/transport.py"),
        ("edge_sim/data.py", "from sklearn.datasets import load_digits", "sklearn is optional"),
        (
            "coordinator/results/plots/plots.py",
            "try:\n    import matplotlib\nexcept ImportError:\n    pass",
            "matplotlib is",
        ),
        ("coordinator/a.py", "if x:\n    import rich\nelse:\n    pass", "rich is optional"),
        ("firmware_profiles/__init__.py", "import json", "data only"),
    ],
)
def test_a_planted_violation_is_found(path, source, expected):
    (line,) = violations(path, source)
    assert line.startswith(f"{path}:")
    assert expected in line


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("edge_sdk/models/torch_nets/torch_model.py", "import torch"),
        ("edge_sdk/models/onnx_runtime/onnx_model.py", "import onnxruntime\nfrom onnx import helper"),
        ("edge_sdk/transport/mqtt/transport.py", "import paho.mqtt.client"),
        ("edge_sdk/agent/agent.py", "from edge_sdk.methods import base"),
        ("edge_sim/run.py", "from edge_sdk.agent.agent import Agent\nfrom coordinator.serving.server import Server"),
        ("edge_sdk/methods/fedavg.py", "from edge_sdk.reductions import Bag\nfrom edge_sdk.protocol import wires"),
        ("edge_sdk/methods/parts/torch_fedal.py", "import torch\nfrom edge_sdk.models import torch_device"),
        ("edge_sdk/methods/parts/numpy_fedkf.py", "from edge_sdk.models import numpy_forms"),
        (
            "coordinator/serving/reduction.py",
            "from edge_sdk.methods.contract.base import Method\nfrom edge_sdk.reductions import Bag",
        ),
        ("edge_sim/data.py", "def digits():\n    from sklearn.datasets import load_digits"),
        ("coordinator/results/plots/plots.py", "if TYPE_CHECKING:\n    from matplotlib.axes import Axes"),
        ("coordinator/serving/server.py", "from edge_sdk import __version__\nfrom edge_sdk.protocol import messages"),
        ("coordinator/broker_amqtt.py", "import amqtt"),
        (
            "coordinator/commands.py",
            "from edge_sdk.cli import Subcommand\nfrom coordinator.results.plots.plots import draw_run",
        ),
        ("coordinator/results/plots/plots.py", "from coordinator.results.plots.drawing import picture"),
    ],
)
def test_what_is_allowed_is_not_objected_to(path, source):
    assert violations(path, source) == []


PROGRAM = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted(set(json.loads(sys.argv[2])) & set(sys.modules))))
"""


def loaded_by(modules, heavy=HEAVY):
    arguments = [sys.executable, "-W", "error", "-c", PROGRAM, json.dumps(modules), json.dumps(heavy)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_device_side_loads_nothing_heavy():
    modules = light_modules("edge_sdk")
    assert {"edge_sdk", "edge_sdk.errors", "edge_sdk.boards.profiles"} <= set(modules)
    assert loaded_by(modules) == []


def test_the_other_packages_load_nothing_optional():
    """paho belongs to the base install; all else is an extra."""
    modules = light_modules("coordinator", "edge_sim", "firmware_profiles")
    assert {"coordinator", "edge_sim", "firmware_profiles"} <= set(modules)
    assert loaded_by(modules, [package for package in HEAVY if package != "paho"]) == []


def test_the_command_line_answers_before_anything_is_loaded():
    modules = [name for name in light_modules(*PACKAGES) if name == "edge_sdk.cli" or name.endswith("commands")]
    assert loaded_by(modules, [*HEAVY, "numpy"]) == []


DEVICE = ["edge_sdk.agent.app", "edge_sdk.models.numpy_model", "edge_sdk.transport.mqtt.transport"]
"""What a device loads before it connects: nothing in it may load one of these, each of which costs 5 to 100 ms."""
NOT_FOR_A_DEVICE = [
    *HEAVY,
    *("coordinator", "edge_sim", "edge_sdk.tools", "edge_sdk.methods.fedal", "edge_sdk.models.sklearn_model"),
    *("edge_sdk.methods.contract.averaging", "edge_sdk.models.onnx_file.graph", "edge_sdk.samples.store", "statistics"),
    *("asyncio", "concurrent.futures", "multiprocessing", "doctest", "pdb", "pydoc", "unittest", "xml"),
    *("numpy.f2py", "numpy.fft", "numpy.ma", "numpy.polynomial", "numpy.random", "numpy.testing"),
]


def test_a_device_loads_only_what_it_needs():
    assert loaded_by(DEVICE, [name for name in NOT_FOR_A_DEVICE if name != "paho"]) == []


def test_the_probe_sees_what_is_loaded():
    assert loaded_by(["json", "wave"], ["wave", "torch"]) == ["wave"]


EFFECTS = """
import importlib, json, random, sys
import numpy, torch
torch.set_num_threads(2)
def state():
    return torch.get_num_threads(), torch.random.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state())
before = state()
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(before == state()))
"""


@pytest.mark.torch
def test_importing_torch_parts_has_no_effect():
    pytest.importorskip("torch")
    paths = [path for path, _ in sources() if path.startswith("edge_sdk/methods/parts/torch_")]
    names = [path.removesuffix(".py").replace("/", ".") for path in paths]
    assert "edge_sdk.methods.parts.torch_fedal" in names
    arguments = [sys.executable, "-c", EFFECTS, json.dumps(names)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) is True
