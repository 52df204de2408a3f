"""Which nets of torchvision train whole after torch.onnx.export, by both exporters and several operator sets.

    python -m benchmarks.on_device.torchvision_nets             writes docs/results/training-torchvision.md
    python -m benchmarks.on_device.torchvision_nets vgg11_bn    says how far it is from double precision

A net trains whole if every layer learns and one step with rate 1 changes the weights as torch's step does.
"""

from __future__ import annotations

import importlib
import io
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from edge_sdk.errors import EdgeError
from edge_sdk.models.base import Batches
from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sdk.objectives import CrossEntropy, Optim

PAGE = Path(__file__).parents[2] / "docs" / "results" / "training-torchvision.md"
FAMILIES = (
    "alexnet",
    "vgg11_bn",
    "resnet18",
    "squeezenet1_1",
    "densenet121",
    "googlenet",
    "shufflenet_v2_x0_5",
    "mobilenet_v3_small",
    "mnasnet0_5",
    "efficientnet_b0",
    "regnet_y_400mf",
    "convnext_tiny",
    "vit",
    "swin_t",
)
OLDER, NEWER = (13, 20), (18, 23)
"""Operator sets of each exporter: its first and its last."""
CLASSES, LARGER = 5, ("alexnet", "vgg11_bn")
CLOSE = 1e-3
"""The largest difference of a step from torch's, as a share of its length: some numbers lie near a kink."""
TEXT = """# Nets of torchvision that train whole

Written by `python -m benchmarks.on_device.torchvision_nets` on {date}; the table is not typed by hand. Each of {count}
families is exported by both of torch's exporters ([how](../how-to/train-the-model-you-have.md)), and takes one step
beside torch. A number means that all layers learn; it is the difference of both steps, as a share of the step. Other
cells name the obstacle. Nets whole "with names of its own" do not average with torch. Pictures are 64 x 64; {larger}
take 224 x 224, which their last pool needs.

| family | {heads} |
|---|{lines}|
{rows}

{sums} The goal is 12 of 14.
{history}"""
HISTORY = "\n## Where torch is not exact\n"


def shape_of(family: str) -> tuple[int, int, int]:
    """Return the shape of its pictures."""
    return (3, 224, 224) if family in LARGER else (3, 64, 64)


def net_of(family: str) -> Any:
    """Return a net with weights that were drawn."""
    import torch

    importlib.import_module("edge_sim.models.torch_vision")  # finds torchvision's operators
    vision = importlib.import_module("torchvision.models")
    torch.manual_seed(0)
    if family == "vit":
        return vision.VisionTransformer(
            64, 16, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=CLASSES
        ).eval()
    more = {"init_weights": False, "aux_logits": False} if family == "googlenet" else {}
    return getattr(vision, family)(weights=None, num_classes=CLASSES, **more).eval()


def exported(net: Any, shape: tuple[int, int, int], opset: int, *, newer: bool) -> bytes:
    """Return the file that an exporter writes."""
    import torch

    sample = torch.zeros(2, *shape)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # of the exporters about themselves
        if not newer:
            file = io.BytesIO()
            torch.onnx.export(net, (sample,), file, dynamo=False, do_constant_folding=False, opset_version=opset,
                              input_names=["x"], dynamic_axes={"x": {0: "n"}})  # fmt: skip
            return file.getvalue()
        path = Path(folder) / "net.onnx"
        torch.onnx.export(net, (sample,), path, dynamo=True, optimize=False, opset_version=opset, external_data=False,
                          dynamic_shapes=({0: torch.export.Dim("n")},), verbose=False)  # fmt: skip
        return path.read_bytes()


def told(family: str, opset: int, *, newer: bool) -> str:
    """Return how far a step is from torch's, or what holds some layers."""
    net, shape = net_of(family), shape_of(family)
    try:
        one = OnnxModel(exported(net, shape, opset, newer=newer), train="all")
    except EdgeError as error:
        return "no last linear layer" if "no last linear layer" in str(error) else str(error).partition(": ")[2]
    except Exception as error:  # noqa: BLE001  # an exporter's errors have no common base
        return f"no export: {type(error).__name__}"
    report = one.learning.report if one.learning else None
    if report is None or report.learning < report.layers:
        return report.remark() if report else "no layer learns"
    two = TorchModel(net, CLASSES, input_shape=shape)
    if one.spec.layout != two.spec.layout:
        return "whole, with names of its own"
    x = np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)
    work = Batches(inputs=x, labels=np.arange(4), indices=np.arange(4)[None], stochastic=False)
    start = one.weights()
    for each in (one, two):
        each.fit(work, (CrossEntropy(),), Optim(kind="sgd", learning_rate=1.0))
    found, expected = one.weights() - start, two.weights() - start
    share = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    return f"{share:.0e}" if share < CLOSE else "another step"


def beside_double(family: str) -> str:
    """Return how far each slope is from torch's in double precision, as a share of its length: torch's, and ours."""
    import torch

    net, shape = net_of(family), shape_of(family)
    x = np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)
    work = Batches(inputs=x, labels=np.arange(4), indices=np.arange(4)[None], stochastic=False)
    one = OnnxModel(exported(net, shape, OLDER[0], newer=False), train="all")
    start = one.weights().astype(np.float64)
    one.fit(work, (CrossEntropy(),), Optim(kind="sgd", learning_rate=1.0))
    found = {"ONNX Runtime": start - one.weights()}
    for name, kind in (("torch", torch.float32), ("double", torch.float64)):
        own = net.to(kind)
        own.zero_grad()
        torch.nn.functional.cross_entropy(own(torch.from_numpy(x).to(kind)), torch.arange(4)).backward()
        found[name] = np.concatenate([each.grad.double().numpy().ravel() for each in own.parameters()])
    truth = found.pop("double")
    far = {name: np.linalg.norm(each - truth) / np.linalg.norm(truth) for name, each in found.items()}
    return f"{family}: " + ", ".join(f"{name} {share:.1e}" for name, share in far.items())


def main() -> None:
    """Try all, and write the page; or compare the families that are named with double precision."""
    import torch

    torch.set_num_threads(1)
    if sys.argv[1:]:
        sys.stdout.write("".join(f"{beside_double(family)}\n" for family in sys.argv[1:]))
        return
    ways = [*((opset, False) for opset in OLDER), *((opset, True) for opset in NEWER)]
    cells = []
    for family in FAMILIES:
        cells.append([told(family, opset, newer=newer) for opset, newer in ways])
        sys.stdout.write(f"{family}: {cells[-1]}\n")
        sys.stdout.flush()
    heads = [f"{'newer' if newer else 'older'} exporter, opset {opset}" for opset, newer in ways]
    whole = [sum("e-" in row[at] or row[at].startswith("whole") for row in cells) for at in range(len(ways))]
    sums = "; ".join(f"{head}: {count} of {len(FAMILIES)}" for head, count in zip(heads, whole, strict=True))
    rows = [f"| {family} | {' | '.join(row)} |" for family, row in zip(FAMILIES, cells, strict=True)]
    _, mark, history = PAGE.read_text(encoding="utf-8").partition(HISTORY)  # is written by hand
    text = TEXT.format(
        history=mark + history,
        date=time.strftime("%Y-%m-%d"),
        count=len(FAMILIES),
        larger=" and ".join(LARGER),
        heads=" | ".join(heads),
        lines="|".join(["---:"] * len(heads)),
        rows="\n".join(rows),
        sums=f"Whole: {sums}.",
    )
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
