#!/usr/bin/env bash
# How fast every page answers over a million attempts, a million webhooks and a million results of
# tests, on SQLite and on Debian's ClickHouse.
# usage: tests/bench/hud_speed.sh [ATTEMPTS] [DAYS] [WEBHOOKS] [TESTS]
set -euo pipefail
cd "$(dirname "$0")/../.."
attempts=${1:-1000000} days=${2:-400} webhooks=${3:-1000000} tests=${4:-1000000}
hud_speed() { cargo bench -q --workspace --bench hud_speed -- "$@"; }
folder=$(mktemp -d)
clickhouse_server=
trap '[[ -z $clickhouse_server ]] || kill "$clickhouse_server"; rm -rf "$folder"' EXIT

echo "SQLite:"
hud_speed "sqlite:$folder/results.db" "$attempts" "$days" "$webhooks" "$tests"

source tests/bench/clickhouse.sh "$folder"
echo "ClickHouse $(curl -s "$clickhouse_url/?query=SELECT+version()"):"
hud_speed "clickhouse+$clickhouse_url/crcr" "$attempts" "$days" "$webhooks" "$tests"
