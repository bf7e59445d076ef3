#!/usr/bin/env bash
# Which outages `crcr` and the clients of GitHub, AWS and git survive: each call answers 503 for some seconds.
#
# usage: tests/bench/artifact_outage.sh [--crcr BINARY] [--server BINARY] [SECONDS]...
#
# Without SECONDS: 8 and 45. All cases wait at the same time, so it takes little more than the longest
# outage. Prints the table of docs/benchmarks.md. The other clients come from tests/setup.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
crcr=target/debug/crcr
server=target/debug/examples/bench_server
while [[ ${1:-} == --* ]]; do
  case $1 in
    --crcr) crcr=$2 ;;
    --server) server=$2 ;;
    *) sed -n '2,7s/^# \?//p' "$0"; exit 2 ;;
  esac
  shift 2
done
[[ -x $crcr ]] || cargo build --quiet --package crcr
[[ -x $server ]] || cargo build --quiet --package crcr-standin --example bench_server
exec target/tools/venv/bin/python tests/bench/artifact_outage.py "$crcr" "$server" "${@:-8 45}"
