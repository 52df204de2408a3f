"""Loss terms: each is data with its mathematics in numpy, which any model runtime can minimise.

A term is a function of the logits of one mini-batch, or else of its features, of the head alone or of the weights
alone (`Term.on`).  It gives its value and its slope with respect to those; a runtime takes the slope back to its
trainable scalars by the chain rule.  Faster forms are registered beside, for torch
(edge_sdk.models.torch_nets.torch_forms) and for stacks of simulated devices, and equal the mathematics to 1e-5.
The total loss is the sum of the terms' values.

Knowledge that a term carries is aligned with the batches of the fit that it is used in: first axis the step, second the
sample.  Knowledge of classes is looked up by label instead, and serves every step.

May import `protocol`, `arrays` and `errors`.
"""

from __future__ import annotations

from edge_sdk.objectives.base import FEATURES, HEAD, LABELS, WEIGHTS, Head, On, Seen, Shapes, Term, needed
from edge_sdk.objectives.on_features import (
    BoundedDistance,
    ClassContrast,
    FeatureGradient,
    FeatureMatch,
    ModelContrast,
    PrototypeDistance,
    PrototypePull,
    bounded,
    spliced,
)
from edge_sdk.objectives.on_head import (
    HeadDivergence,
    HeadLabels,
    HeadMatch,
    HeadProximal,
    HeadTerm,
    Proximal,
    layer_of,
)
from edge_sdk.objectives.on_logits import (
    BalancedCrossEntropy,
    ClassLogitMatch,
    ClassTarget,
    CrossEntropy,
    Distill,
    LabelLoss,
    LessForgetting,
    LogitGradient,
    LogitMatch,
)
from edge_sdk.objectives.optim import Optim, Schedule, optim_of, schedule_of
from edge_sdk.objectives.softmax import NORM_FLOOR, log_softmax, norms, softmax
from edge_sdk.objectives.whole import (
    TERMS,
    Coupling,
    Objective,
    at_step,
    at_steps,
    feature_gradient,
    form_of,
    load_term,
    logit_gradient,
    names_on,
    objective_loss,
    on_features,
    slope_of,
    terms,
    value_of,
    weight_gradient,
)

__all__ = [
    "FEATURES",
    "HEAD",
    "LABELS",
    "NORM_FLOOR",
    "TERMS",
    "WEIGHTS",
    "BalancedCrossEntropy",
    "BoundedDistance",
    "ClassContrast",
    "ClassLogitMatch",
    "ClassTarget",
    "Coupling",
    "CrossEntropy",
    "Distill",
    "FeatureGradient",
    "FeatureMatch",
    "Head",
    "HeadDivergence",
    "HeadLabels",
    "HeadMatch",
    "HeadProximal",
    "HeadTerm",
    "LabelLoss",
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
    "Schedule",
    "Seen",
    "Shapes",
    "Term",
    "at_step",
    "at_steps",
    "bounded",
    "feature_gradient",
    "form_of",
    "layer_of",
    "load_term",
    "log_softmax",
    "logit_gradient",
    "names_on",
    "needed",
    "norms",
    "objective_loss",
    "on_features",
    "optim_of",
    "schedule_of",
    "slope_of",
    "softmax",
    "spliced",
    "terms",
    "value_of",
    "weight_gradient",
]
