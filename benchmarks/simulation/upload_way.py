"""The way of one upload of FedAvg: the files and functions that run from a device's `share` to the mean.

The run has one device.  A function *carries* the upload if an argument is its message, its frame or its knowledge, or
a tuple, a dict, an event or a command that holds one of them.  `self` does not count: it holds everything.

    python -m benchmarks.simulation.upload_way            # the numbers of files and functions, of all and of carriers
    python -m benchmarks.simulation.upload_way --list     # every function, in the order of its first call
    python -m benchmarks.simulation.upload_way --carries  # those that carry the upload
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

from edge_sdk.methods.contract.averaging import Averaging
from edge_sdk.protocol.frames.frame_parts import FrameParts
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import Upload
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
LEAST_BYTES = 1024
"""An upload of this run is longer; other byte strings and flat arrays of floats on its way are shorter."""
DEPTH = 3
"""How many containers around an upload are looked into: an event, in it what arrived, in that the message."""


def holds(value: object, depth: int = DEPTH) -> bool:
    """Whether a value is an upload, its frame or its weights, or a small container of one."""
    if isinstance(value, (Upload, Weights)):
        return True
    if isinstance(value, (bytes, memoryview, FrameParts)):
        return len(value) >= LEAST_BYTES
    if isinstance(value, np.ndarray):  # weights are flat, samples and logits are not
        return value.ndim == 1 and value.dtype.kind in "fu" and value.nbytes >= LEAST_BYTES
    parts: Iterable[object] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, (tuple, list)):
        parts = value
    elif dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # all have it
        parts = [getattr(value, each.name, None) for each in dataclasses.fields(value)]
    return depth > 0 and any(holds(each, depth - 1) for each in parts)


def arguments(frame: FrameType) -> Iterable[object]:
    """The arguments of a call that has just begun, without `self`."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [frame.f_locals.get(name) for name in names if name not in ("self", "cls")]


def way() -> dict[CodeType, bool]:
    """What runs of our packages from `share` of round 1 to the end of `reduce`, and whether each carries it."""
    seen: dict[CodeType, bool] = {}
    begun = ended = False

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal begun, ended
        code = frame.f_code
        if code is Averaging.share.__code__ and event == "call":
            begun = begun or frame.f_locals["device"].job.round == ROUND
        if begun and not ended and event == "call" and code.co_filename.startswith(PACKAGES):
            seen[code] = seen.get(code, False) or any(map(holds, arguments(frame)))
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
    found = way()
    carriers = [code for code, carries in found.items() if carries]
    shown = list(found) if "--list" in sys.argv else carriers if "--carries" in sys.argv else []
    for code in shown:
        print(f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_firstlineno} {code.co_qualname}")
    for what, codes in (("in all", list(found)), ("carry the upload", carriers)):
        named = [code for code in codes if not code.co_name.startswith("<")]
        print(
            f"{what}: {len({code.co_filename for code in codes})} files, {len(codes)} functions, of which "
            f"{len(codes) - len(named)} are comprehensions and lambdas"
        )


if __name__ == "__main__":
    main()
