"""Tells systemd about a coordinator: that it is ready and alive, and its last line."""

from __future__ import annotations

from coordinator.record.observer import RunObserver, RunView
from coordinator.record.run_record import RunRecord
from coordinator.systemd import SystemdNotifier


class SystemdObserver(RunObserver):
    """Passes the events of a run on to systemd."""

    def __init__(self, notifier: SystemdNotifier | None = None) -> None:
        """notifier: by default that of the process."""
        self._notifier = notifier or SystemdNotifier()

    def begun(self, view: RunView) -> None:  # noqa: ARG002  # of RunObserver
        """Say that the coordinator serves."""
        self._notifier.ready()

    def waited(self, record: RunRecord) -> None:  # noqa: ARG002  # of RunObserver
        """Say that the loop turns."""
        self._notifier.alive()

    def noted(self, message: str) -> None:
        """Show the line in `systemctl status`."""
        self._notifier.status(message)
