//! Sends the signed webhook to the relay, and runs two jobs in every repository that it dispatches to.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crcr_domain::RepoName;
use crcr_standin::State;
use crcr_standin::runs::Run;
use crcr_standin::world::{Dispatch, Started};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use tokio::sync::mpsc;
use url::Url;

use super::demo_failure;
use super::demo_relay::DemoRelay;
use super::runner_job::RunnerJob;
use super::scenario::DemoScenario;
use crate::env_vars::Env;
use crate::failure::Failure;
use crate::printer::Printer;

/// For all jobs together.
const JOBS_TIMEOUT: Duration = Duration::from_secs(60);
const CONCURRENT_REPOSITORIES: usize = 6;
/// The backend of the built-in allowlist whose tests fail.
const FAILING_BACKEND: &str = "basalt-example/torch-basalt";
/// `oidc configure` assumes the role only for this owner, who has no repository in the demo.
const CREDENTIALS_OWNER: &str = "example-bucket-owner";
/// Never used: without credentials, artifacts go to GitHub.
const BUCKET: [&str; 2] = ["--s3-bucket", "example-artifacts"];

pub struct JobsOutcome {
    pub conclusion: &'static str,
    /// Mode and reason of `oidc configure`.
    pub credentials: String,
    pub store: String,
    pub store_reason: String,
    /// How the relay handled the last report.
    pub report_outcome: String,
}

/// Delivers the webhook and runs the jobs of every repository that is dispatched to.
pub async fn run(
    scenario: &DemoScenario,
    state: &State,
    relay: &DemoRelay,
    folder: &Path,
    env: &Env,
    printer: &Printer,
) -> Result<BTreeMap<RepoName, JobsOutcome>, Failure> {
    let started = Instant::now();
    let dispatches = state.world.listen();
    let delivery = state.world.delivery("pull_request", &scenario.payload);
    let client = crcr_github::http::client()
        .map_err(|error| demo_failure("no HTTP client").because(error))?;
    let answer = delivery
        .send(&client, &relay.join("github/webhook")?)
        .await
        .map_err(|error| demo_failure("the relay didn't answer the webhook").because(error))?;
    if !matches!(answer.status, 200 | 202) {
        let (status, body) = (answer.status, answer.body);
        return Err(demo_failure(format!("the relay refused the webhook with {status}: {body}")));
    }
    let jobs =
        DownstreamRunners { github: state, folder, callback: relay.join("github/callback")?, env };
    let count = scenario.targets().count();
    printer.data(&format!(
        "\nPull request {}#{}: its webhook, signed by the App's secret, was answered with {} after \
         {} ms;\n{count} repositories will get it\n",
        scenario.upstream,
        scenario.number,
        answer.status,
        started.elapsed().as_millis(),
    ));
    let mut done = BTreeMap::new();
    let all = jobs.run_all(dispatches, count, &mut done);
    if let Ok(ended) = tokio::time::timeout(JOBS_TIMEOUT, all).await {
        ended?;
    }
    let missing = scenario.targets().filter(|entry| !done.contains_key(&entry.repo));
    let missing: Vec<_> = missing.map(|entry| entry.repo.as_str()).collect();
    if missing.is_empty() {
        return Ok(done);
    }
    let (list, seconds) = (missing.join(", "), JOBS_TIMEOUT.as_secs());
    let what = format!("not dispatched or not finished within {seconds} seconds: {list}");
    Err(demo_failure(what).hint("`-v` shows the relay's log"))
}

struct DownstreamRunners<'a> {
    github: &'a State,
    folder: &'a Path,
    callback: Url,
    env: &'a Env,
}

impl DownstreamRunners<'_> {
    /// Runs the jobs of each dispatch until `count` repositories are done. All steps run inside this
    /// future, so dropping it kills them.
    async fn run_all(
        &self,
        mut dispatches: mpsc::UnboundedReceiver<Started>,
        count: usize,
        done: &mut BTreeMap<RepoName, JobsOutcome>,
    ) -> Result<(), Failure> {
        let mut running = FuturesUnordered::new();
        let mut begun = 0;
        while done.len() < count {
            tokio::select! {
                started = dispatches.recv(), if running.len() < CONCURRENT_REPOSITORIES => {
                    match started {
                        Some(Started::Dispatch(dispatch)) => {
                            begun += 1;
                            running.push(self.run_repository(begun, dispatch));
                        }
                        Some(Started::Rerun { .. }) => {}
                        None => return Err(demo_failure("the stand-in stopped")),
                    }
                }
                Some(ended) = running.next() => {
                    let (repo, outcome) = ended?;
                    done.insert(repo, outcome);
                }
            }
        }
        Ok(())
    }

    /// Runs the steps of `workflows-templates/downstream-ci.yml`, and a second job that downloads the
    /// artifact of the first.
    async fn run_repository(
        &self,
        n: usize,
        dispatch: Dispatch,
    ) -> Result<(RepoName, JobsOutcome), Failure> {
        let repo: RepoName = dispatch
            .repository
            .parse()
            .map_err(|error| demo_failure("a dispatch names no repository").because(error))?;
        let run = Run {
            id: 9000 + n as u64,
            repository_id: self.github.world.add_repo(&dispatch.repository),
            head_repository: Some(dispatch.repository.clone()),
            repository: dispatch.repository,
            event: "repository_dispatch".to_owned(),
            workflow: "upstream".to_owned(),
            workflow_path: ".github/workflows/upstream.yml".to_owned(),
            ..Run::push()
        };
        let event =
            json!({ "action": dispatch.event_type, "client_payload": dispatch.client_payload });
        let runs = &self.github.runs;
        let id = runs.add(run.clone());
        let (test, collect) = (runs.add_job(id, "test"), runs.add_job(id, "collect"));
        let job = |runner, name| {
            RunnerJob::new(
                self.github,
                runner,
                &event,
                self.folder.join(format!("{name}-{n}")),
                self.env,
            )
        };
        let (mut test, mut collect) = (job(&test, "test")?, job(&collect, "collect")?);
        let conclusion = if repo.as_str() == FAILING_BACKEND { "failure" } else { "success" };

        let report = ["report", "--callback-url", self.callback.as_str(), "--status"];
        test.run_step(&[&report[..], &["in_progress"]].concat()).await?;
        let configure =
            ["oidc", "configure", "--owners", CREDENTIALS_OWNER, "--aws-region", "us-east-1"];
        let configure = test.run_step(&configure).await?;
        test.write_file("test-reports/pytest.xml", junit_report(conclusion).as_bytes())?;
        let upload = ["artifact", "upload", "--name", "reports", "--path", "test-reports"];
        let stored = test.run_step(&[&upload[..], &BUCKET].concat()).await?;
        let end = ["completed", "--conclusion", conclusion, "--phase", "test"];
        let junit = ["--junit", "test-reports/*.xml", "--environment", "demo"];
        let reported = test.run_step(&[&report[..], &end, &junit].concat()).await?;

        let download = ["artifact", "download", "--name", "reports", "--path", "reports"];
        let locator = ["--locator", stored.output("locator")];
        collect.run_step(&[&download[..], &BUCKET, &locator].concat()).await?;
        collect.expect_same_files(&test, "test-reports", "reports", &["pytest.xml"])?;

        let status = "completed".to_owned();
        runs.add(Run { status, conclusion: Some(conclusion.to_owned()), ..run });
        let done = JobsOutcome {
            conclusion,
            credentials: format!("{} ({})", configure.output("mode"), configure.output("reason")),
            store: stored.output("store").to_owned(),
            store_reason: stored.output("reason").to_owned(),
            report_outcome: reported.output("outcome").to_owned(),
        };
        Ok((repo, done))
    }
}

fn junit_report(conclusion: &str) -> String {
    let failing = match conclusion {
        "failure" => "<failure message='expected 3 moons, saw 2'/>",
        _ => "",
    };
    format!(
        "<testsuites><testsuite name='demo'><testcase classname='sky' name='test_stars'/>\
         <testcase classname='sky' name='test_moons'>{failing}</testcase></testsuite></testsuites>"
    )
}
