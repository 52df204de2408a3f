"""A device's own data, the preprocessing of raw samples, and the augmentation of training pictures."""

from __future__ import annotations

import logging
import math
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.class_names import class_ids, listed
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import CHANNELS_LAST, PictureLayout, channels_last, given_array
from edge_sdk.sample_kind import (
    BY_LAST_AXIS,
    OF_LENGTHS,
    RAGGED,
    SampleKind,
    as_held,
    declared_kind,
    lengthened,
    steps_there,
)

log = logging.getLogger(__name__)

Raw = NDArray[Any]
"""Samples as they were recorded, u1 or f4: (n, h, w), (n, h, w, c), (n, t, d), or flat, (n, d) and (n, t)."""
_TOGETHER_VALUES = 2**18
"""The maximum count of numbers that are preprocessed together, which bounds the memory of a step."""
_NO_PADDING = 1e-30
"""The value of a step that normalising would make 0 in every sensor: nets take steps of 0 for padding."""
_AUGMENT_STREAM = 11
"""Keeps these random numbers apart from others with the same seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocess:
    """Turns raw samples into a model's input: resizes, chooses channels, scales and normalises.

    Raises UsageError for settings that are out of range, or do not apply to the kind of samples.
    """

    size: tuple[int, int] | None = None
    """Height and width after bilinear resizing, or None to keep the raw size."""
    channels: int | None = None
    """1 or 3, or None to keep the channels.  Grey is repeated for 3 channels, colour is averaged for 1."""
    scale: float = 1.0
    """The factor for the raw values, applied first: 1/255 for bytes.  Not 0."""
    mean: float | tuple[float, ...] = 0.0
    """Subtracted after scaling: one number, or one for each channel, column of a vector, or sensor of a series."""
    std: float | tuple[float, ...] = 1.0
    """The divisor after that, given like `mean`."""
    kind: str | None = field(default=None, repr=False)
    """picture, vector, series, ragged-series or tokens, as of Samples.  A net then receives (b, c, h, w), (b, d),
    (b, t, d), or ids (b, t) as int64.  With None it receives pictures, or flat samples as (b, 1, 1, d)."""
    vocabulary: int | None = field(default=None, repr=False)
    """How many ids of tokens there are."""
    steps: int | None = field(default=None, repr=False)
    """The length to which ragged series and texts are padded with 0; longer ones are refused.  None takes the length of
    the longest sample.  A model with an input_shape sets its own length."""

    def __post_init__(self) -> None:
        self._check_kind()
        scale, mean, std = _finite(self.scale), _finite(self.mean), _finite(self.std)
        if scale is None or scale.ndim or not scale:
            raise UsageError(f"preprocess scale {self.scale!r}: expected a finite number other than 0, as 1 / 255")
        if mean is None:
            raise UsageError(f"preprocess mean {self.mean!r}: expected a finite number, or one for each channel")
        if std is None or not (std > 0).all():
            raise UsageError(f"preprocess std {self.std!r}: expected a finite number above 0, or one for each channel")
        if self.channels is not None and (not is_whole(self.channels) or self.channels not in (1, 3)):
            raise UsageError(f"preprocess channels {self.channels!r}: expected 1 (grey) or 3 (colour)")
        if self.size is not None and not _is_size(self.size):
            raise UsageError(
                f"preprocess size {self.size!r}: expected (height, width), whole numbers of at least 1, as (28, 28)"
            )

    def _check_kind(self) -> None:
        """Raise UsageError for settings that the declared kind does not have."""
        declared = self.declared
        if declared is not None and declared.name != "picture" and (self.size, self.channels) != (None, None):
            raise UsageError(f"preprocess size and channels are of pictures, these are {declared}: leave them out")
        if declared is not None and declared.name == "tokens" and (self.scale, self.mean, self.std) != (1, 0, 1):
            raise UsageError("preprocess scale, mean and std: ids of tokens reach a model as they are: leave them out")
        if self.steps is not None and (not is_whole(self.steps) or self.steps < 1 or self.kind not in OF_LENGTHS):
            raise UsageError(
                f"preprocess steps {self.steps!r}: expected a whole number of at least 1, of {' or '.join(OF_LENGTHS)}"
            )

    @property
    def declared(self) -> SampleKind | None:
        """The declared kind, or None if none is declared."""
        return declared_kind(self.kind, self.vocabulary, "preprocess")

    @property
    def keeps_whole_numbers(self) -> bool:
        """Whether whole numbers stay whole, as the ids of tokens must."""
        shifts = np.append(self.mean, self.scale)
        return self.size is None and bool((np.ravel(self.std) == 1).all() and (shifts % 1 == 0).all())

    def __call__(self, raw: Raw) -> Floats:
        """Preprocess samples (n, h, w), (n, h, w, c) or (n, d) to f4 (n, c, h, w); flat ones become (n, 1, 1, d).

        Series (n, t, d) become (n, 1, t, d), ids of tokens (n, t) become (n, 1, 1, t).  Raises UsageError for samples
        of another shape, and for ids that are not in the vocabulary.
        """
        if (declared := self.declared) is not None:
            raw, _ = declared.held(raw, CHANNELS_LAST, "samples")
            if self.steps is not None and len(raw):
                raw = lengthened(raw, self.steps, "samples", declared.parts)
        if raw.ndim not in (2, 3, 4):
            raise UsageError(f"samples of shape {raw.shape}: expected (n, d), (n, h, w) or (n, h, w, c)")
        if raw.ndim == 2 and self.size is not None:
            raise UsageError(f"flat samples of shape {raw.shape} have no height and width: leave preprocess size out")
        together = max(1, _TOGETHER_VALUES // max(1, math.prod(raw.shape[1:]), math.prod(self.size or ())))
        first = self._of_piece(raw[:together])
        if len(raw) <= together:
            return first
        out = np.empty((len(raw), *first.shape[1:]), np.float32)
        out[:together] = first
        for begin in range(together, len(raw), together):
            out[begin : begin + together] = self._of_piece(raw[begin : begin + together])
        return out

    def _of_piece(self, raw: Raw) -> Floats:
        """Preprocess a few samples."""
        x = raw.astype(np.float32)
        if raw.ndim == 2:
            x = x[:, None, None, :]
        elif raw.ndim == 3:
            x = x[:, None, :, :]
        else:
            x = x.transpose(0, 3, 1, 2)
        x = _with_channels(x, self.channels)
        if self.size is not None and x.shape[2:] != self.size:
            x = _resize(x, self.size)
        channels = x.shape[3] if self.kind in BY_LAST_AXIS else x.shape[1]
        mean, std = self._by_channel("mean", channels), self._by_channel("std", channels)
        out: Floats = np.ascontiguousarray((x * np.float32(self.scale) - mean) / std)
        if self.kind == RAGGED:
            there, zero = steps_there(raw), (out[:, 0] == 0).all(axis=2)
            out[:, 0][~there] = 0
            out[:, 0][there & zero] = _NO_PADDING
        return out

    def black(self, channels: int) -> Floats:
        """Return what the raw value 0 becomes in each channel of the model's input: (c,)."""
        zero = -self._by_channel("mean", channels) / self._by_channel("std", channels)  # (1 or c, 1, 1)
        return np.broadcast_to(zero.ravel(), (channels,))

    def _by_channel(self, name: str, channels: int) -> Floats:
        """Return mean or std as (c, 1, 1), of vectors and series as (1, 1, d), or (1, 1, 1) for all alike."""
        values: Floats = np.array(getattr(self, name), np.float32).reshape(-1, 1, 1)
        if len(values) not in (1, channels):
            raise UsageError(f"preprocess {name}: {len(values)} numbers for samples with {channels} channels")
        return values.T if self.kind in BY_LAST_AXIS else values


def _finite(value: object) -> Floats | None:
    """Return one number as (), or several as (c,), in f4, or None if they are not numbers, or not finite in f4."""
    try:
        found = np.asarray(value)
    except ValueError:
        return None
    if found.dtype.kind not in "iuf" or found.ndim > 1 or not found.size:
        return None
    with np.errstate(over="ignore"):  # what is too large for f4 becomes Inf
        values: Floats = found.astype(np.float32)
    return values if np.isfinite(values).all() else None


def is_whole(value: object) -> bool:
    """Whether this is a whole number of Python or numpy.  True and False do not count."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_size(size: object) -> bool:
    return isinstance(size, tuple | list) and len(size) == 2 and all(is_whole(each) and each >= 1 for each in size)


def _with_channels(x: Floats, channels: int | None) -> Floats:
    if channels is None or x.shape[1] == channels:
        return x
    grey = x.mean(axis=1, keepdims=True)
    return np.repeat(grey, channels, axis=1)


def _resize(x: Floats, size: tuple[int, int]) -> Floats:
    """Resize (n, c, h, w) bilinearly, with pixel centres aligned as in torch's interpolate(align_corners=False)."""
    for axis, target in ((2, size[0]), (3, size[1])):
        source = x.shape[axis]
        at = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
        low = np.floor(at).astype(np.int64)
        high = np.minimum(low + 1, source - 1)
        share = (at - low).astype(np.float32)
        share = share[:, None] if axis == 2 else share
        x = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return x


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Raw samples with labels.

    x: numbers (n, d), (n, h, w), (n, h, w, c) or (n, c, h, w).  With kind="series" (n, t, d) or (n, t).  With
    kind="ragged-series" also a list of arrays (t, d) of different lengths.  With kind="tokens" ids (n, t) from 0 to
    vocabulary - 1, or a list of arrays (t,).
    y: classes (n,) or (n, 1), or one-hot rows (n, k).  Names of classes, or a pandas categorical, become ids.
    lengths: the number of steps or tokens of each padded sample: (n,).  Values beyond it become 0, the padding.
    layout: "NCHW" or "NHWC", the order of the axes of x.  By default inferred from the sizes, and logged unless NHWC.

    x and y may be arrays, tensors, pandas frames or columns, or lists.  Values are not scaled: the model's `Preprocess`
    does that.

    Raises UsageError if shapes or types do not fit, and for an unknown class name.
    """

    x: Raw  # (n, ...), channels last
    y: Ints  # (n,)
    class_names: tuple[str, ...] = ()
    """The names of the federation's classes, in its order.  By default the names in `y`, sorted, or none."""
    layout: InitVar[PictureLayout | None] = None
    kind: str | None = None
    """picture, vector, series, ragged-series or tokens.  None distinguishes pictures and vectors by their shape."""
    vocabulary: int | None = None
    """How many ids of tokens there are."""
    lengths: InitVar[Any] = None

    def __post_init__(self, layout: PictureLayout | None, lengths: Any) -> None:
        declared = self.declared
        if declared is None and lengths is not None:
            raise UsageError('x: lengths have no effect without kind = "ragged-series" or kind = "tokens"')
        x = given_array(self.x, "x") if declared is None else declared.given(self.x, "x", lengths)
        y, names = class_ids(self.y, self.class_names)
        if not x.ndim or (declared is None and x.dtype.kind not in "biuf"):
            raise UsageError(f"x: found {x.dtype} {x.shape}: samples are numbers, with shape (n, ...)")
        if len(x) != len(y):
            raise UsageError(f"{len(x)} samples but {len(y)} labels")
        x, line = as_held(x, declared, layout, "x") if declared else channels_last(x, layout, "x")
        if line:
            log.warning("%s", line)
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", y)
        object.__setattr__(self, "class_names", names)

    def __len__(self) -> int:
        return len(self.y)

    def at(self, rows: NDArray[Any]) -> Samples:
        """Return some of the samples: rows are indices (m,), or True for each sample that is wanted (n,)."""
        return Samples(self.x[rows], self.y[rows], self.class_names, CHANNELS_LAST, self.kind, self.vocabulary)

    @property
    def declared(self) -> SampleKind | None:
        """The declared kind, or None if none is declared.  Raises UsageError."""
        return declared_kind(self.kind, self.vocabulary, "Samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Augment:
    """Random changes of training pictures.  Evaluation uses the pictures unchanged.

    Raises UsageError for a negative number of pixels.
    """

    crop_pixels: int = 0
    """The number of black pixels added on each side before a window of the old size is cut out at random."""
    flip: bool = False
    """Whether to mirror half of the pictures, chosen at random, left to right."""

    def __post_init__(self) -> None:
        if self.crop_pixels < 0:
            raise UsageError(f"augment crop_pixels {self.crop_pixels}: expected 0 or more")

    def misfit(self, shape: tuple[int, ...], kind: str | None = None) -> str:
        """Return why raw samples of a shape, (d,), (h, w) or (h, w, c), cannot be augmented, or empty if they can.

        kind: the declared one, or None.
        """
        if kind not in (None, "picture"):
            return f"samples of the kind {kind} have no height and width to crop or flip"
        if len(shape) < 2:
            return f"flat samples of shape {shape} have no height and width to crop or flip"
        if self.crop_pixels >= min(shape[:2]):
            return f"crop_pixels: expected fewer than the {min(shape[:2])} of the pictures, found {self.crop_pixels}"
        return ""

    def __call__(self, x: Floats, black: Floats, rng: np.random.Generator) -> Floats:
        """Return changed pictures: x (b, c, h, w), black (c,), the value of black in each channel -> (b, c, h, w)."""
        if self.crop_pixels:
            x = self._cropped(x, black, rng)
        if self.flip:
            x = np.where(rng.random(len(x))[:, None, None, None] < 0.5, x[..., ::-1], x)
        return x

    def _cropped(self, x: Floats, black: Floats, rng: np.random.Generator) -> Floats:
        by, (b, c, h, w) = self.crop_pixels, x.shape
        padded = np.empty((b, c, h + 2 * by, w + 2 * by), np.float32)
        padded[...] = black[:, None, None]
        padded[:, :, by:-by, by:-by] = x
        top, left = rng.integers(0, 2 * by + 1, (2, b))
        windows = sliding_window_view(padded, (h, w), axis=(2, 3))  # (b, c, 2 by + 1, 2 by + 1, h, w)
        return windows[np.arange(b), :, top, left]


def augment_draws(seed: int, number: int, round_: int, step: int) -> np.random.Generator:
    """Return the random numbers for one step of one device: the same in every engine and under every method."""
    return np.random.default_rng([seed, round_, number, step, _AUGMENT_STREAM])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalData:
    """The data of one device.  None of it ever leaves the device.

    Raises UsageError if a part is not a Samples, or if two parts differ in their class names or their kind.
    """

    train: Samples
    test: Samples | None = None
    """The samples for the metric `accuracy`: a balanced test set of all classes, if the federation provides one."""
    validation: Samples | None = None
    """Own samples that are not trained on, for the choice of settings: the metric `validation_accuracy`."""
    local_test: Samples | None = None
    """Own samples that are not trained on, for the metric `local_accuracy`.  With None that metric uses the samples of
    `test` whose class the device trains on."""
    augment: Augment | None = None
    """Random changes of the training pictures, or None.  Raises UsageError if the samples are not pictures."""

    def __post_init__(self) -> None:
        for name, part in self._parts().items():
            if not isinstance(part, Samples) and (part is not None or name == "train"):
                raise UsageError(f"{name}: found {type(part).__name__}: give edge_sdk.Samples(x, y) of numpy arrays")
        named = {part.class_names for part in self._parts().values() if part is not None and part.class_names}
        if len(named) > 1:
            both = " and ".join(f"({listed(names)})" for names in sorted(named))
            raise UsageError(f"the parts have the classes {both}: give all of them one class_names=[...]")
        kinds = {part.declared for part in self._parts().values() if part is not None}
        if len(kinds) > 1:
            both = " and ".join(sorted(f"{kind}" if kind else "no kind" for kind in kinds))
            raise UsageError(f"the parts are declared as {both}: declare all of them alike")
        if not isinstance(self.augment, Augment | None):
            raise UsageError(f"augment: found {type(self.augment).__name__}: give edge_sdk.Augment(...), or None")
        misfit = self.augment.misfit(self.train.x.shape[1:], self.train.kind) if self.augment else ""
        if misfit:
            raise UsageError(f"augment: {misfit}")

    def class_counts(self, classes: int) -> tuple[int, ...]:
        """Return the number of training samples of each class.

        Raises UsageError if any part has a label outside 0..classes-1.
        """
        for name, part in self._parts().items():
            y = part.y if part is not None else self.train.y[:0]
            if len(y) and not (int(y.min()) >= 0 and int(y.max()) < classes):
                raise UsageError(
                    f"{name}: labels from {int(y.min())} to {int(y.max())}: the model and the federation have classes "
                    f"0..{classes - 1}" + (": subtract 1 from labels that count from 1" if y.max() == classes else "")
                )
        counts = np.bincount(self.train.y.astype(np.intp), minlength=classes)  # a 32-bit numpy takes no int64 here
        return tuple(int(n) for n in counts)

    def _parts(self) -> dict[str, Samples | None]:
        return {"train": self.train, "test": self.test, "validation": self.validation, "local_test": self.local_test}
