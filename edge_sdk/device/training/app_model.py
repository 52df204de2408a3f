"""Chooses between the app's model and the learnt state, when the app brings another model than the state began with.

The state holds two digests: of the part of the model that never changes, such as the body of an .onnx file, and of the
weights that the app brought.  If a start finds other digests, the device compares both models.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.device.training.workbench import Workbench, slices
from edge_sdk.errors import StoreError, UsageError

OnNewModel: TypeAlias = Literal["better", "adopt", "keep", "error"]
"""Which to use: the better one, the app's model (`adopt`) or the learnt state (`keep`); or raise an error."""
Wish: TypeAlias = OnNewModel | Literal["rollout"]
"""Also `rollout`: the model was rolled out, and is used."""
_DIGEST_BYTES = 32


@runtime_checkable
class FrozenPart(Protocol):
    """A model with a part that never changes and is not in its state."""

    def frozen_digest(self) -> bytes:
        """Return a digest of that part, 32 bytes."""


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """Identifies a model as an app brings it, before it has learnt anything."""

    frozen: bytes
    """Digest of the part that never changes, 32 bytes."""
    weights: bytes
    """Digest of the rest and of the preprocessing, 32 bytes."""

    def to_bytes(self) -> bytes:
        """Return both digests, for the state."""
        return self.frozen + self.weights

    @classmethod
    def from_bytes(cls, stored: bytes) -> ModelOrigin:
        """Restore what `to_bytes` gave."""
        return cls(stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:])


def origin_of(bench: Workbench) -> ModelOrigin:
    """Identify the models of a workbench, which must still be as the app brought them."""
    frozen, weights = hashlib.sha256(), hashlib.sha256(bench.state_bytes())
    for each in (bench, bench.proxy):
        if each is not None:
            preprocess = each.model.spec.preprocess
            weights.update(f"{preprocess!r}{preprocess.declared or ''}".encode())  # unchanged where none is declared
            frozen.update(each.model.frozen_digest() if isinstance(each.model, FrozenPart) else b"-")
    return ModelOrigin(frozen.digest(), weights.digest())


def check_on_new_model(value: str) -> None:
    """Raise UsageError unless this is one of the words of OnNewModel."""
    if value not in get_args(OnNewModel):
        raise UsageError(f"on_new_model {value!r}: expected one of {', '.join(get_args(OnNewModel))}")


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether to adopt the app's model, and why."""

    adopt: bool
    line: str
    """A line for the device's owner, or empty if the owner had it before."""


def choose_model(bench: Workbench, learnt: bytes, before: ModelOrigin, now: ModelOrigin, wish: Wish) -> Choice:
    """Choose between the learnt state and the models in the bench, which are unchanged afterwards.

    learnt: the saved state of the models.  Raises UsageError where the owner has to decide.
    """
    if wish == "rollout":
        return Choice(adopt=True, line="")
    brought = bench.state_bytes()
    try:
        misfit = _misfit(bench, learnt, before, now)
        what = f"the app brings {misfit or 'other weights'} than its state began with"
        if wish == "error":
            others = "on_new_model='adopt'" if misfit else "on_new_model='adopt' or 'keep'"
            raise UsageError(f"{what}: give the former model, or {others}")
        if misfit and wish == "keep":
            raise UsageError(
                f"{what}, which does not fit the learnt state: give the former model, or on_new_model='adopt'"
            )
        if misfit:
            return Choice(adopt=True, line=f"{what}, which does not fit the learnt state: learning restarts with it")
        if wish != "better":
            kept = "the learnt state is dropped" if wish == "adopt" else "they are not used"
            return Choice(adopt=wish == "adopt", line=f"{what}: {kept}, because on_new_model={wish!r}")
        name, inputs, labels = _samples_to_judge_by(bench)
        if not len(labels):
            return Choice(adopt=False, line=f"{what}, and there are no samples to compare on: the learnt state is kept")
        old = _accuracy(bench, learnt, inputs, labels)
        new = _accuracy(bench, brought, inputs, labels)
    finally:
        bench.load_state(brought)
    figures = f"{new:.1%} against {old:.1%} of the learnt state, on the device's {name} samples"
    if new > old:
        return Choice(adopt=True, line=f"{what}, and they are better ({figures}): learning restarts with them")
    return Choice(adopt=False, line=f"{what}, and they are not better ({figures}): the learnt state is kept")


def _misfit(bench: Workbench, learnt: bytes, before: ModelOrigin, now: ModelOrigin) -> str:
    """Return the difference that keeps the learnt state from being loaded, or empty if it fits."""
    if before.frozen != now.frozen:
        return "another extractor"
    try:
        bench.load_state(learnt)
    except StoreError:
        return "another architecture"
    return ""


def _samples_to_judge_by(bench: Workbench) -> tuple[str, Floats, Ints]:
    """Return a name, samples (n, c, h, w) and labels (n,): held-out ones if there are any.

    Training samples, the last resort, favour the learnt state, so the app's model wins only if it is better even there.
    """
    for metric, (inputs, labels) in bench.held_out.items():
        if len(labels):
            return metric.removesuffix("_accuracy"), inputs, labels
    if bench.test is not None and bench.data.test is not None and len(bench.data.test):
        return "test", bench.test, bench.data.test.y
    return "training", bench.samples, bench.labels


def _accuracy(bench: Workbench, state: bytes, inputs: Floats, labels: Ints) -> float:
    bench.load_state(state)
    answers = [bench.predictor.logits(inputs[part]).argmax(axis=1) for part in slices(len(labels))]
    return float(np.mean(np.concatenate(answers) == labels))
