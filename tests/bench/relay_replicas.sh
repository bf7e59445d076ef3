#!/usr/bin/env bash
# Three relays on one Redis: 50 targets, 2,000 deliveries, a relay killed every ten seconds, Redis restarted
# twice. Checks that everything that was acknowledged is done.
# usage: tests/bench/relay_replicas.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
REPLICAS_LARGE=1 cargo test --workspace --test it -- --nocapture --include-ignored relay_replicas
