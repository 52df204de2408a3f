#!/bin/sh
# Starts the coordinator of this folder's federation; after a restart it continues the run.
set -e
cd "$(dirname "$0")"
run=${RUN:-runs/digits}
if [ -e "$run/checkpoint/ledger.db" ]; then set -- --resume "$@"; fi
exec "${EDGE_SDK:-venv/bin/edge-sdk}" coordinator federation.toml --lab lab --out "$run" "$@"
