"""Eight devices learn four classes from each other, each having seen two of them: on this machine, in seconds.

    python quickstart.py

It needs what `pip install edge-sdk` brings: numpy, msgpack and paho-mqtt.  No broker, no torch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import waves

import edge_sim

FEDERATION = {
    "federation": {"name": "quickstart", "method": "fedmd", "rounds": 40, "devices": 8, "seed": 0},
    "method": {"form": "digest", "align": 400},
    "train": {"learning_rate": 0.02, "local_steps": 3, "evaluate_every": 10},
    "data": {"source": "npz", "normalise": "fit", "public": 400},
    "partition": {"kind": "classes_per_device", "classes_per_device": 2},
    "fleet": [{"count": 8, "model": "softmax", "board": "rpi4"}],
}
"""The same tables as in a TOML file: docs/reference/configuration.md."""


def main() -> None:
    """Make the data, train alone and together, and print the accuracy of each device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("waves.npz"), help="written there (default: waves.npz)")
    data = parser.parse_args().data.resolve()
    if not data.parent.is_dir():
        parser.error(f"--data {data}: there is no folder {data.parent}")
    waves.write(data)
    result = edge_sim.run({**FEDERATION, "data": {**FEDERATION["data"], "path": str(data)}})

    print("device     has samples of  right alone  right together")
    for device in result.devices:
        held = ", ".join(waves.KINDS[k] for k in device.classes)
        print(f"{device.id:<10} {held:<16} {device.standalone_accuracy:>9.0%} {device.accuracy:>15.0%}")
    sent = sum(device.bytes_up for device in result.devices) / len(result.devices) / result.rounds_done
    print(f"A device sent {sent / 1000:.1f} kB in a round: its model's predictions for the public samples.")


if __name__ == "__main__":
    main()
