"""Traced fits: after some steps, a net's training step is recorded and runs as one scripted function, a fit a call.

Recordings are kept for the whole process, by architecture, objective and optimiser, so that a fleet is recorded once.
Nothing here knows which layers can be traced: it is tried.  The first step of each model under a recording is computed
both ways, and the model trains without it from then on unless every bit is equal.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, partial
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from edge_sdk.errors import UsageError
from edge_sdk.models.torch_training.torch_fit import Steps
from edge_sdk.models.torch_training.torch_optim import TorchOptimiser
from edge_sdk.models.torch_training.torch_recording import NotTraceable, of_steps, recorded
from edge_sdk.models.torch_training.torch_script import PassScript, Script, SizedRecording, for_any_size, sized
from edge_sdk.objectives import Objective, Optim

log = logging.getLogger(__name__)

VARIABLE = "EDGE_SDK_TRACED"
"""The environment variable that says when fits are traced: auto, off, or always (from the first step on)."""
WORTH_STEPS = 64
"""With `auto`, the steps that equal models take before one is recorded: recording costs as much as that saves."""
WORTH_PASSES = 16
"""The same for forward passes."""
_MOST_KINDS, _MOST_SCRIPTS = 64, 8
"""The kinds of fits or passes that are kept, and the scripts of each, which differ in the shapes that they are for."""
AnyScript = TypeVar("AnyScript", Script, PassScript)
When: TypeAlias = Literal["auto", "off", "always"]


def when() -> When:
    """Return when fits are traced.  Raises UsageError for what the variable may not be."""
    told = os.environ.get(VARIABLE) or "auto"
    if told not in ("auto", "off", "always"):
        raise UsageError(f"{VARIABLE}={told}: expected auto, off or always")
    return cast("When", told)


class TracedFit(NamedTuple):
    """One call of a model's fit, as far as a trace must know it."""

    key: Hashable
    """Equal for fits that are recorded once."""
    steps: Steps
    others: list[Tensor]
    """Frozen parameters, and buffers, which a step may change."""
    knowledge: list[Tensor]
    """The tensors of the objective."""


class Checked:
    """The findings about one model: the scripts whose steps have the bits of its own."""

    def __init__(self) -> None:
        self.equal: dict[tuple[Script, int], bool] = {}
        """By the script and the size of a mini-batch."""
        self.passes: dict[tuple[PassScript, int], bool] = {}
        """The same for forward passes."""
        self.untraced: set[str] = set()
        """Why fits of it were computed without a trace, once one would have been worth it."""
        self.draws: bool | None = None
        """Whether its training passes draw random numbers, or None before the first recording."""


@dataclass(slots=True)
class _Kind(Generic[AnyScript]):
    """Equal fits, or equal passes: how many steps or passes there were, and their scripts."""

    taken: int = 0
    refused: str = ""
    """Why they are not traced, or empty if they are, or may be."""
    recordings: list[SizedRecording] = field(default_factory=list)
    scripts: list[AnyScript] = field(default_factory=list)

    def script_for(self, knowledge: Sequence[Tensor], size: int) -> AnyScript | None:
        """Return the script for this knowledge and this size of a mini-batch."""
        for each in self.scripts:
            if each.of.fits(knowledge, size):
                return each
        return None

    def add(self, own: SizedRecording, script: AnyScript) -> None:
        """Keep a recording and the script of it; one for any size takes the place of those for one."""
        self.recordings.append(own)
        if script.of.size == 0:
            self.scripts = [each for each in self.scripts if each.of.size == 0]
        self.scripts.append(script)


class _Kinds(Generic[AnyScript]):
    """The kinds that were asked for last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, _Kind[AnyScript]] = OrderedDict()

    def get(self, key: Hashable) -> _Kind[AnyScript]:
        """Return a kind, a new one if it is not kept."""
        kind = self._kept.get(key)
        if kind is not None:
            self._kept.move_to_end(key)
            return kind
        if len(self._kept) == _MOST_KINDS:
            self._kept.popitem(last=False)
        return self._kept.setdefault(key, _Kind())


class Traces:
    """All recordings of this process; threads may ask at the same time."""

    def __init__(self) -> None:
        self._kinds: _Kinds[Script] = _Kinds()
        self._told: set[tuple[str, str]] = set()
        """The models that train without a trace, by name, and why: the log has a line of each."""
        self._lock = threading.RLock()

    def fitted(self, fit: TracedFit, checked: Checked) -> list[float] | None:
        """Run the fit as a trace and return each step's loss, or do nothing and return None if it cannot be traced."""
        with self._lock:
            script = self._script(fit, checked)
        if script is None:
            return None
        steps, size = fit.steps.indices.shape
        checked.draws = script.draws
        equal = checked.equal.get((script, size))
        if equal is None:
            first = steps if script.draws else 1
            equal, losses = _both(fit, script, first)
            checked.equal[script, size] = equal
            if not equal:
                self._tell(fit, checked, "its first step differs in last bits")
            if len(losses) < first or not np.isfinite(losses[-1]):
                return losses
            rest = range(first, steps)
            if not rest:
                return losses
            return losses + (_run(fit, script, rest) if equal else fit.steps.take(rest))
        return _run(fit, script, range(steps)) if equal else None

    def _script(self, fit: TracedFit, checked: Checked) -> Script | None:
        """Return the script of a fit, recorded now if that pays, or None without one."""
        kind, (steps, size) = self._kinds.get(fit.key), fit.steps.indices.shape
        kind.taken += steps
        if kind.refused:
            checked.untraced.add(kind.refused)
            return None
        if kind.taken <= WORTH_STEPS and when() == "auto":
            return None
        found = kind.script_for(fit.knowledge, size)
        if found is not None or len(kind.scripts) >= _MOST_SCRIPTS:
            return found
        try:
            own = _recorded(fit)
            script = _script_of(fit, _generalised(own, kind.recordings))
        except NotTraceable as reason:
            kind.refused = str(reason)
            self._tell(fit, checked, kind.refused)
            return None
        kind.add(own, script)
        return script

    def _tell(self, fit: TracedFit, checked: Checked, why: str) -> None:
        checked.untraced.add(why)
        with self._lock:
            told = (fit.steps.name, why) in self._told
            self._told.add((fit.steps.name, why))
        if not told:
            log.warning("model %r trains without a trace, more slowly: %s", fit.steps.name, why)


TRACES = Traces()


class Subject(NamedTuple):
    """A net whose forward pass may be traced, with its tensors."""

    name: str
    """The model's, for the log."""
    key: Hashable
    """Equal for nets whose passes are recorded once."""
    net: nn.Module
    parameters: list[Tensor]
    others: list[Tensor]
    checked: Checked
    given: Sequence[Tensor] = ()
    """Further inputs of the function, which it does not change; their shapes may depend on the number of samples."""

    @property
    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """All that a script of it is given, beside the samples."""
        return self.parameters, [*self.others, *self.given]


class Passes:
    """The recordings of forward passes in inference mode, for this process; threads may ask at the same time."""

    def __init__(self) -> None:
        self._kinds: _Kinds[PassScript] = _Kinds()
        self._lock = threading.Lock()

    def answer(self, subject: Subject, function: Callable[[Tensor], Sequence[Tensor]], x: Tensor) -> Sequence[Tensor]:
        """Return what a function that is one forward pass gives for samples x (b, ...), in inference mode."""
        with self._lock:
            script = self._script(subject, function, x)
        if script is None:
            return function(x)
        checked, nets, size = subject.checked.passes, [subject.tensors], x.size(0)
        equal = checked.get((script, size))
        if equal is None:
            found, (again,) = function(x), script.run(nets, x)
            checked[script, size] = all(_equal(*pair) for pair in zip(found, again, strict=True))
            return found
        return script.run(nets, x)[0] if equal else function(x)

    def answers(self, subjects: Sequence[Subject], x: Tensor) -> list[list[Tensor]] | None:
        """Return the results of `answer` for several nets, in one call, or None unless all are known to be equal."""
        key = subjects[0].key
        with self._lock:
            script = self._kinds.get(_key_of(subjects[0], x)).script_for(subjects[0].given, len(x))
        if script is None or not all(
            each.key == key and each.checked.passes.get((script, len(x))) for each in subjects
        ):
            return None
        return script.run([each.tensors for each in subjects], x)

    def _script(self, subject: Subject, function: Callable[[Tensor], Sequence[Tensor]], x: Tensor) -> PassScript | None:
        kind = self._kinds.get(_key_of(subject, x))
        kind.taken += 1
        if kind.refused or (kind.taken <= WORTH_PASSES and when() == "auto"):
            return None
        found = kind.script_for(subject.given, x.size(0))
        if found is not None or len(kind.scripts) >= _MOST_SCRIPTS:
            return found
        try:
            own = _recorded_pass(subject, function, x)
            counts = len(subject.parameters), len(subject.others), len(subject.given)
            script = PassScript(_generalised(own, kind.recordings), *counts)
        except NotTraceable as reason:
            kind.refused = str(reason)
            log.info("model %r answers without a trace: %s", subject.name, reason)
            return None
        kind.add(own, script)
        return script


def _key_of(subject: Subject, x: Tensor) -> Hashable:
    return subject.key, x.shape[1:]


PASSES = Passes()
CHANGES = Passes()
"""Traced passes that measure the change by each single term of an objective.  They are separate from PASSES, because
both have a maximum number of entries."""


def _recorded_pass(subject: Subject, function: Callable[[Tensor], Sequence[Tensor]], x: Tensor) -> SizedRecording:
    known = {f"p{at}": each for at, each in enumerate(subject.parameters)}
    known |= {f"o{at}": each for at, each in enumerate(subject.others)}
    known |= {f"e{at}": each for at, each in enumerate(subject.given)}
    with _restored(subject.net, subject.others), torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        one, two = (recorded({**known, "x": of}, partial(function, of)) for of in (x, _other_samples(x)))
        draws = not torch.equal(before, torch.get_rng_state())
    if draws:
        raise NotTraceable("it draws random numbers in inference mode")
    return sized(of_steps(one, two, apart=0, step=0), len(x), subject.given)


def _run(fit: TracedFit, script: Script, steps: range) -> list[float]:
    """Take these steps of a fit with its script."""
    knowledge, indices, own = fit.knowledge, fit.steps.indices, slice(steps.start, steps.stop)
    if len(steps) < indices.size(0):
        uses = zip(script.of.knowledge, knowledge, strict=True)
        knowledge, indices = [tensor[own] if each.by_step else tensor for each, tensor in uses], indices[own]
    with fit.steps.seeded() if script.draws else nullcontext():
        return script.run(
            (fit.steps.parameters, [*fit.others, *knowledge]),
            fit.steps.optimiser,
            (fit.steps.inputs, fit.steps.labels, indices),
        )


def _both(fit: TracedFit, script: Script, steps: int) -> tuple[bool, list[float]]:
    """Take the first steps as always, and on copies with the script; return whether all bits are equal, and losses."""
    optimiser = fit.steps.optimiser
    parameters, others = ([each.detach().clone() for each in some] for some in (fit.steps.parameters, fit.others))
    moments = [[each.clone() for each in kind] for kind in optimiser.moments]
    losses = fit.steps.take(range(steps))
    copy = TorchOptimiser(optimiser.optim, parameters, moments, _steps_before(script, optimiser, len(losses)))
    tensors = parameters, [*others, *fit.knowledge]
    try:
        with fit.steps.seeded():
            again = script.run(tensors, copy, (fit.steps.inputs, fit.steps.labels, fit.steps.indices[:steps]))
    except RuntimeError:
        return False, losses
    pairs = [
        *zip(parameters, fit.steps.parameters, strict=True),
        *zip(others, fit.others, strict=True),
        *(pair for kind in zip(moments, optimiser.moments, strict=True) for pair in zip(*kind, strict=True)),
        (torch.tensor(again), torch.tensor(losses)),
    ]
    return all(_equal(*pair) for pair in pairs) and bool((copy.steps == optimiser.steps).all()), losses


def _steps_before(script: Script, optimiser: TorchOptimiser, taken: int) -> Any:
    before = optimiser.steps.copy()
    before[script.stepping] -= taken
    return before


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal to the bit."""
    one, two = (each.detach().contiguous().numpy().tobytes() for each in (a, b))
    return one == two


def _recorded(fit: TracedFit) -> SizedRecording:
    """Record the first step of a fit twice, with other samples; nothing that the net holds is changed.

    Raises NotTraceable.
    """
    index, steps = fit.steps.indices[0], len(fit.steps.indices)
    x = fit.steps.inputs.index_select(0, index)
    y = None if fit.steps.labels is None else fit.steps.labels.index_select(0, index)
    known = {f"p{at}": each for at, each in enumerate(fit.steps.parameters)}
    known |= {f"o{at}": each for at, each in enumerate(fit.others)}
    known |= {f"e{at}": each for at, each in enumerate(fit.knowledge)}
    known |= {} if y is None else {"y": y}
    both = ((x, 0), (_other_samples(x), -steps))  # the same part of knowledge that has one for each step
    with _restored(fit.steps.net, fit.others), fit.steps.seeded():
        first, again = (recorded({**known, "x": of}, partial(_flat, fit.steps, of, y, step)) for of, step in both)
    return sized(of_steps(first, again, apart=steps, step=0), len(index), fit.knowledge)


def _other_samples(x: Tensor) -> Tensor:
    """Return samples with other numbers: of a number that a net makes of samples, two recordings differ then."""
    if bool(((x >= 0) & (x == x.round())).all()) and bool(x.any()):
        return x.max() - x  # perhaps ids of tokens, of which a table has no others
    return 1.0 - 2.0 * x


def _flat(steps: Steps, x: Tensor, y: Tensor | None, step: int) -> list[Tensor | None]:
    loss, gradients = steps.gradients(x, y, step)
    return [loss, *gradients]


def _generalised(own: SizedRecording, earlier: Sequence[SizedRecording]) -> SizedRecording:
    """Return a recording for mini-batches of any size if an earlier one allows it, or else the recording itself."""
    for each in earlier:
        with suppress(NotTraceable):
            return for_any_size(each, own)
    return own


def _script_of(fit: TracedFit, of: SizedRecording) -> Script:
    return Script(of, len(fit.others), len(fit.knowledge), fit.steps.optimiser)


class _Generators:
    """The states of Python's and numpy's generators, which a net may draw from."""

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002  # the net's

    def drawn(self) -> bool:
        """Put the states back that were read when this was made; return whether random numbers were drawn since."""
        now, own = _Generators(), self._numpy["state"]
        same = now._python == self._python and now._numpy["state"]["pos"] == own["pos"]
        same = same and np.array_equal(now._numpy["state"]["key"], own["key"])
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002  # the net's
        return not same


@contextmanager
def _restored(net: nn.Module, others: Sequence[Tensor]) -> Iterator[None]:
    """Put back, afterwards, what a pass may change: buffers, Python's and numpy's generators, attributes of layers.

    Raises NotTraceable if one of the latter was changed, or a buffer is another tensor: a trace would not do that.
    """
    buffers = [each.detach().clone() for each in others]
    held = [(own, dict(own)) for own in (vars(layer)["_buffers"] for layer in net.modules())]
    generators, attributes = _Generators(), attributes_of(net)
    try:
        yield
    finally:
        drawn = generators.drawn()
        changed = [word for word, value in attributes_of(net).items() if attributes.get(word) != value]
        modules = dict(net.named_modules())
        for layer, word in changed:
            if (layer, word) in attributes:
                setattr(modules[layer], word, attributes[layer, word])
            else:
                delattr(modules[layer], word)
        replaced = [name for own, first in held for name, each in own.items() if first.get(name) is not each]
        for own, first in held:
            own.clear()
            own.update(first)
        with torch.no_grad():
            for tensor, before in zip(others, buffers, strict=True):
                tensor.copy_(before)
    if changed:
        raise NotTraceable(f"a pass changes {changed[0][0] or 'the net'}.{changed[0][1]}, which is not a tensor")
    if replaced:
        raise NotTraceable(f"a pass puts another tensor in the place of its buffer {replaced[0]!r}")
    if drawn:
        raise NotTraceable("it draws from the generators of Python or numpy")


# -- keys -----------------------------------------------------------------------------------------------------------

_OF_MODULES = {*vars(nn.Module()), "training"}
_SIMPLE = (int, float, str, bool, type(None))


def attributes_of(net: nn.Module) -> Mapping[tuple[str, str], Any]:
    """Return the attributes of layers that are numbers, words or tuples of them, by layer and name."""
    return {
        (layer, word): value
        for layer, module in net.named_modules()
        for word, value in vars(module).items()
        if word not in _OF_MODULES and _is_simple(value)
    }


def _is_simple(value: object) -> bool:
    return isinstance(value, _SIMPLE) or (isinstance(value, tuple) and all(map(_is_simple, value)))


class Architecture:
    """The architecture of a net as a key, equal for nets of the same layers, shapes and attributes."""

    def __init__(self, net: nn.Module, *more: Hashable) -> None:
        """more: what else differs between nets that cannot share a trace."""
        layers = tuple((name, type(module)) for name, module in net.named_modules())
        tensors = (*net.named_parameters(), *net.named_buffers())
        shapes = tuple((name, tuple(each.shape), each.dtype, each.requires_grad) for name, each in tensors)
        found = layers, shapes, more, tuple(attributes_of(net))
        self._number = _ARCHITECTURES.setdefault(found, len(_ARCHITECTURES))
        modules = dict(net.named_modules())
        self._places = [(vars(modules[layer]), word) for layer, word in attributes_of(net)]
        self._hooks: list[Mapping[int, object]] = [vars(module)[kind] for module in modules.values() for kind in _HOOKS]

    @property
    def has_hooks(self) -> bool:
        """Whether a layer has hooks now; a trace calls none."""
        return any(self._hooks)

    def key(self) -> Hashable:
        """Return the key, with the present values of the attributes."""
        return self._number, *[own.get(word) for own, word in self._places]


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where torch keeps the hooks of a layer, by number."""
_ARCHITECTURES: dict[Hashable, int] = {}
"""The architectures seen by this process, numbered."""


def objective_key(objective: Objective) -> Hashable | None:
    """Return a key, equal for objectives that differ only in the numbers of their arrays, or None without data."""
    key: list[Hashable] = []
    for term in objective:
        kind = type(term)
        names = _field_names(kind)
        if names is None:
            return None
        key += (kind, *[_field_key(getattr(term, name)) for name in names])
    found = tuple(key)
    try:
        hash(found)
    except TypeError:
        return None
    return found


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    """Return the names of the fields of a dataclass, or None for other values."""
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else None


def _field_key(value: Any) -> Hashable:
    return ("array", value.ndim) if isinstance(value, np.ndarray) else value


def optim_key(optim: Optim) -> Hashable:
    """Return a key that is equal for optimisers that differ in the learning rate alone."""
    return (
        optim.kind,
        optim.momentum,
        optim.beta1,
        optim.beta2,
        optim.weight_decay,
        optim.decay_all,
        optim.clip_norm,
    )


def tensors_in(function: object) -> list[Tensor]:
    """Return the tensors that a function and those that it calls hold in their closures, in a fixed order."""
    if isinstance(function, Tensor):
        return [function]
    if isinstance(function, (list, tuple)):
        return [tensor for each in function for tensor in tensors_in(each)]
    cells = getattr(function, "__closure__", None) or ()
    return [tensor for cell in cells for tensor in tensors_in(cell.cell_contents)]
