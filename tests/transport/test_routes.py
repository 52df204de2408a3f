"""The tree of routes says what `topics.matches` says, for any patterns and topics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.protocol.topics import matches
from edge_sdk.transport.routes import Tree

TOPIC = st.lists(st.sampled_from(["a", "b", "", "$sys"]), min_size=1, max_size=4).map("/".join)
PATTERN = st.builds(
    lambda levels, closing: "/".join([*levels, *closing]) or "#",
    st.lists(st.sampled_from(["a", "b", "", "+", "$sys"]), max_size=4),
    st.sampled_from([[], ["#"]]),
)


@given(st.lists(st.tuples(PATTERN, st.integers(0, 3)), max_size=12), st.lists(st.integers(0, 20)), TOPIC)
def test_who_hears_a_topic(subscriptions: list[tuple[str, int]], gone: list[int], topic: str) -> None:
    tree: Tree[int] = Tree()
    held = dict.fromkeys(subscriptions)
    for each in held:
        tree.add(*each)
    for place in gone:
        if held:
            each = list(held)[place % len(held)]
            tree.remove(*each)
            del held[each]
    assert tree.covering(topic) == {who for pattern, who in held if matches(pattern, topic)}


@given(st.lists(TOPIC, max_size=12), st.lists(TOPIC, max_size=4), PATTERN)
def test_what_a_subscription_hears(topics: list[str], gone: list[str], pattern: str) -> None:
    tree: Tree[str] = Tree()
    for topic in topics:
        tree.add(topic, topic)
    for topic in gone:
        tree.remove(topic, topic)
    assert tree.covered(pattern) == {topic for topic in topics if topic not in gone and matches(pattern, topic)}
