"""The folder of a run: its lock, the settings kept in it, and whether the run in it is over."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeAlias

from coordinator.config import chosen_method, to_toml
from coordinator.results.comparison.compare_files import COMPARISON, SWEEP
from coordinator.results.report import text_files
from coordinator.results.report.progress_file import LOCK
from coordinator.results.report.run_files import holds_finished_run
from edge_sdk.at_rest.files import make_folder
from edge_sdk.at_rest.foreign import UNREADABLE
from edge_sdk.durable import as_store_error, file_lock
from edge_sdk.errors import InUse, UsageError
from edge_sim.config import settings
from edge_sim.config.settings import Config
from edge_sim.runs.run_inputs import RunInputs

KEPT = "federation.toml"
"""Name of the file with the resolved settings, written when a run starts."""
SAMPLES = "samples.sha256"
"""Name of the file with the digest of the run's data set, written when a run starts."""
INPUTS = "inputs.json"
"""Name of the file with the digests of the run's other inputs, written when a run starts."""
FolderKind: TypeAlias = Literal["run", "comparison", "sweep"]
CHECKPOINTS = ("checkpoint", "checkpoint.old")
"""Names of the folders from which a run resumes."""
RESULTS = ("summary.json", "rounds.csv", "devices.csv")
"""Names of the files by which a folder is known to hold results."""
HOLDS: Mapping[FolderKind, tuple[str, ...]] = {
    "run": (KEPT, "summary.json", *CHECKPOINTS),
    "comparison": (COMPARISON,),
    "sweep": (SWEEP,),
}
"""Names of files that identify the kind of a folder."""


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep every other run out of a folder inside the context; creates a missing folder.

    The lock is on an empty SQLite file: every system releases it when the process ends, even after a crash.
    Raises UsageError if the folder cannot be created, or another run is in it.
    """
    missing = not folder.exists()
    make_folder(folder, f"--out {folder}")
    try:
        lock = file_lock(folder / LOCK)
    except InUse:
        raise UsageError(
            f"{folder}: a run is still active in it, and nothing was changed; wait until it is over, or give --out "
            "another folder"
        ) from None
    with closing(lock):
        try:
            yield
        finally:
            if missing and all(each.name.startswith(LOCK) for each in folder.iterdir()):  # a run that was refused
                shutil.rmtree(folder, ignore_errors=True)


def check_kind(folder: Path, kind: FolderKind) -> None:
    """Raise UsageError if a folder holds another kind of result, which reports would then hide or mix in."""
    for other, names in HOLDS.items():
        if other != kind and any((folder / name).exists() for name in names):
            raise UsageError(f"{folder}: holds a {other}, and a {kind} needs its own folder; give --out another one")


def check_new(folder: Path) -> None:
    """Raise UsageError if a new run would overwrite an old one, or be in the folder of a study."""
    check_kind(folder, "run")
    if _holds_checkpoint(folder) or (folder / "summary.json").exists():
        raise UsageError(f"{folder}: already holds a run; add --resume to continue it, or give --out another folder")
    if found := [name for name in RESULTS if (folder / name).exists()]:
        raise UsageError(f"{folder}: holds {found[0]} of a run whose summary.json is gone; give --out another folder")


def remove_results(folder: Path) -> None:
    """Remove the results of a run that is to start over."""
    for name in RESULTS:
        (folder / name).unlink(missing_ok=True)


def is_over(folder: Path, config: Config) -> bool:
    """Whether the run in a folder has ended, so that nothing can be resumed.

    Raises UsageError if the folder holds no run, one with other settings, or an active one without a checkpoint.
    """
    over = holds_finished_run(folder)
    if not (over or _holds_checkpoint(folder)):
        if (folder / LOCK).exists():
            with claimed(folder):  # raises for an active run
                pass
        raise UsageError(f"{folder}: holds nothing to resume; start without --resume")
    if (folder / KEPT).exists():  # interrupted runs of older versions have no such file
        check_same_world(folder / KEPT, config)
    return over


def remove_checkpoint(folder: Path) -> None:
    """Remove the checkpoint of a finished run, of which it has no use: of a large fleet it takes gigabytes."""
    for name in (*CHECKPOINTS, "checkpoint.new"):
        shutil.rmtree(folder / name, ignore_errors=True)


def keep_settings(folder: Path, config: Config) -> None:
    """Write the resolved settings, against which a resumed run is checked.  Raises StoreError."""
    path = folder / KEPT
    with as_store_error(path):
        text_files.replace_file(path, to_toml(config.tables))


def kept_settings(folder: Path) -> str:
    """Return the text that `keep_settings` wrote, or empty if it is unreadable."""
    with suppress(*UNREADABLE):
        return text_files.read_text(folder / KEPT)
    return ""


def keep_samples(folder: Path, sha256: str) -> None:
    """Write the digest of the data set, against which a resumed run is checked.  Raises StoreError."""
    path = folder / SAMPLES
    with as_store_error(path):
        text_files.replace_file(path, f"{sha256}\n")


def check_same_samples(folder: Path, before: str, now: str) -> None:
    """Raise UsageError if a run began with other samples.  before, now: digests, or empty if unknown."""
    if before and now and before != now:
        raise UsageError(
            f"{folder}: the run in it began with other samples than [data] gives now; restore those samples, or "
            "--out another folder"
        )


def kept_samples(folder: Path) -> str:
    """Return the digest that `keep_samples` wrote, or empty for runs of older versions."""
    with suppress(*UNREADABLE):
        return text_files.read_text(folder / SAMPLES).strip()
    return ""


def keep_inputs(folder: Path, inputs: RunInputs) -> None:
    """Write the digests of the run's other inputs, against which a resumed run is checked.  Raises StoreError."""
    path = folder / INPUTS
    with as_store_error(path):
        text_files.replace_file(path, json.dumps(dict(inputs), indent=2) + "\n")


def kept_inputs(folder: Path) -> RunInputs:
    """Return the digests that `keep_inputs` wrote, or empty for runs of older versions."""
    with suppress(*UNREADABLE):
        found = text_files.read_json(folder / INPUTS)
        return found if isinstance(found, dict) else {}
    return {}


def unused(folder: Path) -> Path:
    """Return the folder, or the first of FOLDER-2, FOLDER-3 ... that does not exist yet."""
    candidates = (folder.with_name(f"{folder.name}-{i}") for i in itertools.count(2))
    return next(path for path in (folder, *itertools.islice(candidates, 10_000)) if not path.exists())


def _holds_checkpoint(folder: Path) -> bool:
    return any((folder / name).exists() for name in CHECKPOINTS)


NAMED = 3
"""Maximum number of differences in a message."""


def check_same_world(kept: Path, config: Config) -> None:
    """Raise UsageError with the first differences if a run with the settings in `kept` cannot resume with `config`."""
    before, now = settings_by_key(settings.load_config(kept)), settings_by_key(config)
    differ = [key for key in before if key in now and before[key] != now[key]]
    if not differ:
        return
    named = [f"{key} was {_written(before[key])}, is {_written(now[key])}" for key in differ[:NAMED]]
    more = f"; and {len(differ) - NAMED} more" if len(differ) > NAMED else ""
    raise UsageError(
        f"{kept.parent}: the run in it has other settings: {'; '.join(named)}{more}; continue with {kept}, or give "
        "--out another folder"
    )


def settings_by_key(config: Config) -> dict[str, Any]:
    """Return every setting that affects results, by key, including defaults.

    Of [run] these are only the devices that are measured; partition.export is left out.
    """
    method = chosen_method(config)
    sections: dict[str, Any] = {
        "federation": asdict(config.federation),
        f"method.{method.name}": method.table,
        "train": asdict(config.train),
        "encoding": _flat(asdict(config.encoding)),
        "data": asdict(config.data),
        "partition": {**asdict(config.partition), "export": None},
        "fleet": {"rows": len(config.fleet)},
        **{f"fleet[{i}]": asdict(row) for i, row in enumerate(config.fleet)},
        "faults": {**asdict(config.faults), "seed": config.faults_seed},
        "scenario": asdict(config.scenario),
        "run": {"measured": config.run.measured_of(config.federation.devices)},
    }
    return {f"{name}.{key}": _plain(value) for name, section in sections.items() for key, value in section.items()}


def _flat(encoding: dict[str, Any]) -> dict[str, Any]:
    """Return the encodings by payload kind; kinds of other packages beside the built-in ones."""
    others = encoding.pop("others")
    return {**encoding, **others}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _written(value: object) -> str:
    return "not given" if value is None else json.dumps(value, default=str)
