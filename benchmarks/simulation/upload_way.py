"""The way of one upload of FedAvg: the files and functions that run from a device's `share` to the mean.

The run has one device.

    python -m benchmarks.simulation.upload_way           # two numbers
    python -m benchmarks.simulation.upload_way --list    # every function, in the order of its first call
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from edge_sdk.methods.contract.averaging import Averaging
from edge_sim.config import settings
from edge_sim.runs.runner import run

ROOT = Path(__file__).parents[2]
PACKAGES = tuple(str(ROOT / name) for name in ("edge_sdk", "coordinator", "edge_sim"))
RUN = """
[federation]
name = "way"
method = "fedavg"
rounds = 3
devices = 1
[train]
local_steps = 1
[data]
source = "digits"
[partition]
kind = "iid"
[[fleet]]
board = "rpi4"
model = "mlp"
count = 1
"""
ROUND = 1


def way() -> dict[CodeType, None]:
    """The functions of our packages that run from `share` of round 1 to the end of `reduce`."""
    seen: dict[CodeType, None] = {}
    begun = ended = False

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal begun, ended
        code = frame.f_code
        if code is Averaging.share.__code__ and event == "call":
            begun = begun or frame.f_locals["device"].job.round == ROUND
        if begun and not ended and event == "call" and code.co_filename.startswith(PACKAGES):
            seen[code] = None
        if begun and code is Averaging.reduce.__code__ and event == "return":
            ended = True

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "way.toml"
        file.write_text(RUN, encoding="utf-8")
        config = settings.load_config(file)
        sys.setprofile(look)
        try:
            run(config)
        finally:
            sys.setprofile(None)
    return seen


def main() -> None:
    """Print what was found."""
    found = list(way())
    if "--list" in sys.argv:
        for code in found:
            print(f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_firstlineno} {code.co_qualname}")
    print(f"{len({code.co_filename for code in found})} files, {len(found)} functions")


if __name__ == "__main__":
    main()
