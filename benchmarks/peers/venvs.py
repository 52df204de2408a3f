"""One environment per peer: they pin each other's dependencies apart."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
OURS = "edge"
CONSTRAINTS = HERE.parents[1] / "constraints.txt"


@dataclass(frozen=True)
class NotInstalled:
    """A peer that cannot be had here, and why."""

    why: str


def python_of(peer: str, folder: Path) -> Path | NotInstalled:
    """The interpreter of the peer's environment, made on the first call; of ours, this one."""
    if peer == OURS:
        return Path(sys.executable)
    wanted = HERE / "requirements" / f"{peer}.txt"
    place = folder / peer
    python, stamp = place / "bin" / "python", place / "installed"
    digest = hashlib.sha256(wanted.read_bytes() + CONSTRAINTS.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"installing {peer} (a gigabyte, minutes)", flush=True)
    venv.create(place, with_pip=True, symlinks=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "-r", str(wanted), "-c", str(CONSTRAINTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-1000:], flush=True)  # shown, not kept: it names hosts and paths
        return NotInstalled(f"pip ended with {done.returncode}")
    stamp.write_text(digest)
    return python
