#!/usr/bin/env bash
# Sends results to a relay that keeps them in ClickHouse, restarts ClickHouse in between, counts.
# usage: tests/bench/results_ingest.sh [REPORTS]
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build --release -q --workspace --bins
cargo bench -q --workspace --bench results_ingest -- "$PWD/target/release/crcr" "${1:-100000}"
