"""A body that learns under a numpy head: what a model asks of it, and how both parts' weights lie in one array."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.models.base import ModelSpec, layout_digest
from edge_sdk.models.checks import check_state
from edge_sdk.models.linear_head import ArrayOptimiser, step_values
from edge_sdk.models.optim import unpack_optim
from edge_sdk.objectives import Optim

Back: TypeAlias = Callable[[Floats], Floats]
"""Takes slopes of features (b, d) to slopes of a body's weights (p,), which hold until the next pass."""


class TrainedBody(Protocol):
    """A function from samples to features, with weights that learn."""

    @property
    def width(self) -> int:
        """The width d of the features."""

    @property
    def written_bytes(self) -> int:
        """The bytes that its operators write for one sample."""

    @property
    def calls(self) -> int:
        """The operators of one forward pass."""

    @property
    def together(self) -> int:
        """How many samples `rows` computes at once, from the first on."""

    @property
    def values(self) -> Floats:
        """Its weights that learn: (p,), its own memory."""

    def arrays_by_name(self) -> dict[str, Floats]:
        """Return a copy of each of its arrays, by name."""

    def rows(self, x: Floats) -> Floats:
        """Return the features: (n, c, h, w) -> (n, d)."""

    def forward(self, x: Floats) -> tuple[Floats, Back]:
        """Return the features (b, d) of a mini-batch, and its backward pass, for one call."""

    @property
    def back_to_samples(self) -> bool:
        """Whether `to_samples` can: samples are pictures, and each operator that they pass has a rule."""

    def to_samples(self, x: Floats) -> tuple[Floats, Back]:
        """Return the features (b, d) of samples (b, c, h, w), and what makes slopes of the samples of theirs."""

    def directional(self, x: Floats, direction: Floats) -> Floats:
        """Return the derivative of the features in a direction (p,) of the weights: (n, c, h, w) -> (n, d)."""

    def preparing(self, x: Floats, classes: int | None) -> Iterator[None]:
        """Make what a step on mini-batches like x needs, with pauses at which a device may stop.

        classes: of a step by `at_once`, or None for one in passes.
        """

    def preparing_samples(self, x: Floats) -> Iterator[None]:
        """Make what `to_samples` needs for samples like x, with pauses at which a device may stop."""

    def at_once(self, x: Floats, labels: Ints, rows: Floats) -> tuple[Floats, Floats, Floats] | None:
        """Return logits (b, k), slopes of a linear head's rows and of the weights (p,), of the mean cross-entropy.

        They hold until the next pass.  Returns None for a body that takes the passes one by one.
        """

    def step(self, slopes: Floats, optim: Optim) -> None:
        """Take one optimiser step down slopes (p,)."""

    def set_values(self, values: Floats) -> None:
        """Overwrite the weights (p,), and reset the moments."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that a restart needs."""

    def check(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Raise StoreError unless `arrays` of such a body gave these."""

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `arrays` gave, and `check` let through."""

    def separate(self) -> None:
        """Take weights of its own, and no moments: this body was copied from one that learns."""


def views_of(flat: Floats, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
    """Return the part of each array in a flat one (p,), in which they lie one after the other."""
    found, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + prod(shape)
        found[name] = flat[begin:end].reshape(shape)
    return found


class FlatPart:
    """Trainable scalars in one flat array, whose place in memory stays, and their optimiser."""

    def __init__(self, values: Floats, decayed: NDArray[np.bool_]) -> None:
        """values: (p,), taken over.  decayed: which of them weight decay is for, unless a federation decays all."""
        self.values = values
        self._decayed = decayed
        self._optimiser: ArrayOptimiser | None = None

    def step(self, slopes: Floats, optim: Optim) -> None:
        """Take one optimiser step down slopes (p,)."""
        self._optimiser = step_values(self._optimiser, optim, self.values, slopes, self._decayed)

    def set_values(self, values: Floats) -> None:
        """Overwrite the scalars (p,), and reset the moments."""
        self.values[:] = values
        self._optimiser = None

    def separate(self) -> None:
        """Take scalars of its own, and no moments."""
        self.values, self._optimiser = self.values.copy(), None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that a restart needs."""
        return {"values": self.values, **(self._optimiser.arrays() if self._optimiser else {})}

    def check(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Raise StoreError unless `arrays` of such a part gave these."""
        optimiser = self._like(arrays)
        check_state(arrays, {"values": self.values, **(optimiser.arrays() if optimiser else {})})

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `arrays` gave, and `check` let through."""
        optimiser = self._like(arrays)
        if optimiser is not None:
            optimiser.load(arrays)
        self.values[:] = arrays["values"]
        self._optimiser = optimiser

    def _like(self, arrays: Mapping[str, NDArray[Any]]) -> ArrayOptimiser | None:
        return ArrayOptimiser(unpack_optim(arrays["optim"]), self.values.shape) if "optim" in arrays else None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WeightPiece:
    """One array of the weights that devices share."""

    name: str
    shape: tuple[int, ...]
    head: bool
    """Whether it belongs to the head; otherwise it belongs to the body."""
    places: slice | Ints
    """Where its scalars are among those of its part, in its own order."""


class Arrangement:
    """The order of all weights: names and shapes are those of the net that a file came from."""

    def __init__(self, pieces: Sequence[WeightPiece]) -> None:
        self._pieces = pieces
        self.shapes = tuple(each.shape for each in pieces)
        self.layout = layout_digest((each.name, each.shape) for each in pieces)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays, in their order."""
        return tuple(each.name for each in self._pieces)

    def joined(self, body: NDArray[Any], head: NDArray[Any]) -> NDArray[Any]:
        """Return one array (p,) of both parts' scalars."""
        return np.concatenate([(head if each.head else body)[each.places] for each in self._pieces])

    def parted(self, values: Floats, body: Floats, head: Floats) -> None:
        """Write the scalars (p,) to both parts' places."""
        end = 0
        for each in self._pieces:
            begin, end = end, end + prod(each.shape)
            (head if each.head else body)[each.places] = values[begin:end]


BodyT_co = TypeVar("BodyT_co", bound=TrainedBody, covariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class ArrangedBody(Generic[BodyT_co]):
    """A body that learns, and how its weights lie among those of a model."""

    body: BodyT_co
    arrangement: Arrangement

    def joined(self, head: Floats) -> Floats:
        """Return the weights of both (p,); head: those of the head."""
        return self.arrangement.joined(self.body.values, head)

    def parted(self, values: Floats, head: Floats) -> tuple[Floats, Floats]:
        """Return the body's and the head's part of an array (p,), in the order of each; head: of the head's size."""
        on_body, on_head = np.zeros_like(self.body.values), np.zeros_like(head)
        self.arrangement.parted(values, on_body, on_head)
        return on_body, on_head

    def mask(self, head: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which weights are chosen (p,), given which of the head's are; none of the body's is."""
        return self.arrangement.joined(np.zeros(self.body.values.size, np.bool_), head)

    def separated(self) -> ArrangedBody[BodyT_co]:
        """Return a copy of the body with weights of its own, and no moments."""
        body = copy.copy(self.body)
        body.separate()
        return ArrangedBody(body, self.arrangement)

    def described(self, spec: ModelSpec) -> ModelSpec:
        """Return the description of a model whose body learns, too; spec: with a frozen one."""
        shapes = self.arrangement.shapes
        return replace(
            spec,
            capabilities=spec.capabilities | {"weights", "guidance-gradients"},
            inert_terms=frozenset(),
            parameters=sum(map(prod, shapes)),
            shapes=shapes,
            layout=self.arrangement.layout,
            activation_bytes_per_sample=self.body.written_bytes + spec.activation_bytes_per_sample,
            calls_per_pass=self.body.calls + 1,
        )


def body_pieces(shapes: Mapping[str, tuple[int, ...]]) -> list[WeightPiece]:
    """Return the pieces of a body whose arrays lie one after the other."""
    found, end = list[WeightPiece](), 0
    for name, shape in shapes.items():
        begin, end = end, end + prod(shape)
        found.append(WeightPiece(name=name, shape=tuple(shape), head=False, places=slice(begin, end)))
    return found
