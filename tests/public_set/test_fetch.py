"""The public set on a device's disk: blocks in any order, restarts, damage, sets that are too large, disks too full."""

from __future__ import annotations

import errno
import io
import random
import re
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coordinator.serving.public_set_server import REFILL_PER_S, SETS_AT_ONCE, PublicSetServer
from edge_sdk.errors import Refused, RemoteProtocolError, StoreError
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import PUBLIC_BLOCK_BYTES, PublicBlock, PublicRequest
from edge_sdk.protocol.model_offers import MAX_BLOCKS_ASKED
from edge_sdk.public_set.fetch import PublicFetch
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.public_set.transfer import block_count

SET = PublicSet(np.random.default_rng(0).normal(size=(600, 28, 28)).astype(np.float32))  # 1.8 MiB: 31 blocks


@pytest.fixture
def public_server(tmp_path: Path):
    public_server = PublicSetServer(SET, tmp_path / "run")
    yield public_server
    public_server.close()


def fetcher(tmp_path: Path, owner: str = "lab.cam-7", faults: Counter[str] | None = None, **more: int) -> PublicFetch:
    return PublicFetch(tmp_path / "cache", owner, Counter() if faults is None else faults, **more)


def request(blocks: tuple[int, ...], sha256: bytes = SET.spec.sha256, device: str = "cam-7") -> PublicRequest:
    return PublicRequest(federation="lab", device=device, sha256=sha256, blocks=blocks)


def answers(public_server: PublicSetServer, fetch: PublicFetch) -> list[PublicBlock]:
    return list(public_server.blocks(request(fetch.next_requests(0.0)), 0.0))


def fetched(public_server: PublicSetServer, fetch: PublicFetch) -> PublicSet:
    fetch.begin(SET.spec, public_server.total_bytes)
    while not fetch.complete:
        for block in answers(public_server, fetch):
            fetch.receive(block, 0.0)
    return fetch.finish()


def same(public: PublicSet | None) -> bool:
    assert public is not None
    assert public.samples.dtype == SET.samples.dtype
    np.testing.assert_array_equal(public.samples, SET.samples)
    return public.spec == SET.spec


# -- the whole way --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "samples",
    [
        np.arange(24, dtype=np.uint8).reshape(4, 6),
        np.asfortranarray(np.arange(24, dtype=np.float32).reshape(2, 3, 4)),
        np.zeros((5, 2, 2, 3), np.uint8)[::2],
    ],
    ids=["flat", "fortran", "strided"],
)
def test_what_is_served_is_what_the_name_is_the_hash_of(tmp_path: Path, samples):
    public = PublicSet(samples)
    with (tmp_path / "a.set").open("wb") as file:
        size = public.write(file)
    assert (tmp_path / "a.set").stat().st_size == size
    back = PublicSet.read(tmp_path / "a.set")
    assert back.spec == public.spec
    np.testing.assert_array_equal(back.samples, samples)


@pytest.mark.parametrize(
    "junk", [b"", b"|u1(2, 3)12345", b"|u1(2, 3)1234567", b"<f8(1, 1)12345678", b"|u1(0, 3)", b"|u1(-1, 3)", b"hello"]
)
def test_what_is_no_set_is_not_read(tmp_path: Path, junk: bytes):
    (tmp_path / "a.set").write_bytes(junk)
    with pytest.raises(ValueError, match=r"not a type|not as long"):
        PublicSet.read(tmp_path / "a.set")


def test_without_a_folder_the_set_lies_in_a_temporary_one(
    tmp_path: Path, public_server: PublicSetServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fetch = PublicFetch(None, "lab.cam-7", Counter())
    before = set(tmp_path.iterdir())
    assert same(fetched(public_server, fetch))
    (folder,) = set(tmp_path.iterdir()) - before
    assert same(fetch.find(SET.spec))
    del fetch
    assert not folder.exists()


def test_a_set_is_fetched_once_and_kept_for_all_federations(tmp_path: Path, public_server: PublicSetServer):
    fetch = fetcher(tmp_path)
    assert fetch.find(SET.spec) is None
    assert same(fetched(public_server, fetch))
    assert same(fetch.find(SET.spec))
    assert same(fetcher(tmp_path, "other.cam-7").find(SET.spec))
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"{SET.spec.sha256.hex()}.set"]


def test_a_frame_with_a_block_fits_one_message_of_64_kib(public_server: PublicSetServer):
    block = next(public_server.blocks(request((0,)), 0.0))
    longest = replace(block, federation="f" * 36, device="d" * 36, index=2**32 - 1, count=2**32 - 1, total_bytes=2**48)
    assert len(longest.data) == PUBLIC_BLOCK_BYTES
    assert len(codec.encode(longest)) <= 64 * 1024 - 1024  # less what MQTT and a long topic take


def test_blocks_in_any_order_and_twice(tmp_path: Path, public_server: PublicSetServer):
    rng = random.Random(1)
    every = [block for i in range(public_server.count) for block in public_server.blocks(request((i,)), 0.0)] * 2
    rng.shuffle(every)
    fetch = fetcher(tmp_path)
    fetch.begin(SET.spec, public_server.total_bytes)
    for block in every:
        fetch.receive(block, 0.0)
    assert same(fetch.finish())


def test_a_device_that_starts_again_asks_only_for_what_is_missing(tmp_path: Path, public_server: PublicSetServer):
    asked: list[int] = []
    while True:
        fetch = fetcher(tmp_path)  # another life each time
        fetch.begin(SET.spec, public_server.total_bytes)
        if fetch.complete:
            break
        blocks = answers(public_server, fetch)
        asked += [block.index for block in blocks]
        for block in blocks:
            fetch.receive(block, 0.0)
    assert asked == list(range(public_server.count))
    assert same(fetch.finish())


def test_the_power_may_go_just_before_the_end(
    tmp_path: Path, public_server: PublicSetServer, monkeypatch: pytest.MonkeyPatch
):
    fetch = fetcher(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda _self, _target: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fetched(public_server, fetch)
    again = fetcher(tmp_path)
    again.begin(SET.spec, public_server.total_bytes)
    assert again.complete
    assert same(again.finish())


def test_parts_of_other_sets_do_not_pile_up(tmp_path: Path, public_server: PublicSetServer):
    fetch = fetcher(tmp_path)
    fetch.begin(replace(SET.spec, sha256=bytes(32)), 10**6)
    fetcher(tmp_path, "lab.cam-8").begin(SET.spec, public_server.total_bytes)
    fetch.begin(SET.spec, public_server.total_bytes)
    names = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert names == [f"{SET.spec.sha256.hex()}.lab.cam-{n}.part" for n in (7, 8)]


# -- damage ---------------------------------------------------------------------------------------------------------


def spoil(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def test_a_damaged_set_on_the_disk_is_thrown_away_and_counted(tmp_path: Path, public_server: PublicSetServer):
    faults: Counter[str] = Counter()
    fetch = fetcher(tmp_path, faults=faults)
    fetched(public_server, fetch)
    (file,) = (tmp_path / "cache").iterdir()
    spoil(file, 5000)
    assert fetch.find(SET.spec) is None
    assert faults == {"checksum": 1}
    assert not file.exists()
    assert same(fetched(public_server, fetch))


def test_a_set_that_comes_damaged_is_fetched_once_more_and_then_given_up(
    tmp_path: Path, public_server: PublicSetServer
):
    fetch = fetcher(tmp_path)
    fetch.begin(SET.spec, public_server.total_bytes)

    def all_but_one_bit() -> None:
        while not fetch.complete:
            for block in answers(public_server, fetch):
                data = block.data if block.index != 3 else bytes([block.data[0] ^ 1]) + block.data[1:]
                fetch.receive(replace(block, data=data), 0.0)

    all_but_one_bit()
    with pytest.raises(RemoteProtocolError, match="fetched again") as caught:
        fetch.finish()
    assert caught.value.kind == "checksum"
    assert not fetch.complete
    all_but_one_bit()
    with pytest.raises(Refused, match=r"public set .*[0-9a-f]{64}, .*disk"):
        fetch.finish()
    assert fetch.wanted is None
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_set_that_comes_damaged_once_is_had_in_the_end(tmp_path: Path, public_server: PublicSetServer):
    fetch = fetcher(tmp_path)
    fetch.begin(SET.spec, public_server.total_bytes)
    while not fetch.complete:
        for block in answers(public_server, fetch):
            fetch.receive(block, 0.0)
    (part,) = (tmp_path / "cache").iterdir()
    spoil(part, 100_000)  # what a power cut leaves: marked, and not on the disk
    with pytest.raises(RemoteProtocolError):
        fetch.finish()
    assert same(fetched(public_server, fetch))


# -- what does not belong here --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"sha256": bytes(32)}, "knowledge", "a block of the public set 0000"),
        ({"index": 31}, "knowledge", "public set: block 31 of 31"),
        ({"index": 2**32 - 1}, "knowledge", "public set: block 4294967295 of 31"),
        ({"count": 30}, "knowledge", "announced were 31"),
        ({"total_bytes": 1}, "knowledge", "1 bytes in all; announced were 31"),
        ({"data": b"short"}, "length", "has 5 bytes, expected 61440"),
        ({"index": 30}, "length", "public set: block 30 has 61440 bytes, expected"),
    ],
)
def test_blocks_that_do_not_fit_change_nothing(tmp_path: Path, public_server: PublicSetServer, changes, kind, message):
    fetch = fetcher(tmp_path)
    fetch.begin(SET.spec, public_server.total_bytes)
    (block,) = answers(public_server, fetch)
    with pytest.raises(RemoteProtocolError, match=message) as caught:
        fetch.receive(replace(block, **changes), 0.0)
    assert caught.value.kind == kind
    again = fetcher(tmp_path)
    again.begin(SET.spec, public_server.total_bytes)
    assert again.next_requests(0.0) == (0,)  # nothing was written


def test_a_block_that_nobody_waits_for_is_nothing(tmp_path: Path, public_server: PublicSetServer):
    fetch = fetcher(tmp_path)
    fetch.receive(next(public_server.blocks(request((0,)), 0.0)), 0.0)
    assert not (tmp_path / "cache").exists()


def test_sets_that_are_too_large_or_not_served_are_refused_before_anything_is_asked(tmp_path: Path):
    fetch = fetcher(tmp_path, max_bytes=10 * 2**20)
    assert fetch.refusal(10 * 2**20) is None
    large, none = fetch.refusal(10 * 2**20 + 2**19), fetch.refusal(0)
    assert large is not None
    assert none is not None
    assert re.search("10.0 MiB; .*max_public_bytes", str(large))
    assert "--public" in str(none)


def test_a_disk_without_room_is_named_before_anything_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=2**24))
    with pytest.raises(StoreError, match=r"cache: 16\.0 MiB .*free, .*5\.0 MiB"):
        fetcher(tmp_path).begin(SET.spec, 5 * 2**20)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StoreError, match=r"cache: File exists; .*rights"):
        fetcher(tmp_path).begin(SET.spec, 5 * 2**20)


# -- the public_server ------------------------------------------------------------------------------------------------------


def test_the_shelf_answers_only_what_it_has(public_server: PublicSetServer):
    assert public_server.count == block_count(public_server.total_bytes) == 31
    for asked, message in (
        (request((0,), sha256=bytes(32)), "asks for the public set 0000"),
        (request((30, 31)), "asks for block 31 of 31"),
        (request((2**32 - 1,)), "asks for block 4294967295 of 31"),
    ):
        with pytest.raises(RemoteProtocolError, match=message) as caught:
            list(public_server.blocks(asked, 0.0))
        assert caught.value.kind == "knowledge"
    assert [block.index for block in public_server.blocks(request((5, 2, 5)), 0.0)] == [2, 5]
    assert list(public_server.blocks(request(()), 0.0)) == []


def test_who_asks_over_and_over_gets_little(public_server: PublicSetServer):
    every = tuple(range(MAX_BLOCKS_ASKED))
    for _ in range(SETS_AT_ONCE * public_server.count // len(every) + 1):
        assert len(list(public_server.blocks(request(every), 0.0))) == len(every)
    for _ in range(100):
        with pytest.raises(RemoteProtocolError) as caught:
            list(public_server.blocks(request(every), 0.0))
        assert caught.value.kind == "limit"
    assert len(list(public_server.blocks(request(every, device="cam-8"), 0.0))) == len(
        every
    )  # others are not held back
    later_s = len(every) / REFILL_PER_S
    assert len(list(public_server.blocks(request(every), later_s))) == len(every)
    with pytest.raises(RemoteProtocolError, match=r"cam-7 asks for the public set too often"):
        list(public_server.blocks(request(every), later_s + 0.1))


def test_the_shelf_leaves_nothing_behind(tmp_path: Path):
    public_server = PublicSetServer(SET, tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []  # a file without a name
    public_server.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        PublicSetServer(SET, tmp_path / "file")


class NearlyFullDisk(io.FileIO):
    """A file on a disk with room for a part of a block, and then for single bytes alone."""

    def write(self, data: Any) -> int:
        if len(data) == 1:
            return super().write(data)
        if len(data) == PUBLIC_BLOCK_BYTES:
            return super().write(data[:1000])
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_block_of_which_the_disk_takes_a_part_has_not_arrived(tmp_path: Path, public_server, monkeypatch):
    fetch = fetcher(tmp_path)
    fetch.begin(SET.spec, public_server.total_bytes)
    (block,) = answers(public_server, fetch)
    with monkeypatch.context() as full:
        full.setattr(Path, "open", lambda path, mode, **_: NearlyFullDisk(path, mode))
        with pytest.raises(StoreError, match="No space left"):
            fetch.receive(block, 0.0)
    again = fetcher(tmp_path)
    again.begin(SET.spec, public_server.total_bytes)
    assert again.next_requests(0.0) == (block.index,)
    assert same(fetched(public_server, fetcher(tmp_path)))
