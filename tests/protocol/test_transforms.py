"""The coding of knowledge between a method and the wire: its errors, and what an encoding leaves alone."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from protocol_samples import ADDRESS, PAYLOADS, SPEC

from edge_sdk.errors import LocalProtocolError, RemoteProtocolError
from edge_sdk.methods.fd import FD
from edge_sdk.methods.fedal import FedAL
from edge_sdk.methods.fedproto import FedProto
from edge_sdk.protocol.encodings import ENCODINGS
from edge_sdk.protocol.frames import codec, schema
from edge_sdk.protocol.frames.records import FrozenDict
from edge_sdk.protocol.knowledge import Expect, Payload, PublicFeatures, PublicLogits, Scalars, kinds
from edge_sdk.protocol.messages import EncodingSpec, Upload
from edge_sdk.protocol.sample_knowledge import SampleCodes
from edge_sdk.protocol.transforms import (
    Coding,
    encoding_of,
    encodings_for,
    encodings_in_use,
    missing_encodings,
    unfit_encoding,
)

LOGITS = PAYLOADS["logits"]
SAMPLES = {type(payload): payload for name, payload in PAYLOADS.items() if name != "logits-f2"}
EVERY = [(kind, name) for kind in kinds().values() if kind.coded for name in encodings_for(kind)]


def spec_with(**encoding: str):
    """Kinds without a field of their own stand in the map of others."""
    own = {field.name for field in fields(EncodingSpec)}
    others = {key.replace("_", "-"): name for key, name in encoding.items() if key not in own}
    ours = {key: name for key, name in encoding.items() if key in own}
    return replace(SPEC, encoding=EncodingSpec(**ours, others=FrozenDict(others)))


def coding(**encoding: str) -> Coding:
    return Coding(spec_with(**encoding).encoding)


def field_of(kind: type[Payload]) -> str:
    return schema.tag_of(kind).replace("-", "_")


def test_every_field_in_the_settings_is_that_of_a_kind():
    assert {field.name for field in fields(EncodingSpec)} <= {*map(field_of, kinds().values()), "others"}
    assert {kind for kind in kinds().values() if not kind.coded} == {PublicFeatures, SampleCodes, Scalars}


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_only_the_floats_of_the_chosen_kind_change(kind, name):
    ours = coding(**{field_of(kind): name})
    for each, payload in SAMPLES.items():
        sent = ours.apply({"role": payload})["role"]
        coded = each.coded if each is kind and name != "f32" else ()
        for field in fields(payload):
            before, after = getattr(payload, field.name), getattr(sent, field.name)
            assert (before is after) == (field.name not in coded)
        received = ours.undo({"role": sent})["role"]
        assert {np.asarray(getattr(received, field)).dtype for field in each.coded} <= {np.dtype("f4")}
        received.check(_expect(payload))


def _expect(payload: Payload):
    return Expect(classes=3, rows=4, feature_dim=0, batch=getattr(payload, "batch", b""))


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_what_is_sent_is_the_same_each_time(kind, name):
    ours = coding(**{field_of(kind): name})
    frames = {
        codec.encode(Upload(**ADDRESS, round=1, exchange=0, knowledge=ours.apply({"role": SAMPLES[kind]})))
        for _ in range(2)
    }
    (frame,) = frames
    upload = codec.decode(frame).message
    assert ours.undo(upload.knowledge) == ours.undo(ours.apply({"role": SAMPLES[kind]}))


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_message_is_made_anew_only_where_its_knowledge_travelled_as_something_else(kind, name):
    ours = coding(**{field_of(kind): name})
    upload = Upload(**ADDRESS, round=1, exchange=0, samples=7, knowledge=ours.apply({"role": SAMPLES[kind]}))
    received = ours.received(upload, "knowledge")
    assert received == replace(upload, knowledge=ours.undo(upload.knowledge))
    assert (received is upload) == (name == "f32")


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_payload_in_another_encoding_is_refused_by_role(kind, name):
    theirs = coding(**{field_of(kind): name}).apply({"mean": SAMPLES[kind]})
    for other in set(encodings_for(kind)) - {name}:
        with pytest.raises(RemoteProtocolError, match=f"^mean: found .* {other}"):
            coding(**{field_of(kind): other}).undo(theirs)


def test_a_number_that_does_not_fit_names_the_role():
    large = replace(LOGITS, values=np.full((4, 3), 7e4, np.float32))
    with pytest.raises(LocalProtocolError, match=r"^logits: .*70000, f16 .*65504"):
        coding(logits="f16").apply({"logits": large})


def test_int8_logits_are_about_a_quarter():
    values = np.random.default_rng(0).normal(size=(1000, 10)).astype(np.float32)
    payload = PublicLogits(values=values, batch=bytes(8))

    def size(name: str) -> int:
        knowledge = coding(logits=name).apply({"logits": payload})
        return len(codec.encode(Upload(**ADDRESS, round=0, exchange=0, knowledge=knowledge)))

    sizes = {name: size(name) for name in ENCODINGS}
    assert sizes["f16"] / sizes["f32"] == pytest.approx(1 / 2, abs=0.01)
    assert sizes["int8-tensor"] / sizes["f32"] == pytest.approx(1 / 4, abs=0.01)
    assert sizes["int8-row"] / sizes["f32"] == pytest.approx(1 / 4 + 1 / 10, abs=0.01)  # a scale for every 10 codes


def test_what_a_method_uses():
    spec = replace(spec_with(logits="int8-row", class_rows="f16"), params={})
    assert encodings_in_use(spec, FedAL().every_exchange) == {"logit-gradients": "f32", "logits": "int8-row"}
    assert encodings_in_use(spec, FedProto().every_exchange) == {"class-rows": "f16"}
    assert missing_encodings(spec, FedAL().every_exchange, ()) == ["int8-row"]
    assert missing_encodings(spec, FedAL().every_exchange, ("int8-row",)) == []
    assert missing_encodings(replace(SPEC, params={}), FedAL().every_exchange, ()) == []
    assert encoding_of(spec.encoding, PublicLogits) == "int8-row"


def test_rows_of_probabilities_are_not_quantised():
    rows = FD().every_exchange
    assert unfit_encoding(replace(spec_with(class_rows="f16"), method="fd"), rows) == ""
    unfit = unfit_encoding(replace(spec_with(class_rows="int8-tensor"), method="fd"), rows)
    assert unfit.startswith("encoding.class_rows: fd trades probabilities")
    assert unfit_encoding(spec_with(class_rows="int8-tensor"), FedProto().every_exchange) == ""
