"""A whole fit as one scripted function: the recorded lines of a step, and the optimiser's, in a loop.

torch.jit runs it without autograd, without Python, and without the interpreter lock.  Its own optimiser is off: it
would take operators apart, and change last bits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edge_sdk.models.optim import CLIP_EPSILON, EPSILON, adam_scales, moment_count
from edge_sdk.models.torch_training import torch_steps
from edge_sdk.models.torch_training.torch_optim import TorchOptimiser
from edge_sdk.models.torch_training.torch_recording import (
    BatchSizeDependent,
    NotTraceable,
    Recording,
    ScriptLine,
    StepDependent,
    first_line,
    number_word,
    of_sizes,
)
from edge_sdk.objectives import Optim

_FUNCTION = """
def fit(p: List[Tensor], o: List[Tensor], m: List[List[Tensor]], X: Tensor, Y: Tensor, batches: Tensor,
        rates: List[float], roots: List[float]) -> List[float]:
    losses: List[float] = []
    b = batches.size(1)
    {inputs}
    values: List[Tensor] = [{stepping}]
    for i in range(batches.size(0)):
        x = X.index_select(0, batches[i])
        {labels}
        {lines}
        losses.append(float({loss}))
        gradients: List[Tensor] = [{gradients}]
        {step}
        if losses[-1] - losses[-1] != 0.0:  # NaN or Inf
            break
    return losses
"""


@dataclass(frozen=True, slots=True)
class KnowledgeUse:
    """How a recorded step uses a tensor of the objective."""

    shape: tuple[int | BatchSizeDependent, ...]
    by_step: bool
    """Whether each step reads only its own part, so that the first length may differ."""

    def fits(self, tensor: Tensor, size: int) -> bool:
        """Whether another tensor may stand in its place, in mini-batches of this size."""
        expected = [size if isinstance(each, BatchSizeDependent) else each for each in self.shape]
        found = [*tensor.shape]
        first = 1 if self.by_step else 0
        return len(expected) == len(found) and expected[first:] == found[first:]


@dataclass(frozen=True, slots=True)
class SizedRecording:
    """A recording, and for which mini-batches and knowledge it holds."""

    recording: Recording
    size: int
    """The size of the mini-batch, or 0 for any."""
    knowledge: tuple[KnowledgeUse, ...]

    def fits(self, tensors: Sequence[Tensor], size: int) -> bool:
        """Whether it holds for this knowledge and this size of a mini-batch."""
        if self.size not in (0, size):
            return False
        return all(each.fits(tensor, size) for each, tensor in zip(self.knowledge, tensors, strict=True))


def sized(recording: Recording, size: int, tensors: Sequence[Tensor]) -> SizedRecording:
    """Return a recording with what it holds for; tensors: those of the objective, e0, e1 ... in its lines."""
    found = [KnowledgeUse(tuple(each.shape), _by_step(recording, f"e{at}")) for at, each in enumerate(tensors)]
    parts = sum(isinstance(each, StepDependent) for line in recording.lines for each in line.numbers)
    if parts != sum(
        _selects(line, f"e{at}") for line in recording.lines for at, each in enumerate(found) if each.by_step
    ):
        raise NotTraceable("it computes with the number of the step")
    return SizedRecording(recording, size, tuple(found))


def _by_step(recording: Recording, name: str) -> bool:
    used = [line for line in recording.lines if name in line.words()]
    return bool(used) and all(_selects(line, name) for line in used)


def _selects(line: ScriptLine, name: str) -> bool:
    """Whether a line takes the step's part of a tensor."""
    return f"aten.select({name}, {{}}, {{}})" in line.text and line.numbers == (0, StepDependent(0))


def for_any_size(one: SizedRecording, two: SizedRecording) -> SizedRecording:
    """Return the common form of both, for any size of a mini-batch.  Raises NotTraceable if they have none."""
    if one.size == two.size or 0 in (one.size, two.size):
        raise NotTraceable("two recordings of one size do not show what changes with the size")
    knowledge = []
    for a, b in zip(one.knowledge, two.knowledge, strict=True):
        first = 1 if a.by_step else 0
        lengths = [_length(*each, (one.size, two.size)) for each in zip(a.shape[first:], b.shape[first:], strict=True)]
        knowledge.append(KnowledgeUse((*a.shape[:first], *lengths), a.by_step and b.by_step))
    return SizedRecording(of_sizes(one.recording, two.recording, (one.size, two.size)), 0, tuple(knowledge))


def _length(
    a: int | BatchSizeDependent, b: int | BatchSizeDependent, sizes: tuple[int, int]
) -> int | BatchSizeDependent:
    if a == b:
        return a
    if (a, b) == sizes:
        return BatchSizeDependent(1)
    raise NotTraceable("its knowledge does not follow from the size of the mini-batch")


class Script:
    """A recorded step in a scripted loop."""

    def __init__(self, of: SizedRecording, others: int, knowledge: int, optimiser: TorchOptimiser) -> None:
        """others: the number of tensors that are not trained, o0, o1 ...; knowledge: of those of the objective.

        optimiser: equal to that of each fit.  Raises NotTraceable where torch cannot script it.
        """
        recording = of.recording.shortened()
        self.of, self.draws = of, recording.draws
        self.constants = list(recording.constants)
        self.stepping = [at for at, name in enumerate(recording.results[1:]) if name]
        text = _source(recording, (others, knowledge), self.stepping, optimiser)
        self._fit = _compiled(text).fit

    def run(
        self,
        tensors: tuple[list[Tensor], list[Tensor]],
        optimiser: TorchOptimiser,
        batches: tuple[Tensor, Tensor | None, Tensor],
    ) -> list[float]:
        """Take a step for each mini-batch, in place; return the loss of each, up to one that is not finite.

        tensors: the parameters; others and knowledge.  batches: samples (n, ...), labels (n,), indices (steps, b).
        """
        inputs, labels, indices = batches
        parameters, others = tensors
        moments = optimiser.moments_of(self.stepping)
        rates, roots = _scales(optimiser, self.stepping, indices.size(0))
        with torch.inference_mode(), _as_recorded():
            given = [*others, *self.constants]
            y = indices if labels is None else labels
            losses: list[float] = self._fit(parameters, given, moments, inputs, y, indices, rates, roots)
        optimiser.count(self.stepping, len(losses))
        return losses


_PASSES_OF_NETS = """
def answers(each_p: List[List[Tensor]], each_o: List[List[Tensor]], x: Tensor) -> List[List[Tensor]]:
    found: List[List[Tensor]] = []
    b = x.size(0)
    for net in range(len(each_p)):
        p, o = each_p[net], each_o[net]
        {inputs}
        {lines}
        found.append([{results}])
    return found
"""


class PassScript:
    """A recorded forward pass as one scripted function, for any number of nets."""

    def __init__(self, of: SizedRecording, parameters: int, others: int, given: int) -> None:
        """The numbers of tensors p0, p1 ..., o0, o1 ... and e0, e1 ...; raises NotTraceable."""
        self.of, recording = of, of.recording.shortened()
        self._constants = list(recording.constants)
        text = _PASSES_OF_NETS.format(
            inputs="\n        ".join(_inputs(recording, parameters, (others, given))),
            lines="\n        ".join(_lines(recording)),
            results=", ".join(recording.results),
        )
        self._answers = _compiled(text).answers

    def run(self, nets: Sequence[tuple[list[Tensor], list[Tensor]]], x: Tensor) -> list[list[Tensor]]:
        """Return what the pass of each net returns for samples x (b, ...); nets: parameters and others of each."""
        parameters, others = [each for each, _ in nets], [[*each, *self._constants] for _, each in nets]
        with torch.inference_mode(), _as_recorded():
            found: list[list[Tensor]] = self._answers(parameters, others, x)
        return found


def _as_recorded() -> AbstractContextManager[None]:
    """Let torch run operators as they stand, in this thread."""
    switch: Callable[[bool], AbstractContextManager[None]] = torch.jit.optimized_execution  # type: ignore[attr-defined]
    return switch(False)  # noqa: FBT003  # its only argument


def _scales(optimiser: TorchOptimiser, stepping: Sequence[int], steps: int) -> tuple[list[float], list[float]]:
    """Return the rates, and the divisors of the second moment's root: of each parameter, step after step."""
    optim = optimiser.optim
    if optim.kind != "adam":
        return [optim.learning_rate], []
    taken = optimiser.steps[stepping].tolist()
    known: dict[int, tuple[float, float]] = {}
    scales = []
    for step in range(1, steps + 1):
        for each in taken:
            if each + step not in known:
                known[each + step] = adam_scales(optim, each + step)
            scales.append(known[each + step])
    return [rate for rate, _ in scales], [root for _, root in scales]


def _compiled(text: str) -> Any:
    try:
        return torch.jit.CompilationUnit(text)
    except RuntimeError as error:
        raise NotTraceable(f"torch cannot script it: {first_line(error)}") from error


def _source(recording: Recording, counts: tuple[int, int], stepping: Sequence[int], optimiser: TorchOptimiser) -> str:
    loss, *gradients = recording.results
    functions = "\n".join(inspect.getsource(each) for each in _STEPS).replace("list[", "List[")
    return functions + _FUNCTION.format(
        inputs="\n    ".join(_inputs(recording, len(gradients), counts)),
        stepping=", ".join(f"p{at}" for at in stepping),
        labels="y = Y.index_select(0, batches[i])" if _labelled(recording) else "",
        lines="\n        ".join(_lines(recording)),
        loss=loss,
        gradients=", ".join(gradients[at] for at in stepping),
        step="\n        ".join(_steps(optimiser.optim, optimiser.decaying(stepping))) if stepping else "",
    )


def _inputs(recording: Recording, parameters: int, counts: tuple[int, int]) -> list[str]:
    """Return the lines that name parameters, other tensors, those of the objective, and constants."""
    others, knowledge = counts
    names = [f"o{at}" for at in range(others)] + [f"e{at}" for at in range(knowledge)]
    names += [f"k{at}" for at in range(len(recording.constants))]
    found = [f"p{at} = p[{at}]" for at in range(parameters)]
    return found + [f"{name} = o[{at}]" for at, name in enumerate(names)]


def _lines(recording: Recording) -> list[str]:
    return [each.text.format(*map(number_word, each.numbers)) for each in recording.lines]


_STEPS: Sequence[Any] = (
    torch_steps.clipped_gradients,
    torch_steps.with_decay,
    torch_steps.sgd_step,
    torch_steps.momentum_step,
    torch_steps.adam_step,
)


def _labelled(recording: Recording) -> bool:
    return any("y" in line.words() for line in recording.lines)


def _steps(optim: Optim, decays: Sequence[bool]) -> list[str]:
    """Return the lines of an optimiser's step, as in TorchOptimiser.step."""
    found = []
    if optim.clip_norm:
        found.append(f"gradients = clipped_gradients(gradients, {float(optim.clip_norm)!r}, {CLIP_EPSILON!r})")
    if optim.weight_decay:
        found.append(f"gradients = with_decay(gradients, values, {list(decays)}, {float(optim.weight_decay)!r})")
    if optim.kind == "adam":
        n, constants = len(decays), [float(optim.beta1), float(optim.beta2), EPSILON]
        own = f"rates[i * {n}:(i + 1) * {n}], roots[i * {n}:(i + 1) * {n}]"
        found.append(f"adam_step(values, gradients, m[0], m[1], {constants}, {own})")
    elif moment_count(optim):
        found.append(f"momentum_step(values, gradients, m[0], {float(optim.momentum)!r}, rates[0])")
    else:
        found.append("sgd_step(values, gradients, rates[0])")
    return found
