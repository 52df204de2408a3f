"""What is taken of a user's data and nets is one sentence, the same in every command and in Python."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from torch import nn

import edge_sim
from edge_sdk import cli

FILE = """
[federation]
name = "taken"
method = "fedmd"
rounds = 1
devices = 2
[train]
batch_size = 4
local_steps = 1
[data]
source = "npz"
path = "data.npz"
[partition]
kind = "iid"
[[fleet]]
count = 2
model = "nets_of_the_test:make"
"""
SENTENCES = (
    "model 'make': logits: output 'logits' of a dict",
    "30 of the 90 training samples are the public set (data.public)",
    "data: x_train: samples of shape (3, 8, 8) are taken as pictures with channels first: 3 channels of 8 x 8",
)


class Several(nn.Module):
    """A net that gives a dict."""

    def __init__(self, classes):
        super().__init__()
        self.last = nn.Linear(3 * 8 * 8, classes)

    def forward(self, x):
        return {"features": x.flatten(1), "logits": self.last(x.flatten(1))}


@pytest.fixture
def file(tmp_path, monkeypatch):
    module = type(sys)("nets_of_the_test")
    module.make = lambda classes, input_shape, seed: Several(classes)  # noqa: ARG005  # asked by name
    monkeypatch.setitem(sys.modules, "nets_of_the_test", module)
    x = np.random.default_rng(0).random((120, 3, 8, 8), np.float32)
    y = np.arange(120) % 3
    np.savez(tmp_path / "data.npz", x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:])
    (tmp_path / "f.toml").write_text(FILE)
    return tmp_path / "f.toml"


@pytest.mark.parametrize(
    "command",
    [
        ["simulate", "--no-plots"],
        ["compare", "--methods", "fedmd,fd", "--no-plots"],
        ["sweep", "--over", "train.local_steps=1,2", "--set", "data.split=[8,1,1]"],
    ],
    ids=lambda command: command[0],
)
def test_commands_say_what_was_taken(file, tmp_path, capsys, command):
    name, *options = command
    assert cli.main([name, str(file), *options, "--out", str(tmp_path / "out")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for sentence in SENTENCES:
        assert sentence in printed


def test_python_says_the_same(file):
    said = edge_sim.run(file).warnings
    assert [any(line.startswith(sentence) for line in said) for sentence in SENTENCES] == [True] * len(SENTENCES)
