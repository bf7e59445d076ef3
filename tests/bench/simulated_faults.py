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
import subprocess
import sys

RELAY = "crates/crcr-relay/src/"
DOMAIN = "crates/crcr-domain/src/"
STORE = "crates/crcr-store/src/"
GITHUB = "crates/crcr-github/src/"
# Name, file, and of each changed line how it is and how it is with the fault. FAULT is true if the fault is chosen.
FAULTS = [
    (
        "answer-before-commit",
        RELAY + "webhook/accept.rs",
        [
            (
                "let commit = relay.durable(submitted).await;",
                "let commit = if FAULT { Ok::<_, StoreError>(CommitOutcome::Done) } else { relay.durable(submitted).await };",
            ),
        ],
    ),
    (
        "sent-dispatch-is-sent-again",
        RELAY + "queue/handlers/dispatch.rs",
        [
            (
                "filter(|dispatch| dispatch.status == DispatchStatus::Queued);",
                "filter(|dispatch| FAULT || dispatch.status == DispatchStatus::Queued);",
            ),
        ],
    ),
    (
        "any-callback-token-is-good",
        RELAY + "callback/dispatched_job.rs",
        [
            (
                "        self.relay.keys.verify(token, dispatch, self.relay.now())\n",
                "        (FAULT && !token.is_empty()) || self.relay.keys.verify(token, dispatch, self.relay.now())\n",
            ),
        ],
    ),
    (
        "check-run-is-not-looked-for",
        RELAY + "queue/handlers/check_run.rs",
        [
            (
                "let mut found = relay.app.own_check_runs(upstream, self.head_sha, self.name).await?;",
                "let mut found = if FAULT { vec![] } else { relay.app.own_check_runs(upstream, self.head_sha, self.name).await? };",
            ),
            (
                "if found.is_empty()\n",
                "if !FAULT && found.is_empty()\n",
            ),
        ],
    ),
    (
        "sent-dispatch-is-not-followed",
        RELAY + "queue/handlers/dispatch.rs",
        [
            (
                "batch.tasks.push(TaskKind::sweep(dispatch).task(due));",
                "if !FAULT { batch.tasks.push(TaskKind::sweep(dispatch).task(due)); }",
            ),
        ],
    ),
    (
        "report-without-follow-up",
        RELAY + "callback/dispatched_job.rs",
        [
            (
                "known.state(), &mut batch);\n        self.add_follow_up_tasks(known, dispatch, proof, &mut batch);",
                "known.state(), &mut batch);\n        if !FAULT { self.add_follow_up_tasks(known, dispatch, proof, &mut batch); }",
            ),
        ],
    ),
    (
        "open-deliveries-count-as-settled",
        RELAY + "reconcile.rs",
        [
            (
                "let until = scan.oldest_open.map_or(until, |open| open.min(until));",
                "let until = if FAULT { until } else { scan.oldest_open.map_or(until, |open| open.min(until)) };",
            ),
        ],
    ),
    (
        "superseded-dispatch-replaces-a-result",
        DOMAIN + "checks/verdict.rs",
        [
            (
                "    if !dispatches.iter().any(HeadDispatch::is_answered) {",
                "    let is_superseded = |one: &HeadDispatch<'_>| matches!(one.status, DispatchStatus::Superseded { .. });\n    let superseded = dispatches.iter().rposition(is_superseded).filter(|_| FAULT);\n    let dispatches = superseded.map_or(dispatches, |at| &dispatches[at..]);\n    if !dispatches.iter().any(HeadDispatch::is_answered) {",
            ),
        ],
    ),
    (
        "strangers-run-stands-for-what-it-leaves-out",
        DOMAIN + "checks/verdict/runs.rs",
        [
            (
                "        other.not_good().all(|job| self.has_run(job))",
                "        FAULT || other.not_good().all(|job| self.has_run(job))",
            ),
        ],
    ),
    (
        "strangers-run-stands-for-an-open-one",
        DOMAIN + "checks/verdict/runs.rs",
        [
            (
                "if !other.is_over() {",
                "if !FAULT && !other.is_over() {",
            ),
        ],
    ),
    (
        "cancelled-run-of-a-stranger-counts",
        DOMAIN + "checks/verdict/runs.rs",
        [
            (
                "        (self.was_cancelled() || self.was_left())\n            && !self.ran_again()",
                "        !FAULT && (self.was_cancelled() || self.was_left())\n            && !self.ran_again()",
            ),
            (
                "                && !own.says_nothing()",
                "                && (FAULT || !own.says_nothing())",
            ),
        ],
    ),
    (
        "draft-passes-other-pull-requests",
        DOMAIN + "checks/verdict.rs",
        [
            (
                "    !asked.is_draft && runs.iter().all(|run| run.dispatch.is_draft)",
                "    !FAULT && !asked.is_draft && runs.iter().all(|run| run.dispatch.is_draft)",
            ),
        ],
    ),
    (
        "draft-is-not-tested-again-when-it-is-ready",
        RELAY + "webhook/accept.rs",
        [
            (
                "                waiting.extend(with_newest(self.relay, pull, required(), ran_as_draft).await?);",
                "                let required = if FAULT { vec![] } else { required() };\n                waiting.extend(with_newest(self.relay, pull, required, ran_as_draft).await?);",
            ),
        ],
    ),
    (
        "another-base-is-not-tested",
        RELAY + "webhook/accept.rs",
        [
            (
                "                waiting.extend(required());",
                "                if !FAULT { waiting.extend(required()); }",
            ),
        ],
    ),
    (
        "another-base-that-nobody-answers-is-a-success",
        DOMAIN + "checks/verdict.rs",
        [
            (
                "if is_new && matters {",
                "if !FAULT && is_new && matters {",
            ),
        ],
    ),
    (
        "push-back-is-taken-for-older",
        RELAY + "webhook/planner.rs",
        [
            (
                "let is_same_second = event.updated_at == known.updated_at;",
                "let is_same_second = event.updated_at == known.updated_at;\n    let left = |step: &HeadMove| step.from.as_deref() == Some(event.head_sha.as_str()) && step.to == known.head_sha;\n    if FAULT && is_same_second && known.moves.iter().any(left) { return superseded(pull); }",
            ),
        ],
    ),
    (
        "runs-are-listed-too-early",
        RELAY + "queue/handlers/runs.rs",
        [
            (
                "problem.is_none() && list.read_at >= over_at;",
                "problem.is_none() && (FAULT || list.read_at >= over_at);",
            ),
        ],
    ),
    (
        "dispatch-is-timed-by-our-clock",
        GITHUB + "dispatches.rs",
        [
            (
                "let accepted_at = response_date(response.headers());",
                "let accepted_at = response_date(response.headers()).filter(|_| !FAULT);",
            ),
        ],
    ),
    (
        "only-the-first-page-of-runs",
        GITHUB + "runs.rs",
        [
            (
                "if runs.len() >= read.total_count || is_last {",
                "if FAULT || runs.len() >= read.total_count || is_last {",
            ),
            (
                "let is_complete = runs.len() >= read.total_count;",
                "let is_complete = FAULT || runs.len() >= read.total_count;",
            ),
        ],
    ),
    (
        "check-run-is-given-up-after-70-minutes",
        RELAY + "queue/workers.rs",
        [
            (
                "let dead = is_over && !kind.is_some_and(TaskKind::is_never_given_up);",
                "let is_old = relay.now() >= lease.created_at + Duration::from_secs(4200);\n    let dead = (is_over && !kind.is_some_and(TaskKind::is_never_given_up))\n        || (FAULT && is_old && matches!(kind, Some(TaskKind::CheckRun { .. })));",
            ),
        ],
    ),
    (
        "frozen-worker-has-the-last-word",
        RELAY + "queue/handlers/check_run.rs",
        [
            (
                "Some(known) => known.unanswered_since,",
                "Some(known) => known.unanswered_since.filter(|_| !FAULT),",
            ),
        ],
    ),
    (
        "second-worker-creates-a-check-run-too",
        RELAY + "queue/handlers/check_run.rs",
        [
            (
                "None => begun.value.flatten(),",
                "None => begun.value.flatten().filter(|_| !FAULT),",
            ),
        ],
    ),
    (
        "check-run-is-changed-without-the-lease",
        RELAY + "queue/handlers/check_run.rs",
        [
            (
                "let settlement = Some(self.task.settle(TaskOutcome::Keep));",
                "let settlement = (!FAULT).then(|| self.task.settle(TaskOutcome::Keep));",
            ),
        ],
    ),
    (
        "one-author-opens-the-breaker",
        RELAY + "breaker.rs",
        [
            (
                "count >= threshold && authors.len()",
                "count >= threshold && (FAULT || authors.len()",
            ),
            (
                "threshold.min(limits::BREAKER_AUTHORS)",
                "threshold.min(limits::BREAKER_AUTHORS))",
            ),
            (
                "Some(number) => known.pull_request == Some(number),\n            None =>",
                "Some(number) if !FAULT => known.pull_request == Some(number),\n            _ =>",
            ),
        ],
    ),
    (
        "downtime-counts-as-never-started",
        RELAY + "queue/handlers/sweep.rs",
        [
            (
                "changed.silence = runs::silence(relay, &mut changed, overdue_at).await?;",
                "if !FAULT { changed.silence = runs::silence(relay, &mut changed, overdue_at).await?; }",
            ),
        ],
    ),
    (
        "report-below-its-level-is-ignored",
        RELAY + "callback/endpoint.rs",
        [
            (
                "            Ok(true) => {}",
                "            Ok(true) if !FAULT => {}\n            Ok(true) => return ignored(),",
            ),
        ],
    ),
    (
        "allowlist-change-evaluates-nothing",
        RELAY + "allowlist.rs",
        [
            (
                "for (repo, was_listed) in changed {",
                "for (repo, was_listed) in changed.into_iter().filter(|_| !FAULT) {",
            ),
        ],
    ),
    (
        "silence-ends-a-build-elsewhere",
        DOMAIN + "checks/verdict/runs.rs",
        [
            (
                "return self.jobs.iter().any(|job| job.ends_run);",
                "return FAULT || self.jobs.iter().any(|job| job.ends_run);",
            ),
        ],
    ),
    (
        "first-end-of-a-job-stays",
        DOMAIN + "checks/lifecycle.rs",
        [
            (
                "if end.severity() > before.severity() {",
                "if !FAULT && end.severity() > before.severity() {",
            ),
        ],
    ),
    (
        "open-job-does-not-keep-its-run-open",
        DOMAIN + "checks/verdict/runs.rs",
        [
            (
                "self.open_job().is_some() || (!self.is_over()",
                "(!FAULT && self.open_job().is_some()) || (!self.is_over()",
            ),
        ],
    ),
    (
        "unknown-conclusion-is-left-out",
        DOMAIN + "checks/verdict/runs.rs",
        [
            (
                "!self.is_over() || self.known.is_some_and(|run| run.state == RunState::OverUnknown)",
                "!self.is_over() || (!FAULT && self.known.is_some_and(|run| run.state == RunState::OverUnknown))",
            ),
        ],
    ),
    (
        "skipped-jobs-are-a-success",
        DOMAIN + "checks/verdict.rs",
        [
            (
                "if reported.all(HeadJob::is_skipped) {",
                "if !FAULT && reported.all(HeadJob::is_skipped) {",
            ),
        ],
    ),
    (
        "runs-of-other-events-count",
        DOMAIN + "checks/downstream_run.rs",
        [
            (
                "&& !is_other_event(send));",
                "&& (FAULT || !is_other_event(send)));",
            ),
        ],
    ),
    (
        "renamed-branch-is-not-noticed",
        RELAY + "queue/handlers/sweep.rs",
        [
            (
                "if let Some(branch) = default_branch::renamed(relay, &dispatch, &jobs).await? {",
                "if let Some(branch) = default_branch::renamed(relay, &dispatch, &jobs).await?.filter(|_| !FAULT) {",
            ),
        ],
    ),
    (
        "opening-takes-labels-away",
        RELAY + "webhook/planner.rs",
        [
            (
                "if event.updated_at > pull.labels_at {",
                "if event.updated_at > pull.labels_at || (FAULT && event.updated_at == pull.labels_at) {",
            ),
        ],
    ),
    (
        "sqlite-is-not-synced",
        STORE + "sqlite/mod.rs",
        [
            (
                '("synchronous", "FULL"),',
                '("synchronous", if FAULT { "OFF" } else { "FULL" }),',
            ),
        ],
    ),
    (
        "sqlite-is-synced-at-checkpoints-only",
        STORE + "sqlite/mod.rs",
        [
            (
                '("wal_autocheckpoint", "4000"),',
                'if FAULT { ("synchronous", "NORMAL") } else { ("wal_autocheckpoint", "4000") },',
            ),
        ],
    ),
    (
        "batch-is-acknowledged-before-its-commit",
        STORE + "sqlite/writer.rs",
        [
            (
                "    tx.commit()?;",
                "    let committed = tx.commit();\n    if !FAULT { committed?; }",
            ),
        ],
    ),
    (
        "redis-writes-before-it-compares-versions",
        STORE + "redis/scripts.rs",
        [
            (
                'let text = format!("{COMMON}{script}");',
                'let mut text = format!("{COMMON}{script}");\n            if FAULT { text = text.replace("if not is_current then return {\'conflict\', 0, 0} end", "").replace("return {\'done\',", "return {is_current and \'done\' or \'conflict\',"); }',
            ),
        ],
    ),
    (
        "redis-writes-before-it-checks-the-lease",
        STORE + "redis/scripts.rs",
        [
            (
                "*name = cmd(\"SCRIPT\")",
                'let text = if FAULT { text.replace("then return {\'lease_lost\', 0, 0} end", "then is_lost = \'lease_lost\' end").replace("local settled, lease", "local is_lost\\nlocal settled, lease").replace("return {\'done\',", "return {is_lost or \'done\',") } else { text };\n            *name = cmd("SCRIPT")',
            ),
        ],
    ),
]

# Only seeds with this input are run for a fault.
INPUTS = {
    "draft-passes-other-pull-requests": "backend_files",
    "draft-is-not-tested-again-when-it-is-ready": "backend_files",
    "another-base-is-not-tested": "base_changes",
    "another-base-that-nobody-answers-is-a-success": "base_changes",
    "strangers-run-stands-for-what-it-leaves-out": "shared_heads",
    "strangers-run-stands-for-an-open-one": "shared_heads",
    "cancelled-run-of-a-stranger-counts": "shared_heads",
    "push-back-is-taken-for-older": "quick_events",
    "runs-are-listed-too-early": "late_runs",
    "dispatch-is-timed-by-our-clock": "clock_drift",
    "only-the-first-page-of-runs": "crowded_lists",
    "check-run-is-given-up-after-70-minutes": "check_outage",
    "frozen-worker-has-the-last-word": "frozen_workers",
    "second-worker-creates-a-check-run-too": "early_lease_ends",
    "check-run-is-changed-without-the-lease": "frozen_workers",
    "redis-writes-before-it-checks-the-lease": "early_lease_ends",
    "one-author-opens-the-breaker": "setup_attacker",
    "downtime-counts-as-never-started": "relay_downtime",
    "report-below-its-level-is-ignored": "allowlist_changes",
    "allowlist-change-evaluates-nothing": "allowlist_changes",
    "silence-ends-a-build-elsewhere": "foreign_ci",
    "first-end-of-a-job-stays": "shared_names",
    "unknown-conclusion-is-left-out": "odd_conclusions",
    "skipped-jobs-are-a-success": "odd_conclusions",
    "renamed-branch-is-not-noticed": "branch_rename",
    "opening-takes-labels-away": "quick_events",
}
# Seeds are run on this store for a fault; on the one in memory for all others.
STORES = {
    "sqlite-is-not-synced": "sqlite",
    "sqlite-is-synced-at-checkpoints-only": "sqlite",
    "batch-is-acknowledged-before-its-commit": "sqlite",
    "redis-writes-before-it-compares-versions": "redis",
    "redis-writes-before-it-checks-the-lease": "redis",
}
STEPS = "120"

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
    """Copies what has changed, so that only that is compiled again, and puts in the faults."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if not (root / name).is_file():
            continue
        content = put_in_faults(name, (root / name).read_bytes())
        target = copy / name
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def put_in_faults(file, content):
    for name, of_file, lines in FAULTS:
        if of_file != file:
            continue
        chosen = f'(std::env::var("{VARIABLE}").as_deref() == Ok("{name}"))'
        text = content.decode()
        for line, fault in lines:
            if text.count(line) != 1:
                sys.exit(f"{name}: the line is there {text.count(line)} times: {line}")
            text = text.replace(line, fault.replace("FAULT", chosen))
        content = text.encode()
    return content


def build():
    """The program that runs seeds."""
    command = ["cargo", "build", "--quiet", "--locked", "--profile", PROFILE]
    # With the features of the whole workspace, as everything else is built.
    command += ["--workspace", "--example", "seeds"]
    built = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if built.returncode:
        sys.exit(f"the copy with faults doesn't compile:\n{built.stderr}")
    folder = "debug" if PROFILE == "dev" else PROFILE
    return pathlib.Path(environment["CARGO_TARGET_DIR"]) / folder / "examples/seeds"


def find(program, name, seeds):
    """The first broken promise, or None."""
    command = [program, "0", str(seeds), STEPS, *filter(None, [INPUTS.get(name), STORES.get(name)])]
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


if __name__ == "__main__":
    main()
