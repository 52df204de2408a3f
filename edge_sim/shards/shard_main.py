"""The process of a shard: `python -m edge_sim.shards.shard_main PIPE MEMORY`, two file descriptors."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from edge_sim.engines.memory import freed_memory_kept, rare_collection
from edge_sim.shards.messages import FrameWriter, ProgressMessage, ShardProgress, ShardSetup
from edge_sim.shards.shard import Shard, tried


def hold_devices(descriptor: int, memory: int) -> int:
    """Receive the devices, and answer until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator's process handles Ctrl-C
    logging.basicConfig(level=logging.CRITICAL)  # the result reports problems
    pipe: Connection[Any, Any] = Connection(descriptor)
    frames = FrameWriter(memory)
    with rare_collection(), freed_memory_kept(), contextlib.suppress(EOFError, OSError):
        setup: ShardSetup = pipe.recv()
        sys.path[:] = setup.modules
        raised, shard = tried(partial(Shard, setup))
        pipe.send((raised, shard if raised else None))
        while not raised:
            name, arguments = pipe.recv()
            pipe.send(tried(partial(_answered, shard, frames, name, arguments)))
    return 0


def _answered(shard: Shard, frames: FrameWriter, name: str, arguments: tuple[Any, ...]) -> Any:
    found = getattr(shard, name)(*arguments)
    return _progress_message(found, frames) if isinstance(found, ShardProgress) else found


def _progress_message(progress: ShardProgress, frames: FrameWriter) -> ProgressMessage:
    """Return a shard's progress, with long frames placed in memory."""
    frames.begin()
    sent, placed = list(progress.sent), {}
    for index, each in enumerate(sent):
        place = frames.put(bytes(each.given.frame))
        if place is not None:
            placed[index] = place
            sent[index] = each._replace(given=each.given._replace(frame=b""))
    return ProgressMessage(progress._replace(sent=sent), placed)


if __name__ == "__main__":
    sys.exit(hold_devices(int(sys.argv[1]), int(sys.argv[2])))
