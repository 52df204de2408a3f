"""examples/quickstart, run as a newcomer runs it: with the base install alone, in one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
HEAVY = ("torch", "onnxruntime", "sklearn", "matplotlib", "rich", "amqtt")


def test_devices_learn_from_each_other_on_the_base_install(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"  # packages of extras, as if they were not installed
    hidden.mkdir()
    for name in HEAVY:
        (hidden / f"{name}.py").write_text(f"raise ModuleNotFoundError({name!r}, name={name!r})\n")
    done = subprocess.run(
        [sys.executable, str(QUICKSTART / "quickstart.py"), "--data", str(tmp_path / "waves.npz")],
        env={**os.environ, "PYTHONPATH": str(hidden)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^device-\d+ .* (\d+)% +(\d+)%$", done.stdout, re.MULTILINE)
    assert len(rows) == 8
    assert all(int(alone) < 55 and int(together) > 80 for alone, together in rows)
