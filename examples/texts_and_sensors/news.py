"""A federation of eight devices with forty short texts each, which learn together to recognise their topics.

EDGE_DATA names a folder with ag_news_test.csv.xz (the test part of AG's news topics); without it, texts are generated.
"""

import csv
import lzma
import os
from pathlib import Path

import numpy as np

import edge_sdk
import edge_sim
from edge_sim.notebook.outcomes import SimulationResult

WORDS, LENGTH, DEVICES, EACH = 5000, 48, 8, 40


def news(path: Path) -> tuple[list[str], list[int]]:
    """The texts of AG News and their topics: 0 world, 1 sports, 2 business, 3 science."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    return [f"{title}. {lines}" for _, title, lines in rows], [int(topic) - 1 for topic, _, _ in rows]


def made_up(count: int = 1200) -> tuple[list[str], list[int]]:
    """Texts of words that are frequent in one of four topics."""
    rng = np.random.default_rng(0)
    topics = rng.integers(0, 4, count)
    words = np.where(rng.random((count, 20)) < 0.3, 100 * topics[:, None], 400) + rng.integers(0, 100, (count, 20))
    return [" ".join(f"w{word}" for word in text) for text in words], topics.tolist()


def run(texts: list[str], topics: list[int], rounds: int = 30, method: str = "fedavg") -> SimulationResult:
    """Run the federation, with a fifth of the texts as the test; fedavg has one net for all, others have four nets."""
    x, y = edge_sdk.hashed_words(texts, vocabulary=WORDS, length=LENGTH), np.array(topics)
    order, test = np.random.default_rng(0).permutation(len(y)), len(y) // 5
    rest, held = order[test:][: DEVICES * EACH], order[:test]
    config = {
        "federation": {"name": "news", "method": method, "rounds": rounds, "devices": DEVICES},
        "data": {"kind": "tokens", "vocabulary": WORDS, "public": 0 if method == "fedavg" else 100},
        "partition": {"kind": "dirichlet", "alpha": 1.0},
        "train": {"optimiser": "adam", "momentum": 0.0, "learning_rate": 0.01, "local_steps": 10},
        "fleet": [{"count": DEVICES, "model": "text-bag" if method == "fedavg" else "group:text-4"}],
    }
    return edge_sim.run(config, data=(x[rest], y[rest], x[held], y[held]))


if __name__ == "__main__":
    kept = Path(os.environ.get("EDGE_DATA", ".")) / "ag_news_test.csv.xz"
    for device in run(*(news(kept) if kept.is_file() else made_up())).devices:
        print(f"{device.id} {device.model}: {device.accuracy:.1%}, alone {device.standalone_accuracy:.1%}")
