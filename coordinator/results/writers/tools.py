"""Writers for TensorBoard, Weights & Biases and MLflow.  All write to this machine by default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_sdk.errors import MissingExtra

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
