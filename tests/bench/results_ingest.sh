#!/usr/bin/env bash
# Sends results to a relay that keeps them in ClickHouse, restarts ClickHouse in between, counts.
# usage: tests/bench/results_ingest.sh [REPORTS]
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build --release -q --workspace --bins --examples
target/release/examples/results_ingest target/release/crcr "${1:-100000}"
