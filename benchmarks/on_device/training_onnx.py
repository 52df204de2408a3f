"""Measures training of all layers by ONNX Runtime and by numpy beside torch's eager mode; writes the results page.

    python -m benchmarks.on_device.training_onnx

One thread, also numpy's; equal mini-batches, SGD with momentum.  Times are processor time, medians of three interleaved
pairs; memory is the largest resident size of a process that takes ten steps.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import io
import itertools
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_sdk.models.base import Batches, preparing
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel
from edge_sdk.objectives import CrossEntropy, Optim

PAGE = Path(__file__).parents[2] / "docs" / "results" / "training-onnx.md"
OPTIM = Optim(kind="sgd", learning_rate=0.01, momentum=0.9)
PAIRS, STEPS = 3, 10
THREADS = "OPENBLAS_NUM_THREADS"
NETS = ("mlp", "cnn", "har", "gru", "transformer", "mobilenet")
"""The nets that are measured."""
NAMES = {
    "mlp": "MLP 64-256-256-10, batches of 32",
    "cnn": "the papers' CNN, 28 x 28, batches of 32",
    "har": "1-d CNN of UCI HAR, 9 x 128, batches of 32",
    "gru": "GRU of 32, 32 steps of 9, batches of 32",
    "transformer": "transformer encoder layer, 16 steps of 32, batches of 32",
    "mobilenet": "MobileNetV3-small, 96 x 96, batches of 8",
}
GOALS = {"mlp": 0.4, "cnn": 0.9, "har": 0.9, "mobilenet": 1.0}
BY_NUMPY = ("mlp", "har")
BOARD = ("numpy", "msgpack", "paho-mqtt", "onnxruntime", "flatbuffers", "packaging", "protobuf")
TORCH = (
    "torch",
    "numpy",
    "sympy",
    "networkx",
    "jinja2",
    "fsspec",
    "filelock",
    "typing_extensions",
    "mpmath",
    "MarkupSafe",
)
TEXT = """# Training all layers without torch: measured

Written by `python -m benchmarks.on_device.training_onnx`, on {machine}, one thread; {quiet}.
SGD with momentum; processor time, medians of {pairs} interleaved pairs of {steps} steps each.
[How to](../how-to/train-the-model-you-have.md), [why so](../adr/0047-training-without-a-framework.md).

## Time of a step

| net | torch eager, ms | ONNX Runtime, ms | of torch | goal | numpy, ms |
|---|---:|---:|---:|---:|---:|
{times}

The MLP misses its goal: further pairs gave .436, .461 and .449, so it takes .42 to .46 of torch's time. Half of it is
the session, nearly all products of matrices, and a quarter is the optimiser:
[ADR 0047](../adr/0047-training-without-a-framework.md). The transformer and MobileNetV3, nets of more than 100
operators, were measured in one session. They now use two, and MobileNetV3 is equally fast.

## Memory and installation

| | ONNX Runtime | torch | of torch |
|---|---:|---:|---:|
| largest resident size, MobileNetV3-small, ten steps, MiB | {onnx_mib:.0f} | {torch_mib:.0f} | {share:.2f} |
| packages to install, unpacked, MB | {onnx_mb:.0f} | {torch_mb:.0f} | {share_mb:.2f} |
| without byte code, MB | {onnx_plain:.0f} | {torch_plain:.0f} | {plain_share:.2f} |

edge-sdk itself is in both. The goal for memory is .6, and for the packages 120 MB. Of the packages for ONNX Runtime,
numpy and onnxruntime take {two:.0f} %, and their compiled libraries alone {libraries:.0f} MB.
With onnxruntime before 1.24, without the listed packages that it never loads here, and without byte code, a fresh
environment takes 112.8 MB, edge-sdk included: [what to install](../how-to/train-the-model-you-have.md#what-to-install).

## How long a stop waits

A device stops between two steps. The first step for a size of mini-batches is prepared in pieces, and the device can
also stop between them. For MobileNetV3-small, preparing takes {all_:.0f} ms, its longest piece
{longest:.0f} ms, and a step {later:.0f} ms.
On a slower processor the longest piece, in which ONNX Runtime opens the backward graph, takes longer in proportion, and
cannot be interrupted. `tests/app/test_stop_of_training.py` fails above 200 ms.

The same applies while a model predicts many samples, such as a test set. It used to compute 256 samples between two
pauses: 413 ms of processor time for MobileNetV3-small at 96 x 96 with all layers learning, and 317 ms with a frozen
body. Now it computes them ahead in pieces, with the same bits. The longest pieces took 37 and 55 ms (processor time,
2026-11-28, a load of 12 on 2 cores). A torch net still computes 256 samples between two pauses, in 576 ms for this net,
because its bits depend on how many it computes together.
"""


def last_of_gru() -> Any:
    """Return a GRU that gives its last step."""
    from torch import Tensor, nn

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(9, 32, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.gru(x)[0][:, -1]
            return out

    return Last()


def net_of(name: str) -> tuple[object, tuple[int, ...], int]:
    """Return a torch net, the shape of its samples, and the size of its mini-batches."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    if name == "mlp":
        layers = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
        return nn.Sequential(nn.Flatten(), *layers), (1, 8, 8), 32
    if name == "cnn":
        first = nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
        return nn.Sequential(*first, nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)), (1, 28, 28), 32
    if name == "har":
        first = nn.Conv1d(9, 32, 9), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(32, 64, 9), nn.ReLU(), nn.MaxPool1d(2)
        return nn.Sequential(nn.Flatten(1, 2), *first, nn.Flatten(), nn.Linear(1664, 6)), (1, 9, 128), 32
    if name == "gru":
        return nn.Sequential(nn.Flatten(1, 2), last_of_gru(), nn.Linear(32, 6)), (1, 32, 9), 32
    if name == "transformer":
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        return nn.Sequential(nn.Flatten(1, 2), layer, nn.Flatten(), nn.Linear(512, 6)), (1, 16, 32), 32
    importlib.import_module("edge_sim.models.torch_vision")  # finds torchvision's operators
    made = importlib.import_module("torchvision.models").mobilenet_v3_small(weights=None, num_classes=10)
    return made, (3, 96, 96), 8


def exported(name: str) -> bytes:
    """Return the file of a net."""
    import torch

    net, shape, size = net_of(name)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        torch.onnx.export(net.eval(), (torch.zeros(size, *shape),), file, dynamo=False, do_constant_folding=False,
                          input_names=["x"], dynamic_axes={"x": {0: "n"}})  # type: ignore[attr-defined]  # a net  # fmt: skip
    return file.getvalue()


def work_of(shape: Sequence[int], size: int) -> Batches:
    """Return mini-batches that are drawn once."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4 * size, *shape)).astype(np.float32), rng.integers(0, 6, 4 * size)
    indices = rng.integers(0, len(x), (STEPS, size))
    return Batches(inputs=x, labels=y, indices=indices, stochastic=False)


def torch_steps(name: str) -> Callable[[], None]:
    """Return a function that takes the steps in torch's eager mode, as its tutorials do."""
    import torch

    net, shape, size = net_of(name)
    work = work_of(shape, size)
    x, y = torch.from_numpy(work.inputs), torch.from_numpy(np.asarray(work.labels))
    batches = [torch.from_numpy(each) for each in work.indices]
    optimiser = torch.optim.SGD(net.eval().parameters(), OPTIM.learning_rate, OPTIM.momentum)  # type: ignore[attr-defined]

    def steps() -> None:
        for index in batches:
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(x[index]), y[index]).backward()  # type: ignore[operator]
            optimiser.step()

    return steps


def sdk_steps(file: bytes, shape: Sequence[int], size: int, *, numpy: bool = False) -> Callable[[], None]:
    """Return a function that takes the steps by ONNX Runtime, or by numpy."""
    work = work_of(shape, size)
    model = NumpyModel.from_onnx(file, input_shape=tuple(shape)) if numpy else OnnxModel(file, train="all")
    return lambda: [model.fit(work, (CrossEntropy(),), OPTIM), None][1]


def timed(steps: Callable[[], None]) -> float:
    """Return the milliseconds of processor time of a step, the least of nine runs: others share the machine."""
    found = []
    for _ in range(9):
        begin = time.process_time()
        steps()
        found.append((time.process_time() - begin) / STEPS * 1e3)
    return min(found)


def row(name: str) -> str:
    """Measure a net; return its line of the table."""
    _, shape, size = net_of(name)
    file = exported(name)
    runs = [torch_steps(name), sdk_steps(file, shape, size)]
    runs += [sdk_steps(file, shape, size, numpy=True)] if name in BY_NUMPY else []
    for each in runs:
        each()
    found = [[timed(each) for each in runs] for _ in range(PAIRS)]
    medians = [statistics.median(column) for column in zip(*found, strict=True)]
    ratio = statistics.median(ours / theirs for theirs, ours, *_ in found)
    by_numpy = f"{medians[2]:.2f}" if len(medians) > 2 else "-"
    goal = GOALS.get(name, "-")
    return f"| {NAMES[name]} | {medians[0]:.2f} | {medians[1]:.2f} | {ratio:.2f} | {goal} | {by_numpy} |"


def peak_mib(kind: str, file: Path) -> float:
    """Return the largest resident size of a process that trains MobileNetV3-small."""
    done = subprocess.run([sys.executable, "-m", __spec__.name, "--peak", kind, "--file", str(file)],
                          capture_output=True, text=True, check=True)  # fmt: skip
    return float(done.stdout)


def print_peak(kind: str, file: Path) -> None:
    """Train, and print the largest resident size of this process in MiB."""
    steps = torch_steps("mobilenet") if kind == "torch" else sdk_steps(file.read_bytes(), (3, 96, 96), 8)
    steps()
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()  # a process inherits ru_maxrss
    (kib,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    sys.stdout.write(f"{int(kib) / 1024}\n")


def megabytes(packages: Sequence[str], only: Callable[[Path], bool] = lambda _file: True) -> float:
    """Return the size of installed packages; only: of these files."""
    files = [file for name in packages for file in importlib.metadata.files(name) or ()]
    places = {Path(str(file.locate())) for file in files}
    return sum(place.stat().st_size for place in places if place.is_file() and only(place)) / 1e6


def step_times() -> tuple[float, float, float]:
    """Return the milliseconds of preparing MobileNetV3-small's first step, of its longest piece, and of a step."""
    _, shape, size = net_of("mobilenet")
    work, file, objective = work_of(shape, size), exported("mobilenet"), (CrossEntropy(),)
    work, found, steps = replace(work, indices=work.indices[:1]), [], []
    for _ in range(3):
        model = OnnxModel(file, train="all")
        at = [time.perf_counter()]
        at.extend(time.perf_counter() for _ in preparing(model, work, objective, "all"))
        found.append([1e3 * (end - begin) for begin, end in itertools.pairwise(at)])
        for _ in range(4):
            begin = time.perf_counter()
            model.fit(work, objective, OPTIM)
            steps.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(map(sum, found)), statistics.median(map(max, found)), statistics.median(steps)


def quiet() -> str:
    """Return how much else ran."""
    if os.sched_getscheduler(0) == os.SCHED_FIFO:
        return "other programs waited for it (`chrt -f 20`)"
    return f"load average {os.getloadavg()[0]:.1f}; above 3 the figures are provisional"


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peak", choices=["torch", "onnx"])
    parser.add_argument("--file", type=Path)
    args = parser.parse_args()
    if args.peak:
        print_peak(args.peak, args.file)
        return
    if os.environ.get(THREADS) != "1":  # numpy asks for its threads as it is loaded
        os.execve(sys.executable, [sys.executable, "-m", __spec__.name], {**os.environ, THREADS: "1"})
    times = [row(name) for name in NETS]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mobilenet.onnx"
        file.write_bytes(exported("mobilenet"))
        onnx_mib, torch_mib = peak_mib("onnx", file), peak_mib("torch", file)
    sizes = megabytes(BOARD), megabytes(TORCH)
    plain = [megabytes(names, lambda file: file.suffix != ".pyc") for names in (BOARD, TORCH)]
    all_, longest, later = step_times()
    PAGE.write_text(
        TEXT.format(machine=f"{platform.machine()}, {os.cpu_count()} cores", quiet=quiet(), pairs=PAIRS,
                    steps=STEPS, times="\n".join(times), onnx_mib=onnx_mib, torch_mib=torch_mib,
                    share=onnx_mib / torch_mib, onnx_mb=sizes[0], torch_mb=sizes[1],
                    share_mb=sizes[0] / sizes[1], onnx_plain=plain[0], torch_plain=plain[1],
                    plain_share=plain[0] / plain[1], two=100 * megabytes(("numpy", "onnxruntime")) / sizes[0],
                    libraries=megabytes(BOARD, lambda file: ".so" in file.name), all_=all_, longest=longest,
                    later=later),
        encoding="utf-8",
    )  # fmt: skip


if __name__ == "__main__":
    main()
