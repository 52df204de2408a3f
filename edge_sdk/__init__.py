"""edge-sdk: devices with different models exchange knowledge instead of data and weights.

Begin with `Agent`, which takes part in a federation for your app.  `NumpyModel`, `OnnxModel`, `TorchModel` and others
wrap your model.  `Samples` and `LocalData` hold your data; `SampleStore` collects samples as they arrive.

Each name is loaded at its first use, so `import edge_sdk` alone loads neither numpy nor torch nor a broker client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_sdk.lazy import loaded_when_used
from edge_sdk.version import __version__

if TYPE_CHECKING:
    from edge_sdk.agent.agent import Agent
    from edge_sdk.agent.app import App
    from edge_sdk.data import Augment, LocalData, Preprocess, Samples
    from edge_sdk.device.exchange import RoundReport
    from edge_sdk.errors import Damaged, EdgeError, Refused, RunFailed, StoreError, UsageError
    from edge_sdk.models import (
        Model,
        ModelSpec,
        NumpyModel,
        OnnxModel,
        OnnxTeacher,
        PredictOnly,
        SequenceModel,
        SklearnModel,
        TorchModel,
    )
    from edge_sdk.policy.energy import PowerMeter
    from edge_sdk.policy.policy import Policy
    from edge_sdk.public_set.samples import PublicSet
    from edge_sdk.samples.csv_files import samples_from_csv
    from edge_sdk.samples.readers import samples_from_folder, samples_from_npz, samples_from_torch, split_samples
    from edge_sdk.samples.store import SampleStore
    from edge_sdk.samples.texts import hashed_words
    from edge_sdk.transport.mqtt.tls import TlsFiles

_HOME = {
    "Agent": "edge_sdk.agent.agent",
    "App": "edge_sdk.agent.app",
    "Augment": "edge_sdk.data",
    "Damaged": "edge_sdk.errors",
    "EdgeError": "edge_sdk.errors",
    "LocalData": "edge_sdk.data",
    "Model": "edge_sdk.models",
    "ModelSpec": "edge_sdk.models",
    "NumpyModel": "edge_sdk.models",
    "OnnxModel": "edge_sdk.models",
    "OnnxTeacher": "edge_sdk.models",
    "Policy": "edge_sdk.policy.policy",
    "PowerMeter": "edge_sdk.policy.energy",
    "PredictOnly": "edge_sdk.models",
    "Preprocess": "edge_sdk.data",
    "PublicSet": "edge_sdk.public_set.samples",
    "Refused": "edge_sdk.errors",
    "RoundReport": "edge_sdk.device.exchange",
    "RunFailed": "edge_sdk.errors",
    "SampleStore": "edge_sdk.samples.store",
    "Samples": "edge_sdk.data",
    "SequenceModel": "edge_sdk.models",
    "SklearnModel": "edge_sdk.models",
    "StoreError": "edge_sdk.errors",
    "TlsFiles": "edge_sdk.transport.mqtt.tls",
    "TorchModel": "edge_sdk.models",
    "UsageError": "edge_sdk.errors",
    "hashed_words": "edge_sdk.samples.texts",
    "split_samples": "edge_sdk.samples.readers",
    "samples_from_csv": "edge_sdk.samples.csv_files",
    "samples_from_folder": "edge_sdk.samples.readers",
    "samples_from_npz": "edge_sdk.samples.readers",
    "samples_from_torch": "edge_sdk.samples.readers",
}

__all__ = [
    "Agent",
    "App",
    "Augment",
    "Damaged",
    "EdgeError",
    "LocalData",
    "Model",
    "ModelSpec",
    "NumpyModel",
    "OnnxModel",
    "OnnxTeacher",
    "Policy",
    "PowerMeter",
    "PredictOnly",
    "Preprocess",
    "PublicSet",
    "Refused",
    "RoundReport",
    "RunFailed",
    "SampleStore",
    "Samples",
    "SequenceModel",
    "SklearnModel",
    "StoreError",
    "TlsFiles",
    "TorchModel",
    "UsageError",
    "__version__",
    "hashed_words",
    "samples_from_csv",
    "samples_from_folder",
    "samples_from_npz",
    "samples_from_torch",
    "split_samples",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a type checker would accept any name
    __getattr__ = loaded_when_used(__name__, _HOME)
