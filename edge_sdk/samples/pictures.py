"""Reading of picture files, by Pillow where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edge_sdk.data import Raw
from edge_sdk.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Endings of picture files; other files are ignored."""
GREY = ("1", "L", "LA")
"""Pillow's modes of pictures without colour."""
DEEP = ("I", "F")
"""Prefixes of Pillow's modes with more than eight bits a value, which would be clipped as bytes."""
_BILINEAR = 2
"""Pillow's number of this way of resizing."""


def read_pictures(files: Sequence[Path], size: tuple[int, int] | None, *, remedy: str) -> Raw:
    """Read pictures as one array: u1 (n, h, w) where all are grey, else (n, h, w, 3).

    size: height and width to which they are resized.  remedy: what to do about pictures of several sizes.  Raises
    UsageError for a file that is no picture or has another size, MissingExtra without Pillow.
    """
    return stacked([_picture(path, size) for path in files], [str(path) for path in files], remedy=remedy)


def stacked(pictures: Sequence[Raw], names: Sequence[str], *, remedy: str) -> Raw:
    """Pictures of one size as one array, in colour if any is.  Raises UsageError, with its name, for one of another."""
    for name, picture in zip(names, pictures, strict=True):
        if picture.shape[:2] != pictures[0].shape[:2]:
            (h, w), (h0, w0) = picture.shape[:2], pictures[0].shape[:2]
            raise UsageError(f"{name}: {h} x {w} pixels, but {Path(names[0]).name} has {h0} x {w0}; {remedy}")
    coloured = any(picture.ndim == 3 for picture in pictures)
    return np.stack([_coloured(picture) if coloured else picture for picture in pictures])


def _coloured(picture: Raw) -> Raw:
    return picture if picture.ndim == 3 else np.repeat(picture[:, :, None], 3, axis=2)


def _picture(path: Path, size: tuple[int, int] | None) -> Raw:
    """Read one picture, u1 (h, w) or (h, w, 3)."""
    try:
        from PIL import Image as Pillow
    except ImportError:
        raise MissingExtra("pillow", "pictures", "reading pictures") from None
    try:
        with Pillow.open(path) as opened:
            return picture_bytes(opened, size, str(path))
    except (OSError, ValueError, SyntaxError, Pillow.DecompressionBombError) as error:
        raise UsageError(f"{path}: not a readable picture: {error}") from None


def picture_bytes(opened: Image, size: tuple[int, int] | None, name: str) -> Raw:
    """A picture of Pillow as u1 (h, w), or (h, w, 3) in colour; transparency is dropped.

    size: height and width to which it is resized.  Raises UsageError for one with more than eight bits a value.
    """
    if opened.mode.startswith(DEEP):
        raise UsageError(f"{name}: more than 8 bits a value (mode {opened.mode}): give such data as npz")
    picture = opened.convert("L" if opened.mode in GREY else "RGB")
    if size is not None:
        picture = picture.resize((size[1], size[0]), _BILINEAR)
    return np.asarray(picture, np.uint8)
