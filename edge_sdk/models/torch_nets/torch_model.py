"""The torch runtime: any nn.Module that maps (n, c, h, w) to logits (n, k)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import Preprocess
from edge_sdk.errors import MissingExtra, ModelError
from edge_sdk.models.base import Batches, FitReport, ModelSpec, layout_digest, pack_arrays, unpack_arrays
from edge_sdk.models.checks import (
    check_fit,
    check_rows,
    check_samples,
    check_state,
    check_weights,
    check_whole_inputs,
    check_width,
    input_shape_of,
    lacks,
    require,
    with_steps,
)
from edge_sdk.models.optim import PLAIN_STEP, unpack_optim
from edge_sdk.objectives import Objective, Optim, names_on, on_features
from edge_sdk.objectives.optim import Part

try:
    import torch
except ImportError as error:
    raise MissingExtra("torch", "torch", "TorchModel") from error

from torch import Tensor, nn

from edge_sdk.models.cosine_head import check_head
from edge_sdk.models.torch_nets.torch_anatomy import (
    Anatomy,
    Tap,
    check_last_is_run,
    decayed_parameters,
    draws_random_numbers,
    logits_layer,
    survey,
    try_sample,
)
from edge_sdk.models.torch_nets.torch_arrays import Views, array_of, lie_in, norm_of, shared
from edge_sdk.models.torch_nets.torch_cosine import TorchCosineHead, held, linear_rows, with_cosine_head, write_rows
from edge_sdk.models.torch_nets.torch_device import seeded
from edge_sdk.models.torch_nets.torch_export import ServedNet, infer, infer_all, net_bytes
from edge_sdk.models.torch_nets.torch_forms import Forms, Host
from edge_sdk.models.torch_nets.torch_intake import (
    Outputs,
    let_give_logits,
    let_take,
    make_lazy_layers,
    probe,
    takes_ids,
    trains_on_one,
    unwrapped,
)
from edge_sdk.models.torch_nets.torch_tracing import Tracing
from edge_sdk.models.torch_nets.torch_width import last_switch
from edge_sdk.models.torch_training.torch_fit import Steps
from edge_sdk.models.torch_training.torch_optim import Moments, TorchOptimiser

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The types whose numbers are looked at."""


class TorchModel:
    """Any torch net.  Its capabilities follow from its layers.

    Features are the output of the layer named `features`, or the input of the last nn.Linear that runs.  A net without
    either gives no features.  Head rows are those of the last nn.Linear, if it turns the features into the logits.
    A net without trainable parameters only predicts.
    """

    def __init__(
        self,
        net: nn.Module,
        classes: int,
        *,
        input_shape: tuple[int, ...] | None = None,
        features: str | None = None,
        preprocess: Preprocess | None = None,
        name: str | None = None,
        device: str = "cpu",
        note: str = "",
        head: Literal["linear", "cosine"] = "linear",
        outputs: Outputs = "logits",
    ) -> None:
        """Wrap a net.

        net: moved to `device`, and trained in place.  It is taken out of torch.compile, DataParallel and the like.
        input_shape: (c, h, w) of a sample, or its shape in a declared kind, such as (t, d).  With it one sample is run,
        which checks the number of logits and measures features and cost.  Without it wrong logits show at the first
        batch, and the last nn.Linear counts as the one that makes the logits.
        features: the name of the layer with the features.
        preprocess: with a declared kind, `net` receives series (b, t, d), vectors (b, d), or ids of tokens (b, t) as
        int64.
        head: with "cosine" the last nn.Linear becomes a CosineHead, which compares directions (FedNH needs one), and
        features are its inputs, scaled to length 1.
        outputs: what `net` returns: logits, or probabilities, whose logarithms are the logits.  In a tuple, a dict or a
        ModelOutput, the logits are the output of that name, or of the right width.  The spec's note names it.

        Raises ModelError if the net does not fit, if a weight is not finite, if it returns probabilities that `outputs`
        does not name, and if preprocess turns ids for an nn.Embedding into fractions.  A net that changes its input
        is refused here, or at the first samples.
        """
        check_head(head)
        if outputs not in ("logits", "probabilities"):
            raise ModelError(f"model {name or ''!r}: outputs {outputs!r}: expected logits or probabilities")
        net = unwrapped(net, name)
        name = name or type(net).__name__.lower()
        shape = None if input_shape is None else input_shape_of(name, input_shape)
        preprocess = with_steps(preprocess, shape)
        kind = preprocess.declared
        let_take(net, kind)
        make_lazy_layers(net, shape, name, kind)
        _check_finite(net, name)
        if shape is not None:
            said = let_give_logits(net, probe(shape, kind), classes, outputs, name, declared=kind)
            note = "; ".join(filter(None, (note, said)))
        if head == "cosine":
            net = with_cosine_head(net, logits_layer(net, classes, shape, kind), classes, name)
        _check_types(net, name)
        self._device = torch.device(device)
        self._net = net.to(self._device).eval()
        self._anatomy = survey(net, classes, features=features, input_shape=shape, name=name, kind=kind)
        self._input_shape, self._tried, self._outputs = shape, shape is not None, outputs
        self.trained = [p for p in net.parameters() if p.requires_grad]
        """Its trainable parameters, in order of registration."""
        self.decayed = decayed_parameters(net)
        """Which of them weight decay is for, unless a federation decays all."""
        self.flat: Tensor | None = None
        """All trainable parameters as one (p,), if they lie one after the other in memory."""
        self._named: dict[str, Tensor] = {f"net.{name}": p for name, p in net.named_parameters()}
        self._has_buffers = next(net.buffers(), None) is not None
        self._draws = draws_random_numbers(net)
        self.optimiser: TorchOptimiser | None = None
        """The optimiser of the last fit, or None if the next fit makes a new one."""
        self._views, self._weight_views = Views(), Views()
        self._forms = Forms(Host(net, self._anatomy, self._device, shape))
        self.tracing = Tracing(
            name, net, trained=self.trained, device=self._device, features=features, input_shape=shape
        )
        """Computes fits and passes by traces, where it may."""
        batch_norm = any(getattr(layer, "running_mean", None) is not None for layer in net.modules())
        self.spec = ModelSpec(
            name=name,
            runtime="torch",
            classes=classes,
            feature_dim=self._anatomy.feature_dim,
            capabilities=_capabilities(net, self._anatomy, trains=bool(self.trained)),
            terms=self._forms.names() if self.trained else frozenset(),
            inert_terms=_inert_terms(self._anatomy, self.trained),
            preprocess=preprocess,
            parameters=sum(p.numel() for p in self.trained),
            shapes=tuple(tuple(p.shape) for p in self.trained),
            layout=_layout(net) if self.trained else b"",
            batch_norm=batch_norm,
            least_batch=2 if batch_norm and shape and not trains_on_one(net, shape, kind) else 1,
            flops_per_sample=self._anatomy.cost.flops,
            activation_bytes_per_sample=self._anatomy.cost.activation_bytes,
            calls_per_pass=self._anatomy.cost.calls,
            note=note,
        )
        if shape is not None:
            self._check_ids(shape)

    @property
    def net(self) -> nn.Module:
        """The given net, in its present state."""
        return self._net

    @property
    def tap(self) -> Tap | None:
        """Reads logits and features in one forward pass of the net, in its present mode, or None without features."""
        return self._anatomy.tap

    @property
    def taps_last_input(self) -> bool:
        """Whether the features are the input of the last layer."""
        return self._anatomy.head is not None and self._anatomy.tap is not None

    def logits(self, x: Floats) -> Floats:
        """Return logits before softmax: (n, c, h, w) -> (n, k).  Raises ModelError for outputs of another shape."""
        self._check_samples(x)
        self._switch(train=False)
        (out,) = infer_all(partial(self.tracing.answer, "logits", lambda batch: (self._net(batch),)), x, self._device)
        check_width(self.spec.name, out.shape, len(x), self.spec.classes)
        return out

    def serving_copy(self) -> ServedNet:
        """Return a copy of the net in inference mode."""
        return ServedNet(self._net, self.spec, self._input_shape, self._device)

    def features(self, x: Floats) -> Floats:
        """Return the features, flattened: (n, c, h, w) -> (n, d).  Raises Unsupported if the net has none."""
        tap = self._anatomy.tap
        if tap is None:
            raise lacks(self.spec, "features")
        self._check_samples(x)
        self._switch(train=False)
        (found,) = infer_all(partial(self.tracing.answer, "features", lambda batch: (tap(batch)[1],)), x, self._device)
        return found

    def outputs(self, x: Floats) -> tuple[Floats, Floats]:
        """Return logits (n, k) and features (n, d) in one pass, equal to the bit to `logits` and `features`.

        Raises as both of them do.
        """
        tap = self._anatomy.tap
        if tap is None:
            raise lacks(self.spec, "features")
        self._check_samples(x)
        self._switch(train=False)
        logits, features = infer_all(partial(self.tracing.answer, "outputs", tap), x, self._device)
        check_width(self.spec.name, logits.shape, len(x), self.spec.classes)
        return logits, features

    def directional(self, x: Floats, direction: Floats, of_what: Literal["features", "logits"]) -> Floats:
        """Return the derivative of features (n, d) or logits (n, k) in a direction (p,) of the trainable parameters.

        It is that of inference mode.  Raises Unsupported for features that the net does not have.
        """
        tap = self._anatomy.tap
        if of_what == "features" and tap is None:
            raise lacks(self.spec, "features")
        self._check_samples(x)
        self._switch(train=False)
        sizes = [parameter.numel() for parameter in self.trained]
        along = torch.split(torch.from_numpy(direction).to(self._device), sizes)
        with torch.enable_grad():
            batch = torch.from_numpy(np.ascontiguousarray(x)).to(self._device)
            found = tap(batch)[1] if of_what == "features" and tap is not None else self._net(batch)
            # the slopes with respect to the parameters are linear in these weights, so their slope is the derivative
            weights = torch.zeros_like(found, requires_grad=True)
            slopes = torch.autograd.grad(found, self.trained, weights, create_graph=True, allow_unused=True)
            parts = [(s.flatten() * d).sum() for s, d in zip(slopes, along, strict=True) if s is not None]
            if not parts:
                return np.zeros(tuple(found.shape), np.float32)
            (out,) = torch.autograd.grad(torch.stack(parts).sum(), weights)
        return np.asarray(out.detach().cpu().numpy(), np.float32)

    def onnx_bytes(self, x: Floats) -> bytes:
        """Return the net as an .onnx file: input `samples` as the net takes them, output `logits` (n, k).

        x: some samples to run, (n, c, h, w).  Raises MissingExtra without onnx and onnxscript, ModelError where
        torch.onnx fails.
        """
        return net_bytes(self._net, x, self.spec.name, self.spec.preprocess.declared)

    def head(self, f: Floats) -> Floats:
        """Return the logits: (n, d) -> (n, k).  Raises Unsupported if no nn.Linear makes them from the features."""
        if self._anatomy.head is None:
            raise lacks(self.spec, "head-rows")
        return self._infer(self._anatomy.head, f)

    def fit(self, batches: Batches, objective: Objective, optim: Optim, part: Part = "all") -> FitReport:
        """One optimiser step of `part` per row of `batches.indices`, in training mode if they are stochastic.

        Raises Unsupported for a term that the model cannot minimise, UsageError for an unknown optimiser, ModelError
        where the net answers with another shape than (b, k).
        """
        check_fit(self.spec, batches, objective)
        self._check_samples(batches.inputs)
        steps = self._steps(batches, objective, self._optimiser_for(optim), self._trained(part))
        losses = self.tracing.fitted(steps, objective, self._forms, stochastic=batches.stochastic)
        if losses is None:
            losses = steps.take(range(len(batches.indices)))
        return FitReport(
            steps=len(losses),
            loss=losses[-1] if losses else 0.0,
            extra_flops=self._forms.extra_flops(objective, len(losses), batches.indices.shape[1]),
            instruments=self._forms.instruments(objective),
        )

    def step_norms(self, batches: Batches, objective: Objective, part: Part = "all") -> list[float] | None:
        """Return what the function of that name in base.py does, or None for terms that keep something between fits."""
        if any(term.on == "own" for term in objective):
            return None
        check_fit(self.spec, batches, objective)
        self._check_samples(batches.inputs)
        optimiser = self.optimiser_after(PLAIN_STEP)
        steps = self._steps(batches, objective, optimiser, self._trained(part))
        losses = [self._forms.loss((term,), batches) for term in objective]
        buffers = [(each, each.clone()) for each in self._net.buffers()] if self._has_buffers else []
        changes = self.tracing.changes(steps, objective, losses, self._forms, stochastic=batches.stochastic)
        for buffer, before in buffers:
            buffer.copy_(before)
        wide, count = np.empty(self.spec.parameters), len(self.trained)  # (p,), one for all: a new one is dear
        return [norm_of(changes[at : at + count], wide) for at in range(0, len(changes), count)]

    def fits_at_once(self, objective: Objective, *, stochastic: bool) -> bool:
        """Return whether one fit of several steps is as one fit for each: whether no step uses `Batches.seed`."""
        draws = self._draws if self.tracing.draws is None else self.tracing.draws
        return not (stochastic and draws) and all(term.on != "own" for term in objective)

    def _steps(
        self, batches: Batches, objective: Objective, optimiser: TorchOptimiser, trained: Sequence[bool]
    ) -> Steps:
        """Return the steps of a fit, before the first one."""
        return Steps(
            name=self.spec.name,
            classes=self.spec.classes,
            net=self._net,
            tap=self._anatomy.tap if on_features(objective) else None,
            head=self._anatomy.head,
            parameters=list(self.trained),
            trained=trained,
            inputs=shared(np.asarray(batches.inputs, np.float32)),
            labels=None if batches.labels is None else shared(np.asarray(batches.labels, np.int64)),
            indices=shared(np.asarray(batches.indices, np.int64)),
            device=self._device,
            loss=self._forms.loss(objective, batches),
            optimiser=optimiser,
            switch=partial(self._switch, train=batches.stochastic),
            seeded=partial(self._randomness, batches),
        )

    @property
    def untraced(self) -> frozenset[str]:
        """The reasons why fits were not traced so far; empty if they were traced, or too few to be."""
        return self.tracing.untraced

    def head_rows(self) -> Floats:
        """Return the rows (k, d + 1), a copy; the last column is 0 in a head without bias.

        Raises Unsupported without a linear head.
        """
        head = self._linear_head()
        rows = array_of(linear_rows(head))
        bias = np.zeros(len(rows), np.float32) if head.bias is None else array_of(head.bias)
        return np.concatenate([rows, bias[:, None]], axis=1)

    def set_head_rows(self, classes: Ints, rows: Floats) -> None:
        """Overwrite the rows of some classes: classes (m,), rows (m, d + 1), and reset the moments.

        In a cosine head, lengths and biases of rows have no effect; a head without bias leaves the last column out.
        Raises ModelError for other shapes.
        """
        head = self._linear_head()
        check_rows(self.spec, classes, rows)
        write_rows(head, classes, rows)
        self.optimiser = None

    def set_scale(self, value: float | None, *, trains: bool) -> None:
        """Set the scale, as Scaled describes.  Raises Unsupported without a cosine head."""
        head = self._anatomy.head
        if not isinstance(head, TorchCosineHead):
            raise lacks(self.spec, "cosine-head")
        head.scale_trains = trains
        if value is not None:
            with torch.no_grad():
                head.scale.fill_(value)

    def weights(self) -> Floats:
        """Return the trainable parameters in order of registration: (p,), a copy."""
        require(self.spec, "weights")
        return np.concatenate([each.ravel() for each in self._weight_views.of(self._pieces)])

    def lent_weights(self) -> Floats:
        """Return the trainable parameters, as `weights` does: (p,), a view if they lie in one piece."""
        require(self.spec, "weights")
        piece, *more = self._weight_views.of(self._pieces)
        return self.weights() if more else piece.ravel()

    def weights_are_finite(self) -> bool:
        """Return whether each array of weights has a finite sum; that of very large numbers may not be."""
        with torch.inference_mode():
            return math.isfinite(sum([piece.sum().item() for piece in self._pieces]))  # NaN and Inf carry on

    def head_mask(self) -> NDArray[np.bool_]:
        """Return the mask of the last layer: (p,).  Raises Unsupported without a linear head that has a bias."""
        head = self._of_head()
        return np.concatenate([np.full(p.numel(), id(p) in head) for p in self.trained])

    def set_weights(self, values: Floats) -> None:
        """Overwrite the weights (p,), and reset the moments.  Raises ModelError for another size."""
        require(self.spec, "weights")
        check_weights(self.spec, values)
        self._weight_views.overwrite(self._pieces, values)
        self.optimiser = None

    def state_bytes(self) -> bytes:
        """Return parameters, buffers and moments, and the state of forms between fits."""
        return pack_arrays(self._arrays(self.optimiser, self._forms))

    def load_state(self, state: bytes) -> None:
        """Restore exactly what state_bytes gave.  Raises StoreError if it does not fit; then nothing changed."""
        arrays = unpack_arrays(state)
        optimiser = None
        if "optim" in arrays:
            optimiser = self.optimiser_after(unpack_optim(arrays["optim"]))
        forms = self._forms.like(arrays)
        check_state(arrays, self._arrays(optimiser, forms))
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(torch.from_numpy(arrays[name]))
        if optimiser is not None:
            optimiser.load(arrays)
        forms.load(arrays)
        self.optimiser, self._forms = optimiser, forms

    @property
    def _pieces(self) -> Sequence[Tensor]:
        """Return all trainable parameters, in as few tensors as their memory layout allows."""
        if self.flat is not None and not lie_in(self.flat, self.trained):  # a net may give them other memory
            self.flat = None
        return self.trained if self.flat is None else [self.flat]

    def _check_samples(self, x: Floats) -> None:
        """Raise ModelError for samples of another shape, and for a net that writes into the first ones it is given."""
        check_samples(self.spec.name, x, self._input_shape)
        if not self._tried and len(x):
            self._check_ids(x.shape[1:])
            first = torch.from_numpy(np.array(x[:2], np.float32))
            spec = self.spec
            kind = spec.preprocess.declared
            let_give_logits(self._net, first, spec.classes, self._outputs, spec.name, declared=kind)
            try_sample(self._net, x[:1], self._device, self.spec.name)
            check_last_is_run(self._net, self._anatomy.head, first[:1].to(self._device), self.spec.name)
            self._tried = True

    def _check_ids(self, shape: tuple[int, ...]) -> None:
        """Raise ModelError where samples (c, h, w) are ids, and preprocess makes fractions of them."""
        if not self.spec.preprocess.keeps_whole_numbers and (why := takes_ids(self._net, shape)):
            check_whole_inputs(self.spec.name, why, self.spec.preprocess)

    def _infer(self, function: Callable[[Tensor], Tensor], x: Floats) -> Floats:
        """Apply a function in inference mode; the result shares no memory with x or the net."""
        self._switch(train=False)
        return infer(function, x, self._device)

    def _switch(self, *, train: bool) -> None:
        """Switch between training and inference mode; do nothing if no layer depends on the mode, or it is already set.

        This runs at every step.
        """
        if self._net.training != train and (self._draws or self.spec.batch_norm):
            self._net.train(train)

    def _randomness(self, batches: Batches) -> AbstractContextManager[None]:
        if batches.stochastic and self._draws:
            return seeded(batches.seed, self._device)
        return nullcontext()

    def optimiser_after(
        self, optim: Optim, moments: Moments | None = None, steps: NDArray[np.int64] | None = None
    ) -> TorchOptimiser:
        """Return an optimiser of this model that continues from moments after `steps` steps, or without moments."""
        return TorchOptimiser(optim, self.trained, moments, steps, decayed=self.decayed)

    def _optimiser_for(self, optim: Optim) -> TorchOptimiser:
        own = self.optimiser
        if own is not None and own.optim == optim:
            return own
        if own is not None and optim.continues(own.optim):
            self.optimiser = self.optimiser_after(optim, own.moments, own.steps)
        else:
            self.optimiser = self.optimiser_after(optim)
        return self.optimiser

    def _trained(self, part: Part) -> list[bool]:
        """Return which parameters a fit of `part` changes."""
        fixed = held(self._anatomy.head)
        if part == "all":
            return [id(p) not in fixed for p in self.trained] if fixed else [True] * len(self.trained)
        head = self._of_head()
        return [(id(p) in head) == (part == "head") and id(p) not in fixed for p in self.trained]

    def _of_head(self) -> set[int]:
        """Return the weight and the bias of the last layer, by identity."""
        require(self.spec, "head-rows")
        head = self._linear_head()
        return {id(head.weight), id(head.bias)}

    def _linear_head(self) -> nn.Linear:
        if self._anatomy.head is None:
            raise lacks(self.spec, "head-rows")
        return self._anatomy.head

    def _tensors(self) -> dict[str, Tensor]:
        """Return all parameters and buffers of the net."""
        buffers = self._net.named_buffers() if self._has_buffers else ()
        return {**self._named, **{f"net.{name}": tensor for name, tensor in buffers}}

    def _arrays(self, optimiser: TorchOptimiser | None, forms: Forms) -> dict[str, NDArray[Any]]:
        """Return the net's arrays, with the moments of an optimiser and the state of forms."""
        tensors = self._tensors()
        return {
            **dict(zip(tensors, self._views.of([*tensors.values()]), strict=True)),
            **(optimiser.arrays() if optimiser else {}),
            **forms.arrays(),
        }


def _check_types(net: nn.Module, name: str) -> None:
    for layer, parameter in net.named_parameters():
        if parameter.dtype != torch.float32:
            raise ModelError(f"model {name!r}: {layer} is {parameter.dtype}, expected torch.float32: use net.float()")


def _check_finite(net: nn.Module, name: str) -> None:
    """Raise ModelError if a parameter is not finite, or a buffer has NaN or Inf.  A mask may have -Inf."""
    with torch.no_grad():
        for tensor, parameter in net.named_parameters():
            if _has_numbers(parameter) and not _is_finite(parameter):
                raise ModelError(f"model {name!r}: {tensor} has NaN or Inf: load sound weights, or train it again")
        for tensor, buffer in net.named_buffers():
            if _has_numbers(buffer) and not buffer.max().item() < math.inf:
                raise ModelError(f"model {name!r}: {tensor} has NaN or Inf: load sound weights, or train it again")


def _has_numbers(tensor: Tensor) -> bool:
    """Whether a tensor has floating-point numbers to check, and data at all."""
    if tensor.is_meta or tensor.layout != torch.strided:
        return False
    return tensor.dtype in _FLOATING and tensor.numel() > 0


def _is_finite(parameter: Tensor) -> bool:
    return math.isfinite(parameter.sum().item()) or bool(torch.isfinite(parameter).all())  # a sum may overflow


def _layout(net: nn.Module) -> bytes:
    return layout_digest((name, tuple(p.shape)) for name, p in net.named_parameters() if p.requires_grad)


def _capabilities(net: nn.Module, anatomy: Anatomy, *, trains: bool) -> frozenset[str]:
    has = {
        "predict": True,
        "logit-gradients": trains,
        "weights": trains,
        "features": anatomy.tap is not None,
        "head-rows": anatomy.head is not None and anatomy.head.bias is not None,
        "head-weights": anatomy.head is not None,
        "cosine-head": isinstance(anatomy.head, TorchCosineHead),
        "width": trains and last_switch(net) is not None,
        "guidance-gradients": trains,
    }
    return frozenset(capability for capability, given in has.items() if given)


def _inert_terms(anatomy: Anatomy, parameters: Sequence[nn.Parameter]) -> frozenset[str]:
    """Return the terms on features if only the head is trained; they have no effect."""
    if anatomy.tap is None or anatomy.head is None or not parameters:
        return frozenset()
    head = set(map(id, anatomy.head.parameters()))
    return names_on("features") if all(id(parameter) in head for parameter in parameters) else frozenset()
