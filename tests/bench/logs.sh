#!/usr/bin/env bash
# How fast `crcr logs classify` reads a log of 100 MB with the starter rules, and how fast
# a loop in Python does that tries the same rules line by line. The log is full of decoys: names of
# files and tests with `error` in them, warnings, retries. Its last line is the one to find.
#
# usage: tests/bench/logs.sh [path of crcr] [runs]      (default: target/release/crcr, 5)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
crcr=$(realpath "${1:-target/release/crcr}")
runs=${2:-5}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 - "$folder/job.log" <<'PYTHON'
import gzip, pathlib, random, sys

random.seed(5)
logs = sorted(pathlib.Path("tests/fixtures/logs/labelled").glob("*-green.log.gz"))
lines = [line for log in logs for line in gzip.open(log).read().splitlines(True)]
size = 0
with open(sys.argv[1], "wb") as out:
    while size < 100_000_000:
        line = random.choice(lines)
        out.write(line)
        size += len(line)
    out.write(b"2026-10-05T09:00:00.0000000Z main.c:1:2: error: 'x' undeclared\n")
PYTHON
"$crcr" logs rules > "$folder/rules.toml"

for _ in $(seq "$runs"); do
    /usr/bin/env time -f 'crcr: %e s, %U s of CPU in user mode, %M KiB' \
        "$crcr" logs classify "$folder/job.log" > "$folder/found"
done
head -1 "$folder/found" | sed 's/.*job.log/found: job.log/'
/usr/bin/env time -f 'python: %e s, %U s of CPU in user mode, %M KiB' \
    python3 - "$folder/job.log" "$folder/rules.toml" <<'PYTHON'
import re, sys, tomllib

rules = [r for r in tomllib.load(open(sys.argv[2], "rb"))["rule"] if r.get("kind") != "ignore"]
rules = [(re.compile(r["pattern"]), r["name"]) for r in rules]
strip = re.compile(r"^\d{4}-\S+Z |\x1b\[[0-9;]*[A-Za-z]")
best = len(rules), None
for number, line in enumerate(open(sys.argv[1], errors="replace"), 1):
    line = strip.sub("", line.rstrip("\n"))
    for priority, (pattern, _) in enumerate(rules[: best[0] + 1]):
        if pattern.search(line):
            best = priority, number
            break
print(rules[best[0]][1], best[1])
PYTHON
