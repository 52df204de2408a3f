"""FedGKD: FedAvg, with the mean of the last averaged models as teacher on the device's own samples.

Yao et al., "FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge Distillation", IEEE Transactions on
Computers 2024 (arXiv:2107.00051), Algorithm 1.

    train     CE(y, f(x)) + (gamma / 2) T^2 KL(teacher || f)      equation 6, on the device's own samples
    reduce    w^{t+1} as in FedAvg; the teacher is the plain mean of the last M of them

The teacher has the same architecture: its weights replace the device's for one pass over the round's batches, which
saves a second model in memory.  Before the first mean there is no teacher, and the term is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from edge_sdk.arrays import Floats
from edge_sdk.methods.contract.averaging import DISCLOSES, DOWN, UP, Averaging, over_slots, write_weights
from edge_sdk.methods.contract.base import Down, Exchange, OnDevice, Slot, Stage
from edge_sdk.methods.contract.description import Range, SlotAge, Start, Weighting
from edge_sdk.methods.contract.requests import Logits
from edge_sdk.objectives import CrossEntropy, Distill
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Count, wire
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import Change, SlotSum, mean_in_order


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedGKD; the defaults are the paper's."""

    gamma: Annotated[float, Range(0, 1000, paper="0.2")] = 0.2
    """gamma: (gamma / 2) T^2 KL(teacher || student) is added to the loss.  0 gives FedAvg."""
    temperature: Annotated[float, Range(0.01, 100, paper="1")] = 1.0
    """T, the temperature of both softmaxes."""
    buffer: Annotated[int, Range(1, 100, paper="5")] = 5
    """M: the number of averaged models in the teacher's mean, the present one included; with 1 the newest is the
    teacher."""
    weighting: Weighting = "samples"
    """The mean over devices: by their `samples` or `uniform`."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's model, with `equal` from equal weights."""
    cached: bool = False
    """Whether the result is the mean over the newest uploads of all devices ever seen: FedKF's technique T1."""
    max_slot_age: SlotAge = 0
    """With `cached`: rounds after which the upload of an absent device no longer counts; 0 keeps it."""


@wire("fedgkd-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The last M means, with the newest one last."""

    models: tuple[Weights, ...] = ()
    rounds: Count
    slots: SlotSum | None = None
    """The running sum over all slots, or None unless the result is the mean over all slots."""


class FedGKD(Averaging[Params]):
    """FedAvg with a teacher: the mean of the last averaged models."""

    name = "fedgkd"
    title = "FedGKD: FedAvg, held to what the last averaged models predict"
    citation = "Yao et al. 2024, IEEE Trans. Computers, arXiv:2107.00051"
    exchanges = (Exchange(down={**DOWN, "teacher": Slot(Weights, optional=True)}, up=UP),)
    terms = frozenset({"cross-entropy", "distill"})
    discloses = DISCLOSES

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train on equation 6; if no teacher was received, the mean itself is the teacher."""
        params = self.params
        if "weights" not in device.down or params.gamma == 0:
            yield from device.fit((CrossEntropy(),))
            return
        yield from write_weights(device, "teacher")
        logits: Floats = yield Logits(device.batches)  # (steps, b, k)
        if "teacher" in device.down:
            yield from write_weights(device)
        weight = params.gamma / 2 * params.temperature**2
        yield from device.fit((CrossEntropy(), Distill(logits=logits, temperature=params.temperature, weight=weight)))

    def begin(self, spec: FederationSpec) -> State:
        """Start without weights: devices begin with their own."""
        return State(rounds=spec.rounds)

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send the newest mean and the teacher, or one of them if they are equal; at the end send the result alone."""
        newest = state.models[-1] if state.models else None
        if newest is None or at.round == state.rounds:
            return {"weights": over_slots(state.slots, newest)}
        if len(state.models) == 1:
            return {"weights": newest}
        teacher = mean_in_order(each.values for each in state.models)
        return {"weights": newest, "teacher": Weights(values=teacher, layout=newest.layout)}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Change) -> State:
        """Compute the mean, and drop the oldest mean."""
        newest = self.mean(uploads.now, state.models[-1] if state.models else None)
        slots = self.slots_after(state.slots, at, uploads, newest.layout)
        return State(models=(*state.models, newest)[-self.params.buffer :], rounds=state.rounds, slots=slots)
