"""Minimises loss terms in torch: by a form registered for the term, or else by its mathematics in numpy.

A form is faster than the mathematics and equal to it to 1e-5.  It is registered in the entry-point group
`edge_sdk.torch_terms` under the term's name, and is either a function `(term, device) -> Loss`, or a StatefulForm.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edge_sdk.arrays import Ints
from edge_sdk.errors import EdgeError, Unsupported, UsageError
from edge_sdk.models.base import Batches
from edge_sdk.models.torch_nets.torch_anatomy import Anatomy
from edge_sdk.models.torch_nets.torch_arrays import array_of, to_tensor
from edge_sdk.objectives import (
    HEAD,
    HeadTerm,
    Objective,
    Seen,
    Term,
    form_of,
    names_on,
    needed,
    slope_of,
    terms,
    value_of,
)

TORCH_FORMS = "edge_sdk.torch_terms"


@dataclass(frozen=True, slots=True)
class Pass:
    """The result of a forward pass over one mini-batch."""

    logits: Tensor  # (b, k)
    features: Tensor | None  # (b, d); only where the objective has a term on them
    labels: Tensor | None  # (b,)
    head: Callable[[Tensor], Tensor] | None  # features (m, d) -> logits (m, k)
    parameters: Sequence[Tensor]  # p scalars together


Loss: TypeAlias = Callable[[Pass, int], Tensor]
"""Maps (forward pass, step) to the weighted mean over the batch, a scalar."""


@dataclass(frozen=True, slots=True)
class Host:
    """The net that a term is minimised for, and its compute device."""

    net: nn.Module
    anatomy: Anatomy
    device: torch.device
    input_shape: tuple[int, int, int] | None
    """The sample shape (c, h, w), or None if unknown."""


class StatefulForm(ABC):
    """The form of a term on `own`: one for each model, which may keep something between fits, such as a generator.

    Its state is saved with the model, as arrays whose names begin with `prefix`.
    """

    prefix: ClassVar[str]

    def __init__(self, host: Host) -> None:
        self.host = host

    @staticmethod
    @abstractmethod
    def can(host: Host) -> bool:
        """Return whether the term can be minimised for this net."""

    @abstractmethod
    def loss(self, term: Any, batches: Batches) -> Loss:
        """Return the term's loss in one fit; batches: those of the fit."""

    @abstractmethod
    def extra_flops(self, term: Any, batch: int) -> int:
        """Return the floating-point operations of a step on a mini-batch of this size, beyond a training pass."""

    def instruments(self) -> Mapping[str, float]:
        """Return what the form did in its last step, by name."""
        return {}

    @abstractmethod
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return everything that a restart needs."""

    @abstractmethod
    def prepare(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Prepare for arrays of this kind, without loading their values.  Raises StoreError."""

    @abstractmethod
    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Load the arrays of a form of this kind."""


class Forms:
    """The forms of one model's terms, and their state between fits."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._stateful: dict[str, StatefulForm] = {}
        """The stateful forms by name of the term; each is made when its term is first used."""

    def names(self) -> frozenset[str]:
        """Return the registered terms that can be minimised for this net."""
        on_features = names_on("features") if self.host.anatomy.tap is not None else frozenset[str]()
        on_head = names_on("head") if self.host.anatomy.head is not None else frozenset[str]()
        own = frozenset(name for name, form in _own_forms() if form.can(self.host))
        return names_on("logits", "weights") | on_features | on_head | own

    def loss(self, objective: Objective, batches: Batches) -> Loss:
        """Return the sum of all terms; parts that do not depend on the model are computed once for all steps."""
        losses = [self._loss(term, batches) for term in objective]

        def total(done: Pass, step: int) -> Tensor:
            return torch.stack([loss(done, step) for loss in losses]).sum()

        return losses[0] if len(losses) == 1 else total

    def traceable(self, objective: Objective) -> bool:
        """Return whether torch computes all of the objective: no numpy, and nothing that a form keeps between fits."""
        return all(term.on != "own" and _form(type(term)) is not None for term in objective)

    def _loss(self, term: Term, batches: Batches) -> Loss:
        if term.on == "own":
            return self._of(term).loss(term, batches)
        form = _form(type(term)) or by_slope
        found: Loss = form(term, self.host.device)
        return found

    def _of(self, term: Term) -> StatefulForm:
        if term.name not in self._stateful:
            form = _form(type(term))
            if form is None:
                raise Unsupported(f"term {term.name!r} is on something of its own, and has no form in torch")
            self._stateful[term.name] = form(self.host)
        return self._stateful[term.name]

    def extra_flops(self, objective: Objective, steps: int, batch: int) -> int:
        """Return the floating-point operations of this number of steps, beyond those of training passes."""
        return steps * sum(self._of(term).extra_flops(term, batch) for term in objective if term.on == "own")

    def instruments(self, objective: Objective) -> Mapping[str, float]:
        """Return what the objective's stateful forms did in their last step, by name."""
        found: dict[str, float] = {}
        for term in objective:
            if term.on == "own":
                found |= self._of(term).instruments()
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state of the forms, by name."""
        return {name: array for form in self._stateful.values() for name, array in form.arrays().items()}

    def like(self, arrays: Mapping[str, NDArray[Any]]) -> Forms:
        """Return new forms of the kind that gave these arrays, without their values.  Raises StoreError."""
        found = Forms(self.host)
        for name, kind in _own_forms():
            if kind.can(self.host) and any(each.startswith(kind.prefix) for each in arrays):
                form = kind(self.host)
                form.prepare(arrays)
                found._stateful[name] = form
        return found

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Load the arrays of forms of this kind."""
        for form in self._stateful.values():
            form.load(arrays)


def _form(kind: type[Term]) -> Any:
    """Return the registered form of a term, or None.  Raises UsageError if it is not of the type that `on` requires."""
    form = form_of(TORCH_FORMS, kind)
    stateful = isinstance(form, type) and issubclass(form, StatefulForm)
    if form is not None and stateful != (kind.on == "own"):
        raise UsageError(
            f"loss term {kind.name!r}: a term on `own`, and no other, has a StatefulForm in {TORCH_FORMS}; "
            "uninstall its package or fix it"
        )
    return form


def _own_forms() -> Iterator[tuple[str, type[StatefulForm]]]:
    """Return the registered forms of terms on `own`, by the name of the term, without those that do not load."""
    for name in sorted(names_on("own")):
        form = None
        with contextlib.suppress(EdgeError):
            form = _form(terms()[name])
        if form is not None:
            yield name, form


def by_slope(term: Term, device: torch.device) -> Loss:
    """Return a loss from the mathematics alone: its value, with its slope as the gradient at what it is on."""

    def loss(done: Pass, step: int) -> Tensor:
        at = _place(term, done)
        seen = _seen(done, step, with_weights=term.on == "weights")
        slope = to_tensor(np.asarray(slope_of(term, seen, tuple(at.shape)), np.float32), device)
        change: Tensor = at - at.detach()  # 0, and differentiated it is `at`
        return (slope * change).sum() + value_of(term, seen)

    return loss


def _place(term: Term, done: Pass) -> Tensor:
    """Return what a term is on, as a tensor of the model: (b, k), (b, d), (m, k) or (p,)."""
    if term.on == "features":
        return needed(done.features, "the model gave no features")
    if term.on == "weights":
        return torch.cat([each.flatten() for each in done.parameters])
    if isinstance(term, HeadTerm):
        return needed(done.head, HEAD)(to_tensor(term.asks(), done.logits.device))
    return done.logits


def _seen(done: Pass, step: int, *, with_weights: bool) -> Seen:
    """Convert a forward pass for the mathematics in numpy."""
    labels: Ints | None = None if done.labels is None else array_of(done.labels)
    own_head = done.head

    @torch.no_grad()
    def head(f: NDArray[np.float32]) -> NDArray[np.float32]:
        return array_of(needed(own_head, HEAD)(to_tensor(f, done.logits.device)))

    return Seen(
        logits=array_of(done.logits),
        labels=labels,
        step=step,
        features=None if done.features is None else array_of(done.features),
        head=None if own_head is None else head,
        weights=np.concatenate([array_of(each).ravel() for each in done.parameters]) if with_weights else None,
    )
