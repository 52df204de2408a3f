"""The declared kind of samples: pictures, vectors, series or tokens, as they lie in memory and as a net is given them.

In memory all samples are u1 or f4, so that stores, public sets and the wire need not know the kind: series are
(n, t, d), and the ids of tokens are whole numbers in f4, (n, t), which holds them exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edge_sdk.arrays import Floats
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import CHANNELS_LAST, PictureLayout, channels_last, check_numbers, given_array, raw_values

RAGGED = "ragged-series"
"""Series of several lengths: steps that are 0 in every sensor, at the end, are padding."""
SERIES = ("series", RAGGED)
OF_LENGTHS = (RAGGED, "tokens")
"""Kinds whose samples may have several lengths, with 0 behind the shorter ones."""
KINDS: Mapping[str, str] = {
    "picture": "(n, h, w), (n, h, w, c) or (n, c, h, w)",
    "vector": "(n, d)",
    "series": "(n, t, d) or (n, t)",
    RAGGED: "(n, t, d), (n, t) or a list of (t, d), which end in steps of 0",
    "tokens": "(n, t)",
}
"""The kinds, each with the shape of samples."""
AXES: Mapping[str, int] = {"picture": 3, "vector": 1, "series": 2, RAGGED: 2, "tokens": 1}
"""The axes of a sample as a net is given it: (c, h, w), (d,), (t, d) and (t,)."""
BY_LAST_AXIS = ("vector", *SERIES)
"""Kinds whose columns or sensors, the last axis, have a mean and a deviation each."""
MOST_VOCABULARY = 2**24
"""f4 holds all whole numbers up to this one."""


@dataclass(frozen=True, slots=True)
class SampleKind:
    """A declared kind."""

    name: str
    vocabulary: int = 0
    """The ids of tokens are 0..vocabulary-1; 0 for other kinds."""

    def __str__(self) -> str:
        return f"{self.name} with a vocabulary of {self.vocabulary}" if self.vocabulary else self.name

    @property
    def remedy(self) -> str:
        """The arguments that declare this kind."""
        return f'kind="{self.name}"' + (f", vocabulary={self.vocabulary}" if self.vocabulary else "")

    def held(self, x: NDArray[Any], layout: PictureLayout | None, where: str) -> tuple[NDArray[Any], str]:
        """Return samples as they lie in memory, u1 or f4, and a line on their layout, as `channels_last` does.

        Raises UsageError for another shape, and for an id that the vocabulary does not have.
        """
        if not len(x):  # of a store that is still empty
            return x, ""
        if self.name == "tokens":
            return self._tokens(x, where), ""
        check_numbers(x, where)
        if x.dtype.kind in "iu" and x.dtype != np.uint8:  # as declared, these are measurements or grey levels
            is_bytes = self.name == "picture" and x.size and 0 <= x.min() <= x.max() <= 255
            x = x.astype(np.uint8 if is_bytes else np.float32)
        x = raw_values(x, where)
        if self.name in SERIES and x.ndim == 2:
            x = x[:, :, None]
        axes = {"picture": (3, 4), "vector": (2,)}.get(self.name, (3,))
        if x.ndim not in axes:
            raise self._unfit(x, where)
        return channels_last(x, layout, where) if self.name == "picture" else (x, "")

    def given(self, x: Any, where: str, lengths: Any = None) -> NDArray[Any]:
        """Return samples as an array; texts of several lengths are padded with the id 0, series with steps of 0.

        lengths: of padded samples (n,), or None.  Raises UsageError for lengths of another kind or beyond the samples,
        and where what is there would be taken for padding.
        """
        parts = self.parts
        if lengths is not None:
            if not parts:
                raise UsageError(f'{where}: lengths have no effect on kind = "{self.name}"')
            x = cut_to_lengths(given_array(x, where), lengths, where, parts)
            lengths = np.ravel(lengths)
        elif parts and isinstance(x, Sequence) and len(x) and not isinstance(x[0], str):
            lengths = [len(each) if hasattr(each, "__len__") else 1 for each in x]
            x = padded(x, where, parts) if parts == "tokens" or min(lengths) < max(lengths) else given_array(x, where)
        else:
            return given_array(x, where)
        if self.name == "series" and min(lengths) < np.shape(x)[1]:
            row = int(np.argmin(lengths))
            raise UsageError(
                f"{where}: sample {row} has {lengths[row]} steps, others have {np.shape(x)[1]}: declare "
                'kind="ragged-series", here and in Preprocess'
            )
        return np.asarray(x)

    @property
    def parts(self) -> str:
        """What a sample with a length consists of, tokens or steps; empty for pictures and vectors."""
        return "" if self.name in ("picture", "vector") else "tokens" if self.name == "tokens" else "steps"

    def check_filled(self, x: NDArray[Any], where: str) -> None:
        """Raise UsageError for a sample that is nothing but padding."""
        if self.name in OF_LENGTHS and x.ndim in (2, 3):
            check_filled(x, where, self.parts)

    def _tokens(self, x: NDArray[Any], where: str) -> Floats:
        if x.dtype.kind in "UST" or (x.dtype.kind == "O" and x.size and isinstance(x.flat[0], str)):
            raise UsageError(
                f"{where}: found texts, expected the ids of their tokens: write edge_sdk.hashed_words(texts, "
                f"vocabulary={self.vocabulary}, length=64), or use a tokenizer of your own"
            )
        check_numbers(x, where)
        if x.ndim != 2:
            raise self._unfit(x, where)
        wrong = ~((x >= 0) & (x < self.vocabulary))  # NaN is wrong, too
        if x.dtype.kind == "f":
            wrong |= x != np.rint(x)
        if wrong.any():
            row, place = np.argwhere(wrong)[0]
            raise UsageError(
                f"{where}: sample {row} has the id {x[row, place]} at place {place}: a vocabulary of {self.vocabulary} "
                f"has the ids 0..{self.vocabulary - 1}"
            )
        return x.astype(np.float32)

    def _unfit(self, x: NDArray[Any], where: str) -> UsageError:
        return UsageError(f'{where}: kind "{self.name}": expected samples {KINDS[self.name]}, found {x.shape}')


def declared_kind(kind: object, vocabulary: object, where: str) -> SampleKind | None:
    """Return the declared kind, or None without a declaration.

    Raises UsageError for an unknown kind, and for a vocabulary without a kind.
    """
    if kind is None:
        if vocabulary is not None:
            raise UsageError(f'{where}: vocabulary has no effect without kind = "tokens"')
        return None
    if kind not in KINDS:
        raise UsageError(f"{where}: kind {kind!r}: expected {', '.join(KINDS)}")
    if kind != "tokens":
        if vocabulary is not None:
            raise UsageError(f'{where}: vocabulary has no effect on kind = "{kind}"')
        return SampleKind(str(kind))
    whole = vocabulary if isinstance(vocabulary, int | np.integer) and not isinstance(vocabulary, bool) else 0
    if not 2 <= whole <= MOST_VOCABULARY:
        raise UsageError(
            f'{where}: kind = "tokens" needs vocabulary, how many ids there are, a whole number from 2 to '
            f"{MOST_VOCABULARY}; found {vocabulary!r}"
        )
    return SampleKind("tokens", int(whole))


def arguments(kind: SampleKind | None) -> tuple[str | None, int | None]:
    """Return kind and vocabulary as Samples and others take them."""
    return (None, None) if kind is None else (kind.name, kind.vocabulary or None)


def as_held(
    x: NDArray[Any],
    kind: SampleKind | None,
    layout: PictureLayout | None,
    where: str,
    *,
    ambiguous: PictureLayout = CHANNELS_LAST,
) -> tuple[NDArray[Any], str]:
    """Return samples (n, ...) as they lie in memory, and a line on what was taken where nothing is declared."""
    if kind is None:
        return channels_last(raw_values(x, where), layout, where, ambiguous=ambiguous)
    held = kind.held(x, layout, where)
    kind.check_filled(held[0], where)
    return held


def net_shape(kind: SampleKind | None, shape: tuple[int, int, int]) -> tuple[int, ...]:
    """Return the shape of a sample as a net is given it: of a preprocessed one (c, h, w)."""
    return shape[3 - AXES.get(kind.name if kind else "picture", 3) :]


def steps_there(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which steps are not padding: series (n, t, d) or ids (n, t) -> (n, t)."""
    filled = x != 0 if x.ndim == 2 else (x != 0).any(axis=2)
    found: NDArray[np.bool_] = np.logical_or.accumulate(filled[:, ::-1], axis=1)[:, ::-1]
    return found


def lengthened(x: NDArray[Any], steps: int, where: str, parts: str) -> NDArray[Any]:
    """Return series (n, t, d), (n, t) or ids (n, t) with `steps` in place of t: 0 behind shorter ones, less padding.

    Raises UsageError for a sample that is longer without its padding.
    """
    if x.shape[1] > steps:
        own = steps_there(x).sum(axis=1)
        if (longer := own > steps).any():
            row = int(longer.argmax())
            raise UsageError(
                f"{where}: sample {row} has {own[row]} {parts}, {steps} are taken: cut it, or give more "
                "room in the model's input_shape, or in the store's shape=..., dtype=..."
            )
        return x[:, :steps]
    return np.pad(x, ((0, 0), (0, steps - x.shape[1]), (0, 0))[: x.ndim])


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
    return cut_to_lengths(out, lengths, where, parts)


def cut_to_lengths(x: NDArray[Any], lengths: ArrayLike, where: str, parts: str) -> NDArray[Any]:
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
