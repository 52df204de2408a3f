"""The draws of a run, once more: written from the contract, without the code that they are compared with.

The contract is docs/reference/protocol.md ("The public set") and the order of seeds (seed, round, exchange, number).
Twins of methods take their batches from here, so that a mistake in the real draws makes them differ.
"""

from __future__ import annotations

import hashlib

import numpy as np


def private_batches(*, seed: int, number: int, round_: int, samples: int, size: int, steps: int) -> np.ndarray:
    """Indices of a device's mini-batches in a round: (steps, size), epoch after epoch, `size` at most all samples."""
    size = min(size, samples)
    rng = np.random.default_rng([seed, round_, 0, number])
    drawn: list[int] = []
    while len(drawn) < steps * size:
        drawn += rng.permutation(samples).tolist()
    return np.array(drawn[: steps * size]).reshape(steps, size)


def step_seed(*, seed: int, number: int, round_: int, exchange: int, step: int) -> int:
    """The seed of what is random within one step of training, such as dropout."""
    return int(np.random.default_rng([seed, round_, exchange, number, step]).integers(2**31))


def public_batch(*, seed: int, round_: int, exchange: int, size: int, count: int) -> np.ndarray:
    """Indices of the public samples of an exchange, without repetition: (size,), `size` at most `count`."""
    blocks = (hashlib.sha256(f"public/{seed}/{round_}/{exchange}/{n}".encode()).digest() for n in range(size))
    stream = b"".join(blocks)
    order = list(range(count))
    for place in range(size):
        word = int.from_bytes(stream[8 * place : 8 * place + 8], "little")
        other = place + word % (count - place)
        order[place], order[other] = order[other], order[place]
    return np.array(order[:size])
