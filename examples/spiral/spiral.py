"""Six spiral arms on ten devices, none of which holds all of them: FedAvg and FedNH, drawn in two dimensions.

After figures 1 and 2 of Dai et al. 2023 (FedNH): features have two dimensions, so that they can be drawn.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from picture import Local, Trained, accuracy, draw
from torch import nn

from coordinator.config import load_toml
from coordinator.ledger import Ledger
from edge_sdk import Preprocess, TorchModel
from edge_sdk.methods.contract.job import Job
from edge_sdk.models.base import Batches
from edge_sdk.models.torch_nets.torch_device import seeded
from edge_sdk.objectives import CrossEntropy
from edge_sdk.protocol.messages import FederationSpec
from edge_sim.clock.virtual_fleet import VirtualFleet
from edge_sim.config import settings
from edge_sim.engines.torch_threads import use_one_thread
from edge_sim.fleet.fleet import Device, build_fleet

HERE = Path(__file__).parent
CLASSES, POINTS, ROUNDS, WIDTH = 6, 1000, 40, 64
TURN = 0.75 * np.pi
"""How far an arm turns on its way from radius 1 to 10."""
NOISE = 0.16
"""The standard deviation of the angle, in radians."""


def arms(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` points of each arm: x (n, 2) within the unit circle, y (n,)."""
    rng = np.random.default_rng(seed)
    along = np.tile(np.linspace(0, 1, count), CLASSES)  # (n,)
    y = np.repeat(np.arange(CLASSES), count)
    angle = y * 2 * np.pi / CLASSES + along * TURN + rng.normal(0, NOISE, len(y))
    radius = 0.1 + 0.9 * along
    return (radius * np.array([np.cos(angle), np.sin(angle)])).T.astype(np.float32), y


def net(classes: int, _shape: tuple[int, ...], seed: int, preprocess: Preprocess, head: str) -> TorchModel:
    """Five layers, the fourth of which gives the two features."""
    with seeded(seed):
        hidden = [layer for _ in range(2) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        layers = nn.Sequential(
            nn.Flatten(), nn.Linear(2, WIDTH), nn.ReLU(), *hidden, nn.Linear(WIDTH, 2), nn.Linear(2, classes)
        )
        return TorchModel(layers, classes, input_shape=(1, 1, 2), preprocess=preprocess, head=head, name="spiral")


def trained(tables: Mapping[str, Any], method: str, epochs: int) -> Trained:
    """Run the federation; then let the two devices whose samples differ most continue alone."""
    tables = {**tables, "federation": {**tables["federation"], "method": method}}
    virtual = VirtualFleet(build_fleet(settings.parse(tables, HERE / "federation.toml")), ledger=Ledger(None))
    virtual.run()
    virtual.server.close()
    model = virtual.devices[0].participant.context.bench.model  # the closing Assign brought it to everybody
    spec = virtual.server.spec
    alone = []
    for at in most_unlike([device.device.data.class_counts(CLASSES) for device in virtual.devices]):
        device = virtual.devices[at]
        own = device.device.kit.model(None)
        own.load_state(model.state_bytes())
        train_on(own, device.device, spec, epochs)
        alone.append(Local(device.device.kit.id, device.device.data.class_counts(CLASSES), own))
    return Trained(method, model, tuple(alone))


def most_unlike(counts: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """The two devices whose classes overlap least."""
    shares = np.array(counts) / np.sum(counts, axis=1, keepdims=True)  # (n, k)
    overlap = np.minimum(shares[:, None], shares[None]).sum(axis=2) - 0.1 * np.log(np.sum(counts, axis=1))
    overlap[np.tril_indices(len(counts))] = np.inf
    first, second = np.unravel_index(overlap.argmin(), overlap.shape)
    return int(first), int(second)


def train_on(model: TorchModel, device: Device, spec: FederationSpec, epochs: int) -> None:
    """Some epochs on a device's own samples, as a round would begin; a head that is fixed stays fixed."""
    samples = len(device.data.train)
    job = Job(
        spec=spec, number=device.kit.number, round=spec.rounds, exchange=0, closing=False, samples=samples, learns=True
    )
    indices = job.private_batches(epochs * -(-samples // spec.train.batch_size)).indices
    x = model.spec.preprocess(device.data.train.x)
    part = "body" if "cosine-head" in model.spec.capabilities else "all"
    model.fit(Batches(inputs=x, labels=device.data.train.y, indices=indices), (CrossEntropy(),), job.optim, part)


def main() -> None:
    """Train, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the federation (%(default)s)")
    parser.add_argument("--points", type=int, default=POINTS, help="of each arm (%(default)s)")
    parser.add_argument("--epochs", type=int, default=10, help="of a device alone, at the end (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("spiral.png"), help="the picture (%(default)s)")
    options = parser.parse_args()
    use_one_thread()
    (x, y), (x_test, y_test) = arms(options.points, seed=0), arms(options.points // 4, seed=1)
    with TemporaryDirectory() as folder:
        np.savez(Path(folder) / "spiral.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
        tables = load_toml(HERE / "federation.toml", [f"federation.rounds={options.rounds}"])
        tables["data"]["path"] = str(Path(folder) / "spiral.npz")
        runs = [trained(tables, method, options.epochs) for method in ("fedavg", "fednh")]
    for run in runs:
        print(
            f"{run.method}: {accuracy(run.model, x_test, y_test):.1%} of the test points, "
            + ", ".join(
                f"{local.name} after {options.epochs} epochs alone {accuracy(local.model, x_test, y_test):.1%}"
                for local in run.alone
            )
        )
    draw(runs, x_test, y_test, options.out)
    print(f"picture: {options.out}")


if __name__ == "__main__":
    main()
