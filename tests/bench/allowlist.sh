#!/usr/bin/env bash
# How long, and with how much memory, `crcr allowlist validate` takes as a whole process.
#
# usage: tests/bench/allowlist.sh [CRCR]      default: target/release/crcr
#
# Prints the median and the worst of 20 runs and the largest resident memory. Fails when a file of
# 10,000 repositories takes 50 ms or more, or a hostile one 100 ms or 32 MB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec python3 - "${1:-target/release/crcr}" <<'PYTHON'
import itertools, os, statistics, subprocess, sys, tempfile, time

crcr, runs, failed = sys.argv[1], 20, False

def measure(path):
    start = time.perf_counter()
    child = subprocess.Popen([crcr, "allowlist", "validate", path], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - start, usage.ru_maxrss / 1024, child.returncode

levels = "".join(f"  - organisation-{n % 700}/backend-{n}\n" for n in range(4000))
devices = "".join(
    f"  device-{d}:\n" + "".join(
        f"    organisation-{d}/device-{n}: [oncall-{n}, organisation-{d}/team]\n" for n in range(40))
    for d in range(100))
mature = "".join(f"  - organisation-{n % 700}/mature-{n}: oncall-{n}\n" for n in range(2000))
bomb = "b0: &b0 [x, x]\n" + "".join(
    f"b{n + 1}: &b{n + 1} [{', '.join([f'*b{n}'] * 9)}]\n" for n in range(30))
# In pieces: a child that is spawned by vfork begins with its parent's peak, so this process stays small.
cases = [
    ("10,000 repositories", lambda: [f"L1:\n{levels}L3:\n{devices}L4:\n{mature}".encode()], 0, 0.050, None),
    ("alias bomb", lambda: [bomb.encode()], 1, 0.100, 32),
    ("5,000 lists deep", lambda: [b"[" * 5000], 1, 0.100, 32),
    ("5,000 mappings deep", lambda: [b"{a: " * 5000], 1, 0.100, 32),
    ("a megabyte of NUL", lambda: [b"\0" * 1_000_000], 1, 0.100, 32),
    ("50 MB", lambda: itertools.chain([b"L1: ["], itertools.repeat(b"a/b, " * 10_000, 1_000)), 1, 0.100, 32),
]
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "allowlist.yml")
    for name, make, code, most_seconds, most_memory in cases:
        with open(path, "wb") as file:
            file.writelines(make())
        results = [measure(path) for _ in range(runs)]
        codes = {result[2] for result in results}
        times = [result[0] for result in results]
        memory = max(result[1] for result in results)
        middle = statistics.median(times)
        fine = codes == {code} and middle < most_seconds and (not most_memory or memory < most_memory)
        failed |= not fine
        print(f"{name:22} {middle * 1000:7.1f} ms median {max(times) * 1000:7.1f} ms worst "
              f"{memory:6.1f} MB  exit {sorted(codes)}  {'ok' if fine else 'TOO MUCH'}")
sys.exit(failed)
PYTHON
