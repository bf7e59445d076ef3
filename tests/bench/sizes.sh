#!/usr/bin/env bash
# Measures how many bytes results take in SQLite and in ClickHouse: 20,000 jobs of 5,000 dispatches, imported, and 1,500
# webhooks of each kind, replayed. Counts, so that any build and any machine will do.
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

# GitHub's published examples, each with an id, a commit and a delivery of its own.
python3 - "$folder/archive" <<'END'
import copy, json, pathlib, random, subprocess, sys, uuid

published = "tests/peers/node_modules/@octokit/webhooks-examples/api.github.com/index.json"
examples = {group["name"]: group["examples"] for group in json.load(open(published))}
chosen = random.Random(1)
kinds = {
    "workflow_job": ["queued", "in_progress", "completed"],
    "workflow_run": ["requested", "completed", "completed"],
    "pull_request": ["opened", "synchronize", "closed"],
}
for event, actions in kinds.items():
    folder = pathlib.Path(sys.argv[1], event, "2026/10/05")
    folder.mkdir(parents=True)
    of = {action: [one for one in examples[event] if one["action"] == action] for action in actions}
    for number in range(1500):
        webhook = copy.deepcopy(chosen.choice(of[actions[number % 3]]))
        thing, sha = webhook[event], f"{chosen.getrandbits(160):040x}"
        thing["id"] = 30_000_000_000 + number // 3
        (thing["head"] if event == "pull_request" else thing)["sha" if event == "pull_request" else "head_sha"] = sha
        webhook["repository"] |= {"full_name": f"acme-{number % 10}/backend", "private": False}
        delivery = str(uuid.UUID(int=chosen.getrandbits(128), version=4))
        head = {"event": event, "delivery": delivery, "received_at": "2026-10-05T10:00:00Z", "headers": {}}
        body = json.dumps(head) + "\n" + json.dumps(webhook, separators=(",", ":"))
        (folder / f"{delivery}.json").write_text(body)
    names = [str(path) for path in folder.iterdir()]
    subprocess.run(["zstd", "-1", "-q", "--rm", *names], check=True)
END
# replay EVENT RESULTS
replay() {
  "$crcr" relay replay --quiet --from 2026-10-05T00:00Z --until 2026-10-06T00:00Z --archive "file:$folder/archive" \
    --event "$1" --results "$2" >/dev/null
}
replay pull_request "sqlite:$folder/tables.db"
python3 -c 'import sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript("DELETE FROM webhook; VACUUM")' "$folder/tables.db"
tables=$(stat --format %s "$folder/tables.db")
for event in workflow_job workflow_run pull_request; do
  replay $event "sqlite:$folder/$event.db"
  bytes=$(stat --format %s "$folder/$event.db")
  echo "SQLite: $(((bytes - tables) / 1500)) bytes for a webhook \`$event\`"
done

cp "$folder/tables.db" "$folder/results.db"
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
for event in workflow_job workflow_run pull_request; do
  replay $event "clickhouse+http://default@${clickhouse_url#http://}/crcr"
  ask "OPTIMIZE TABLE crcr_webhook FINAL"
  bytes=$(ask "SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND table = 'crcr_webhook'")
  echo "ClickHouse: $bytes bytes with 1,500 webhooks \`$event\`"
done
