"""Rules that choose the model of a simulated device, for a [[fleet]] row that names a rule.

    model = "cnn"                      this family, or MODULE:FACTORY
    model = "board"                    the same as board:mlp,cnn,resnet
    model = "board:small,medium,large" a list from small to large: the faster the board, the further down the list
    model = "random:a,b,c"             one of them, drawn for each device from the federation's seed
    model = "cycle:a,b,c"              one after the other, by the device's number
    model = "group:text-4"             the same, of a list with a name (edge_sim.models.families.GROUPS)

A list holds names of families and MODULE:FACTORY; a factory in a module that is itself called board, cycle, group or
random cannot be named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from edge_sdk.boards.profiles import Board
from edge_sdk.errors import UsageError
from edge_sim.models import families

RULES = ("board", "cycle", "group", "random")
FOR_BOARDS = "mlp,cnn,resnet"
FAST_FLOPS_PER_S, STEP = 5e9, 4
"""A board of at least this training speed takes the second model of a list; a board STEP times as fast, the third."""


def model_of(rule: str, board: Board, number: int, seed: int) -> str:
    """Return the family or MODULE:FACTORY of one device.

    Raises UsageError for an unknown name anywhere in a list, and for a board that cannot run any model of its list.
    """
    kind, _, listed = ("board", ":", FOR_BOARDS) if rule == "board" else rule.partition(":")
    if kind not in RULES:
        families.check_family(rule)
        return rule
    if kind == "group":
        listed = _group(listed)
    names = [name.strip() for name in listed.split(",")]
    for name in names:
        families.check_family(name)
    if kind == "board":
        return _for_board(names, board)
    if kind in ("cycle", "group"):
        return names[number % len(names)]
    return names[int(np.random.default_rng([seed, 8, number]).integers(len(names)))]


def _group(name: str) -> str:
    """Return the list of a group.  Raises UsageError."""
    if name not in families.GROUPS:
        raise UsageError(f"no group of model families {name!r}; known are {', '.join(families.GROUPS)}")
    return families.GROUPS[name]


def _for_board(names: list[str], board: Board) -> str:
    """Return the model for the board's speed, or the largest smaller one for which the board has a runtime."""
    place = sum(board.train_flops_per_s >= FAST_FLOPS_PER_S * STEP**i for i in range(len(names) - 1))
    for name in reversed(names[: place + 1]):
        if families.runtime(name) in board.runtimes:
            return name
    raise UsageError(
        f"fleet.model: board:{','.join(names)}: {board.name} runs {', '.join(board.runtimes)} and none of the models "
        f"for its speed ({', '.join(names[: place + 1])}); begin the list with one that it can run"
    )


def named_functions(value: Any) -> Iterator[str]:
    """Yield every text with a colon in tables of settings, the entries of a rule for models one by one."""
    if isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from named_functions(inner)
    elif isinstance(value, str):
        kind, _, listed = value.partition(":")
        names = listed.split(",") if kind in RULES else [value]
        yield from (name.strip() for name in names if ":" in name)
