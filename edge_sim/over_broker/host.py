"""A process that runs several devices, one for each folder; each has its own thread and broker link.

`python -m edge_sim.over_broker.host --broker URL --federation NAME [--quarantine] FOLDER...`

The parent first writes a line of JSON to its standard input, see `greeting`, and keeps it open as long as it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path

from edge_sdk.agent.agent import Agent
from edge_sdk.agent.arguments import SimulatedId
from edge_sdk.errors import EdgeError
from edge_sim.fleet.fleet import read_device
from edge_sim.models.given_functions import receive_functions, sent_functions

POLL_S = 0.05


def host_devices() -> int:
    """Run the devices until the federation is over, or until the parent process ends."""
    args = _arguments()
    try:
        _receive_greeting()
        devices = [read_device(folder) for folder in args.folder]
    except EdgeError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    if any(device.kit.needs_torch for device in devices):
        from edge_sim.engines.torch_threads import (
            use_exact_arithmetic,  # torch is imported only if a device needs it
            use_one_thread,  # torch is imported only if a device needs it
        )

        use_one_thread()
        use_exact_arithmetic()
    try:
        agents = [
            Agent(
                federation=args.federation,
                broker=args.broker,
                identity=SimulatedId(device.kit.id),
                model=device.kit.model(device.public),
                data=device.data,
                public=device.public,
                state=folder,
                board=device.kit.board_name,
                disclose_classes=True,
                privacy=device.kit.budget,
                share_weights=True,
                share_sample_codes=True,
                secret=device.kit.secret,
                proxy=device.kit.proxy_model(device.public),
                sends_logs=False,
                max_drop=None,
                quarantine=args.quarantine,
            )
            for device, folder in zip(devices, args.folder, strict=True)
        ]
    except EdgeError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    orphaned = _watch_parent()
    for agent in agents:
        agent.on_link(lambda _line: None)  # the coordinator logs broker faults, once for all devices
        agent.start()
    while any(agent.running for agent in agents) and not orphaned.is_set():
        time.sleep(POLL_S)
    for agent in agents:
        agent.stop()
    (args.folder[0] / "modules.json").write_text(json.dumps(sorted(sys.modules)), encoding="utf-8")
    failed = [
        f"{device.kit.id}: {agent.error}"
        for device, agent in zip(devices, agents, strict=True)
        if agent.error is not None
    ]
    sys.stderr.write("".join(f"{line}\n" for line in failed))
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m edge_sim.over_broker.host")
    parser.add_argument("--broker", required=True)
    parser.add_argument("--federation", required=True)
    parser.add_argument("--quarantine", action="store_true")
    parser.add_argument("folder", type=Path, nargs="+")
    return parser.parse_args()


def greeting(names: Iterable[str]) -> bytes:
    """Return the line that a host reads first: where to import from, and the given functions among models' names.

    Raises UsageError for a function that no other process can import.
    """
    functions = {name: b64encode(sent).decode("ascii") for name, sent in sent_functions(names).items()}
    return json.dumps({"path": sys.path, "functions": functions}).encode("utf-8") + b"\n"


def _receive_greeting() -> None:
    line = b""
    while not line.endswith(b"\n"):
        read = os.read(0, 1 << 16)  # unbuffered, see _watch_parent
        if not read:
            return  # the parent has ended; _watch_parent notices
        line += read
    given = json.loads(line)
    sys.path += [folder for folder in given["path"] if folder not in sys.path]
    receive_functions({name: b64decode(sent) for name, sent in given["functions"].items()})


def _watch_parent() -> threading.Event:
    """Return an event that is set when the parent closes its pipe: so that devices do not outlive the simulation."""
    orphaned = threading.Event()

    def read() -> None:
        while os.read(0, 1):  # unbuffered: a thread in a buffered read would block the end of this process
            pass
        orphaned.set()

    threading.Thread(target=read, daemon=True).start()
    return orphaned


if __name__ == "__main__":
    sys.exit(host_devices())
