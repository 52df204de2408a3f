"""`edge-sdk boards`: the profiles as a table, or this machine's, measured."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from edge_sdk import toml
from edge_sdk.at_rest.files import unwritable
from edge_sdk.boards.profiles import Board, Link
from edge_sdk.boards.table import render_boards
from edge_sdk.errors import UsageError
from edge_sdk.terminal import room_of
from edge_sdk.tools.measure.profile import measure_board, measure_link, profile_toml


def command(args: argparse.Namespace) -> int:
    """List the profiles, or measure this machine's."""
    if args.measure:
        return _measure(args)
    _check_listing(args)
    sys.stdout.write(render_boards(args.json, room_of(sys.stdout)) + "\n")
    return 0


def _check_listing(args: argparse.Namespace) -> None:
    """Raise UsageError for what is only about a profile of this machine, where none is measured."""
    for option in ("name", "write", "state", "broker"):
        if getattr(args, option) is not None:
            raise UsageError(f"--{option}: of no use without --measure, for the profiles are listed; add --measure")


def _measure(args: argparse.Namespace) -> int:
    toml.check_writer()
    name = args.default_name if args.name is None else args.name
    profiles: list[Board | Link] = [
        measure_board(name, args.state or Path(), say=lambda line: print(line, file=sys.stderr))  # noqa: T201
    ]
    if args.broker:
        profiles.append(measure_link(f"{name}-link", args.broker, f"doctor-{secrets.token_hex(6)}"))
    for profile in profiles:
        if args.write is None:
            sys.stdout.write(profile_toml(profile))
            continue
        file = args.write / f"{profile.name}.toml"
        try:
            file.write_text(profile_toml(profile), encoding="utf-8")
        except OSError as error:
            fault = f"{file}: cannot be written ({error.strerror}); give --write another folder"
            raise unwritable(error, fault) from None
        sys.stdout.write(f'{file}: in a [[fleet]] row, write {type(profile).__name__.lower()} = "{file.name}"\n')
    return 0
