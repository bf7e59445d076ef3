#!/usr/bin/env python3
"""Puts faults into a copy of the relay, one at a time, and shows that the simulator finds each of them.

usage: tests/bench/simulated_faults.py [SEEDS] [FAULT...]
The copy and its build are in target/faults (CARGO_TARGET_DIR, if set, for the build). Don't build anything else
there: cargo would take a relay with a fault for its own. It ends with 1 if a fault isn't found within SEEDS
(default 1000) seeds.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

RELAY = "crates/crcr-relay/src/"
# Name, file, the line as it is, the line with the fault.
FAULTS = [
    (
        "answer-before-commit",
        RELAY + "webhook/mod.rs",
        "let commit = relay.durable(submitted).await;",
        "let (_, commit) = (submitted, Ok::<_, StoreError>(CommitOutcome::Done));",
    ),
    (
        "sent-dispatch-is-sent-again",
        RELAY + "queue/handlers/dispatch.rs",
        "let queued = read.value.as_ref().filter(|dispatch| dispatch.status == DispatchStatus::Queued);",
        "let queued = read.value.as_ref();",
    ),
    (
        "any-callback-token-is-good",
        RELAY + "callback/dispatched_job.rs",
        "let has_callback_token = self.relay.keys.verify(token, dispatch, self.relay.now());",
        "let has_callback_token = !token.is_empty();",
    ),
    (
        "check-run-is-not-looked-for",
        RELAY + "queue/handlers/check_run.rs",
        "None => match relay.app.own_check_run(upstream, head_sha, name).await? {",
        "None => match None::<u64> {",
    ),
    (
        "sent-dispatch-is-not-followed",
        RELAY + "queue/handlers/dispatch.rs",
        "batch.tasks.push(TaskKind::sweep(dispatch).task(upstream, due));",
        "let _ = due;",
    ),
    (
        "report-without-follow-up",
        RELAY + "callback/dispatched_job.rs",
        "self.add_follow_up_tasks(dispatch, &next.id, proof, &mut batch);",
        "",
    ),
    (
        "open-deliveries-count-as-settled",
        RELAY + "reconcile.rs",
        "let until = scan.oldest_open.map_or(until, |open| open.min(until));",
        "",
    ),
]

root = pathlib.Path(__file__).resolve().parents[2]
copy = root / "target/faults/copy"
environment = os.environ | {
    "CARGO_TARGET_DIR": os.environ.get("CARGO_TARGET_DIR", str(root / "target/faults/build")),
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
}


def copy_sources():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        # A file that hasn't changed keeps its time, so that it isn't built again.
        if not target.exists() or target.read_bytes() != (root / name).read_bytes():
            shutil.copy(root / name, target)


def find(name, seeds):
    """The first broken promise, or None."""
    build = ["cargo", "build", "--quiet", "--release", "--locked", "-p", "crcr"]
    built = subprocess.run(build, cwd=copy, env=environment, capture_output=True, text=True)
    if built.returncode:
        sys.exit(f"{name} doesn't compile:\n{built.stderr}")
    binary = pathlib.Path(environment["CARGO_TARGET_DIR"]) / "release/crcr"
    run = subprocess.run(
        [binary, "relay", "simulate", "--seeds", str(seeds)], capture_output=True, text=True
    )
    found = re.search(r"^seed (\d+), step (\d+): ([a-z-]+): (.*)$", run.stdout, re.MULTILINE)
    return found and found.groups()


def main():
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    missed = 0
    copy_sources()
    for name, file, line, fault in FAULTS:
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        text = (copy / file).read_text()
        if text.count(line) != 1:
            sys.exit(f"{name}: the line is there {text.count(line)} times: {line}")
        (copy / file).write_text(text.replace(line, fault))
        found = find(name, seeds)
        (copy / file).write_text(text)
        if found:
            seed, step, promise, detail = found
            print(f"{name}: {promise} at seed {seed}, step {step}: {detail}", flush=True)
        else:
            print(f"{name}: NOT FOUND in {seeds} seeds", flush=True)
            missed += 1
    sys.exit(1 if missed else 0)


main()
