"""Loss terms with numbers that are drawn: what tests of several runtimes train with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge_sdk.objectives import (
    BalancedCrossEntropy,
    ClassTarget,
    CrossEntropy,
    Distill,
    HeadLabels,
    HeadMatch,
    HeadProximal,
    HeadTerm,
    LessForgetting,
    LogitGradient,
    LogitMatch,
    Term,
)


def logit_terms(rng: np.random.Generator, steps: int, size: int, classes: int) -> Mapping[str, Term]:
    """The terms on logits, with weights and temperatures that are not 1; steps, size: of the mini-batches."""
    teacher, snapshot, gradient = rng.normal(size=(3, steps, size, classes)).astype(np.float32)
    return {
        "cross-entropy": CrossEntropy(weight=0.7),
        "balanced-cross-entropy": BalancedCrossEntropy(counts=np.arange(1, classes + 1, dtype=np.float32), weight=0.7),
        "distill": Distill(logits=3 * teacher, temperature=2.5, weight=1.5),
        "less-forgetting": LessForgetting(logits=snapshot, temperature=0.8, weight=0.5),
        "logit-gradient": LogitGradient(gradient=gradient, weight=2.0),
        "logit-match": LogitMatch(logits=teacher, weight=0.5),
        "logit-match squared": LogitMatch(logits=teacher, error="squared", weight=0.5),
        "class-target": ClassTarget(classes=np.arange(2), rows=np.full((2, classes), 0.25, np.float32), weight=0.5),
    }


def head_terms(rng: np.random.Generator, classes: int, width: int) -> Mapping[str, HeadTerm]:
    """The terms on a head of rows (classes, width + 1) with reference and slope of their own."""
    rows = rng.normal(size=(2, width)).astype(np.float32)
    anchor = rng.normal(size=(classes, width + 1)).astype(np.float32)
    return {
        "head-match": HeadMatch(features=rows, soft=rng.dirichlet(np.ones(classes), 2).astype(np.float32)),
        "head-labels": HeadLabels(features=rows, labels=np.array([3, 0]), weight=0.7),
        "head-proximal": HeadProximal(rows=anchor, weight=0.1),
    }


HEAD_TERMS = ("head-match", "head-labels", "head-proximal")
