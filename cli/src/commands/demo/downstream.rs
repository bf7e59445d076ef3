//! A signed webhook in, a dispatch to every eligible repository, and two jobs in each of them.

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

use super::failed;
use super::input::Input;
use super::job::Job;
use super::relay::Running;
use crate::env_vars::Env;
use crate::failure::Failure;
use crate::printer::Printer;

/// How long all jobs together may take before the demo says which are missing.
const PATIENCE: Duration = Duration::from_secs(60);
/// Repositories whose jobs run at a time.
const RUNNERS: usize = 6;
/// The backend of the built-in allowlist whose tests fail.
const FAILS: &str = "basalt-example/torch-basalt";
/// Whose repositories may have the bucket's role: nobody's in the demo.
const OWNER: &str = "example-bucket-owner";
/// Where artifacts of jobs with credentials go; a downstream's job has none.
const BUCKET: [&str; 2] = ["--s3-bucket", "example-artifacts"];

/// What one repository's jobs did.
pub struct Done {
    pub conclusion: &'static str,
    /// How the job had credentials, and why.
    pub credentials: String,
    /// Which store took the artifact.
    pub store: String,
    pub why: String,
    /// What the relay made of the last report.
    pub outcome: String,
}

/// Delivers the webhook and runs the jobs of every repository that is dispatched to.
pub async fn run(
    input: &Input,
    state: &State,
    relay: &Running,
    folder: &Path,
    env: &Env,
    printer: &Printer,
) -> Result<BTreeMap<RepoName, Done>, Failure> {
    let started = Instant::now();
    let dispatches = state.world.listen();
    let delivery = state.world.delivery("pull_request", &input.payload);
    let client =
        crcr_github::http::client().map_err(|error| failed("no HTTP client").because(error))?;
    let answer = delivery
        .send(&client, &relay.at("github/webhook")?)
        .await
        .map_err(|error| failed("the relay didn't answer the webhook").because(error))?;
    if !matches!(answer.status, 200 | 202) {
        let (status, body) = (answer.status, answer.body);
        return Err(failed(format!("the relay refused the webhook with {status}: {body}")));
    }
    let jobs = Jobs { github: state, folder, callback: relay.at("github/callback")?, env };
    let count = input.targets().count();
    printer.data(&format!(
        "\nPull request {}#{}: its webhook, signed by the App's secret, was answered with {} after\n\
         {} ms; {count} repositories are to hear of it\n",
        input.upstream,
        input.number,
        answer.status,
        started.elapsed().as_millis(),
    ));
    let mut done = BTreeMap::new();
    let all = jobs.all(dispatches, count, &mut done);
    if let Ok(ended) = tokio::time::timeout(PATIENCE, all).await {
        ended?;
    }
    let missing = input.targets().filter(|entry| !done.contains_key(&entry.repo));
    let missing: Vec<_> = missing.map(|entry| entry.repo.as_str()).collect();
    if missing.is_empty() {
        return Ok(done);
    }
    let (list, seconds) = (missing.join(", "), PATIENCE.as_secs());
    let what = format!("not dispatched, or not done, within {seconds} seconds: {list}");
    Err(failed(what).hint("`-v` shows what the relay does"))
}

/// The runners of the downstream repositories.
struct Jobs<'a> {
    github: &'a State,
    folder: &'a Path,
    callback: Url,
    env: &'a Env,
}

impl Jobs<'_> {
    /// Runs the jobs of each dispatch, until `count` repositories have had theirs. Everything runs
    /// in this future: when it is dropped, every step is killed at once.
    async fn all(
        &self,
        mut dispatches: mpsc::UnboundedReceiver<Started>,
        count: usize,
        done: &mut BTreeMap<RepoName, Done>,
    ) -> Result<(), Failure> {
        let mut running = FuturesUnordered::new();
        let mut begun = 0;
        while done.len() < count {
            tokio::select! {
                started = dispatches.recv(), if running.len() < RUNNERS => {
                    match started {
                        Some(Started::Dispatch(dispatch)) => {
                            begun += 1;
                            running.push(self.repository(begun, dispatch));
                        }
                        Some(Started::Rerun { .. }) => {}
                        None => return Err(failed("the stand-in stopped telling of dispatches")),
                    }
                }
                Some(ended) = running.next() => {
                    let (repo, what) = ended?;
                    done.insert(repo, what);
                }
            }
        }
        Ok(())
    }

    /// One repository's run, as `workflows-templates/downstream-ci.yml` has it, with an artifact
    /// that a second job downloads.
    async fn repository(&self, n: usize, dispatch: Dispatch) -> Result<(RepoName, Done), Failure> {
        let repo: RepoName = dispatch
            .repository
            .parse()
            .map_err(|error| failed("a dispatch to nobody").because(error))?;
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
            Job::new(self.github, runner, &event, self.folder.join(format!("{name}-{n}")), self.env)
        };
        let (mut test, mut collect) = (job(&test, "test")?, job(&collect, "collect")?);
        let conclusion = if repo.as_str() == FAILS { "failure" } else { "success" };

        let report = ["report", "--callback-url", self.callback.as_str(), "--status"];
        test.step(&[&report[..], &["in_progress"]].concat()).await?;
        let configure = ["oidc", "configure", "--owners", OWNER, "--aws-region", "us-east-1"];
        let configure = test.step(&configure).await?;
        test.write("test-reports/pytest.xml", tests(conclusion).as_bytes())?;
        let upload = ["artifact", "upload", "--name", "reports", "--path", "test-reports"];
        let stored = test.step(&[&upload[..], &BUCKET].concat()).await?;
        let end = ["completed", "--conclusion", conclusion, "--phase", "test"];
        let junit = ["--junit", "test-reports/*.xml", "--environment", "demo"];
        let reported = test.step(&[&report[..], &end, &junit].concat()).await?;

        let download = ["artifact", "download", "--name", "reports", "--path", "reports"];
        let locator = ["--locator", stored.output("locator")];
        collect.step(&[&download[..], &BUCKET, &locator].concat()).await?;
        collect.same_as(&test, "test-reports", "reports", &["pytest.xml"])?;

        let status = "completed".to_owned();
        runs.add(Run { status, conclusion: Some(conclusion.to_owned()), ..run });
        let done = Done {
            conclusion,
            credentials: format!("{} ({})", configure.output("mode"), configure.output("reason")),
            store: stored.output("store").to_owned(),
            why: stored.output("reason").to_owned(),
            outcome: reported.output("outcome").to_owned(),
        };
        Ok((repo, done))
    }
}

fn tests(conclusion: &str) -> String {
    let failing = match conclusion {
        "failure" => "<failure message='expected 3 moons, saw 2'/>",
        _ => "",
    };
    format!(
        "<testsuites><testsuite name='demo'><testcase classname='sky' name='test_stars'/>\
         <testcase classname='sky' name='test_moons'>{failing}</testcase></testsuite></testsuites>"
    )
}
