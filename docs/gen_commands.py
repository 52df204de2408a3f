"""Writes docs/reference/command-line.md from the parsers of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from edge_sdk.cli import Subcommand, commands, parser

PAGE = Path(__file__).parent / "reference" / "command-line.md"
USUAL_GROUPS = ("positional arguments", "options", "optional arguments")

HEAD = """\
# The command line

One command, `edge-sdk`, with a sub-command for each task. `edge-sdk COMMAND --help` prints the same as this page, which
`docs/gen_commands.py` writes from the parsers.

| exit code | means |
|---|---|
| 0 | it worked |
| 1 | the run failed; the line on stderr has the reason ([errors](errors.md)) |
| 2 | the command line, or a file that it names, is wrong; one line has the fault |
| 130 | interrupted with Ctrl-C; finished work is kept, and the line shows how to continue |

`edge-sdk --version` prints the version. `edge-sdk -v COMMAND ...` logs the messages on the wire to stderr.
"""


def page() -> str:
    """Return the whole page."""
    parsers = dict(_children(parser()))
    declared = {command.name: command for command in commands()}
    parts = [HEAD, *_table(declared)]
    for name, command in declared.items():
        parts += [f"## {name}\n", _sentence(command.help), *_body(parsers[name], f"edge-sdk {name}")]
        parts.append(f"```sh\n{command.example}\n```\n")
    return "\n".join(parts)


def _table(declared: dict[str, Subcommand]) -> list[str]:
    rows = [f"| [`{name}`](#{name}) | {_cell(command.help)} |" for name, command in declared.items()]
    return ["| command | does |", "|---|---|", *rows, ""]


def _body(sub: argparse.ArgumentParser, words: str) -> list[str]:
    """Return usage and arguments, then those of each sub-command of its own."""
    children = dict(_children(sub))
    found = [] if children else [f"```text\n{_usage(sub, words)}\n```\n"]
    tables: dict[str, list[argparse.Action]] = {}
    for group in sub._action_groups:  # noqa: SLF001  # argparse has no other way to ask for them
        title = "" if group.title in USUAL_GROUPS else _cell(str(group.title))
        tables.setdefault(title, []).extend(filter(_told, group._group_actions))  # noqa: SLF001
    for title, actions in tables.items():
        if actions:
            found += [f"**{title[:1].upper()}{title[1:]}**\n"] if title else []
            found += ["| argument | |", "|---|---|", *map(_row, actions), ""]
    for name, child in children.items():
        found += [f"### {words.removeprefix('edge-sdk ')} {name}\n", _sentence(child.description or "")]
        found += _body(child, f"{words} {name}")
    return found


def _children(sub: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in sub._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            yield from action.choices.items()


def _told(action: argparse.Action) -> bool:
    hidden = isinstance(action, argparse._HelpAction | argparse._SubParsersAction)  # noqa: SLF001
    return not hidden and action.help != argparse.SUPPRESS


def _usage(sub: argparse.ArgumentParser, words: str) -> str:
    """Return the command with its positional arguments and required options: the others stand in the table."""
    actions = [each for each in sub._actions if _told(each)]  # noqa: SLF001
    needed = [_spelled(each) for each in actions if each.option_strings and each.required]
    placed = [f"[{_value(each)}]" if _optional(each) else _value(each) for each in actions if not each.option_strings]
    options = any(each.option_strings and not each.required for each in actions)
    return " ".join([words, *needed, *["[OPTION ...]"] * options, *placed])


def _optional(action: argparse.Action) -> bool:
    return action.nargs in ("?", "*", argparse.REMAINDER)


def _row(action: argparse.Action) -> str:
    names = ", ".join(f"`{name}`" for name in action.option_strings[:-1])
    last = f"`{_spelled(action)}`" if action.option_strings else f"`{_value(action)}`"
    needed = " **required**" if action.option_strings and action.required else ""
    text = (action.help or "") % {**vars(action), "prog": "edge-sdk"} if action.help else ""
    return f"| {', '.join(filter(None, (names, last)))} | {_cell(text)}{needed} |"


def _spelled(action: argparse.Action) -> str:
    return f"{action.option_strings[-1]} {_value(action)}".rstrip()


def _value(action: argparse.Action) -> str:
    """Return how an argument's value is shown; empty for a flag."""
    if action.nargs == 0:
        return ""
    if action.metavar is not None:
        shown = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    elif action.choices is not None:
        shown = "|".join(map(str, action.choices))
    else:
        shown = action.dest.upper() if action.option_strings else action.dest
    return f"{shown} ..." if action.nargs in ("+", "*") else shown


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return f"{text[:1].upper()}{text[1:]}.\n" if text else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
