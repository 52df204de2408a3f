"""A camera that learns whom it sees, with other cameras: somebody, or nobody.

    python camera.py --broker mqtt://lab:1883 --id front-door             # on a Raspberry Pi with a camera
    python camera.py --broker mqtt://lab:1883 --id desk --pretend 1       # anywhere: made-up pictures

While it runs, type what the last picture showed, as the number of a class, and Enter.  A picture without an answer is
kept without a label, and gives way to newer ones.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

import edge_sdk

CLASSES = ("nobody", "somebody")
SIZE = 16


def main() -> None:
    """Look, predict, keep the picture, read answers.  After Ctrl-C the next start continues."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--id", required=True)
    parser.add_argument("--every-s", type=float, default=2.0, help="seconds between two pictures (default: 2)")
    parser.add_argument("--pretend", type=int, metavar="SEED", help="generate pictures and answers")
    args = parser.parse_args()
    look = pi_camera() if args.pretend is None else pretended(args.pretend)

    # ------------------------------------------------------------------------------------------
    store = edge_sdk.SampleStore(f"state/{args.id}/pictures.db", classes=len(CLASSES), max_bytes=64 * 2**20)
    agent = edge_sdk.Agent(
        federation="cameras",
        broker=args.broker,
        identity=args.id,
        state=f"state/{args.id}",
        model=edge_sdk.NumpyModel(len(CLASSES), (1, SIZE, SIZE), seed=1, preprocess=edge_sdk.Preprocess(scale=1 / 255)),
        data=store,
        policy=edge_sdk.Policy(max_temperature_c=75, unthrottled=True, nice=15),
    )
    agent.on_link(lambda line: print(f"federation: {line}", flush=True))
    agent.on_refusal(lambda refusal: print(f"refused: {refusal}", flush=True))
    agent.start()
    # ------------------------------------------------------------------------------------------

    answers = typed_answers()
    try:
        for number in range(sys.maxsize):
            picture, truth = look()
            p = agent.predict(picture[None])[0]  # (2,), while the agent trains
            print(f"picture {number}: {CLASSES[p.argmax()]} ({p.max():.0%})", flush=True)
            sample = store.observe(picture)
            if truth is not None:
                store.label(sample, truth)
            time.sleep(args.every_s)
            while not answers.empty():
                store.label(sample, answers.get())
    except KeyboardInterrupt:
        print("stopped", flush=True)
    finally:
        agent.stop()
        store.close()


def pi_camera() -> Callable[[], tuple[np.ndarray, int | None]]:
    """Pictures of the Pi's camera, grey and small: (SIZE, SIZE) uint8, without an answer."""
    try:
        from picamera2 import Picamera2
    except ImportError:
        sys.exit("camera.py: no picamera2 here: sudo apt install python3-picamera2, or add --pretend 1")
    camera = Picamera2()
    camera.configure(camera.create_video_configuration({"size": (SIZE * 20, SIZE * 20), "format": "YUV420"}))
    camera.start()

    def look() -> tuple[np.ndarray, int | None]:
        grey = camera.capture_array()[: SIZE * 20, : SIZE * 20]  # the Y plane of YUV420
        return grey.reshape(SIZE, 20, SIZE, 20).mean(axis=(1, 3)).astype(np.uint8), None

    return look


def pretended(seed: int) -> Callable[[], tuple[np.ndarray, int | None]]:
    """Generated pictures with their answers: a bright shape somewhere in a grey room, or an empty room."""
    rng = np.random.default_rng(seed)

    def look() -> tuple[np.ndarray, int | None]:
        picture = rng.normal(90, 12, (SIZE, SIZE))
        somebody = bool(rng.integers(2))
        if somebody:
            row, column = rng.integers(2, SIZE - 8), rng.integers(2, SIZE - 5)
            picture[row : row + 7, column : column + 4] += 70
        return np.clip(picture, 0, 255).astype(np.uint8), int(somebody)

    return look


def typed_answers() -> queue.Queue[int]:
    """Yield the class numbers that are typed; other input is ignored."""
    found: queue.Queue[int] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            if line.strip() in map(str, range(len(CLASSES))):
                found.put(int(line))

    threading.Thread(target=read, daemon=True).start()
    return found


if __name__ == "__main__":
    main()
