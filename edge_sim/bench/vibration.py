"""A synthesised vibration signal: spectra of a rotating machine in eight conditions, as a data set of another kind.

A window is half a second of an accelerometer at 2048 Hz on a machine that turns 20 to 40 times a second. What the
conditions add is what textbooks of condition monitoring tell: imbalance the shaft's own frequency, misalignment twice
it, looseness half of it and a row of harmonics; a damaged bearing short bursts of its casing's ringing at a defect
frequency (3.58, 5.42 or 4.71 times the shaft's), those of the inner ring louder once a turn; a damaged tooth the
meshing frequency with side bands. Speed, load, severity, phases and noise differ from window to window. Samples are
the logarithm of the spectrum's first 128 lines in 256 levels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

NAME = "vibration-2.npz"
"""The number changes with the generator."""
CONDITIONS = ("healthy", "imbalance", "misalignment", "looseness", "outer ring", "inner ring", "ball", "tooth")
RATE_HZ, WINDOW, LINES = 2048, 1024, 128
FOLDED = 8, 16
"""The shape of a sample: its lines one after the other, for FedKF's generator makes pictures alone."""
RANGE = -2.4, 6.8
"""The logarithms that become 0 and 255."""
TRAIN, TEST, SEED = 6000, 1600, 20261122
TEETH = 17
DEFECTS = {"outer ring": 3.58, "inner ring": 5.42, "ball": 4.71}
RINGING_HZ, DECAY_HZ = (150.0, 220.0), 60.0

Array = npt.NDArray[np.float64]


def make(path: Path) -> None:
    """Write the data set, unless it is there.  Raises OSError."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    x, y = samples(TRAIN + TEST, SEED)
    partial = path.with_name(f".{path.name}")
    np.savez(partial.with_suffix(".part.npz"), x_train=x[:TRAIN], y_train=y[:TRAIN], x_test=x[TRAIN:], y_test=y[TRAIN:])
    partial.with_suffix(".part.npz").replace(path)


def samples(count: int, seed: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return spectra (n, 8, 16) and conditions (n,), as many of each condition as of the others, in a drawn order."""
    random = np.random.Generator(np.random.PCG64(seed))
    labels = random.permutation(np.arange(count) % len(CONDITIONS))
    spectra = np.stack([_spectrum(_window(CONDITIONS[label], random)) for label in labels])
    low, high = RANGE
    levels = np.clip((spectra - low) / (high - low), 0, 1) * 255
    return levels.round().astype(np.uint8).reshape(-1, *FOLDED), labels


def _spectrum(signal: Array) -> Array:
    lines = np.abs(np.fft.rfft(signal * np.hanning(WINDOW)))[1 : LINES + 1]
    return np.asarray(np.log(lines + 0.1))


def _window(condition: str, random: np.random.Generator) -> Array:
    """Return one window (1024,) of a machine in a condition."""
    time_s = np.arange(WINDOW) / RATE_HZ
    shaft_hz, severity = random.uniform(20, 40), random.uniform(0.3, 1.0)
    signal = random.uniform(0.6, 1.4) * random.normal(0, 0.35, WINDOW)
    tones = {1.0: random.uniform(0.1, 0.4), 2.0: random.uniform(0.02, 0.15), float(TEETH) / 3: random.uniform(0, 0.1)}
    for order, more in _orders(condition, severity).items():
        tones[order] = tones.get(order, 0.0) + more
    for order, height in tones.items():
        signal += height * np.sin(2 * np.pi * order * shaft_hz * time_s + random.uniform(0, 2 * np.pi))
    if condition in DEFECTS:
        signal += 1.2 * severity * _bursts(condition, shaft_hz, time_s, random)
    return np.asarray(signal)


def _orders(condition: str, severity: float) -> dict[float, float]:
    """Return what a condition adds at multiples of the shaft's frequency."""
    if condition == "imbalance":
        return {1.0: severity}
    if condition == "misalignment":
        return {2.0: 0.8 * severity, 1.0: 0.2 * severity}
    if condition == "looseness":
        return dict.fromkeys((0.5, 1.5, 2.0, 2.5, 3.0, 4.0), 0.3 * severity)
    if condition == "tooth":
        middle = TEETH / 3
        return {middle: 0.5 * severity, middle - 1: 0.25 * severity, middle + 1: 0.25 * severity}
    return {}


def _bursts(condition: str, shaft_hz: float, time_s: Array, random: np.random.Generator) -> Array:
    """Return the ringing (1024,) that a damaged bearing excites at its defect frequency."""
    period_s, ringing_hz = 1 / (DEFECTS[condition] * shaft_hz), random.uniform(*RINGING_HZ)
    found = np.zeros_like(time_s)
    for start_s in np.arange(random.uniform(0, period_s), time_s[-1], period_s):
        since = time_s - start_s * (1 + random.normal(0, 0.002))
        loud = 1 + np.sin(2 * np.pi * shaft_hz * start_s) if condition == "inner ring" else 1.0
        found += np.where(since > 0, loud * np.exp(-DECAY_HZ * since) * np.sin(2 * np.pi * ringing_hz * since), 0)
    return found
