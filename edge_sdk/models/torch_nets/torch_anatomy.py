"""Inspection of a user's net: where its features and its head are, and the cost of a pass."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from edge_sdk.arrays import Floats
from edge_sdk.errors import ModelError
from edge_sdk.models.checks import check_width
from edge_sdk.models.torch_nets.torch_arrays import to_tensor
from edge_sdk.sample_kind import OF_LENGTHS, SampleKind

Tap: TypeAlias = Callable[[Tensor], "tuple[Tensor, Tensor]"]
"""Maps a batch to the logits (n, k) and the features (n, d) of its samples, in one forward pass."""


class Tapped(nn.Module):
    """A module that gives logits and features: functional_call substitutes weights only in modules."""

    def __init__(self, net: nn.Module, tap: Tap) -> None:
        super().__init__()
        self.net, self._tap = net, tap

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and features: (b, c, h, w) -> (b, k), (b, d)."""
        return self._tap(x)


class Cost(NamedTuple):
    """The cost of the forward pass of one sample."""

    flops: int = 0
    activation_bytes: int = 0
    """The bytes that the layers write."""
    calls: int = 0
    """The number of calls of layers."""


UNMEASURED = Cost()
_NO_IDS = "scalar types: Long, Int"
"""How torch says that an nn.Embedding was given floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """The results of survey."""

    tap: Tap | None = None
    """Reads logits and features, or is None if the net gives no features."""
    head: nn.Linear | None = None
    """The linear layer that makes the logits from the tap's features, or None without one."""
    feature_dim: int = 0
    cost: Cost = UNMEASURED


@torch.inference_mode()
def survey(
    net: nn.Module,
    classes: int,
    *,
    features: str | None,
    input_shape: tuple[int, int, int] | None,
    name: str,
    kind: SampleKind | None = None,
) -> Anatomy:
    """Inspect a net, and run one sample through it if its shape (c, h, w) is known; kind: the declared one.

    Raises ModelError for an unknown layer, a sample that does not run or is written into, or a number of logits other
    than classes.
    """
    if input_shape is None:
        if features is not None:
            raise ModelError(f"features={features!r}: pass input_shape=(c, h, w), so that their width can be measured")
        last = _last_linear(net, classes)
        head, tap = last if last and _has_rows(last) else None, LayerTap(net, last, "input") if last else None
        return Anatomy(tap=tap, head=head, feature_dim=last.in_features if last else 0)
    named = None if features is None else LayerTap(net, _named_layer(net, features), "output")
    like = next(net.parameters(), torch.zeros(()))
    with torch.inference_mode(mode=False):  # whose tensors count what is written into them
        sample = one_sample(input_shape, kind, like.device)
    with passing(name, input_shape, kind):
        with _noting_linears(net) as run:
            logits, cost = count_cost(net, sample)
        last = _last_linear(net, classes, run)
        tap = named or (LayerTap(net, last, "input") if last else None)
        f = tap(sample)[1] if tap else None
    _check_unwritten(sample, name)
    check_width(name, tuple(logits.shape), 1, classes)
    head = last if last and f is not None and _has_rows(last) and _leads_to(logits, last, f) else None
    return Anatomy(tap=tap, head=head, feature_dim=0 if f is None else f.shape[1], cost=cost)


def one_sample(input_shape: tuple[int, int, int], kind: SampleKind | None, device: torch.device) -> Tensor:
    """Return a sample (1, c, h, w) to try a net with: of 0, or, where 0 is padding, of 1 or the largest id."""
    value = 0
    if kind is not None and kind.name in OF_LENGTHS:
        value = max(1, kind.vocabulary - 1)
    return torch.full((1, *input_shape), float(value), device=device)


def draws_random_numbers(net: nn.Module) -> bool:
    """Return whether a training pass may use torch's generators: by dropout, or by unknown layers."""
    return any(_may_draw(module) for module in net.modules())


def _may_draw(module: nn.Module) -> bool:
    kind = type(module)
    if not kind.__module__.startswith("torch.nn."):
        return True
    return "Dropout" in kind.__name__ or isinstance(module, nn.RReLU) or bool(getattr(module, "dropout", 0))


def decayed_parameters(net: nn.Module) -> list[bool]:
    """Return which trainable parameters weight decay is for, in order of registration.

    Biases, the scale of a cosine head and most parameters of normalisation are scalars or vectors; LayerNorm may have
    others.
    """
    of_norms = {id(p) for m in net.modules() if "Norm" in type(m).__name__ for p in m.parameters(recurse=False)}
    return [p.dim() > 1 and id(p) not in of_norms for p in net.parameters() if p.requires_grad]


def _last_linear(net: nn.Module, classes: int, run: Sequence[nn.Linear] | None = None) -> nn.Linear | None:
    """Return the nn.Linear that makes the logits, as far as widths tell.

    run: those that a pass called, in order; the last of them, else the last in order of registration, which without a
    pass may be one that no pass calls.
    """
    listed = [module for module in net.modules() if isinstance(module, nn.Linear)]
    found = listed[-1:] if run is None else [*run[-1:], *(layer for layer in listed[-1:] if layer in run)]
    return next((layer for layer in found if layer.out_features == classes), None)


@torch.inference_mode()
def logits_layer(
    net: nn.Module, classes: int, input_shape: tuple[int, int, int] | None, kind: SampleKind | None = None
) -> nn.Linear | None:
    """Return the nn.Linear that makes the logits, with `input_shape` (c, h, w) as one sample of this kind shows it."""
    if input_shape is None:
        return _last_linear(net, classes)
    like = next(net.parameters(), torch.zeros(()))
    with _noting_linears(net) as run, suppress(Exception):  # the survey reports a net that does not run
        net(one_sample(input_shape, kind, like.device))
    return _last_linear(net, classes, run or None)


def check_last_is_run(net: nn.Module, last: nn.Linear | None, x: Tensor, name: str) -> None:
    """Raise ModelError where samples (n, c, h, w) show that another nn.Linear comes last than the order of layers said.

    That order is all there is without the shape of samples.
    """
    with torch.no_grad(), _noting_linears(net) as run:
        net(x)
    if last is not None and (last not in run or (run[-1] is not last and run[-1].out_features == last.out_features)):
        raise ModelError(
            f"model {name!r}: the last nn.Linear that is registered, {last}, does not make its logits: pass "
            "input_shape=(c, h, w), which finds the one that does"
        )


@contextmanager
def _noting_linears(net: nn.Module) -> Iterator[list[nn.Linear]]:
    """Collect the linear layers that passes call, in order."""
    run: list[nn.Linear] = []
    with ExitStack() as hooks:
        for layer in net.modules():
            if isinstance(layer, nn.Linear):
                hooks.enter_context(layer.register_forward_hook(lambda layer, _args, _out: run.append(layer)))
        yield run


def _has_rows(layer: nn.Linear) -> bool:
    """Whether the rows of a layer can be written: under weight_norm and the like they follow from other parameters."""
    return "weight" in dict(layer.named_parameters(recurse=False))


def _named_layer(net: nn.Module, name: str) -> nn.Module:
    known: dict[str, nn.Module] = {layer: module for layer, module in net.named_modules() if layer}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known) or list(known)[:8]
    raise ModelError(f"features: the net has no layer {name!r}; did you mean {' or '.join(map(repr, near))}?")


@dataclass(frozen=True, slots=True)
class LayerTap:
    """A Tap on the input or the output of a layer; no closure, so that a copy of a model reads its own net."""

    net: nn.Module
    layer: nn.Module
    side: Literal["input", "output"]

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and features: (b, c, h, w) -> (b, k), (b, d)."""
        seen: list[Tensor] = []
        if self.side == "output":
            hook = self.layer.register_forward_hook(lambda _layer, _args, out: seen.append(out))
        else:
            hook = self.layer.register_forward_pre_hook(lambda _layer, args: seen.append(args[0]))
        with hook:
            logits = self.net(x)
        return logits, _flat(seen, self.layer)


def _flat(seen: list[Tensor], layer: nn.Module) -> Tensor:
    if not seen or not isinstance(seen[-1], Tensor):
        raise ModelError(f"features: {layer} gives no tensor in a forward pass; name another layer")
    return seen[-1].flatten(1)


@contextmanager
def passing(name: str, input_shape: tuple[int, ...], kind: SampleKind | None = None) -> Iterator[None]:
    """Raise ModelError, in one line, where a forward pass inside does not run for samples of this shape and kind."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, IndexError) as error:  # what torch raises for shapes that clash
        told = " ".join(str(error).split())  # in one line
        declares = 'declare ids of tokens with Preprocess(kind="tokens", vocabulary=...)'
        remedy = f"; samples reach a net as float32: {declares}" if _NO_IDS in told else ""
        if kind is not None and kind.vocabulary and isinstance(error, IndexError):
            remedy = f"; ids are 0..{kind.vocabulary - 1}: its nn.Embedding needs {kind.vocabulary} rows"
        raise ModelError(f"model {name!r}: one sample of shape {input_shape} does not run: {told}{remedy}") from error


@torch.no_grad()
def try_sample(net: nn.Module, x: Floats, device: torch.device, name: str) -> None:
    """Run a copy of the first sample (1, c, h, w) that a net is given.  Raises ModelError where it is written into."""
    with torch.inference_mode(mode=False):  # whose tensors count what is written into them
        one = to_tensor(x.copy(), device)
    net(one)
    _check_unwritten(one, name)


def _check_unwritten(sample: Tensor, name: str) -> None:
    if sample._version:  # noqa: SLF001  # torch has no other word for it
        raise ModelError(
            f"model {name!r}: the net writes into its input, and so would change the samples in memory: let it begin "
            "with a copy (x = x.clone()), or leave inplace=True out of what its input reaches first"
        )


def count_cost(net: nn.Module, x: Tensor) -> tuple[Tensor, Cost]:
    """Return the net's output and its cost: operations of linear and convolution layers (the rest is a few per cent).

    The figures equal those of torch's FlopCounterMode, without loading torch's compiler (seconds on a board).
    """
    flops: list[int] = []
    written: list[int] = []

    def multiply(layer: nn.Module, _args: tuple[Tensor, ...], out: Tensor) -> None:
        weight: Any = layer.weight  # (outputs, ...): used once per position of the output; perhaps no parameter
        flops.append(2 * weight.numel() * (out.numel() // len(weight)))

    def recur(layer: nn.RNNBase, _args: tuple[Tensor, ...], out: Any) -> None:
        steps = out[0].numel() // out[0].shape[-1]  # each uses every weight once
        flops.append(2 * steps * sum(p.numel() for name, p in layer.named_parameters() if name.startswith("weight")))

    def write(_layer: nn.Module, _args: tuple[Tensor, ...], out: object) -> None:
        written.append(out.numel() * out.element_size() if isinstance(out, Tensor) else 0)

    with ExitStack() as hooks:
        for layer in net.modules():
            if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
                hooks.enter_context(layer.register_forward_hook(multiply))
            if isinstance(layer, nn.RNNBase):
                hooks.enter_context(layer.register_forward_hook(recur))
            if next(layer.children(), None) is None:
                hooks.enter_context(layer.register_forward_hook(write))
        return net(x), Cost(sum(flops), sum(written), len(written))


def _leads_to(logits: Tensor, head: nn.Linear, f: Tensor) -> bool:
    return f.shape[1] == head.in_features and torch.allclose(head(f), logits, rtol=1e-4, atol=1e-5)
