"""What packages register: a broken one is one clear line, and no other name suffers for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from edge_sdk.arrays import Floats
from edge_sdk.errors import UsageError
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import CrossEntropy, On, Seen, Term, form_of, load_term, names_on, terms
from edge_sdk.protocol import registry

Register = Callable[[str, Mapping[str, str]], None]
OURS = "edge_sdk.objectives:CrossEntropy"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Confidence(Term):
    """The mean over b of f_max - f_y."""

    name: ClassVar[str] = "confidence"
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        rows = np.arange(len(seen.logits))
        return float(self.weight * (seen.logits.max(axis=1) - seen.logits[rows, seen.labels]).mean())

    def slope(self, seen: Seen) -> Floats:
        rows = np.arange(len(seen.logits))
        out = np.zeros_like(seen.logits)
        out[rows, seen.logits.argmax(axis=1)] += 1
        out[rows, seen.labels] -= 1
        return out * np.float32(self.weight / len(rows))


class OnTheHead(Confidence):
    """On the head, and does not say what it asks."""

    name: ClassVar[str] = "on-the-head"
    on: ClassVar[On] = "head"


def test_a_term_of_another_package_is_one_of_all(register: Register) -> None:
    register("edge_sdk.terms", {"confidence": f"{__name__}:Confidence"})
    assert terms()["confidence"] is Confidence
    assert "confidence" in names_on("logits") & NumpyModel(3, (1, 2, 2), seed=0).spec.terms
    assert form_of("edge_sdk.torch_terms", Confidence) is None
    assert form_of("edge_sdk.torch_terms", CrossEntropy) is not None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("huber", "no_such_package:Huber", "'huber': no_such_package:Huber .*load"),
        ("huber", "edge_sdk.objectives:Huber", "'huber': edge_sdk.objectives:Huber .*load"),
        ("huber", OURS, "'huber': .*not an edge_sdk.objectives.Term .*name"),
        ("huber", "edge_sdk.objectives:softmax", "is not an edge_sdk.objectives.Term"),
        (
            "proximal",
            OURS,
            "'proximal' .*twice, .*Proximal .*CrossEntropy.*uninstall",
        ),
        ("on-the-head", f"{__name__}:OnTheHead", "is an edge_sdk.objectives.HeadTerm"),
    ],
)
def test_a_broken_term_is_one_clear_line_and_spoils_no_other(
    register: Register, name: str, value: str, message: str
) -> None:
    register("edge_sdk.terms", {name: value})
    with pytest.raises(UsageError, match=message) as caught:
        load_term(name)
    assert "\n" not in str(caught.value)
    assert "uninstall" in str(caught.value)
    known = NumpyModel(3, (1, 2, 2), seed=0).spec.terms
    assert name not in known
    assert "cross-entropy" in known


def test_the_same_registration_seen_twice_is_one(register: Register) -> None:
    register("edge_sdk.terms", {"cross-entropy": OURS})
    assert terms()["cross-entropy"] is CrossEntropy


def test_what_nobody_registers_is_named_with_what_there_is(register: Register) -> None:
    register("a.group", {"one": OURS, "two": OURS})
    with pytest.raises(UsageError, match=r"thing 'three'; .*one, two"):
        registry.load_entry("a.group", "three", "thing")
    with pytest.raises(UsageError, match="registered are none"):
        registry.load_entry("another.group", "one", "thing")
