"""Loss terms as data, with their reference mathematics in numpy.

A term says what to minimise; a model runtime says which terms it can.  Every term is a function of the logits of one
mini-batch, or else of its features, of the head alone, of the weights alone or of samples that are made up (`Term.on`),
so the reference gives its value and its gradient with respect to those; the torch runtime computes the same loss with
autograd, equal to 1e-5.  The total loss is the batch mean of the weighted sum.

Knowledge that a term carries is aligned with the batches of the fit that it is used in: first axis the step, second the
sample.  Knowledge of classes is looked up by label instead, and serves every step.
"""

from __future__ import annotations

from edge_sdk.objectives.base import (
    FAKES,
    FEATURES,
    HEAD,
    LABELS,
    WEIGHTS,
    Floats,
    Head,
    Ints,
    On,
    Seen,
    Shapes,
    Term,
    needed,
)
from edge_sdk.objectives.contrast import ClassContrast, ModelContrast
from edge_sdk.objectives.on_fakes import LEAST_SHARE, DataFree
from edge_sdk.objectives.on_features import PrototypeDistance, PrototypePull
from edge_sdk.objectives.on_head import HeadLabels, HeadMatch, HeadProximal, HeadTerm
from edge_sdk.objectives.on_logits import (
    BalancedCrossEntropy,
    ClassTarget,
    CrossEntropy,
    Distill,
    LessForgetting,
    LogitGradient,
    LogitMatch,
)
from edge_sdk.objectives.on_weights import Proximal
from edge_sdk.objectives.optim import Optim
from edge_sdk.objectives.softmax import NORM_FLOOR, log_softmax, norms, softmax
from edge_sdk.objectives.whole import (
    Objective,
    at_step,
    feature_gradient,
    logit_gradient,
    objective_loss,
    on_features,
    weight_gradient,
)

TERMS: tuple[type[Term], ...] = (
    CrossEntropy,
    BalancedCrossEntropy,
    Distill,
    LessForgetting,
    LogitGradient,
    LogitMatch,
    ClassTarget,
    PrototypePull,
    PrototypeDistance,
    ModelContrast,
    ClassContrast,
    HeadMatch,
    HeadLabels,
    HeadProximal,
    Proximal,
    DataFree,
)
"""Every term there is."""


def names_on(*on: On) -> frozenset[str]:
    """Names of the terms that are functions of these."""
    return frozenset(term.name for term in TERMS if term.on in on)


__all__ = [
    "FAKES",
    "FEATURES",
    "HEAD",
    "LABELS",
    "LEAST_SHARE",
    "NORM_FLOOR",
    "TERMS",
    "WEIGHTS",
    "BalancedCrossEntropy",
    "ClassContrast",
    "ClassTarget",
    "CrossEntropy",
    "DataFree",
    "Distill",
    "Floats",
    "Head",
    "HeadLabels",
    "HeadMatch",
    "HeadProximal",
    "HeadTerm",
    "Ints",
    "LessForgetting",
    "LogitGradient",
    "LogitMatch",
    "ModelContrast",
    "Objective",
    "On",
    "Optim",
    "PrototypeDistance",
    "PrototypePull",
    "Proximal",
    "Seen",
    "Shapes",
    "Term",
    "at_step",
    "feature_gradient",
    "log_softmax",
    "logit_gradient",
    "names_on",
    "needed",
    "norms",
    "objective_loss",
    "on_features",
    "softmax",
    "weight_gradient",
]
