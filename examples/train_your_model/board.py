"""One board: all layers learn on its own pictures, and with the other boards; then the trained file is served.

python board.py --id gate --runtime onnx --broker mqtt://127.0.0.1:1883 --federation fedavg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import edge_sdk

SHAPES = ("square", "disc", "triangle", "cross")
SCALED = edge_sdk.Preprocess(scale=1 / 255)


def pictures(folder: Path) -> edge_sdk.Samples:
    """All pictures (n, 3, h, w) of a folder with one folder for each class."""
    files = sorted(folder.glob("*/*.ppm"))
    x = [_read(file) for file in files]
    return edge_sdk.Samples(np.stack(x), np.array([SHAPES.index(file.parent.name) for file in files]))


def _read(file: Path) -> np.ndarray:
    head, _, pixels = file.read_bytes().partition(b"\n")
    width, height = map(int, head.split()[1:3])
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3).transpose(2, 0, 1)


def model(runtime: str) -> edge_sdk.Model:
    """The same net in each runtime; its weights average with each other."""
    if runtime == "onnx":
        return edge_sdk.OnnxModel("model.onnx", train="all", preprocess=SCALED)
    if runtime == "numpy":
        return edge_sdk.NumpyModel.from_onnx("model.onnx", preprocess=SCALED)
    import torch
    from make_parts import SIZE, net

    saved = torch.load("model.pt", weights_only=True)
    made = net(saved["width"])
    made.load_state_dict(saved["state"])
    return edge_sdk.TorchModel(made, len(SHAPES), input_shape=(3, SIZE, SIZE), preprocess=SCALED)


def served(file: Path, test: edge_sdk.Samples) -> float:
    """The accuracy of an .onnx file in a plain session of ONNX Runtime, as any app runs it."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    scores = session.run(None, {session.get_inputs()[0].name: SCALED(test.x)})[0]
    return float((scores.argmax(1) == test.y).mean())


def main() -> None:
    """Take part until the federation is complete, export, and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", required=True)
    parser.add_argument("--runtime", choices=["torch", "onnx", "numpy"], required=True)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--federation", required=True)
    args = parser.parse_args()
    train, test = (pictures(Path("camera", args.id, part)) for part in ("train", "test"))
    agent = edge_sdk.Agent(
        federation=args.federation,
        broker=args.broker,
        identity=args.id,
        state=f"state/{args.federation}/{args.id}",
        model=model(args.runtime),
        data=edge_sdk.LocalData(train=train, test=test),
        share_weights=True,
    )
    agent.on_link(lambda line: print(line, flush=True))
    agent.run()
    trained = agent.export(f"{args.federation}-{args.id}.onnx")
    print(f"{trained}: {served(trained, test):.1%} in a plain session", flush=True)


if __name__ == "__main__":
    main()
