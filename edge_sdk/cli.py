"""The command `edge-sdk`; its sub-commands are the entry points of the group `edge_sdk.commands`.

Exit codes: 0 ok, 1 the run failed, 2 the user's input is wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from edge_sdk.errors import EdgeError, UsageError, meant
from edge_sdk.version import __version__

INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommand:
    """One sub-command, as `edge-sdk --help` needs it: what declares it loads neither numpy, torch nor a broker."""

    name: str
    help: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], None]
    function: str
    """`module:function` that carries it out: from the arguments to the exit code.  It is loaded when the command runs,
    so that its module may import at its top what the command needs."""
    log_level: int = logging.CRITICAL
    """The least level that is logged to stderr without --verbose."""

    def run(self, args: argparse.Namespace) -> int:
        """Carry it out; the exit code."""
        code: int = pkgutil.resolve_name(self.function)(args)
        return code


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """The options of a command that speaks to a broker at mqtts://: the fields of TlsFiles, as ca, cert and key."""
    options = parser.add_argument_group("for mqtts:// (docs/how-to/tls.md)")
    options.add_argument("--ca", type=Path, metavar="FILE", help="authority of the broker (default: the system's)")
    options.add_argument("--cert", type=Path, metavar="FILE", help="our certificate, where the broker demands one")
    options.add_argument("--key", type=Path, metavar="FILE", help="its private key (default: in the file of --cert)")


def add_cloud_safe_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of a command that can keep within the limits of hosted brokers."""
    parser.add_argument(
        "--cloud-safe",
        action="store_true",
        help="publish no faster than hosted brokers allow: 10 messages, 512 KB a second",
    )


def add_plots_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of a command that draws pictures at its end."""
    parser.add_argument("--no-plots", action="store_true", help="draw no pictures; edge-sdk plot draws them later")


def add_page_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of a command whose run can be seen in a browser."""
    parser.add_argument(
        "--page",
        metavar="HOST:PORT",
        help="show the run in a browser there while it runs, such as 127.0.0.1:8421; any host but this machine's "
        "own asks for a token (docs/how-to/live-page.md)",
    )


def add_writer_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command whose run is written for other tools, too."""
    options = parser.add_argument_group("for other tools (docs/how-to/watch-a-run.md)")
    options.add_argument(
        "--log",
        action="append",
        default=[],
        metavar="TOOL",
        help="also write figures for tensorboard, wandb or mlflow, into the run's folder; may be given several times",
    )
    options.add_argument("--metrics", metavar="HOST:PORT", help="serve metrics for Prometheus there")
    options.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="lines on stderr (default: text)"
    )


def commands(word: str = "") -> list[Subcommand]:
    """Return the registered sub-command of that name, or all of them, sorted by name, if none has it."""
    points = importlib.metadata.entry_points(group="edge_sdk.commands")
    called = [point for point in points if point.name == word] or points
    return [point.load() for point in sorted(called, key=lambda point: point.name)]


class OneLineParser(argparse.ArgumentParser):
    """A parser whose error is one line: argparse's own shows the usage of the command before it."""

    advice = ""
    """The advice after an error, or empty to point to the help."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the arguments, and exit with code 2."""
        told = " ".join(message.split())
        choice = re.match(r"(?P<where>.*invalid choice: )'(?P<word>[^']*)' \(choose from (?P<known>.*)\)", told)
        if choice and (near := meant(choice["word"], re.findall(r"[\w.:-]+", choice["known"]))):
            told = f"{choice['where']}'{choice['word']}'; {near.rstrip()}"
        advice = self.advice or f"see {self.prog} --help"
        self.exit(UsageError.exit_code, f"{self.prog}: {told}{'' if told.endswith('?') else ';'} {advice}\n")


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return the type of an argument in a range; argparse's `choices` would print every number of it."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, found {text!r}")
        return number

    return read


def parser(word: str = "") -> argparse.ArgumentParser:
    """Return the parser of the command line.

    word: the only sub-command to declare, or empty for all.  Declaring the others takes longer than everything else.
    """
    top = OneLineParser(
        prog="edge-sdk",
        description="Devices with different models exchange knowledge in place of data and weights.",
        epilog="first steps: edge-sdk methods; edge-sdk simulate --help",
    )
    top.add_argument("--version", action="version", version=f"edge-sdk {__version__}")
    top.add_argument("-v", "--verbose", action="store_true", help="log what happens on the wire to stderr")
    subs = top.add_subparsers(metavar="COMMAND", required=True)
    for command in commands(word):
        sub = subs.add_parser(
            command.name,
            help=command.help,
            description=command.help,
            epilog=f"example:\n  {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.arguments(sub)
        sub.set_defaults(command=command)
    return top


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; argparse itself blames the whole program for an option that a command does not have."""
    words = sys.argv[1:] if argv is None else argv
    args, unknown = parser(next((word for word in words if not word.startswith("-")), "")).parse_known_args(words)
    if unknown:
        blamed = OneLineParser(prog=f"edge-sdk {args.command.name}")
        blamed.advice = getattr(args, "advice", "")
        blamed.error(f"unrecognized arguments: {' '.join(unknown)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    # Results repeat bit for bit only if one thread does the sums; this must be set before numpy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    args = _arguments(argv)
    command: Subcommand = args.command
    logging.basicConfig(
        level=logging.DEBUG if args.verbose else command.log_level, format="%(asctime)s %(name)s %(message)s"
    )
    try:
        return command.run(args)
    except EdgeError as error:
        _tell(str(error))
        return error.exit_code
    except MemoryError:  # such as while numpy or torch is imported
        _tell("out of memory; free some, or raise this process's limit")
        return EdgeError.exit_code
    except KeyboardInterrupt:
        _tell("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the program that reads our output has ended, as `head` does
        sys.stderr.close()
        return 0


def _tell(line: str) -> None:
    """Print why the command ends: all errors are printed here."""
    sys.stderr.write(f"edge-sdk: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
