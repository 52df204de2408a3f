"""A federation as real processes: `edge-sdk coordinator` and one `edge-sdk device` for each device, over a broker."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import fleets
from undrawn import undrawn
from warm_start import WarmProcess

from coordinator.config import to_toml
from edge_sim.config import settings
from edge_sim.fleet import fleet as sim_fleet

PATIENCE_S = 240.0
"""How long anything here may take before it is called hung."""

APP = """\
import os
from pathlib import Path

from edge_sdk.agent.app import App
from edge_sim.fleet.fleet import read_device

def make():
    device = read_device(Path(os.environ["KIT"]))
    public = None if "WITHOUT_PUBLIC" in os.environ else device.public
    accepts = {"accepts_models": True} if "ACCEPTS" in os.environ else {}  # which an older wheel does not know
    return App(model=device.kit.model(device.public), data=device.data, public=public, share_weights=True, **accepts)
"""


class Deployment:
    """Everything of one federation in one folder; processes that are still there at the end are killed."""

    def __init__(
        self,
        folder: Path,
        pictures: Path,
        broker: str,
        method: str = "fedmd",
        *,
        tables: dict[str, Any] | None = None,
        lab: Path | None = None,
        **federation: Any,
    ) -> None:
        """lab: the folder of a lab; devices then use the identity folders `folder/DEVICE`, and `broker` is not used."""
        self.folder, self.out = folder, folder / "run"
        self._way = ["--broker", broker] if lab is None else ["--lab", str(lab)]
        self._enrolled = lab is not None
        tables = tables or fleets.tables(pictures, method, devices=3, **federation)
        self.fleet = sim_fleet.build_fleet(settings.parse(tables, Path("test.toml")))
        self.running: dict[str, WarmProcess] = {}
        for device in self.fleet.devices:
            device.write(folder / "kits" / device.kit.id)
        self._write_federation(tables)
        (folder / "tiny_app.py").write_text(APP, encoding="utf-8")

    def _write_federation(self, tables: dict[str, Any]) -> None:
        roster = list(self.fleet.federation.roster)
        own = {name: tables[name] for name in ("method", "train")}
        own["federation"] = {**tables["federation"], "roster": roster, "classes": fleets.CLASSES}
        own["public"] = {"path": str(self.folder / "kits" / roster[0] / "data.npz")}
        (self.folder / "federation.toml").write_text(to_toml(own), encoding="utf-8")

    @property
    def devices(self) -> tuple[str, ...]:
        """Ids."""
        return self.fleet.federation.roster

    def start_coordinator(self, *options: str, resume: bool = False) -> None:
        """In a process of its own."""
        arguments = ["coordinator", "federation.toml", *self._way, "--out", str(self.out)]
        self._start("coordinator", [*arguments, *options, *(["--resume"] if resume else [])])

    def start_device(self, device: str, *options: str, public: bool = True) -> None:
        """In a process of its own; a second start goes on from its state.  public: whether its app has the set."""
        way = ["--identity", device] if self._enrolled else [*self._way, "--id", device]
        own = ["device", *way, "--federation", "tiny", "--app", "tiny_app:make"]
        kit = str(self.folder / "kits" / device)
        self._start(device, [*own, *options], KIT=kit, **({} if public else {"WITHOUT_PUBLIC": "1"}))

    def start_all(self) -> None:
        """The coordinator and every device."""
        self.start_coordinator()
        for device in self.devices:
            self.start_device(device)

    def _start(self, name: str, arguments: list[str], **environment: str) -> None:
        log = self.folder / f"{name}.log"
        self.running[name] = WarmProcess(arguments, cwd=self.folder, log=log, env={**undrawn(), **environment})

    def end(self, name: str, signal: int) -> int:
        """Send a signal, and wait for the process; its exit code."""
        process = self.running.pop(name)
        process.send_signal(signal)
        return process.wait(PATIENCE_S)

    def wait_for_round(self, round_: int) -> None:
        """Until the coordinator has said so."""
        self.until(lambda: f" round {round_}/" in self.said("coordinator"), f"round {round_}")

    def finish(self) -> dict[str, Any]:
        """Wait until every process has ended well; the summary."""
        for name, process in self.running.items():
            try:
                code = process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} hangs\n{self._all_logs()}") from None
            assert code == 0, f"{name} ended with {code}\n{self._all_logs()}"
        summary: dict[str, Any] = json.loads((self.out / "summary.json").read_text(encoding="utf-8"))
        return summary

    def said(self, name: str) -> str:
        """The log of a process, of all its lives."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def until(self, condition: Any, what: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end_s or any(process.poll() for process in self.running.values()):
                raise AssertionError(f"waited in vain for {what}\n{self._all_logs()}")
            time.sleep(0.01)

    def _all_logs(self) -> str:
        return "\n".join(f"--- {name}\n{self.said(name)[-2000:]}" for name in ("coordinator", *self.devices))

    def __enter__(self) -> Deployment:  # noqa: PYI034  # Self is not in Python 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()
