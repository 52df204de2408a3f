"""What every registered method must pass; a method joins this battery by its entry point.

One dictionary is to be filled in for a new one of ours: what its messages weigh (BYTES).  Of a method that another
package brings, that formula is not known here, and not asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import EQUIPMENT, check_merge_laws, spec_of, uploads
from payload_bytes import payload_bytes
from properties import examples

from coordinator.serving.equipment import ready_method
from edge_sdk.device.training.meter import Meter
from edge_sdk.errors import EmptyRound, UsageError
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.registry import load_method, method_names
from edge_sdk.models.base import ModelSpec
from edge_sdk.objectives.optim import Part
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import storage
from edge_sdk.protocol.messages import Assign, FederationSpec, Hello, Message, Receipt, Upload, Welcome
from edge_sim.config import settings
from edge_sim.projects import methods_command

SMALL = {
    "steps": 2,
    "distill_batch": 4,
    "public_batch": 4,
    "tau": 2,
    "max_devices": 8,
    "min_count": 1,
    "samples_per_class": 2,
    "generator_steps": 2,
    "proxy": "softmax",
    "features_per_class": 2,
    "match_steps": 2,
    "retrain_epochs": 2,
    "min_samples": 5,
    "server_epochs": 2,
    "max_samples": 240,
    "code_size": 8,
    "warm_up": 1,
}
"""Parameters that keep every registered method quick here."""
NEEDS_BODY = ("fedper", "fedrep", "fedbabu", "fednh", "fedkf")
NEEDS_TORCH = ("fedal", "feddf_al", "fedgen", "creff", "fedtgp", "fedl2g", "fedalign", *NEEDS_BODY)
BATCH = 8
MODEL = {**dict.fromkeys(NEEDS_BODY, "mlp"), "fedalign": "resnet", "fedl2g": "mlp"}
"""The models of methods that a softmax model, which is all head and differentiates nothing with respect to its inputs, cannot."""
NAMES = method_names()
EVERY = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.torch] * (name in NEEDS_TORCH)) for name in NAMES]
)


def method_of(name: str, **params: Any) -> tuple[Method[Any], FederationSpec]:
    """A method under its defaults but for these and SMALL parameters, and a federation of it."""
    spec = spec_of(load_method(name), **{**SMALL, **params})
    return ready_method(spec, EQUIPMENT), spec


def made(pictures: Path, name: str, devices: int = 4, held: int = 2, **federation: Any) -> settings.Config:
    tables = fleets.tables(pictures, name, devices=devices, **federation)
    known = load_method(name)().table
    tables["method"] = {key: value for key, value in {**SMALL, "public_batch": 8}.items() if key in known}
    tables["fleet"][0]["model"] = MODEL.get(name, "softmax")
    tables["partition"]["classes_per_device"] = held
    return settings.parse(tables, Path("test.toml"))


@pytest.fixture(scope="module")
def heard(pictures: Path) -> Callable[[str], tuple[fleets.Run, list[tuple[Message, int]]]]:
    """The undisturbed run of a method, and all that was sent in it, each message with its bytes; computed once."""

    @functools.cache
    def run_of(name: str) -> tuple[fleets.Run, list[tuple[Message, int]]]:
        run = fleets.Run(made(pictures, name))
        sent = run.tap_frames()
        return run.finished(), sent

    return run_of


@pytest.fixture(scope="module")
def clean(heard: Callable[[str], tuple[fleets.Run, Any]]) -> Callable[[str], fleets.Run]:
    """The undisturbed run of a method."""
    return lambda name: heard(name)[0]


# -- what it says ---------------------------------------------------------------------------------------------------


@EVERY
def test_a_method_says_what_it_is(name: str) -> None:
    method = load_method(name)()
    assert method.name == name
    assert method.title
    assert method.citation
    assert method.discloses


@EVERY
def test_defaults_are_what_a_table_may_say(name: str) -> None:
    method = load_method(name)()
    assert load_method(name).read(method.table) == method.params


@EVERY
def test_a_parameter_out_of_range_is_one_line_with_its_key(name: str) -> None:
    method = load_method(name)
    for key, value in method().table.items():
        wrong: Any = "no such word" if isinstance(value, str) else -1 if isinstance(value, int) else -1e30
        with pytest.raises(UsageError, match=rf"^method\.{key}: expected .*found") as found:
            method.read({key: wrong})
        assert "\n" not in str(found.value)


# -- the reduction --------------------------------------------------------------------------------------------------

VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"target": "all", "start": "equal", "weighting": "uniform", "cached": True, "update": "paper", "share_body": False},
)


@EVERY
@pytest.mark.parametrize("variant", VARIANTS, ids=["defaults", "variant"])
@examples(5)
@given(devices=st.integers(2, 6), seed=st.integers(0, 2**32 - 1))
def test_merge_laws(name: str, variant: dict[str, Any], devices: int, seed: int) -> None:
    method, spec = method_of(name, **variant)
    for exchange in range(len(method.exchanges)):
        at = ExchangeId(0, exchange)
        check_merge_laws(method, spec, at, uploads(spec, at, devices, seed), seed)


@EVERY
def test_finish_is_a_function_of_what_it_is_given(name: str) -> None:
    """Twice the same, and the state that it was given is left as it was; in round 1, too, when there is one."""
    method, spec = method_of(name)
    state = method.begin(spec)
    for round_ in range(2):
        for exchange in range(len(method.exchanges)):
            at, aggregate = ExchangeId(round_, exchange), method.zero()
            for up in uploads(spec, at, 3, round_):
                aggregate = method.add(aggregate, up)
            before = storage.serialise(state)
            once, again = (method.finish(spec, state, at, aggregate) for _ in range(2))
            assert storage.serialise(once) == storage.serialise(again)
            assert storage.serialise(state) == before
            assert storage.serialise(storage.deserialise(type(once), storage.serialise(once))) == storage.serialise(
                once
            )
            state = once


@EVERY
def test_an_empty_round_is_no_guess(name: str) -> None:
    method, spec = method_of(name)
    if not any(row.up for row in method.exchanges):
        pytest.skip("exchanges nothing")
    with pytest.raises(EmptyRound, match="round 3"):
        method.finish(spec, method.begin(spec), ExchangeId(3, 0), method.zero())


# -- whole runs -----------------------------------------------------------------------------------------------------


@EVERY
def test_another_seed_gives_another_run(pictures: Path, clean: Callable[[str], fleets.Run], name: str) -> None:
    """That the same seed gives the same bits is in the two tests below."""
    assert fleets.Run(made(pictures, name, seed=8)).finished().model_bytes != clean(name).model_bytes


@EVERY
def test_the_order_of_arrival_changes_no_bit(pictures: Path, clean: Callable[[str], fleets.Run], name: str) -> None:
    run = fleets.Run(made(pictures, name))
    for i, device in enumerate(run.devices):
        run.slow_down(device.device.kit.id, 3.0 - 0.5 * i)  # the last one is the first to answer
    run.finished()
    assert run.coordinator_bytes == clean(name).coordinator_bytes
    assert run.model_bytes == clean(name).model_bytes


@EVERY
def test_power_cuts_of_either_side_change_no_bit(pictures: Path, clean: Callable[[str], fleets.Run], name: str) -> None:
    """A device's state survives its restart, and a run is resumed in the middle."""
    end_s = clean(name).clock.now_s
    run = fleets.Run(made(pictures, name))
    run.power_cut("device-01", 0.4 * end_s, 0.1)
    run.power_cut("coordinator", 0.6 * end_s, 0.1)
    run.finished()
    assert run.coordinator_bytes == clean(name).coordinator_bytes
    assert run.model_bytes == clean(name).model_bytes


@EVERY
@pytest.mark.parametrize(("devices", "held"), [(1, 4), (4, 1)], ids=["one device", "one class each"])
def test_it_runs_where_there_is_little(pictures: Path, name: str, devices: int, held: int) -> None:
    check_sound(fleets.Run(made(pictures, name, devices, held)).finished())


@EVERY
def test_it_runs_with_a_class_that_nobody_holds(pictures: Path, tmp_path: Path, name: str) -> None:
    with np.load(pictures) as arrays:
        parts = dict(arrays)
    held = parts["y_train"] != fleets.CLASSES - 1
    lacking = tmp_path / "lacking.npz"
    np.savez(lacking, **{**parts, "x_train": parts["x_train"][held], "y_train": parts["y_train"][held]})
    tables = made(lacking, name).tables
    tables["partition"] = {"kind": "iid"}
    check_sound(fleets.Run(settings.parse(tables, Path("test.toml"))).finished())


def check_sound(run: fleets.Run) -> None:
    assert run.result.completed
    assert run.result.updates["refused"] == 0
    assert all(np.isfinite(each.participant.context.bench.model.head_rows()).all() for each in run.devices)


@EVERY
def test_a_device_that_comes_late_is_let_in(pictures: Path, name: str) -> None:
    run = fleets.Run(made(pictures, name, rounds=5, quorum=3, join_grace_s=0.5, deadline_s=2.0))
    run.power_cut("device-03", 0.0, 0.55)
    run.finished()
    assert run.result.completed
    assert run.begun["device-03"] > 0
    assert run.result.updates["refused"] == 0


# -- the global model -----------------------------------------------------------------------------------------------


@EVERY
def test_the_global_model_is_one_on_all_devices_whoever_was_asked(pictures: Path, name: str) -> None:
    tables = made(pictures, name, rounds=3).tables
    tables["federation"] = {**tables["federation"], "participants": 2, "quorum": 1}
    run = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()
    for entry in run.result.history if run.server.method.global_model else ():
        assert entry.global_accuracy.keys() == run.result.learners
        assert len(set(entry.global_accuracy.values())) == 1


# -- local epochs ---------------------------------------------------------------------------------------------------

TRAINED: dict[str, tuple[Part, ...]] = {
    "fedrod": ("all", "head"),
    "ditto": ("all", "all"),
    "fml": ("all", "all"),  # the device's own model and the proxy, which are of one kind here
    "fedkd": ("all", "all"),
    "fedmrl": ("all", "all"),
    "fedrep": ("body",),
    "fedbabu": ("body",),
    "fednh": ("body",),
    "dp_prototypes": (),  # nothing is trained
}
"""The passes of training over the round's mini-batches, by the part that each trains; of other methods one over all."""
NOTHING_BESIDE: dict[str, dict[str, Any]] = {"fedkf": {"gamma": 0.0}, "fedalign": {"mu": 0.0}, "fedl2g": {"warm_up": 0}}
"""Parameters of methods whose training steps compute more than the loss on the device's own samples, or that begin later."""


@EVERY
def test_with_local_epochs_a_round_trains_that_many(pictures: Path, name: str) -> None:
    """The meters of two runs differ by the epochs, and by nothing else."""
    if name not in BYTES:
        pytest.skip("a method of another package, whose passes are not known here")
    rounds, (few, many) = 2, (1, 2)
    spent = [_trained_flops(pictures, name, epochs, rounds) for epochs in (few, many)]
    for device, (flops, samples, spec) in spent[1].items():
        meter = Meter()
        batch, trained = min(BATCH, samples), samples - (min(BATCH, samples // 2) if name == "fedl2g" else 0)  # a quiz
        more = -(-many * trained // batch) + few * -trained // batch
        for part in TRAINED.get(name, ("all",)):
            meter.trained(spec, batch, part)
        assert flops - spent[0][device][0] == rounds * more * meter.train_flops


def _trained_flops(pictures: Path, name: str, epochs: int, rounds: int) -> dict[str, tuple[int, int, ModelSpec]]:
    """By device: what it trained, its samples, and its model."""
    tables = made(pictures, name, rounds=rounds).tables
    tables["method"] = {**tables.get("method", {}), **NOTHING_BESIDE.get(name, {})}
    tables["train"] = {"batch_size": BATCH, "local_epochs": epochs, "learning_rate": 0.05}
    run = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()
    benches = {each.device.kit.id: each.participant.context.bench for each in run.devices}
    return {name: (b.meter.train_flops, len(b.data.train), b.model.spec) for name, b in benches.items()}


# -- bytes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """The sizes of the runs here: K classes, all held, d features, P weights, B public samples, R rounds, tau iterations.

    body: weights in front of the last layer of an mlp, which has 64 hidden units and then d features.
    """

    k: int = fleets.CLASSES
    d: int = fleets.WIDTH
    p: int = fleets.CLASSES * (fleets.WIDTH + 1)
    body: int = 64 * (fleets.SIDE**2 + 1) + fleets.WIDTH * (64 + 1)
    mlp: int = 64 * (fleets.SIDE**2 + 1) + fleets.WIDTH * (64 + 1) + fleets.CLASSES * (fleets.WIDTH + 1)
    resnet: int = 160 + 4672 + 14496 + 33 * fleets.WIDTH + fleets.CLASSES * (fleets.WIDTH + 1)  # stem, blocks, layers
    b: int = 8
    r: int = 3
    tau: int = 2


S = Sizes()
ROW = 2
"""Beside each class row: its class and its count."""
BYTES: dict[str, tuple[int, int]] = {
    # up and down in scalars, a device and run: methods.md G.2, with the first round, which has nothing to send down
    "local": (0, 0),
    "fedmd": (S.r * S.b * S.k, S.r * S.b * S.k),
    "fedal": (S.r * S.tau * S.b * S.k, 2 * S.r * S.tau * S.b * S.k),
    "fedproto": (S.r * S.k * (S.d + ROW), S.r * S.k * (S.d + ROW)),
    "fedssa": (S.r * S.k * (S.d + 1 + ROW), (S.r - 1) * S.k * (S.d + 1 + ROW)),  # devices draw the first header
    "fedavg": (S.r * S.p, S.r * S.p),
    "fedprox": (S.r * S.p, S.r * S.p),
    "fedhkd": (S.r * (S.p + S.k * (S.d + S.k + ROW)), S.r * (S.p + S.k * (S.d + S.k + ROW))),
    "feddf": (S.r * S.p, S.r * S.p),
    "fedkf": (S.r * S.mlp, S.r * S.mlp),  # everybody answers: the two means are one
    "ditto": (S.r * S.p, S.r * S.p),
    "feddf_al": (S.r * (S.p + S.tau * S.b * S.k), S.r * (S.p + 2 * S.tau * S.b * S.k)),
    "fedper": (S.r * S.body, (S.r - 1) * S.body),
    "qffl": (S.r * (S.p + 1), S.r * S.p),
    "fedgkd": (S.r * S.p, S.r * S.p + (S.r - 2) * S.p),  # a teacher from the second mean on, and none at the end
    "fedmd_lf": (S.r * S.tau * S.b * S.k, S.r * S.tau * S.b * S.k),
    "lg_fedavg": (S.r * S.k * (S.d + 1 + ROW), (S.r - 1) * S.k * (S.d + 1 + ROW)),
    "fedrep": (S.r * S.body, (S.r - 1) * S.body),
    "fedbabu": (S.r * S.body, S.r * S.body),
    "fednh": (S.r * (S.body + 1 + S.k * (S.d + ROW)), S.r * (S.body + 1) + (S.r + 1) * S.k * (S.d + ROW)),
    "moon": (S.r * S.p, S.r * S.p),
    "fedrod": (S.r * S.p, S.r * S.p),
    "fedgen": (
        S.r * (S.p + S.k * (S.d + 1 + ROW)),
        S.r * S.p + (S.r - 1) * S.k * (SMALL["samples_per_class"] * S.d + ROW),
    ),
    "fedclassavg": (S.r * S.k * (S.d + 1 + ROW), (S.r - 1) * S.k * (S.d + 1 + ROW)),
    "fedalign": (S.r * S.resnet, S.r * S.resnet),
    "creff": (
        S.r * S.p + (S.r - 1) * S.k * (S.k * (S.d + 1) + ROW),  # no gradients in the first round
        S.r * (S.p + S.k * (S.d + 1 + ROW)),
    ),
    "fedkd": (S.r * (S.p + 3), S.r * (S.p + 3)),  # the most: less where changes have a low rank; 3 for a shape
    "fml": (S.r * S.p, S.r * S.p),
    "fedmrl": (S.r * S.p, (S.r - 1) * S.p),
    "fd": (S.r * S.k * (S.k + ROW), (S.r - 1) * S.k * (S.k + ROW)),
    "dp_prototypes": (S.r * S.k * (S.d + 1 + ROW), S.r * S.k * (S.d + ROW)),
    "fedtgp": (S.r * S.k * (S.d + ROW), S.r * S.k * (S.d + ROW)),
    "fedl2g": (S.r * S.k * (S.d + ROW), S.r * S.k * (S.d + ROW)),  # the most: of the classes in a batch
    "fedcache": (240 * (8 + 1) + S.r * 240 * S.k, (S.r - 1) * 240 * S.k),  # the most: by a device's samples
    "fedgh": (S.r * S.k * (S.d + ROW), (S.r + 1) * S.k * (S.d + 1 + ROW)),  # a head from the first round to the end
}


VARYING = ("fedkd", "fedcache", "fedl2g")
"""Methods whose payloads' sizes depend on their numbers, or on the device's samples."""


@EVERY
def test_bytes_are_those_of_the_formula(pictures: Path, name: str) -> None:
    (point,) = importlib.metadata.entry_points(group="edge_sdk.methods", name=name)
    if not point.value.startswith("edge_sdk."):
        pytest.skip("a method of another package")
    run = fleets.Run(made(pictures, name, devices=2, held=S.k, rounds=S.r))
    sent = run.tap()
    run.finished()
    ours = [each for each in sent if isinstance(each, (Upload, Assign)) and each.device == "device-00"]
    up = sum(sum(map(payload_bytes, each.knowledge.values())) for each in ours if isinstance(each, Upload))
    down = sum(sum(map(payload_bytes, each.down.values())) for each in ours if isinstance(each, Assign))
    formula = tuple(4 * scalars for scalars in BYTES[name])
    if name in VARYING:
        assert all(each <= most for each, most in zip((up, down), formula, strict=True))
        return
    assert (up, down) == formula
    rows = run.server.method.exchanges
    scale = int(name == "fednh")  # of its cosine head: one more weight
    weights = {"softmax": S.p, "mlp": S.mlp + scale, "resnet": S.resnet}[MODEL.get(name, "softmax")]
    sizes = methods_command.Sizes(S.k, S.d, weights)
    listed = {
        way: S.r
        * methods_command.in_bytes(
            methods_command.scalars(s for row in rows for s in getattr(row, way).values()), sizes
        )
        for way in ("up", "down")
    }
    optional = any(slot.optional and not slot.remainder for row in rows for slot in row.up.values())
    assert up == listed["up"] or (optional and up < listed["up"])
    assert down <= listed["down"] * (S.r + 1) // S.r  # the closing exchange brings something, too


@EVERY
def test_each_message_is_sent_once_and_every_byte_counts_in_its_round(
    heard: Callable[[str], tuple[fleets.Run, list[tuple[Message, int]]]], name: str
) -> None:
    """Round 0 and joining included: bytes and scalars of the report are those of the frames on the wire."""
    run, sent = heard(name)
    rounds = range(len(run.result.history))
    kinds = Counter((type(message), getattr(message, "device", ""), _place(message)) for message, _ in sent)
    assert [kind for kind, times in kinds.items() if times > 1 and kind[0] in (Hello, *UP, *DOWN)] == []
    for way, classes in (("up", (Hello, *UP)), ("down", (Welcome, *DOWN))):
        counted = [(_place(message)[0], message, size) for message, size in sent if isinstance(message, classes)]
        sizes = [sum(size for round_, _, size in counted if round_ == each) for each in rounds]
        scalars = [sum(_numbers(message) for round_, message, _ in counted if round_ == each) for each in rounds]
        assert [getattr(each, f"bytes_{way}") for each in run.result.history] == sizes
        assert [getattr(each, f"scalars_{way}") for each in run.result.history] == scalars


UP, DOWN = (Upload,), (Assign, Receipt)


def _place(message: Message) -> tuple[int, int]:
    """Round and exchange; what is said while joining counts in round 0."""
    return getattr(message, "round", 0), getattr(message, "exchange", 0)


def _numbers(message: Message) -> int:
    """The scalars of knowledge, class ids and counts not included."""
    if not isinstance(message, (Upload, Assign)):
        return 0
    payloads = (message.knowledge if isinstance(message, Upload) else message.down).values()
    arrays = [getattr(each, field.name) for each in payloads for field in dataclasses.fields(each)]
    return sum(each.size for each in arrays if isinstance(each, np.ndarray) and each.dtype.kind == "f")
