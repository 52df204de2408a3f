"""Writes digits.json for the page: 60 samples of each digit from 5 to 9 to train on, and a balanced test."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

HELD = (5, 6, 7, 8, 9)
EACH = 60


def main(folder: Path) -> None:
    """Write the file."""
    digits = load_digits()
    x, y = digits.images.astype(int).reshape(-1, 64), digits.target
    mine = np.concatenate([np.flatnonzero(y[:1000] == k)[:EACH] for k in HELD])
    test = np.arange(1300, 1600)
    parts = {"train": mine, "test": test}
    text = json.dumps({name: [[x[i].tolist(), int(y[i])] for i in rows] for name, rows in parts.items()})
    (folder / "digits.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
