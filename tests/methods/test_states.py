"""What methods keep between rounds: the fields that lie in state folders and checkpoints of runs begun before."""

from __future__ import annotations

import dataclasses

import msgpack
import pytest
from laws import EQUIPMENT, spec_of

from coordinator.serving.equipment import ready_method
from edge_sdk.methods.contract.registry import load_method, method_names
from edge_sdk.protocol.frames import storage

AVERAGED = ("weights", "rounds", "slots")
COORDINATOR = {
    "dp_prototypes": ("prototypes",),
    "local": (),
    "fd": ("targets", "everybody", "rounds", "answered"),
    "fedal": ("discriminator", "moments", "steps", "mean_u", "seen", "feedback"),
    "fedmd_lf": ("means",),
    "creff": ("weights", "features", "classifier", "rounds"),
    "fedkd": ("weights", "update", "holders"),
    "feddf": ("models", "members"),
    "feddf_al": ("transfer", "means", "members", "begun"),
    "fedgen": ("weights", "generator", "generated", "rounds", "header"),
    "fedgkd": ("models", "rounds", "slots"),
    "fedhkd": ("weights", "hyper", "ages", "rounds"),
    "fedkf": ("student", "rounds", "slots", "first", "unseen"),
    "fedmd": ("mean", "numbers"),
    "fednh": ("weights", "prototypes"),
    "fedproto": ("prototypes", "features"),
    "fedssa": ("header", "rounds", "slots", "seen"),
    "lg_fedavg": ("header", "rounds"),
    "fedclassavg": ("header", "rounds"),
    "fedgh": ("header",),
    "fedl2g": ("vectors", "rounds"),
    "fedcache": ("cache", "rounds"),
    "fedtgp": ("embedding", "first", "second", "prototypes"),
}
"""All others: AVERAGED."""
DEVICE = {
    "dp_prototypes": ("version", "epoch"),
    "fedal": ("local_rounds", "snapshot"),
    "fedmd_lf": ("local_rounds", "snapshot"),
    "feddf_al": ("local_rounds", "snapshot"),
    "fedmd": ("round", "sent"),
    "fedkd": ("round", "base", "projection"),
    "fednh": ("begun",),
    "fedrod": ("personal",),
    "fedssa": ("classes",),
}
"""All others: nothing."""
TORCH = ("fedal", "feddf_al", "fedgen", "creff", "fedtgp")
EVERY = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.torch] * (name in TORCH)) for name in method_names()]
)


@EVERY
def test_the_fields_of_a_state_stay(name: str) -> None:
    spec = spec_of(load_method(name))
    method = ready_method(spec, EQUIPMENT)
    if not type(method).__module__.startswith("edge_sdk."):
        pytest.skip("a method of another package")
    state, own = method.begin(spec), method.device_state()
    assert tuple(field.name for field in dataclasses.fields(state)) == COORDINATOR.get(name, AVERAGED)
    assert tuple(field.name for field in dataclasses.fields(own)) == DEVICE.get(name, ())
    for kept in (state, own):
        stored = storage.serialise(kept)
        assert set(msgpack.unpackb(stored)) == {field.name for field in dataclasses.fields(kept)}
        assert storage.serialise(storage.deserialise(type(kept), stored)) == stored
