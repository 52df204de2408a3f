"""Two small data sets of digits: drawn here, for a base install, and the handwritten ones of scikit-learn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.data import Samples
from edge_sdk.errors import MissingExtra
from edge_sim.data.draw import hold_out
from edge_sim.data.sources.base import SourceData

SIDE = 12
"""Height and width of a picture in pixels."""
SAMPLES = 2000
"""Number of pictures, equally many of each digit."""
NOISE = 0.12
"""Standard deviation of the noise on each pixel, of which 1 is white."""
_DRAW_STREAM = 21
"""Keeps these random numbers apart from others with the same seed."""
_GLYPHS = (
    ".###. #...# #...# #...# #...# #...# .###.",
    "..#.. .##.. ..#.. ..#.. ..#.. ..#.. .###.",
    ".###. #...# ....# ...#. ..#.. .#... #####",
    ".###. #...# ....# ..##. ....# #...# .###.",
    "...#. ..##. .#.#. #..#. ##### ...#. ...#.",
    "##### #.... ####. ....# ....# #...# .###.",
    "..##. .#... #.... ####. #...# #...# .###.",
    "##### ....# ...#. ..#.. ..#.. .#... .#...",
    ".###. #...# #...# .###. #...# #...# .###.",
    ".###. #...# #...# .#### ....# ...#. .##..",
)
"""The ten digits, each as seven rows of five pixels."""


def read_drawn_digits(test_fraction: float, seed: int) -> SourceData:
    """Draw 2,000 digits of 12 x 12 pixels, u1 (n, 12, 12): turned, sheared, moved, blurred and noisy."""
    rng = np.random.default_rng([seed, _DRAW_STREAM])
    y = np.arange(SAMPLES, dtype=np.int64) % len(_GLYPHS)
    x = _pictures(y, rng)
    train, test = hold_out(y, test_fraction, np.random.default_rng([seed, 1]))
    return SourceData(
        name="drawn-digits", train=Samples(x[train], y[train]), test=Samples(x[test], y[test]), scale=1 / 255
    )


def _pictures(y: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw one picture for each label: y (n,) -> u1 (n, 12, 12)."""
    n = len(y)
    glyphs = np.stack([_glyph(text) for text in _GLYPHS])  # (10, 9, 7)
    turn, shear = rng.normal(0, 0.1, n), rng.normal(0, 0.12, n)
    zoom, moved = rng.uniform(0.85, 1.15, n), rng.normal(0, 0.45, (n, 2))
    # Where on the glyph each pixel lies: turned, sheared and zoomed about the centre of the picture.
    rows, columns = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2  # (12, 12) each
    down = rows * np.cos(turn)[:, None, None] - columns * np.sin(turn)[:, None, None]
    right = rows * np.sin(turn)[:, None, None] + columns * np.cos(turn)[:, None, None]
    right = right + shear[:, None, None] * down
    fit = 0.72 / zoom[:, None, None]  # glyph pixels to one of the picture
    at_row = fit * down + moved[:, :1, None] + (glyphs.shape[1] - 1) / 2
    at_column = fit * right + moved[:, 1:, None] + (glyphs.shape[2] - 1) / 2
    ink = _between(glyphs[y], at_row, at_column) * rng.uniform(0.6, 1.0, n)[:, None, None]
    noisy = np.clip(ink + rng.normal(0, NOISE, ink.shape), 0, 1)
    return np.round(255 * noisy).astype(np.uint8)


def _glyph(text: str) -> Floats:
    """Read one of `_GLYPHS`, with a border of a pixel: (9, 7)."""
    pixels = np.array([[mark == "#" for mark in row] for row in text.split()], np.float32)
    framed: Floats = np.pad(pixels, 1)
    return framed


def _between(pictures: Floats, rows: Floats, columns: Floats) -> Floats:
    """Read pictures (n, h, w) between their pixels, at rows and columns (n, a, b) -> (n, a, b); outside they are 0."""
    framed = np.pad(pictures, ((0, 0), (1, 1), (1, 1)))
    rows = np.clip(rows + 1, 0, framed.shape[1] - 1.001)
    columns = np.clip(columns + 1, 0, framed.shape[2] - 1.001)
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    below, beside = rows - top, columns - left
    each = np.arange(len(framed))[:, None, None]
    upper = framed[each, top, left] * (1 - beside) + framed[each, top, left + 1] * beside
    lower = framed[each, top + 1, left] * (1 - beside) + framed[each, top + 1, left + 1] * beside
    out: Floats = upper * (1 - below) + lower * below
    return out


# -- The handwritten digits of scikit-learn ----------------------------------------------------------------------------

SCALE = 1 / 16
"""Factor that brings their 17 grey levels, 0..16, to [0, 1]."""


def read_digits(test_fraction: float, seed: int) -> SourceData:
    """Read 1,797 digits of 8 x 8 pixels, u1 (n, 8, 8), with a test of all ten classes.  Raises MissingExtra."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtra("scikit-learn", "sim", "the digits data set") from None
    bunch = load_digits()
    x, y = bunch.images.astype(np.uint8), bunch.target.astype(np.int64)
    train, test = hold_out(y, test_fraction, np.random.default_rng([seed, 1]))
    return SourceData(name="digits", train=Samples(x[train], y[train]), test=Samples(x[test], y[test]), scale=SCALE)
