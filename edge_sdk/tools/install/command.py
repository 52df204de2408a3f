"""`edge-sdk install`, carried out."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import shlex
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from edge_sdk.errors import StoreError, UsageError
from edge_sdk.identity.folder import BROKER_NEEDED, open_device_identity
from edge_sdk.loading import load_function
from edge_sdk.policy.policy import load_policy
from edge_sdk.protocol.frames.schema import ID
from edge_sdk.tools.install.unit import Service, unit_text
from edge_sdk.tools.measure import machine
from edge_sdk.transport.mqtt.url import PASSWORD_VARIABLE, parse_broker_url, without_password

if sys.platform != "win32":
    import pwd

LEAST_BYTES = 128 * 2**20
"""The minimum memory of a service; a device of the base install takes about 60 MiB."""
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
CONTROLLERS = Path("/sys/fs/cgroup/cgroup.controllers")
"""The file that lists what the kernel can limit."""


def command(args: argparse.Namespace) -> int:
    """Write a device's unit, or show it with --dry-run."""
    if not args.systemd:
        raise UsageError("nothing to install: add --systemd, the only kind of service")
    if not sys.platform.startswith("linux"):
        raise UsageError(f"--systemd: there is no systemd on {sys.platform}; start `edge-sdk device` by other means")
    service = _service(args)
    file = _unit_folder(service) / service.name
    text = unit_text(service)
    if args.dry_run:
        sys.stdout.write(f"would write {file}:\n\n{text}\n{_next_steps(service, file)}")
        return 0
    _write(file, text, system=service.system)
    sys.stdout.write(f"wrote {file}\n{_next_steps(service, file)}")
    return 0


def _service(args: argparse.Namespace) -> Service:
    given = args.device[1:] if args.device[:1] == ["--"] else args.device
    device: argparse.Namespace = args.read_device(given)
    if device.id is None:
        raise UsageError("--id: a service needs an id that stays when the host's name changes; add --id NAME")
    for option, value in (("id", device.id), ("federation", device.federation)):
        if not re.fullmatch(ID.pattern, value) or len(value) > ID.most:
            raise UsageError(f"--{option} {value!r}: use a-z, 0-9 and -, at most {ID.most} of them")
    for text in (*given, str(Path.cwd())):
        if not text.isprintable():
            raise UsageError(f"{text!r}: a unit has one line for each setting; leave out unprintable characters")
    system = os.geteuid() == 0 if args.unit is None else args.unit == "system"
    secrets = _config_folder(system=system) / "edge-sdk" / f"{device.id}.env"
    _check(device, secrets)
    user = _login(args.user, system=system)
    if system:
        check_reach(user, (Path(sys.executable), Path(__file__), Path.cwd()))
    return Service(
        device=device.id,
        federation=device.federation,
        python=Path(sys.executable),
        folder=Path.cwd(),
        options=_without_state(given),
        state=None if device.state is None else Path(device.state).absolute(),
        identity=None if device.identity is None else device.identity.absolute(),
        system=system,
        user=user,
        secrets=secrets,
        memory_bytes=_memory_bytes(args.memory),
        cpu_weight=args.cpu_weight,
        nice=args.nice,
    )


def _check(device: argparse.Namespace, secrets: Path) -> None:
    """Raise UsageError for options with which the service would fail at its first start."""
    _check_broker(device, secrets)
    load_function(device.app, "--app ", example="my_app:make")
    for option in ("public", "policy", "ca", "cert", "key"):
        file = getattr(device, option)
        if file is not None and not Path(file).is_file():
            raise UsageError(f"--{option} {file}: no such file; give one that the service can read")
    if device.policy is not None:
        load_policy(Path(device.policy))


def _check_broker(device: argparse.Namespace, secrets: Path) -> None:
    """Raise UsageError for an identity that cannot be, and for a broker that is missing, or holds a password."""
    own = None if device.identity is None else open_device_identity(device.identity, device.id)
    if device.broker is None:
        if own is None:
            raise UsageError(BROKER_NEEDED)
        parse_broker_url(own.broker)
        return
    if parse_broker_url(device.broker).password is not None and without_password(device.broker) != device.broker:
        raise UsageError(
            "--broker: anybody may read a unit, so it must not hold a password; write "
            f"{without_password(device.broker)} and put the line {PASSWORD_VARIABLE}=... into {secrets} (chmod 600)"
        )


def _login(given: str | None, *, system: bool) -> str:
    """Return who runs the service.  Raises UsageError for a login that does not exist, or that cannot be chosen."""
    if given is None:
        return (os.environ.get("SUDO_USER") if system else None) or getpass.getuser()
    if not system:
        raise UsageError("--user: a user's unit runs as the user who installs it; leave it out, or add --unit system")
    try:
        pwd.getpwnam(given)
    except KeyError:
        raise UsageError(f"--user {given}: this machine has no such login; make it, or name another") from None
    return given


def _without_state(options: list[str]) -> list[str]:
    """Return the options without --state, in both spellings."""
    kept, skip = [], False
    for option in options:
        if skip or option == "--state" or option.startswith("--state="):
            skip = option == "--state" and not skip
            continue
        kept.append(option)
    return kept


def _memory_bytes(text: str | None) -> int:
    """Return the memory limit, by default half of this machine's."""
    if text is None:
        return max(LEAST_BYTES, machine.ram_bytes() // 2 >> 20 << 20)
    found = re.fullmatch(r"(\d{1,12})([KMG]?)", text)
    if found is None or int(found[1]) * _UNITS[found[2]] < LEAST_BYTES:
        raise UsageError(f"--memory {text}: write at least {LEAST_BYTES >> 20}M, such as 512M or 1G")
    return int(found[1]) * _UNITS[found[2]]


def _config_folder(*, system: bool) -> Path:
    return Path("/etc") if system else Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def _unit_folder(service: Service) -> Path:
    return _config_folder(system=service.system) / "systemd" / ("system" if service.system else "user")


def _write(file: Path, text: str, *, system: bool) -> None:
    """Write the unit.  Raises UsageError where that takes root, StoreError where the disk refuses."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except PermissionError:
        how = "run it with sudo, or with --unit user" if system else f"give {file.parent} to this user"
        raise UsageError(f"{file}: this user may not write it; {how}") from None
    except OSError as error:
        raise StoreError(
            f"{file}: cannot be written ({error.strerror}); free space, or repair the file system"
        ) from error


def _next_steps(service: Service, file: Path) -> str:
    """Return a description of the unit, and the next commands."""
    manager = "systemctl" if service.system else "systemctl --user"
    journal = "journalctl" if service.system else "journalctl --user"
    mib, where = service.memory_bytes >> 20, service.state or "a folder of systemd's, kept over updates"
    lines = [
        f"runs as {service.user if service.system else 'this user'}, state in {where}",
        f"at most {mib} MiB, processor weight {service.cpu_weight} beside 100 of others, niceness {service.nice}",
        "starts again 10 s after a failure; not after exit code 2, a mistake of its command line or app",
        "no watchdog: the device does not report to systemd that it is alive",
        f"a broker's password belongs into {service.secrets}, as {PASSWORD_VARIABLE}=...",
        *(
            ["root may do more than a device needs: name another login with --user"]
            if service.user == "root" and service.system
            else []
        ),
        *missing_controllers(),
        "next:",
        f"  {manager} daemon-reload && {manager} enable --now {service.name}",
        *(
            []
            if service.system
            else [f"  loginctl enable-linger {service.user}  # so that it runs without a logged-in user"]
        ),
        f"  {journal} -fu {service.name}",
        f"to remove it: {manager} disable --now {service.name} && rm {shlex.quote(str(file))}",
    ]
    return "\n".join(lines) + "\n"


def missing_controllers(controllers: Path = CONTROLLERS) -> list[str]:
    """Return a line if this kernel does not limit memory, which is the default on Raspberry Pi OS."""
    try:
        known = controllers.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []
    line = (
        "this kernel does not limit memory: on a Raspberry Pi add `cgroup_enable=memory` to the one line of "
        "/boot/firmware/cmdline.txt and start it again"
    )
    return [] if "memory" in known else [line]


# -- Whether the service's user can reach its files: the permission bits of each folder on the way --------------------

if sys.platform != "win32":
    import pwd

_ACCESS_LIST = "system.posix_acl_access"
_READ, _ENTER = 0o4, 0o1


def check_reach(user: str, files: Iterable[Path]) -> None:
    """Raise UsageError that names the first folder or file which keeps a user from reading one of these files.

    Access control lists, and paths that this process cannot see, are not checked.
    """
    login = pwd.getpwnam(user)
    groups = {login.pw_gid, *os.getgrouplist(user, login.pw_gid)}
    for file in files:
        for path in _on_the_way(file):
            wanted = _ENTER if path.is_dir() else _READ
            if login.pw_uid != 0 and not may_use(path, wanted, login.pw_uid, groups):
                raise UsageError(
                    f"--user {user}: {path} is closed to this user, and the service needs {file}; open it, install "
                    "edge-sdk and the app in a folder of that user, or name another login"
                )


def _on_the_way(file: Path) -> list[Path]:
    """Return the folders above a file, and it; then those of what it points to."""
    found: dict[Path, None] = {}
    for path in (file.absolute(), file.resolve()):
        found |= dict.fromkeys([*reversed(path.parents), path])
    return list(found)


def may_use(path: Path, wanted: int, uid: int, groups: set[int]) -> bool:
    """Whether the permission bits of a path give a user these rights; wanted: as the bits of others."""
    try:
        known = path.stat()
    except OSError:  # invisible to this process; the service will report it
        return True
    with suppress(OSError):
        os.getxattr(path, _ACCESS_LIST)
        return True
    shift = 6 if known.st_uid == uid else 3 if known.st_gid in groups else 0
    return bool(stat.S_IMODE(known.st_mode) >> shift & wanted)
