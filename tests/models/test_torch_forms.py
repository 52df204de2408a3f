"""Torch minimises a term by its mathematics alone, and every registered form is equal to that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from model_suite import ADAM, BATCH, CLASSES, OPTIMS, SHAPE, batches

from edge_sdk import objectives
from edge_sdk.arrays import Floats
from edge_sdk.data import Preprocess
from edge_sdk.errors import Unsupported
from edge_sdk.models.base import Model
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import Seen, Term, names_on, terms
from edge_sdk.protocol import registry

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from edge_sdk.models.torch_nets.torch_forms import TORCH_FORMS
from edge_sim.models.torch_families import torch_model

STEPS = 3


def knowledge(model: Model) -> dict[str, Callable[[], dict[str, Any]]]:
    """What each term carries, of the model's sizes."""
    rng, d, p = np.random.default_rng(4), model.spec.feature_dim, model.spec.parameters

    def rows(*shape: int) -> Floats:
        return rng.normal(size=shape).astype(np.float32)

    def soft(count: int) -> Floats:
        return rng.dirichlet(np.ones(CLASSES), count).astype(np.float32)

    some = np.array([0, 2])
    return {
        "cross-entropy": dict,
        "balanced-cross-entropy": lambda: {"counts": np.arange(CLASSES, dtype=np.float32)},
        "distill": lambda: {"logits": rows(STEPS, BATCH, CLASSES), "temperature": 2.0},
        "less-forgetting": lambda: {"logits": rows(STEPS, BATCH, CLASSES)},
        "logit-gradient": lambda: {"gradient": rows(STEPS, BATCH, CLASSES)},
        "logit-match": lambda: {"logits": rows(STEPS, BATCH, CLASSES), "error": "squared"},
        "class-target": lambda: {"classes": some, "rows": soft(2)},
        "feature-gradient": lambda: {"gradient": rows(STEPS, BATCH, d)},
        "feature-match": lambda: {"targets": rows(STEPS, BATCH, 5), "projection": rows(5, d)},
        "prototype-pull": lambda: {"classes": some, "rows": rows(2, d)},
        "prototype-distance": lambda: {"classes": some, "rows": rows(2, d)},
        "bounded-distance": lambda: {"classes": some, "rows": rows(2, d), "most": 0.5},
        "model-contrast": lambda: {"near": rows(STEPS, BATCH, d), "away": rows(STEPS, BATCH, d)},
        "class-contrast": lambda: {"temperature": 0.5},
        "head-match": lambda: {"features": rows(3, d), "soft": soft(3)},
        "head-divergence": lambda: {"features": rows(3, d), "soft": soft(3)},
        "head-labels": lambda: {"features": rows(3, d), "labels": np.array([0, 2, 1])},
        "head-proximal": lambda: {"rows": rows(CLASSES, d + 1)},
        "proximal": lambda: {"anchor": rows(p)},
    }


def torch_mlp(head: str = "linear") -> Model:
    made: Model = torch_model("mlp", CLASSES, SHAPE, Preprocess(), 3, head=head)
    return made


def without_form(kind: type[Term]) -> type[Term]:
    """The same mathematics in a class of its own, which no form is registered for."""
    return type(f"Own{kind.__name__}", (kind,), {"__slots__": ()})


@pytest.mark.parametrize("head", ["linear", "cosine"])
@pytest.mark.parametrize("name", sorted(set(registry.names(TORCH_FORMS)) - names_on("own")))
def test_a_form_is_equal_to_the_mathematics(name: str, head: str) -> None:
    kind, work = terms()[name], batches(STEPS)
    term, other = (each(**knowledge(torch_mlp(head))[name](), weight=0.7) for each in (kind, without_form(kind)))
    fast, plain = torch_mlp(head), torch_mlp(head)
    for model, objective in ((fast, (term,)), (plain, (other,))):
        before = model.weights()
        report = model.fit(work, objective, OPTIMS["momentum"])
        assert np.isfinite(report.loss)
        assert (model.weights() != before).any()
    np.testing.assert_allclose(plain.weights(), fast.weights(), atol=1e-5)
    again = [model.fit(work, objective, ADAM).loss for model, objective in ((fast, (term,)), (plain, (other,)))]
    assert again[1] == pytest.approx(again[0], abs=1e-5)


OURS_BESIDE = {"data-free", "alignment"}
"""Terms that stand beside their methods."""


BY_SLOPE = {"class-logit-match"}
"""Terms without a form in torch, which minimises them by the slope of their mathematics."""


def test_every_term_of_the_package_is_registered_and_has_a_form() -> None:
    ours = [getattr(objectives, name) for name in objectives.__all__]
    found = {each.name for each in ours if isinstance(each, type) and issubclass(each, Term) and "name" in vars(each)}
    assert found == set(terms()) - OURS_BESIDE == set(registry.names(TORCH_FORMS)) - OURS_BESIDE | BY_SLOPE
    assert {kind.name for kind in terms().values()} == set(terms())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nowhere(Term):
    """On something that no runtime knows."""

    name: ClassVar[str] = "data-free"
    on: ClassVar[objectives.On] = "own"

    def value(self, seen: Seen) -> float:
        del seen
        return 0.0

    def slope(self, seen: Seen) -> Floats:
        del seen
        return np.zeros(0, np.float32)


def test_a_term_on_its_own_needs_a_form() -> None:
    model = torch_mlp()
    assert "data-free" in model.spec.terms
    with pytest.raises(Unsupported, match=r"'data-free' .*no form"):
        model.fit(batches(1), (Nowhere(),), ADAM)
    with pytest.raises(Unsupported, match="cannot minimise 'data-free'"):
        NumpyModel(CLASSES, SHAPE, seed=0).fit(batches(1), (Nowhere(),), ADAM)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Strange(Nowhere):
    """Its form is one of a term on logits."""

    name: ClassVar[str] = "strange"


def test_a_form_that_does_not_go_with_its_term_spoils_no_other(register: Callable[[str, Any], None]) -> None:
    register("edge_sdk.terms", {"strange": f"{__name__}:Strange"})
    register(TORCH_FORMS, {"strange": "edge_sdk.models.torch_nets.torch_terms:cross_entropy_loss"})
    model = torch_mlp()
    assert "strange" not in model.spec.terms
    assert "data-free" in model.spec.terms
    with pytest.raises(Unsupported, match="cannot minimise 'strange'"):
        model.fit(batches(1), (Strange(),), ADAM)
