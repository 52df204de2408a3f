"""The program of exchange.py that runs a device with a profile of each of its threads; PROFILE names the files.

python -m benchmarks.messages.profiled_host ARGUMENTS     of edge_sim.over_broker.host
"""

from __future__ import annotations

import cProfile
import os
import sys
import threading
import time

from edge_sim.over_broker import host


def profile_threads() -> None:
    """Let each thread that ends leave a profile of its processor time in a file of its own."""
    run = threading.Thread.run

    def profiled(self: threading.Thread) -> None:
        profile = cProfile.Profile(time.thread_time)
        try:
            profile.runcall(run, self)
        finally:
            profile.dump_stats(f"{os.environ['PROFILE']}.{self.name}")

    threading.Thread.run = profiled  # type: ignore[method-assign]


if __name__ == "__main__":
    profile_threads()
    sys.exit(host.host_devices())
