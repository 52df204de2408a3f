"""Texts for the operator of a run: warnings W1 to W23, and remarks on its devices."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from coordinator.record.round_result import idle_terms, newest
from coordinator.record.units import human_bytes, printable
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.contract.base import Method
from edge_sdk.protocol.knowledge import ByClass, Payload, Slot
from edge_sdk.protocol.messages import FederationSpec, Hello, Upload

LEAST_PARTICIPATION = 0.3
"""W3 is given below this share of a round's devices."""


def labels_told(method: Method[Any]) -> str | None:
    """Warning W18, given once: what uploads with rows by class reveal about a device's labels."""
    return f"W18: {method.name} reveals to the coordinator {method.discloses}" if method.holders_wanted else None


def check_classes(
    method: Method[Any], hello: Hello, knowledge: Mapping[str, Payload], slots: Mapping[str, Slot]
) -> None:
    """Raise RemoteProtocolError (W16) for rows of a class without samples in the device's Hello.

    This applies where only the holders of a class share it.  A device whose owner withholds the counts is believed.
    """
    if not (method.holders_wanted and hello.class_counts):
        return
    for role, payload in knowledge.items():
        sums = slots[role].class_columns and not slots[role].class_times  # in these no class can be recognised
        if isinstance(payload, ByClass) and not sums:
            strange = [int(each) for each in payload.classes if not hello.class_counts[each]]
            if strange:
                raise RemoteProtocolError(
                    "knowledge",
                    f"W16: {hello.device} uploads class {strange[0]}, of which it had no samples when it joined: its "
                    "data has changed; restart its app, so that it joins again",
                )


def cautions(method: Method[Any]) -> tuple[str, ...]:
    """The warnings and refusals that a method can cause, each with its condition, in the order of their numbers."""
    found = [
        *method.cautions,
        "W17: an update withheld because it diverged, or far larger than the others'",
    ]
    if method.holders_wanted:
        found += [
            "W16: refused with rows of a class that the device did not hold when it joined",
            "W18: uploads reveal which classes a device holds",
        ]
    if method.holders_wanted > 1:
        found.append(
            f"W3: under {LEAST_PARTICIPATION:.0%} of a round's devices, or {method.holders_wanted} holders of a class"
        )
    if method.lock_step:
        found.append("W5: a device that misses more than a tenth of the exchanges")
    if method.needs_public_set:
        found.append("W6: refused without the very same public set")
    if method.caching:
        found.append("W8: no room for a slot for every device")
    if "cosine-head" in method.needs:
        found.append("W10: frozen extractors that are not all the same")
    if method.same_width:
        found.append("W12: refused with another feature width")
    if method.shares_weights:
        found.append("W13: BatchNorm")
    return tuple(sorted(found, key=lambda words: int(words[1:].split(":")[0])))


def few_holders(method: Method[Any], holders: Collection[int], sharers: int, expected: int) -> str | None:
    """Warning W3, for a method that averages rows of classes.

    holders: for each class of a round, the number of devices that uploaded it.  sharers: the devices that uploaded any
    class; expected: the devices that a round wants, which are not all devices where it draws participants.  The text
    names no round, so that it is given once.
    """
    if method.holders_wanted < 2 or not holders:
        return None
    if sharers < LEAST_PARTICIPATION * expected:
        return (
            f"W3: fewer than {LEAST_PARTICIPATION:.0%} of the devices that a round wants took part in one: "
            f"{method.name}'s rows follow them; raise federation.quorum"
        )
    if statistics.median(holders) < method.holders_wanted:
        return (
            f"W3: half of the classes had fewer than {method.holders_wanted} holders in a round: {method.name}'s "
            "rows follow the last few devices, and local training may do better"
        )
    return None


def slot_room(method: Method[Any], devices: int, weight_count: int, free_bytes: int | None) -> str | None:
    """Warning W8, for a method that keeps a slot for every device: whether slots and a round's uploads have room.

    free_bytes: free bytes where the ledger is stored, on disk or in memory, or None if unknown.
    """
    need_bytes = 2 * devices * 4 * weight_count
    if free_bytes is None or need_bytes <= free_bytes:
        return None
    return (
        f"W8: the slots of {devices} devices with {weight_count:,} weights, and the uploads of a round, take up to "
        f"{human_bytes(need_bytes)}; {human_bytes(free_bytes)} are free: {method.name} stands still once they are "
        "used up; make room, set method.max_slot_age, or encoding.weights"
    )


def batch_norm(method: Method[Any], hellos: Mapping[str, Hello]) -> tuple[str, ...]:
    """Warning W13, for a method that averages weights: the devices whose models keep running statistics."""
    found = sorted(device for device, hello in hellos.items() if hello.batch_norm)
    if not method.shares_weights or not found:
        return ()
    named = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    warning = (
        f"W13: the models of {named} have BatchNorm: {method.name} averages its weights while its running statistics "
        "stay on each device, and do not fit one another where devices hold different classes; use GroupNorm"
    )
    return (warning,)


def logits_taken(hellos: Mapping[str, Hello]) -> tuple[str, ...]:
    """Return, for each model that gives more than its logits or other outputs, what was taken for its logits."""
    found = {
        f"model {hello.model!r}: {part}"
        for hello in hellos.values()
        for part in hello.note.split("; ")
        if part.startswith("logits: ")
    }
    return tuple(sorted(found))


def frozen(method: Method[Any], hellos: Mapping[str, Hello]) -> tuple[str, ...]:
    """Warning W10, for a method that brings all features to common directions: devices whose features cannot move.

    If all have the same frozen extractor there is no warning, because the directions move towards the features.
    """
    found = sorted(device for device, hello in hellos.items() if hello.inert_terms)
    if "cosine-head" not in method.needs or not found:
        return ()
    if len({(hello.model, hello.note) for hello in hellos.values()}) == 1:
        return ()
    named = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    warning = (
        f"W10: the extractors of {named} are frozen and others' are not the same: their features never come to "
        f"{method.name}'s prototypes, and pull these away from the others'; leave them out, or give all one extractor"
    )
    return (warning,)


def withheld(withheld: Mapping[str, int], why: Mapping[str, str]) -> tuple[str, ...]:
    """Warning W17: the devices that withheld uploads, how many, and their newest reasons."""
    return tuple(
        f"W17: {device} withheld {count} uploads and went back to its last good state each time: {why[device]}"
        for device, count in sorted(withheld.items())
    )


def why_withheld(upload: Upload) -> str:
    """Return a device's reason to withhold an upload, with what can be done about it."""
    return f"{upload.withheld}; {_REMEDIES.get(upload.withheld_cause, _LOOK_THERE)}"


_LOOK_THERE = "look at the device's log"
_REMEDIES = {
    "diverged": "lower train.learning_rate, and look for extreme values in its samples",
    "no-samples": "label samples on it",
    "refused-knowledge": "look at what the devices sent in the round before, and at [robust]",
}
"""By the cause that an upload names: what to do."""


def not_served(counts: Mapping[str, int], why: Mapping[str, str]) -> tuple[str, ...]:
    """Warning W23: the devices that still predicted with an older model, in how many rounds, and the last reason."""
    return tuple(
        f"W23: {device} did not serve the model of {count} rounds: {why[device]}; if many devices report it, look for "
        "a contributor that spoils what all receive"
        for device, count in sorted(counts.items())
    )


def far_off(outliers: Mapping[str, tuple[int, float]], left_out: Mapping[str, int]) -> tuple[str, ...]:
    """Warning W17: the devices whose updates were far larger than the others', by count and most times the median.

    left_out: the devices some of whose uploads did not count; `left_out` below tells about them.
    """
    return tuple(
        f"W17: {count} updates of {device} had norms of up to {most:.0f} times the median of their exchange"
        + ("" if device in left_out else "; they were counted")
        + ": look at its samples, or take it off the roster"
        for device, (count, most) in sorted(outliers.items())
    )


def left_out(counts: Mapping[str, int], why: Mapping[str, str]) -> tuple[str, ...]:
    """Warning W24: the devices that were held out, how many of their uploads did not count, and why at last."""
    return tuple(
        f"W24: {device} was held out: {count} of its uploads were received and not counted, the last time because of "
        f"{why[device]}; robust.hold_out_rounds says for how long"
        for device, count in sorted(counts.items())
    )


def claimed_too_much(devices: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
    """Warning W26: the devices whose number of samples was cut, and what they weighed as.

    It is not an accusation: a device's number is also cut if the others declare too few.
    """
    return tuple(
        f"W26: {device} declared {claimed:,} samples, and weighed as {weighs:,}, the most that [robust] accepts beside "
        "the others' numbers; if all these numbers are right, raise robust.most_samples if it is set, or set "
        "robust.count_factor = 0"
        for device, (claimed, weighs) in sorted(devices.items())
    )


def held_out(round_: int, device: str, why: str, until: int) -> str:
    """Warning W24 when it happens; round_, until: the round, from 0, and the one in which the device counts again."""
    return f"W24: round {round_ + 1}: the upload of {device} does not count: {why}; held out up to round {until}"


def times_the_median(times: float) -> str:
    """The reason to hold out a device whose update is this many times the median."""
    return f"an update of {times:.0f} times the median"


def far_larger(round_: int, device: str, times: float) -> str:
    """Warning W17 when it happens; times: the norm of the update over the median of the exchange."""
    return f"W17: round {round_ + 1}: the update of {device} is {times:.0f} times the median"


def constant(metrics: Iterable[Mapping[str, float]], done: int, rounds: int) -> str | None:
    """Return warning W20 if most models give one class to every test sample, or None early in a run, or if they do not.

    metrics: of each device's last evaluation.
    """
    measured = list(metrics)
    stuck = sum("constant_prediction" in each for each in measured)
    if done < max(EARLY_ROUNDS, rounds // 10) or 2 * stuck <= len(measured):
        return None
    return (
        "W20: most models predict one class for every test sample: training has collapsed or stands still; "
        "look at train.learning_rate, train.clip_norm, the scale of the inputs and the method's own scales"
    )


EARLY_ROUNDS = 5
"""The rounds after which a model that learns no longer predicts a constant."""


def without_effect(method: Method[Any], spec: FederationSpec, record_instruments: Mapping[int, Any]) -> tuple[str, ...]:
    """Warning W19: the loss terms and other parts of a method that did nothing when they were measured last."""
    found = newest(record_instruments)
    terms = (
        "the term {2} on {1} samples is {share:.1%} of the gradient, which has no effect; change its weight".format(
            *name.split(".", 2), share=found[name]
        )
        for name in idle_terms(found)
    )
    return tuple(f"W19: {what}" for what in (*terms, *method.without_effect(spec, found)))


def laggards(found: Collection[str]) -> tuple[str, ...]:
    """Warning W5, for a lock-step method: the devices that missed many exchanges."""
    if not found:
        return ()
    return (f"W5: {', '.join(found)} missed more than a tenth of the exchanges of a lock-step method; use fedmd",)


def left(device: str, reason: str) -> str:
    """The remark on a device that sent a Bye before the end."""
    return f"{device} left{reason and ': '}{reason}"


def contested(device: str) -> str:
    """The remark on an id that several devices use at the same time."""
    return (
        f"two devices take part as {device}: the one that came later is refused; give each its own identity, and never "
        "a copied state folder"
    )


MOST_SENDERS = 20
"""The maximum number of senders of refused frames with a line of their own; those with the most frames get one."""


def refused_frames(senders: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each sender of frames that broke the protocol; senders: sender -> kind -> count."""
    most = sorted(senders, key=lambda sender: (-sum(senders[sender].values()), sender))
    left = most[MOST_SENDERS:]
    lines = [f"refused from {printable(name)}: {_by_fault(senders[name])}" for name in sorted(most[:MOST_SENDERS])]
    count = sum(sum(senders[name].values()) for name in left)
    return lines + [f"refused frames from {len(left)} more senders: {count}"] * bool(left)


def refused_by_devices(devices: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each device that refused frames that came to it; devices: device -> kind -> count."""
    return [f"{printable(name)} refused: {_by_fault(kinds)}" for name, kinds in sorted(devices.items())]


FRAME_FAULTS: Mapping[str, str] = {
    "limit": "longer than is legal, or asked for too often",
    "magic": "not made by edge-sdk",
    "version": "of another version of edge-sdk",
    "length": "of another length than they say",
    "checksum": "damaged on the way",
    "signature": "without a valid signature",
    "encryption": "not encrypted as this lab does",
    "msgpack": "whose content cannot be read",
    "schema": "with fields that are missing or out of range",
    "tensor": "whose numbers do not fit their shape",
    "nonfinite": "with numbers that are NaN or infinite",
    "topic": "on a topic that is not the sender's",
    "rate": "more than the sender's share",
    "stranger": "from a device that has not joined",
    "replayed": "older than one that came before",
    "knowledge": "with content that this exchange does not expect",
    "chunk": "in pieces that contradict each other",
    "busy": "without room in memory",
    "incomplete": "of which pieces never came",
    "duplicate": "that had come before",
    "stale": "too late for their exchange",
    "refused": "that this round does not take",
}
"""What was wrong with refused messages, by the word under which they are counted; it follows their number."""


def _by_fault(kinds: Mapping[str, int]) -> str:
    return ", ".join(
        f"{count} message{'s' * (count != 1)} {FRAME_FAULTS.get(kind, 'counted as')} ({kind})"
        for kind, count in kinds.items()
    )
