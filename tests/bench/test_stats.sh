#!/bin/bash
# From JUnit to rows: 100 reports of 1 MB as NDJSON, and a million rows into SQLite and ClickHouse.
#
#   tests/bench/test_stats.sh [CRCR]
#
# Prints the wall time and the peak memory of each step. SIZE=10 makes everything ten times smaller.
set -euo pipefail
crcr=$(realpath "${1:-target/release/crcr}")
size=${SIZE:-1}
folder=$(mktemp -d)
clickhouse_server=
trap '[[ -z $clickhouse_server ]] || kill "$clickhouse_server"; rm -rf "$folder"' EXIT

# Reports with as many tests as pytest writes in a megabyte; every hundredth one fails.
python3 - "$folder" "$size" <<'END'
import sys, pathlib

folder, size = pathlib.Path(sys.argv[1]), int(sys.argv[2])

def write(path, number, tests):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.write(f'<testsuites><testsuite name="pytest" tests="{tests}">')
        for n in range(tests):
            file.write(
                f'<testcase classname="test.test_module_{number}.TestClass{n % 50}" '
                f'name="test_operator_cpu_float32_{n}" time="{n % 900 / 1000}" '
                f'file="test/test_module_{number}.py" line="{n}">'
            )
            if n % 100 == 99:
                file.write('<failure message="AssertionError: 1 != 2">' + "trace\n" * 40 + "</failure>")
            file.write("</testcase>\n")
        file.write("</testsuite></testsuites>")

for number in range(100 // size):
    write(folder / f"reports/test-reports/pytest/m{number}/r.xml", number, 5600)
for number in range(200 // size):
    write(folder / f"million/test-reports/pytest/m{number}/r.xml", number, 5000)
END

run() {
  local what=$1 && shift
  local target=("$crcr" stats collect --repo acme/app --run-attempt 1 --on-default-branch "$@")
  /usr/bin/time -f "$what: %e s, %M KiB" "${target[@]}" >"$folder/out"
  sed 's/^/  /' "$folder/out"
}

du -sm "$folder/reports" "$folder/million" | sed "s|$folder/||"
run "reports, read and counted" --dir "$folder/reports" --run-id 1 --dry-run
run "reports to NDJSON" --dir "$folder/reports" --run-id 1 --rows "file:$folder/rows"
run "rows into SQLite" --dir "$folder/million" --run-id 2 --results "sqlite:$folder/crcr.db"
source "$(dirname "$0")/clickhouse.sh" "$folder"
run "rows into ClickHouse" --dir "$folder/million" --run-id 2 --results "clickhouse+$clickhouse_url/crcr"
run "the same rows into SQLite again" --dir "$folder/million" --run-id 2 --results "sqlite:$folder/crcr.db"
for command in flaky slow failing; do
  /usr/bin/time -f "$command: %e s" "$crcr" stats "$command" --repo acme/app \
    --results "sqlite:$folder/crcr.db" >/dev/null
done
