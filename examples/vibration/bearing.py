"""Simulated vibration of machines with ball bearings, healthy and faulty, and the features for a classifier.

No recording is behind it.  What it models: a fault on a race or a ball gives one impact each time that a ball passes
it, at a frequency that follows from the bearing's geometry and the speed of the shaft; balls slip by about 1 %; an
impact makes the housing ring at its own frequency; an inner race and a ball pass through the loaded zone again and
again, so that their impacts swell and fade.  Beside it there are imbalance, teeth of a gear, and noise.  Every machine
has its own speed, load, housing, sensor and noise, and its speed and load wander; each repeats for a given seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

RATE_HZ = 12_000
"""Values of the sensor in a second."""
WINDOW = 4096
"""Values in a window, a third of a second."""
RING = 256
"""Values until a housing has stopped ringing."""
CLASSES = ("healthy", "outer race", "inner race", "ball")
ORDERS = {"outer race": 3.58, "inner race": 5.42, "ball": 4.71}
"""Impacts in a turn of the shaft, for a bearing of nine balls (SKF 6205)."""
FEATURES = 64
MOST_ORDERS = 12.8
"""The features reach to so many times the speed of the shaft."""


@dataclass(frozen=True)
class Window:
    """What the sensor of a machine recorded, and what a mechanic would find."""

    signal: np.ndarray  # (WINDOW,) f4, in g
    speed_hz: float
    """Turns of the shaft in a second, from its tachometer."""
    truth: int
    """The class: an index in CLASSES."""


class Machine:
    """One machine of a plant, with its own speed, load, housing, sensor and noise."""

    def __init__(self, number: int, seed: int = 0) -> None:
        draw = np.random.default_rng([seed, number])
        self._rng = np.random.default_rng([seed, number, 1])
        self.speed_hz = float(draw.uniform(18, 48))
        self.load = float(draw.uniform(0.5, 1.3))
        self.ring_hz = float(draw.uniform(1800, 4200))
        self.damping = float(draw.uniform(500, 1100))
        self.gain = float(draw.lognormal(0, 0.3))
        self.noise = float(draw.uniform(0.25, 0.5))
        self.teeth = int(draw.integers(7, 12))

    def window(self, truth: int) -> Window:
        """Record one window in a state; each call is another moment."""
        rng = self._rng
        speed_hz = self.speed_hz * rng.uniform(0.92, 1.08)
        load = self.load * rng.uniform(0.7, 1.3)
        t = np.arange(WINDOW) / RATE_HZ
        turn = 2 * np.pi * (speed_hz * t + rng.random())
        signal = 0.3 * np.sin(turn) + 0.15 * load * np.sin(self.teeth * turn + rng.random())
        signal += self.noise * rng.standard_normal(WINDOW)
        if truth:
            signal += load * rng.uniform(0.5, 1.2) * self._impacts(CLASSES[truth], speed_hz, rng)
        return Window((self.gain * signal).astype(np.float32), speed_hz, truth)

    def _impacts(self, fault: str, speed_hz: float, rng: np.random.Generator) -> np.ndarray:
        gap_s = 1 / (ORDERS[fault] * speed_hz)
        at_s = np.cumsum(gap_s * (1 + 0.01 * rng.standard_normal(int(0.4 / gap_s) + 2))) - gap_s * rng.random()
        strength = np.ones(len(at_s))
        if fault != "outer race":  # it turns: through the loaded zone, and out of it again
            strength = 0.6 + 0.4 * np.cos(2 * np.pi * speed_hz * (0.4 if fault == "ball" else 1.0) * at_s)
        at = (at_s * RATE_HZ).astype(int)
        inside = (at >= 0) & (at < WINDOW)
        train = np.zeros(WINDOW)
        np.add.at(train, at[inside], strength[inside])
        t = np.arange(RING) / RATE_HZ
        return np.convolve(train, np.exp(-self.damping * t) * np.sin(2 * np.pi * self.ring_hz * t))[:WINDOW]


def features(window: Window) -> np.ndarray:
    """Return the log envelope spectrum by orders of the shaft's speed, without its mean: (FEATURES,) f4."""
    spectrum = np.fft.rfft(window.signal)
    hz = np.fft.rfftfreq(WINDOW, 1 / RATE_HZ)
    spectrum[hz < 1000] = 0  # imbalance and teeth; what rings stays
    envelope = np.abs(np.fft.ifft(spectrum, WINDOW))
    power = np.abs(np.fft.rfft((envelope - envelope.mean()) * np.hanning(WINDOW)))
    orders = np.linspace(0.4, MOST_ORDERS, FEATURES)
    found = np.log(np.interp(orders * window.speed_hz, hz, power) + 1e-6)
    return (found - found.mean()).astype(np.float32)


def stream(machine: Machine, faults: tuple[int, ...], seed: int) -> Iterator[Window]:
    """Record endlessly: the machine is healthy for a while, then has one of these faults until it is repaired."""
    rng = np.random.default_rng([seed, 7])
    while True:
        for truth in (0, int(rng.choice(faults))):
            for _ in range(int(rng.integers(4, 12))):
                yield machine.window(truth)
