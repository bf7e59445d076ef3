//! `--online`: asks GitHub about the names in a file.
//!
//! An outage, a refused token or an exhausted rate limit ends the command with exit code 2, so that
//! nothing is reported as missing only because GitHub didn't answer. If the token can't see something,
//! the rule is reported as not checked.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crcr_domain::allowlist::ParseOutcome;
use crcr_domain::allowlist::diff::RepositoryRename;
use crcr_domain::allowlist::level::{CheckRunPolicy, Device, Level};
use crcr_domain::diagnostic::{Diagnostic, Rule, SourceSpan};
use crcr_domain::repo::Oncall;
use crcr_domain::{Allowlist, AllowlistEntry, RepoName};
use crcr_github::lookup::cache::LookupCache;
use crcr_github::lookup::{GithubLookup, RepositoryInfo, TeamStatus};
use crcr_github::{GithubApp, GithubError};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::cli::allowlist::OnlineArgs;
use crate::commands::github;
use crate::commands::stranger_code::{Exposure, WorkflowJudgement, WorkflowSet};
use crate::commands::workflow::WorkflowUse;
use crate::env_vars::Env;
use crate::failure::Failure;
use crate::printer::Printer;

const CONCURRENT_LOOKUPS: usize = 8;
const MAX_WORKFLOWS_PER_REPOSITORY: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnlineScope<'a> {
    Everything {
        /// Labels and groups of runners that take one job and are gone.
        ephemeral_runners: &'a [String],
    },
    /// Only the names of repositories.
    Names,
}

#[derive(Debug, Default)]
pub struct OnlineFindings {
    pub findings: Vec<Diagnostic>,
    /// One sentence for each rule that could not be checked.
    pub not_checked: Vec<String>,
}

enum CheckResult {
    Finding(Diagnostic),
    NotChecked(Rule, String),
}

enum LookupTarget<'a> {
    Entry(usize, &'a AllowlistEntry),
    Oncall(&'a Oncall, Vec<SourceSpan>),
    Device(&'a Device, SourceSpan),
}

struct OnlineCheck<'a> {
    lookup: GithubLookup,
    app: Option<GithubApp>,
    file: &'a ParseOutcome,
    upstream: &'a RepoName,
    scope: OnlineScope<'a>,
}

/// Looks everything up. Responses are cached in the user's cache folder even if the command fails.
pub async fn check(
    args: &OnlineArgs,
    file: &ParseOutcome,
    upstream: &RepoName,
    scope: OnlineScope<'_>,
    env: &Env,
    printer: &Printer,
) -> Result<OnlineFindings, Failure> {
    let cache_path = github::cache_file(env);
    let cache = cache_path.as_deref().map(LookupCache::read).unwrap_or_default();
    let check = OnlineCheck {
        lookup: github::lookup(args.github_token.as_ref(), cache, env, printer)?,
        app: if scope == OnlineScope::Names { None } else { github::app(env)? },
        file,
        upstream,
        scope,
    };
    let found = check.run_all().await;
    let no_app = check.app.is_none() && scope != OnlineScope::Names;
    if let Some(path) = &cache_path
        && let Err(error) = check.lookup.into_cache().write(path)
    {
        tracing::debug!(%error, path = %path.display(), "the cache can't be written");
    }
    let mut findings = OnlineFindings::default();
    let mut unseen = BTreeSet::new();
    for found in found.map_err(|error| github::lookup_failure(error, "the file"))? {
        match found {
            CheckResult::Finding(finding) => findings.findings.push(finding),
            CheckResult::NotChecked(rule, why) => drop(unseen.insert((rule.code(), why))),
        }
    }
    if no_app {
        let why = "it needs the App's credentials, `GITHUB_APP_ID` and `GITHUB_APP_PRIVATE_KEY`";
        for rule in [Rule::AppNotInstalled, Rule::AppPermissionMissing] {
            unseen.insert((rule.code(), why.to_owned()));
        }
    }
    let sentences = unseen.into_iter().map(|(rule, why)| format!("`{rule}` wasn't checked: {why}"));
    findings.not_checked = sentences.collect();
    Ok(findings)
}

/// The removed entries that GitHub knows under the name of an added one, and a sentence for each that it doesn't
/// let the token see.
pub async fn find_renames(
    args: &OnlineArgs,
    base: &Allowlist,
    head: &Allowlist,
    env: &Env,
    printer: &Printer,
) -> Result<(Vec<RepositoryRename>, Vec<String>), Failure> {
    let names = base.iter().map(|old| old.repo.clone());
    let removed: Vec<RepoName> = names.filter(|name| head.get(name).is_none()).collect();
    let is_added = |name: &RepoName| head.get(name).is_some() && base.get(name).is_none();
    if removed.is_empty() || !head.iter().any(|new| is_added(&new.repo)) {
        return Ok((vec![], vec![]));
    }
    let lookup = github::lookup(args.github_token.as_ref(), LookupCache::default(), env, printer)?;
    let lookup = &lookup;
    let ask = |name: RepoName| async move {
        let answer = lookup.repository(name.as_str()).await;
        (name, answer)
    };
    let mut answers = stream::iter(removed).map(ask).buffered(CONCURRENT_LOOKUPS);
    let (mut renames, mut unseen) = (vec![], vec![]);
    while let Some((from, answer)) = answers.next().await {
        match answer {
            Ok(Some(RepositoryInfo { full_name, id, .. })) => {
                if let Some(to) = RepoName::new(&full_name).ok().filter(is_added) {
                    renames.push(RepositoryRename { from, to, id });
                }
            }
            Ok(None) => {}
            Err(GithubError::Forbidden(why)) => {
                unseen.push(format!("whether `{from}` was renamed wasn't checked: {why}"));
            }
            Err(error) => return Err(github::lookup_failure(error, "removed repositories")),
        }
    }
    Ok((renames, unseen))
}

impl OnlineCheck<'_> {
    async fn run_all(&self) -> Result<Vec<CheckResult>, GithubError> {
        let found: Vec<Vec<CheckResult>> = stream::iter(self.targets())
            .map(|target| Box::pin(self.check(target)))
            .buffer_unordered(CONCURRENT_LOOKUPS)
            .try_collect()
            .await?;
        Ok(self.without_colliding_fixes(found.into_iter().flatten().collect()))
    }

    /// Every repository, and each distinct oncall and device.
    fn targets(&self) -> Vec<LookupTarget<'_>> {
        let mut targets: Vec<_> =
            self.file.policy.iter().enumerate().map(|(at, e)| LookupTarget::Entry(at, e)).collect();
        if self.scope == OnlineScope::Names {
            return targets;
        }
        let mut oncalls: BTreeMap<String, (&Oncall, Vec<SourceSpan>)> = BTreeMap::new();
        let mut devices = HashSet::new();
        for (entry, places) in self.file.policy.iter().zip(&self.file.places) {
            for (oncall, place) in entry.oncalls.iter().zip(&places.oncalls) {
                let key = oncall.as_str().to_ascii_lowercase();
                oncalls.entry(key).or_insert((oncall, vec![])).1.push(place.clone());
            }
            if let Some((device, place)) = entry.device.as_ref().zip(places.device.as_ref())
                && devices.insert(device)
            {
                targets.push(LookupTarget::Device(device, place.clone()));
            }
        }
        targets
            .extend(oncalls.into_values().map(|(name, places)| LookupTarget::Oncall(name, places)));
        targets
    }

    async fn check(&self, target: LookupTarget<'_>) -> Result<Vec<CheckResult>, GithubError> {
        match target {
            LookupTarget::Entry(at, entry) => self.check_entry(at, entry).await,
            LookupTarget::Oncall(oncall, places) => self.check_oncall(oncall, &places).await,
            LookupTarget::Device(device, place) => self.check_device(device, place).await,
        }
    }

    async fn check_entry(
        &self,
        at: usize,
        entry: &AllowlistEntry,
    ) -> Result<Vec<CheckResult>, GithubError> {
        let (listed, place) = (&entry.repo, self.file.places[at].repo.clone());
        let repository = match self.lookup.repository(listed.as_str()).await {
            Ok(Some(repository)) => repository,
            Ok(None) => {
                let message =
                    format!("GitHub has no repository `{listed}`, or the token can't see it");
                return Ok(vec![CheckResult::Finding(
                    Diagnostic::new(Rule::RepositoryNotFound, place, message)
                        .label("not found")
                        .help(
                            "check the spelling; a private repository needs a token that sees it",
                        ),
                )]);
            }
            Err(GithubError::Forbidden(why)) => {
                let names =
                    [Rule::RepositoryNotFound, Rule::RepositoryRenamed, Rule::RepositoryCase];
                let more = [Rule::RepositoryArchived, Rule::WorkflowMissing, Rule::TokenExposed];
                let more = more.into_iter().filter(|_| self.scope != OnlineScope::Names);
                let not_checked = |rule| {
                    CheckResult::NotChecked(rule, format!("`{listed}` isn't accessible: {why}"))
                };
                return Ok(names.into_iter().chain(more).map(not_checked).collect());
            }
            Err(error) => return Err(error),
        };
        let mut found: Vec<_> = self
            .check_name(listed, &repository, &place)
            .map(CheckResult::Finding)
            .into_iter()
            .collect();
        if self.scope == OnlineScope::Names {
            return Ok(found);
        }
        if repository.archived {
            let message = format!("`{listed}` is archived: no workflow runs there");
            let finding = Diagnostic::new(Rule::RepositoryArchived, place.clone(), message);
            found.push(CheckResult::Finding(
                finding.label("archived").help("remove it from the list"),
            ));
        } else {
            found.extend(self.check_workflows(entry, &repository, &place).await?);
        }
        found.extend(self.check_installation(entry, &repository, &place).await?);
        Ok(found)
    }

    /// Finds a name in a different case, or of a repository that was renamed or transferred.
    fn check_name(
        &self,
        listed: &RepoName,
        real: &RepositoryInfo,
        place: &SourceSpan,
    ) -> Option<Diagnostic> {
        let name = &real.full_name;
        if name == listed.as_str() {
            return None;
        }
        let (rule, message, label) = if name.eq_ignore_ascii_case(listed.as_str()) {
            let message = format!("GitHub spells `{listed}` as `{name}`");
            (Rule::RepositoryCase, message, "different case")
        } else {
            let message = format!("`{listed}` was renamed to `{name}`");
            (Rule::RepositoryRenamed, message, "old name")
        };
        let found = Diagnostic::new(rule, place.clone(), message).label(label);
        // A fix replaces the name and keeps its quotes. A name that is written with escapes can't be fixed.
        let text = &self.file.source.text()[place.bytes.clone()];
        match text.find(listed.as_str()) {
            Some(at) => {
                let start = place.bytes.start + at;
                let span = self.file.source.span(start..start + listed.as_str().len());
                Some(found.fix(span, name.clone(), format!("write `{name}`")))
            }
            None => Some(found.help(format!("write `{name}`"))),
        }
    }

    /// Drops the fix from renames that would list a repository twice.
    fn without_colliding_fixes(&self, mut found: Vec<CheckResult>) -> Vec<CheckResult> {
        let mut names: HashMap<String, usize> = HashMap::new();
        for entry in &self.file.policy {
            *names.entry(entry.repo.key()).or_default() += 1;
        }
        let target = |finding: &Diagnostic| {
            let renamed = finding.rule == Rule::RepositoryRenamed;
            finding.fix.as_ref().filter(|_| renamed).map(|fix| fix.edits[0].text.to_lowercase())
        };
        let new_name = |result: &CheckResult| match result {
            CheckResult::Finding(finding) => target(finding),
            CheckResult::NotChecked(..) => None,
        };
        for name in found.iter().filter_map(new_name) {
            *names.entry(name).or_default() += 1;
        }
        for found in &mut found {
            let CheckResult::Finding(finding) = found else { continue };
            if target(finding).is_some_and(|name| names[&name] > 1) {
                finding.fix = None;
                finding.help = Some("its new name is listed, too; keep one of them".to_owned());
            }
        }
        found
    }

    /// Checks that workflows on the default branch receive dispatches and report.
    async fn check_workflows(
        &self,
        entry: &AllowlistEntry,
        repository: &RepositoryInfo,
        place: &SourceSpan,
    ) -> Result<Vec<CheckResult>, GithubError> {
        let repo = &entry.repo;
        let mut seen = WorkflowUse::default();
        let paths = match self.lookup.workflows(&repository.full_name).await {
            Err(GithubError::Forbidden(why)) => {
                let why = format!("the workflows of `{repo}` can't be read: {why}");
                let rules = [Rule::WorkflowMissing, Rule::TokenExposed];
                return Ok(rules.map(|rule| CheckResult::NotChecked(rule, why.clone())).into());
            }
            other => other?,
        };
        let mut set = WorkflowSet::new(Some(&repository.full_name), self.upstream.as_str());
        set.expect_dispatches();
        if let OnlineScope::Everything { ephemeral_runners } = self.scope {
            set.add_ephemeral_runners(ephemeral_runners);
        }
        for path in paths.iter().take(MAX_WORKFLOWS_PER_REPOSITORY) {
            let text = self.lookup.file(&repository.full_name, path).await?.unwrap_or_default();
            seen = seen.union(WorkflowUse::read(&text));
            set.add_workflow(path, &text);
        }
        github::add_actions(&mut set, &self.lookup, &repository.full_name).await?;
        let mut judged = set.judge();
        if paths.len() > MAX_WORKFLOWS_PER_REPOSITORY {
            let only = format!("it has {} workflows, and only 100 are read", paths.len());
            judged.unknown.push(only);
        }
        let mut found = exposed_tokens(repo, &judged, place);
        let receives = entry.is_dispatched_to();
        let reports = entry.level >= Level::L2;
        if seen.receives >= receives && seen.reports >= reports {
            return Ok(found);
        }
        let not_checked = |why: String| CheckResult::NotChecked(Rule::WorkflowMissing, why);
        if paths.len() > MAX_WORKFLOWS_PER_REPOSITORY {
            let count = paths.len();
            let why = format!("`{repo}` has {count} workflows, and only 100 are read");
            found.push(not_checked(why));
            return Ok(found);
        }
        let wrong = |message: String, help: &str| {
            let found = Diagnostic::new(Rule::WorkflowMissing, place.clone(), message);
            CheckResult::Finding(found.label("no such workflow").help(help))
        };
        let default_branch = format!("no workflow on the default branch of `{repo}`");
        if receives && !seen.receives {
            let what = format!("{default_branch} starts on `repository_dispatch`");
            found.push(wrong(what, "workflows-templates/downstream-ci.yml has one"));
        }
        if reports && !seen.reports {
            found.push(if seen.calls_others {
                not_checked(format!(
                    "the workflows of `{repo}` call other workflows or actions, which may report"
                ))
            } else {
                let what = format!("{default_branch} reports, at {}", entry.level);
                wrong(what, "add a step with the action `report-ci-result`")
            });
        }
        Ok(found)
    }

    /// Checks that the App is installed and has the permissions that the level needs.
    async fn check_installation(
        &self,
        entry: &AllowlistEntry,
        repository: &RepositoryInfo,
        place: &SourceSpan,
    ) -> Result<Vec<CheckResult>, GithubError> {
        let Some(app) = &self.app else { return Ok(vec![]) };
        let repo = &entry.repo;
        let missing = |message: String| {
            let found = Diagnostic::new(Rule::AppNotInstalled, place.clone(), message);
            vec![CheckResult::Finding(
                found.label("not installed").help("ask its owner to install the App"),
            )]
        };
        let installation = match app.installation(&repository.full_name).await {
            Err(GithubError::NotInstalled(_)) => {
                return Ok(missing(format!("the App isn't installed on `{repo}`")));
            }
            other => other?,
        };
        if installation.suspended_at.is_some() {
            return Ok(missing(format!("the App's installation on `{repo}` is suspended")));
        }
        let wanted = [
            // `contents` to dispatch; `actions` to re-run jobs from a check run.
            ("contents", entry.is_dispatched_to()),
            ("actions", entry.check_run() != CheckRunPolicy::Never),
        ];
        let is_missing = |permission: &str| {
            let granted = installation.permissions.get(permission).map(String::as_str);
            !matches!(granted, Some("write" | "admin"))
        };
        let found = wanted.into_iter().filter(|(name, needed)| *needed && is_missing(name));
        Ok(found
            .map(|(permission, _)| {
                let message = format!("the App lacks `{permission}: write` on `{repo}`");
                let found = Diagnostic::new(Rule::AppPermissionMissing, place.clone(), message);
                let help = "ask its owner to accept the App's new permissions";
                CheckResult::Finding(found.label("a permission is missing").help(help))
            })
            .collect())
    }

    async fn check_oncall(
        &self,
        oncall: &Oncall,
        places: &[SourceSpan],
    ) -> Result<Vec<CheckResult>, GithubError> {
        let (exists, what) = match oncall.as_str().split_once('/') {
            None => (self.lookup.user_exists(oncall.as_str()).await?, "login"),
            Some((org, slug)) => match self.lookup.team(org, slug).await? {
                TeamStatus::Exists => (true, "team"),
                TeamStatus::Missing => (false, "team"),
                // An organisation that doesn't exist has no hidden teams either.
                TeamStatus::Hidden if !self.lookup.user_exists(org).await? => (false, "team"),
                TeamStatus::Hidden => {
                    let why = format!(
                        "the teams of `{org}` are only visible to a member's token with `read:org`"
                    );
                    return Ok(vec![CheckResult::NotChecked(Rule::OncallNotFound, why)]);
                }
            },
        };
        if exists {
            return Ok(vec![]);
        }
        let wrong = |place: &SourceSpan| {
            let message = format!("GitHub has no {what} `{oncall}`");
            let found = Diagnostic::new(Rule::OncallNotFound, place.clone(), message);
            CheckResult::Finding(
                found.label("doesn't exist").help("name a login or `org/team` that exists"),
            )
        };
        Ok(places.iter().map(wrong).collect())
    }

    async fn check_device(
        &self,
        device: &Device,
        place: SourceSpan,
    ) -> Result<Vec<CheckResult>, GithubError> {
        let (label, upstream) = (device.label(), self.upstream);
        match self.lookup.label_exists(upstream.as_str(), &label).await {
            Ok(true) => Ok(vec![]),
            Ok(false) => {
                let message = format!("`{upstream}` has no label `{label}`");
                let found = Diagnostic::new(Rule::LabelMissing, place, message);
                let help = "create it; without it nobody can ask for the device's check runs";
                Ok(vec![CheckResult::Finding(found.label("no label").help(help))])
            }
            Err(GithubError::Forbidden(why)) => {
                let why = format!("the labels of `{upstream}` can't be read: {why}");
                Ok(vec![CheckResult::NotChecked(Rule::LabelMissing, why)])
            }
            Err(error) => Err(error),
        }
    }
}

/// What workflows let strangers take, and what isn't understood of them.
fn exposed_tokens(
    repo: &RepoName,
    judged: &WorkflowJudgement,
    place: &SourceSpan,
) -> Vec<CheckResult> {
    let mut found = vec![];
    for exposure in Exposure::ALL.into_iter().filter(|exposure| exposure.gives_token()) {
        let jobs = judged.found.iter().filter(|(of, _)| *of == exposure);
        let jobs: Vec<_> = jobs.map(|(_, job)| job.as_str()).collect();
        if jobs.is_empty() {
            continue;
        }
        let message = format!("`{repo}`: {}: {}", exposure.finding(), jobs.join(", "));
        let finding = Diagnostic::new(Rule::TokenExposed, place.clone(), message);
        let finding = finding.label("strangers can get a token or a secret");
        found.push(CheckResult::Finding(finding.help(exposure.fix())));
    }
    if !judged.unknown.is_empty() {
        let why = format!("`{repo}`, not understood: {}", judged.unknown.join(", "));
        found.push(CheckResult::NotChecked(Rule::TokenExposed, why));
    }
    found
}
