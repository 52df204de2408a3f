"""The public set and its batches: the same in every language, for ever (docs/reference/protocol.md, "The public set")."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.errors import UsageError
from edge_sdk.protocol.messages import FederationSpec, PublicSetSpec
from edge_sdk.protocol.public_batch import batch_digest, batch_indices
from edge_sdk.public_set.samples import PublicSet

GOLDEN = json.loads((Path(__file__).parent / "golden/public-batches.json").read_text())
SHA256 = bytes.fromhex(GOLDEN["public_sha256"])


def spec(seed: int, count: int) -> FederationSpec:
    public = PublicSetSpec(sha256=SHA256, count=count)
    return FederationSpec(
        federation="lab", method="fedmd", contract=bytes(16), classes=3, rounds=2, seed=seed, public=public
    )


def as_the_page_says(seed: int, round_: int, iteration: int, size: int, count: int) -> list[int]:
    """The slow way, word for word."""
    words: list[int] = []
    while len(words) < size:
        digest = hashlib.sha256(f"public/{seed}/{round_}/{iteration}/{len(words) // 4}".encode()).digest()
        words += [int.from_bytes(digest[at : at + 8], "little") for at in (0, 8, 16, 24)]
    if size > count:
        return [word % count for word in words[:size]]
    places = list(range(count))
    for i in range(size):
        j = i + words[i] % (count - i)
        places[i], places[j] = places[j], places[i]
    return places[:size]


@pytest.mark.parametrize("golden", GOLDEN["batches"], ids=lambda row: f"{row['size']}of{row['count']}")
def test_batches_never_change(golden):
    of = spec(golden["seed"], golden["count"])
    indices = batch_indices(of, golden["round"], golden["iteration"], golden["size"])
    assert indices.tolist() == golden["indices"]
    assert batch_digest(of, indices).hex() == golden["digest"]


@pytest.mark.parametrize("golden", GOLDEN["sets"], ids=lambda row: row["dtype"])
def test_the_name_of_a_set_never_changes(golden):
    samples = np.frombuffer(bytes.fromhex(golden["bytes"]), golden["dtype"]).reshape(golden["shape"])
    assert PublicSet(samples).spec == PublicSetSpec(sha256=bytes.fromhex(golden["sha256"]), count=golden["shape"][0])


@given(
    seed=st.integers(0, 2**32 - 1),
    round_=st.integers(0, 10**6),
    iteration=st.integers(0, 20),
    size=st.integers(1, 60),
    count=st.integers(1, 80),
)
def test_the_draw_is_the_documented_one(seed, round_, iteration, size, count):
    indices = batch_indices(spec(seed, count), round_, iteration, size).tolist()
    assert indices == as_the_page_says(seed, round_, iteration, size, count)
    assert all(0 <= index < count for index in indices)
    if size <= count:
        assert len(set(indices)) == size


def test_a_batch_of_the_largest_set_costs_only_its_own_size():
    indices = batch_indices(spec(0, 2**32 - 1), 0, 0, 32)
    assert len(set(indices.tolist())) == 32
    assert indices.max() > 2**31


def test_every_sample_is_drawn_alike():
    """600 draws of 4 of 12: each sample 200 times but for chance (4 standard deviations: 46)."""
    seen = Counter(index for round_ in range(600) for index in batch_indices(spec(1, 12), round_, 0, 4).tolist())
    assert sorted(seen) == list(range(12))
    assert all(abs(times - 200) < 46 for times in seen.values())


def test_seed_round_and_iteration_all_matter():
    one = batch_indices(spec(1, 400), 1, 1, 32).tolist()
    others = [
        batch_indices(spec(*of), *at, 32).tolist()
        for of, at in (((2, 400), (1, 1)), ((1, 400), (2, 1)), ((1, 400), (1, 2)))
    ]
    assert one not in others


def test_a_batch_is_shared_and_so_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        batch_indices(spec(1, 8), 0, 0, 4)[0] = 0


def saved(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)
    return path


GOOD = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)


@pytest.mark.parametrize("arrays", [{"anything": GOOD}, {"public": GOOD, "y_train": np.arange(3)}])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_set_of_a_file(tmp_path, arrays, save):
    save(tmp_path / "a.npz", **arrays)
    public = PublicSet.load(tmp_path / "a.npz")
    assert public.spec == PublicSet(GOOD).spec
    np.testing.assert_array_equal(public.samples, GOOD)


@pytest.mark.parametrize(
    ("arrays", "found"),
    [
        ({"a": GOOD, "b": GOOD}, "public, found a, b"),
        ({}, "public, found none"),
        (
            {"public": GOOD.astype(np.int64)},
            r"public: expected uint8 or float32 .* found int64 \(4, 2, 3\)",
        ),
        ({"x": GOOD.astype(np.float64)}, r"x: expected uint8 or float32 .* found float64"),
        ({"x": GOOD.astype(">f4")}, r"x: expected uint8 or float32 .* found >f4"),
        ({"x": GOOD.reshape(-1)}, r"x: expected .* found uint8 \(24,\)"),
        ({"x": GOOD.reshape(1, 1, 2, 3, 4)}, r"x: expected .* found uint8 \(1, 1, 2, 3, 4\)"),
        ({"x": GOOD[:0]}, r"x: expected .* found uint8 \(0, 2, 3\)"),
        ({"x": np.where(GOOD == 13, np.nan, 1).astype(np.float32)}, "x: NaN or Inf in 1 .* first of them 2"),
        ({"x": np.array([{}])}, "it holds Python objects"),
    ],
)
def test_a_file_whose_array_is_no_public_set(tmp_path, arrays, found):
    with pytest.raises(UsageError, match=rf"a\.npz: .*{found}"):
        PublicSet.load(saved(tmp_path / "a.npz", **arrays))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 0.3, 0.6, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_that_was_cut_off_is_said_on_one_line(tmp_path, share, save):
    noise = np.random.default_rng(0).integers(0, 255, (40, 9, 9), np.uint8)
    save(tmp_path / "a.npz", public=noise)
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(UsageError, match=r"a\.npz: .*readable npz file: ") as caught:
        PublicSet.load(tmp_path / "a.npz")
    assert "\n" not in str(caught.value)


def test_files_that_are_no_npz(tmp_path):
    np.save(tmp_path / "a.npy", GOOD)
    (tmp_path / "a.txt").write_text("hello")
    for name in ("a.npy", "a.txt", "."):
        with pytest.raises(UsageError, match="readable npz file: "):
            PublicSet.load(tmp_path / name)
    with pytest.raises(UsageError, match=r"none\.npz: no such file"):
        PublicSet.load(tmp_path / "none.npz")


def test_a_file_with_a_flipped_byte_is_an_error_or_another_set(tmp_path):
    whole = saved(tmp_path / "a.npz", public=GOOD).read_bytes()
    for at in range(len(whole)):
        (tmp_path / "b.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 0x15]) + whole[at + 1 :])
        try:
            PublicSet.load(tmp_path / "b.npz")
        except UsageError as error:
            assert "b.npz: " in str(error)  # noqa: PT017  # either will do


def test_without_a_public_set_there_is_no_batch():
    lacking = FederationSpec(federation="lab", method="local", contract=bytes(16), classes=3, rounds=2)
    with pytest.raises(ValueError, match="no public set"):
        batch_indices(lacking, 0, 0, 4)
