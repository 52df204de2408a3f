"""Finds nets that take samples as whole numbers, such as ids of tokens, which must not become fractions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_CASTS = ("long", "int", "short", "char", "byte", "to", "type", "type_as", "as_tensor", "copy_")
"""Functions of torch that give the same numbers in another type."""
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
TABLE, CAST = "its Embedding", "its forward(), which makes whole numbers of its input (.long(), .int()),"


@torch.inference_mode()
def takes_ids(net: nn.Module, shape: tuple[int, ...]) -> str:
    """Return the layer that takes the values of samples (c, h, w) as whole numbers, or empty if none does.

    A sample of zeros and one of ones are run: a table of positions is given the same numbers for both, and a net that
    makes whole numbers of fractions itself, as x * 255, has others.
    """
    tables = [layer for layer in net.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
    if not tables and all(type(layer).__module__.startswith("torch.nn.") for layer in net.modules()):
        return ""  # no other layer of torch's own makes whole numbers
    like = next(net.parameters(), torch.zeros(()))
    found = {TABLE, CAST}
    for value in (0, 1):
        seen: set[str] = set()
        with ExitStack() as looking:
            for table in tables:
                looking.enter_context(table.register_forward_pre_hook(_look_at(value, seen)))
            sample = torch.full((1, *shape), float(value), device=like.device)
            looking.enter_context(suppress(Exception))  # a table of one row, or no .long(): a trial tells
            looking.enter_context(_Casts(value, seen))
            net(sample)
        found &= seen
    return min(found, key=(TABLE, CAST).index, default="")


def _look_at(value: int, seen: set[str]) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    """Return a hook that adds TABLE where a table is given this value alone."""

    def look(_table: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and _all_are(args[0], value):
            seen.add(TABLE)

    return look


class _Casts(TorchFunctionMode):
    """Adds CAST where floats become whole numbers that all have this value.

    It sees calls of Python; a TorchDispatchMode would load torch's compiler, which takes seconds on a board.
    """

    def __init__(self, value: int, seen: set[str]) -> None:
        super().__init__()
        self._value, self._seen = value, seen

    def __torch_function__(  # torch's name
        self,
        func: Any,
        types: Sequence[type],  # torch's signature
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _CASTS and isinstance(made, Tensor) and made.dtype in _WHOLE:
            of_floats = any(isinstance(each, Tensor) and each.is_floating_point() for each in args)
            if of_floats and _all_are(made, self._value):
                self._seen.add(CAST)
        return made


def _all_are(tensor: Tensor, value: int) -> bool:
    return tensor.numel() > 0 and bool((tensor == value).all())
