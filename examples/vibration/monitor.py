"""A monitor of one machine's bearing, whose model learns from its own stream and from other machines' models.

    python monitor.py --number 0 --broker mqtt://127.0.0.1:1883

docs/tutorial/vibration.md builds it step by step.  The lines between the two rulers are all that taking part needs.
"""

from __future__ import annotations

import argparse
import time
from collections import deque

import bearing

import edge_sdk

REPORT_AFTER = 20
"""Windows until a mechanic has looked at the machine, and the truth of a window is known."""


def main() -> None:
    """Record, predict, learn.  After Ctrl-C or kill -9 the next start continues."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--number", type=int, required=True, help="which machine of the plant: 0, 1, 2 ...")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--every-s", type=float, default=0.05, help="the time between two windows")
    args = parser.parse_args()
    name = f"machine-{args.number}"
    machine = bearing.Machine(args.number)
    own_fault = 1 + args.number % 3  # the one fault that this machine has had so far

    # ------------------------------------------------------------------------------------------
    store = edge_sdk.SampleStore(f"state/{name}/samples.db", classes=4, max_bytes=8 * 2**20)
    agent = edge_sdk.Agent(
        federation="bearings",
        broker=args.broker,
        identity=name,
        state=f"state/{name}",
        model=edge_sdk.NumpyModel(4, (1, 1, bearing.FEATURES), seed=1),
        data=store,
        share_weights=True,
        policy=edge_sdk.Policy(max_temperature_c=75, nice=10),
    )
    agent.on_link(lambda line: print(f"{name}: {line}", flush=True))
    agent.start()
    # ------------------------------------------------------------------------------------------

    unknown: deque[tuple[str, int]] = deque()  # id and truth of the windows that a mechanic has not checked yet
    right: deque[bool] = deque(maxlen=100)
    end_s = time.monotonic() + args.seconds
    try:
        for i, window in enumerate(bearing.stream(machine, (own_fault,), seed=args.number)):
            if time.monotonic() > end_s:
                break
            x = bearing.features(window)
            guess = int(agent.predict(x[None])[0].argmax())  # while the agent trains
            right.append(guess == window.truth)
            unknown.append((store.observe(x), window.truth))
            if len(unknown) > REPORT_AFTER:
                store.label(*unknown.popleft())
            if i % 100 == 99:
                share = sum(right) / len(right)
                print(f"{name}: window {i + 1}, {share:.0%} of the last {len(right)} right", flush=True)
            time.sleep(args.every_s)
    except KeyboardInterrupt:
        print(f"{name}: stopped", flush=True)
    finally:
        agent.stop()
        store.close()


if __name__ == "__main__":
    main()
