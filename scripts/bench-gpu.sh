#!/usr/bin/env bash
# bench.sh on this machine's GPU: scripts/bench-gpu.sh --prefix DIR --traces DIR --out DIR [--wheels DIR] [options]
exec "$(dirname "$0")/bench.sh" --memory device "$@"
