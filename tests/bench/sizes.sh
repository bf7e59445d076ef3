#!/usr/bin/env bash
# Measures how many bytes the results of a job take in SQLite and in ClickHouse: 20,000 jobs of 5,000 dispatches, imported.
# Counts, so that any build and any machine will do.
#
# usage: tests/bench/sizes.sh [CRCR]     Needs what tests/setup installs (`chdb`).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
crcr=$(realpath "${1:-target/debug/crcr}")
export PATH="$PWD/target/tools/venv/bin:$PATH"
folder=$(mktemp -d)
trap 'kill "${clickhouse_server:-}" 2>/dev/null || true; rm -rf "$folder"' EXIT
jobs=20000

python3 - "$jobs" >"$folder/rows.jsonl" <<'END'
import hashlib, json, random, sys, uuid
from datetime import datetime, timedelta

chosen = random.Random(1)
began = datetime(2026, 8, 1)
for n in range(int(sys.argv[1])):
    dispatch, job = divmod(n, 4)
    at = began + timedelta(seconds=120 * dispatch)
    started = at + timedelta(seconds=chosen.randint(20, 400))
    ended = started + timedelta(seconds=chosen.randint(300, 3000))
    head = hashlib.sha1(str(dispatch // 10).encode()).hexdigest()
    repo = f"acme-{dispatch % 10}/backend"
    run = 17_000_000_000 + dispatch * 7919
    print(json.dumps({
        "status": "completed", "downstream_repo": repo, "upstream_repo": "pytorch/pytorch",
        "pr_number": str(150_000 + dispatch // 40), "pytorch_head_sha": head,
        "delivery_id": str(uuid.UUID(hashlib.md5(str(dispatch // 10).encode()).hexdigest())),
        "workflow_name": "cross-repo CI", "job_name": f"test (shard {job}, 4)",
        "check_run_id": str(run + job), "run_id": str(run), "run_attempt": 1,
        "conclusion": "failure" if chosen.random() < 0.05 else "success",
        "queue_time": (started - at).seconds, "execution_time": (ended - started).seconds,
        "started_at": started.isoformat(" "), "completed_at": ended.isoformat(" "),
        "workflow_url": f"https://github.com/{repo}/actions/runs/{run}",
        "downstream_repo_level": "L2", "event_type": "pull_request",
    }))
END

# Makes the tables, although there is nothing to replay.
mkdir "$folder/archive"
"$crcr" relay replay --from 2026-08-01T00:00Z --archive "file:$folder/archive" --results "sqlite:$folder/results.db" \
  2>/dev/null || true
"$crcr" relay import --results "sqlite:$folder/results.db" "$folder/rows.jsonl"
bytes=$(stat --format %s "$folder/results.db")
echo "SQLite: $((bytes / jobs)) bytes for a job ($bytes in all)"

# shellcheck source=tests/bench/clickhouse.sh
. tests/bench/clickhouse.sh "$folder"
ask() { curl --silent --show-error --fail --data-binary "$1" "$clickhouse_url/?database=crcr"; }
"$crcr" relay import --results "clickhouse+http://default@${clickhouse_url#http://}/crcr" "$folder/rows.jsonl"
for table in crcr_attempt crcr_dispatch; do ask "OPTIMIZE TABLE $table FINAL"; done
bytes=$(ask "SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND database = 'crcr'")
echo "ClickHouse: $((bytes / jobs)) bytes for a job ($bytes in all)"
