"""What the contracts of all methods that average weights have in common."""

from __future__ import annotations

from edge_sdk.protocol.contracts import ranges
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.wires import Caching, Exchange, Slot

DOWN = {"weights": Slot(Weights, optional=True)}
ROUND = Exchange(down=DOWN, up={"weights": Slot(Weights)})
CLOSING = Exchange(down=DOWN)
BODY_DOWN = {"weights": Slot(Weights, optional=True, without_head=True)}
BODY_UP = {"weights": Slot(Weights, without_head=True)}
BODY_ROUND = Exchange(down=BODY_DOWN, up=BODY_UP)
DISCLOSES_BODY = "all weights in front of the last layer, and the number of samples"
DISCLOSES = "all weights of the model, from which training samples can be reconstructed, and the number of samples"


def check_slots(max_slot_age: int) -> None:
    """Raise ValueError unless this is a number of rounds."""
    ranges.whole("max_slot_age", max_slot_age, 0, paper="0: slots never expire")


def slots(start: str, max_slot_age: int) -> Caching:
    """The slots of a method that averages over all devices ever seen; models that began differently get none."""
    return Caching(first_round=0 if start == "equal" else 1, max_age=max_slot_age)


def check_mean(weighting: str, start: str) -> None:
    """Raise ValueError unless the two parameters that every such method has are among what is known.

    weighting: the mean over devices by their `samples` or `uniform`.  start: in round 0 nobody has weights of the
    federation yet; `first`: the model of the contributor with the lowest number becomes everybody's; `equal`: all
    devices start from equal weights (one file, one seed), so that round 0 can already be averaged.
    """
    ranges.choice("weighting", weighting, "samples", "uniform")
    ranges.choice("start", start, "first", "equal")
