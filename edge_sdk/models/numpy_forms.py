"""Terms on something of their own, for models in numpy and ONNX Runtime: their registered forms, and what these keep.

A form is registered in the entry-point group `edge_sdk.numpy_terms` under the term's name.  All other terms need none:
their mathematics is in numpy.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, TypeAlias

from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.errors import EdgeError, Unsupported
from edge_sdk.models.base import Batches, ModelSpec
from edge_sdk.models.trained_body import TrainedBody
from edge_sdk.objectives import Objective, Term, form_of, names_on, terms
from edge_sdk.objectives.optim import Part

NUMPY_FORMS = "edge_sdk.numpy_terms"
SlopesBack: TypeAlias = Callable[[Floats], "dict[str, Floats]"]
"""Takes slopes of logits (b, k) to those of a model's arrays, which hold until the next pass."""


SamplesBack: TypeAlias = Callable[[Floats, "Floats | None"], Floats]
"""Takes slopes of logits (b, k) and perhaps of features (b, d) to those of samples (b, c, h, w)."""


class FormHost(Protocol):
    """The model that a term is minimised for."""

    spec: ModelSpec

    @property
    def learning_body(self) -> TrainedBody:
        """What gives its features, which learns."""

    def serving_copy(self) -> FormHost:
        """Return a copy with weights of its own."""

    def set_weights(self, values: Floats) -> None:
        """Overwrite the weights (p,)."""

    def weights_pass(self, x: Floats, part: Part) -> tuple[Floats, SlopesBack]:
        """Return the logits (b, k) of samples, and their backward pass to the arrays of a part of the model."""

    def samples_pass(self, x: Floats) -> tuple[Floats, Floats, SamplesBack]:
        """Return the logits (b, k) and features (b, d) of samples, and their backward pass to the samples."""


class OwnForm(ABC):
    """The form of a term on `own`: one for each model, which may keep something between fits, such as a generator.

    Its state is saved with the model, as arrays whose names begin with `prefix`.
    """

    prefix: ClassVar[str]

    @staticmethod
    @abstractmethod
    def can(body: TrainedBody) -> bool:
        """Return whether the term can be minimised for a model with this body, which learns."""

    @abstractmethod
    def begin(self, model: FormHost, term: Any, batches: Batches) -> None:
        """Begin a fit with the term; batches: those of the fit."""

    @abstractmethod
    def slopes(self, model: FormHost, term: Any, size: int, part: Part) -> tuple[float, Mapping[str, Floats]]:
        """Return the term's value in the next step, and its slope at each array of the model that a step changes.

        size: of the mini-batch.
        """

    @abstractmethod
    def preparing(self, model: FormHost, term: Any, batches: Batches) -> Iterator[None]:
        """Make what the first step needs, with pauses at which a device may stop."""

    @abstractmethod
    def extra_flops(self, model: FormHost, term: Any, batch: int) -> int:
        """Return the floating-point operations of a step on a mini-batch of this size, beyond a training pass."""

    @abstractmethod
    def instruments(self) -> Mapping[str, float]:
        """Return what the form did in its last step, by name."""

    @abstractmethod
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return everything that a restart needs."""

    @abstractmethod
    def load(self, model: FormHost, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `arrays` gave to a form without any.  Raises StoreError if they do not fit."""


class OwnForms:
    """The forms of one model's terms on something of their own, and their state between fits."""

    def __init__(self) -> None:
        self._made: dict[str, OwnForm] = {}
        """By name of the term; each is made when its term is first used."""

    def of(self, objective: Objective) -> list[tuple[Term, OwnForm]]:
        """Return the terms that need a form, and it.  Raises Unsupported for one that has none."""
        return [(term, self._of(term)) for term in objective if term.on == "own"]

    def _of(self, term: Term) -> OwnForm:
        if term.name not in self._made:
            form = form_of(NUMPY_FORMS, type(term))
            if form is None:
                raise Unsupported(f"term {term.name!r} is on something of its own, and has no form in numpy")
            self._made[term.name] = form()
        return self._made[term.name]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state of the forms, by name."""
        return {name: array for form in self._made.values() for name, array in form.arrays().items()}

    def restored(self, model: FormHost, arrays: Mapping[str, NDArray[Any]]) -> tuple[OwnForms, dict[str, NDArray[Any]]]:
        """Return new forms with their part of a model's arrays, and the other arrays.  Raises StoreError."""
        found, rest = OwnForms(), dict(arrays)
        for name, kind in _forms():
            own = {each: rest.pop(each) for each in arrays if each.startswith(kind.prefix)}
            if own:
                found._made[name] = kind()
                found._made[name].load(model, own)
        return found, rest


def own_terms(body: TrainedBody) -> frozenset[str]:
    """Return the terms on something of their own that can be minimised for a model with this body."""
    return frozenset(name for name, form in _forms() if form.can(body))


def added(slopes: Mapping[str, Floats], more: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the sum of the slopes of each array."""
    return {**slopes, **{name: slopes[name] + each if name in slopes else each for name, each in more.items()}}


def _forms() -> Iterator[tuple[str, type[OwnForm]]]:
    """Return the registered forms by the name of the term, without those that do not load."""
    for name in sorted(names_on("own")):
        form = None
        with contextlib.suppress(EdgeError):
            form = form_of(NUMPY_FORMS, terms()[name])
        if isinstance(form, type) and issubclass(form, OwnForm):
            yield name, form
