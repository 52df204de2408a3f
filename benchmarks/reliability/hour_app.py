"""The app of one device of `benchmarks.reliability.hour`: it observes labelled digits, and learns with its fleet.

    python hour_app.py IDENTITY STATE SECONDS_BETWEEN_SAMPLES [private]

It appends a line of JSON to STATE/seen.jsonl for each change of `agent.status()`, at least every 10 s, and for each
round that it has trained.  `private`: its owner lets no weights leave the device.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import edge_sdk

LOOK_S, SAY_S = 0.5, 10.0
FIRST, TEST = 60, 400
"""Samples that it has from the start, and those that all devices test with."""


def main() -> None:
    """Observe, and write down what the agent says, until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    identity, state, pause_s = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    state.mkdir(exist_ok=True)
    with np.load("digits.npz") as digits:
        images, labels = digits["images"], digits["labels"]
    rng = np.random.default_rng([int(identity.name[-2:]), time.time_ns()])
    store = edge_sdk.SampleStore(
        state / "samples.db",
        classes=10,
        max_samples=500,
        test=edge_sdk.Samples(images[:TEST], labels[:TEST]),
    )
    with (state / "seen.jsonl").open("a", encoding="utf-8") as seen, store:

        def say(kind: str, **fields: Any) -> None:
            seen.write(json.dumps({"time_s": round(time.time(), 2), "kind": kind, **fields}) + "\n")
            seen.flush()

        def observe() -> None:
            one = int(rng.integers(TEST, len(images)))
            store.observe(np.clip(images[one] + rng.integers(0, 2, (8, 8)), 0, 16).astype(np.uint8), int(labels[one]))

        for _ in range(FIRST if not len(store) else 0):
            observe()
        agent = edge_sdk.Agent(
            federation="hour",
            identity=identity,
            state=state / "agent",
            model=edge_sdk.NumpyModel(10, (1, 8, 8), seed=1, preprocess=edge_sdk.Preprocess(scale=1 / 16)),
            data=store,
            share_weights="private" not in sys.argv,
            stay=True,
        )
        agent.on_link(lambda line: say("news", line=line))
        agent.on_round(lambda report: say("round", round=report.round, withheld=report.withheld))
        agent.start()
        try:
            _look_on(agent, say, observe, pause_s)
        finally:
            agent.stop()
            say("stopped")


def _look_on(agent: edge_sdk.Agent, say: Any, observe: Any, pause_s: float) -> None:
    last, said_s, observed_s = "", 0.0, time.monotonic()
    while True:
        now_s = time.monotonic()
        if now_s - observed_s >= pause_s:
            observe()
            observed_s = now_s
        status = {**agent.status().to_json(), "running": agent.running, "error": str(agent.error or "")}
        known = json.dumps(status)
        if known != last or now_s - said_s > SAY_S:
            say("status", **status)
            last, said_s = known, now_s
        time.sleep(min(LOOK_S, pause_s))


if __name__ == "__main__":
    main()
