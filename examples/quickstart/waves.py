"""Simulated windows of a vibration sensor: four kinds of machines, which differ in the shape of their waves."""

from __future__ import annotations

from pathlib import Path

import numpy as np

KINDS = ("even", "saw", "square", "pulse")
WIDTH = 32


def windows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return x (count, WIDTH), spectra of noisy waves, and y (count,), their kinds."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % len(KINDS)
    time = np.linspace(0, 1, 128, endpoint=False)
    phase = 2 * np.pi * (rng.uniform(3, 4, (count, 1)) * time + rng.uniform(size=(count, 1)))
    shapes = np.stack([np.sin(phase), 1 - phase % (2 * np.pi) / np.pi, np.sign(np.sin(phase)), np.sin(phase) ** 9])
    waves = shapes[y, np.arange(count)] + rng.normal(0, 0.4, (count, 128))
    spectra = np.log1p(np.abs(np.fft.rfft(waves * np.hanning(128)))[:, :WIDTH])
    return spectra.astype(np.float32), y.astype(np.int64)


def write(path: Path) -> None:
    """Write a data set as `[data] source = "npz"` wants it."""
    (x_train, y_train), (x_test, y_test) = windows(1200, seed=0), windows(400, seed=1)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
