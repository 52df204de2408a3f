"""Samples of several lengths: series end in steps of 0 in every sensor, texts in the id 0, and both are padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import given_array


def steps_there(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which steps are no padding: series (n, t, d) or ids (n, t) -> (n, t)."""
    filled = x != 0 if x.ndim == 2 else (x != 0).any(axis=2)
    found: NDArray[np.bool_] = np.logical_or.accumulate(filled[:, ::-1], axis=1)[:, ::-1]
    return found


def check_filled(x: NDArray[Any], where: str, parts: str) -> None:
    """Raise UsageError for a sample that is nothing but padding; parts: tokens or steps."""
    empty = ~steps_there(x).any(axis=1)
    if empty.any():
        row = int(empty.argmax())
        raise UsageError(f"{where}: sample {row} has no {parts}, all of it is 0: leave it and its label out")


def padded(rows: Sequence[Any], where: str, parts: str) -> NDArray[Any]:
    """Return samples (t,) or (t, d), each with its own t, as one array: (n, longest) or (n, longest, d).

    Raises UsageError for a sample without steps, with another number of sensors, or whose end would be padding.
    """
    arrays = [given_array(each, f"{where}: sample {row}") for row, each in enumerate(rows)]
    for row, each in enumerate(arrays):
        if not 1 <= each.ndim <= 2 or each.shape[1:] != arrays[0].shape[1:]:
            raise UsageError(f"{where}: sample {row} has the shape {each.shape}, but sample 0 has {arrays[0].shape}")
    lengths = [len(each) for each in arrays]
    out = np.zeros((len(arrays), max(lengths), *arrays[0].shape[1:]), np.result_type(*arrays))
    for row, each in enumerate(arrays):
        out[row, : len(each)] = each
    return cut(out, lengths, where, parts)


def cut(x: NDArray[Any], lengths: ArrayLike, where: str, parts: str) -> NDArray[Any]:
    """Return samples (n, t) or (n, t, d) with 0 behind their lengths (n,).

    Raises UsageError for a length that is no whole number from 1 to t, and for a shorter sample whose 0 would be taken
    for padding.
    """
    found = given_array(lengths, f"{where}: lengths")
    if x.ndim not in (2, 3) or found.shape != (len(x),) or found.dtype.kind not in "iu":
        raise UsageError(
            f"{where}: lengths: expected a whole number for each of {len(x)} samples, found {found.dtype} {found.shape}"
        )
    steps = x.shape[1]
    wrong = (found < 1) | (found > steps)
    if wrong.any():
        row = int(wrong.argmax())
        if found[row] == 0:
            raise UsageError(f"{where}: sample {row} has no {parts}: leave it and its label out")
        raise UsageError(f"{where}: sample {row} has the length {found[row]}: expected 1 to {steps}, the {parts} of x")
    beyond = np.arange(steps) >= found[:, None]  # (n, t)
    out: NDArray[Any] = np.where(beyond if x.ndim == 2 else beyond[:, :, None], x.dtype.type(0), x)
    shorter = found < steps
    if parts == "tokens":
        if (lost := ((out == 0) & ~beyond).any(axis=1) & shorter).any():
            raise UsageError(
                f"{where}: sample {int(lost.argmax())} has the id 0, which pads shorter texts: count ids from 1, in a "
                "vocabulary larger by 1"
            )
    elif (lost := steps_there(out).sum(axis=1) != found).any():
        raise UsageError(
            f"{where}: sample {int(lost.argmax())} ends in a step of 0 in every sensor, which pads shorter series: "
            "leave the step out, or add a sensor that is always 1"
        )
    return out
