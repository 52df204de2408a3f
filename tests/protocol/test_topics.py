"""Topics route, say who a frame claims to be from, and keep devices apart."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from properties import examples
from protocol_samples import ADDRESS

from edge_sdk.errors import LocalProtocolError
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames.codec import encode
from edge_sdk.protocol.messages import Bye
from edge_sdk.protocol.topics import ACCESS_RULES, SHARDS, matches, origin

DEVICES = ("cam-07", "cam-08", "a", "0" * 36)


def test_the_names_are_the_documented_ones():
    assert topics.up("lab", "cam-07", "upd") == f"fl/v1/lab/up/{topics.shard('cam-07')}/cam-07/upd"
    assert topics.down("lab", "cam-07", "task") == "fl/v1/lab/dn/cam-07/task"
    assert topics.device_status("lab", "cam-07") == "fl/v1/lab/st/cam-07"
    assert topics.coordinator_status("lab") == "fl/v1/lab/coord"
    assert topics.control("lab") == "fl/v1/lab/ctl"


def test_hosted_brokers_take_them():
    """At most seven slashes and 256 bytes, whatever the ids."""
    longest = topics.up("f" * 36, "d" * 36, "k" * 36)
    assert longest.count("/") <= 7
    assert len(longest) <= 256


def test_a_shard_is_fixed_by_the_id_and_all_are_used():
    shards = [topics.shard(f"cam-{i}") for i in range(1000)]
    assert shards == [topics.shard(f"cam-{i}") for i in range(1000)]
    assert set(shards) == set(range(SHARDS))


# -- ids ------------------------------------------------------------------------------------------------------------

BREAKERS = (
    "+",
    "#",
    "/",
    "cam/07",
    "cam+",
    "a#",
    "$share",
    "",
    "Cam",
    "cam 7",
    "cam\n",
    "cam\x00",
    "é",
    "-cam",
    "x" * 37,
)
NAMERS = (
    lambda name: topics.up(name, "cam", "upd"),
    lambda name: topics.up("lab", name, "upd"),
    lambda name: topics.up("lab", "cam", name),
    lambda name: topics.down(name, "cam", "task"),
    lambda name: topics.down("lab", name, "task"),
    lambda name: topics.down("lab", "cam", name),
    lambda name: topics.device_status(name, "cam"),
    lambda name: topics.device_status("lab", name),
    topics.coordinator_status,
    topics.control,
    topics.coordinator_subscriptions,
    lambda name: topics.device_subscriptions(name, "cam"),
    lambda name: topics.device_subscriptions("lab", name),
)


@pytest.mark.parametrize("name", BREAKERS, ids=ascii)
def test_a_name_that_could_break_a_topic_is_refused_everywhere(name):
    for namer in NAMERS:
        with pytest.raises(LocalProtocolError, match="is not an id"):
            namer(name)
    for field in ADDRESS:
        with pytest.raises(LocalProtocolError, match=f"Bye.{field}"):
            encode(Bye(**{**ADDRESS, field: name}))


# -- sender ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_the_sender_stands_in_what_a_device_publishes(device):
    assert origin(topics.up("lab", device, "hello")).device == device
    assert origin(topics.device_status("lab", device)).device == device


@pytest.mark.parametrize(
    "topic",
    [
        topics.down("lab", "cam-07", "task"),
        topics.coordinator_status("lab"),
        topics.control("lab"),
        "",
        "/",
        "fl/v1",
        "fl/v1/lab/up/3/cam-07",
        "fl/v1/lab/up/3/cam-07/upd/more",
        "fl/v1/lab/st/cam-07/more",
        "fl/v2/lab/st/cam-07",
        "other/v1/lab/up/3/cam-07/upd",
        "/fl/v1/lab/st/cam-07",
        "fl/v1/lab/st/",
        "fl/v1/lab/st/Cam",
        "fl/v1/lab/st/+",
    ],
)
def test_other_topics_have_no_sender(topic):
    assert not origin(topic).device


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_has_one_topic_of_each_kind_that_of_its_shard(device):
    for kind in topics.UP_KINDS:
        legal = [shard for shard in range(SHARDS + 1) if origin(f"fl/v1/lab/up/{shard}/{device}/{kind}").kind]
        assert legal == [topics.shard(device)]
    assert origin(f"fl/v1/lab/up/0{topics.shard(device)}/{device}/upd") == ("lab", device, "")


# -- subscriptions --------------------------------------------------------------------------------------------------

# From the examples in section 4.7 of the MQTT specification, version 5.0.
SPECIFIED = [
    ("sport/tennis/player1/#", "sport/tennis/player1", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
    ("sport/#", "sport", True),
    ("#", "sport/tennis", True),
    ("sport/tennis/+", "sport/tennis/player1", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False),
    ("sport/+", "sport", False),
    ("sport/+", "sport/", True),
    ("+/+", "/finance", True),
    ("/+", "/finance", True),
    ("+", "/finance", False),
    ("#", "$SYS/broker", False),
    ("+/monitor/clients", "$SYS/monitor/clients", False),
    ("$SYS/#", "$SYS/broker", True),
    ("$SYS/monitor/+", "$SYS/monitor/clients", True),
    ("sport/tennis", "sport/tennis", True),
    ("sport/tennis", "Sport/tennis", False),
    ("sport/tennis", "sport/tennis/", False),
    ("+/tennis/#", "sport/tennis/x/y", True),
    ("+/tennis/#", "sport/golf", False),
]


@pytest.mark.parametrize(("pattern", "topic", "covered"), SPECIFIED)
def test_matching_is_as_specified(pattern, topic, covered):
    assert matches(pattern, topic) is covered


def reference(pattern: list[str], topic: list[str]) -> bool:
    """The definition, one level at a time."""
    if pattern == ["#"]:
        return True
    if not pattern or not topic:
        return not pattern and not topic
    return pattern[0] in ("+", topic[0]) and reference(pattern[1:], topic[1:])


LEVELS = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=4)


@examples(500)
@given(
    pattern=st.lists(st.sampled_from(["a", "b", "", "+"]), min_size=1, max_size=4), closing=st.booleans(), topic=LEVELS
)
@example(pattern=["a"], closing=True, topic=["a"])
def test_matching_agrees_with_its_definition(pattern, closing, topic):
    pattern = [*pattern, "#"] if closing else pattern
    assert matches("/".join(pattern), "/".join(topic)) == reference(pattern, topic)


def up_topics(device: str) -> tuple[str, ...]:
    return (topics.up("lab", device, "hello"), topics.up("lab", device, "upd"), topics.device_status("lab", device))


def test_each_side_hears_what_the_other_says():
    down = (
        topics.down("lab", "cam-07", "join"),
        topics.down("lab", "cam-07", "task"),
        topics.coordinator_status("lab"),
    )
    heard = {
        topic for topic in down for pattern in topics.device_subscriptions("lab", "cam-07") if matches(pattern, topic)
    }
    assert heard == set(down)
    for topic in (*up_topics("cam-07"), topics.control("lab")):
        assert any(matches(pattern, topic) for pattern in topics.coordinator_subscriptions("lab"))


def test_no_device_hears_another():
    for one, other in itertools.permutations(DEVICES, 2):
        for pattern in topics.device_subscriptions("lab", one):
            assert not matches(pattern, topics.down("lab", other, "task"))
            assert not any(matches(pattern, topic) for topic in up_topics(other))


# -- access rules ---------------------------------------------------------------------------------------------------


def allowed(role: str, verb: str, topic: str, user: str = "") -> bool:
    return any(
        matches(pattern.replace("%u", user), topic) for who, may, pattern in ACCESS_RULES if who == role and verb in may
    )


def test_a_device_may_do_what_it_needs():
    for topic in up_topics("cam-07"):
        assert allowed("device", "write", topic, "cam-07")
    for topic in (topics.down("lab", "cam-07", "task"), topics.coordinator_status("lab")):
        assert allowed("device", "read", topic, "cam-07")


def test_a_device_may_do_nothing_else():
    for one, other in itertools.permutations(DEVICES, 2):
        for topic in (*up_topics(other), topics.down("lab", other, "task")):
            assert not allowed("device", "read", topic, one)
            assert not allowed("device", "write", topic, one)
    own = topics.down("lab", "cam-07", "task")
    for topic in (own, topics.coordinator_status("lab"), topics.control("lab")):
        assert not allowed("device", "write", topic, "cam-07")
    for topic in (topics.control("lab"), topics.up("lab", "cam-07", "upd"), "$SYS/broker/clients"):
        assert not allowed("device", "read", topic, "cam-07")


def test_an_operator_may_only_speak_to_the_coordinator():
    assert allowed("operator", "write", topics.control("lab"))
    assert not allowed("operator", "read", topics.control("lab"))
    for pattern in topics.operator_subscriptions("lab", "desk-1"):
        assert allowed("operator", "read", pattern)
        assert not allowed("operator", "write", pattern)
        assert not allowed("device", "read", pattern, "cam-07") or pattern == topics.coordinator_status("lab")
    for topic in (*up_topics("cam-07"), topics.down("lab", "cam-07", "task")):
        assert not allowed("operator", "read", topic)
        assert not allowed("operator", "write", topic)


def test_the_coordinator_hears_and_says_everything_of_its_federations():
    for topic in (*up_topics("cam-07"), topics.down("lab", "cam-07", "task"), topics.coordinator_status("lab")):
        assert allowed("coordinator", "read", topic)
        assert allowed("coordinator", "write", topic)
    assert not allowed("coordinator", "read", "$SYS/broker/clients")
