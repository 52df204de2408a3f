"""Two models of a device that predict as one: the last layer of its own model reads features of both (FedMRL)."""

from __future__ import annotations

from dataclasses import astuple
from typing import Protocol, cast

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.errors import Unsupported
from edge_sdk.models.base import Model, ModelSpec, Served, pack_arrays, serving_copy, unpack_arrays
from edge_sdk.objectives import spliced

_PREFIX = b"\xff\xff\xff\xffspliced"
"""Of a state of both models, which the state of one model never has (edge_sdk.models.base.pack_arrays)."""

UNKNOWN: Floats = np.empty((0, 0), np.float32)


def splice_fault(own: ModelSpec, proxy: ModelSpec) -> str:
    """Return why the features of two models cannot be spliced, in words that follow a name, or empty if they can."""
    if proxy.feature_dim > own.feature_dim:
        return (
            f"the proxy {proxy.name} has {proxy.feature_dim} features, the device's own model {own.name} only "
            f"{own.feature_dim}: give the proxy as many or fewer"
        )
    if astuple(proxy.preprocess) != astuple(own.preprocess):
        return (
            f"the proxy {proxy.name} and the device's own model {own.name} preprocess samples differently, and predict "
            "together: give both the same preprocess"
        )
    return ""


def is_spliced(state: bytes) -> bool:
    """Return whether a state is one of both models with their rows."""
    return state.startswith(_PREFIX)


class Spliced:
    """The own model with its last layer on rows (g(x), f(x), 1): features g of the proxy and f of the own model."""

    def __init__(self, own: Model, proxy: Model, rows: Floats = UNKNOWN) -> None:
        """rows: (d, d_proxy + d + 1), the bias as last column; unknown until a state is loaded."""
        self.own, self.proxy, self.rows = own, proxy, rows

    def logits(self, x: Floats) -> Floats:
        """Return the logits before softmax, as in inference: (n, c, h, w) -> (n, k)."""
        return self.own.head(spliced(self.rows, self.proxy.features(x), self.own.features(x)))

    def state_bytes(self) -> bytes:
        """Return the rows, and the state of both models."""
        return _joined(pack_arrays({"rows": self.rows}), self.own.state_bytes(), self.proxy.state_bytes())

    def load_state(self, state: bytes) -> None:
        """Restore both models and the rows to what state_bytes gave.  Raises StoreError if it does not fit."""
        rows, of_own, of_proxy = _parted(state)
        self.own.load_state(of_own)
        self.proxy.load_state(of_proxy)
        self.rows = unpack_arrays(rows)["rows"]

    def serving_copy(self) -> Summed:
        """Return a copy for predictions, in which each model has a last layer that is this one times its rows."""
        layer, at = self.own.head_rows(), self.proxy.spec.feature_dim
        both = layer[:, :-1] @ self.rows  # (k, d_proxy + d + 1)
        both[:, -1] += layer[:, -1]
        without_bias = np.hstack([both[:, :at], np.zeros_like(both[:, :1])])
        return Summed(_with_last_layer(self.own, both[:, at:]), _with_last_layer(self.proxy, without_bias))


class Summed:
    """A model whose logits are the sum of two models'; after the state of one model, that model alone."""

    def __init__(self, own: Served, proxy: Served, *, both: bool = True) -> None:
        self._own, self._proxy, self._both = own, proxy, both

    def logits(self, x: Floats) -> Floats:
        """Return the logits before softmax: (n, c, h, w) -> (n, k)."""
        own = self._own.logits(x)
        return own + self._proxy.logits(x) if self._both else own

    def serving_copy(self) -> Summed:
        """Return another copy."""
        return Summed(serving_copy(self._own), serving_copy(self._proxy), both=self._both)

    def state_bytes(self) -> bytes:
        """Return the state of both models, or that of the one alone."""
        own = self._own.state_bytes()
        return _joined(own, self._proxy.state_bytes()) if self._both else own

    def load_state(self, state: bytes) -> None:
        """Restore what state_bytes gave, or one model.  Raises StoreError if it does not fit."""
        self._both = is_spliced(state)
        if not self._both:
            self._own.load_state(state)
            return
        for model, each in zip((self._own, self._proxy), _parted(state), strict=True):
            model.load_state(each)

    def onnx_bytes(self, x: Floats) -> bytes:
        """Return both models as one .onnx file.  Raises Unsupported for models that are not both torch nets."""
        if not hasattr(self._own, "onnx_bytes_of_sum") or type(self._own) is not type(self._proxy):
            raise Unsupported("only two torch nets can be exported as the one model that they are together")
        own = cast("_Summable", self._own)
        return own.onnx_bytes_of_sum(self._proxy if self._both else None, x)


class _Summable(Protocol):
    def onnx_bytes_of_sum(self, other: object, x: Floats) -> bytes: ...


def _with_last_layer(model: Model, rows: Floats) -> Served:
    """Return a copy of a model with another last layer (k, d + 1); the model stays as it is, its moments included."""
    before = model.state_bytes()
    model.set_head_rows(np.arange(len(rows)), rows)
    try:
        return serving_copy(model)
    finally:
        model.load_state(before)


def _joined(*states: bytes) -> bytes:
    return _PREFIX + b"".join(len(each).to_bytes(8, "little") + each for each in states)


def _parted(state: bytes) -> list[bytes]:
    found, at = [], len(_PREFIX)
    while at < len(state):
        end = at + 8 + int.from_bytes(state[at : at + 8], "little")
        found.append(state[at + 8 : end])
        at = end
    return found
