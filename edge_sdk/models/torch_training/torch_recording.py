"""Records what a training step computes: torch's own operators, in order, as lines of a script.

A step is run once as always, forward and back, and each operator that torch carries out is noted with its arguments.
Numbers are kept apart from the text of the lines, so that a comparison of recordings shows which of them depend on the
step, or on the size of a mini-batch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class NotTraceable(Exception):
    """A training step cannot be recorded as a sequence of operators; the text says why."""


def first_line(error: Exception) -> str:
    """Return the first line of what torch says of an error."""
    return str(error).strip().partition("\n")[0]


class StepDependent(NamedTuple):
    """A number that is the index of the step and this much more."""

    more: int


class BatchSizeDependent(NamedTuple):
    """A number that follows from the size b of the mini-batch: factor * b + more, or factor / b if `over`."""

    factor: float
    more: int = 0
    over: bool = False


Number: TypeAlias = "int | float | StepDependent | BatchSizeDependent"


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """One line of a script."""

    text: str
    """With a {} in the place of each number."""
    numbers: tuple[Number, ...]
    copied: str = ""
    """The tensor that it returns unchanged if all its numbers are 1, or empty if it computes."""

    def words(self) -> list[str]:
        """Return the words, among them the names of tensors."""
        return re.findall(r"\w+", self.text)


@dataclass(frozen=True, slots=True)
class Recording:
    """The computation of a function of named tensors."""

    lines: tuple[ScriptLine, ...]
    results: tuple[str, ...]
    """The names of what it returns; empty for None."""
    draws: bool
    """Whether it draws random numbers."""
    constants: tuple[Tensor, ...]
    """Tensors that are made of Python's numbers in each step, by the names k0, k1 ..."""
    writes: bool
    """Whether an operator writes into a tensor that it is given."""

    def shortened(self) -> Recording:
        """Return it without the lines that only give a tensor again; as it is, if a copy could count."""
        if self.writes:
            return self
        lines: list[ScriptLine] = []
        same: dict[str, str] = {}

        def named(found: re.Match[str]) -> str:
            return same.get(found[0], found[0])

        for line in self.lines:
            if line.copied and all(number == 1 for number in line.numbers):
                same[line.words()[0]] = same.get(line.copied, line.copied)
            else:
                lines.append(replace(line, text=re.sub(r"\w+", named, line.text)))
        return replace(self, lines=tuple(lines), results=tuple(same.get(each, each) for each in self.results))


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    """Notes the operators that are carried out while it is active."""

    def __init__(self, known: Mapping[str, Tensor]) -> None:
        """known: the tensors that a step begins with, by the names that lines have for them."""
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self.lines: list[ScriptLine] = []
        self.constants: list[Tensor] = []
        self.draws = self.writes = False
        self._transposed: dict[int, Tensor] = {}
        """The original of each transpose, by the transpose's id."""
        self._names = {id(tensor): name for name, tensor in known.items()}
        self._kept: list[Any] = []
        """Every tensor that was seen: its id stays its own."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return that the compiler is not loaded for this mode: a second, and 90 MB, that a board does not have."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Carry an operator out, and note it.  Raises NotTraceable where its result's shape follows from numbers."""
        del types
        given = kwargs or {}
        if torch.Tag.dynamic_output_shape in func.tags and not _picks_by_place(func, args):
            raise NotTraceable(f"the shape that {func.name()} gives depends on the numbers that it is given")
        result = func(*args, **given)
        self._kept.append((args, given, result))
        space, name = func.name().split(".")[0].split("::")
        if name == "detach":
            self._names[id(result)] = self.name(args[0])
        elif name == "lift_fresh":
            self._names[id(result)] = self._constant(args[0])
        else:
            self._note(f"torch.ops.{space}.{name}", func, args, given, result)
        return result

    def name(self, tensor: Tensor) -> str:
        """Return the name of a tensor that was seen.  Raises NotTraceable for any other."""
        name = self._names.get(id(tensor))
        if name is None:
            raise NotTraceable(
                f"it computes with a tensor {tuple(tensor.shape)} that is no parameter, no buffer and no sample of its"
            )
        return name

    def _constant(self, tensor: Tensor) -> str:
        name = f"k{len(self.constants)}"
        self.constants.append(tensor.clone())
        copy = f"{name}_{len(self.lines)}"
        self.lines.append(ScriptLine(f"{copy} = {name}.clone()", ()))
        return copy

    def _note(self, call: str, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        self.draws = self.draws or torch.Tag.nondeterministic_seeded in func.tags
        self.writes = self.writes or func._schema.is_mutable  # noqa: SLF001  # torch has no other name for it
        numbers: list[Number] = []
        words = [self._word(each, numbers) for each in args]
        words += [
            f"{key}={self._word(value, numbers)}"
            for key, value in kwargs.items()
            if value is not None and key not in _OF_PLACE
        ]
        copied = self._copied(func, args, result)
        own, unpacked = self._result(func, result)
        if _pools_many_channels(func, args):
            words[0] += ".contiguous(memory_format=torch.channels_last)"
            unpacked = [f"{part} = {part}.contiguous()" for part in own.removesuffix(" = ").split(", ")]
        self.lines.append(ScriptLine(f"{own}{call}({', '.join(words)})", tuple(numbers), copied))
        self.lines += [ScriptLine(each, ()) for each in unpacked]

    def _copied(self, func: Any, args: tuple[Any, ...], result: Any) -> str:
        """Return the name of the tensor that an operator gives again: a transpose twice, x times 1, or x to the 1."""
        if func is torch.ops.aten.t.default:
            self._transposed[id(result)] = args[0]
            before = self._transposed.get(id(args[0]))
            return "" if before is None else self.name(before)
        if func not in _COPYING or isinstance(args[1], Tensor) or args[1] != 1:
            return ""
        x: Tensor = args[0]
        return self.name(x) if x.dtype == result.dtype and x.stride() == result.stride() else ""

    def _word(self, value: Any, numbers: list[Number]) -> str:
        """Return an argument as a word of a line; its numbers are added to `numbers`."""
        if isinstance(value, Tensor):
            return self.name(value)
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(self._word(each, numbers) for each in value) + "]"
        if value is None or isinstance(value, (bool, str)):
            return repr(value)
        if type(value) in (int, float):
            numbers.append(value)
            return "{}"
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        raise NotTraceable(f"an operator takes a {type(value).__name__}")

    def _result(self, func: Any, result: Any) -> tuple[str, list[str]]:
        """Return what stands in front of the call, and lines that name what is in a list."""
        schema, base = func._schema, f"t{len(self.lines)}"  # noqa: SLF001  # torch has no other name for it
        returned = [str(each.type) for each in schema.returns]
        if not returned:
            return "", []
        if returned == ["Tensor"]:
            self._names[id(result)] = base
            return f"{base} = ", []
        parts = [f"{base}_{at}" for at in range(len(result))] if isinstance(result, (tuple, list)) else []
        if (len(parts) != len(returned) and returned != ["List[Tensor]"]) or not parts:
            raise NotTraceable(f"{schema.name} makes a number of a tensor, on which the next operators may depend")
        for part, each in zip(parts, result, strict=True):
            if isinstance(each, Tensor):
                self._names[id(each)] = part
            elif each is not None:
                raise NotTraceable(f"{schema.name} gives a {type(each).__name__}")
        if returned == ["List[Tensor]"]:
            return f"{base} = ", [f"{part} = {base}[{at}]" for at, part in enumerate(parts)]
        return f"{', '.join(parts)} = ", []


_COPYING = (torch.ops.aten.mul.Tensor, torch.ops.aten.pow.Tensor_Scalar)
"""Operators that give a tensor again where their second argument is 1."""


def _picks_by_place(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operator picks by whole numbers, not by a mask: then its result's shape follows from other shapes."""
    by_mask = (torch.bool, torch.uint8)
    return func is torch.ops.aten.index.Tensor and all(each is None or each.dtype not in by_mask for each in args[1])


class _NoNumbersRead(TorchFunctionMode):
    """Refuses, in this thread, to hand a tensor's numbers to Python past the operators, which may depend on them."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch.  Raises NotTraceable."""
        del types
        name = getattr(func, "__name__", "")
        if name in _READ_NUMBERS:
            raise NotTraceable(f"it reads a tensor's numbers by {name}, on which the next operators may depend")
        return func(*args, **(kwargs or {}))


_READ_NUMBERS = frozenset({"tolist", "numpy", "__array__", "__dlpack__", "storage", "untyped_storage"})


def _pools_many_channels(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operator is a maximum over places of an image (n, c, h, w) that has many channels.

    torch takes the maximum place by place, or eight channels and more at a time where they lie side by side: then it
    needs a third of the time, with the copies.  The maxima and their places are the same.
    """
    if func not in (torch.ops.aten.max_pool2d.default, torch.ops.aten.max_pool2d_with_indices.default):
        return False
    x: Tensor = args[0]
    return x.dim() == 4 and x.shape[1] >= 8 and x.is_contiguous()


_OF_PLACE = ("device", "pin_memory", "layout", "non_blocking")
"""Arguments that say where a tensor lies: on the CPU, as all others here."""


def recorded(known: Mapping[str, Tensor], compute: Callable[[], Sequence[Tensor | None]]) -> Recording:
    """Record a function of known tensors.  Raises NotTraceable."""
    recorder = Recorder(known)
    try:
        with recorder, _NoNumbersRead():
            results = compute()
    except NotTraceable:
        raise
    except Exception as error:  # what a net of the user's may raise for samples that it was not made for
        raise NotTraceable(f"it cannot be recorded: {type(error).__name__}: {first_line(error)}") from error
    return Recording(
        lines=tuple(recorder.lines),
        results=tuple("" if each is None else recorder.name(each) for each in results),
        draws=recorder.draws,
        constants=tuple(recorder.constants),
        writes=recorder.writes,
    )


def of_steps(first: Recording, again: Recording, apart: int, step: int) -> Recording:
    """Return the recording of step `step` with the numbers marked that are the step; again: that of `step - apart`.

    Raises NotTraceable if the recordings differ in anything else: then something counts that torch does not see.
    """

    def compared(a: Number, b: Number) -> Number:
        if _same(a, b):
            return a
        if isinstance(a, int) and isinstance(b, int) and a - b == apart:
            return StepDependent(a - step)
        raise NotTraceable(_DIFFERS)

    return _compared(first, again, compared)


def of_sizes(first: Recording, other: Recording, sizes: tuple[int, int]) -> Recording:
    """Return a recording for any size of a mini-batch, from recordings of two sizes.

    Raises NotTraceable if their numbers do not tell how it follows from the size.
    """
    one, two = sizes

    def compared(a: Number, b: Number) -> Number:
        if _same(a, b):
            return a
        if isinstance(a, int) and isinstance(b, int) and (a - b) % (one - two) == 0:
            factor = (a - b) // (one - two)
            return BatchSizeDependent(factor, a - factor * one)
        if isinstance(a, float) and isinstance(b, float) and a * one / one == a and a * one / two == b:
            return BatchSizeDependent(a * one, over=True)
        raise NotTraceable("its operators do not follow from the size of the mini-batch")

    return _compared(first, other, compared)


_DIFFERS = "two passes are not the same operators: it depends on numbers, or on something that torch does not see"


def _same(a: Number, b: Number) -> bool:
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


def _compared(a: Recording, b: Recording, number: Callable[[Number, Number], Number]) -> Recording:
    same = [each.text for each in a.lines] == [each.text for each in b.lines] and a.results == b.results
    if not same or not all(torch.equal(*each) for each in zip(a.constants, b.constants, strict=True)):
        raise NotTraceable(_DIFFERS)
    lines = tuple(
        replace(one, numbers=tuple(number(*each) for each in zip(one.numbers, two.numbers, strict=True)))
        for one, two in zip(a.lines, b.lines, strict=True)
    )
    return replace(a, lines=lines)


def number_word(number: Number) -> str:
    """Return a number as a word of a script in which i is the step and b the size of the mini-batch."""
    if isinstance(number, StepDependent):
        return f"(i + {number.more})" if number.more else "i"
    if isinstance(number, BatchSizeDependent):
        return f"({number.factor!r} / b)" if number.over else f"({int(number.factor)} * b + {number.more})"
    if isinstance(number, float) and not math.isfinite(number):
        return f"float('{number}')"
    return repr(number)
