#!/usr/bin/env bash
# Kills the relay 200 times under load and checks that it kept its promises.
# usage: tests/bench/relay_crash.sh [KILLS]
set -euo pipefail
cd "$(dirname "$0")/../.."
CRASH_KILLS=${1:-200} cargo test --workspace --test it -- --nocapture relay_crash
