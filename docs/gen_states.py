"""Writes docs/reference/states.md from the tables that the state machines run on."""

from __future__ import annotations

from pathlib import Path

from coordinator import rounds
from edge_sdk.device import session

PAGE = Path(__file__).parent / "reference" / "states.md"

HEAD = """\
# States

A device and the coordinator each run a state machine: a table of rules, without clock, thread, socket or randomness.
`docs/gen_states.py` writes this page from the same tables that the program runs.

An event without a row for the present state changes nothing. The diagrams leave out events that keep the state; the
tables have all of them.
"""

DEVICE = """\
## Device session

The table is in `edge_sdk/device/session.py`. A device sends Hello until it is welcomed, and fetches the public set if
it lacks it. It computes the exchanges that it is assigned, and sends each upload again until its receipt arrives. The
events `LinkUp` and `LinkDown` come from the transport, `Fetched` and `WorkDone` from the participant, `SessionTick`
from the clock, and all others from the coordinator.
"""

COORDINATOR = """\
## Coordinator rounds

The table is in `coordinator/rounds/machine.py`. A run waits for its devices, and then goes from exchange to exchange.
In each it collects uploads until all invited devices have answered, or until the deadline if there is a quorum; then
the method aggregates them. After the last round a closing exchange sends the result to the devices, and their metrics
back. An upload counts only once it is durable: the answer to `Received` is the command `Persist`, and only the event
`Persisted` leads to the command `Fold`. Commands are carried out one after the other
(`coordinator/rounds/queue.py`). A command that the disk refuses is tried again, and everything else waits behind it;
the clock of the round stands still meanwhile, and while uploads cannot be made durable.
"""


def page() -> str:
    """The whole page."""
    sections = [HEAD]
    for intro, machine in ((DEVICE, session.SESSION_MACHINE), (COORDINATOR, rounds.ROUND_MACHINE)):
        sections += [intro, f"```mermaid\n{machine.diagram()}\n```\n", f"{machine.table()}\n"]
    return "\n".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
