"""Admission of devices: the capability negotiation when a device joins, before any training."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from edge_sdk.methods.contract.base import Method
from edge_sdk.protocol import transforms
from edge_sdk.protocol.messages import PROTOCOL_VERSION, FederationSpec, Hello, Upload

ENCRYPTION = "encryption"
"""The reason of a refusal that is sent unencrypted, because device and coordinator share no key."""


@dataclass(frozen=True, slots=True)
class RefusalReason:
    """Why a device is refused, and how its owner can fix it."""

    reason: str
    message: str
    remedy: str


def identity_taken(device: str) -> RefusalReason:
    """The refusal of a device whose id another device uses at the same time."""
    return RefusalReason(
        "identity",
        f"another device takes part as {device}, and came first",
        "give each device its own identity (identity=, --id), and never a copied state folder",
    )


def taken_out(device: str, federation: str) -> RefusalReason:
    """The refusal of a device that an operator has taken out of the run."""
    return RefusalReason(
        "drained",
        f"an operator took {device} out of {federation}",
        f"edge-sdk drain {device} --undo lets it in again; then start the device again",
    )


def revoked(device: str) -> RefusalReason:
    """The refusal of a device whose keys the lab has revoked."""
    return RefusalReason(
        "revoked", f"{device} was revoked", "ask the owner of the lab for a new claim, if it may take part again"
    )


def restored(device: str) -> RefusalReason:
    """The refusal of a device whose count of starts another process with its keys has already reached."""
    return RefusalReason(
        "restored",
        f"{device}: another process with its keys has counted this start, or a later one: its identity folder came "
        "back from a backup, or there is a copy of it",
        "ask the owner of the lab for a new claim, and enrol again",
    )


def unsigned(device: str) -> RefusalReason:
    """The refusal of a device whose Hello has no valid signature, in a federation that requires one."""
    return RefusalReason(
        "signature",
        f"{device}: this federation takes only frames that are signed with the key that {device} enrolled",
        "enrol this device (edge-sdk enroll --claim FILE), and start it with --identity",
    )


def unencrypted(device: str) -> RefusalReason:
    """The refusal of a device that sends plain frames in a lab that encrypts."""
    return RefusalReason(
        ENCRYPTION,
        f"{device}: this lab encrypts what devices send, and this Hello is not encrypted",
        "enrol this device with a new claim (edge-sdk lab claim, edge-sdk enroll), after an upgrade of its edge-sdk if "
        "that is older than the lab's",
    )


def encrypted(device: str) -> RefusalReason:
    """The refusal of a device whose encrypted frames the coordinator cannot open."""
    return RefusalReason(
        ENCRYPTION,
        f"{device}: its frames are encrypted, and the coordinator cannot open them",
        "enrol this device in the coordinator's lab with a new claim, or start the coordinator with the device's lab",
    )


def learns(hello: Hello, method: Method[Any]) -> bool:
    """Whether this device can train under the method; otherwise it can at most teach."""
    return method.learnt_by(hello.capabilities, hello.terms)


def nobody_learns(devices: Collection[str], method: Method[Any]) -> str:
    """The reason why a run fails if all its devices can only teach."""
    missing = ", ".join(sorted(method.needs - {"predict"}))
    return (
        f"no device can learn: {', '.join(sorted(devices))} can only predict, and {method.name} needs {missing} "
        "on at least one"
    )


def fetches(hello: Hello, spec: FederationSpec, method: Method[Any]) -> bool:
    """Whether a device lacks the public set that the method needs, and would fetch it."""
    lacking = spec.public is not None and hello.public_sha256 != spec.public.sha256
    return method.needs_public_set and lacking and hello.fetches_public


def waits(hello: Hello) -> bool:
    """Whether a device has no samples to train on yet, and will take part once it has some."""
    return hello.capacity > 0 and hello.samples == 0


def at_upload(hello: Hello, upload: Upload) -> Hello:
    """The Hello that a device would send now, at its upload: its number of samples may have changed."""
    if not hello.capacity:
        return hello
    told = len(upload.class_counts) == len(hello.class_counts)
    counts = upload.class_counts if told else hello.class_counts
    return replace(hello, samples=min(upload.samples, hello.capacity), class_counts=counts)


def refusal(
    hello: Hello,
    spec: FederationSpec,
    method: Method[Any],
    roster: Collection[str],
    agreed: Hello | None = None,
    *,
    serving: bool = False,
) -> RefusalReason | None:
    """The first reason why a device may not take part, or None if it may.

    agreed: the Hello of the device admitted first; if weights are shared, its architecture is the federation's.
    serving: whether devices can fetch the public set from this coordinator.
    """
    device = hello.device
    if PROTOCOL_VERSION not in hello.versions:
        spoken = ", ".join(map(str, hello.versions))
        older = "device" if max(hello.versions, default=0) < PROTOCOL_VERSION else "coordinator"
        return RefusalReason(
            "version",
            f"{device} speaks protocol {spoken or 'none'}, this coordinator {PROTOCOL_VERSION}",
            f"upgrade the {older}'s edge-sdk",
        )
    if roster and device not in roster:
        return RefusalReason(
            "roster", f"{device} is not on the roster of {spec.federation}", "add it to federation.roster"
        )
    if hello.classes != spec.classes:
        return RefusalReason(
            "classes",
            f"{device}: its model has {hello.classes} classes, the federation {spec.classes}",
            f"give the model {spec.classes} outputs, in the federation's class order",
        )
    lacking = None if serving and fetches(hello, spec, method) else _public_set(hello, spec, method)
    return (
        lacking
        or _abilities(hello, method)
        or unlike(hello, spec, method, agreed)
        or _encodings(hello, spec, method)
        or _objection(hello, method)
    )


def unlike(hello: Hello, spec: FederationSpec, method: Method[Any], agreed: Hello | None) -> RefusalReason | None:
    """The reason why the method cannot average what this model gives with what others give, or None if it can.

    agreed: as of `refusal`.
    """
    return _width(hello, spec, method) or _layout(hello, agreed, method) or _body(hello, method)


def _public_set(hello: Hello, spec: FederationSpec, method: Method[Any]) -> RefusalReason | None:
    if not method.needs_public_set or spec.public is None:
        return None
    if hello.public_sha256 is None:
        return RefusalReason(
            "public-set",
            f"{hello.device} holds no public set, and {method.name} exchanges logits on it",
            f"give the device the public set {spec.public.sha256.hex()}",
        )
    if hello.public_sha256 != spec.public.sha256:
        return RefusalReason(
            "public-set",
            f"{hello.device} holds the public set {hello.public_sha256.hex()}, "
            f"the federation {spec.public.sha256.hex()}: logits of different samples would be averaged",
            "copy the federation's public set to the device",
        )
    return None


_REMEDIES = {
    "weights": "; or, if its model has weights to share and its owner agrees, let them leave: App(share_weights=True)",
    "sample-codes": "; or, if its owner agrees, let a code of each of its samples leave: App(share_sample_codes=True)",
    "proxy": "; or give it a second model beside its own, whose weights are shared: App(proxy=...)",
    "width": "; or build its last block with a width switch (edge_sdk.models.torch_nets.torch_width)",
    "cosine-head": '; or build it with head="cosine", as TorchModel, NumpyModel and OnnxModel can be',
}
"""By missing capability: a remedy other than bringing another model."""


def _abilities(hello: Hello, method: Method[Any]) -> RefusalReason | None:
    if learns(hello, method) or method.taught_by(hello.capabilities):
        return None
    missing = sorted(method.needs - set(hello.capabilities))
    if missing:
        allow = "".join(text for ability, text in _REMEDIES.items() if ability in missing)
        return RefusalReason(
            "capability",
            f"{hello.device}: {method.name} needs {', '.join(missing)}, which its {hello.runtime or 'unknown'} model "
            f"{hello.model or ''} cannot do".replace("  ", " "),
            f"bring a model that can, or choose another method (edge-sdk methods lists what each needs){allow}",
        )
    return RefusalReason(
        "term",
        f"{hello.device}: {method.name} minimises {', '.join(sorted(method.terms - set(hello.terms)))}, "
        "which its model runtime cannot",
        "install on the device the package that registers the term, upgrade its edge-sdk, or use another runtime",
    )


def _width(hello: Hello, spec: FederationSpec, method: Method[Any]) -> RefusalReason | None:
    if not method.same_width or hello.feature_dim == spec.feature_dim:
        return None
    return RefusalReason(
        "feature-width",
        f"{hello.device}: its model's last layer takes {hello.feature_dim} features, the federation has "
        f"{spec.feature_dim}: {method.name} would average rows of different widths",
        f"bring a model with {spec.feature_dim} features, or give all of them another federation.feature_dim",
    )


def _encodings(hello: Hello, spec: FederationSpec, method: Method[Any]) -> RefusalReason | None:
    missing = transforms.missing_encodings(spec, method.every_exchange, hello.encodings)
    if not missing:
        return None
    used = ", ".join(
        f"{kind} in {name}" for kind, name in transforms.encodings_in_use(spec, method.every_exchange).items()
    )
    return RefusalReason(
        "encoding",
        f"{hello.device} does not speak {', '.join(missing)}: {spec.federation} exchanges {used}",
        "upgrade the device's edge-sdk, or take these lines out of [encoding]",
    )


def _layout(hello: Hello, agreed: Hello | None, method: Method[Any]) -> RefusalReason | None:
    if not (method.shares_weights and method.same_layout) or agreed is None or hello.layout == agreed.layout:
        return None
    if "proxy" in method.needs:
        shared, remedy = "its proxy", f"bring the proxy of {agreed.device}"
    else:
        shared = f"its model {hello.model or ''}"
        remedy = (
            f"bring the model of {agreed.device}, {agreed.model or 'unnamed'}; or choose a method that does not share "
            "weights (edge-sdk methods lists them)"
        )
        if method.without_weights:
            remedy = (
                f"set {method.without_weights}, under which nets may differ in front of the last layer; or {remedy}"
            )
    return RefusalReason(
        "layout",
        f"{hello.device}: {shared} has {hello.weight_count} weights of layout "
        f"{(hello.layout or b'').hex()[:8]}, the federation {agreed.weight_count} of layout "
        f"{(agreed.layout or b'').hex()[:8]} (that of {agreed.device}, which came first): {method.name} averages "
        "weights one by one",
        remedy,
    )


def _objection(hello: Hello, method: Method[Any]) -> RefusalReason | None:
    objection = method.objection(hello)
    if not objection:
        return None
    if not method.releases:
        why, _, remedy = objection.partition("; ")
        return RefusalReason("capability", f"{hello.device}: {why}", remedy)
    return RefusalReason(
        "privacy",
        f"{hello.device}: {objection}",
        "give the device a frozen extractor that was made without its data, and a budget: App(privacy=Guarantee(8, "
        '1e-5)); or let the run do without a guarantee: method.without_guarantee = "tell"',
    )


def _body(hello: Hello, method: Method[Any]) -> RefusalReason | None:
    """Refuse a model without trained weights before its last layer, if the method shares only those."""
    slots = [slot for row in method.exchanges for slot in row.up.values()]
    if not any(slot.without_head for slot in slots):
        return None
    if hello.weight_count > hello.classes * (hello.feature_dim + 1):
        return None
    return RefusalReason(
        "body",
        f"{hello.device}: its model {hello.model or ''} trains nothing in front of its last layer, and that is what "
        f"{method.name} shares",
        "bring a model with a trained extractor",
    )
