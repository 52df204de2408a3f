"""What a TorchModel knows of traces: it asks here, and its net is computed eagerly wherever no trace is.

torch_training/torch_traced.py records and runs the traces of all models of this process; this is one model's side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from edge_sdk.arrays import Floats
from edge_sdk.models.torch_nets.torch_arrays import shared
from edge_sdk.models.torch_nets.torch_export import CHUNK
from edge_sdk.models.torch_nets.torch_forms import Forms, Loss
from edge_sdk.models.torch_training.torch_fit import Steps, changes_alone
from edge_sdk.models.torch_training.torch_traced import (
    CHANGES,
    PASSES,
    TRACES,
    Architecture,
    Checked,
    Subject,
    TracedFit,
    objective_key,
    optim_key,
    tensors_in,
    when,
)
from edge_sdk.objectives import Objective

Answers: TypeAlias = Literal["logits", "features", "outputs"]
"""The results that a forward pass is asked for."""


class Tracing:
    """The traces of one net: of its fits, of its forward passes, and of the changes of single steps."""

    def __init__(
        self,
        name: str,
        net: nn.Module,
        *,
        trained: Sequence[Tensor],
        device: torch.device,
        features: str | None,
        input_shape: tuple[int, ...] | None,
    ) -> None:
        """name: of the model.  trained: the net's trainable parameters.  features: the layer that gives them."""
        self._name, self._net, self._trained, self._device = name, net, trained, device
        self._frozen = [p for p in net.parameters() if not p.requires_grad]
        self._has_buffers = next(net.buffers(), None) is not None
        self._architecture, self._checked = Architecture(net, features, input_shape), Checked()

    @property
    def has_hooks(self) -> bool:
        """Whether a layer has hooks now; neither a trace nor a stack of dense layers calls them."""
        return self._architecture.has_hooks

    @property
    def untraced(self) -> frozenset[str]:
        """The reasons why fits were not traced so far; empty if they were traced, or too few to be."""
        return frozenset(self._checked.untraced)

    @property
    def draws(self) -> bool | None:
        """Whether its training passes draw random numbers, or None before the first recording."""
        return self._checked.draws

    @property
    def allowed(self) -> bool:
        """Whether fits and passes may be traced now: on a CPU, without hooks, and unless tracing is off."""
        return self._device.type == "cpu" and when() != "off" and not self.has_hooks

    def fitted(self, steps: Steps, objective: Objective, forms: Forms, *, stochastic: bool) -> list[float] | None:
        """Run the steps of a fit as a trace, and return the loss of each, or None to run them eagerly."""
        fit = self._traceable(steps, objective, forms, stochastic=stochastic)
        return None if fit is None else TRACES.fitted(fit, self._checked)

    def changes(
        self, steps: Steps, objective: Objective, losses: Sequence[Loss], forms: Forms, *, stochastic: bool
    ) -> Sequence[Tensor]:
        """Return the changes that each of the losses alone would make in the first step."""
        x, labels = steps.batch(0)
        compute = partial(changes_alone, steps, losses, labels)
        fit = self._traceable(steps, objective, forms, stochastic=stochastic)
        if fit is None:
            with steps.seeded():
                return compute(x)
        given = [*([] if labels is None else [labels]), *tensors_in(list(losses))]
        key = "changes", fit.key, len(given)
        subject = Subject(self._name, key, self._net, list(self._trained), fit.others, self._checked, given)
        with steps.seeded():
            return CHANGES.answer(subject, compute, x)

    def answer(self, what: Answers, function: Callable[[Tensor], Sequence[Tensor]], x: Tensor) -> Sequence[Tensor]:
        """Return a forward pass's results for samples x (b, ...), in inference mode."""
        if not self.allowed or not x.size(0):
            return function(x)
        return PASSES.answer(self.subject(what), function, x)

    def subject(self, what: Answers) -> Subject:
        """Return what a trace must know of a forward pass."""
        key = self._architecture.key(), what
        return Subject(self._name, key, self._net, list(self._trained), self._others(), self._checked)

    def _traceable(self, steps: Steps, objective: Objective, forms: Forms, *, stochastic: bool) -> TracedFit | None:
        """Describe the fit for tracing, or return None to run it eagerly."""
        if not self.allowed or not forms.traceable(objective):
            return None
        objectives = objective_key(objective)
        if objectives is None or not steps.indices.numel():
            return None
        of_batches = stochastic, steps.labels is None, steps.inputs.shape[1:]
        key = self._architecture.key(), of_batches, tuple(steps.trained), objectives, optim_key(steps.optimiser.optim)
        return TracedFit(key, steps, self._others(), tensors_in(steps.loss))

    def _others(self) -> list[Tensor]:
        """Return the tensors of the net that no fit trains: frozen parameters and buffers."""
        return [*self._frozen, *(self._net.buffers() if self._has_buffers else ())]


def answers_of(models: Sequence[Tracing], what: Answers, x: Floats) -> list[list[Floats]] | None:
    """Return what each model answers to the same samples (n, c, h, w), in one call that holds no interpreter lock.

    The bits are those of the models' own methods.  None: that is not known of all of them, or there are more samples
    than in one pass.
    """
    if len(x) > CHUNK or not all(each.allowed for each in models):
        return None
    found = PASSES.answers([each.subject(what) for each in models], shared(x))
    return None if found is None else [[each.numpy() for each in answers] for answers in found]
