"""FedKF's generator, as every runtime has it: its sizes, its first weights, its noise, and how its samples look.

The weights and the noise are drawn in numpy, so that devices with torch and without it generate the same samples.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.errors import ModelError
from edge_sdk.methods.parts.fedkf_term import LEAST_SHARE, DataFree
from edge_sdk.objectives import softmax

log = logging.getLogger(__name__)
LEAST_SIDE = 4
"""The minimum side of a picture in pixels."""
WIDTHS: Mapping[str, tuple[int, int, int]] = {"board": (16, 16, 8), "paper": (128, 128, 64)}
"""The channels of a generator's three maps, by its size."""
LEAKY = 0.2
"""The slope of its activation below 0."""
NORM_FLOORS = (1e-5, 0.8, 0.8)
"""Added under the root in its three normalisations, as in the code of FedKF and DAFL."""


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

    def check(self) -> None:
        """Raise ModelError for samples that are not pictures."""
        if not is_picture(self.shape):
            raise ModelError(
                f"samples of shape {self.shape}: a generator makes up pictures (c, h, w) of at least "
                f"{LEAST_SIDE} x {LEAST_SIDE}; choose a method without one, such as fedavg with cached = true"
            )

    @property
    def first_map(self) -> tuple[int, int, int]:
        """The channels, rows and columns of the map whose sides are doubled twice."""
        return WIDTHS[self.size][0], -(-self.shape[1] // 4), -(-self.shape[2] // 4)

    @property
    def arrays(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each array of weights, named as in torch's nn.Sequential."""
        first, second, third = WIDTHS[self.size]
        return {
            "layers.0.weight": (int(np.prod(self.first_map)), self.noise_dim),
            "layers.0.bias": (int(np.prod(self.first_map)),),
            "layers.3.weight": (first,),
            "layers.3.bias": (first,),
            "layers.4.weight": (second, first, 3, 3),
            "layers.4.bias": (second,),
            "layers.5.weight": (second,),
            "layers.5.bias": (second,),
            "layers.8.weight": (third, second, 3, 3),
            "layers.8.bias": (third,),
            "layers.9.weight": (third,),
            "layers.9.bias": (third,),
            "layers.11.weight": (self.shape[0], third, 3, 3),
            "layers.11.bias": (self.shape[0],),
        }


NORMS = ("layers.3", "layers.5", "layers.9")
"""The layers of normalisation."""


def first_weights(plan: Plan, seed: int) -> dict[str, Floats]:
    """Return the first weights of a generator, by name: U(-1/sqrt n, 1/sqrt n) for n inputs, as torch draws them.

    Normalisations begin with factors 1 and bias 0.
    """
    rng, found = np.random.default_rng(seed), dict[str, Floats]()
    bound = 1.0
    for name, shape in plan.arrays.items():
        layer, _, kind = name.rpartition(".")
        if layer in NORMS:
            found[name] = np.full(shape, kind == "weight", np.float32)
            continue
        if kind == "weight":
            bound = float(np.prod(shape[1:])) ** -0.5
        found[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
    return found


def noise_draws(seed: int) -> np.random.Generator:
    """Return the random generator of a fit's noise; seed: of its batches."""
    return np.random.default_rng([seed, 1])  # other numbers than those of a new generator


def drawn_noise(draws: np.random.Generator, count: int, noise_dim: int) -> Floats:
    """Return the noise behind `count` samples, from N(0, 1): (count, noise_dim)."""
    return draws.standard_normal((count, noise_dim), dtype=np.float32)


def looks_of(logits: Floats) -> dict[str, float]:
    """Return `generated_class_entropy` and `generated_certainty` of samples, given the teacher's logits (b, k).

    The entropy is that of the mean prediction, over log k: 1 if the samples are spread evenly over the classes, 0 if
    all are of one class.  The certainty is the mean of the largest probability of each sample.
    """
    shares = softmax(logits)  # (b, k)
    mean = shares.mean(axis=0)
    entropy = -(mean * np.log(np.maximum(mean, LEAST_SHARE))).sum() / np.log(max(logits.shape[1], 2))
    return {"generated_class_entropy": float(entropy), "generated_certainty": float(shares.max(axis=-1).mean())}


def warn_of_size(plan: Plan, own: int) -> None:
    """Warn (W7) of a generator with more weights than the model, which has `own`."""
    made = sum(int(np.prod(shape)) for shape in plan.arrays.values())
    if made > own:
        log.warning(
            "W7: the generator (%s, noise_dim %d) has %d weights, the model %d: it decides what a round costs",
            plan.size,
            plan.noise_dim,
            made,
            own,
        )


def extra_flops_of(term: DataFree, batch: int, generator: int, model: int) -> int:
    """Return a step's operations beyond a training pass; generator, model: those of one sample's forward pass.

    Counted are the generator (forward, backward, forward), the teacher (the same) and the model.
    """
    return (term.samples or batch) * (4 * generator + (10 if term.adversarial else 7) * model)
