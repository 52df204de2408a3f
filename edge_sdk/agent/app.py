"""A device as a separate process: calls the developer's factory, runs an agent, and prints its news."""

from __future__ import annotations

import argparse
import re
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from edge_sdk.agent.agent import Agent
from edge_sdk.agent.arguments import check_options
from edge_sdk.agent.callbacks import round_lines
from edge_sdk.boards.profiles import detect
from edge_sdk.device.exchange import RoundReport
from edge_sdk.device.training.app_model import OnNewModel
from edge_sdk.device.training.data_supply import OwnData
from edge_sdk.errors import EdgeError, MissingExtra, ModelError, Refused, RunFailed, UsageError
from edge_sdk.identity.folder import BROKER_NEEDED, open_device_identity
from edge_sdk.loading import error_text, load_function, user_place
from edge_sdk.models.base import Model
from edge_sdk.plugins import plugin_faults
from edge_sdk.policy.energy import PowerMeter
from edge_sdk.policy.policy import Policy, load_policy
from edge_sdk.privacy.release import Guarantee
from edge_sdk.protocol.topics import is_id
from edge_sdk.public_set.samples import PublicSet, check_readable, public_for
from edge_sdk.serving.deployment import MAX_DROP
from edge_sdk.transport.mqtt.tls import NO_FILES, TlsFiles
from edge_sdk.transport.mqtt.url import parse_broker_url


@dataclass(frozen=True, kw_only=True, eq=False)
class App:
    """A device's model and data, as a developer's factory returns them for `edge-sdk device --app`.

    Raises UsageError for an argument of the wrong type.  Model and data are checked when the device starts.
    """

    model: Model
    data: OwnData
    public: PublicSet | None = None
    """The public set, or None to fetch it from the coordinator if the method needs one."""
    disclose_classes: bool = False
    """Whether the coordinator may know how many samples of each class this device holds."""
    privacy: Guarantee | None = None
    """The maximum privacy loss of one training record of this device, over all federations.  The device then takes part
    only in methods that release sums with noise, and does not send its numbers of samples."""
    share_weights: bool = False
    """Whether all weights of the model may leave this device, for the methods that average them."""
    share_sample_codes: bool = False
    """Whether a code and the label of each single training sample may leave this device, for `fedcache`.  Much of a
    sample can be reconstructed from its code."""
    max_drop: float | None = MAX_DROP
    """A new model is not served if its accuracy on held-out samples of `data` is lower by more than this fraction."""
    proxy: Model | None = None
    """A second model, for the methods that train one beside the device's own.  Its weights are shared; those of `model`
    then never leave the device."""
    policy: Policy | None = None
    """When to train, and at what cost, or None for always."""
    meter: PowerMeter | None = None
    """An external power meter.  None uses the board's own sensors, or its profile without sensors."""
    on_new_model: OnNewModel = "better"
    """Which model to use if `model` differs from the one that the state began with: better, adopt, keep or error."""
    accepts_models: bool = False
    """Whether the team may roll out another model to this device, as an .onnx file."""

    def __post_init__(self) -> None:
        check_options(disclose_classes=self.disclose_classes, share_weights=self.share_weights)
        check_options(share_sample_codes=self.share_sample_codes, accepts_models=self.accepts_models)
        check_options(public=self.public, policy=self.policy, privacy=self.privacy, meter=self.meter)


def load_app(name: str) -> App:
    """Call MODULE:FACTORY and return its App.  Raises UsageError if that fails."""
    factory = load_function(name, "--app ", example="my_app:make")
    try:
        app = factory()
    except MissingExtra:
        raise
    except EdgeError as error:
        raise UsageError(f"--app {name!r}{user_place(error)}: {error}") from error
    except Exception as error:
        raise UsageError(f"--app {name!r}: the factory failed with {error_text(error)}") from error
    if not isinstance(app, App):
        raise UsageError(f"--app {name!r}: the factory must return an edge_sdk.App, it returned {type(app).__name__}")
    return app


def command(args: argparse.Namespace) -> int:
    """`edge-sdk device`."""
    run_device(
        broker=args.broker,
        tls=TlsFiles(args.ca, args.cert, args.key),
        keys=args.identity,
        federation=args.federation,
        app=args.app,
        identity=args.id,
        state=args.state,
        public=args.public,
        cloud_safe=args.cloud_safe,
        policy=args.policy,
        sends_logs=not args.no_logs,
        on_new_model=args.on_new_model,
        quarantine=args.quarantine,
        stay=args.stay,
    )
    return 0


def run_device(
    *,
    broker: str | None,
    tls: TlsFiles,
    federation: str,
    app: str,
    identity: str | None,
    state: str | None,
    keys: Path | None = None,
    public: Path | None = None,
    cloud_safe: bool = False,
    policy: Path | None = None,
    sends_logs: bool = True,
    on_new_model: OnNewModel | None = None,
    quarantine: bool = False,
    stay: bool = False,
) -> None:
    """Take part until the federation is over, and print news line by line.

    app: MODULE:FACTORY.
    identity: the device's id, by default made from the host's name.
    keys: an identity folder with the id and the certificates.  It also names the broker if `broker` is None.
    state: the folder of the state, by default state/ID.
    public: an npz file with the public set, instead of the app's own or a fetched one.
    policy: a TOML file with the policy, instead of the app's own.
    sends_logs: whether an operator may read the last lines that are printed.
    on_new_model: replaces the app's own choice.
    quarantine: whether to set damaged state aside.
    stay: whether to wait for the next run after the end of one, until the device is stopped.

    Raises Refused, RunFailed, StoreError or UsageError.
    """
    if broker is None and keys is None:
        raise UsageError(BROKER_NEEDED)
    name = _checked(broker=broker, tls=tls, federation=federation, identity=identity, keys=keys, state=state)
    own_policy = load_policy(policy) if policy is not None else None
    if public is not None:
        check_readable(public)
    parts = load_app(app)
    given = public_for(public, parts.model.spec.preprocess) if public is not None else None
    try:
        agent = Agent(
            federation=federation,
            broker=broker,
            tls=None if tls == NO_FILES else tls,
            identity=keys or name,
            state=state or Path("state") / name,
            board=detect(),
            model=parts.model,
            data=parts.data,
            public=given or parts.public,
            disclose_classes=parts.disclose_classes,
            cloud_safe=cloud_safe,
            sends_logs=sends_logs,
            share_weights=parts.share_weights,
            share_sample_codes=parts.share_sample_codes,
            privacy=parts.privacy,
            proxy=parts.proxy,
            max_drop=parts.max_drop,
            policy=own_policy or parts.policy or Policy(),
            meter=parts.meter,
            on_new_model=on_new_model or parts.on_new_model,
            accepts_models=parts.accepts_models,
            quarantine=quarantine,
            stay=stay,
        )
    except ModelError as error:
        raise UsageError(str(error)) from error
    agent.on_link(lambda news: _say(f"{name}: {news}"))
    agent.on_update(lambda report: _print_round(name, report))
    bench = agent.participant.context.bench  # its model may be one that was rolled out
    spec, samples = bench.model.spec, len(bench.data.train)
    _say(f"{name}: {spec.name} ({spec.runtime}), {samples} samples, joining {federation}")
    for fault in plugin_faults():
        _say(f"{name}: {fault}; a federation that needs it refuses this device")
    signal.signal(signal.SIGTERM, lambda _number, _frame: agent.stop())
    _say(f"{name}: {_ending_of(agent)}")


def _ending_of(agent: Agent) -> str:
    """Run an agent, and return how it ended.  Raises Refused, RunFailed or StoreError if the owner must act."""
    try:
        agent.run()
    except Refused as refusal:
        if refusal.reason != "drained":
            raise
        return str(refusal)
    except RunFailed as ending:
        if not agent.missed_the_end:
            raise
        return f"{ending}; start this device again to join the federation's next run"
    return "the federation is complete" if agent.over else "stopped; start again to continue"


def _checked(
    *, broker: str | None, tls: TlsFiles, federation: str, identity: str | None, keys: Path | None, state: str | None
) -> str:
    """Return the device's id.  Raises UsageError for an invalid option, before the app is loaded."""
    address = parse_broker_url(broker) if broker is not None else None
    if not is_id(federation):
        raise UsageError(f"--federation {federation!r}: use a-z, 0-9 and -, at most 36 of them")
    for option, file in (("--ca", tls.ca), ("--cert", tls.certificate), ("--key", tls.key)):
        if file is not None and not Path(file).is_file():
            raise UsageError(f"{option} {file}: no such file")
        if file is not None and address is not None and not address.tls:
            raise UsageError(
                f"{option}: has no effect with {address}, which is reached without TLS; write mqtts://{address}"
            )
    name = _name(identity, keys)
    if keys is None and not is_id(name):
        raise UsageError(f"--id {name!r}: use a-z, 0-9 and -, at most 36 of them")
    if state is not None and Path(state).exists() and not Path(state).is_dir():
        raise UsageError(f"--state {state}: is a file; name a folder")
    return name


def _name(identity: str | None, keys: Path | None) -> str:
    """Return the device's id.  Raises UsageError if the identity folder belongs to another device than `identity`."""
    return identity or _host_name() if keys is None else open_device_identity(keys, identity).name


def _print_round(name: str, report: RoundReport) -> None:
    for line in round_lines(report):
        _say(f"{name}: {line}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _host_name() -> str:
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-")[:36] or "device"
