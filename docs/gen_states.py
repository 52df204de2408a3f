"""Writes docs/reference/states.md from the tables that the state machines run on."""

from __future__ import annotations

from pathlib import Path

from coordinator import rounds
from edge_sdk.device import session

PAGE = Path(__file__).parent / "reference" / "states.md"

HEAD = """\
# States

A device and the coordinator each run a state machine: a table of rules, without clock, thread, socket or randomness.
This page is written by `docs/gen_states.py` from those tables; what is drawn is what runs.

An event that has no row for the present state changes nothing. In the drawings, events that lead back to the same state
are left out; the tables have them all.
"""

DEVICE = """\
## Device session

`edge_sdk/device/session.py`. A device says hello until it is welcomed, fetches the public set where it lacks it,
works on what
it is assigned, and sends each upload again until a receipt lets go of it. `LinkUp` and `LinkDown` come from the
transport, `Fetched` and `WorkDone` from the agent, `Tick` from its clock, and everything else from the coordinator.
"""

COORDINATOR = """\
## Coordinator rounds

`coordinator/rounds/machine.py`. A run gathers devices, then goes from exchange to exchange: it collects uploads until
all that were invited have answered, or the deadline has come with a quorum, and lets the method finish. After the last
round a closing exchange brings the result down, and metrics up. An upload counts only once it is durable: `Received` is
answered by `Persist`, and only `Persisted` leads to `Fold`. The upload travels in these events and commands, and the
machine does not look into it. Commands are carried out one after the other (`coordinator/rounds/queue.py`), and the
next event is fed when all of them are; a command that the disk refuses is tried again, and everything else waits behind
it.
"""


def page() -> str:
    """The whole page."""
    sections = [HEAD]
    for intro, machine in ((DEVICE, session.SESSION_MACHINE), (COORDINATOR, rounds.ROUND_MACHINE)):
        sections += [intro, f"```mermaid\n{machine.diagram()}\n```\n", f"{machine.table()}\n"]
    return "\n".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
