"""The declarations of the simulator's sub-commands: demo, simulate, compare, sweep, replay, lab-device."""

from __future__ import annotations

import argparse
from pathlib import Path

from edge_sdk.cli import (
    Subcommand,
    add_page_option,
    add_plots_option,
    add_tls_options,
    add_writer_options,
    whole_number,
)

LAB, WAIT_S = "lab", 60.0
"""The name of a lab if none is given, and the longest wait in seconds for its boards."""


def _simulate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.toml")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument(
        "--broker",
        default="memory",
        help="memory (virtual time, the default), embedded, embedded:amqtt, embedded:mosquitto or mqtt://HOST[:PORT]",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="run directory (default: runs/NAME, or runs/NAME-2 and so on if that already holds a run)",
    )
    parser.add_argument(
        "--processes", metavar="N|auto", help="processes that hold the devices: shorthand for --set run.processes=N"
    )
    parser.add_argument(
        "--stack",
        nargs="?",
        const="true",
        choices=("true", "false", "auto"),
        help="compute devices with equal nets as one stack: shorthand for --set run.stack=true",
    )
    parser.add_argument(
        "--engine",
        choices=("exact", "cohort", "workers", "shards", "ray", "auto"),
        help="older form of --processes and --stack",
    )
    parser.add_argument("--resume", action="store_true", help="continue the run in that directory")
    parser.add_argument(
        "--quarantine",
        action="store_true",
        help="with --resume: set damaged state aside; if it is the run's own, the run restarts from the beginning",
    )
    parser.add_argument("--trace", action="store_true", help="keep the message log, for edge-sdk replay")
    add_page_option(parser)
    add_writer_options(parser)
    add_plots_option(parser)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON instead of the table")


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.toml")
    _add_grid_options(parser, needs_methods=True, name="compare")
    parser.add_argument(
        "--metric",
        default="mean",
        metavar="NAME",
        help="the accuracy that tables show: mean (of the devices' own models), worst, amp, fm, wlp, local_accuracy, "
        "pm_v, pm_l, gm, global_amp and so on; see docs/reference/reports.md",
    )
    add_plots_option(parser)
    parser.add_argument("--json", action="store_true", help="print compare.json instead of the table")
    lab = parser.add_argument_group("on the boards of a lab (docs/how-to/run-a-lab.md)")
    lab.add_argument("--on-devices", action="store_true", help="run on connected boards, not in a simulation")
    lab.add_argument("--broker", metavar="URL", help="mqtt://HOST[:PORT] or mqtts://HOST[:PORT]")
    lab.add_argument("--lab", metavar="NAME", help=f"the lab whose boards take part (default: {LAB})")
    lab.add_argument("--wait", type=float, metavar="SECONDS", help=f"longest wait for the boards (default: {WAIT_S:g})")
    add_tls_options(parser)


def _lab_device_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--broker", required=True, help="mqtt://HOST[:PORT] or mqtts://HOST[:PORT]")
    parser.add_argument("--lab", default=LAB, metavar="NAME", help=f"the lab of this board (default: {LAB})")
    parser.add_argument("--number", type=int, metavar="N", help="the board's device number in each run, from 0")
    parser.add_argument(
        "--list",
        type=Path,
        metavar="FILE",
        help="or a list of all boards, one name a line: the line gives the number, from 0",
    )
    parser.add_argument("--id", help="the board's name in the lab (default: device-NN, or with --list the host's name)")
    parser.add_argument("--state", type=Path, metavar="DIR", help="folder for states (default: state/lab-LAB-ID)")
    parser.add_argument(
        "--data", type=Path, default=Path(), metavar="DIR", help="folder with the files that runs name (default: here)"
    )
    parser.add_argument(
        "--allow-module",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module on this board whose models runs may name as MODULE:FACTORY; may be repeated",
    )
    parser.add_argument("--policy", type=Path, metavar="FILE.toml", help="when to train, and at what cost")
    add_tls_options(parser)


def _add_grid_options(parser: argparse.ArgumentParser, *, needs_methods: bool, name: str) -> None:
    """Add the options for the methods, the seeds and the folder of the runs."""
    parser.add_argument(
        "--methods",
        required=needs_methods,
        metavar="A,B,C",
        type=_names,
        help="methods to compare, each with its parameters from [method.NAME]; differences are to the first one; "
        "the devices alone are always included" + ("" if needs_methods else " (default: the file's own)"),
    )
    parser.add_argument(
        "--seeds", metavar="0,1,2", type=_seeds, help="seeds of data, models and batches (default: the file's own)"
    )
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument(
        "--jobs",
        type=whole_number(1, 256),
        default=1,
        metavar="N",
        help="number of simultaneous runs, each in its own process (default: 1); results stay the same",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"folder of the runs (default: runs/NAME-{name}); finished runs in it are not repeated",
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers such as 0,1,2") from None


def _sweep_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.toml")
    parser.add_argument(
        "--over",
        action="append",
        default=[],
        required=True,
        metavar="KEY=V1,V2",
        help="a key and its values, the base value first; may be repeated.  Of train.* and method.NAME.* "
        "every method chooses the best on the validation part; any other key is a condition with a table of its own",
    )
    parser.add_argument(
        "--trials",
        type=whole_number(1, 100_000),
        metavar="N",
        help="try only N settings of each method, which Optuna proposes (TPE); values may then be ranges: 0.001..0.1",
    )
    parser.add_argument(
        "--prune",
        action="store_true",
        help="end runs whose validation accuracy is below the median of earlier settings (Optuna)",
    )
    _add_grid_options(parser, needs_methods=False, name="sweep")
    add_plots_option(parser)
    parser.add_argument("--json", action="store_true", help="print sweep.json instead of the tables")


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", type=_names, metavar="A,B", help="tasks to run (default: all)")
    parser.add_argument(
        "--methods", "--method", type=_names, metavar="A,B", help="methods to run (default: all that fit a task)"
    )
    parser.add_argument(
        "--boards",
        type=_names,
        default=("rpi-zero-2w", "rpi4", "jetson-orin-nano"),
        metavar="A,B,C",
        help="boards among which the devices are divided (default: rpi-zero-2w,rpi4,jetson-orin-nano)",
    )
    parser.add_argument("--seeds", type=_seeds, metavar="0,1,2", help="default: 0,1,2; with --smoke 0")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--scale", choices=("small", "full"), default="small", help="how much is run (default: small)")
    size.add_argument("--smoke", action="store_true", help="one seed and one round of everything, to see that it runs")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the data (default: EDGE_DATA, else data)")
    parser.add_argument(
        "--jobs", type=whole_number(1, 256), default=1, metavar="N", help="number of simultaneous runs (default: 1)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the runs (default: runs/bench-SCALE); resumes what it holds"
    )
    parser.add_argument(
        "--show", action="store_true", help="run nothing: write the tables of what is finished in --out"
    )
    parser.add_argument(
        "--page", type=Path, metavar="FILE.md", help="also write the tables between the two marks of this page"
    )


def _replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="TRACE", help="the trace.edgt of a run made with --trace")
    parser.add_argument("--device", metavar="ID", help="replay this device instead of the coordinator")
    parser.add_argument("--app", metavar="MODULE:FACTORY", help="its model and data, if it was a real device")
    parser.add_argument("--public", metavar="FILE.npz", type=Path, help="the public set, if the app has none")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed", type=whole_number(0, 2**32 - 1), default=0, metavar="N", help="of all draws (default: 0)"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON instead")


def _init_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        default=Path("federation.toml"),
        metavar="FILE.toml",
        help="default: federation.toml; - prints it",
    )
    parser.add_argument("--name", default="my-federation", help="the federation's name (default: my-federation)")
    parser.add_argument("--method", default="fedmd", metavar="NAME", help="the method (default: fedmd)")
    parser.add_argument("--devices", type=whole_number(1, 10**6), default=10, metavar="N", help="default: 10")
    parser.add_argument("--rounds", type=whole_number(1, 10**9), default=50, metavar="N", help="default: 50")


def _new_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    parser.add_argument("--name", help="the federation's name (default: the folder's)")
    parser.add_argument("--model", metavar="RUNTIME", help="of your model: numpy or torch (default: numpy)")
    parser.add_argument(
        "--kind", choices=("series", "text", "table", "picture"), help="of your samples (default: table)"
    )
    parser.add_argument("--onnx", type=Path, metavar="FILE", help="your model is this .onnx file")
    parser.add_argument("--classes", type=whole_number(2, 1000), metavar="N", help="default: 10, or those of the file")
    parser.add_argument("--devices", type=whole_number(2, 1000), metavar="N", help="default: 4")
    parser.add_argument(
        "--broker", default="mqtt://127.0.0.1:1883", metavar="URL", help="default: mqtt://127.0.0.1:1883"
    )


NEW = Subcommand(
    name="new",
    help="make a project: an app, a federation, a coordinator, a systemd unit and a test; asks for missing options",
    example="edge-sdk new my-app --kind series --model numpy --classes 10 --devices 4",
    arguments=_new_arguments,
    function="edge_sim.projects.new_command:command",
)
INIT = Subcommand(
    name="init",
    help="write a federation's file with every key, its meaning and its default",
    example="edge-sdk init federation.toml --method fedmd --devices 10",
    arguments=_init_arguments,
    function="edge_sim.projects.commented_settings:command",
)


def _methods_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="describe these methods in full")
    parser.add_argument(
        "--for", dest="model", type=Path, metavar="MODEL.onnx", help="list the methods that this model fits"
    )
    parser.add_argument("--classes", type=whole_number(2, 65535), metavar="N", help="of the federation, for --for")
    parser.add_argument("--json", action="store_true", help="as JSON")


METHODS = Subcommand(
    name="methods",
    help="list methods: which to begin with, what each exchanges and requires, and which fit a model",
    example="edge-sdk methods\n  edge-sdk methods fedmd\n  edge-sdk methods --for model.onnx",
    arguments=_methods_arguments,
    function="edge_sim.projects.methods_command:command",
)
DEMO = Subcommand(
    name="demo",
    help="a quick demonstration: devices with different models learn from each other, without a broker",
    example="edge-sdk demo",
    arguments=_demo_arguments,
    function="edge_sim.runs.demo_command:command",
)
SIMULATE = Subcommand(
    name="simulate",
    help="run a whole federation on this machine",
    example="edge-sdk simulate federation.toml --broker embedded --set federation.rounds=20",
    arguments=_simulate_arguments,
    function="edge_sim.runs.command:command",
)
COMPARE = Subcommand(
    name="compare",
    help="run the same federation under several methods and compare them",
    example="edge-sdk compare federation.toml --methods fedal,fedmd --seeds 0,1,2",
    arguments=_compare_arguments,
    function="edge_sim.studies.compare_command:command",
)
SWEEP = Subcommand(
    name="sweep",
    help="run a grid of settings, let every method choose on the validation part, and compare",
    example="edge-sdk sweep federation.toml --over train.learning_rate=0.01,0.05 --methods fedal,fedmd --seeds 0,1,2",
    arguments=_sweep_arguments,
    function="edge_sim.studies.sweep_command:command",
)
BENCH = Subcommand(
    name="bench",
    help="run all methods on text, sensors, spectra and pictures on a fleet of small boards, and make one table",
    example="edge-sdk bench --methods fedproto --tasks vibration,mnist",
    arguments=_bench_arguments,
    function="edge_sim.bench.page:command",
)
REPLAY = Subcommand(
    name="replay",
    help="feed a recorded run to the coordinator again, or to one device",
    example="edge-sdk replay runs/demo/trace.edgt --device device-03",
    arguments=_replay_arguments,
    function="edge_sim.replay.command:command",
)
LAB_DEVICE = Subcommand(
    name="lab-device",
    help="as a board of a lab, take part in the runs of edge-sdk compare --on-devices",
    example="edge-sdk lab-device --broker mqtt://desk:1883 --number 7",
    arguments=_lab_device_arguments,
    function="edge_sim.lab.board:command",
)
