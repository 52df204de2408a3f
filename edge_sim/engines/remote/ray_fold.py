"""A method whose uploads are added up in Ray tasks: partial aggregates, which its merge law makes one of.

Uploads come to the coordinator as ever, through codec, checks and ledger; only the adding is done elsewhere.  By the
law any split of the uploads leads to the same bits.
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
from edge_sdk.methods.base import At, Method
from edge_sdk.methods.registry import load_method
from edge_sdk.protocol.leaves import one_line
from edge_sdk.protocol.messages import FederationSpec, Scalar
from edge_sdk.reductions import Contribution
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
    """In place of a method: its aggregates are Parts."""

    def __init__(self, method: Method[Any]) -> None:
        """method: registered there as here."""
        self._method = method
        self._fold = ray.remote(fold).options(num_cpus=FOLD_CPUS)

    def __getattr__(self, name: str) -> Any:
        """All that this class does not say is the method's own."""
        return getattr(self._method, name)

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
        return Parts((*sums, self._fold.remote(self._method.name, self._method.table, to_pickle(waiting))))

    def finish(self, spec: FederationSpec, state: Any, at: At, aggregate: Parts) -> Any:
        """See Method.  Raises RunFailed where Ray has lost a part for good."""
        try:
            packed: list[bytes] = ray.get(list(aggregate.sums))
        except RayError as error:
            raise RunFailed(f"Ray: {one_line(str(error))}; when that is mended, go on with --resume") from error
        parts = [pickle.loads(each) for each in packed]  # noqa: S301  # packed by our own tasks
        rest = reduce(self._method.add, aggregate.waiting, self._method.zero())
        return self._method.finish(spec, state, at, reduce(self._method.merge, parts, rest))


def folding(method: Method[Any]) -> Method[Any]:
    """The method, with its uploads added up in Ray tasks."""
    return cast("Method[Any]", Folding(method))


def fold(name: str, params: Mapping[str, Scalar], waiting: bytes) -> bytes:
    """The partial aggregate of packed contributions, packed; params: those of the method with this name."""
    method = load_method(name).under(params)
    contributions: Sequence[Contribution] = pickle.loads(waiting)  # noqa: S301  # packed by the coordinator
    return to_pickle(reduce(method.add, contributions, method.zero()))
