#!/usr/bin/env bash
# How long `crcr oidc configure` takes as a whole process on a fork's pull request: no token, no
# network, outputs written. The bound is 50 ms.
#
# usage: tests/bench/oidc_fork.sh [path of crcr] [runs]      (default: target/release/crcr, 200)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
crcr=$(realpath "${1:-target/release/crcr}")
runs=${2:-200}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/event.json" <<'JSON'
{"pull_request": {"number": 7, "user": {"login": "contributor"},
  "head": {"sha": "0123456789abcdef0123456789abcdef01234567", "ref": "topic",
           "repo": {"full_name": "contributor/upstream"}},
  "base": {"sha": "89abcdef0123456789abcdef0123456789abcdef", "ref": "main",
           "repo": {"full_name": "acme/upstream"}}}}
JSON

step() {
  env -i PATH="$PATH" GITHUB_ACTIONS=true GITHUB_EVENT_NAME=pull_request \
    GITHUB_EVENT_PATH="$folder/event.json" GITHUB_REPOSITORY=acme/upstream \
    GITHUB_ACTOR=contributor GITHUB_RUN_ID=4242 GITHUB_RUN_ATTEMPT=1 \
    GITHUB_OUTPUT="$folder/output" GITHUB_ENV="$folder/env" \
    GITHUB_STEP_SUMMARY="$folder/summary" \
    "$crcr" oidc configure --role-to-assume arn:aws:iam::123456789012:role/ci \
    --aws-region us-east-1 2>/dev/null
}

step
grep -qx 'mode=anonymous' "$folder/output"
grep -qx 'reason=fork' "$folder/output"

for _ in $(seq "$runs"); do
  start=$(date +%s%N)
  step
  echo $((($(date +%s%N) - start) / 1000))
done | sort -n >"$folder/micros"
awk '{ t[NR] = $1 / 1000 } END {
  printf "runs %d  min %.1f ms  median %.1f ms  p95 %.1f ms  max %.1f ms\n",
    NR, t[1], t[int((NR + 1) / 2)], t[int(NR * 0.95 + 0.5)], t[NR]
  exit t[int((NR + 1) / 2)] > 50 }' "$folder/micros"
