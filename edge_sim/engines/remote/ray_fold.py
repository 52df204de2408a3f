"""A method whose uploads are added up in Ray tasks: partial aggregates, which its merge law makes one of.

Uploads come to the coordinator as ever, through codec, checks and ledger; only the adding is done elsewhere.  By the
law any split of the uploads leads to the same bits.
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
from edge_sim.engines.remote.messages import to_pickle

TOGETHER = 16
"""Uploads in one partial aggregate: enough to be worth a task, few enough to bound what waits for one."""

FOLD_CPUS = 0.1
"""What the actors of ray_actor_pool.py leave of each CPU: they do nothing while uploads are added up."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """An aggregate, in parts."""

    sums: tuple[Any, ...] = ()
    """References to packed partial aggregates on Ray."""
    waiting: tuple[Contribution, ...] = ()
    """Those of no part yet, fewer than TOGETHER."""


class Folding:
    """Any coordinator method; its aggregates are Parts."""

    def __init__(self, name: str, method: CoordinatorMethod[Any, Any]) -> None:
        """name: under which it is registered, there as here."""
        self._name, self._method = name, method
        self._fold = ray.remote(fold).options(num_cpus=FOLD_CPUS)

    @property
    def contract(self) -> Contract[Any]:
        """See CoordinatorMethod."""
        return self._method.contract

    def init(self, spec: FederationSpec) -> Any:
        """See CoordinatorMethod."""
        return self._method.init(spec)

    def common(self, state: Any, at: At) -> Mapping[str, Payload]:
        """See CoordinatorMethod."""
        return self._method.common(state, at)

    def personal(self, state: Any, at: At, number: int) -> Mapping[str, Payload]:
        """See CoordinatorMethod."""
        return self._method.personal(state, at, number)

    def zero(self) -> Parts:
        """No uploads."""
        return Parts()

    def add(self, aggregate: Parts, contribution: Contribution) -> Parts:
        """One more."""
        return self.merge(aggregate, Parts(waiting=(contribution,)))

    def merge(self, a: Parts, b: Parts) -> Parts:
        """All parts of both; where enough wait, they become one."""
        sums, waiting = a.sums + b.sums, a.waiting + b.waiting
        if len(waiting) < TOGETHER:
            return Parts(sums, waiting)
        return Parts((*sums, self._fold.remote(self._name, to_pickle(waiting))))

    def finish(self, spec: FederationSpec, state: Any, at: At, aggregate: Parts) -> Any:
        """See CoordinatorMethod.  Raises RunFailed where Ray has lost a part for good."""
        try:
            packed: list[bytes] = ray.get(list(aggregate.sums))
        except RayError as error:
            raise RunFailed(f"Ray: {one_line(str(error))}; when that is mended, go on with --resume") from error
        parts = [pickle.loads(each) for each in packed]  # noqa: S301  # packed by our own tasks
        rest = reduce(self._method.add, aggregate.waiting, self._method.zero())
        return self._method.finish(spec, state, at, reduce(self._method.merge, parts, rest))


def fold(name: str, waiting: bytes) -> bytes:
    """The partial aggregate of packed contributions, packed."""
    method: CoordinatorMethod[Any, Any] = load_registered("coordinator.methods", name)
    contributions: Sequence[Contribution] = pickle.loads(waiting)  # noqa: S301  # packed by the coordinator
    return to_pickle(reduce(method.add, contributions, method.zero()))
