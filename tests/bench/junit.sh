#!/usr/bin/env bash
# Reads 100 MB of JUnit, 414,404 tests, with crcr and with Python's ElementTree. Needs the example
# `read_junit` of crcr-cidata in a release build:
#   CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
#     cargo build --release -p crcr-cidata --example read_junit
set -euo pipefail
cd "$(dirname "$0")/../.."
reader=${CARGO_TARGET_DIR:-target}/release/examples/read_junit
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

python3 - "$folder/report.xml" <<'PY'
import sys
with open(sys.argv[1], "w") as out:
    out.write('<?xml version="1.0" encoding="utf-8"?>\n<testsuites>\n')
    for n in range(414_404):
        if n % 500 == 0:
            if n:
                out.write("</testsuite>\n")
            out.write(f'<testsuite name="test_ops_{n // 500}" tests="500" timestamp="2026-11-23T05:00:00">\n')
        case = (f'<testcase classname="test.inductor.test_torchinductor.CpuTests{n // 100}" '
                f'name="test_elementwise_fusion_with_broadcast_{n}_cpu_float32" '
                f'time="{n % 977 / 1000:.3f}" file="test/inductor/test_torchinductor_{n // 500}.py" line="{n % 3000}"')
        if n % 50 == 0:
            out.write(f'{case}>\n<failure message="AssertionError: 1 &lt; 0" type="AssertionError">'
                      + f'  File "test.py", line {n}, in test\n' * 20 + "</failure>\n</testcase>\n")
        elif n % 10 == 0:
            out.write(f'{case}>\n<skipped type="pytest.skip" message="needs a GPU &amp; more">{"test/test.py:17: needs a GPU " * 4}</skipped>\n</testcase>\n')
        else:
            out.write(f"{case}/>\n")
    out.write("</testsuite>\n</testsuites>\n")
PY
ls -l "$folder/report.xml" | awk '{ print $5, "bytes" }'
for _ in 1 2 3; do
    "$reader" cases "$folder/report.xml"
    "$reader" report "$folder/report.xml"
done
python3 - "$folder/report.xml" <<'PY'
import resource, sys, time
import xml.etree.ElementTree as ET
start = time.monotonic()
tests = failed = 0
rows = []
for case in ET.parse(sys.argv[1]).getroot().iter("testcase"):
    tests += 1
    row = dict(case.attrib)
    row["time"] = float(row.get("time", 0))
    for child in case:
        row[child.tag] = {**child.attrib, "text": child.text}
    failed += "failure" in row
    rows.append(row)
seconds = time.monotonic() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
print(f"ElementTree: {tests} tests, {failed} failed, {seconds:.2f} s, {peak:.0f} MB")
PY
