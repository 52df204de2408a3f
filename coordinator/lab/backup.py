"""Backup and restore of a coordinator's run directory: one tar file with the ledger, models, results and logs.

The ledger is copied by SQLite, with what is still in its log.  A restored ledger gets a new run id: devices do no round
of a run twice, and would otherwise wait until the restored coordinator has reached the round that they have done.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from coordinator.lab.keeper import tell_owner
from coordinator.ledger import LEDGER, Ledger
from edge_sdk.at_rest.files import create_private, make_folder
from edge_sdk.at_rest.foreign import UNREADABLE
from edge_sdk.errors import InUse, StoreError, UsageError

MANIFEST = "backup.json"
VERSION = 1
TABLES = ("rounds", "devices", "accuracy", "instruments", "missed")
FILES = (
    "federation.toml",
    "progress.json",
    "summary.json",
    *(f"{name}.csv" for name in TABLES),
    "insight.npz",
    "log.jsonl",
    "log.1.jsonl",
)
"""Files that are copied beside the ledger and the models of rollouts, if they exist; pictures can be drawn again."""
_MODEL = re.compile(r"models/[0-9a-f]{64}\.onnx")
"""A file that devices are offered, by its SHA-256."""
_PART = 2**20
MOST_BYTES = 2**34
"""The largest file of a backup."""


def backup_command(args: argparse.Namespace) -> int:
    """Write the run directory of a stopped coordinator into a file."""
    folder, file = args.folder, args.file
    if not (folder / LEDGER).exists():
        raise UsageError(f"{folder}: holds no run (no {LEDGER}); name the run directory of a coordinator")
    if file.exists():
        raise UsageError(f"{file}: exists; name a new file")
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        copy = Path(scratch) / "ledger.db"
        try:
            ledger = Ledger(folder / LEDGER)
        except InUse:
            raise UsageError(
                f"{folder}: its coordinator is running; stop it (edge-sdk drain), back up, and start "
                "it again with --resume: devices wait for it"
            ) from None
        try:
            ledger.copy_to(copy)
        finally:
            ledger.close()
        names = [*FILES, *(f"models/{path.name}" for path in sorted((folder / "models").glob("*.onnx")))]
        found = {name: folder / name for name in names if _is_kept(name) and (folder / name).is_file()}
        _write(file, {str(LEDGER): copy, **found})
    tell_owner(f"{file}: a backup of {folder}; keep it where only you can read it")
    return 0


def _is_kept(name: str) -> bool:
    return name in (str(LEDGER), *FILES) or _MODEL.fullmatch(name) is not None


def _digest(source: IO[bytes], copy: IO[bytes] | None = None) -> str:
    """Return the SHA-256 of a file, which is copied on the way if asked; a model or a ledger need not fit in memory."""
    found = hashlib.sha256()
    while part := source.read(_PART):
        found.update(part)
        if copy is not None:
            copy.write(part)
    return found.hexdigest()


def _write(file: Path, sources: Mapping[str, Path]) -> None:
    try:
        digests = {}
        for name, path in sources.items():
            with path.open("rb") as source:
                digests[name] = _digest(source)
        manifest = json.dumps({"version": VERSION, "sha256": digests}).encode()
        create_private(file)
        with tarfile.open(file, "w") as archive:
            entry = tarfile.TarInfo(MANIFEST)
            entry.size, entry.mode = len(manifest), 0o600
            archive.addfile(entry, io.BytesIO(manifest))
            for name, path in sources.items():
                with path.open("rb") as source:
                    entry = archive.gettarinfo(arcname=name, fileobj=source)
                    entry.mode, entry.uid, entry.gid, entry.uname, entry.gname = 0o600, 0, 0, "", ""
                    archive.addfile(entry, source)
    except OSError as error:
        file.unlink(missing_ok=True)
        raise StoreError(f"{file}: cannot be written: {error.strerror}") from error


def restore_command(args: argparse.Namespace) -> int:
    """Write the contents of a backup into a new run directory."""
    folder, file = args.folder, args.file
    if (folder / LEDGER).exists():
        raise UsageError(f"{folder}: already holds a run; name a folder without one")
    _check(file)
    make_folder(folder, str(folder))
    with tarfile.open(file, "r:") as archive:
        for entry in archive:
            source, path = archive.extractfile(entry), folder / entry.name
            if source is None or entry.name == MANIFEST:
                continue
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                create_private(path)
                with path.open("wb") as copy:
                    _digest(source, copy)
            except OSError as error:
                raise StoreError(f"{path}: cannot be written: {error.strerror}") from error
    ledger = Ledger(folder / LEDGER)
    try:
        ledger.begin_generation(ledger.spec, None)
    finally:
        ledger.close()
    tell_owner(f"{folder}: restored from {file}; start its coordinator with --resume: devices join again")
    return 0


def _check(file: Path) -> None:
    """Raise UsageError unless a backup holds the files of its list, whole, and no others."""
    found: dict[str, str] = {}
    listed: dict[str, str] = {}
    try:
        with tarfile.open(file, "r:") as archive:
            for entry in archive:
                plain = entry.isreg() and entry.size <= MOST_BYTES
                source = archive.extractfile(entry) if plain else None
                if source is not None and entry.name == MANIFEST:
                    listed = json.loads(source.read(_PART))["sha256"]
                else:
                    known = source is not None and _is_kept(entry.name) and entry.name not in found
                    found[entry.name] = _digest(source) if source is not None and known else ""
    except FileNotFoundError:
        raise UsageError(f"{file}: no such file") from None
    except (tarfile.TarError, *UNREADABLE) as error:
        raise UsageError(f"{file}: is not from edge-sdk lab backup, or is damaged ({type(error).__name__})") from None
    if not listed:
        raise UsageError(f"{file}: is not from edge-sdk lab backup, or is damaged (it lacks {MANIFEST})")
    wrong = [name for name in listed if found.get(name) != listed[name]]
    if wrong or str(LEDGER) not in listed or {*found} != {*listed}:
        raise UsageError(f"{file}: is damaged: {', '.join(sorted(wrong)) or 'its list of files'}; use another backup")
