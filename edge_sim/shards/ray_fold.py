"""A coordinator method whose uploads are added up in Ray tasks, as partial aggregates merged at the end.

Uploads reach the coordinator as always, through codec, checks and ledger; only the adding is done elsewhere.  Merging
is exact by the contract of methods, so any split of the uploads gives the same bits.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import ray
from ray.exceptions import RayError

from edge_sdk.errors import RunFailed
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.messages import FederationSpec, Scalar
from edge_sdk.reductions import Contribution
from edge_sim.shards.ray_shard import to_pickle

TOGETHER = 16
"""Uploads in one partial aggregate: enough to be worth a task, but bounded in memory."""

FOLD_CPUS = 0.1
"""CPUs that a task reserves: the actors of ray_shard.py leave this share free; they are idle while uploads are added
up."""


@dataclass(frozen=True, slots=True, eq=False)
class PartialAggregates:
    """An aggregate as a list of parts."""

    sums: tuple[Any, ...] = ()
    """References to pickled partial aggregates on Ray."""
    waiting: tuple[Contribution, ...] = ()
    """Uploads that are not in a part yet; fewer than TOGETHER."""


class RayFoldedMethod:
    """A method around another one; its aggregates are PartialAggregates."""

    def __init__(self, method: Method[Any]) -> None:
        """method: registered on the cluster, too."""
        self._method = method
        self.registered = method.registered
        self.combining = method.combining
        self._fold = ray.remote(fold).options(num_cpus=FOLD_CPUS)

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the method."""
        return getattr(self._method, name)

    def zero(self) -> PartialAggregates:
        """Implement CoordinatorMethod."""
        return PartialAggregates()

    def add(self, aggregate: PartialAggregates, contribution: Contribution) -> PartialAggregates:
        """Implement CoordinatorMethod."""
        return self.merge(aggregate, PartialAggregates(waiting=(contribution,)))

    def merge(self, a: PartialAggregates, b: PartialAggregates) -> PartialAggregates:
        """Implement CoordinatorMethod: join the parts of both; once enough uploads wait, a task adds them up."""
        sums, waiting = a.sums + b.sums, a.waiting + b.waiting
        if len(waiting) < TOGETHER:
            return PartialAggregates(sums, waiting)
        return PartialAggregates((*sums, self._fold.remote(self._method.name, self._method.table, to_pickle(waiting))))

    def finish(self, spec: FederationSpec, state: Any, at: ExchangeId, aggregate: PartialAggregates) -> Any:
        """Finish the exchange.  Raises RunFailed if Ray has lost a part."""
        return self._method.finish(spec, state, at, self._whole(aggregate))

    def instruments(
        self, spec: FederationSpec, before: Any, after: Any, at: ExchangeId, aggregate: PartialAggregates
    ) -> Mapping[str, float]:
        """Read the method's instruments.  Raises RunFailed as `finish` does."""
        return self._method.instruments(spec, before, after, at, self._whole(aggregate))

    def _whole(self, aggregate: PartialAggregates) -> Any:
        """Return the method's aggregate of all parts."""
        try:
            packed: list[bytes] = ray.get(list(aggregate.sums))
        except RayError as error:
            raise RunFailed(f"Ray: {one_line(str(error))}; when that is repaired, continue with --resume") from error
        parts = [pickle.loads(each) for each in packed]  # noqa: S301  # pickled by our own tasks
        self._method.registered, self._method.combining = self.registered, self.combining
        rest = reduce(self._method.add, aggregate.waiting, self._method.zero())
        return reduce(self._method.merge, parts, rest)


def fold_on_ray(method: Method[Any]) -> Method[Any]:
    """Return the method, with its uploads added up in Ray tasks."""
    return cast("Method[Any]", RayFoldedMethod(method))


def fold(name: str, params: Mapping[str, Scalar], waiting: bytes) -> bytes:
    """Return the partial aggregate of pickled contributions, pickled; params: those of the method with this name."""
    method = load_method(name).under(params)
    contributions: Sequence[Contribution] = pickle.loads(waiting)  # noqa: S301  # pickled by the coordinator
    return to_pickle(reduce(method.add, contributions, method.zero()))
