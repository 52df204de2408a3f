"""All layers of a few nets, trained on the ARM instruction set and on x86: the weights, compared.

    python -m benchmarks.arm.training          writes docs/results/arm64-training.md

scripts/arm64 emulates the board, with ONNX Runtime 1.23 there; this machine has the one of its own environment.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.on_device.training_onnx import exported, net_of, work_of

ROOT = Path(__file__).parents[2]
EMULATED = (str(ROOT / "scripts" / "arm64"), "--onnx", "python")
STEPS = Path(__file__).parent / "steps.py"
PAGE = ROOT / "docs" / "results" / "arm64-training.md"
CASES = (
    ("mlp", "onnx"),
    ("mlp", "numpy"),
    ("cnn", "onnx"),
    ("cnn", "numpy"),
    ("har", "onnx"),
    ("transformer", "onnx"),
    ("mobilenet", "onnx"),
)
TOLERANCE = 1e-5
"""The largest difference of a weight, as a share of the largest weight."""
TEXT = """# All layers, trained on the ARM instruction set

Written by `python -m benchmarks.arm.training` on {date}; nothing here is typed by hand. `scripts/arm64` emulates an
aarch64 board with qemu; its kernels of ONNX Runtime and numpy are those of ARM. Both machines take the same ten steps
of SGD with momentum from the same `.onnx` file ([the nets](training-onnx.md)).

| net | runtime | weights | largest difference, of the largest weight | how far the steps moved the weights |
|---|---|---:|---:|---:|
{rows}

The goal is {tolerance:g}; `tests/boards/test_arm.py` fails above it. On the board: {versions}.

## Memory and installed size

{sizes}
"""
_VERSIONS = """
import platform, numpy, onnxruntime
print(platform.machine(), "numpy", numpy.__version__, "onnxruntime", onnxruntime.__version__)
"""


def prepare() -> str:
    """Prepare the emulated board; why that is not possible here, or an empty string."""
    made = subprocess.run(EMULATED[:2], capture_output=True, text=True, check=False)
    return "" if made.returncode == 0 else made.stderr.strip().rpartition("\n")[2]


def write_net(folder: Path, name: str) -> None:
    """Write a net and its mini-batches."""
    _, shape, size = net_of(name)
    (folder / f"{name}.onnx").write_bytes(exported(name))
    work = work_of(shape, size)
    np.savez(folder / f"{name}.npz", inputs=work.inputs, labels=work.labels, indices=work.indices)


def compare(folder: Path, net: str, runtime: str) -> tuple[int, float, float]:
    """Train on both; return the number of weights, their largest difference, and how far they moved, as shares."""
    found = []
    for kind, python in (("arm", EMULATED), ("x86", (sys.executable,))):
        out = folder / f"{net}-{runtime}-{kind}.npz"
        subprocess.run([*python, STEPS, folder, net, runtime, out], check=True, capture_output=True)
        with np.load(out) as arrays:
            found.append((arrays["start"], arrays["weights"]))
    (_, arm), (start, x86) = found
    scale = float(np.abs(x86).max())
    return x86.size, float(np.abs(arm - x86).max()) / scale, float(np.abs(x86 - start).max()) / scale


def installed() -> Sequence[tuple[str, float]]:
    """Return the megabytes that each package takes up on the emulated board."""
    site = ROOT / ".cache" / "boards" / "arm64"
    folders = [each for part in ("site", "onnx") for each in sorted((site / part).iterdir()) if each.is_dir()]
    sizes: dict[str, float] = {}
    for each in folders:
        name = each.name.partition(".libs")[0]
        if not name.endswith(("-info", "bin", "__pycache__")):
            total = sum(file.stat().st_size for file in each.rglob("*") if file.is_file() and file.suffix != ".pyc")
            sizes[name] = (
                max(total / 1e6, sizes.get(name, 0)) if name == each.name else sizes.get(name, 0) + total / 1e6
            )
    return sorted(sizes.items(), key=lambda pair: -pair[1])


def main() -> None:
    """Run all cases, and write the page."""
    why = prepare()
    if why:
        sys.exit(why)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for net in dict.fromkeys(net for net, _ in CASES):
            write_net(folder, net)
        for net, runtime in CASES:
            count, error, moved = compare(folder, net, runtime)
            rows.append(f"| {net} | {runtime} | {count:,} | {error:.1e} | {moved:.1e} |")
            print(rows[-1], flush=True)
    said = subprocess.run([*EMULATED, "-c", _VERSIONS], capture_output=True, text=True, check=True).stdout
    listed = [f"| {name} | {size:.1f} |" for name, size in installed() if size >= 0.1]
    sizes = "\n".join(["| package, aarch64 | MB unpacked |", "|---|---:|", *listed])
    PAGE.write_text(
        TEXT.format(date=time.strftime("%Y-%m-%d"), rows="\n".join(rows), tolerance=TOLERANCE,
                    versions=said.strip().rpartition("\n")[2], sizes=sizes),
        encoding="utf-8",
    )  # fmt: skip


if __name__ == "__main__":
    main()
