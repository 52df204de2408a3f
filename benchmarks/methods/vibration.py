"""How much a fleet of vibration monitors gains: the machines of examples/vibration, alone and together.

    python -m benchmarks.methods.vibration --machines 8 --rounds 300 --seeds 0,1,2

Each machine has had one of three faults.  Before each round it records two windows, predicts them, and learns the truth
of those that it recorded ten windows ago.  At the end it is asked about all classes, those that it never had included.
Coordinator and agents are those of a deployment, on a hub in memory, one round after the other, without a clock.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import edge_sdk
from coordinator.ledger import Ledger
from coordinator.rounds import RoundPhase, RoundPolicy
from coordinator.serving.server import Server
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.protocol.messages import FederationSpec, TrainSpec
from edge_sdk.transport.memory.hub import Hub

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "vibration"))
import bearing

PER_ROUND = 2
"""Windows that a machine records before each round."""
REPORT_AFTER = 10
"""Windows until the truth of one is known."""
TESTED = 60
"""Windows of each class in the test at the end."""


@dataclass
class Monitor:
    """One machine with its agent."""

    agent: edge_sdk.Agent
    store: edge_sdk.SampleStore
    machine: bearing.Machine
    windows: object
    unknown: deque
    right: list

    def guess(self, x: np.ndarray) -> int:
        """Return the class that the model in training predicts for the features of a window."""
        return int(self.agent.participant.context.bench.model.logits(x[None, None, None]).argmax())

    def record(self) -> None:
        """Record some windows, predict them, and take the mechanic's reports in."""
        for _ in range(PER_ROUND):
            window = next(self.windows)
            x = bearing.features(window)
            self.right.append(self.guess(x) == window.truth)
            self.unknown.append((self.store.observe(x), window.truth))
            if len(self.unknown) > REPORT_AFTER:
                self.store.label(*self.unknown.popleft())

    def accuracy(self) -> float:
        """Return the accuracy on new windows of every class, those that this machine never had included."""
        found = [self.guess(bearing.features(self.machine.window(y))) == y for y in range(4) for _ in range(TESTED)]
        return float(np.mean(found))


def monitor(hub: Hub, number: int, seed: int) -> Monitor:
    """Return a machine of the plant with its agent."""
    store = edge_sdk.SampleStore(None, classes=4, seed=seed)
    agent = edge_sdk.Agent(
        federation="bearings",
        broker=hub.link(f"machine-{number}"),
        identity=f"machine-{number}",
        model=edge_sdk.NumpyModel(4, (1, 1, bearing.FEATURES), seed=1),
        data=store,
        share_weights=True,
    )
    agent.participant.connect()
    machine = bearing.Machine(number, seed)
    windows = bearing.stream(machine, (1 + number % 3,), seed=1000 * seed + number)
    return Monitor(agent, store, machine, windows, deque(), [])


def measure(method: str, *, machines: int, rounds: int, seed: int) -> tuple[float, float, list[float]]:
    """Run one federation.

    Returns the share of right predictions in the last quarter of the streams, the mean accuracy on all classes at the
    end, and that of each machine.
    """
    hub, made = Hub(), load_method(method)()
    train = TrainSpec(local_steps=10, learning_rate=0.02, batch_size=32)
    sizes = {"method": method, "contract": made.digest, "classes": 4, "rounds": rounds, "seed": seed}
    spec = FederationSpec(federation="bearings", feature_dim=bearing.FEATURES, train=train, **sizes)
    policy = RoundPolicy(expected=machines, quorum=1, rounds=rounds, exchanges=1, join_grace_s=0.0)
    server = Server(spec=spec, policy=policy, method=made, transport=hub.link("coordinator"), ledger=Ledger(None))
    server.connect()
    fleet, now_s, seen = [monitor(hub, number, seed) for number in range(machines)], 0.0, -1
    while server.rounds.phase is not RoundPhase.DONE:
        now_s += 0.1
        gathering = server.rounds.phase is RoundPhase.GATHERING
        if gathering or server.rounds.place.round > seen:
            seen = -1 if gathering else server.rounds.place.round
            for each in fleet:
                each.record()
        _turn(server, [each.agent for each in fleet], now_s)
    late = np.mean([np.mean(each.right[-len(each.right) // 4 :]) for each in fleet])
    each = [one.accuracy() for one in fleet]
    return float(late), float(np.mean(each)), each


def _turn(server: Server, agents: list[edge_sdk.Agent], now_s: float) -> None:
    """Let everybody handle the frames that have come, and compute the requests."""
    while (event := server.transport.poll(0.0)) is not None:
        server.handle(event, now_s)
    server.flush(now_s)
    server.tick(now_s)
    for agent in agents:
        while (event := agent.participant.context.transport.poll(0.0)) is not None:
            agent.participant.handle(event, now_s)
        agent.participant.tick(now_s)
        while agent.participant.work.computing:
            if agent.participant.work_slice():
                agent.participant.finish_work(now_s)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seeds", default="0,1,2")
    args = parser.parse_args()
    print("| method | seed | own stream, last quarter | all classes, mean | least | most |\n|---|---|---|---|---|---|")
    for seed in map(int, args.seeds.split(",")):
        for method in ("local", "fedavg"):
            late, mean, each = measure(method, machines=args.machines, rounds=args.rounds, seed=seed)
            print(f"| {method} | {seed} | {late:.3f} | {mean:.3f} | {min(each):.3f} | {max(each):.3f} |", flush=True)


if __name__ == "__main__":
    main()
