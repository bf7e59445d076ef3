//! What happens upstream: pull requests, pushes, labels, merge groups, "Re-run" and changes of the allowlist, each
//! with its webhook.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crcr_standin::State;
use crcr_standin::world::{Delivery, PullRequest};
use jiff::Timestamp;
use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::backend_files::BackendFiles;
use crate::inputs::SeedInputs;
use crate::ledger::KnownWebhook;
use crate::levels::{AllowlistModel, DEMOTED};
use crate::main_branch::MainBranch;
use crate::names::{UPSTREAM, short};

pub(crate) const LABEL: &str = "ciflow/crcr/npu";
pub(crate) const ALLOWLIST_PATH: &str = ".github/allowlist.yml";
/// The author whose backends' setups all fail, if the seed has one.
pub(crate) const ATTACKER: &str = "mallory";
/// The pull request of that author.
pub(crate) const ATTACKER_PULL: u64 = 1;

/// The pull request of a demotion.
const FIRST_DEMOTION_PULL: u64 = 9000;
/// The first pull request of a stranger at another's head.
const FIRST_STRANGERS_PULL: u64 = 500;

/// A webhook that GitHub has to deliver, with what it promises.
pub(crate) struct UpstreamWebhook {
    pub(crate) delivery: Delivery,
    pub(crate) known: KnownWebhook,
    /// The commit whose checks somebody wants to run again.
    pub(crate) asked_head: Option<String>,
    /// What happened, for the trace.
    pub(crate) what: String,
}

/// An event before it is a webhook.
struct SimulatedEvent {
    name: &'static str,
    payload: Value,
    targets: Vec<&'static str>,
    what: String,
}

/// The upstream repository's own state, beyond what the stand-in keeps.
pub(crate) struct UpstreamModel {
    pub(crate) allowlist: AllowlistModel,
    inputs: SeedInputs,
    /// How many pull requests there are.
    pub(crate) pulls: u64,
    heads: u32,
    /// How many strangers have opened a pull request at another's head.
    strangers: u64,
    /// How many demotions were asked for.
    demotions: u64,
    /// Commits of pull requests and pushes.
    known_heads: Vec<String>,
    /// Those that only change documentation.
    documentation: BTreeSet<String>,
    /// The backends' files, as far as they decide who gets what.
    pub(crate) files: BackendFiles,
    pub(crate) branch: MainBranch,
    /// When the label of a pull request was last set or removed, to the second.
    labelled_at: BTreeMap<u64, Timestamp>,
    /// When a pull request's label was last set and removed within a second, if nothing has happened to it since.
    pub(crate) flipped: BTreeMap<u64, Timestamp>,
    webhooks: u32,
}

impl UpstreamModel {
    pub(crate) fn new(pulls: u64, inputs: SeedInputs, seed: u64) -> Self {
        Self {
            allowlist: AllowlistModel::default(),
            inputs,
            pulls,
            heads: 0,
            strangers: 0,
            demotions: 0,
            known_heads: vec![],
            documentation: BTreeSet::new(),
            files: BackendFiles::new(inputs, seed),
            branch: MainBranch::new(&"b5".repeat(20)),
            labelled_at: BTreeMap::new(),
            flipped: BTreeMap::new(),
            webhooks: 0,
        }
    }

    /// Whether a head changes more than documentation against `main`.
    pub(crate) fn has_code(&self, head: &str) -> bool {
        !self.documentation.contains(head)
    }

    fn new_head(&mut self, seed: u64) -> String {
        self.heads += 1;
        let head = format!("{:032x}{:08x}", u128::from(seed), self.heads);
        self.known_heads.push(head.clone());
        head
    }

    /// A new commit, or one that a pull request or push had before.
    fn any_head(&mut self, seed: u64, but: &str, random: &mut StdRng) -> String {
        if self.inputs.shared_heads && random.random_ratio(1, 3) {
            let known = &self.known_heads;
            let head = known.get(random.random_range(0..known.len().max(1)));
            if let Some(head) = head.filter(|head| *head != but) {
                return head.clone();
            }
        }
        self.new_head(seed)
    }

    /// Lets one thing happen, which may have several webhooks; none when it isn't possible now.
    pub(crate) fn next(
        &mut self,
        github: &State,
        seed: u64,
        random: &mut StdRng,
    ) -> Vec<UpstreamWebhook> {
        let known = self.known_heads.len();
        let events = self.events(github, seed, random);
        if self.inputs.backend_files {
            self.choose_changed_files(github, known, random);
        }
        events.into_iter().map(|event| self.webhook(github, seed, event)).collect()
    }

    /// What the heads after the first `known` ones change.
    fn choose_changed_files(&mut self, github: &State, known: usize, random: &mut StdRng) {
        for head in &self.known_heads[known..] {
            let is_documentation = random.random_ratio(1, 3);
            if is_documentation {
                self.documentation.insert(head.clone());
            }
            let file = if is_documentation { "docs/index.md" } else { "aten/native.cpp" };
            github.world.set_changed_files(UPSTREAM, head, &[file, "README.md"]);
        }
    }

    fn allowlist_change(
        &mut self,
        github: &State,
        seed: u64,
        random: &mut StdRng,
    ) -> SimulatedEvent {
        let what = self.allowlist.change(github.clock.now(), random);
        github.world.put_file(UPSTREAM, ALLOWLIST_PATH, self.allowlist.text());
        let head = match self.inputs.probes {
            true => self.branch.grow(github, seed, random),
            false => self.new_head(seed),
        };
        let push = self.push(github, &head);
        SimulatedEvent { what: format!("{what}: {}", push.what), ..push }
    }

    /// Changes an entry of the allowlist.
    pub(crate) fn change_allowlist(
        &mut self,
        github: &State,
        seed: u64,
        random: &mut StdRng,
    ) -> UpstreamWebhook {
        let event = self.allowlist_change(github, seed, random);
        self.webhook(github, seed, event)
    }

    /// A stranger opens a pull request at the head of another one, if that is open.
    pub(crate) fn stranger_comes(
        &mut self,
        github: &State,
        seed: u64,
        random: &mut StdRng,
    ) -> Option<UpstreamWebhook> {
        let other = random.random_range(1..=self.pulls);
        let other = github.world.pull(UPSTREAM, other).filter(|pull| pull.open)?;
        let now = github.clock.now();
        let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let number = FIRST_STRANGERS_PULL + self.strangers;
        self.strangers += 1;
        let pull = PullRequest::from_fork(number, UPSTREAM, &other.head_sha, second);
        let author = format!("stranger{number}");
        github.world.put_pull(UPSTREAM, PullRequest { author, is_stranger: true, ..pull });
        let event = self.pull_event(github, number, "opened", None);
        Some(self.webhook(github, seed, event))
    }

    /// Opens a pull request, or gives it a new head.
    pub(crate) fn push_to(
        &mut self,
        github: &State,
        seed: u64,
        number: u64,
    ) -> Option<UpstreamWebhook> {
        let head = self.new_head(seed);
        github.world.set_changed_files(UPSTREAM, &head, &["aten/native.cpp"]);
        let now = github.clock.now();
        let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let event = match github.world.pull(UPSTREAM, number) {
            Some(known) if !known.open => return None,
            Some(known) => {
                let updated_at = second.max(known.updated_at);
                github.world.change_pull(UPSTREAM, number, |pull| pull.updated_at = updated_at);
                self.flipped.retain(|of, at| *of != number || *at >= updated_at);
                self.move_head(github, number, &head)
            }
            None => {
                let pull = PullRequest::from_fork(number, UPSTREAM, &head, second);
                let author = self.author(number);
                github.world.put_pull(UPSTREAM, PullRequest { author, ..pull });
                self.pull_event(github, number, "opened", None)
            }
        };
        Some(self.webhook(github, seed, event))
    }

    fn events(&mut self, github: &State, seed: u64, random: &mut StdRng) -> Vec<SimulatedEvent> {
        let changes = if self.inputs.allowlist_changes { 4 } else { 0 };
        let demotions = if self.inputs.demotions { 2 } else { 0 };
        if self.inputs.probes && random.random_ratio(1, 3) {
            let head = self.branch.grow(github, seed, random);
            return vec![self.push(github, &head)];
        }
        let event = match random.random_range(0..20 + changes + demotions) {
            0..11 => {
                let is_attack = self.inputs.setup_attacker && random.random_ratio(3, 4);
                let number =
                    if is_attack { ATTACKER_PULL } else { random.random_range(1..=self.pulls) };
                return self.pull_events(github, seed, number, random);
            }
            11..14 => {
                let head = self.pushed_head(github, seed, random);
                Some(self.push(github, &head))
            }
            14..16 => {
                let head = self.any_head(seed, "", random);
                github.world.add_commit(UPSTREAM, &head);
                let payload = github.merge_group_payload(UPSTREAM, &head);
                let what = format!("merge group {}", short(&head));
                let targets = self.allowlist.targets(4);
                Some(SimulatedEvent { name: "merge_group", payload, targets, what })
            }
            16..18 => rerun_of_check_run(github, random),
            18 => rerun_of_suite(github, random),
            19 => {
                let (payload, what) = (json!({ "action": "created" }), "a star".to_owned());
                Some(SimulatedEvent { name: "star", payload, targets: vec![], what })
            }
            20.. if random.random_range(0..changes + demotions) < demotions => {
                Some(self.demotion(github, seed))
            }
            _ => Some(self.allowlist_change(github, seed, random)),
        };
        event.into_iter().collect()
    }

    fn pushed_head(&mut self, github: &State, seed: u64, random: &mut StdRng) -> String {
        if self.inputs.probes {
            return self.branch.grow(github, seed, random);
        }
        self.any_head(seed, "", random)
    }

    /// Opens or closes the pull request of a demotion, as `crcr levels sync` does.
    fn demotion(&mut self, github: &State, seed: u64) -> SimulatedEvent {
        let now = github.clock.now();
        let branch = format!("crcr-demotion/{DEMOTED}");
        let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
        if !self.allowlist.toggle_demotion(now) {
            let number = FIRST_DEMOTION_PULL + self.demotions - 1;
            github.world.change_pull(UPSTREAM, number, |pull| {
                (pull.open, pull.updated_at) = (false, second);
            });
            return self.pull_event(github, number, "closed", None);
        }
        let number = FIRST_DEMOTION_PULL + self.demotions;
        self.demotions += 1;
        let head = self.new_head(seed);
        let pull = PullRequest::from_fork(number, UPSTREAM, &head, second);
        let labels = ["crcr-auto-demotion".to_owned()].into();
        let head_repository = Some(UPSTREAM.to_owned());
        let pull = PullRequest { head_repository, head_ref: branch.clone(), labels, ..pull };
        github.world.put_pull(UPSTREAM, pull);
        github.world.put_branch(UPSTREAM, &branch, &head);
        self.pull_event(github, number, "opened", None)
    }

    fn push(&self, github: &State, head: &str) -> SimulatedEvent {
        github.world.add_commit(UPSTREAM, head);
        let payload = github.push_payload(UPSTREAM, "refs/heads/main", head);
        let what = format!("push of {}", short(head));
        SimulatedEvent { name: "push", payload, targets: self.allowlist.targets(1), what }
    }

    fn pull_events(
        &mut self,
        github: &State,
        seed: u64,
        number: u64,
        random: &mut StdRng,
    ) -> Vec<SimulatedEvent> {
        let now = github.clock.now();
        // GitHub's times have a resolution of a second.
        let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let is_quick = self.inputs.quick_events && random.random_ratio(1, 2);
        let Some(known) = github.world.pull(UPSTREAM, number) else {
            let head = self.any_head(seed, "", random);
            let author = self.author(number);
            let pull = PullRequest::from_fork(number, UPSTREAM, &head, second);
            let draft = self.inputs.backend_files && random.random_ratio(1, 4);
            let is_stranger = number.is_multiple_of(3);
            let pull = PullRequest { author, draft, is_stranger, ..pull };
            github.world.put_pull(UPSTREAM, pull);
            let mut events = vec![self.pull_event(github, number, "opened", None)];
            if is_quick {
                events.push(self.label(github, number, true));
            }
            return events;
        };
        let is_labelled = known.labels.contains(LABEL);
        let kind = random.random_range(0..10);
        // GitHub's times never go back.
        let updated_at = second.max(known.updated_at);
        github.world.change_pull(UPSTREAM, number, |pull| pull.updated_at = updated_at);
        // An event of a later second says which labels there are.
        self.flipped.retain(|of, at| *of != number || *at >= updated_at);
        if self.inputs.base_changes && known.open && random.random_ratio(1, 4) {
            return vec![self.change_base(github, &known)];
        }
        match kind {
            0..4 => {
                let head = self.any_head(seed, &known.head_sha, random);
                let mut events = vec![self.move_head(github, number, &head)];
                if is_quick {
                    events.push(self.move_head(github, number, &known.head_sha));
                }
                events
            }
            4..6 => {
                github.world.change_pull(UPSTREAM, number, |pull| pull.open = !known.open);
                let action = if known.open { "closed" } else { "reopened" };
                vec![self.pull_event(github, number, action, None)]
            }
            // GitHub offers it for open pull requests only.
            _ if known.draft && known.open && kind < 8 => {
                github.world.change_pull(UPSTREAM, number, |pull| pull.draft = false);
                vec![self.pull_event(github, number, "ready_for_review", None)]
            }
            // A label that is set and removed within a second: no webhook says which came last.
            _ if self.labelled_at.get(&number) == Some(&second) && !self.inputs.label_flips => {
                vec![]
            }
            _ if self.inputs.label_flips && random.random_ratio(1, 2) => {
                vec![
                    self.label(github, number, !is_labelled),
                    self.label(github, number, is_labelled),
                ]
            }
            _ => vec![self.label(github, number, !is_labelled)],
        }
    }

    /// The base branch becomes `release`, or `main` again. Against `release`, every head changes code.
    fn change_base(&self, github: &State, known: &PullRequest) -> SimulatedEvent {
        let is_main = known.base_ref == "main";
        let (branch, sha) = if is_main { ("release", "c6") } else { ("main", "b5") };
        github.world.change_pull(UPSTREAM, known.number, |pull| {
            (pull.base_ref, pull.base_sha) = (branch.to_owned(), sha.repeat(20));
        });
        let head = &known.head_sha;
        if self.documentation.contains(head) {
            let file = if is_main { "aten/native.cpp" } else { "docs/index.md" };
            github.world.set_changed_files(UPSTREAM, head, &[file, "README.md"]);
        }
        let event = self.pull_event(github, known.number, "edited", None);
        let mut payload = event.payload;
        payload["changes"] = json!({ "base": { "ref": { "from": known.base_ref }, "sha": { "from": known.base_sha } } });
        // Others get it that left the head out.
        let targets = self.allowlist.targets(4);
        let what = format!("{} to {branch}", event.what);
        SimulatedEvent { payload, targets, what, ..event }
    }

    /// Sets the label of an open pull request, or removes it.
    pub(crate) fn change_label(
        &mut self,
        github: &State,
        seed: u64,
        number: u64,
    ) -> Option<UpstreamWebhook> {
        let known = github.world.pull(UPSTREAM, number).filter(|pull| pull.open)?;
        let now = github.clock.now();
        let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
        // No webhook would say which of two changes in a second came last.
        if second <= known.updated_at {
            return None;
        }
        github.world.change_pull(UPSTREAM, number, |pull| pull.updated_at = second);
        self.flipped.remove(&number);
        let event = self.label(github, number, !known.labels.contains(LABEL));
        Some(self.webhook(github, seed, event))
    }

    fn move_head(&self, github: &State, number: u64, head: &str) -> SimulatedEvent {
        let mut before = None;
        github.world.change_pull(UPSTREAM, number, |pull| {
            before = Some(std::mem::replace(&mut pull.head_sha, head.to_owned()));
        });
        self.pull_event(github, number, "synchronize", before)
    }

    fn label(&mut self, github: &State, number: u64, is_set: bool) -> SimulatedEvent {
        let now = github.clock.now();
        let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
        if self.labelled_at.insert(number, second) == Some(second) {
            self.flipped.insert(number, second);
        }
        github.world.change_pull(UPSTREAM, number, |pull| {
            if is_set {
                pull.labels.insert(LABEL.to_owned());
            } else {
                pull.labels.remove(LABEL);
            }
        });
        let payload = github.label_payload(UPSTREAM, number, LABEL, is_set);
        let what = format!("#{number} {}", if is_set { "labeled" } else { "unlabeled" });
        SimulatedEvent { name: "pull_request", payload, targets: vec![], what }
    }

    fn pull_event(
        &self,
        github: &State,
        number: u64,
        action: &str,
        before: Option<String>,
    ) -> SimulatedEvent {
        let mut payload = github.pull_request_payload(UPSTREAM, number, action);
        let head = payload["pull_request"]["head"]["sha"].as_str().unwrap_or_default();
        let what = format!("#{number} {action} at {}", short(head));
        if let Some(before) = before {
            payload["before"] = json!(before);
        }
        let mut targets = self.allowlist.targets(1);
        if action == "ready_for_review" {
            // The others have got it as a draft, which passes no required check.
            let now = github.clock.now();
            targets.retain(|repo| {
                self.allowlist.level(repo) == 4 || self.files.waits_for_review(repo, now)
            });
        }
        SimulatedEvent { name: "pull_request", payload, targets, what }
    }

    fn author(&self, number: u64) -> String {
        if self.inputs.setup_attacker && number == ATTACKER_PULL {
            return ATTACKER.to_owned();
        }
        format!("contributor{number}")
    }

    fn webhook(&mut self, github: &State, seed: u64, event: SimulatedEvent) -> UpstreamWebhook {
        let SimulatedEvent { name, payload, targets, what } = event;
        let head = match name {
            "pull_request" => &payload["pull_request"]["head"]["sha"],
            "push" => &payload["after"],
            "merge_group" => &payload["merge_group"]["head_sha"],
            _ => &Value::Null,
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (head, action) = (text(head), text(&payload["action"]));
        let is_shown = matches!(name, "pull_request" | "merge_group");
        let is_closing = action == "closed";
        let asked_head = payload[name]["head_sha"].as_str().map(str::to_owned);
        let pull = &payload["pull_request"];
        self.webhooks += 1;
        let mut delivery = github.world.delivery(name, &payload);
        delivery.id = format!("{seed:x}-{}", self.webhooks);
        UpstreamWebhook {
            known: KnownWebhook {
                event: name,
                base_branch: text(&pull["base"]["ref"]),
                is_draft: pull["draft"] == true,
                has_code: self.has_code(&head),
                has_check_runs: is_shown && !targets.is_empty() && !is_closing,
                pull: pull["number"].as_u64(),
                author: text(&pull["user"]["login"]),
                is_stranger: pull["author_association"] == "FIRST_TIME_CONTRIBUTOR",
                is_closing,
                at: github.clock.now(),
                targets,
                action,
                head,
            },
            asked_head: asked_head.filter(|_| matches!(name, "check_run" | "check_suite")),
            what: format!("{} {what}", delivery.id),
            delivery,
        }
    }
}

fn rerun_of_check_run(github: &State, random: &mut StdRng) -> Option<SimulatedEvent> {
    let runs = github.world.check_runs(UPSTREAM);
    let done: Vec<_> = runs.iter().filter(|run| run.status == "completed").collect();
    let run = done.get(random.random_range(0..done.len().max(1)))?;
    let payload = github.check_run_payload(UPSTREAM, run.id, "rerequested");
    let what = format!("re-run of {}", run.name);
    Some(SimulatedEvent { name: "check_run", payload, targets: vec![], what })
}

fn rerun_of_suite(github: &State, random: &mut StdRng) -> Option<SimulatedEvent> {
    let runs = github.world.check_runs(UPSTREAM);
    let run = runs.get(random.random_range(0..runs.len().max(1)))?;
    let payload = github.check_suite_payload(UPSTREAM, run.suite, "rerequested");
    let what = format!("re-run of suite {}", run.suite);
    Some(SimulatedEvent { name: "check_suite", payload, targets: vec![], what })
}

/// How long GitHub takes to deliver a webhook: mostly at once, sometimes minutes.
pub(crate) fn delivery_delay(random: &mut StdRng) -> Duration {
    match random.random_range(0..10) {
        0..8 => Duration::from_millis(random.random_range(0..3000)),
        8 => Duration::from_secs(random.random_range(3..60)),
        _ => Duration::from_secs(random.random_range(60..1200)),
    }
}
