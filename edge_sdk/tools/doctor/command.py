"""`edge-sdk doctor`, carried out."""

from __future__ import annotations

import argparse
import secrets
import sys

from edge_sdk.tools.doctor import report
from edge_sdk.tools.doctor.checks import run_all_checks
from edge_sdk.tools.doctor.finding import CheckTarget
from edge_sdk.transport.mqtt.tls import TlsFiles


def command(args: argparse.Namespace) -> int:
    """Examine, report; the exit code says whether anything failed."""
    name = f"doctor-{secrets.token_hex(6)}"
    results = run_all_checks(
        CheckTarget(state=args.state, broker=args.broker, tls=TlsFiles(args.ca, args.cert, args.key), name=name)
    )
    if args.json:
        sys.stdout.write(report.as_json(results) + "\n")
    else:
        report.show(results, sys.stdout)
    return 0 if report.healthy(results) else 1
