#!/usr/bin/env python3
"""Puts faults into a copy of the relay and shows that the simulator finds each of them.

usage: tests/bench/simulated_faults.py [SEEDS] [FAULT...]
All faults are built into one program; an environment variable chooses the one that it has. The copy and its build are
in target/faults (CARGO_TARGET_DIR, if set, for the build). Don't build anything else there: cargo would take a relay
with faults for its own. It ends with 1 if a fault isn't found within SEEDS (default 1000) seeds.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

RELAY = "crates/crcr-relay/src/"
DOMAIN = "crates/crcr-domain/src/"
GITHUB = "crates/crcr-github/src/"
# Name, file, the line as it is, the line with the fault, in which FAULT is true if the fault is chosen.
FAULTS = [
    (
        "answer-before-commit",
        RELAY + "webhook/mod.rs",
        "let commit = relay.durable(submitted).await;",
        "let commit = if FAULT { Ok::<_, StoreError>(CommitOutcome::Done) } "
        "else { relay.durable(submitted).await };",
    ),
    (
        "sent-dispatch-is-sent-again",
        RELAY + "queue/handlers/dispatch.rs",
        "filter(|dispatch| dispatch.status == DispatchStatus::Queued);",
        "filter(|dispatch| FAULT || dispatch.status == DispatchStatus::Queued);",
    ),
    (
        "any-callback-token-is-good",
        RELAY + "callback/dispatched_job.rs",
        "let has_callback_token = self.relay.keys.verify(token, dispatch, self.relay.now());",
        "let has_callback_token = (FAULT && !token.is_empty()) || "
        "self.relay.keys.verify(token, dispatch, self.relay.now());",
    ),
    (
        "check-run-is-not-looked-for",
        RELAY + "queue/handlers/check_run.rs",
        "None => match relay.app.own_check_run(upstream, head_sha, name).await? {",
        "None => match if FAULT { None } "
        "else { relay.app.own_check_run(upstream, head_sha, name).await? } {",
    ),
    (
        "sent-dispatch-is-not-followed",
        RELAY + "queue/handlers/dispatch.rs",
        "batch.tasks.push(TaskKind::sweep(dispatch).task(upstream, due));",
        "if !FAULT { batch.tasks.push(TaskKind::sweep(dispatch).task(upstream, due)); }",
    ),
    (
        "report-without-follow-up",
        RELAY + "callback/dispatched_job.rs",
        "self.add_follow_up_tasks(dispatch, &next.id, proof, &mut batch);",
        "if !FAULT { self.add_follow_up_tasks(dispatch, &next.id, proof, &mut batch); }",
    ),
    (
        "open-deliveries-count-as-settled",
        RELAY + "reconcile.rs",
        "let until = scan.oldest_open.map_or(until, |open| open.min(until));",
        "let until = if FAULT { until } "
        "else { scan.oldest_open.map_or(until, |open| open.min(until)) };",
    ),
]

root = pathlib.Path(__file__).resolve().parents[2]
copy = root / "target/faults/copy"
environment = os.environ | {
    "CARGO_TARGET_DIR": os.environ.get("CARGO_TARGET_DIR", str(root / "target/faults/build")),
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
}
VARIABLE = "CRCR_SIMULATED_FAULT"
# How the simulator is built; `cargo build` without --release takes less time, and each seed more.
PROFILE = os.environ.get("SIMULATED_FAULTS_PROFILE", "release")


def copy_sources():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, target)


def put_in_faults():
    for name, file, line, fault in FAULTS:
        text = (copy / file).read_text()
        if text.count(line) != 1:
            sys.exit(f"{name}: the line is there {text.count(line)} times: {line}")
        chosen = f'(std::env::var("{VARIABLE}").as_deref() == Ok("{name}"))'
        (copy / file).write_text(text.replace(line, fault.replace("FAULT", chosen)))


def build():
    """The program that runs seeds."""
    command = ["cargo", "build", "--quiet", "--locked", "--profile", PROFILE]
    command += ["-p", "crcr-simulator", "--example", "seeds"]
    built = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if built.returncode:
        sys.exit(f"the copy with faults doesn't compile:\n{built.stderr}")
    folder = "debug" if PROFILE == "dev" else PROFILE
    return pathlib.Path(environment["CARGO_TARGET_DIR"]) / folder / "examples/seeds"


def find(program, name, seeds):
    """The first broken promise, or None."""
    command = [program, "0", str(seeds)]
    with subprocess.Popen(
        command, env=environment | {VARIABLE: name}, stdout=subprocess.PIPE, text=True
    ) as run:
        for line in run.stdout:
            found = re.match(r"seed (\d+), step (\d+): ([a-z-]+): (.*)$", line)
            if found:
                run.kill()
                return found.groups()
    return None


def main():
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    unknown = set(sys.argv[2:]) - {name for name, *_ in FAULTS}
    if unknown:
        sys.exit(f"unknown faults: {', '.join(sorted(unknown))}")
    missed = 0
    copy_sources()
    put_in_faults()
    program = build()
    for name, *_ in FAULTS:
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        found = find(program, name, seeds)
        if found:
            seed, step, promise, detail = found
            print(f"{name}: {promise} at seed {seed}, step {step}: {detail}", flush=True)
        else:
            print(f"{name}: NOT FOUND in {seeds} seeds", flush=True)
            missed += 1
    sys.exit(1 if missed else 0)


main()
