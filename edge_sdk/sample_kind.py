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
from edge_sdk.given_arrays import (
    CHANNELS_LAST,
    PictureLayout,
    channels_last,
    check_numbers,
    given_array,
    raw_values,
    sample_at,
)

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
_WHOLE_TO = {"float16": 2**11, "bfloat16": 2**8}
"""Up to which whole number types hold all, where that is less than a vocabulary may have."""
_NO_PADDING = np.float32(1e-30)
"""In place of 0 in the last step of a series that is 0 in every sensor, which would be taken for padding."""
_ENDING, _MANY_ENDINGS = 3, 0.1
"""So many last tokens that are the same, in this share of the texts, look like padding with another id than 0."""


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
        """Return samples as they lie in memory, u1 or f4, and a line if what they are is in doubt.

        Raises UsageError for another shape, and for an id that the vocabulary does not have.
        """
        if not len(x):  # of a store that is still empty
            return x, ""
        if self.name == "tokens":
            ids = self._tokens(x, where)
            return ids, "" if layout is not None else _other_padding(ids, self.vocabulary, where)
        check_numbers(x, where)
        if x.dtype.kind in "iu" and x.dtype != np.uint8:  # as declared, these are measurements or grey levels
            is_bytes = self.name == "picture" and x.size and 0 <= x.min() <= x.max() <= 255
            x = x.astype(np.uint8 if is_bytes else np.float32)
        x = raw_values(x, where)
        if not x[:1].size:
            raise UsageError(f"{where}: samples of shape {x.shape[1:]} are empty")
        if self.name in SERIES and x.ndim == 2:
            x = x[:, :, None]
        axes = {"picture": (3, 4), "vector": (2,)}.get(self.name, (3,))
        if x.ndim not in axes:
            raise self._unfit(x, where)
        if self.name == "picture":
            return channels_last(x, layout, where)
        return x, "" if layout is not None or self.name not in SERIES else _turned(x, where)

    def given(self, x: Any, where: str, lengths: Any = None) -> NDArray[Any]:
        """Return samples as an array; texts of several lengths are padded with the id 0, series with steps of 0.

        lengths: of padded samples (n,), or None.  Raises UsageError for lengths of another kind or beyond the samples,
        and where what is there would be taken for padding.
        """
        parts = self.parts
        if parts and isinstance(x, Mapping):
            keys = {"tokens": ("input_ids", "attention_mask")}.get(parts, ("values", "mask"))
            raise UsageError(
                f'{where}: found a {type(x).__name__}, expected samples: write x=found["{keys[0]}"], with '
                f'lengths=found["{keys[1]}"].sum(1) where they are padded'
            )
        x = [*x] if parts and (_holds_samples(x) or hasattr(x, "__next__")) else x
        if lengths is not None:
            if not parts:
                raise UsageError(f'{where}: lengths have no effect on kind = "{self.name}"')
            x = cut_to_lengths(given_array(x, where), lengths, where, parts)
            lengths = np.ravel(lengths)
        elif parts and isinstance(x, Sequence) and len(x) and not isinstance(x, str) and not isinstance(x[0], str):
            lengths = [len(each) if hasattr(each, "__len__") else 1 for each in x]
            x = padded(x, where, parts) if parts == "tokens" or min(lengths) < max(lengths) else given_array(x, where)
        else:
            return given_array(x, where)
        if self.name == "series" and min(lengths) < np.shape(x)[1]:
            row = int(np.argmin(lengths))
            raise UsageError(
                f"{sample_at(where, row)} has {lengths[row]} steps, others have {np.shape(x)[1]}: declare "
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
        if x.ndim != 2 or not x.shape[1]:
            raise self._unfit(x, where)
        if x.dtype.kind == "b":
            raise UsageError(f"{where}: found True and False, expected ids: of a mask, give its lengths, mask.sum(1)")
        if self.vocabulary > _WHOLE_TO.get(x.dtype.name, MOST_VOCABULARY) + 1:
            raise UsageError(
                f"{where}: found {x.dtype}, which rounds ids above {_WHOLE_TO[x.dtype.name]:,}: give them as they were "
                "before, as whole numbers"
            )
        wrong = ~((x >= 0) & (x < self.vocabulary))  # NaN is wrong, too
        if x.dtype.kind == "f":
            wrong |= x != np.rint(x)
        if wrong.any():
            row, place = np.argwhere(wrong)[0]
            raise UsageError(
                f"{sample_at(where, row)} has the id {x[row, place]:g} at place {place}: a vocabulary of "
                f"{self.vocabulary} has the ids 0..{self.vocabulary - 1}"
            )
        return x.astype(np.float32)

    def _unfit(self, x: NDArray[Any], where: str) -> UsageError:
        return UsageError(f'{where}: kind "{self.name}": expected samples {KINDS[self.name]}, found {x.shape}')


def _holds_samples(x: Any) -> bool:
    """Whether this is a column of pandas or an array whose elements are samples themselves, of several lengths."""
    found = x.to_numpy() if hasattr(x, "to_numpy") else x
    return (
        isinstance(found, np.ndarray)
        and found.dtype.kind == "O"
        and found.ndim == 1
        and bool(len(found))
        and hasattr(found[0], "__len__")
        and not isinstance(found[0], str)
    )


def _other_padding(ids: Floats, vocabulary: int, where: str) -> str:
    """Return a line where many texts (n, t) end in one id other than 0, as if it were padding; else empty."""
    if ids.shape[1] <= _ENDING or vocabulary <= _ENDING:
        return ""
    ends = ids[:, -_ENDING:]
    same = ends[(ends == ends[:, :1]).all(axis=1) & (ends[:, 0] != 0), 0].astype(np.int64)
    if not len(same):
        return ""
    usual = int(np.bincount(same).argmax())
    count = int((same == usual).sum())
    if count < max(2, _MANY_ENDINGS * len(ids)):
        return ""
    return (
        f"{where}: {count} of {len(ids)} texts end in the id {usual} {_ENDING} times and more; if it is padding, "
        f"which is the id 0 here, write lengths=(x != {usual}).sum(1)"
    )


def _turned(x: NDArray[Any], where: str) -> str:
    """Return a line where series (n, t, d) have more sensors than steps, as if axes were exchanged; else empty."""
    steps, sensors = x.shape[1:]
    if sensors <= steps:
        return ""
    return (
        f"{where}: samples of shape ({steps}, {sensors}) are taken as {steps} steps of {sensors} sensors; if these are "
        f"{steps} sensors, write x.transpose(0, 2, 1)"
    )


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
                f"{sample_at(where, row)} has {own[row]} {parts}, {steps} fit: cut it, or give more "
                "room in the model's input_shape, or in the store's shape=..., dtype=..."
            )
        return x[:, :steps]
    return np.pad(x, ((0, 0), (0, steps - x.shape[1]), (0, 0))[: x.ndim])


def check_filled(x: NDArray[Any], where: str, parts: str) -> None:
    """Raise UsageError for a sample that is nothing but padding; parts: tokens or steps."""
    empty = ~steps_there(x).any(axis=1)
    if empty.any():
        row = int(empty.argmax())
        raise UsageError(f"{sample_at(where, row)} has no {parts}, all of it is 0: leave it and its label out")


def padded(rows: Sequence[Any], where: str, parts: str) -> NDArray[Any]:
    """Return samples (t,) or (t, d), each with its own t, as one array: (n, longest) or (n, longest, d).

    Raises UsageError for a sample without steps, or with another number of sensors.
    """
    arrays = [given_array(each, sample_at(where, row)) for row, each in enumerate(rows)]
    if not arrays[0].ndim:
        raise UsageError(f"{where}: found one sample, or numbers alone, expected a list of samples: write [sample]")
    for row, each in enumerate(arrays):
        if not 1 <= each.ndim <= 2 or each.shape[1:] != arrays[0].shape[1:]:
            raise UsageError(f"{sample_at(where, row)} has the shape {each.shape}, but the first has {arrays[0].shape}")
    lengths = [len(each) for each in arrays]
    out = np.zeros((len(arrays), max(lengths), *arrays[0].shape[1:]), np.result_type(*arrays))
    for row, each in enumerate(arrays):
        out[row, : len(each)] = each
    return cut_to_lengths(out, lengths, where, parts)


def cut_to_lengths(x: NDArray[Any], lengths: ArrayLike, where: str, parts: str) -> NDArray[Any]:
    """Return samples (n, t) or (n, t, d) with 0 behind their lengths (n,).

    If all sensors of a series' last step are 0, the step gets a value next to 0, so that it does not count as padding.

    Raises UsageError for a length that is not a whole number from 1 to t, and for a shorter text with the id 0.
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
            raise UsageError(f"{sample_at(where, row)} has no {parts}: leave it and its label out")
        raise UsageError(
            f"{sample_at(where, row)} has the length {found[row]}: expected 1 to {steps}, the {parts} of x"
        )
    beyond = np.arange(steps) >= found[:, None]  # (n, t)
    out: NDArray[Any] = np.where(beyond if x.ndim == 2 else beyond[:, :, None], x.dtype.type(0), x)
    shorter = found < steps
    if parts == "tokens":
        if shorter.any() and (lost := ((out == 0) & ~beyond).any(axis=1)).any():
            raise UsageError(
                f"{sample_at(where, lost.argmax())} has the id 0, which pads shorter texts: count ids from 1, in a "
                "vocabulary larger by 1"
            )
    elif (lost := steps_there(out).sum(axis=1) != found).any():
        check_numbers(out, where)
        out = out.astype(np.float32)
        out[lost, found[lost] - 1] = _NO_PADDING
    return out
