"""Writes public.npz for the coordinator and its Python devices, and teacher.json for device.mjs.

teacher.json holds the same public samples and the mean picture of each digit.
"""

import base64
import json
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

SHARPNESS = 0.01
"""Logit per squared grey level: neighbouring digits come out about 3 apart."""


def main(folder: Path) -> None:
    """Write both files."""
    digits = load_digits()
    pictures = digits.images.astype(np.uint8)  # (1797, 8, 8)
    public, x, y = pictures[1000:1300], pictures[:1000], digits.target[:1000]
    means = [x[y == k].mean(axis=0).ravel().round(4).tolist() for k in range(10)]
    teacher = {
        "public": {"dtype": "|u1", "shape": public.shape, "base64": base64.b64encode(public.tobytes()).decode()},
        "means": means,
        "sharpness": SHARPNESS,
    }
    np.savez(folder / "public.npz", public=public)
    (folder / "teacher.json").write_text(json.dumps(teacher) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
