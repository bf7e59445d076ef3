//! The pull request and the allowlist of the demo, built in or read from files.

use std::io::Read as _;
use std::path::Path;

use crcr_domain::allowlist::AllowlistEntry;
use crcr_domain::allowlist::level::LABEL_PREFIX;
use crcr_domain::diagnostic::Severity;
use crcr_domain::{Allowlist, RepoName};
use crcr_standin::State;
use crcr_standin::generate;
use crcr_standin::world::PullRequest;
use serde_json::Value;

use crate::cli::demo::DemoArgs;
use crate::failure::Failure;

/// Path in the upstream repository.
pub const ALLOWLIST_PATH: &str = ".github/allowlist.yml";
const UPSTREAM: &str = "example/torch";
const NUMBER: u64 = 7;
/// Asks for check runs of the built-in allowlist's L3 backend.
const LABEL: &str = "ciflow/crcr/basalt";
/// GitHub's limit for a webhook payload.
const MAX_FILE_BYTES: u64 = 25 * 1024 * 1024;
const DEMO_FILES: &str =
    "`--allowlist` takes an allowlist, `--event` the body of a `pull_request` webhook as JSON";

pub struct DemoScenario {
    pub payload: Value,
    pub upstream: RepoName,
    pub number: u64,
    pub labels: Vec<String>,
    pub allowlist: Allowlist,
}

impl DemoScenario {
    /// Reads the files, and adds the pull request and the repositories to the stand-in.
    pub fn read(args: &DemoArgs, state: &State) -> Result<Self, Failure> {
        let payload = match &args.event {
            Some(path) => serde_json::from_slice(&read_file(path)?).map_err(|error| {
                let what = format!("`{}` isn't JSON", path.display());
                Failure::user("demo-event", what).because(error).hint(DEMO_FILES)
            })?,
            None => built_in_payload(state),
        };
        let event = PullRequestOpened::from_payload(&payload)?;
        let bytes = match &args.allowlist {
            Some(path) => read_file(path)?,
            None => generate::ALLOWLIST.as_bytes().to_vec(),
        };
        let allowlist = parse_allowlist(&bytes, &event.upstream, args.allowlist.as_deref())?;
        let upstream = event.upstream.as_str();
        state.world.install(upstream);
        if state.world.pull(upstream, event.number).is_none() {
            let mut pull =
                PullRequest::from_fork(event.number, upstream, &event.sha, state.clock.now());
            pull.labels = event.labels.iter().cloned().collect();
            state.world.put_pull(upstream, pull);
        }
        state.world.put_file(upstream, ALLOWLIST_PATH, bytes);
        for entry in allowlist.iter() {
            state.world.install(entry.repo.as_str());
        }
        let PullRequestOpened { upstream, number, labels, .. } = event;
        Ok(Self { payload, upstream, number, labels, allowlist })
    }

    /// The repositories that the pull request is dispatched to.
    pub fn targets(&self) -> impl Iterator<Item = &AllowlistEntry> {
        self.allowlist.iter().filter(|entry| entry.is_dispatched_to())
    }

    pub fn shows_check_run(&self, entry: &AllowlistEntry) -> bool {
        let labelled = entry.device.as_ref().is_some_and(|device| {
            let label = format!("{LABEL_PREFIX}{device}");
            self.labels.iter().any(|other| other.eq_ignore_ascii_case(&label))
        });
        entry.check_run().applies(labelled)
    }
}

/// The fields of a `pull_request` webhook that the demo needs.
struct PullRequestOpened {
    upstream: RepoName,
    number: u64,
    sha: String,
    labels: Vec<String>,
}

impl PullRequestOpened {
    fn from_payload(payload: &Value) -> Result<Self, Failure> {
        let text = |pointer: &str| payload.pointer(pointer).and_then(Value::as_str);
        let number = payload.pointer("/pull_request/number").and_then(Value::as_u64);
        let (Some(name), Some(sha), Some(number)) =
            (text("/repository/full_name"), text("/pull_request/head/sha"), number)
        else {
            let failure = Failure::user("demo-event", "the event isn't a `pull_request` webhook");
            return Err(failure.hint(
                "it needs `repository.full_name`, `pull_request.number` and `pull_request.head.sha`",
            ));
        };
        let action = text("/action").unwrap_or_default();
        if !matches!(action, "opened" | "reopened" | "synchronize") {
            let what = format!("the action `{action}` of a pull request starts no CI");
            return Err(Failure::user("demo-event", what)
                .hint("use an event whose `action` is `opened`, `reopened` or `synchronize`"));
        }
        let upstream = name.parse::<RepoName>().map_err(|error| {
            Failure::user("demo-event", "the event's repository name isn't valid")
                .because(error)
                .hint("`repository.full_name` is `owner/repo`")
        })?;
        let labels = payload.pointer("/pull_request/labels").and_then(Value::as_array);
        let names = labels.into_iter().flatten().filter_map(|label| label["name"].as_str());
        Ok(Self {
            upstream,
            number,
            sha: sha.to_owned(),
            labels: names.map(str::to_owned).collect(),
        })
    }
}

/// A fork's pull request with the label of a device.
fn built_in_payload(state: &State) -> Value {
    state.world.install(UPSTREAM);
    let sha = "c0ffee5".repeat(6)[..40].to_owned();
    let mut pull = PullRequest::from_fork(NUMBER, UPSTREAM, &sha, state.clock.now());
    pull.labels.insert(LABEL.to_owned());
    state.world.put_pull(UPSTREAM, pull);
    state.pull_request_payload(UPSTREAM, NUMBER, "opened")
}

fn parse_allowlist(
    bytes: &[u8],
    upstream: &RepoName,
    path: Option<&Path>,
) -> Result<Allowlist, Failure> {
    let list = Allowlist::parse(bytes, upstream).accepted().map_err(|findings| {
        let path = path.unwrap_or(Path::new(ALLOWLIST_PATH)).display();
        let mut failure =
            Failure::user("demo-allowlist", format!("the relay would refuse `{path}`"));
        let errors = findings.kept().iter().filter(|found| found.severity == Severity::Error);
        for found in errors.take(1) {
            let line = found.span.start.line;
            failure = failure.because(anyhow::anyhow!("line {line}: {}", found.message));
        }
        failure.hint(format!("`crcr allowlist validate {path}` shows every finding in its place"))
    })?;
    if !list.iter().any(AllowlistEntry::is_dispatched_to) {
        let what = "no repository of the allowlist receives pull requests";
        return Err(Failure::user("demo-allowlist", what)
            .hint("add one: `L1: [owner/repository]` is enough"));
    }
    Ok(list)
}

fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    let unreadable = |error: std::io::Error| {
        Failure::user("demo-file", format!("`{}` can't be read", path.display()))
            .because(error)
            .hint(DEMO_FILES)
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let what = format!("`{}` is over 25 MiB", path.display());
        return Err(Failure::user("demo-file", what).hint(DEMO_FILES));
    }
    Ok(bytes)
}
