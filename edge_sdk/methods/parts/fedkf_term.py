"""FedKF's loss term on generated samples (Zhou et al. 2023, equations 1 to 5): distillation without data.

The forms are in torch_fedkf.py and numpy_fedkf.py; fedkf_generator.py has what both share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edge_sdk.arrays import Floats
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
