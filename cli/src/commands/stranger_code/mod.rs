//! What a workflow lets code reach that its repository doesn't control: upstream's pull requests, forks.
//!
//! A job that runs such code is lost as a whole: the code can change every later step of it, by environment
//! files, by git's configuration, or by processes that it leaves behind. So the job must have nothing to take,
//! and the jobs that have something must read what it left as data. A script that holds text of a stranger is
//! such code, too.
//!
//! What isn't understood is said, so that nobody takes it for safe.

mod arguments;
mod artifacts;
mod as_code;
mod dispatches;
mod environment_files;
mod events;
mod exposure;
mod expression;
mod files;
mod javascript;
mod job;
mod outputs;
mod runner;
mod scope;
mod script;
mod shell;
mod shell_functions;
mod shell_names;
mod shell_text;
mod step;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use serde_yaml::Value;

use self::as_code::StrangerText;
pub use self::exposure::Exposure;
use self::expression::mentions;
use self::files::StrangerFiles;
use self::job::{JudgedJob, jobs_of};
pub use self::runner::is_hosted_label;
use self::runner::{Runner, RunnerUses};
use self::scope::{ContextReach, texts};
use self::script::scripts;
use self::step::{JobStep, action_path, checkout_folder, input, is_checkout_pr, path_in_checkout};
use super::workflow::{grants_id_token, own_path, reports, steps};

/// Actions that exchange the job's OIDC token for the rights of a cloud role, by the end of their path.
const ROLE_ACTIONS: [&str; 7] = [
    "/configure-oidc-fallback",
    "aliyun/configure-aliyun-credentials-action",
    "aws-actions/configure-aws-credentials",
    "hashicorp/vault-action",
    "infisical/secrets-action",
    "google-github-actions/auth",
    "azure/login",
];

/// Parts of the names of actions that only say something about a commit or a pull request.
const SAYS_ONLY: [&str; 3] = ["comment", "label", "status"];

/// More folders of checkouts aren't looked for in the paths of actions.
const MAX_FOLDERS: usize = 200;

#[derive(Debug)]
pub(crate) enum Source {
    Read(Value),
    /// Not YAML, or not there, and why.
    Unreadable(String),
}

/// The workflows of a repository, with its own actions that they use.
#[derive(Debug)]
pub struct WorkflowSet {
    workflows: BTreeMap<String, Source>,
    actions: BTreeMap<String, Source>,
    /// `None` if it isn't known.
    own: Option<String>,
    upstream: String,
    /// Labels and groups, in lower case, of runners that take one job and are gone.
    ephemeral_runners: BTreeSet<String>,
    /// Whether the relay sends its events to the repository.
    is_downstream: OnceLock<bool>,
    /// The types of the dispatches that its own workflows send it with words of strangers.
    sent_types: OnceLock<BTreeSet<Option<String>>>,
    unknown: Vec<String>,
}

#[derive(Debug, Default)]
pub struct WorkflowJudgement {
    /// Each exposure with its job.
    pub found: Vec<(Exposure, String)>,
    /// What isn't understood, so that nothing can be said about it.
    pub unknown: Vec<String>,
}

impl WorkflowSet {
    /// `own` is the name of the repository, `upstream` that of the one whose pull requests it tests.
    pub fn new(own: Option<&str>, upstream: &str) -> Self {
        Self {
            workflows: BTreeMap::new(),
            actions: BTreeMap::new(),
            own: own.map(str::to_lowercase),
            upstream: upstream.to_lowercase(),
            ephemeral_runners: BTreeSet::new(),
            is_downstream: OnceLock::new(),
            sent_types: OnceLock::new(),
            unknown: vec![],
        }
    }

    /// Says that the relay sends its events to the repository, though no workflow may show it yet.
    pub fn expect_dispatches(&mut self) {
        self.is_downstream = OnceLock::from(true);
    }

    /// Takes runners with one of these labels, or of a group of this name, for such as take one job and are gone. A text
    /// may have one a line.
    pub fn add_ephemeral_runners(&mut self, names: &[String]) {
        let lines = names.iter().flat_map(|text| text.lines());
        self.ephemeral_runners.extend(lines.map(|name| name.trim().to_lowercase()));
    }

    pub fn add_workflow(&mut self, path: &str, text: &str) {
        self.workflows.insert(path.to_owned(), Source::parse(text));
    }

    /// Something that can't be read, as the end of the sentence "not checked: …".
    pub fn add_unknown(&mut self, what: String) {
        self.unknown.push(what);
    }

    /// The files of the repository's own actions that haven't been added yet.
    pub fn wanted_actions(&self) -> Vec<String> {
        let workflows = self.workflows.values().chain(self.actions.values());
        let used = workflows.filter_map(Source::read).flat_map(|value| {
            let jobs = value.get("jobs").and_then(Value::as_mapping);
            let of_jobs = jobs.into_iter().flat_map(|jobs| jobs.values()).flat_map(steps);
            of_jobs.chain(value.get("runs").map(steps).into_iter().flatten())
        });
        let used: Vec<_> = used.collect();
        let paths: BTreeSet<_> = used.iter().map(|step| action_path(step)).collect();
        let own = paths.iter().filter(|path| !is_checkout_pr(path));
        let own: Vec<_> = own.filter_map(|path| own_path(path)).collect();
        let folders: BTreeSet<_> = used.iter().filter_map(|step| checkout_folder(step)).collect();
        let in_checkouts = own.iter().flat_map(|path| {
            let folders = folders.iter().take(MAX_FOLDERS);
            folders.filter_map(move |folder| path_in_checkout(path, folder))
        });
        let mut wanted: Vec<_> = own
            .iter()
            .copied()
            .chain(in_checkouts)
            .filter_map(|path| {
                let folder = action_folder(path)?;
                let names = ["action.yml", "action.yaml"].map(|name| format!("{folder}{name}"));
                let is_read =
                    |name: &&String| matches!(self.actions.get(*name), Some(Source::Read(_)));
                if names.iter().any(|name| is_read(&name)) {
                    return None;
                }
                names.into_iter().find(|name| !self.actions.contains_key(name))
            })
            .collect();
        wanted.sort();
        wanted.dedup();
        wanted
    }

    /// `None` for a file that isn't there.
    pub fn add_action(&mut self, path: &str, text: Option<&str>) {
        self.actions.insert(
            path.to_owned(),
            text.map_or_else(|| Source::Unreadable("not there".to_owned()), Source::parse),
        );
    }

    fn source(&self, path: &str) -> Option<&Source> {
        self.workflows.get(path)
    }

    fn action(&self, path: &str) -> Option<&Source> {
        let folder = action_folder(path)?;
        let found =
            ["action.yml", "action.yaml"].map(|name| self.actions.get(&format!("{folder}{name}")));
        found.into_iter().flatten().max_by_key(|source| source.read().is_some())
    }

    pub fn judge(&self) -> WorkflowJudgement {
        let mut judged = WorkflowJudgement { found: vec![], unknown: self.unknown.clone() };
        let (mut any_strangers, mut roles) = (false, vec![]);
        let mut runners = RunnerUses::default();
        for (path, source) in &self.workflows {
            let workflow = match source {
                Source::Read(workflow) => workflow,
                Source::Unreadable(why) => {
                    judged.unknown.push(format!("`{path}` isn't YAML ({why})"));
                    continue;
                }
            };
            let Some(jobs) = jobs_of(self, path, workflow) else {
                judged.unknown.push(format!("`{path}` has too many jobs and steps"));
                continue;
            };
            any_strangers |= self.judge_workflow(&jobs, &mut runners, &mut judged);
            let takes = jobs.iter().filter(|job| job.takes_branch_role());
            roles.extend(takes.map(|job| (Exposure::RoleWithoutEnvironment, job.shown.clone())));
        }
        // Upstream's code runs as the default branch, which every role without an environment trusts.
        if any_strangers {
            judged.found.extend(roles);
        }
        judged.found.extend(runners.shared());
        judged.found.sort();
        judged.found.dedup();
        judged.unknown.sort();
        judged.unknown.dedup();
        judged
    }

    /// Whether a job runs strangers' code.
    fn judge_workflow(
        &self,
        jobs: &[JudgedJob<'_>],
        runners: &mut RunnerUses,
        judged: &mut WorkflowJudgement,
    ) -> bool {
        let relayed = jobs.iter().any(|job| {
            job.events.iter().any(|event| event == "repository_dispatch")
                || job.steps.iter().any(|step| reports(step.value))
        });
        let mut found: Vec<(Exposure, &JudgedJob<'_>)> = vec![];
        let (mut strangers, mut own) = (vec![], vec![]);
        for job in jobs {
            if let Some(exposure) = job.fork_runner(&mut judged.unknown) {
                found.push((exposure, job));
            }
            if job.holds_event_text() {
                found.push((Exposure::EventInScript, job));
            }
            let used = job.uses_of_event_text(&mut judged.unknown);
            found.extend(used.into_iter().map(|exposure| (exposure, job)));
            if !job.is_privileged() {
                continue;
            }
            let mut doubts = vec![];
            let unread = job.steps.iter().filter(|step| !has_read_code(job, step));
            let code = unread.map(|step| self.code_of(step, relayed));
            let runs_stranger = code
                .map(|code| match code {
                    Code::Own => false,
                    Code::Strangers => true,
                    Code::Unknown(why) => {
                        doubts.push(why);
                        false
                    }
                })
                .fold(job.has_strangers_image() || job.applies_diff(), |any, one| any | one);
            if runs_stranger {
                strangers.push(job);
                continue;
            }
            own.push(job);
            doubts.extend(job.unknown.iter().filter(|_| job.has_something()).cloned());
            if doubts.is_empty() && job.has_something() {
                doubts.extend(job.steps.iter().filter_map(gives_text_away));
            }
            judged.unknown.extend(doubts.into_iter().map(|why| format!("{} {why}", job.shown)));
        }
        runners.add(jobs, &strangers);
        for job in &strangers {
            found.extend(job.as_stranger().into_iter().map(|exposure| (exposure, *job)));
        }
        for job in &own {
            judged.unknown.extend(job.maybe_beside(&strangers));
            let exposed = job.beside_strangers(&strangers, &own);
            found.extend(exposed.into_iter().map(|exposure| (exposure, *job)));
        }
        judged.found.extend(found.into_iter().map(|(exposure, job)| (exposure, job.shown.clone())));
        !strangers.is_empty()
    }

    /// Whose code a step brings into its job.
    fn code_of(&self, step: &JobStep<'_>, relayed: bool) -> Code {
        if !step.events.iter().any(|event| events::is_privileged(event)) {
            return Code::Own;
        }
        let path = action_path(step.value);
        let given = |name: &str| input(step.value, name).map(|text| step.scope.reach(&text));
        let (repository, revision) = (given("repository"), given("ref").or_else(|| given("sha")));
        if is_checkout_pr(&path) {
            let is_own = repository.is_some_and(|reach| self.is_own(&reach))
                && revision.is_some_and(|reach| reach.paths.iter().eq(["github.sha"]));
            return if is_own { Code::Own } else { Code::Strangers };
        }
        let from_others = |script: &String| {
            let is_own = |text: &str| self.own.as_ref().is_some_and(|own| text.contains(own));
            script.contains("crcr checkout")
                || script::fetches_code(script, step, &step.events, relayed, is_own, &self.upstream)
        };
        if scripts(step.value).iter().any(from_others) {
            return Code::Strangers;
        }
        let named = ContextReach::of_all(repository.iter().chain(&revision));
        if path != "actions/checkout" {
            let others = ["branch", "commit", "context"].into_iter().filter_map(given);
            let numbers =
                ["number", "pr", "pr-number", "pr_number", "pull-request", "pull_request_number"];
            let numbers =
                numbers.into_iter().filter(|_| path.contains("checkout")).filter_map(given);
            let others = others.chain(numbers);
            let named = ContextReach::of_all(&others.chain([named]).collect::<Vec<_>>());
            let is_said =
                !path.contains("checkout") && SAYS_ONLY.iter().any(|part| path.contains(part));
            let takes_code =
                events::is_code(&named, &step.events) && !is_known_action(&path) && !is_said;
            return match takes_code {
                true => {
                    Code::Unknown(format!("gives `{path}` a commit or repository of a stranger"))
                }
                false => Code::Own,
            };
        }
        if events::is_code(&named, &step.events) {
            return Code::Strangers;
        }
        if events::is_empty_here(&named, &step.events) {
            return Code::Own;
        }
        let of_pull = |text: &String| text.contains("refs/pull/") || text.starts_with("pull/");
        if revision.as_ref().is_some_and(|reach| reach.texts.iter().any(of_pull)) {
            return Code::Strangers;
        }
        if let Some(repository) = repository.filter(|reach| !self.is_own(reach)) {
            let is_upstream = |text: &String| text.trim().eq_ignore_ascii_case(&self.upstream);
            let is_read = self.shares_owner_with_upstream() && is_branch(revision.as_ref());
            if relayed || (!is_read && repository.texts.iter().any(is_upstream)) {
                return Code::Strangers;
            }
        }
        let computed = |path: &&String| {
            let parts: Vec<_> = path.split('.').collect();
            parts[0] == "env" || matches!(parts[..], ["steps" | "needs", _, "outputs", ..])
        };
        match named.paths.iter().find(computed) {
            Some(path) if events::name_strangers(&step.events) => {
                Code::Unknown(format!("checks out `{path}`, which is computed while it runs"))
            }
            _ => Code::Own,
        }
    }

    /// Whether those who merge upstream's pull requests are of this repository's owner.
    fn shares_owner_with_upstream(&self) -> bool {
        let owner = self.upstream.split('/').next();
        self.own.as_ref().is_some_and(|own| own.split('/').next() == owner)
    }

    /// Whether a step checks out this repository.
    fn checks_out_itself(&self, step: &JobStep<'_>) -> bool {
        input(step.value, "repository").is_none_or(|name| {
            let reach = step.scope.reach(&name);
            self.own.as_ref().is_some_and(|own| *own == name.trim().to_lowercase())
                || reach.paths.iter().eq(["github.repository"])
        })
    }

    /// This repository, or another one of its owner that isn't upstream.
    fn is_own(&self, repository: &ContextReach) -> bool {
        let paths = &repository.paths;
        let owner = |name: &str| name.split('/').next().map(str::to_owned);
        let is_own = |text: &String| {
            let text = text.trim().to_lowercase();
            self.own.as_ref().is_some_and(|own| {
                own == &text || (text != self.upstream && owner(own) == owner(&text))
            })
        };
        (!paths.is_empty() && paths.iter().all(|path| path.starts_with("github.repository")))
            || (paths.is_empty() && repository.texts.iter().any(is_own))
    }
}

/// Whether a checkout's revision is a branch or a tag, whatever an expression in it stands for. One that begins with a
/// fixed word can't be a hash or a pull request.
fn is_branch(revision: Option<&ContextReach>) -> bool {
    revision.is_none_or(|reach| {
        reach.texts.iter().map(|text| text.trim()).all(|text| {
            // The fixed words that an expression stands for are among the texts, unless it leads elsewhere.
            let is_resolved = text.starts_with("${{") && reach.paths.is_empty();
            let is_ref = ["refs/heads/", "refs/tags/"].iter().any(|kind| text.starts_with(kind));
            let is_other = ["${{", "pull/", "refs/"].iter().any(|start| text.starts_with(start));
            is_resolved || is_ref || !is_other
        })
    })
}

/// Whose code a step brings.
enum Code {
    Own,
    Strangers,
    /// Why it can't be said.
    Unknown(String),
}

impl Source {
    fn parse(text: &str) -> Self {
        // Some editors of Windows begin a file by a byte order mark, which the parser takes for text.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        match serde_yaml::from_str::<Value>(text) {
            Ok(value) if value.is_mapping() => Self::Read(value),
            Ok(_) => Self::Unreadable("not a mapping".to_owned()),
            Err(error) => Self::Unreadable(error.to_string()),
        }
    }

    fn read(&self) -> Option<&Value> {
        match self {
            Self::Read(value) => Some(value),
            Self::Unreadable(_) => None,
        }
    }
}

/// The folder of an action, with a slash at its end. `None` for one outside of the repository.
fn action_folder(path: &str) -> Option<String> {
    let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.contains(&"..") {
        return None;
    }
    Some(parts.iter().map(|part| format!("{part}/")).collect())
}

/// Actions that check out nothing, whatever they are given.
fn is_known_action(path: &str) -> bool {
    path.starts_with("actions/") || reports_path(path) || path.is_empty()
}

/// Why a step isn't understood that gives text of a stranger to an action of others, whose code isn't read.
fn gives_text_away(step: &JobStep<'_>) -> Option<String> {
    let path = action_path(step.value);
    let is_read = is_known_action(&path)
        || path.contains("/crcr/actions/")
        || path.starts_with("docker://")
        || own_path(&path).is_some();
    let given = step.value.get("with").filter(|_| !is_read)?;
    events::is_text(&step.scope.reach_all(given), &step.events)
        .then(|| format!("gives `{path}` text of a stranger, and its code isn't read"))
}

/// Whether a step runs for merged pull requests only, and names no branch: a fork's may get other commits after the merge.
fn has_read_code(job: &JudgedJob<'_>, step: &JobStep<'_>) -> bool {
    let branches = ["github.event.pull_request.head.ref", "github.head_ref"];
    (job.is_for_merged || runs_for_merged_only(step.value))
        && !step.scope.reach_all(step.value).overlaps(&branches)
}

/// Whether the condition of a step keeps out pull requests that nobody has read.
fn runs_for_merged_only(step: &Value) -> bool {
    let condition = step.get("if").map(|condition| texts(condition).join(""));
    condition.is_some_and(|condition| events::requires_merge(&condition))
}

fn reports_path(path: &str) -> bool {
    ["/report-ci-result", "/collect-test-stats", "/validate-allowlist", "/pack-test-reports"]
        .iter()
        .any(|end| path.ends_with(end))
}

impl JudgedJob<'_> {
    fn is_privileged(&self) -> bool {
        self.events.iter().any(|event| events::is_privileged(event))
    }

    /// Whether the job has more than a token that reads.
    fn has_something(&self) -> bool {
        self.has_token()
            || (events::name_strangers(&self.events) && self.value.get("with").is_some())
    }

    fn has_token(&self) -> bool {
        self.permissions
            .is_none_or(|permissions| grants_id_token(permissions) || may_write(permissions))
            || self.holds_secret()
    }

    fn holds_secret(&self) -> bool {
        let is_secret = |path: &str| {
            path != "secrets.github_token" && path.split('.').next() == Some("secrets")
        };
        let inherits = self.value.get("secrets").and_then(Value::as_str) == Some("inherit");
        let written = [Some(self.value), self.workflow.get("env")].into_iter().flatten();
        let written = written.flat_map(texts).collect::<Vec<_>>();
        inherits
            || written.iter().flat_map(|text| mentions(text)).any(|found| is_secret(&found.path))
            || self
                .scope
                .inputs
                .values()
                .any(|reach| reach.paths.iter().any(|path| is_secret(path)))
    }

    fn default_shell(&self) -> Option<&str> {
        [self.value, self.workflow]
            .into_iter()
            .find_map(|level| level.get("defaults")?.get("run")?.get("shell")?.as_str())
    }

    /// Whether a script, or the command line of a shell, holds an expression with text of a stranger.
    fn holds_event_text(&self) -> bool {
        let shell = self.default_shell().map(|shell| self.scope.reach(shell)).unwrap_or_default();
        events::is_text(&shell, &self.events)
            || self.steps.iter().any(|step| {
                scripts(step.value)
                    .iter()
                    .any(|script| events::is_text(&step.scope.reach(script), &step.events))
            })
    }

    /// Whether a step runs text of a stranger that no script holds, or writes it where each line may set a variable.
    fn uses_of_event_text(&self, unknown: &mut Vec<String>) -> Vec<Exposure> {
        let shell = self.default_shell();
        let (mut found, mut files) = (vec![], StrangerFiles::default());
        let mut variables = BTreeSet::new();
        for step in &self.steps {
            let mut text = StrangerText::new(step, files, &variables);
            let used = as_code::uses_of_text(step, shell, &mut text);
            let writes_lines = used.sets_variables
                || scripts(step.value)
                    .iter()
                    .any(|script| script::writes_lines_of_strangers(script, step))
                || step::takes_commands_for_variables(step);
            found.extend(used.runs.then_some(Exposure::EventAsCode));
            if used.is_unclear {
                let what = "gives an interpreter code that names text of the event and may run it";
                unknown.push(format!("{} {what}", self.shown));
            }
            found.extend(writes_lines.then_some(Exposure::EventToEnvironment));
            files = text.files.for_later_steps();
            variables.append(&mut text.exported);
        }
        found
    }

    /// What the images that the job's steps run in and beside lead to, and what docker is told about them.
    fn image(&self) -> ContextReach {
        let services = self.value.get("services").and_then(Value::as_mapping);
        let services = services.into_iter().flat_map(|services| services.values());
        let mut found = ContextReach::default();
        for container in self.value.get("container").into_iter().chain(services) {
            let parts = ["image", "options", "volumes"].map(|key| container.get(key));
            let whole = container.is_string().then_some(container);
            for part in parts.into_iter().chain([whole]).flatten() {
                found.merge(&self.scope.reach_all(part));
            }
        }
        found
    }

    /// Whether a stranger chooses them.
    fn has_strangers_image(&self) -> bool {
        let image = self.image();
        events::is_code(&image, &self.events) || events::is_text(&image, &self.events)
    }

    /// Whether a step applies what an earlier one wrote of a stranger's changes.
    fn applies_diff(&self) -> bool {
        let mut files = vec![];
        for step in &self.steps {
            for script in scripts(step.value) {
                if script::applies_patch(&script) && files.iter().any(|file| script.contains(file))
                {
                    return true;
                }
                if script::gets_diff(&script, step, &step.events) {
                    files.extend(script::written_files(&script));
                }
            }
        }
        false
    }

    /// Jobs with strangers' code of which nobody can say whether they run on this job's own runners.
    fn maybe_beside(&self, strangers: &[&JudgedJob<'_>]) -> Vec<String> {
        if !self.has_token() {
            return vec![];
        }
        let runners = Runner::all_of(self);
        let others = strangers.iter().filter(|other| {
            let theirs = Runner::all_of(other);
            theirs.iter().any(|theirs| runners.iter().any(|own| own.may_be_shared_with(theirs)))
        });
        others
            .map(|other| format!("{} may run on the runners of {}", other.shown, self.shown))
            .collect()
    }

    /// A fork's pull request that runs on a machine that other jobs use, too.
    fn fork_runner(&self, unknown: &mut Vec<String>) -> Option<Exposure> {
        let of_forks = self.events.iter().filter(|event| events::FORKS.contains(&&***event));
        let of_forks: Vec<_> = of_forks.cloned().collect();
        if of_forks.is_empty() {
            return None;
        }
        let mut found = None;
        for runner in Runner::all_for(self, &of_forks) {
            match runner {
                Runner::Own(_) => found = Some(Exposure::ForkRunner),
                Runner::Unknown(text) => unknown.push(format!("{} runs on `{text}`", self.shown)),
                Runner::Hosted | Runner::ByFork => {}
            }
        }
        found
    }

    /// Whether it gets a cloud role that has to trust a branch.
    fn takes_branch_role(&self) -> bool {
        let is_role = |step: &JobStep<'_>| {
            ROLE_ACTIONS.iter().any(|end| action_path(step.value).ends_with(end))
        };
        let of_branch = |event: &String| !events::FORKS.contains(&&**event);
        self.steps.iter().any(is_role)
            && self.permissions.is_some_and(grants_id_token)
            && self.value.get("environment").is_none()
            && self.events.iter().any(of_branch)
    }

    fn as_stranger(&self) -> Vec<Exposure> {
        let mut found = vec![];
        if self.permissions.is_some_and(grants_id_token) {
            found.push(Exposure::Token);
        }
        if self.permissions.is_none_or(may_write) {
            found.push(Exposure::WritePermission);
        }
        if self.holds_secret() {
            found.push(Exposure::Secret);
        }
        let keeps_token = |step: &JobStep<'_>| {
            let by_checkout = action_path(step.value) == "actions/checkout"
                && input(step.value, "persist-credentials").is_none_or(|value| value != "false");
            by_checkout
                || scripts(step.value).iter().any(|script| script::keeps_token(script, step))
        };
        if self.steps.iter().any(keeps_token) {
            found.push(Exposure::GitCredentials);
        }
        let saves_by_default = || self.events.iter().any(|event| events::may_save_caches(event));
        if self.cache_mode.map_or_else(saves_by_default, job::may_save) {
            found.push(Exposure::Cache);
        }
        found
    }

    /// What is exposed in a job that runs no stranger's code itself, in a workflow where others may.
    fn beside_strangers(
        &self,
        strangers: &[&JudgedJob<'_>],
        own: &[&JudgedJob<'_>],
    ) -> Vec<Exposure> {
        let mut found = vec![];
        let needed: Vec<_> = strangers.iter().filter_map(|job| self.need_of(job)).collect();
        // What a job read in a stranger's artifact may be in its outputs.
        let readers = own.iter().filter(|job| artifacts::is_read(job, strangers, own));
        let readers = readers.filter_map(|job| self.need_of(job));
        let outputs = needed.iter().cloned().chain(readers);
        let outputs: Vec<_> = outputs.map(|need| format!("needs.{need}.outputs")).collect();
        let outputs: Vec<_> = outputs.iter().map(String::as_str).collect();
        let holds_output = |step: &JobStep<'_>| {
            scripts(step.value).iter().any(|script| step.scope.reach(script).overlaps(&outputs))
        };
        if self.steps.iter().any(holds_output) {
            found.push(Exposure::OutputInScript);
        }
        if self.image().overlaps(&outputs) {
            found.extend(self.as_stranger());
        }
        if self.steps.iter().any(|step| self.chooses_conclusion(step, &needed)) {
            found.push(Exposure::ReportedConclusion);
        }
        if !self.has_token() {
            return found;
        }
        let runners = Runner::all_of(self);
        let shares = |stranger: &&JudgedJob<'_>| {
            let theirs = Runner::all_of(stranger);
            theirs.iter().any(|theirs| runners.iter().any(|own| own.is_shared_with(theirs)))
        };
        if strangers.iter().any(shares) {
            found.push(Exposure::SharedRunner);
        }
        found.extend(artifacts::handled(self, strangers, own, &outputs));
        found
    }

    /// The name by which this job needs the other one directly, in lower case.
    fn need_of(&self, other: &JudgedJob<'_>) -> Option<String> {
        let within = |need: &&String| {
            let rest = other.name.strip_prefix(need.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let need = self.needs.iter().find(within)?;
        Some(need.rsplit('/').next().unwrap_or(need).to_lowercase())
    }

    /// Whether a step reports something else of the jobs with upstream's code than GitHub's own result.
    fn chooses_conclusion(&self, step: &JobStep<'_>, needed: &[String]) -> bool {
        if needed.is_empty() || !reports(step.value) {
            return false;
        }
        let Some(conclusion) = input(step.value, "conclusion") else {
            let scripts = scripts(step.value).join(" ");
            let env = ContextReach::of_all(step.scope.env.values().map(std::rc::Rc::as_ref));
            let mut reach = step.scope.reach(&scripts);
            reach.merge(&env);
            return scripts.contains("--conclusion")
                && reach.paths.iter().any(|path| path.contains(".outputs"));
        };
        let reach = step.scope.reach(&conclusion);
        let chosen = |path: &String| {
            let parts: Vec<_> = path.split('.').collect();
            !matches!(parts[..], ["needs", _, "result"])
        };
        if reach.paths.iter().any(chosen) {
            return true;
        }
        let result = |text: &str| {
            mentions(text)
                .iter()
                .any(|found| needed.iter().any(|need| found.path == format!("needs.{need}.result")))
        };
        // The condition of a step or of the job may decide which fixed word is reported.
        let conditions = [step.value.get("if"), self.value.get("if")].into_iter().flatten();
        let conditions = conditions.flat_map(texts).collect::<Vec<_>>().join(" ");
        let conditions = format!("${{{{ {} }}}}", conditions.replace("${{", "").replace("}}", ""));
        let is_success = conclusion.trim().eq_ignore_ascii_case("success")
            || expression::expressions(&conclusion).iter().any(|_| !result(&conclusion));
        let by_env = reach.texts.iter().any(|text| result(text));
        is_success && !by_env && !result(&conditions)
    }
}

/// Whether the token of a job with these permissions may change something. OIDC tokens are another matter.
fn may_write(permissions: &Value) -> bool {
    match permissions {
        Value::String(all) => all == "write-all",
        Value::Mapping(each) => each.iter().any(|(name, level)| {
            name.as_str() != Some("id-token") && level.as_str() == Some("write")
        }),
        _ => false,
    }
}

#[cfg(test)]
mod checkout_tests;
#[cfg(test)]
mod file_tests;
#[cfg(test)]
mod role_tests;
#[cfg(test)]
mod shell_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod text_tests;
