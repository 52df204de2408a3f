"""The payload kinds with a row for each private sample of a device: codes that compare samples, and logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from edge_sdk.protocol.encodings import DEFAULT_ENCODING
from edge_sdk.protocol.frames.schema import Blob, Counts, ExactRows, Integer, Matrix, wire
from edge_sdk.protocol.knowledge import Expect, Payload, Slot, check_magnitude, unfit

VERSION_BYTES = 16
"""The length of the version of a device's samples."""
_Version = Annotated[bytes, Blob(VERSION_BYTES, VERSION_BYTES)]


@wire("sample-codes")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleCodes(Payload):
    """A code and the label of each private sample, in the device's order, by which samples of devices are compared."""

    encodings: ClassVar[tuple[str, ...]] = (DEFAULT_ENCODING,)
    codes: ExactRows  # (n, h)
    labels: Counts  # (n,)
    inputs: Annotated[int, Integer(1, 2**31 - 1)]
    """The numbers in a sample; codes of samples of another size say nothing about each other."""
    version: _Version
    """Names the samples, so that logits of others are not taken for theirs."""

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless sizes, labels and magnitude are possible."""
        _check_samples("SampleCodes", len(self.codes), expect)
        if len(self.labels) != len(self.codes) or self.codes.shape[1] != (expect.numbers or self.codes.shape[1]):
            raise unfit(
                f"SampleCodes: shape {self.codes.shape} with {len(self.labels)} labels, expected codes of width "
                f"{expect.numbers} with a label each"
            )
        if self.labels.min() < 0 or self.labels.max() >= expect.classes:
            raise unfit(f"SampleCodes: a label outside 0..{expect.classes - 1}")
        check_magnitude("SampleCodes", self.codes)

    @classmethod
    def most_bytes(cls, expect: Expect) -> tuple[int, ...]:
        """Return the bytes of the codes and labels of as many samples as are legal."""
        return (4 * expect.most_samples * expect.numbers, 4 * expect.most_samples)

    @classmethod
    def scalars(cls, slot: Slot) -> Mapping[str, int]:
        """Return the numbers of as many samples as are legal."""
        return {"": slot.samples * (slot.numbers + 1)}


@wire("sample-logits")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleLogits(Payload):
    """Logits of each private sample, in the device's order: its own, or on the way down those that it learns from."""

    coded: ClassVar[tuple[str, ...]] = ("values",)
    values: Matrix  # (n, k)
    version: _Version
    """That of the codes of the same samples."""

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless shape and magnitude are possible."""
        _check_samples("SampleLogits", len(self.values), expect)
        if self.values.shape[1] != expect.classes:
            raise unfit(f"SampleLogits: {self.values.shape[1]} logits for a sample, expected {expect.classes}")
        check_magnitude("SampleLogits", self.values)

    @classmethod
    def most_bytes(cls, expect: Expect) -> tuple[int, ...]:
        """Return the bytes of the logits of as many samples as are legal."""
        return (4 * expect.most_samples * expect.classes,)

    @classmethod
    def scalars(cls, slot: Slot) -> Mapping[str, int]:
        """Return the logits of as many samples as are legal."""
        return {"K": slot.samples}


def _check_samples(name: str, found: int, expect: Expect) -> None:
    most = min(filter(None, (expect.most_samples, expect.samples)), default=found)
    if not 1 <= found <= most:
        raise unfit(f"{name}: {found} samples, expected 1 to {most}")
