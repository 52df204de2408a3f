"""The table of `edge-sdk devices`."""

from __future__ import annotations

from edge_sdk.protocol.operator_messages import DeviceEntry
from edge_sdk.tools.operator.desk import device_table


def test_a_figure_has_a_column_where_some_device_has_it() -> None:
    entries = [
        DeviceEntry(device="cam-1", state="training", seen_s=3.0, figures={"accuracy": 0.5, "not_served": 2.0}),
        DeviceEntry(device="cam-2", state="declined", why="temperature 84 C above 80 C"),
    ]
    head, first, second = device_table(entries, now_s=0.0).splitlines()
    assert "not served" in head
    assert "temp" not in head
    at = head.index("not served")
    assert first[at:].split()[0] == "2"
    assert second[at:].split()[0] == "-"
    assert second.endswith("temperature 84 C above 80 C")
    assert "3 s ago" in first


def test_a_figure_that_this_machine_has_never_heard_of_has_a_column_under_its_own_name() -> None:
    entries = [DeviceEntry(device="cam-1", state="training", figures={"fan_turns": 7.0, "busy_s": 12.0})]
    head, first = device_table(entries, now_s=0.0).splitlines()
    assert first[head.index("fan turns") :].split()[0] == "7"
    assert "busy" not in head  # the live page shows it
