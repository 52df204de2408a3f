"""`edge-sdk doctor`, carried out."""

from __future__ import annotations

import argparse
import secrets
import sys

from edge_sdk.doctor import report
from edge_sdk.doctor.checks import examine_all
from edge_sdk.doctor.finding import Patient
from edge_sdk.transport.mqtt_tls import TlsFiles


def command(args: argparse.Namespace) -> int:
    """Examine, report; the exit code says whether anything failed."""
    name = f"doctor-{secrets.token_hex(6)}"
    examined = examine_all(
        Patient(state=args.state, broker=args.broker, tls=TlsFiles(args.ca, args.cert, args.key), name=name)
    )
    if args.json:
        sys.stdout.write(report.as_json(examined) + "\n")
    else:
        report.show(examined, sys.stdout)
    return 0 if report.healthy(examined) else 1
