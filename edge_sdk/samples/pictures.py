"""Reading of picture files, by Pillow where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edge_sdk.data import Raw
from edge_sdk.errors import MissingExtra, UsageError
from edge_sdk.given_arrays import picture_bytes, stacked_pictures

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Endings of picture files; other files are ignored."""


def read_pictures(files: Sequence[Path], size: tuple[int, int] | None, *, remedy: str) -> Raw:
    """Read pictures as one array: u1 (n, h, w) where all are grey, else (n, h, w, 3).

    size: height and width to which they are resized.  remedy: what to do about pictures of several sizes.  Raises
    UsageError for a file that is no picture or has another size, MissingExtra without Pillow.
    """
    return stacked_pictures([_picture(path, size) for path in files], [str(path) for path in files], remedy=remedy)


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
