"""FedKF's loss term on generated samples (Zhou et al. 2023, equations 1 to 5), and the generator that makes them.

The forms are in torch_fedkf.py and numpy_fedkf.py.  Both share the generator's sizes and how its samples look.  Its
weights and its noise are drawn in numpy, so that devices with torch and without it generate the same samples.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.errors import ModelError
from edge_sdk.objectives import On, Seen, Shapes, Term, log_softmax, needed, softmax

LOGITS = "a term on generated samples needs the logits of two models for them"
LEAST_SHARE = 1e-12
"""A lower limit for class shares before the logarithm: 0 log 0 is then 0, and has a slope."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataFree(Term):
    """KL(softmax(teacher(x_G)) || softmax(f(x_G))) on samples x_G of a generator (FedKF eq. 5).

    The teacher is a model of the same architecture, given by its weights.  At each step the generator takes one step on
    `generator_loss` through the frozen teacher, and then makes B samples.  Only a runtime that differentiates a net
    with respect to its inputs can do this.

    Its value and its slope are functions of `Seen.own`: the logits of the teacher and of the net for these samples,
    (b, k) and (b, k).
    """

    name: ClassVar[str] = "data-free"
    on: ClassVar[On] = "own"
    teacher: Floats  # (p,)
    generator: str = "board"
    """The generator's size: `board` or `paper`."""
    noise_dim: int = 32
    samples: int = 0
    """B, the noise vectors of a step; 0 takes the size of the mini-batch."""
    rate: float = 1e-3
    """The learning rate of the generator's Adam."""
    certain: float = 0.1
    """lambda_1, the weight of L_CE."""
    active: float = 0.1
    """lambda_2, the weight of L_A."""
    raw: bool = False
    """Whether the generator's loss is exactly that of the paper, instead of the scale-free form of its authors'
    code."""
    adversarial: bool = False
    """Whether the generator also looks for samples on which f and the teacher differ."""
    warm: bool = True
    """Whether the generator continues from the last fit; if not, it restarts."""
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """Return the mean over the generated samples."""
        teacher, own = (log_softmax(logits) for logits in needed(seen.own, LOGITS))  # (b, k), (b, k)
        return float(self.weight * (np.exp(teacher) * (teacher - own)).sum(axis=-1).mean())

    def slope(self, seen: Seen) -> Floats:
        """Return the slope at the logits f(x_G): (b, k)."""
        teacher, own = needed(seen.own, LOGITS)
        out: Floats = (softmax(own) - softmax(teacher)) * np.float32(self.weight / len(own))
        return out

    def misfit(self, shapes: Shapes) -> str:
        """Check that the teacher has as many weights as the model."""
        if self.teacher.shape == (shapes.parameters,):
            return ""
        return f"carries a teacher of {self.teacher.shape}, the model has {shapes.parameters} weights"

    def generator_loss(self, logits: Floats, features: Floats) -> float:
        """L_IE + lambda_1 L_CE + lambda_2 L_A (FedKF eq. 1 to 4): the teacher's logits (b, k) and features (b, d).

        raw: L_IE = sum_c p_c log p_c, p the batch mean of softmax, and L_A = -(1/b) sum |features|_1.  Otherwise L_IE
        is 1 + that / log k, in [0, 1], and L_A is per feature.
        """
        shares = softmax(logits).mean(axis=0)  # (k,)
        entropy = float((shares * np.log(np.maximum(shares, LEAST_SHARE))).sum())
        balance = entropy if self.raw else 1 + entropy / np.log(max(logits.shape[1], 2))
        certain = -log_softmax(logits).max(axis=-1).mean()
        active = -np.abs(features).sum(axis=-1).mean() / (1 if self.raw else features.shape[1])
        return float(balance + self.certain * certain + self.active * active)

    def generator_slopes(self, logits: Floats, features: Floats) -> tuple[Floats, Floats]:
        """Return the slopes of `generator_loss` at the teacher's logits (b, k) and features (b, d)."""
        p, scale = softmax(logits), 1 if self.raw else 1 / np.log(max(logits.shape[1], 2))
        shares = p.mean(axis=0)  # (k,)
        at_shares = np.log(np.maximum(shares, LEAST_SHARE)) + (shares >= LEAST_SHARE)  # (k,)
        at_logits = scale * p * (at_shares - (p * at_shares).sum(axis=-1, keepdims=True))
        sure = p.copy()
        sure[np.arange(len(p)), logits.argmax(axis=-1)] -= 1
        at_logits = (at_logits + self.certain * sure) / len(p)
        at_features = np.sign(features) * (-self.active / (len(p) * (1 if self.raw else features.shape[1])))
        return at_logits.astype(np.float32), at_features.astype(np.float32)

    def adversarial_slopes(self, teacher: Floats, own: Floats) -> tuple[Floats, Floats]:
        """Return the slopes of -weight KL(softmax(teacher) || softmax(own)) at both logits: (b, k), (b, k)."""
        said, given = log_softmax(own), log_softmax(teacher)
        p, gap = np.exp(given), given - said
        share = -self.weight / len(p)
        at_teacher = share * p * (gap - (p * gap).sum(axis=-1, keepdims=True))
        return at_teacher.astype(np.float32), (share * (np.exp(said) - p)).astype(np.float32)


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
