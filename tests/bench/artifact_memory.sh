#!/usr/bin/env bash
# Uploads and downloads one large file, random and text, and fails when `crcr` needs 64 MB or more.
#
# usage: tests/bench/artifact_memory.sh [MIB [CRCR]]
#
# MIB is the file's size, 1024 by default; CRCR a binary, else a release build is made. Uploads go
# to the stand-in, which first drops the bytes and then keeps them; downloads come from it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mib=${1:-1024}
crcr=${2:-}

if [[ -z $crcr ]]; then
  cargo build --quiet --release --package crcr
  crcr=target/release/crcr
fi
crcr=$(realpath "$crcr")
cargo build --quiet --package crcr-standin --example standin
standin=$PWD/target/debug/examples/standin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

mkdir random text
head -c "${mib}M" /dev/urandom >random/file
# Lines of a build log, each one different.
awk -v bytes="$((mib << 20))" 'BEGIN {
  while (size < bytes) {
    line = sprintf("[%d/%d] Building CXX object src/part%d/CMakeFiles/unit%d.o (%x)", n, bytes, n % 97, n % 8191, n * 2654435761 % 4294967296)
    size += length(line) + 1; n++
    print line
  }
}' >text/file

# measure LABEL ARG...: runs `crcr artifact ARG...`, prints its time and peak memory.
failed=0
measure() {
  python3 - "$crcr" "$@" <<'PY' || failed=1
import os, sys, time
crcr, label, *args = sys.argv[1:]
start = time.monotonic()
pid = os.posix_spawn(crcr, [crcr, "artifact", *args], os.environ, file_actions=[
    (os.POSIX_SPAWN_OPEN, 2, "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)])
_, status, usage = os.wait4(pid, 0)
wall = time.monotonic() - start
peak = usage.ru_maxrss * 1024 / 1e6
code = os.waitstatus_to_exitcode(status)
print(f"{label:22} {wall:7.2f} s wall {usage.ru_utime + usage.ru_stime:7.2f} s CPU {peak:6.1f} MB", flush=True)
if code:
    print(open("log").read())
sys.exit(code or peak >= 64)
PY
}

# with_standin COMMAND [ARG...]: runs COMMAND in the environment of a job of a new stand-in.
with_standin() {
  local command=$1 line
  shift
  coproc server { exec "$standin" push "$@"; }
  while IFS= read -r line <&"${server[0]}" && [[ -n $line ]]; do
    export "${line?}"
  done
  local input=${server[1]} process=$server_PID
  "$command"
  exec {input}>&-
  wait "$process"
}

uploads() {
  local kind
  for kind in random text; do
    measure "upload $kind" upload --name "$kind" --path "$kind"
  done
}

downloads() {
  local kind
  uploads
  for kind in random text; do
    measure "download $kind" download --name "$kind" --path "out-$kind"
    cmp "$kind/file" "out-$kind/file" || failed=1
    rm -rf "out-$kind"
  done
}

export RUNNER_TEMP=$work GITHUB_OUTPUT=$work/outputs GITHUB_STEP_SUMMARY=$work/summary
echo "$mib MiB, to a stand-in that drops the bytes"
with_standin uploads drop-bodies
echo "$mib MiB, to a stand-in that keeps them, and back"
with_standin downloads
((failed == 0)) || { echo "failed: at least one needs 64 MB or more, or ended with an error"; exit 1; }
