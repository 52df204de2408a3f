"""An app that classifies what it sees, while its model learns from other devices in the background.

    python camera.py --broker mqtt://127.0.0.1:1883 --id kitchen

The lines that take part in the federation are those between the two rulers.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.datasets import load_digits

import edge_sdk


def main() -> None:
    """Look, predict, sleep.  After Ctrl-C the next start continues."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--id", required=True)
    parser.add_argument("--public", default="public.npz")
    parser.add_argument("--seconds", type=float, default=3600.0)
    args = parser.parse_args()
    seen, labels, stream = _recordings(args.id)

    # ------------------------------------------------------------------------------------------
    agent = edge_sdk.Agent(
        federation="cameras",
        broker=args.broker,
        identity=args.id,
        state=f"state/{args.id}",
        model=edge_sdk.NumpyModel(10, (1, 8, 8), seed=1, preprocess=edge_sdk.Preprocess(scale=1 / 16)),
        data=edge_sdk.split_samples(edge_sdk.Samples(seen, labels)),  # a part scores each new model
        public=edge_sdk.PublicSet.load(args.public),
    )
    agent.on_link(lambda line: print(f"federation: {line}", flush=True))
    agent.on_refusal(lambda refusal: print(f"refused: {refusal}", flush=True))
    agent.start()
    # ------------------------------------------------------------------------------------------

    end_s = time.monotonic() + args.seconds
    try:
        for i, picture in enumerate(stream):
            if time.monotonic() > end_s:
                break
            probabilities = agent.predict(picture[None])[0]  # (k,), while the agent trains
            print(f"picture {i}: a {probabilities.argmax()} ({probabilities.max():.0%})", flush=True)
            time.sleep(0.05)
    except KeyboardInterrupt:
        print("stopped", flush=True)
    finally:
        agent.stop()


def _recordings(identity: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the labelled pictures of this camera, half of the digits, and the pictures that it will see."""
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    mine = digits.target[:1200] % 2 == sum(map(ord, identity)) % 2
    return images[:1200][mine], digits.target[:1200][mine].astype(np.int64), images[1200:]


if __name__ == "__main__":
    main()
