"""Measures how long predict() takes while the agent trains, against the same agent paused.

    python -m benchmarks.on_device.predict_while_training [--cores 1] [--nice 10] [--name NAME]

With --name the figures are kept in docs/results/predict.json, and docs/results/predict.md is written from all of them.

Each kind of model takes part in a federation of one device in this process.  The agent is paused and resumed in turn,
so that other work of the machine affects both equally; a thread asks predict() for one sample every 5 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from sklearn.datasets import load_digits

import edge_sdk
from coordinator.ledger import Ledger
from coordinator.rounds import RoundPolicy
from coordinator.serving.server import Server
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.models.base import Model
from edge_sdk.protocol.messages import FederationSpec, TrainSpec
from edge_sdk.transport.memory.hub import Hub

Row: TypeAlias = "dict[str, dict[str, float]]"
"""`idle` and `training`, each with quantiles in ms."""

EVERY_S = 0.005
BLOCK_S = 1.0
WARM_S = 0.5
STEPS = 200
"""Mini-batches of a round: rounds end, and models are swapped, while predict() is measured."""
FIGURES = Path(__file__).parents[2] / "docs" / "results" / "predict.json"
HEADER = """| model | paused p50 | p90 | p99 | training p50 | p90 | p99 | p99, ratio |
|---|---:|---:|---:|---:|---:|---:|---:|"""
TEXT = """# How long predict() takes while the model trains

Written by `benchmarks/on_device/predict_while_training.py`;
milliseconds for one picture of 8 x 8. The main thread asks for it every 5 ms, while the agent trains in its own thread,
or is paused. Both are measured in turn in one process, so that other work of the machine affects both equally. torch
has one thread. With a free core, the aim is a p99 of at most 1.5 times the paused one, and 3 times without.
[How it works](../how-to/serve-the-model.md).

**Each table names the load average.** On the quiet machine (the tables marked so) three of four kinds meet the aim:
with two cores numpy and both torch nets; on one core, with `Policy(nice=10)`, all except the wide torch net. A call of
ONNX Runtime takes 0.3 ms while the cores are warm, and its p99 during training is 1 to 2 ms. In the other tables the
two cores were shared with other work: about one call in a hundred waited 2 to 31 ms (before: 8 to 550 ms).
"""
SCALE = edge_sdk.Preprocess(scale=1 / 16)


def numpy_model() -> Model:
    """Softmax regression on 64 pixels."""
    return edge_sdk.NumpyModel(10, (1, 8, 8), seed=1, preprocess=SCALE)


def onnx_model() -> Model:
    """A frozen extractor of 32 filters under a trained head."""
    from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel
    from edge_sim.models.onnx_extractors import random_extractor

    return OnnxModel(random_extractor((1, 8, 8), 0, filters=32), 10, seed=1, preprocess=SCALE)


def torch_small() -> Model:
    """Two convolutions and a linear layer: Python's part of a step is as large as the arithmetic."""
    return _torch(16, 32)


def torch_wide() -> Model:
    """The same with 128 and 256 channels: arithmetic is nearly all of a step."""
    return _torch(128, 256)


def _torch(first: int, second: int) -> Model:
    import torch
    from torch import nn

    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(1, first, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(second * 64, 10),
    )
    return edge_sdk.TorchModel(net, 10, input_shape=(1, 8, 8), preprocess=SCALE)


KINDS: Mapping[str, Callable[[], Model]] = {
    "numpy": numpy_model,
    "onnx": onnx_model,
    "torch small": torch_small,
    "torch wide": torch_wide,
}


def measured(kind: str, blocks: int, nice: int) -> dict[str, list[float]]:
    """Return the latencies of predict() in ms, `idle` and `training`."""
    digits = load_digits()
    x, y = digits.images.astype(np.float32), digits.target
    samples, kept_back = edge_sdk.Samples(x[:1500], y[:1500]), edge_sdk.Samples(x[1500:], y[1500:])
    hub = Hub()
    agent = edge_sdk.Agent(
        federation="bench",
        broker=hub.link("board"),
        identity="board",
        model=KINDS[kind](),
        data=edge_sdk.LocalData(train=samples, validation=kept_back),
        policy=edge_sdk.Policy(nice=nice) if nice else None,
    )
    server = _server(hub)
    threading.Thread(target=server.run, daemon=True).start()
    agent.start()
    while not agent.participant.work.busy:
        time.sleep(0.01)
    found: dict[str, list[float]] = {"idle": [], "training": []}
    for _ in range(blocks):
        for name, switch in (("idle", agent.pause), ("training", agent.resume)):
            switch()
            _settled(agent, training=name == "training")
            _asked(agent, digits.images[:1], WARM_S)
            found[name] += _asked(agent, digits.images[:1], BLOCK_S)
    agent.stop()
    return found


def _settled(agent: edge_sdk.Agent, *, training: bool) -> None:
    """Wait until the agent trains, or until it has not trained for a while."""
    before = -1
    while ((now := agent.participant.context.bench.meter.train_flops) > before) != training or before < 0:
        before = now
        time.sleep(0.2)


def _asked(agent: edge_sdk.Agent, x: np.ndarray, seconds: float) -> list[float]:
    found, end_s = [], time.perf_counter() + seconds
    while (begun_s := time.perf_counter()) < end_s:
        agent.predict(x)
        found.append(1000 * (time.perf_counter() - begun_s))
        time.sleep(EVERY_S)
    return found


def _server(hub: Hub) -> Server:
    method = load_method("local")()
    spec = FederationSpec(
        federation="bench",
        method="local",
        contract=method.digest,
        classes=10,
        rounds=10**6,
        train=TrainSpec(local_steps=STEPS, learning_rate=0.01, batch_size=32),
    )
    policy = RoundPolicy(expected=1, quorum=1, rounds=10**6, exchanges=1, retry_s=0.5)
    return Server(spec=spec, policy=policy, method=method, transport=hub.link("coordinator"), ledger=Ledger(None))


def main() -> None:
    """Measure all kinds, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--cores", type=int, default=0, help="use this many cores; 0: all")
    parser.add_argument("--nice", type=int, default=0, help="niceness of the training thread")
    parser.add_argument("--name", help="the row's name on the page")
    args = parser.parse_args()
    if args.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    table = {kind: _in_process(kind, args.blocks, args.nice) for kind in args.kinds.split(",")}
    if args.name:
        known = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
        known[args.name] = {
            "load": round(os.getloadavg()[0], 1),
            "kinds": known.get(args.name, {}).get("kinds", {}) | table,
        }
        FIGURES.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
        FIGURES.with_suffix(".md").write_text(_page(known), encoding="utf-8")


def _page(known: Mapping[str, Any]) -> str:
    """Return the page with all figures that are kept."""
    lines = [TEXT]
    for name, found in known.items():
        lines += [f"## {name}", "", f"Load average of the machine: {found['load']}.", "", HEADER]
        for kind, row in found["kinds"].items():
            cells = [f"{row[state][q]:.2f}" for state in ("idle", "training") for q in ("p50", "p90", "p99")]
            ratio = row["training"]["p99"] / row["idle"]["p99"]
            lines.append(f"| {kind} | {' | '.join(cells)} | {ratio:.1f} |")
        lines.append("")
    return "\n".join(lines)


def _in_process(kind: str, blocks: int, nice: int) -> Row:
    """Measure a kind in a process of its own, so that no thread of another one is left in it, and print its line."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        found = pool.submit(measured, kind, blocks, nice).result()
    row = {name: {f"p{q}": float(np.percentile(ms, q)) for q in (50, 90, 99)} for name, ms in found.items()}
    text = "   ".join(f"{name} " + " ".join(f"{q} {ms:6.2f}" for q, ms in each.items()) for name, each in row.items())
    ratio = row["training"]["p99"] / row["idle"]["p99"]
    print(f"{kind:12} {text}   p99 x{ratio:.1f}   load {os.getloadavg()[0]:.1f}", flush=True)
    return row


if __name__ == "__main__":
    main()
