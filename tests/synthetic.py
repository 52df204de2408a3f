"""A made-up run for the tests of the report: plausible, and known in every figure."""

import math
import random

from coordinator.record.round_result import RoundResult
from coordinator.results.figures.result import DeviceResult, Result

BOARDS = ("rpi4", "rpi-zero-2w", "jetson-orin-nano", "x86")
MODELS = (("cnn-16-32", "torch"), ("mlp-64", "numpy"), ("frozen-mobilenet", "onnx"), ("resnet-tiny", "torch"))
CLASSES = 10


def device(number, rng, count):
    model, runtime = MODELS[number % len(MODELS)]
    held = sorted(rng.sample(range(CLASSES), 3))
    counts = tuple(rng.randint(20, 160) if label in held else 0 for label in range(CLASSES))
    return DeviceResult(
        id=f"device-{number:0{len(str(count - 1))}d}",
        number=number,
        board=BOARDS[number % len(BOARDS)],
        link="wifi",
        model=model,
        runtime=runtime,
        note="extractor frozen, weights from seed 7" if runtime == "onnx" else "",
        samples=sum(counts),
        class_counts=counts,
        accuracy=0.78 + 0.15 * rng.random(),
        standalone_accuracy=0.24 + 0.06 * rng.random(),
        metrics={"local_accuracy": 0.83 + 0.15 * rng.random()},
        bytes_up=rng.randint(300_000, 420_000),
        bytes_down=rng.randint(380_000, 520_000),
        rounds_done=20,
        waited_s=float(number),
        busy_s=200.0,
        energy_j=2500.0,
    )


def result(count=8, rounds=20, seed=0, **changes):
    rng = random.Random(seed)
    devices = tuple(device(number, rng, count) for number in range(count))

    def line(index, final, bytes_up):
        noise = {d.id: rng.uniform(-0.02, 0.02) for d in devices}
        rise = 1 - math.exp(-(index + 1) / 5)
        last = index == rounds - 1
        accuracy = {d.id: final(d) if last else max(0.05, final(d) * rise + noise[d.id]) for d in devices}
        return RoundResult(
            round=index + 1,
            accuracy=accuracy,
            local_accuracy={name: min(1.0, value + 0.05) for name, value in accuracy.items()} if bytes_up else {},
            pm_v={name: value - 0.04 for name, value in accuracy.items()} if bytes_up else {},
            pm_l={name: value - 0.01 for name, value in accuracy.items()} if bytes_up else {},
            contributors=count if bytes_up else 0,
            wall_s=0.31 if bytes_up else 0.0,
            virtual_s=12.5 if bytes_up else 0.0,
            bytes_up=bytes_up,
            bytes_down=bytes_up,
            scalars_up=bytes_up // 4,
            scalars_down=bytes_up // 4,
            device_flops=3 * 10**9 if bytes_up else 0,
            device_s=80.5 if bytes_up else 0.0,
            device_j=1000.0 if bytes_up else 0.0,
            waited_for="device-7" if bytes_up else "",
            waited_s=1.5 if bytes_up else 0.0,
            exchanges=6 if bytes_up else 0,
        )

    values = {
        "federation": "digits-demo",
        "method": "fedal",
        "seed": seed,
        "rounds": rounds,
        "completed": True,
        "rounds_done": rounds,
        "devices": devices,
        "scalars": dict.fromkeys(("up", "down"), rounds * 4_000),
        "history": tuple(line(i, lambda d: d.accuracy, 16_000) for i in range(rounds)),
        "standalone_history": tuple(line(i, lambda d: d.standalone_accuracy, 0) for i in range(rounds)),
        "updates": {"accepted": 960, "duplicate": 0, "stale": 0, "refused": 0, "withheld": 0},
        "metrics": {"discriminator_loss": 1.93},
        "time": {"wall_s": 6.4, "virtual_s": 250.0, "start_s": 1.75e9},
        "data": {"name": "digits", "sha256": "ab" * 32},
        "versions": {"edge_sdk": "0.1.0"},
        "transport": "memory",
    }
    return Result(**values | changes)
