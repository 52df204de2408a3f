"""Takes over a net as people have it: out of its wrappers, with lazy layers made, and giving logits as one tensor.

It also finds nets that take samples as whole numbers, such as ids of tokens, which must not become fractions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel
from torch.overrides import TorchFunctionMode

from edge_sdk.errors import ModelError
from edge_sdk.models.torch_nets.torch_anatomy import one_sample, passing
from edge_sdk.sample_kind import AXES, SampleKind

Outputs: TypeAlias = Literal["logits", "probabilities"]
"""The kind of a net's outputs."""
_WRAPPERS = (DataParallel, DistributedDataParallel, AveragedModel)
_VIEWS = (
    "View",
    "UnsafeView",
    "Squeeze",
    "Unsqueeze",
    "Reshape",
    "Select",
    "Clone",
    "ToCopy",
    "Alias",
    "Transpose",
    "T",
    "Clamp",
)
"""Operators at the end of a net that leave its numbers as they are, or nearly so, as autograd names them."""
_LAST = {"Softmax": "probabilities", "Sigmoid": "probabilities", "LogSoftmax": "log-probabilities"}
"""The kind of outputs by a net's last operator, as autograd names it; any other gives logits."""
_SUM, _LOG_SUM = 1e-2, 1e-4
"""How far the sum of a row of probabilities, or its logarithm, may be from 1, or 0."""
_PROBE = 4
"""Samples of a probe; not one, for which a row may sum to 1 by chance."""
_SPREADS = (1.0, 30.0, 1000.0)
"""Standard deviations of samples for which logits leave the range of probabilities."""
_SPREAD_ROWS = 16


def unwrapped(net: object, name: str | None) -> nn.Module:
    """Return the net that torch.compile, DataParallel and the like were given, also of those inside it.

    Their names of layers differ from those of the plain net, on which layout, state and export rest.  Raises ModelError
    for anything else than an nn.Module, and for TorchScript, whose layers cannot be looked into.
    """
    if not isinstance(net, nn.Module):
        kind = type(net).__name__
        raise ModelError(f"model {name or kind.lower()!r}: found {kind}: give a torch.nn.Module")
    net = _inner(net)
    for layer in list(net.modules()):
        if isinstance(layer, torch.jit.ScriptModule):
            raise ModelError(
                f"model {name or type(layer).__name__.lower()!r}: TorchScript cannot be looked into: give the "
                "nn.Module that it was made of, or edge_sdk.PredictOnly, which teaches and does not learn"
            )
        for own, child in layer.named_children():
            if child is not _inner(child):
                setattr(layer, own, _inner(child))
        if getattr(layer, "_compiled_call_impl", None) is not None:  # layer.compile() in place
            layer._compiled_call_impl = None  # noqa: SLF001  # torch has no other word for it
    return net


def _inner(net: nn.Module) -> nn.Module:
    while True:
        inner = net.module if isinstance(net, _WRAPPERS) else getattr(net, "_orig_mod", None)  # of torch.compile
        if not isinstance(inner, nn.Module):
            return net
        net = inner


def make_lazy_layers(
    net: nn.Module, input_shape: tuple[int, int, int] | None, name: str, kind: SampleKind | None = None
) -> None:
    """Let lazy layers see one sample (c, h, w), and so find their sizes.  Raises ModelError where that fails."""
    if not any(is_lazy(tensor) for tensor in (*net.parameters(), *net.buffers())):
        return
    if input_shape is None:
        raise ModelError(f"model {name!r}: it has lazy layers: pass input_shape=(c, h, w) to size them")
    # outside inference mode, so that what is made can train
    with torch.inference_mode(mode=False), torch.no_grad(), passing(name, input_shape, kind):
        net.eval()(one_sample(input_shape, kind, torch.device("cpu")))


@torch.no_grad()
def trains_on_one(net: nn.Module, input_shape: tuple[int, int, int], kind: SampleKind | None = None) -> bool:
    """Whether a copy of a net takes one sample (c, h, w) in training: BatchNorm wants two numbers in each channel."""
    like = next(net.parameters(), torch.zeros(()))
    with torch.random.fork_rng(devices=[]):
        try:
            copy.deepcopy(net).train()(one_sample(input_shape, kind, like.device))
        except ValueError:
            return False
    return True


def let_take(net: nn.Module, kind: SampleKind | None) -> None:
    """Let a net take preprocessed samples (b, c, h, w), and give them to its forward pass as their kind has them."""
    own: Any = type(net)
    if kind is not None and kind.name != "picture" and own not in _TAKING:
        net.__class__ = _taking(own, AXES[kind.name], ids=kind.name == "tokens")
        _TAKING.add(type(net))


def as_taken(x: Tensor, axes: int, *, ids: bool) -> Tensor:
    """Return samples (b, c, h, w) with `axes` axes each: (b, t, d), (b, d), or as ids (b, t) in int64."""
    flat = x.flatten(1, 4 - axes) if x.dim() == 4 else x  # from elsewhere they may be so already
    return flat.long() if ids else flat


@cache
def _taking(kind: type[nn.Module], axes: int, *, ids: bool) -> type[nn.Module]:
    """Return a class of nets that takes samples (b, c, h, w); layers and names are those of `kind`."""

    def forward(self: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return kind.forward(self, as_taken(x, axes, ids=ids), *args, **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


_TAKING: set[type[nn.Module]] = set()
"""The classes of nets that were made to take samples of a kind."""


def probe(input_shape: tuple[int, int, int], kind: SampleKind | None) -> Tensor:
    """Return samples to look at a net's outputs with: (n, c, h, w), ids but that of padding, or numbers from 0 to 1."""
    rng, shape = torch.Generator().manual_seed(0), (_PROBE, *input_shape)
    if kind is not None and kind.vocabulary:
        return torch.randint(1, kind.vocabulary, shape, generator=rng).float()
    return torch.rand(shape, generator=rng)  # as undeclared ids they are 0


def let_give_logits(
    net: nn.Module, x: Tensor, classes: int, outputs: Outputs, name: str, *, declared: SampleKind | None
) -> str:
    """Look at what a net gives for samples x (n, c, h, w), and let it give logits (n, k) from now on.

    declared: the kind of the samples, if it was.  Returns what was taken for logits, or empty for a net whose only
    output is taken as it is.  So is that of a net that does not run, which later checks report.  Raises ModelError for
    undeclared probabilities, and for several outputs none of which is plainly the logits.
    """
    if type(net) in _TAKEN:  # by another model of this process
        return _TAKEN[type(net)]
    device = next((p.device for p in net.parameters()), x.device)
    with torch.inference_mode(mode=False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        try:
            given = net.eval()(x.to(device).requires_grad_() * 1)  # times 1: it may write into that
        except (Exception, SystemExit):  # noqa: BLE001  # a net of the user's; the survey runs it, too
            return ""
    where, out = _found(given, len(x), classes, name)
    _check_type(out, name)
    of_classes = out.shape == (len(x), classes) and classes > 1
    kind = _kind(out) if of_classes else "logits"
    if of_classes and kind == "logits" and _within_1(out) and _stays_within_1(net, x, out, where, declared):
        kind = "probabilities"
    training = _kind_in_training(net, x, classes, where, declared) if of_classes else ""
    if training and kind != training and "probabilities" in {kind, training}:
        raise ModelError(
            f"model {name!r}: it gives {training} in training and {kind} in inference (net.eval()): let forward() "
            "return the logits in both"
        )
    if kind != outputs and (kind == "probabilities" or outputs == "probabilities"):
        raise ModelError(f"model {name!r}: {_REMEDIES[kind].format(classes)}")
    said = "" if where is None else f"logits: output {where!r} of a {type(given).__name__}"
    if kind != "logits":
        said = "; ".join(filter(None, (said, f"logits: {'the logarithms of its ' if kind == outputs else ''}{kind}")))
    if where is not None or kind == "probabilities":
        own: Any = type(net)
        net.__class__ = _giving_logits(own, where, of_probabilities=kind == "probabilities")
        _TAKEN[type(net)] = said
    return said


def _kind_in_training(
    net: nn.Module, x: Tensor, classes: int, where: str | int | None, declared: SampleKind | None
) -> str:
    """Return the kind of a copy's outputs in training mode, or empty if as in inference, or refused by its first fit.

    where: the place of the logits in inference.  A net of torch's own layers alone gives the same in both.
    """
    if all(type(layer).__module__.startswith(("torch.nn.", "edge_sim.")) for layer in net.modules()):
        return ""
    device = next((p.device for p in net.parameters()), x.device)
    with torch.inference_mode(mode=False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        try:
            trained = copy.deepcopy(net).train()  # a copy, whose running statistics may change
            given = trained(x.to(device).requires_grad_() * 1)
        except (Exception, SystemExit):  # noqa: BLE001  # a net of the user's; its first fit tells
            return ""
        out = given if isinstance(given, Tensor) or where is None else _at(given, where)
        if not isinstance(out, Tensor) or out.shape != (len(x), classes):
            return ""
        kind = _kind(out)
        probable = kind == "logits" and _within_1(out) and _stays_within_1(trained, x, out, where, declared)
        return "probabilities" if probable else kind


_TAKEN: dict[type[nn.Module], str] = {}
"""The classes of nets that were made to give logits, and what was taken for them."""
_REMEDIES = {
    "probabilities": "it gives probabilities (it ends in a softmax or sigmoid), and what is trained are logits: leave "
    'that layer out, or make edge_sdk.TorchModel(net, {}, outputs="probabilities") of it',
    "log-probabilities": 'it gives log-probabilities, which are logits: leave outputs="probabilities" out',
    "logits": 'outputs="probabilities", but its rows are below 0 or do not sum to 1: leave that out',
}


def _found(given: Any, rows: int, classes: int, name: str) -> tuple[str | int | None, Tensor]:
    """Return the place of the logits in a net's output, or None if they are all of it, and the logits."""
    if isinstance(given, Tensor):
        return None, given
    places: list[str | int]
    if isinstance(given, Mapping):
        places = [*given]
    elif isinstance(given, (tuple, list)):
        places = [*range(len(given))]
    else:
        places = ["logits"] if hasattr(given, "logits") else []
    if "logits" in getattr(given, "_fields", ()):
        places = [given._fields.index("logits")]
    fit = [at for at in places if isinstance(_at(given, at), Tensor) and _at(given, at).shape == (rows, classes)]
    if "logits" in fit:
        fit = ["logits"]
    if not fit or (len(fit) > 1 and isinstance(given, Mapping)):
        shown = ", ".join(f"{at!r} {tuple(getattr(_at(given, at), 'shape', ()))}" for at in places[:8])
        raise ModelError(
            f"model {name!r}: it gives a {type(given).__name__} ({shown}), in which {len(fit)} outputs could be the "
            f"logits of {classes} classes: let forward() return those alone, or call them 'logits' in a dict"
        )
    return fit[0], _at(given, fit[0])


def _at(given: Any, where: Any) -> Any:
    return given[where] if isinstance(given, (Mapping, tuple, list)) else getattr(given, str(where), None)


def _check_type(out: Tensor, name: str) -> None:
    """Raise ModelError for outputs that are not float32, as all numbers of models are."""
    if out.dtype == torch.float32:
        return
    remedy = "let forward() end with .float()"
    if not out.dtype.is_floating_point:
        remedy = "let forward() return the logits, one for each class, without argmax, round or long"
    raise ModelError(f"model {name!r}: it gives {out.dtype}, expected torch.float32: {remedy}")


def _kind(out: Tensor) -> str:
    """Tell logits, probabilities and log-probabilities (n, k) apart: by the last operator, or log-sums."""
    node = out.grad_fn
    while node is not None and node.name().partition("Backward")[0] in _VIEWS:
        node = node.next_functions[0][0]
    if node is not None and (last := _LAST.get(node.name().partition("Backward")[0])):
        return last
    rows = out.detach().double()
    if bool((rows <= 0).all()) and bool((rows.logsumexp(dim=1).abs() <= _LOG_SUM).all()):
        return "log-probabilities"
    return "logits"


def _within_1(out: Tensor) -> bool:
    """Whether these may be probabilities: numbers from 0 to 1 that no dense layer gives, as behind a norm it may."""
    if out.grad_fn is not None and out.grad_fn.name().partition("Backward")[0] in ("Addmm", "Mm"):
        return False
    return bool(((out >= 0) & (out <= 1 + _SUM)).all())


@torch.no_grad()
def _stays_within_1(
    net: nn.Module, x: Tensor, out: Tensor, where: str | int | None, declared: SampleKind | None
) -> bool:
    """Whether a net gives probabilities: varying numbers that stay from 0 to 1 where logits would not.

    It is run on the samples of a probe (n, c, h, w), for which it gave `out` (n, k), on some of 0 and 1, which are also
    ids, and on random ones.  Samples that the net does not take are left out.
    """
    rng = torch.Generator().manual_seed(0)
    shape = (_SPREAD_ROWS, *x.shape[1:])
    random = [spread * torch.randn(shape, generator=rng) for spread in _SPREADS]
    if declared is not None and declared.vocabulary:  # ids, of which no others exist
        random = [torch.randint(declared.vocabulary, shape, generator=rng).float() for _ in _SPREADS]
    found: list[Tensor] = [out.detach()]
    with torch.inference_mode(mode=False), torch.random.fork_rng(devices=[]):
        for samples in (torch.randint(2, shape, generator=rng).float(), *random):
            with suppress(Exception):  # ids beyond the end of a table
                given = net(samples.to(next((p.device for p in net.parameters()), x.device)).clone())
                found.append(given if where is None or isinstance(given, Tensor) else _at(given, where))
    rows = torch.cat(found)
    sums = bool(((rows.sum(dim=1) - 1).abs() <= _SUM).all())
    return all(map(_within_1, found)) and (sums or bool((rows != rows[0]).any()))


@cache
def _giving_logits(kind: type[nn.Module], where: str | int | None, *, of_probabilities: bool) -> type[nn.Module]:
    """Return a class of nets whose forward pass gives the logits alone; layers and names are those of `kind`."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        out: Any = kind.forward(self, *args, **kwargs)
        if where is not None and not isinstance(out, Tensor):  # in training or in inference it may be one
            out = _at(out, where)
        found: Tensor = out.clamp_min(torch.finfo(out.dtype).tiny).log() if of_probabilities else out
        return found

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


_CASTS = ("long", "int", "short", "char", "byte", "to", "type", "type_as", "as_tensor", "copy_")
"""Functions of torch that give the same numbers in another type."""
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
TABLE, CAST = "its Embedding", "its forward(), which makes whole numbers of its input (.long(), .int()),"


@torch.inference_mode()
def takes_ids(net: nn.Module, shape: tuple[int, ...]) -> str:
    """Return the layer that takes the values of samples (c, h, w) as whole numbers, or empty if none does.

    The net is run on a sample of zeros and one of ones.  A table of positions receives the same numbers for both.  If a
    net turns fractions into whole numbers itself, as x * 255, its table receives other numbers.
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
