//! Reports through the router: real tokens, real keys, real check runs on the stand-in.

mod alerts;
mod allowlist_changes;
mod authority;
mod branches;
mod breaker;
mod budgets;
mod buildkite;
mod canary;
mod demotions;
mod explanations;
mod faults;
mod links;
mod on_redis;
mod overtaken;
mod probes;
mod repositories;
mod restore;
mod strangers;
mod verdicts;
mod wire;

use std::time::Duration;

use axum::http::StatusCode;
use crcr_domain::checks::check_run::CheckRunStatus;
use crcr_domain::checks::lifecycle::{Conclusion, JobState};
use crcr_domain::protocol::callback::ReportDetails;
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::{AttemptFact, CallbackOutcome, DispatchFactStatus, Fact};
use crcr_results::Results as _;
use crcr_standin::runs::{Job, Run};
use crcr_standin::traffic::Fault;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::support::{HEAD, NEWER, UPSTREAM, World};

const RUN: u64 = 9000;
/// The number of the reporting job's check run.
const CHECK_RUN: u64 = 77;

/// A downstream run that received a dispatch.
pub(crate) struct Downstream {
    repo: &'static str,
    client_payload: Value,
    job: &'static str,
    run: u64,
    attempt: u32,
}

/// Opens pull request 7 and returns the runs that its dispatches started, by repository.
pub(crate) async fn open(world: &World) -> impl Fn(&'static str) -> Downstream + use<> {
    world.event("opened").await;
    received(world)
}

impl World {
    /// With pull request 7 open; also returns the run that its dispatch to `repo` started.
    pub(crate) async fn opened(self, repo: &'static str) -> (Self, Downstream) {
        let run = open(&self).await(repo);
        (self, run)
    }
}

/// The runs started by dispatches since the last call, by repository.
fn received(world: &World) -> impl Fn(&'static str) -> Downstream + use<> {
    let dispatches = world.github.state().world.take_dispatches();
    move |repo| {
        let found = dispatches.iter().find(|dispatch| dispatch.repository == repo);
        let client_payload = found.expect("it was dispatched").client_payload.clone();
        Downstream { repo, client_payload, job: "test", run: RUN, attempt: 1 }
    }
}

impl Downstream {
    /// What the deployed action sends: the dispatched payload and `workflow`.
    fn body(&self, status: &str, conclusion: Option<&str>) -> Value {
        let mut body = self.client_payload.clone();
        let now = "2026-08-01T10:00:00.123456Z";
        body["workflow"] = json!({
            "schema_version": "1", "status": status, "conclusion": conclusion, "name": "CI",
            "url": format!("https://github.com/{}/actions/runs/{}", self.repo, self.run),
            "run_id": self.run.to_string(), "run_attempt": self.attempt.to_string(),
            "job_name": self.job, "check_run_id": CHECK_RUN.to_string(),
            "started_at": conclusion.is_none().then_some(now),
            "completed_at": conclusion.is_some().then_some(now),
        });
        body
    }

    fn in_run(&self, run: u64) -> Self {
        Self { run, client_payload: self.client_payload.clone(), ..*self }
    }

    fn of_job(&self, job: &'static str) -> Self {
        Self { job, client_payload: self.client_payload.clone(), ..*self }
    }

    /// The run and its job end in this way.
    pub(crate) async fn complete(&self, world: &World, conclusion: &str) {
        self.on_github(world, "completed", Some(conclusion));
        self.job_on_github(world, conclusion);
        self.start_and_end(world, conclusion).await;
    }

    /// GitHub lists the job that reports, which has ended like this.
    fn job_on_github(&self, world: &World, conclusion: &str) {
        let runs = &world.github.state().runs;
        let job = runs.add_job(self.run, self.job);
        let conclusion = Some(conclusion.to_owned());
        runs.update_job(&Job { check_run_id: CHECK_RUN, conclusion, ..job });
    }

    pub(crate) async fn start_and_end(&self, world: &World, conclusion: &str) {
        self.start(world).await;
        self.end(world, conclusion).await;
    }

    /// The run goes on, and its job has started.
    pub(crate) async fn begin(&self, world: &World) {
        self.on_github(world, "in_progress", None);
        self.start(world).await;
    }

    /// The run and its job, which has started before, end in this way.
    pub(crate) async fn finish(&self, world: &World, conclusion: &str) {
        self.on_github(world, "completed", Some(conclusion));
        self.job_on_github(world, conclusion);
        self.end(world, conclusion).await;
    }

    /// Sets the run's state on GitHub.
    pub(crate) fn on_github(&self, world: &World, status: &str, conclusion: Option<&str>) {
        self.workflow_on_github(world, "ci.yml", status, conclusion);
    }

    fn workflow_on_github(
        &self,
        world: &World,
        file: &str,
        status: &str,
        conclusion: Option<&str>,
    ) {
        let runs = &world.github.state().runs;
        let created_at = runs.get(self.run).map(|run| run.created_at);
        runs.add(Run {
            id: self.run,
            attempt: self.attempt,
            repository: self.repo.to_owned(),
            event: "repository_dispatch".to_owned(),
            workflow_path: format!(".github/workflows/{file}"),
            status: status.to_owned(),
            conclusion: conclusion.map(str::to_owned),
            created_at: created_at.unwrap_or_else(|| world.github.state().clock.now()),
            ..Run::push()
        });
    }

    /// The same report without the dispatch's callback token.
    fn without_token(&self) -> Self {
        let mut client_payload = self.client_payload.clone();
        client_payload.as_object_mut().unwrap().remove("callback_token");
        Self { client_payload, ..*self }
    }

    fn claims(&self, world: &World) -> Value {
        let state = world.github.state();
        let now = state.clock.now().as_second();
        let repository_id = state.world.add_repo(self.repo);
        json!({
            "iss": state.origin(), "aud": "pytorch-cross-repo-ci-relay", "iat": now, "nbf": now,
            "exp": now + 300, "jti": format!("jti-{}", rand::random::<u64>()),
            "repository": self.repo, "repository_id": repository_id.to_string(),
            "run_id": self.run.to_string(), "run_attempt": self.attempt.to_string(),
            "event_name": "repository_dispatch", "ref": "refs/heads/main", "sha": HEAD,
        })
    }

    pub(crate) fn run_again(self) -> Self {
        Self { attempt: self.attempt + 1, ..self }
    }

    async fn report(&self, world: &World, body: &Value) -> (StatusCode, Value) {
        self.report_as(world, &self.claims(world), body).await
    }

    async fn report_as(&self, world: &World, claims: &Value, body: &Value) -> (StatusCode, Value) {
        let token = world.github.state().oidc.sign(claims);
        world.report(Some(&token), body.to_string().into_bytes()).await
    }

    pub(crate) async fn start(&self, world: &World) -> (StatusCode, Value) {
        self.report(world, &self.body("in_progress", None)).await
    }

    pub(crate) async fn end(&self, world: &World, conclusion: &str) -> (StatusCode, Value) {
        self.report(world, &self.body("completed", Some(conclusion))).await
    }
}

fn said(status: &str) -> (StatusCode, Value) {
    (StatusCode::OK, json!({ "ok": true, "status": status }))
}

fn noted(what: &str) -> (StatusCode, Value) {
    (StatusCode::OK, json!({ "ok": true, what: true }))
}

fn refused(status: StatusCode, detail: &str) -> (StatusCode, Value) {
    (status, json!({ "detail": detail }))
}

/// Name, status and conclusion of every check run upstream.
fn checks(world: &World) -> Vec<(String, String, Option<String>)> {
    let runs = world.github.state().world.check_runs(UPSTREAM);
    runs.into_iter().map(|run| (run.name, run.status, run.conclusion)).collect()
}

async fn checks_after(world: &World, time: Duration) -> Vec<(String, String, Option<String>)> {
    world.wait(time).await;
    checks(world)
}

fn check(name: &str, status: &str, conclusion: Option<&str>) -> (String, String, Option<String>) {
    (name.to_owned(), status.to_owned(), conclusion.map(str::to_owned))
}

const DISPATCH: &str = "crcr/acme/four/relay/dispatch";
const JOB: &str = "crcr/acme/four/CI/test";

#[tokio::test]
async fn l4_result_becomes_a_check_run_and_facts() {
    let (world, four) = World::new().await.opened("acme/four").await;
    assert_eq!(checks(&world), [check(DISPATCH, "queued", None)]);
    world.later(Duration::from_secs(30));
    assert_eq!(four.start(&world).await, said("in_progress"));
    world.work().await;
    let running = [check(DISPATCH, "in_progress", None), check(JOB, "in_progress", None)];
    assert_eq!(checks(&world), running);
    world.later(Duration::from_secs(60));
    let mut body = four.body("completed", Some("failure"));
    body["workflow"]["test_results"] = json!({ "passed": 9, "failed": 1, "skipped": 0 });
    assert_eq!(four.report(&world, &body).await, said("completed"));
    world.work().await;
    assert_eq!(checks(&world)[1], check(JOB, "completed", Some("failure")));
    let run = &world.github.state().world.check_runs(UPSTREAM)[1];
    assert_eq!(run.external_id.as_deref(), Some("9000:7"));
    assert_eq!(run.title, "Failure: 1 of 10 tests failed");
    assert_eq!(run.updates, 1, "created once and then updated");
    let facts = world.results.attempts(&world.always()).unwrap();
    assert_eq!(facts.len(), 1, "of an attempt the row that holds is kept");
    assert_eq!(facts[0].state, JobState::Completed(Conclusion::Failure));
    assert!((facts[0].queue_seconds.unwrap() - 30.0).abs() < 5.0);
    assert!((facts[0].execution_seconds.unwrap() - 60.0).abs() < 5.0);
    assert_eq!((facts[0].pull_request, facts[0].head_sha.as_str()), (Some(7), HEAD));
    world.nothing_else();
}

#[tokio::test]
async fn failed_check_run_says_whose_fault_it_is_if_something_is_known() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.start(&world).await;
    let started = world.results.attempts(&world.always()).unwrap().remove(0);
    let summary = || {
        let runs = world.github.state().world.check_runs(UPSTREAM);
        runs.into_iter().find(|run| run.name == JOB).unwrap().summary
    };
    // The same job failed on upstream's newest commit.
    let hour = Duration::from_secs(3600);
    let earlier = AttemptFact {
        event: EventName::Push,
        pull_request: None,
        head_sha: "b0".repeat(20),
        delivery: "push".to_owned(),
        run_id: "1".to_owned(),
        details: ReportDetails { check_run_id: None, ..started.details.clone() },
        state: JobState::Completed(Conclusion::Failure),
        received_at: started.received_at - hour,
        dispatched_at: started.dispatched_at - hour,
        ..started
    };
    four.end(&world, "failure").await;
    world.work().await;
    assert!(!summary().contains("Whose fault"), "nothing is known: {}", summary());
    world.results.append(vec![Fact::Attempt(Box::new(earlier))]).await.unwrap();
    let again = Downstream { attempt: 2, client_payload: four.client_payload.clone(), ..four };
    again.start(&world).await;
    world.work().await;
    assert!(!summary().contains("Whose fault"), "it still runs: {}", summary());
    again.end(&world, "failure").await;
    world.work().await;
    let sentence = "Whose fault, by the other results: `Not this pull request: it failed on the \
                    newest commit upstream with a result, too`";
    assert!(summary().contains(sentence), "{}", summary());
    assert_eq!(checks(&world)[1], check(JOB, "completed", Some("failure")), "it gates as before");
}

#[tokio::test]
async fn results_below_l2_are_ignored_and_at_l2_only_on_the_hud() {
    let world = World::new().await;
    let run = open(&world).await;
    assert_eq!(run("acme/one").start(&world).await, said("ignored"));
    assert_eq!(run("acme/two").start(&world).await, said("in_progress"));
    assert_eq!(run("acme/two").end(&world, "failure").await, said("completed"));
    world.work().await;
    assert_eq!(checks(&world), [check(DISPATCH, "queued", None)]);
    assert_eq!(world.results.attempts(&world.always()).unwrap().len(), 1);
}

#[tokio::test]
async fn check_run_ends_when_github_ends_the_run() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.start_and_end(&world, "success").await;
    let run = Run {
        id: RUN,
        repository: "acme/four".to_owned(),
        status: "in_progress".to_owned(),
        conclusion: None,
        ..Run::push()
    };
    world.github.state().runs.add(run.clone());
    world.wait(Duration::from_secs(31)).await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "in_progress", None));
    let conclusion = Some("success".to_owned());
    world.github.state().runs.add(Run { status: "completed".to_owned(), conclusion, ..run });
    world.wait(Duration::from_secs(121)).await;
    let ended =
        [check(DISPATCH, "completed", Some("success")), check(JOB, "completed", Some("success"))];
    assert_eq!(checks(&world), ended);
}

#[tokio::test]
async fn silent_l4_backend_fails_and_a_late_result_replaces_it() {
    let (world, four) = World::new().await.opened("acme/four").await;
    world.work_after(Duration::from_secs(2 * 3600 + 1)).await;
    assert_eq!(checks(&world), [check(DISPATCH, "completed", Some("failure"))]);
    let facts = world.results.dispatches(&world.always()).unwrap();
    let never: Vec<_> =
        facts.iter().filter(|fact| fact.status == DispatchFactStatus::NeverStarted).collect();
    assert_eq!(never.len(), 3, "L2, L3 and L4 owe a result");
    assert_eq!(four.start(&world).await, said("in_progress"));
    world.work().await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "in_progress", None));
}

#[tokio::test]
async fn check_of_a_silent_backend_follows_a_setting_that_changes_at_a_restart() {
    let world = World::new().await.opened("acme/four").await.0;
    world.work_after(Duration::from_secs(2 * 3600 + 1)).await;
    assert_eq!(checks(&world), [check(DISPATCH, "completed", Some("failure"))]);
    let world = world.restart(&[("CRCR_SILENT_L4", "timed_out")]).await;
    world.work().await;
    assert_eq!(checks(&world), [check(DISPATCH, "completed", Some("timed_out"))]);
    let written = |world: &World| {
        let github = &world.github.state().world;
        github.count(&format!("PATCH /repos/{UPSTREAM}/check-runs/*"))
    };
    let before = written(&world);
    let world = world.restart(&[("CRCR_SILENT_L4", "timed_out")]).await;
    world.work().await;
    assert_eq!(written(&world), before, "nothing has changed");
}

/// Replicas are replaced one after the other.
#[tokio::test]
async fn check_follows_a_changed_setting_although_a_replica_with_the_old_one_was_asked() {
    let mut world = World::new().await.opened("acme/four").await.0;
    world.work_after(Duration::from_secs(2 * 3600 + 1)).await;
    let new = world.other_replica_with(&[("CRCR_SILENT_L4", "timed_out")]).await;
    world.work().await;
    assert_eq!(checks(&world), [check(DISPATCH, "completed", Some("failure"))]);
    world.relay = new;
    world.work_after(crate::limits::ROLLOUT).await;
    assert_eq!(checks(&world), [check(DISPATCH, "completed", Some("timed_out"))]);
}

#[tokio::test]
async fn silent_backend_gets_the_configured_conclusion_and_at_l3_timed_out() {
    let world = World::with(&[("CRCR_SILENT_L4", "timed_out")]).await;
    world.change(|pull| {
        pull.labels.insert("ciflow/crcr/npu".to_owned());
    });
    world.event("synchronize").await;
    let three = "crcr/acme/three/relay/dispatch";
    let sorted = || {
        let mut all = checks(&world);
        all.sort();
        all
    };
    let queued = [check(DISPATCH, "queued", None), check(three, "queued", None)];
    assert_eq!(sorted(), queued, "labelled before it was dispatched");
    world.work_after(Duration::from_secs(2 * 3600 + 1)).await;
    let lost = Some("timed_out");
    assert_eq!(sorted(), [check(DISPATCH, "completed", lost), check(three, "completed", lost)]);
}

#[tokio::test]
async fn silent_job_is_lost_until_a_late_end_arrives() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.start(&world).await;
    let run = Run {
        id: RUN,
        repository: "acme/four".to_owned(),
        status: "in_progress".to_owned(),
        ..Run::push()
    };
    world.github.state().runs.add(run);
    world.work_after(Duration::from_secs(6 * 3600 + 1)).await;
    assert_eq!(checks(&world)[1], check(JOB, "completed", Some("timed_out")));
    assert_eq!(four.start(&world).await, noted("stale"));
    assert_eq!(four.end(&world, "success").await, said("completed"));
    world.work().await;
    assert_eq!(checks(&world)[1], check(JOB, "completed", Some("success")));
    let facts = world.results.attempts(&world.always()).unwrap();
    let states: Vec<_> = facts.iter().map(|fact| fact.state).collect();
    let success = JobState::Completed(Conclusion::Success);
    assert_eq!(states, [success]);
}

#[tokio::test]
async fn unreadable_run_ends_by_its_reports_and_by_time() {
    for uninstalled in [false, true] {
        let (world, four) = World::new().await.opened("acme/four").await;
        four.start(&world).await;
        if uninstalled {
            world.github.state().world.uninstall("acme/four");
        }
        // GitHub doesn't know the run or refuses access; the job may still report.
        world.wait(Duration::from_secs(121)).await;
        assert_eq!(checks(&world)[0], check(DISPATCH, "in_progress", None));
        world.wait(Duration::from_secs(6 * 3600)).await;
        world.wait(Duration::from_secs(31 * 60)).await;
        let lost = Some("timed_out");
        assert_eq!(
            checks(&world),
            [check(DISPATCH, "completed", lost), check(JOB, "completed", lost)]
        );
        assert_eq!(world.relay.store.queue_depth().await.unwrap().dead, 0);
    }
}

#[tokio::test]
async fn label_adds_and_removes_the_check_runs_of_l3() {
    let (world, three) = World::new().await.opened("acme/three").await;
    three.start(&world).await;
    world.work().await;
    assert_eq!(checks(&world).len(), 1, "without the label there is none");
    let label = async |on: bool| {
        world.change(|pull| {
            if on {
                pull.labels.insert("ciflow/crcr/npu".to_owned());
            } else {
                pull.labels.remove("ciflow/crcr/npu");
            }
        });
        let state = world.github.state();
        let payload = state.label_payload(UPSTREAM, 7, "ciflow/crcr/npu", on);
        let answer = world.send(&state.world.delivery("pull_request", &payload)).await;
        assert_eq!(answer.0, StatusCode::ACCEPTED);
        world.settle().await;
    };
    let of_three = || {
        checks(&world).into_iter().filter(|check| check.0.contains("/three/")).collect::<Vec<_>>()
    };
    label(true).await;
    let (dispatch, job) = ("crcr/acme/three/relay/dispatch", "crcr/acme/three/CI/test");
    let running = [check(dispatch, "in_progress", None), check(job, "in_progress", None)];
    let mut found = of_three();
    found.sort_by(|a, b| b.0.cmp(&a.0));
    assert_eq!(found, running);
    label(false).await;
    assert!(
        of_three().iter().all(|check| check.2.as_deref() == Some("skipped")),
        "{:?}",
        of_three()
    );
    assert_eq!(three.end(&world, "failure").await, said("completed"));
    world.work().await;
    assert!(of_three().iter().all(|check| check.2.as_deref() == Some("skipped")));
    assert_eq!(world.results.attempts(&world.always()).unwrap().len(), 1, "the HUD has it");
}

#[tokio::test]
async fn label_of_a_backend_that_takes_nightlies_only_causes_nothing() {
    let world = World::new().await;
    world.enforce("L3:\n  npu:\n    acme/three: {oncalls: [carol], events: [nightly]}\n").await;
    world.change(|pull| pull.labels.extend(["ciflow/crcr/npu".to_owned()]));
    let state = world.github.state();
    let labelled = state.label_payload(UPSTREAM, 7, "ciflow/crcr/npu", true);
    for delivery in [world.pull_request("opened"), state.world.delivery("pull_request", &labelled)]
    {
        assert_eq!(world.send(&delivery).await.0, StatusCode::ACCEPTED);
        world.settle().await;
    }
    assert_eq!(state.world.take_dispatches().len(), 0);
    assert_eq!(checks(&world), []);
}

#[tokio::test]
async fn rerequested_check_run_reruns_the_downstream_run() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.start_and_end(&world, "failure").await;
    world.work().await;
    let state = world.github.state();
    state.runs.add(Run {
        id: RUN,
        repository: "acme/four".to_owned(),
        status: "completed".to_owned(),
        conclusion: Some("failure".to_owned()),
        ..Run::push()
    });
    let runs = state.world.check_runs(UPSTREAM);
    let job = runs.iter().find(|run| run.name == JOB).unwrap();
    let payload = state.check_run_payload(UPSTREAM, job.id, "rerequested");
    world.deliver("check_run", &payload).await;
    assert_eq!(state.world.take_reruns().len(), 1);
    // The second attempt is a new job with the same check run.
    let second = Downstream { attempt: 2, ..four };
    assert_eq!(second.start(&world).await, said("in_progress"));
    world.work().await;
    let shown = checks(&world).into_iter().find(|check| check.0 == JOB).unwrap();
    assert_eq!(shown, check(JOB, "in_progress", None));
}

#[tokio::test]
async fn rerequested_check_suite_reruns_each_l3_and_l4_run_once() {
    let world = World::new().await;
    let run = open(&world).await;
    let four = run("acme/four");
    for job in ["test", "build"] {
        let run = four.of_job(job);
        run.end(&world, "success").await;
    }
    world.work().await;
    let state = world.github.state();
    let completed = |id, repo: &str| Run {
        id,
        repository: repo.to_owned(),
        status: "completed".to_owned(),
        conclusion: Some("success".to_owned()),
        ..Run::push()
    };
    state.runs.add(completed(RUN, "acme/four"));
    let suite = state.world.check_runs(UPSTREAM)[0].suite;
    let payload = state.check_suite_payload(UPSTREAM, suite, "rerequested");
    let again = async || {
        world.deliver("check_suite", &payload).await;
        state.world.take_reruns().len()
    };
    assert_eq!(again().await, 1, "three check runs and one run");
    // Its current level counts.
    world.enforce("L2: [acme/four]").await;
    assert_eq!(again().await, 0);
}

#[tokio::test]
async fn pages_are_told_what_the_check_run_of_the_verdict_shows() {
    let (world, four) = World::new().await.opened("acme/four").await;
    world.github.state().runs.add(Run {
        id: RUN,
        repository: "acme/four".to_owned(),
        status: "completed".to_owned(),
        conclusion: Some("success".to_owned()),
        ..Run::push()
    });
    let told = async || {
        let known = world.results.checks("Acme/UPSTREAM", &[HEAD.to_owned()]).await.unwrap();
        let [known] = &*known else { panic!("{known:?}") };
        let shown = checks(&world).into_iter().find(|shown| shown.0 == DISPATCH).unwrap();
        let said = (known.status.status(), known.status.conclusion());
        assert_eq!((&*shown.1, shown.2.as_deref()), said);
        assert!(known.repo == "acme/four" && !known.title.is_empty(), "{known:?}");
        known.status
    };
    assert_eq!(told().await, CheckRunStatus::Queued);
    four.start(&world).await;
    world.work().await;
    assert_eq!(told().await, CheckRunStatus::InProgress);
    four.end(&world, "success").await;
    world.work().await;
    world.work_after(Duration::from_secs(120)).await;
    assert_eq!(told().await, CheckRunStatus::Completed(Conclusion::Success));
}

#[tokio::test]
async fn merge_base_is_looked_up_after_a_failure() {
    let world = World::new().await;
    let github = &world.github.state().world;
    let [fork, tip, head] = ["f0", "f1", "f2"].map(|byte| byte.repeat(20));
    let at = world.relay.now();
    github.add_commit(UPSTREAM, &fork);
    github.add_commit_on(UPSTREAM, &tip, &fork, at);
    github.add_commit_on(UPSTREAM, &head, &fork, at);
    world.change(|pull| (pull.base_sha, pull.head_sha) = (tip.clone(), head.clone()));
    let four = open(&world).await("acme/four");
    let compare = format!("GET /repos/{UPSTREAM}/compare/{tip}...{head}");
    four.start_and_end(&world, "success").await;
    world.work().await;
    assert_eq!(github.count(&compare), 0, "nobody asks whether a success is new");
    let learned = async || {
        let mut found = world.results.merge_bases("Acme/Upstream", &[7]).await.unwrap();
        found.pop().map(|fact| (fact.head_sha, fact.merge_base, fact.committed_at))
    };
    github.fail(&compare, 9, Fault::status(502));
    for job in ["build", "lint"] {
        let run = four.of_job(job);
        run.start_and_end(&world, "failure").await;
        world.work().await;
    }
    assert_eq!(learned().await, None);
    while !github.leftovers().iter().all(|left| !left.contains("faults")) {
        world.work_after(Duration::from_secs(600)).await;
    }
    world.work_after(Duration::from_secs(600)).await;
    assert_eq!(learned().await, Some((head.clone(), fork, Timestamp::UNIX_EPOCH)));
    let asked = github.count(&compare);
    let more = four.of_job("docs");
    more.start_and_end(&world, "failure").await;
    world.work().await;
    assert_eq!(github.count(&compare), asked, "what is known isn't asked again");
}

#[tokio::test]
async fn oncalls_are_mentioned_once() {
    let world = World::with(&[("CRCR_ONCALL_COMMENTS", "on")]).await;
    let four = open(&world).await("acme/four");
    for job in ["test", "build"] {
        let run = four.of_job(job);
        run.start_and_end(&world, "failure").await;
        world.work().await;
    }
    let comments = world.github.state().world.comments(UPSTREAM, 7);
    assert_eq!(comments.len(), 1);
    assert!(comments[0].body.starts_with("<!-- crcr-oncall:acme/four -->\n@dave "));
}

/// A pull request has one mention, which is for a failure that somebody has to look at.
#[tokio::test]
async fn oncalls_hear_of_a_failure_and_not_of_the_run_that_its_push_has_cancelled() {
    let world = World::with(&[("CRCR_ONCALL_COMMENTS", "on")]).await;
    let four = open(&world).await("acme/four");
    four.start(&world).await;
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    world.send_and_work("synchronize").await;
    let newer = received(&world)("acme/four").in_run(RUN + 1);
    four.end(&world, "cancelled").await;
    world.work().await;
    let mentions = || world.github.state().world.comments(UPSTREAM, 7).len();
    assert_eq!(mentions(), 0);
    newer.start_and_end(&world, "failure").await;
    world.work().await;
    assert_eq!(mentions(), 1);
}

#[tokio::test]
async fn author_who_writes_what_marks_the_mention_keeps_no_oncall_from_it() {
    let world = World::with(&[("CRCR_ONCALL_COMMENTS", "on")]).await;
    let four = open(&world).await("acme/four");
    let github = &world.github.state().world;
    github.comment(UPSTREAM, 7, "mallory", "<!-- crcr-oncall:acme/four -->");
    four.start_and_end(&world, "failure").await;
    world.work().await;
    assert_eq!(github.comments(UPSTREAM, 7).len(), 2);
}

#[tokio::test]
async fn app_that_repeats_what_marks_the_mention_keeps_no_oncall_from_it() {
    let world = World::with(&[("CRCR_ONCALL_COMMENTS", "on")]).await;
    let four = open(&world).await("acme/four");
    let github = &world.github.state().world;
    let said = "You wrote:\n> <!-- crcr-oncall:acme/four -->";
    github.comment(UPSTREAM, 7, "helper[bot]", said);
    for _ in 0..2 {
        four.start_and_end(&world, "failure").await;
        world.work().await;
        assert_eq!(github.comments(UPSTREAM, 7).len(), 2);
    }
}

/// Nothing is to be repaired, so nothing is given up.
#[tokio::test]
async fn pull_request_that_is_locked_or_hidden_gets_no_comment_and_no_dead_letter() {
    for (call, status, message) in [
        ("GET", 404, "Not Found"),
        ("POST", 403, "Unable to create comment because issue is locked."),
    ] {
        let world = World::with(&[("CRCR_ONCALL_COMMENTS", "on")]).await;
        let four = open(&world).await("acme/four");
        let body = json!({ "message": message }).to_string();
        let status = StatusCode::from_u16(status).unwrap();
        let fault = Fault::Answer { status, retry_after: None, body };
        let route = format!("{call} /repos/{UPSTREAM}/issues/7/comments");
        world.github.state().world.fail(&route, 10, fault);
        four.start_and_end(&world, "failure").await;
        assert_eq!(world.work().await, Vec::<String>::new(), "{message}");
        assert_eq!(world.github.state().world.comments(UPSTREAM, 7).len(), 0);
    }
}

#[tokio::test]
async fn repeated_report_is_a_duplicate_with_either_token() {
    let (world, two) = World::new().await.opened("acme/two").await;
    let (claims, body) = (two.claims(&world), two.body("in_progress", None));
    assert_eq!(two.report_as(&world, &claims, &body).await, said("in_progress"));
    assert_eq!(two.report_as(&world, &claims, &body).await, noted("duplicate"));
    assert_eq!(two.report(&world, &body).await, noted("duplicate"));
    let other = two.body("completed", Some("success"));
    let (status, answer) = two.report_as(&world, &claims, &other).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "{answer}");
    assert_eq!(two.report(&world, &other).await, said("completed"));
}

#[tokio::test]
async fn end_without_start_is_recorded_with_unknown_times() {
    let (world, two) = World::new().await.opened("acme/two").await;
    assert_eq!(two.end(&world, "success").await, said("completed"));
    assert_eq!(two.start(&world).await, noted("stale"));
    assert_eq!(two.end(&world, "failure").await, said("completed"), "the worse end counts");
    assert_eq!(two.end(&world, "success").await, said("completed"), "and stays");
    let facts = world.results.attempts(&world.always()).unwrap();
    assert!(facts.len() == 1 && facts[0].start_unknown);
    assert_eq!(facts[0].state, JobState::Completed(Conclusion::Failure));
    assert_eq!((facts[0].queue_seconds, facts[0].execution_seconds), (None, None));
}

#[tokio::test]
async fn every_report_is_recorded_with_its_outcome() {
    let (world, two) = World::new().await.opened("acme/two").await;
    two.start(&world).await;
    two.start(&world).await;
    two.report(&world, &json!({ "delivery_id": "x" })).await;
    let mut lost = two.body("in_progress", None);
    lost["delivery_id"] = json!("unknown");
    let rejected = two.report(&world, &lost).await;
    let text = "callback rejected: no matching dispatch record";
    assert_eq!(rejected, refused(StatusCode::BAD_REQUEST, text));
    let mut facts = vec![];
    for _ in 0..500 {
        facts = world.results.callbacks(&world.always()).unwrap();
        if facts.len() == 4 {
            break;
        }
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut outcomes: Vec<_> = facts.iter().map(|fact| fact.outcome.as_str()).collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["accepted", "bad_body", "duplicate", "rejected_state"]);
    assert!(facts.iter().any(|fact| fact.outcome == CallbackOutcome::Accepted));
}
