"""FedCache's cache on the coordinator: codes and newest logits of every sample, and which samples are related.

Samples stand device after device, in the order of device numbers, and a device's samples in its own order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.protocol.frames.schema import Blob, Counts, Matrix, wire
from edge_sdk.protocol.sample_knowledge import VERSION_BYTES, SampleCodes, SampleLogits
from edge_sdk.reductions import Bag

NONE = -1
"""Stands for a relative that does not exist, because a label has too few samples."""
_AT_ONCE = 1024
"""Samples whose similarities are in memory at the same time."""


@wire("fedcache-cache")
@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The samples of m devices, N together."""

    devices: Counts  # (m,) device numbers, ascending
    sizes: Counts  # (m,) samples of each device
    inputs: Counts  # (m,) numbers in a sample
    versions: Annotated[bytes, Blob(0, VERSION_BYTES * 10**6)]
    """The version of each device's samples, one after the other."""
    labels: Counts  # (N,)
    codes: Matrix  # (N, h)
    logits: Matrix  # (N, k)
    relatives: Counts  # (N R,) indices of samples, or NONE


@dataclass(frozen=True, slots=True)
class _Device:
    """One device's part of the cache."""

    codes: SampleCodes
    logits: Floats  # (n, k)


def after_round(cache: Cache | None, uploads: Bag, count: int) -> Cache | None:
    """Return the cache with the newest logits of a round.  count: R.

    Logits for samples whose codes never arrived are left out.
    """
    devices, encoded = {} if cache is None else _devices(cache), uploads.payloads(SampleCodes, "codes")
    changed = False
    for number, logits in uploads.payloads(SampleLogits, "logits").items():
        before = devices.get(number)
        codes = encoded.get(number, None if before is None else before.codes)
        if codes is None or codes.version != logits.version or len(codes.labels) != len(logits.values):
            continue
        changed |= number in encoded
        devices[number] = _Device(codes, logits.values)
    if not devices:
        return cache
    order = sorted(devices)
    parts = [devices[number] for number in order]
    found = Cache(
        devices=np.array(order, np.int32),
        sizes=np.array([len(each.logits) for each in parts], np.int32),
        inputs=np.array([each.codes.inputs for each in parts], np.int32),
        versions=b"".join(each.codes.version for each in parts),
        labels=np.concatenate([each.codes.labels for each in parts]),
        codes=np.concatenate([each.codes.codes for each in parts]).astype(np.float32),
        logits=np.concatenate([each.logits for each in parts]).astype(np.float32),
        relatives=np.empty(0, np.int32) if cache is None else cache.relatives,
    )
    if not changed:
        return found
    inputs = np.repeat(found.inputs, found.sizes)
    return replace(found, relatives=related(found.codes, found.labels, inputs, count).reshape(-1))


def _devices(cache: Cache) -> dict[int, _Device]:
    found: dict[int, _Device] = {}
    ends = np.cumsum(cache.sizes)
    for at, number in enumerate(cache.devices.tolist()):
        part = slice(int(ends[at] - cache.sizes[at]), int(ends[at]))
        version = cache.versions[VERSION_BYTES * at : VERSION_BYTES * (at + 1)]
        codes = SampleCodes(
            codes=cache.codes[part], labels=cache.labels[part], inputs=int(cache.inputs[at]), version=version
        )
        found[number] = _Device(codes, cache.logits[part])
    return found


def taught(cache: Cache, number: int) -> SampleLogits | None:
    """Return for each sample of a device the mean of its relatives' logits; None for a device without codes.

    A sample without relatives gets its own cached logits.
    """
    (found,) = np.nonzero(cache.devices == number)
    if not len(found):
        return None
    at = int(found[0])
    begin = int(cache.sizes[:at].sum())
    own = np.arange(begin, begin + int(cache.sizes[at]))
    relatives = cache.relatives.reshape(len(cache.labels), -1)[own]  # (n, R)
    there = relatives != NONE
    sums = np.where(there[..., None], cache.logits.astype(np.float64)[relatives], 0).sum(axis=1)  # (n, k)
    counts = there.sum(axis=1, keepdims=True)  # (n, 1)
    values = np.where(counts > 0, sums / np.maximum(counts, 1), cache.logits[own]).astype(np.float32)
    return SampleLogits(values=values, version=cache.versions[VERSION_BYTES * at : VERSION_BYTES * (at + 1)])


def share_of_others(cache: Cache) -> float:
    """Return the share of relatives that are samples of another device, or 0 without relatives."""
    owner = np.repeat(cache.devices, cache.sizes)  # (N,)
    relatives = cache.relatives.reshape(len(owner), -1)
    there = relatives != NONE
    if not there.any():
        return 0.0
    return float((owner[relatives] != owner[:, None])[there].mean())


def related(codes: Floats, labels: NDArray[np.int32], inputs: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """Return for each sample the `count` others of its label and input size whose codes have the largest cosine.

    codes (N, h); labels, inputs (N,) -> (N, count), nearest first, NONE where there are fewer.  Of equal cosines the
    earlier sample is nearer.
    """
    lengths = np.sqrt((codes.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
    unit = codes / np.maximum(lengths, np.finfo(np.float64).tiny)  # (N, h)
    found = np.full((len(codes), count), NONE, np.int32)
    groups = np.unique(np.stack([labels, inputs], axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    for group in range(groups.max() + 1):
        members = np.flatnonzero(groups == group)
        most = min(count, len(members) - 1)
        for begin in range(0, len(members) if most else 0, _AT_ONCE):
            rows = members[begin : begin + _AT_ONCE]
            cosines = unit[rows] @ unit[members].T  # (b, g)
            cosines[np.arange(len(rows)), begin + np.arange(len(rows))] = -np.inf
            nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :most]
            found[rows, :most] = members[nearest]
    return found
