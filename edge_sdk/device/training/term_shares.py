"""The share of each loss term in the gradient, measured through the Model protocol, so in every runtime."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import numpy as np

from edge_sdk.models.base import Batches, Model, step_norms
from edge_sdk.models.optim import PLAIN_STEP
from edge_sdk.objectives import Objective, Term
from edge_sdk.objectives.optim import Part


def term_shares(model: Model, batches: Batches, objective: Objective, part: Part = "all") -> Mapping[str, float]:
    """Return each term's gradient norm over the sum of all terms' norms, by the names of `term_names`.

    batches: one mini-batch.  The gradient of one term is the difference of the weights before and after a step of plain
    SGD with this term alone.  Afterwards the model is restored, with optimiser moments and running statistics.  Terms
    that are inert for the model are left out.  Empty if fewer than two terms remain, the model does not expose its
    weights, or a gradient is not finite.
    """
    spec = model.spec
    named = {name: term for name, term in term_names(objective).items() if term.name not in spec.inert_terms}
    if len(named) < 2 or "weights" not in spec.capabilities:
        return {}
    terms = tuple(named.values())
    norms = step_norms(model, batches, terms, part)
    if norms is None:
        norms = _norms_of_steps(model, batches, terms, part)
    total = sum(norms)
    if not (isfinite(total) and total > 0):
        return {}
    return {name: norm / total for name, norm in zip(named, norms, strict=True)}


def _norms_of_steps(model: Model, batches: Batches, terms: Objective, part: Part) -> list[float]:
    """Compute step_norms for any model, by steps that are undone."""
    state, before = model.state_bytes(), model.weights()  # (p,)
    norms = []
    for term in terms:
        model.fit(batches, (term,), PLAIN_STEP, part)
        norms.append(float(np.linalg.norm((model.weights() - before).astype(np.float64))))
        model.load_state(state)
    return norms


def term_names(objective: Objective) -> dict[str, Term]:
    """Return the terms by name, with a number from 2 added if an earlier term has the same name."""
    found: dict[str, Term] = {}
    for place, term in enumerate(objective):
        earlier = sum(each.name == term.name for each in objective[:place])
        found[f"{term.name}.{earlier + 1}" if earlier else term.name] = term
    return found
