"""Writers for TensorBoard, Weights & Biases, MLflow and Prometheus.  All write to this machine by default."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from coordinator.address import ListenAddress, bind, parse_address
from coordinator.results.figures.round_figures import counters
from edge_sdk.errors import MissingExtra
from edge_sdk.protocol.entry_guard import EntryGuard

DATABASE = "mlflow.db"


class TensorBoardWriter:
    """Event files for `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter  # an optional package: only where it is asked for
        except ImportError:
            raise MissingExtra("tensorboardX", "tensorboard", "--log tensorboard") from None
        self._events = SummaryWriter(str(folder))

    def write(self, round_: int, figures: Mapping[str, float]) -> None:
        """Add the scalars."""
        for name, value in figures.items():
            self._events.add_scalar(name, value, round_)
        self._events.flush()

    def close(self) -> None:
        """Close the file."""
        self._events.close()


class WandbWriter:
    """A run of Weights & Biases: offline, in the run's folder, unless WANDB_MODE says otherwise."""

    def __init__(self, project: str, name: str, folder: Path, settings: Mapping[str, Any]) -> None:
        try:
            import wandb  # an optional package: only where it is asked for
        except ImportError:
            raise MissingExtra("wandb", "wandb", "--log wandb") from None
        folder.mkdir(parents=True, exist_ok=True)
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(project=project, name=name, dir=str(folder), config=dict(settings), mode=mode)

    def write(self, round_: int, figures: Mapping[str, float]) -> None:
        """Log the figures at this step."""
        self._run.log({"round": round_, **figures})

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class MlflowWriter:
    """A run of MLflow: in a database in the folder, or on the tracking server of MLFLOW_TRACKING_URI."""

    def __init__(self, experiment: str, name: str, folder: Path, settings: Mapping[str, Any]) -> None:
        try:
            import mlflow  # an optional package: only where it is asked for
        except ImportError:
            raise MissingExtra("mlflow-skinny", "mlflow", "--log mlflow") from None
        folder.mkdir(parents=True, exist_ok=True)
        here = f"sqlite:///{(folder / DATABASE).resolve()}"  # MLflow no longer takes a bare folder
        self._client = mlflow.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or here)
        found = self._client.get_experiment_by_name(experiment)
        kept = found.experiment_id if found else self._client.create_experiment(experiment)
        self._run = self._client.create_run(kept, run_name=name).info.run_id
        for key, value in settings.items():
            self._client.log_param(self._run, key, str(value)[:500])

    def write(self, round_: int, figures: Mapping[str, float]) -> None:
        """Log the figures at this step."""
        for name, value in figures.items():
            self._client.log_metric(self._run, name, value, step=round_)

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._run)


PREFIX = "edge_sdk"
OPTION = "--metrics"
METRICS_PORT = 9464
REQUEST_S = 10.0
"""The longest wait for the rest of a request, in seconds."""


class PrometheusWriter:
    """Serves the newest figures at http://HOST:PORT/metrics, as gauges with the names of the federation and the method.

    Bytes and devices that did not answer are counters over all rounds.
    """

    def __init__(self, address: ListenAddress, labels: Mapping[str, str]) -> None:
        """Raises UsageError where the address cannot be served, MissingExtra without prometheus_client."""
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server  # an optional package
        except ImportError:
            raise MissingExtra("prometheus-client", "metrics", OPTION) from None
        self._registry, self._labels = CollectorRegistry(), dict(labels)
        self._gauge, self._counter = Gauge, Counter
        self._known: dict[str, Any] = {}
        bind(address, OPTION).close()  # it says what is wrong with an address
        self._server, self._thread = start_http_server(address.port, addr=address.host, registry=self._registry)
        self._guard_requests()

    @property
    def port(self) -> int:
        """The port, also where 0 was asked for."""
        number: int = self._server.server_port
        return number

    def write(self, round_: int, figures: Mapping[str, float]) -> None:
        """Set the gauges and raise the counters."""
        self._of("round", counts=False).set(round_)
        known = counters()
        for name, value in figures.items():
            counts = name in known
            metric = self._of(name.replace("/", "_"), counts=counts)
            if counts:
                metric.inc(value)
            else:
                metric.set(value)

    def show(self, figures: Mapping[str, float]) -> None:
        """Set gauges of the moment, between two rounds."""
        for name, value in figures.items():
            self._of(name.replace("/", "_"), counts=False).set(value)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _guard_requests(self) -> None:
        """Refuse malformed requests in one line, and let no half-sent request keep a thread."""
        guard, server = EntryGuard("metrics"), cast("Any", self._server)  # whose methods are replaced
        app = server.get_app()
        self.refused = guard.refused

        def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            with guard.message("a request"):
                answer: Iterable[bytes] = app(environ, start_response)
                return answer
            start_response("400 Bad Request", [("Content-Type", "text/plain")])
            return [b"This request cannot be read.\n"]

        def refuse(_request: object, _address: object) -> None:
            with guard.message("a connection"):
                raise sys.exc_info()[1] or RuntimeError

        server.set_app(guarded)
        server.handle_error = refuse
        server.RequestHandlerClass = type("Handler", (server.RequestHandlerClass,), {"timeout": REQUEST_S})

    def _of(self, name: str, *, counts: bool) -> Any:
        if name not in self._known:
            make = self._counter if counts else self._gauge
            whole = make(f"{PREFIX}_{name}", name.replace("_", " "), [*self._labels], registry=self._registry)
            self._known[name] = whole.labels(**self._labels)
        return self._known[name]


def metrics_address(text: str) -> ListenAddress:
    """Read the value of the option.  Raises UsageError."""
    return parse_address(text, OPTION, METRICS_PORT)
