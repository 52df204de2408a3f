"""Backup and restore of a coordinator's run directory: one tar file with the ledger, its settings and its logs.

The ledger is copied by SQLite, with what is still in its log.  A restored ledger gets a new run id: devices do no round
of a run twice, and would otherwise wait until the restored coordinator has reached the round that they have done.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from coordinator.lab.keeper import tell_owner
from coordinator.ledger import LEDGER, Ledger
from edge_sdk.at_rest.files import create_private, make_folder
from edge_sdk.at_rest.foreign import UNREADABLE
from edge_sdk.errors import InUse, StoreError, UsageError

MANIFEST = "backup.json"
VERSION = 1
FILES = ("federation.toml", "progress.json", "summary.json", "log.jsonl", "log.1.jsonl")
"""Files that are copied beside the ledger, if they exist."""
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
        found = {str(LEDGER): copy} | {name: folder / name for name in FILES if (folder / name).is_file()}
        _write(file, {name: path.read_bytes() for name, path in found.items()})
    tell_owner(f"{file}: a backup of {folder}; keep it where only you can read it")
    return 0


def _write(file: Path, contents: Mapping[str, bytes]) -> None:
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    manifest = json.dumps({"version": VERSION, "sha256": digests}).encode()
    try:
        create_private(file)
        with tarfile.open(file, "w") as archive:
            for name, data in {MANIFEST: manifest, **contents}.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(data), 0o600
                archive.addfile(entry, io.BytesIO(data))
    except OSError as error:
        file.unlink(missing_ok=True)
        raise StoreError(f"{file}: cannot be written: {error.strerror}") from error


def restore_command(args: argparse.Namespace) -> int:
    """Write the contents of a backup into a new run directory."""
    folder, file = args.folder, args.file
    if (folder / LEDGER).exists():
        raise UsageError(f"{folder}: already holds a run; name a folder without one")
    contents = _read(file)
    make_folder(folder, str(folder))
    for name, data in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            create_private(path)
            path.write_bytes(data)
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error.strerror}") from error
    ledger = Ledger(folder / LEDGER)
    try:
        ledger.begin_generation(ledger.spec, None)
    finally:
        ledger.close()
    tell_owner(f"{folder}: restored from {file}; start its coordinator with --resume: devices join again")
    return 0


def _read(file: Path) -> dict[str, bytes]:
    """Return the files of a backup by name, after checking their digests.  Raises UsageError."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(file, "r:") as archive:
            for entry in archive:
                known = entry.name in (MANIFEST, str(LEDGER), *FILES) and entry.isreg() and entry.size <= MOST_BYTES
                opened = archive.extractfile(entry) if known else None
                if opened is not None:
                    found[entry.name] = opened.read()
        digests = json.loads(found.pop(MANIFEST))["sha256"]
    except FileNotFoundError:
        raise UsageError(f"{file}: no such file") from None
    except (tarfile.TarError, *UNREADABLE) as error:
        raise UsageError(f"{file}: is no backup of edge-sdk lab backup, or damaged ({type(error).__name__})") from None
    wrong = [name for name in digests if hashlib.sha256(found.get(name, b"")).hexdigest() != digests[name]]
    if wrong or str(LEDGER) not in digests or {*found} != {*digests}:
        raise UsageError(f"{file}: is damaged: {', '.join(sorted(wrong)) or 'its list of files'}; use another backup")
    return found
