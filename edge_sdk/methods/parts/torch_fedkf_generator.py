"""FedKF's generator, which makes pictures from noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edge_sdk.errors import ModelError

LEAST_SIDE = 4
"""The minimum side of a picture in pixels."""
WIDTHS: Mapping[str, tuple[int, int, int]] = {"board": (16, 16, 8), "paper": (128, 128, 64)}
"""The channels of a generator's three maps, by its size."""
_SLOPE = 0.2
_NORM_FLOOR = 0.8
"""Added under the root in the last two normalisations, as in the code of FedKF and DAFL."""


def is_picture(shape: tuple[int, ...]) -> bool:
    """Return whether samples of (c, h, w) are pictures that a generator can make."""
    return len(shape) == 3 and min(shape[1:]) >= LEAST_SIDE


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes that define a generator."""

    size: str
    """A key of WIDTHS."""
    noise_dim: int
    shape: tuple[int, int, int]  # (c, h, w)


class Generator(nn.Module):
    """Noise (b, z) -> pictures (b, c, h, w) in [0, 1]: a linear layer, then a map whose sides are doubled twice.

    The paper takes DCGAN's generator (Radford, Metz and Chintala, ICLR 2016, arXiv:1511.06434).  Its code has that of
    DAFL (Chen et al., ICCV 2019, arXiv:1904.01186), a DCGAN with upsampling, and this is `paper`, with a sigmoid at its
    end: 8.42 M parameters for 32 x 32 in colour and 1000 numbers of noise.  `board` is the same with an eighth of the
    channels.  The generator always normalises by the batch that it makes, and keeps no running statistics.
    """

    def __init__(self, plan: Plan) -> None:
        """Build the layers.  Raises ModelError for samples that are not pictures."""
        super().__init__()
        if not is_picture(plan.shape):
            raise ModelError(
                f"samples of shape {plan.shape}: a generator makes up pictures (c, h, w) of at least "
                f"{LEAST_SIDE} x {LEAST_SIDE}; choose a method without one, such as fedavg with cached = true"
            )
        channels, self._height, self._width = plan.shape
        rows, columns = -(-self._height // 4), -(-self._width // 4)
        first, second, third = WIDTHS[plan.size]
        self.layers = nn.Sequential(
            nn.Linear(plan.noise_dim, first * rows * columns),
            nn.Unflatten(1, (first, rows, columns)),
            nn.Upsample(scale_factor=2),
            nn.BatchNorm2d(first, track_running_stats=False),
            nn.Conv2d(first, second, 3, padding=1),
            nn.BatchNorm2d(second, _NORM_FLOOR, track_running_stats=False),
            nn.LeakyReLU(_SLOPE),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(second, third, 3, padding=1),
            nn.BatchNorm2d(third, _NORM_FLOOR, track_running_stats=False),
            nn.LeakyReLU(_SLOPE),
            nn.Conv2d(third, channels, 3, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """Generate pictures: (b, z) -> (b, c, h, w)."""
        out: Tensor = self.layers(noise)
        return out[:, :, : self._height, : self._width]


def parameter_count(generator: nn.Module) -> int:
    """Return the number of trainable scalars."""
    return sum(p.numel() for p in generator.parameters())


def range_of(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return the minimum and maximum of each channel: (n, c, h, w) -> (c, 1, 1), (c, 1, 1)."""
    dims = (0, 2, 3)
    return torch.amin(samples, dims)[:, None, None], torch.amax(samples, dims)[:, None, None]
