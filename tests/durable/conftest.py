"""Disks that refuse, and files of others."""

from __future__ import annotations

import os
import resource
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path

import pytest


@pytest.fixture
def foreign_database():
    """Makes a healthy database of another program."""

    def make(path: Path) -> bytes:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE meta (name TEXT, photo BLOB)")
            connection.commit()
        return path.read_bytes()

    return make


@pytest.fixture
def small_disk():
    """While it lasts, no file of this process grows beyond `size_bytes`: the kernel refuses, as on a full disk."""

    @contextmanager
    def limited(size_bytes: int):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture
def read_only_folder():
    """A folder that nobody may write to; for the superuser, who may, by being somebody else for the while."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "old.db").touch()
        folder.chmod(0o555)
        if user == 0:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(user)
            folder.chmod(0o755)
