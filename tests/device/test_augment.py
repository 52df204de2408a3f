"""Random changes of training pictures: what they are, when they happen, and that every engine sees the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from edge_sdk import Augment
from edge_sdk.data import LocalData, Preprocess, Samples, augment_draws
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.requests import ClassMeans, Logits, Private, Public
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.public_set.samples import PublicSet
from edge_sim.config import settings
from edge_sim.engines.base import ExactEngine, job_at

N, SIDE = 12, 4


def bench(augment: Augment | None, **preprocess: Any) -> Workbench:
    x = np.random.default_rng(0).integers(1, 255, (N, SIDE, SIDE, 3)).astype(np.uint8)
    model = NumpyModel(2, (3, SIDE, SIDE), seed=0, preprocess=Preprocess(**preprocess))
    return Workbench(model, LocalData(train=Samples(x, np.arange(N) % 2), augment=augment), PublicSet(x))


@pytest.fixture
def spec() -> Any:
    return FederationSpec(federation="f", method="local", contract=bytes(16), classes=2, rounds=4, seed=3)


def batch_of(spec: Any, made: Workbench, *, round_: int = 0, number: int = 0, step: int = 0) -> Any:
    source = Private(np.arange(N).reshape(2, N // 2))
    return made.batch(source, step, job_at(spec, number, round_, 0, N))


def test_a_flip_mirrors_half_of_the_pictures() -> None:
    x = np.random.default_rng(0).random((400, 1, 2, 3), np.float32)
    out = Augment(flip=True)(x, np.zeros(1, np.float32), augment_draws(0, 0, 0, 0))
    flipped = (out == x[..., ::-1]).all(axis=(1, 2, 3))
    assert ((out == x).all(axis=(1, 2, 3)) | flipped).all()
    assert 160 < flipped.sum() < 240


def test_a_crop_is_a_window_of_the_padded_picture() -> None:
    x, black = np.random.default_rng(0).random((300, 2, 3, 4), np.float32), np.array([-1, -2], np.float32)
    out = Augment(crop_pixels=1)(x, black, augment_draws(0, 0, 0, 0))
    padded = np.broadcast_to(black[:, None, None], (300, 2, 5, 6)).copy()
    padded[:, :, 1:-1, 1:-1] = x
    seen = set()
    for before, after in zip(padded, out, strict=True):
        places = [(i, j) for i in range(3) for j in range(3) if (before[:, i : i + 3, j : j + 4] == after).all()]
        assert len(places) == 1
        seen.update(places)
    assert len(seen) == 9


def test_black_is_what_raw_zero_becomes(spec: Any) -> None:
    made = bench(Augment(crop_pixels=3), mean=(1.0, 2.0, 3.0), std=2.0)
    x, _, _ = batch_of(spec, made)
    for channel, black in enumerate((-0.5, -1.0, -1.5)):
        assert (x[:, channel] == black).any()


def test_draws_follow_from_seed_device_round_and_step(spec: Any) -> None:
    made = bench(Augment(crop_pixels=1, flip=True))
    first = batch_of(spec, made)
    np.testing.assert_array_equal(batch_of(spec, made)[0], first[0])
    np.testing.assert_array_equal(first[1], made.labels[: N // 2])
    for other in ({"round_": 1}, {"number": 1}):
        assert (batch_of(spec, made, **other)[0] != first[0]).any()
    again = made.batch(Private(np.arange(N // 2)[None].repeat(2, 0)), 1, job_at(spec, 0, 0, 0, N))
    assert (again[0] != first[0]).any()


def test_only_private_mini_batches_change(spec: Any) -> None:
    plain, changed = bench(None), bench(Augment(crop_pixels=1, flip=True))
    rows = np.arange(N).reshape(2, N // 2)
    here = job_at(spec, 0, 0, 0, N)
    for request, same in ((Logits(Private(rows)), False), (Logits(Public(rows)), True), (ClassMeans(), True)):
        one, other = (served(made, request, here) for made in (plain, changed))
        assert np.array_equal(getattr(one, "rows", one), getattr(other, "rows", other)) == same


def served(made: Workbench, request: Any, here: Any) -> Any:
    def work() -> Any:
        answers.append((yield from made.serve(request, here)))

    answers: list[Any] = []
    list(work())
    return answers[0]


def test_an_app_is_told_of_flat_samples_and_of_crops_that_are_too_large() -> None:
    flat = Samples(np.zeros((4, 6), np.float32), np.zeros(4, np.int64))
    with pytest.raises(UsageError, match="flat samples"):
        LocalData(train=flat, augment=Augment(flip=True))
    with pytest.raises(UsageError, match="crop_pixels"):
        bench(Augment(crop_pixels=SIDE))
    with pytest.raises(UsageError, match="crop_pixels"):
        Augment(crop_pixels=-1)


@pytest.mark.traced
@pytest.mark.torch
@pytest.mark.parametrize("method", ["local", "moon"])
def test_every_engine_sees_the_same_pictures(pictures: Path, method: str) -> None:
    pytest.importorskip("torch")
    from edge_sim.engines.stack.torch_cohort import CohortEngine  # only with torch

    found = {}
    for augment in ({}, {"crop_pixels": 1, "flip": True}):
        for engine in (ExactEngine(), CohortEngine()):
            plain = fleets.tables(pictures, method, devices=3, feature_dim=6)
            plain["fleet"] = [{"count": 3, "model": "mlp"}]
            plain["data"] |= {"augment": augment}
            done = fleets.Run(settings.parse(plain, Path("f.toml")), engine=engine).finished()
            weights = [device.participant.context.bench.model.weights() for device in done.devices]
            found[bool(augment), type(engine)] = np.concatenate(weights)
    np.testing.assert_allclose(found[True, CohortEngine], found[True, ExactEngine], atol=1e-4)
    assert np.abs(found[True, ExactEngine] - found[False, ExactEngine]).max() > 1e-2
