"""The text of a systemd unit that runs `edge-sdk device`: its command line, limits and restrictions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STATE_FOLDER = "edge-sdk"
"""The folder of all devices' states under systemd's folder for states."""

SHARED_FOLDERS = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108  # named, not written
"""The folders that PrivateTmp replaces by empty ones at each start."""
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
"""Words that need no quoting for systemd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A device as a service."""

    device: str
    """Its id, which is part of the unit's name."""
    federation: str
    python: Path
    """The interpreter that has edge-sdk, by its full path."""
    folder: Path
    """The working directory, in which the app's module lies."""
    options: Sequence[str]
    """The options of `edge-sdk device`, without --state."""
    state: Path | None
    """The folder of the state, or None if systemd creates one."""
    identity: Path | None
    """The identity folder, if any, in which the device counts its starts."""
    system: bool
    """Whether it is a unit of the system, started at boot, or one of the user."""
    user: str
    """The user who runs it, for a unit of the system."""
    secrets: Path
    """A file with lines NAME=VALUE for its environment, such as the broker's password; it may be missing."""
    memory_bytes: int
    """The memory limit; beyond it the service is killed, and systemd restarts it."""
    cpu_weight: int
    """Its share of the processor beside other services, which have 100."""
    nice: int

    @property
    def name(self) -> str:
        """The file name of the unit."""
        return f"edge-sdk-{self.device}.service"


def unit_text(service: Service) -> str:
    """Return the unit."""
    own_state = service.state is None
    state = f"%S/{STATE_FOLDER}/{service.device}"
    words = ("-m", "edge_sdk.cli", "device", "--stay", *service.options, "--state")
    options = (quoted_word(option) for option in words)
    command = " ".join(
        [quoted_word(str(service.python)), *options, state if own_state else quoted_word(str(service.state))]
    )
    sections = [
        ("Unit", _about(service)),
        (
            "Service",
            [
                "Type=exec",
                f"ExecStart={command}",
                f"WorkingDirectory={literal(str(service.folder))}",
                f"EnvironmentFile=-{literal(str(service.secrets))}",
                *([f"User={service.user}"] if service.system else []),
                *([f"StateDirectory={STATE_FOLDER}/{service.device}", "StateDirectoryMode=0700"] if own_state else []),
                *ending(),
                *_limits(service),
                *_hardening(service),
            ],
        ),
        ("Install", [f"WantedBy={'multi-user' if service.system else 'default'}.target"]),
    ]
    return "\n\n".join("\n".join([f"[{head}]", *lines]) for head, lines in sections) + "\n"


def _about(service: Service) -> list[str]:
    about = [f"Description=edge-sdk device {service.device} in federation {service.federation}"]
    return [*about, "Wants=network-online.target", "After=network-online.target"] if service.system else about


def ending() -> list[str]:
    """Return the settings for restarts, and for how long stopping may take."""
    return [
        "# Exit code 2 is a mistake in the command line or the app, which a restart does not fix.",
        "Restart=on-failure",
        "RestartSec=10",
        "RestartPreventExitStatus=2",
        "TimeoutStopSec=30",
    ]


def _limits(service: Service) -> list[str]:
    return [
        f"MemoryMax={service.memory_bytes}",
        f"CPUWeight={service.cpu_weight}",
        f"IOWeight={service.cpu_weight}",
        f"Nice={service.nice}",
        "TasksMax=128",
        "LimitNOFILE=1024",
    ]


def _hardening(service: Service) -> list[str]:
    """Return the service's restrictions; a user's own systemd may only set the first lines.

    Apps use GPUs and cameras, so device files must stay accessible: without PrivateDevices, DevicePolicy and
    ProtectClock, which before systemd 253 allowed only the clock's device (systemd issue 18142).  Without capabilities
    the service cannot set the clock anyway.
    """
    lines = ["NoNewPrivileges=yes", "UMask=0077", "LockPersonality=yes", "RestrictRealtime=yes", "RestrictSUIDSGID=yes"]
    if not service.system:
        return lines
    writable = [f'"{literal(str(path))}"' for path in (service.state, service.identity) if path is not None]
    return [
        *lines,
        "CapabilityBoundingSet=",
        "ProtectSystem=strict",
        "ProtectHome=read-only",
        *([f"ReadWritePaths={' '.join(writable)}"] if writable else []),
        *private_tmp(service.folder, service.python, *(path for path in (service.state, service.identity) if path)),
        "ProtectControlGroups=yes",
        "ProtectKernelModules=yes",
        "ProtectKernelTunables=yes",
        "ProtectHostname=yes",
        "RestrictNamespaces=yes",
        "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
        "SystemCallArchitectures=native",
    ]


def private_tmp(*paths: Path) -> list[str]:
    """Return the setting for a private /tmp, or none if the service needs one of these paths in the shared one."""
    return [] if any(path.is_relative_to(shared) for path in paths for shared in SHARED_FOLDERS) else ["PrivateTmp=yes"]


def literal(text: str) -> str:
    """Escape systemd's specifiers in a text."""
    return text.replace("%", "%%")


def quoted_word(text: str) -> str:
    """Quote one word of a command line for systemd."""
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{literal(escaped)}"'
