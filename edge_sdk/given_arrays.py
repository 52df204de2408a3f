"""What people hand over as samples and labels, made into numpy arrays: tensors, frames, lists, pictures, any layout.

Samples lie in memory with their channels last: (n, d), (n, h, w) or (n, h, w, c).  All entries (Samples, SampleStore,
the readers, PublicSet, the simulator's sources, `edge_sim.run`) call the functions of this file, and so take the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

PictureLayout: TypeAlias = Literal["NCHW", "NHWC"]
"""The order of the axes of pictures in colour: channels first, as torch has them, or last."""
CHANNELS_LAST: PictureLayout = "NHWC"
"""The layout of samples in memory."""
GREY = ("1", "L", "LA")
"""Pillow's modes of pictures without colour."""
DEEP = ("I", "F")
"""Prefixes of Pillow's modes with more than eight bits a value, which would be clipped as bytes."""
NAMED = 5
"""Number of columns that a message names."""
_BILINEAR = 2
_LOOKED_AT = 4096
"""Samples that are looked at together: of a large file they are then not all in memory."""
"""Pillow's number of this way of resizing."""


class Places(str):
    """Where an array is from, for messages, which also says where each of its samples is from."""

    __slots__ = ("samples",)
    samples: Sequence[str]


def places(where: str, samples: Sequence[str]) -> Places:
    """Return where an array is from; samples: where each of its samples is from, such as a file, or a row."""
    made = Places(where)
    made.samples = samples
    return made


def sample_at(where: str, row: int | np.integer[Any]) -> str:
    """Return where a sample is from, as messages begin with it."""
    if isinstance(where, Places):
        return where.samples[int(row)]
    return f"{where}: sample {row}"


def given_array(values: Any, where: str) -> NDArray[Any]:
    """Return an array of an array, a tensor, a frame or column of pandas, a picture, or nested lists of numbers.

    An array is returned as it is.  where: begins the messages.  Raises UsageError unless it is an array of one type.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise UsageError(f"{where}: some values are masked: write {_name(where)}.filled(0), or leave those samples out")
    if isinstance(values, np.ndarray) and not isinstance(values, np.matrix | np.ma.MaskedArray):
        return values
    if is_pillow_picture(values):
        return picture_bytes(values, None, where)
    if isinstance(values, list | tuple) and values and all(map(is_pillow_picture, values)):
        names = [f"{where}, sample {number}" for number in range(len(values))]
        pictures = [picture_bytes(value, None, name) for value, name in zip(values, names, strict=True)]
        return stacked_pictures(pictures, names, remedy="resize them first")
    if hasattr(values, "select_dtypes"):
        return _frame_array(values, where)
    try:
        found = np.asarray(_plain(values))
    except (TypeError, ValueError, RuntimeError) as error:
        told = _several_shapes(values) or " ".join(str(error).split())
        raise UsageError(f"{where}: {type(values).__name__} makes no array of numbers: {told}") from None
    if hasattr(values, "toarray") and found.dtype.kind == "O":
        raise UsageError(f"{where}: {type(values).__name__} is sparse: write {_name(where)}.toarray()")
    return found


def _several_shapes(values: Any) -> str:
    """Name the first of some samples with another shape, and what to declare; an empty text if all are alike."""
    if not isinstance(values, list | tuple) or not all(hasattr(each, "__len__") for each in values):
        return ""
    shapes = [np.shape(each) if hasattr(each, "shape") else (len(each),) for each in values]
    other = next((row for row, shape in enumerate(shapes) if shape != shapes[0]), 0)
    return (
        other
        and f"sample {other} has the shape {shapes[other]}, sample 0 {shapes[0]}; series of several lengths are "
        'kind="ragged-series", texts kind="tokens", and pictures have one size'
    ) or ""


def _frame_array(frame: Any, where: str) -> NDArray[Any]:
    """Return the numbers of a frame of pandas, (n, d), in the type that holds those of all columns."""
    name = _name(where)
    others = [f"{column!r} ({kind})" for column, kind in frame.dtypes.items() if kind.kind not in "biuf"]
    if others:
        raise UsageError(
            f"{where}: columns that are not of real numbers: {', '.join(others[:NAMED])}; leave them out with "
            f'{name}.select_dtypes("number"), or make numbers of them: {name}.astype(float), or of categories '
            f"pandas.get_dummies({name})"
        )
    missing = frame.isna().any()
    if missing.any():
        columns = ", ".join(map(repr, missing.index[missing][:NAMED]))
        raise UsageError(
            f"{where}: values are missing in {columns}: write {name}.fillna({name}.mean()), or leave those samples out"
        )
    kinds = [  # Float64, Int64 and Sparse are of pandas alone
        getattr(kind, "numpy_dtype", getattr(kind, "subtype", kind)) for kind in frame.dtypes
    ]
    return np.asarray(frame.to_numpy(np.result_type(*kinds) if kinds else np.float32))


def _plain(values: Any) -> Any:
    """Return what numpy takes without a word of its own: of a tensor its values, of pandas an array."""
    if isinstance(values, list | tuple) and len(values) and hasattr(values[0], "detach"):
        return np.stack([_plain(each) for each in values])
    if hasattr(values, "detach"):  # a tensor of torch, perhaps with a gradient, on a GPU, or in bfloat16
        values = values.detach().cpu()
        return values.float().numpy() if str(values.dtype) == "torch.bfloat16" else values.numpy()
    return values.to_numpy() if hasattr(values, "to_numpy") else values


def _name(where: str) -> str:
    """Return the name of the array at the end of a place such as `data: x_train`."""
    return where.rpartition(" ")[2]


def is_pillow_picture(value: Any) -> bool:
    """Whether this is a picture of Pillow, which need not be installed."""
    return hasattr(value, "convert") and hasattr(value, "mode")


def picture_bytes(opened: Image, size: tuple[int, int] | None, name: str) -> NDArray[np.uint8]:
    """A picture of Pillow as u1 (h, w), or (h, w, 3) in colour; transparency is dropped.

    size: height and width to which it is resized.  Raises UsageError for one with more than eight bits a value.
    """
    if opened.mode.startswith(DEEP):
        raise UsageError(f"{name}: more than 8 bits a value (mode {opened.mode}): give such data as npz")
    picture = opened.convert("L" if opened.mode in GREY else "RGB")
    if size is not None:
        picture = picture.resize((size[1], size[0]), _BILINEAR)
    return np.asarray(picture, np.uint8)


def stacked_pictures(pictures: Sequence[NDArray[Any]], names: Sequence[str], *, remedy: str) -> NDArray[Any]:
    """Pictures of one size as one array, in colour if any is.  Raises UsageError, with its name, for one of another."""
    for name, picture in zip(names, pictures, strict=True):
        if picture.shape[:2] != pictures[0].shape[:2]:
            (h, w), (h0, w0) = picture.shape[:2], pictures[0].shape[:2]
            raise UsageError(f"{name}: {h} x {w} pixels, but {Path(names[0]).name} has {h0} x {w0}; {remedy}")
    coloured = any(picture.ndim == 3 for picture in pictures)
    return np.stack([_coloured(picture) if coloured else picture for picture in pictures])


def _coloured(picture: NDArray[Any]) -> NDArray[Any]:
    return picture if picture.ndim == 3 else np.repeat(picture[:, :, None], 3, axis=2)


def channels_last(
    x: NDArray[Any], layout: PictureLayout | None, where: str, *, ambiguous: PictureLayout = CHANNELS_LAST
) -> tuple[NDArray[Any], str]:
    """Return samples with their channels last, a view, and a line about the layout, or empty for a declared one.

    x: (n, h, w, c), (n, c, h, w), or samples without channels, (n, d) or (n, h, w), which stay. layout: the declared
    one, or None to infer it from the sizes, with `ambiguous` as default.  One channel first, (n, 1, h, w), becomes (n,
    h, w).  Raises UsageError for an unknown layout.
    """
    check_layout(layout, where)
    if x.ndim != 4:
        return x, ""
    told = layout_told(x.shape[1:])
    taken = layout or told or ambiguous
    line = ""
    if layout is None and x.shape[1:] != (1, 1, 1) and (told is None or taken != ambiguous):
        line = _taken_line(x.shape[1:], taken, where, sure=told is not None)
    if taken == "NHWC":
        return x, line
    return (x[:, 0] if x.shape[1] == 1 else np.moveaxis(x, 1, -1)), line


def check_layout(layout: object, where: str) -> None:
    """Raise UsageError for an unknown layout."""
    if layout is not None and layout not in get_args(PictureLayout):
        raise UsageError(f'{where}: layout {layout!r}: expected "NCHW" or "NHWC"')


def layout_told(shape: tuple[int, ...]) -> PictureLayout | None:
    """Infer the layout of one picture from its sizes: (c, h, w) or (h, w, c), or None if they allow both.

    Channels are 1 or 3, else 2 or 4, and pictures often square.  Where the two signs contradict, none is believed.
    """
    first, middle, last = shape
    votes = set()
    for usual in ((1, 3), (1, 2, 3, 4)):
        if (first in usual) != (last in usual):
            votes.add("NCHW" if first in usual else "NHWC")
            break
    if (first == middle) != (middle == last):
        votes.add("NCHW" if middle == last else "NHWC")
    if len(votes) != 1:
        return None
    return "NCHW" if votes == {"NCHW"} else "NHWC"


def _taken_line(shape: tuple[int, ...], taken: PictureLayout, where: str, *, sure: bool) -> str:
    c, h, w = shape if taken == "NCHW" else (shape[2], shape[0], shape[1])
    order = "first" if taken == "NCHW" else "last"
    also = "to declare it" if sure else f'if that is right, or "{"NHWC" if taken == "NCHW" else "NCHW"}"'
    return (
        f"{where}: samples of shape {tuple(shape)} are taken as pictures with channels {order}: "
        f'{c} channel{"s" * (c != 1)} of {h} x {w}; write layout = "{taken}" {also}'
    )


def public_taken(public: int, private: int) -> str:
    """Describe the number of samples in the public set, beside those that devices hold."""
    return f"{public} of the {public + private} training samples are the public set (data.public)"


def raw_values(x: NDArray[Any], where: str) -> NDArray[Any]:
    """Return samples (n, ...) as u1 or finite f4, the types that devices take; True and False become 1 and 0.

    Raises UsageError for other types, NaN and Inf.  Whole numbers other than bytes may be measurements, tokens or
    pictures, and so are refused with what to write for each.
    """
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind in "iu":
        name = _name(where)
        raise UsageError(
            f"{where}: expected uint8 or finite floats, found {x.dtype}: write {name}.astype(np.float32) for "
            f"measurements, {name}.astype(np.uint8) for pictures of 0 to 255; declare ids of tokens with "
            'kind = "tokens" and vocabulary = HOW_MANY'
        )
    check_numbers(x, where)
    with np.errstate(over="ignore"):  # what is too large for f4 becomes Inf, and is refused below
        values = x.astype(np.float32, copy=False)
    parts = [values[first : first + _LOOKED_AT] for first in range(0, len(values), _LOOKED_AT)]
    finite = [np.isfinite(part).reshape(len(part), -1).all(axis=1) for part in parts]
    wild = np.flatnonzero(~np.concatenate([*finite, np.ones(0, bool)]))  # sample numbers
    if len(wild):
        first = sample_at(where, wild[0]) if isinstance(where, Places) else wild[0]
        place = ", ".join(map(str, np.argwhere(~np.isfinite(values[wild[0]]))[0]))
        raise UsageError(
            f"{where}: expected uint8 or finite floats, found {x.dtype} with NaN or Inf in {len(wild)} samples, "
            f"the first of them {first}{f', at [{place}]' if place else ''}"
        )
    return values


def check_numbers(x: NDArray[Any], where: str) -> None:
    """Raise UsageError, with the remedy, for samples that are not real numbers."""
    if x.dtype.kind in "biuf":
        return
    name = _name(where)
    remedy = "make numbers of them first"
    if x.dtype.kind in "OUST":
        remedy = f"if they are numbers, write {name}.astype(np.float32)"
        if x.dtype.kind == "O" and x.ndim == 1:
            remedy = f"if each is an array of one shape, write np.stack(list({name})).astype(np.float32)"
    elif x.dtype.kind == "c":
        remedy = f"write np.abs({name}), or np.concatenate([{name}.real, {name}.imag], axis=1) for both parts"
    raise UsageError(f"{where}: expected uint8 or finite floats, found {x.dtype}: {remedy}")


def is_missing(label: Any) -> bool:
    """Whether this stands for no label: None, NaN, or NA of pandas, which need not be installed."""
    if isinstance(label, (float, np.floating)):
        return bool(np.isnan(label))
    return label is None or type(label).__name__ in {"NAType", "NaTType"}


def labels_of(y: Any, where: str, expected: str = "") -> NDArray[Any]:
    """Return labels (n,): whole numbers as they are, (n, 1) without its second axis, one-hot rows (n, k) as classes.

    expected: begins what is said of others.  Raises UsageError for those, with what to write.
    """
    found = given_array(y, where)
    name, refused = _name(where), f"{where}: {expected}found {found.dtype} {found.shape}: labels are whole numbers"
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim == 2 and found.dtype.kind in "biuf" and found.shape[1]:
        if not (((found == 0) | (found == 1)).all() and ((found == 1).sum(axis=1) == 1).all()):
            raise UsageError(
                f"{refused} (n,) or one-hot rows (n, k), with one class for each sample; several at once are not "
                f"offered: if the largest number of a row is its class, write {name}.argmax(1)"
            )
        found = found.argmax(axis=1)
    if found.dtype.kind == "b":
        found = found.astype(np.int64)
    if found.ndim == 1 and found.size and found.dtype.kind == "f" and (found == np.rint(found)).all():
        raise UsageError(f"{refused}, one for each sample (n,): write {name}.astype(int)")
    if found.ndim == 1 and (missing := [*map(is_missing, found)] if found.dtype.kind in "fO" else []) and any(missing):
        raise UsageError(f"{where}: sample {missing.index(True)} has no label; leave it out")
    if found.ndim == 1 and found.dtype.kind == "O":
        raise UsageError(f"{refused} or names of classes, one for each sample (n,): write {name}.astype(str) for names")
    if found.ndim == 1 and found.dtype.kind == "f" and found.size:
        raise UsageError(f"{refused}, one for each sample (n,); numbers to predict (regression) are not supported")
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise UsageError(f"{refused}, one for each sample (n,)")
    return found
