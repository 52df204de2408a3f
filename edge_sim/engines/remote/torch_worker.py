"""A worker process: `python -m edge_sim.engines.remote.torch_worker PIPE BUFFER`, two file descriptors."""

from __future__ import annotations

import logging
import signal
import sys

from edge_sim.engines.memory import freed_memory_kept
from edge_sim.engines.remote.torch_mapped_models import MappedModels, MappedSetup
from edge_sim.engines.remote.worker import WorkerDevices
from edge_sim.engines.remote.worker_process import worker_pipe
from edge_sim.engines.stack.torch_parameter_buffer import ParameterBuffer
from edge_sim.engines.torch_threads import use_one_thread


def serve_pipe() -> int:
    """Serve requests until the pipe closes.  An exception of the setup is sent in place of the first answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the simulation's to handle
    logging.basicConfig(level=logging.CRITICAL)  # the result tells what the command line does not show
    use_one_thread()
    pipe = worker_pipe(int(sys.argv[1]))
    try:
        try:
            devices = _devices(pipe.recv(), int(sys.argv[2]))
        except EOFError:
            return 0
        except Exception as error:  # noqa: BLE001  # told to the simulation, which waits for us
            pipe.send(error)
            return 1
        with freed_memory_kept():
            while True:
                pipe.send(devices.serve(pipe.recv()))
    except (EOFError, OSError):
        return 0


def _devices(setup: MappedSetup, descriptor: int) -> WorkerDevices:
    sys.path[:] = setup.worker.modules
    return WorkerDevices(setup.worker, MappedModels(setup, ParameterBuffer(0, descriptor=descriptor)))


if __name__ == "__main__":
    sys.exit(serve_pipe())
