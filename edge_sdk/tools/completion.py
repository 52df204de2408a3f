"""`edge-sdk completion`: the script for a shell, written by shtab from the command line itself."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from edge_sdk.cli import parser
from edge_sdk.errors import MissingExtra


def command(args: argparse.Namespace) -> int:
    """Print the script."""
    sys.stdout.write(completion_script(args.shell) + "\n")
    return 0


def completion_script(shell: str) -> str:
    """Return the script for bash, zsh or fish.  Raises MissingExtra."""
    if importlib.util.find_spec("shtab") is None:
        raise MissingExtra("shtab", "completion", "completing commands in a shell")
    import shtab

    top = parser()
    for action in _actions(top):
        if action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # what shtab reads
    text: str = shtab.complete(top, shell)
    return text


def _actions(top: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Return the arguments of a parser and of its sub-commands."""
    for action in top._actions:  # noqa: SLF001  # argparse has no other way, and shtab takes this one
        yield action
        for each in action.choices.values() if isinstance(action.choices, dict) else ():
            yield from _actions(each)
