//! What happens upstream: pull requests, pushes, labels, merge groups and "Re-run", each with its webhook.

use std::time::Duration;

use crcr_standin::State;
use crcr_standin::world::{Delivery, PullRequest};
use jiff::Timestamp;
use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

pub(crate) const UPSTREAM: &str = "acme/upstream";
pub(crate) const LABEL: &str = "ciflow/crcr/npu";
pub(crate) const ALLOWLIST_PATH: &str = ".github/allowlist.yml";
pub(crate) const ALLOWLIST: &str = "L1: [acme/one]\nL2: [acme/two]\nL3:\n  npu:\n    lab/three: \
                                    [carol]\nL4:\n  - acme/four: [dave]\n  - lab/five: [erin]\n";
/// The backends of the allowlist.
pub(crate) const BACKENDS: [&str; 5] =
    ["acme/one", "acme/two", "lab/three", "acme/four", "lab/five"];
/// Has no check runs, so its reports need no proof and the first conclusion of a job stays.
pub(crate) const L2: &str = "acme/two";
pub(crate) const L4: [&str; 2] = ["acme/four", "lab/five"];

/// A webhook that GitHub has to deliver, with what it promises.
pub(crate) struct UpstreamWebhook {
    pub(crate) delivery: Delivery,
    /// The backends that get it.
    pub(crate) targets: Vec<&'static str>,
    /// The commit that it is about.
    pub(crate) head: String,
    /// Whether backends at L4 show check runs for it.
    pub(crate) has_check_runs: bool,
    pub(crate) pull: Option<u64>,
    /// What happened, for the trace.
    pub(crate) what: String,
}

/// The upstream repository's own state, beyond what the stand-in keeps.
pub(crate) struct UpstreamModel {
    /// How many pull requests there are.
    pulls: u64,
    heads: u32,
    webhooks: u32,
}

impl UpstreamModel {
    pub(crate) fn new(pulls: u64) -> Self {
        Self { pulls, heads: 0, webhooks: 0 }
    }

    fn new_head(&mut self, seed: u64) -> String {
        self.heads += 1;
        format!("{:032x}{:08x}", u128::from(seed), self.heads)
    }

    /// Lets one thing happen; `None` when it isn't possible now.
    pub(crate) fn next(
        &mut self,
        github: &State,
        seed: u64,
        random: &mut StdRng,
    ) -> Option<UpstreamWebhook> {
        let now = github.clock.now();
        let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let number = random.random_range(1..=self.pulls);
        let known = github.world.pull(UPSTREAM, number);
        let (event, payload, targets, what) = match random.random_range(0..20) {
            0..11 => self.pull_event(github, (seed, number), known, second, random)?,
            11..14 => {
                let head = self.new_head(seed);
                github.world.add_commit(UPSTREAM, &head);
                let payload = github.push_payload(UPSTREAM, "refs/heads/main", &head);
                ("push", payload, BACKENDS.to_vec(), format!("push of {}", short(&head)))
            }
            14..16 => {
                let head = self.new_head(seed);
                github.world.add_commit(UPSTREAM, &head);
                let payload = github.merge_group_payload(UPSTREAM, &head);
                ("merge_group", payload, L4.to_vec(), format!("merge group {}", short(&head)))
            }
            16..18 => {
                let runs = github.world.check_runs(UPSTREAM);
                let done: Vec<_> = runs.iter().filter(|run| run.status == "completed").collect();
                let run = done.get(random.random_range(0..done.len().max(1)))?;
                let payload = github.check_run_payload(UPSTREAM, run.id, "rerequested");
                ("check_run", payload, vec![], format!("re-run of {}", run.name))
            }
            18 => {
                let runs = github.world.check_runs(UPSTREAM);
                let run = runs.get(random.random_range(0..runs.len().max(1)))?;
                let payload = github.check_suite_payload(UPSTREAM, run.suite, "rerequested");
                ("check_suite", payload, vec![], format!("re-run of suite {}", run.suite))
            }
            _ => ("star", json!({ "action": "created" }), vec![], "a star".to_owned()),
        };
        let head = match event {
            "pull_request" => &payload["pull_request"]["head"]["sha"],
            "push" => &payload["after"],
            "merge_group" => &payload["merge_group"]["head_sha"],
            _ => &Value::Null,
        };
        let head = head.as_str().unwrap_or_default().to_owned();
        let is_shown = matches!(event, "pull_request" | "merge_group");
        let has_check_runs = is_shown && !targets.is_empty() && payload["action"] != "closed";
        self.webhooks += 1;
        let mut delivery = github.world.delivery(event, &payload);
        delivery.id = format!("{seed:x}-{}", self.webhooks);
        let what = format!("{} {what}", delivery.id);
        let pull = payload["pull_request"]["number"].as_u64();
        Some(UpstreamWebhook { delivery, targets, head, has_check_runs, pull, what })
    }

    fn pull_event(
        &mut self,
        github: &State,
        (seed, number): (u64, u64),
        known: Option<PullRequest>,
        now: Timestamp,
        random: &mut StdRng,
    ) -> Option<(&'static str, Value, Vec<&'static str>, String)> {
        let Some(known) = known else {
            let head = self.new_head(seed);
            github.world.put_pull(UPSTREAM, PullRequest::from_fork(number, UPSTREAM, &head, now));
            let payload = github.pull_request_payload(UPSTREAM, number, "opened");
            let what = format!("#{number} opened at {}", short(&head));
            return Some(("pull_request", payload, BACKENDS.to_vec(), what));
        };
        let mut before = None;
        let is_labelled = known.labels.contains(LABEL);
        let action = match random.random_range(0..10) {
            0..4 => "synchronize",
            4..6 if known.open => "closed",
            4..6 => "reopened",
            _ if is_labelled => "unlabeled",
            _ => "labeled",
        };
        // GitHub's times have a resolution of a second.
        let updated_at = now.max(known.updated_at);
        let head =
            if action == "synchronize" { self.new_head(seed) } else { known.head_sha.clone() };
        github.world.change_pull(UPSTREAM, number, |pull| {
            pull.updated_at = updated_at;
            match action {
                "closed" => pull.open = false,
                "reopened" => pull.open = true,
                "labeled" => drop(pull.labels.insert(LABEL.to_owned())),
                "unlabeled" => drop(pull.labels.remove(LABEL)),
                _ => before = Some(std::mem::replace(&mut pull.head_sha, head.clone())),
            }
        });
        let (mut payload, targets) = match action {
            "labeled" | "unlabeled" => {
                let payload = github.label_payload(UPSTREAM, number, LABEL, action == "labeled");
                (payload, vec![])
            }
            _ => (github.pull_request_payload(UPSTREAM, number, action), BACKENDS.to_vec()),
        };
        if let Some(before) = before {
            payload["before"] = json!(before);
        }
        let what = format!("#{number} {action} at {}", short(&head));
        Some(("pull_request", payload, targets, what))
    }
}

/// Enough of a commit to tell it from the others of one seed.
pub(crate) fn short(sha: &str) -> &str {
    &sha[sha.len().saturating_sub(4)..]
}

/// How long GitHub takes to deliver a webhook: mostly at once, sometimes minutes.
pub(crate) fn delivery_delay(random: &mut StdRng) -> Duration {
    match random.random_range(0..10) {
        0..8 => Duration::from_millis(random.random_range(0..3000)),
        8 => Duration::from_secs(random.random_range(3..60)),
        _ => Duration::from_secs(random.random_range(60..1200)),
    }
}
