"""Pieces that engines and a fast simulation are made of."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.data import Preprocess
from edge_sdk.device.training.workbench import add_by_class
from edge_sdk.methods.contract.job import Job
from edge_sdk.models.base import pack_arrays, unpack_arrays
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.knowledge import ClassRows, Weights
from edge_sdk.protocol.messages import Assign, FederationSpec, TrainSpec
from edge_sdk.reductions.class_rows import mean_over_holders
from edge_sdk.transport.memory.hub import SubscriptionTree
from edge_sim.data.held_samples import SharedPreprocess

LEVEL = st.sampled_from(["a", "b", "c"])
PATTERN = st.lists(st.one_of(LEVEL, st.just("+")), min_size=1, max_size=4).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"]), "#", "$x/" + "/".join(levels)])
)
TOPIC = st.lists(LEVEL, min_size=1, max_size=4).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "$x/" + "/".join(levels)])
)


@given(st.lists(st.tuples(PATTERN, st.booleans()), max_size=8), TOPIC)
def test_routes_are_what_patterns_match(patterns: list[tuple[str, bool]], topic: str) -> None:
    routes: SubscriptionTree[int] = SubscriptionTree()
    for client, (pattern, _) in enumerate(patterns):
        routes.add(pattern, client)
    for client, (pattern, stays) in enumerate(patterns):
        if not stays:
            routes.remove(pattern, client)
    expected = [c for c, (pattern, stays) in enumerate(patterns) if stays and topics.matches(pattern, topic)]
    assert sorted(routes.find(topic)) == expected


def test_routes_forget_what_is_removed() -> None:
    routes: SubscriptionTree[int] = SubscriptionTree()
    routes.add("a/+/c", 1)
    routes.remove("a/+/c", 1)
    assert not routes.below
    with pytest.raises((KeyError, ValueError)):
        routes.remove("a/+/c", 1)


@pytest.mark.parametrize("size", [7, 2**20])
def test_a_field_that_was_packed_before_gives_the_same_frame(size: int) -> None:
    values = np.arange(size, dtype=np.float32)
    common = {"weights": Weights(values=values, layout=bytes(16)), "more": Weights(values=values[:3], layout=bytes(16))}
    whole = Assign(federation="lab", device="cam", round=3, exchange=0, common=common, deadline_s=1.5)
    packed = codec.pack_field(whole, "common")
    assert codec.encode(dataclasses.replace(whole, common={}), packed={"common": packed}) == codec.encode(whole)


@pytest.mark.parametrize(
    ("samples", "batch", "epochs", "steps"),
    [(100, 32, 1, 4), (96, 32, 1, 3), (20, 32, 1, 1), (20, 32, 3, 3), (100, 32, 2, 7)],
)
def test_local_epochs(samples: int, batch: int, epochs: int, steps: int) -> None:
    train = TrainSpec(batch_size=batch, local_epochs=epochs, local_steps=99)
    spec = FederationSpec(federation="lab", method="local", contract=bytes(16), classes=2, rounds=1, train=train)
    job = Job(spec=spec, number=0, round=0, exchange=0, closing=False, samples=samples, learns=True)
    assert job.local_steps == steps
    seen = np.bincount(job.private_batches(job.local_steps).indices.ravel(), minlength=samples)
    assert seen.min() >= epochs  # every sample once in each epoch
    assert seen.max() <= epochs + 1


def test_preprocessing_is_shared_by_identity() -> None:
    raw = np.arange(32, dtype=np.uint8).reshape(2, 4, 4)
    shared = SharedPreprocess(scale=0.5)
    assert shared(raw) is SharedPreprocess(scale=0.5)(raw)
    assert shared(raw) is not SharedPreprocess(scale=0.25)(raw)
    assert shared(raw) is not shared(raw.copy())
    np.testing.assert_array_equal(shared(raw), Preprocess(scale=0.5)(raw))


@given(st.integers(0, 2**32 - 1))
def test_sums_by_class(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, at = rng.normal(size=(50, 3)).astype(np.float32), rng.integers(0, 4, 50)
    sums, expected = np.ones((4, 3)), np.ones((4, 3))
    add_by_class(sums, at, rows)
    np.add.at(expected, at, rows.astype(np.float64))
    np.testing.assert_allclose(sums, expected, rtol=1e-12)


@given(st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_means_over_any_number_of_holders(devices: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    uploads = []
    for _ in range(devices):
        classes = np.sort(rng.permutation(5)[: rng.integers(1, 5)]).astype(np.int32)
        counts = rng.integers(1, 9, len(classes)).astype(np.int32)
        uploads.append(ClassRows(classes=classes, rows=rng.normal(size=(len(classes), 2)).astype("f4"), counts=counts))
    mean = mean_over_holders(uploads)
    for k, row, count in zip(mean.classes, mean.rows, mean.counts, strict=True):
        own: list[tuple[Any, int]] = [
            (up.rows[i], int(up.counts[i])) for up in uploads for i in range(len(up.classes)) if up.classes[i] == k
        ]
        assert count == sum(n for _, n in own)
        np.testing.assert_allclose(row, sum(r.astype(np.float64) * n for r, n in own) / count, rtol=1e-6, atol=1e-7)


def test_arrays_survive_packing() -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "steps": np.array(3, np.int64),
        "c": np.ones(1, np.int32),
    }
    found = unpack_arrays(pack_arrays(arrays))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.writeable
