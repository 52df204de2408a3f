"""A coordinator method whose uploads are added up in Ray tasks, as partial aggregates that are merged at the end.

Uploads reach the coordinator as always, through codec, checks and ledger; only the adding is done elsewhere.  Merging
is exact by the contract of methods, so any split of the uploads gives the same bits.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import ray
from ray.exceptions import RayError

from coordinator.methods.base import At, Contribution, CoordinatorMethod
from edge_sdk.errors import RunFailed
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.leaves import one_line
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.wires import Contract, load_registered
from edge_sim.remote_messages import to_pickle

TOGETHER = 16
"""Uploads in one partial aggregate: enough to be worth a task, and a limit to what waits for one."""

FOLD_CPUS = 0.1
"""CPUs that a task reserves: the actors of ray_actor_pool.py leave them, and are idle while uploads are added up."""


@dataclass(frozen=True, slots=True, eq=False)
class PartialAggregates:
    """An aggregate as a list of parts."""

    sums: tuple[Any, ...] = ()
    """References to pickled partial aggregates on Ray."""
    waiting: tuple[Contribution, ...] = ()
    """Uploads that belong to no part yet, fewer than TOGETHER."""


class RayFoldedMethod:
    """A CoordinatorMethod around another one; its aggregates are PartialAggregates."""

    def __init__(self, name: str, method: CoordinatorMethod[Any, Any]) -> None:
        """name: under which the method is registered, on the cluster as here."""
        self._name, self._method = name, method
        self._fold = ray.remote(fold).options(num_cpus=FOLD_CPUS)

    @property
    def contract(self) -> Contract[Any]:
        """Implement CoordinatorMethod."""
        return self._method.contract

    def init(self, spec: FederationSpec) -> Any:
        """Implement CoordinatorMethod."""
        return self._method.init(spec)

    def common(self, state: Any, at: At) -> Mapping[str, Payload]:
        """Implement CoordinatorMethod."""
        return self._method.common(state, at)

    def personal(self, state: Any, at: At, number: int) -> Mapping[str, Payload]:
        """Implement CoordinatorMethod."""
        return self._method.personal(state, at, number)

    def zero(self) -> PartialAggregates:
        """Implement CoordinatorMethod."""
        return PartialAggregates()

    def add(self, aggregate: PartialAggregates, contribution: Contribution) -> PartialAggregates:
        """Implement CoordinatorMethod."""
        return self.merge(aggregate, PartialAggregates(waiting=(contribution,)))

    def merge(self, a: PartialAggregates, b: PartialAggregates) -> PartialAggregates:
        """Implement CoordinatorMethod: join the parts of both; where enough uploads wait, a task adds them up."""
        sums, waiting = a.sums + b.sums, a.waiting + b.waiting
        if len(waiting) < TOGETHER:
            return PartialAggregates(sums, waiting)
        return PartialAggregates((*sums, self._fold.remote(self._name, to_pickle(waiting))))

    def finish(self, spec: FederationSpec, state: Any, at: At, aggregate: PartialAggregates) -> Any:
        """Implement CoordinatorMethod.  Raises RunFailed where Ray has lost a part for good."""
        try:
            packed: list[bytes] = ray.get(list(aggregate.sums))
        except RayError as error:
            raise RunFailed(f"Ray: {one_line(str(error))}; when that is mended, go on with --resume") from error
        parts = [pickle.loads(each) for each in packed]  # noqa: S301  # packed by our own tasks
        rest = reduce(self._method.add, aggregate.waiting, self._method.zero())
        return self._method.finish(spec, state, at, reduce(self._method.merge, parts, rest))


def fold(name: str, waiting: bytes) -> bytes:
    """Return the partial aggregate of pickled contributions, pickled."""
    method: CoordinatorMethod[Any, Any] = load_registered("coordinator.methods", name)
    contributions: Sequence[Contribution] = pickle.loads(waiting)  # noqa: S301  # packed by the coordinator
    return to_pickle(reduce(method.add, contributions, method.zero()))
