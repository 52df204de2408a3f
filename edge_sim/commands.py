"""The declarations of the simulator's sub-commands: demo, simulate, compare, sweep, replay, lab-device."""

from __future__ import annotations

import argparse
from pathlib import Path

from edge_sdk.cli import Subcommand, add_page_option, add_tls_options, add_writer_options, whole_number

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
        help="run directory (default: runs/NAME, or runs/NAME-2 and so on where that holds a run)",
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
        help="an older form of --processes and --stack",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in that directory")
    parser.add_argument(
        "--quarantine",
        action="store_true",
        help="with --resume: set damaged state aside; where it is the run's own, the run begins anew",
    )
    parser.add_argument("--trace", action="store_true", help="keep the message log, for edge-sdk replay")
    add_page_option(parser)
    add_writer_options(parser)
    _add_plots_option(parser)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON instead of the table")


def _add_plots_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-plots", action="store_true", help="draw no pictures; edge-sdk plot draws them later")


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
    _add_plots_option(parser)
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
    parser.add_argument("--number", type=int, metavar="N", help="which device of each run this board is, from 0")
    parser.add_argument(
        "--list",
        type=Path,
        metavar="FILE",
        help="or a list of all boards, one name a line: the place is the number",
    )
    parser.add_argument("--id", help="its name in the lab (default: device-NN, or with --list the host's name)")
    parser.add_argument("--state", type=Path, metavar="DIR", help="folder for states (default: state/lab-LAB-ID)")
    parser.add_argument(
        "--data", type=Path, default=Path(), metavar="DIR", help="folder with the files that runs name (default: here)"
    )
    parser.add_argument(
        "--allow-module",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module on this board whose models runs may name as MODULE:FACTORY; may be given several times",
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
        help="methods to compare, each with its parameters from [method.NAME]; differences are to the first one, and "
        "the devices alone are there, too" + ("" if needs_methods else " (default: the file's own)"),
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
        help="how many runs go on at once, each in a process of its own (default: 1); results are the same",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"where the runs go (default: runs/NAME-{name}); finished runs that are there are not run again",
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
        help="a key and its values, the base value first; may be given several times.  Of train.* and method.NAME.* "
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
        help="end runs whose validation accuracy is below the median of the settings that were tried before (Optuna)",
    )
    _add_grid_options(parser, needs_methods=False, name="sweep")
    _add_plots_option(parser)
    parser.add_argument("--json", action="store_true", help="print sweep.json instead of the tables")


def _replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="TRACE", help="the trace.edgt of a run that was made with --trace")
    parser.add_argument("--device", metavar="ID", help="replay what this device did, instead of the coordinator")
    parser.add_argument("--app", metavar="MODULE:FACTORY", help="its model and data, where it was a real one")
    parser.add_argument("--public", metavar="FILE.npz", type=Path, help="the public set, where the app brings none")
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
    parser.add_argument("--onnx", type=Path, metavar="FILE", help="your model is this .onnx file")
    parser.add_argument("--classes", type=whole_number(2, 1000), metavar="N", help="default: 10, or those of the file")
    parser.add_argument("--devices", type=whole_number(2, 1000), metavar="N", help="default: 4")
    parser.add_argument(
        "--broker", default="mqtt://127.0.0.1:1883", metavar="URL", help="default: mqtt://127.0.0.1:1883"
    )


NEW = Subcommand(
    name="new",
    help="make a project: an app, a federation, a coordinator, a systemd unit and a test; asks what is not given",
    example="edge-sdk new my-app --model numpy --classes 10 --devices 4",
    arguments=_new_arguments,
    function="edge_sim.projects.new_command:command",
)
INIT = Subcommand(
    name="init",
    help="write a federation's file in which every key stands, with what it means and its default",
    example="edge-sdk init federation.toml --method fedmd --devices 10",
    arguments=_init_arguments,
    function="edge_sim.projects.commented_settings:command",
)


def _methods_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="say all about these methods")
    parser.add_argument(
        "--for", dest="model", type=Path, metavar="MODEL.onnx", help="what this model could take part in, and why not"
    )
    parser.add_argument("--classes", type=whole_number(2, 65535), metavar="N", help="of the federation, for --for")
    parser.add_argument("--json", action="store_true", help="as JSON")


METHODS = Subcommand(
    name="methods",
    help="say which method to begin with, what each exchanges and asks of a model, and which fit a model",
    example="edge-sdk methods\n  edge-sdk methods fedmd\n  edge-sdk methods --for model.onnx",
    arguments=_methods_arguments,
    function="edge_sim.projects.methods_command:command",
)
DEMO = Subcommand(
    name="demo",
    help="see in seconds what it does: devices with different models learn from each other, without a broker",
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
REPLAY = Subcommand(
    name="replay",
    help="feed a recorded run to the coordinator again, or to one device",
    example="edge-sdk replay runs/demo/trace.edgt --device device-03",
    arguments=_replay_arguments,
    function="edge_sim.replay.command:command",
)
LAB_DEVICE = Subcommand(
    name="lab-device",
    help="wait as a board of a lab for the runs that edge-sdk compare --on-devices hands out, and take part",
    example="edge-sdk lab-device --broker mqtt://desk:1883 --number 7",
    arguments=_lab_device_arguments,
    function="edge_sim.lab.command:command",
)
