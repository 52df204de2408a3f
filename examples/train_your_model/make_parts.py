"""Writes model.onnx and model.pt, the app's existing net, the pictures of five boards, and public.npz.

    python make_parts.py [--width 1.0] [--steps 300] [--pictures 60] [--seed 0]

The net is torchvision's MobileNetV3-small.  It was trained on pictures by day; the boards' cameras look at night, each
in a light of its own.
"""

from __future__ import annotations

import argparse
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch

import edge_sim.models.torch_vision  # noqa: F401  # finds torchvision's operators, whichever build of torch is here

import torchvision  # isort: skip

BOARDS = ("door", "yard", "gate", "shed", "lane")
SHAPES = ("square", "disc", "triangle", "cross")
SIZE = 32


class KeptNorm(torch.nn.BatchNorm2d):
    """Learns scale and bias, and keeps its statistics, as the boards without torch do."""

    def train(self, _mode: bool = True) -> KeptNorm:
        """Stay in inference mode."""
        return super().train(mode=False)


def net(width: float, norm: type[torch.nn.BatchNorm2d] = KeptNorm) -> torch.nn.Module:
    """MobileNetV3-small for these pictures, as torchvision has it."""
    layer = partial(norm, eps=0.001, momentum=0.1)
    return torchvision.models.mobilenet_v3_small(num_classes=len(SHAPES), width_mult=width, norm_layer=layer)


def picture(rng: np.random.Generator, label: int) -> np.ndarray:
    """A shape of some colour, somewhere: (3, SIZE, SIZE), from 0 to 1."""
    row, column = np.indices((SIZE, SIZE)) - rng.integers(10, SIZE - 10, (2, 1, 1))
    r = rng.integers(6, 10)
    inside = (
        (abs(row) < r) & (abs(column) < r),
        row**2 + column**2 < r**2,
        (row < r) & (2 * abs(column) < row + r),
        ((abs(row) < 3) | (abs(column) < 3)) & (abs(row) < r) & (abs(column) < r),
    )[label]
    ground, colour = rng.uniform(0, 0.4, (3, 1, 1)), rng.uniform(0.6, 1, (3, 1, 1))
    return np.where(inside, colour, ground) + rng.normal(0, 0.03, (3, SIZE, SIZE))


def by_night(rng: np.random.Generator, day: np.ndarray, light: np.ndarray) -> np.ndarray:
    """The picture of a camera at night: much darker, in this light (3,), and with noise."""
    return np.clip(day * light[:, None, None] + rng.normal(0, 0.05, day.shape), 0, 1)


def trained(width: float, steps: int, seed: int) -> torch.nn.Module:
    """The net after training by day, at a rate that falls to zero so that it converges."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    made = net(width, torch.nn.BatchNorm2d)
    optimiser = torch.optim.Adam(made.parameters(), 3e-3)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        y = rng.integers(0, len(SHAPES), 32)
        x = torch.from_numpy(np.stack([picture(rng, label) for label in y]).astype(np.float32))
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(made(x), torch.from_numpy(y)).backward()
        optimiser.step()
        rates.step()
    return made.eval()


def main() -> None:
    """Write all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=float, default=1.0, help="of the net's layers (default: 1.0)")
    parser.add_argument("--steps", type=int, default=300, help="of its training by day (default: 300)")
    parser.add_argument("--pictures", type=int, default=60, help="that each board has to learn from (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights with which that begins (default: 0)")
    args = parser.parse_args()
    made = trained(args.width, args.steps, args.seed)
    torch.save({"width": args.width, "state": made.state_dict()}, "model.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        torch.onnx.export(
            made,
            (torch.zeros(2, 3, SIZE, SIZE),),
            "model.onnx",
            dynamo=False,
            do_constant_folding=False,
            input_names=["x"],
            dynamic_axes={"x": {0: "n"}},
        )
    rng, seen = np.random.default_rng(1), list[np.ndarray]()
    lights = np.random.default_rng(3).uniform(0.2, 0.5, (len(BOARDS), 3))
    for board, light in zip(BOARDS, lights, strict=True):
        for part, count in (("train", args.pictures), ("test", 100)):
            for number in range(count):
                label = number % len(SHAPES)
                raw = np.uint8(255 * by_night(rng, picture(rng, label), light))
                file = Path("camera", board, part, SHAPES[label], f"{number:04}.ppm")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(b"P6 %d %d 255\n" % (SIZE, SIZE) + raw.transpose(1, 2, 0).tobytes())
        seen += [np.uint8(255 * by_night(rng, picture(rng, int(n % 4)), light)) for n in range(40)]
    np.savez("public.npz", public=np.stack(seen))


if __name__ == "__main__":
    main()
