//! `--online`: what only GitHub knows of the names in a file.
//!
//! An outage, a refused token or a spent rate limit ends the command with exit code 2: nothing is
//! ever called missing because GitHub didn't answer. What the token can't see is told as a rule
//! that wasn't checked.

mod workflow;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use crcr_domain::allowlist::ParseOutcome;
use crcr_domain::diagnostic::{Diagnostic, Rule, Span};
use crcr_domain::level::{CheckRun, Device, Level};
use crcr_domain::repo::Oncall;
use crcr_domain::{Entry, RepoName};
use crcr_github::lookup::cache::Cache;
use crcr_github::lookup::{Lookup, Repository, Team};
use crcr_github::{App, Error};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use secrecy::SecretString;
use url::Url;

use self::workflow::Workflow;
use crate::cli::allowlist::OnlineArgs;
use crate::env_vars::{self, Env};
use crate::failure::Failure;
use crate::printer::Printer;

/// Questions that are open at the same time.
const OPEN: usize = 8;
/// The most workflows of a repository that are read.
const MAX_WORKFLOWS: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    Everything,
    /// Whether the repositories' names are right.
    Names,
}

#[derive(Debug, Default)]
pub struct Answers {
    pub findings: Vec<Diagnostic>,
    /// Which rules were not checked, for what, and why; a sentence each.
    pub not_checked: Vec<String>,
}

/// One thing that came out of a question.
enum Found {
    Wrong(Diagnostic),
    NotChecked(Rule, String),
}

/// What is asked at once.
enum Question<'a> {
    Entry(usize, &'a Entry),
    Oncall(&'a Oncall, Vec<Span>),
    Device(&'a Device, Span),
}

struct Online<'a> {
    lookup: Lookup,
    app: Option<App>,
    file: &'a ParseOutcome,
    upstream: &'a RepoName,
    ask: Ask,
}

/// Asks GitHub. Answers are kept in the user's cache folder, also of a run that ends early.
pub async fn check(
    args: &OnlineArgs,
    file: &ParseOutcome,
    upstream: &RepoName,
    ask: Ask,
    env: &Env,
    printer: &Printer,
) -> Result<Answers, Failure> {
    let kept = cache_file(env);
    let cache = kept.as_deref().map(Cache::read).unwrap_or_default();
    let online = Online {
        lookup: lookup(args, cache, env, printer)?,
        app: if ask == Ask::Everything { app(env)? } else { None },
        file,
        upstream,
        ask,
    };
    let found = online.ask_all().await;
    let no_app = online.app.is_none() && ask == Ask::Everything;
    if let Some(path) = &kept
        && let Err(error) = online.lookup.into_cache().write(path)
    {
        tracing::debug!(%error, path = %path.display(), "the answers can't be kept");
    }
    let mut answers = Answers::default();
    let mut unseen = BTreeSet::new();
    for found in found.map_err(failure)? {
        match found {
            Found::Wrong(finding) => answers.findings.push(finding),
            Found::NotChecked(rule, why) => drop(unseen.insert((rule.code(), why))),
        }
    }
    if no_app {
        let why = "needs the App's own identity, `GITHUB_APP_ID` and `GITHUB_APP_PRIVATE_KEY`";
        for rule in [Rule::AppNotInstalled, Rule::AppPermissionMissing] {
            unseen.insert((rule.code(), why.to_owned()));
        }
    }
    let told = unseen.into_iter().map(|(rule, why)| format!("`{rule}` wasn't checked: {why}"));
    answers.not_checked = told.collect();
    Ok(answers)
}

impl Online<'_> {
    async fn ask_all(&self) -> Result<Vec<Found>, Error> {
        let found: Vec<Vec<Found>> = stream::iter(self.questions())
            .map(|question| Box::pin(self.answer(question)))
            .buffer_unordered(OPEN)
            .try_collect()
            .await?;
        Ok(self.without_colliding_fixes(found.into_iter().flatten().collect()))
    }

    /// Each repository, and each oncall and device once.
    fn questions(&self) -> Vec<Question<'_>> {
        let mut questions: Vec<_> =
            self.file.policy.iter().enumerate().map(|(at, e)| Question::Entry(at, e)).collect();
        if self.ask == Ask::Names {
            return questions;
        }
        let mut oncalls: BTreeMap<String, (&Oncall, Vec<Span>)> = BTreeMap::new();
        let mut devices = HashSet::new();
        for (entry, places) in self.file.policy.iter().zip(&self.file.places) {
            for (oncall, place) in entry.oncalls.iter().zip(&places.oncalls) {
                let key = oncall.as_str().to_ascii_lowercase();
                oncalls.entry(key).or_insert((oncall, vec![])).1.push(place.clone());
            }
            if let Some((device, place)) = entry.device.as_ref().zip(places.device.as_ref())
                && devices.insert(device)
            {
                questions.push(Question::Device(device, place.clone()));
            }
        }
        questions
            .extend(oncalls.into_values().map(|(name, places)| Question::Oncall(name, places)));
        questions
    }

    async fn answer(&self, question: Question<'_>) -> Result<Vec<Found>, Error> {
        match question {
            Question::Entry(at, entry) => self.entry(at, entry).await,
            Question::Oncall(oncall, places) => self.oncall(oncall, &places).await,
            Question::Device(device, place) => self.device(device, place).await,
        }
    }

    async fn entry(&self, at: usize, entry: &Entry) -> Result<Vec<Found>, Error> {
        let (listed, place) = (&entry.repo, self.file.places[at].repo.clone());
        let repository = match self.lookup.repository(listed.as_str()).await {
            Ok(Some(repository)) => repository,
            Ok(None) => {
                let message = format!("GitHub has no repository `{listed}`, or hides it");
                return Ok(vec![Found::Wrong(
                    Diagnostic::new(Rule::RepositoryNotFound, place, message)
                        .label("not found")
                        .help(
                            "check the spelling; a private repository needs a token that sees it",
                        ),
                )]);
            }
            Err(Error::Forbidden(why)) => {
                let names =
                    [Rule::RepositoryNotFound, Rule::RepositoryRenamed, Rule::RepositoryCase];
                let more = [Rule::RepositoryArchived, Rule::WorkflowMissing, Rule::TokenExposed];
                let more = more.into_iter().filter(|_| self.ask == Ask::Everything);
                let told = |rule| Found::NotChecked(rule, format!("`{listed}` is closed: {why}"));
                return Ok(names.into_iter().chain(more).map(told).collect());
            }
            Err(error) => return Err(error),
        };
        let mut found: Vec<_> =
            self.name(listed, &repository, &place).map(Found::Wrong).into_iter().collect();
        if self.ask == Ask::Names {
            return Ok(found);
        }
        if repository.archived {
            let message = format!("`{listed}` is archived: no workflow runs there");
            let finding = Diagnostic::new(Rule::RepositoryArchived, place.clone(), message);
            found.push(Found::Wrong(finding.label("archived").help("remove it from the list")));
        } else {
            found.extend(self.workflows(entry, &repository, &place).await?);
        }
        found.extend(self.installation(entry, &repository, &place).await?);
        Ok(found)
    }

    /// A name in another case, or of a repository that has moved.
    fn name(&self, listed: &RepoName, real: &Repository, place: &Span) -> Option<Diagnostic> {
        let name = &real.full_name;
        if name == listed.as_str() {
            return None;
        }
        let (rule, message, label) = if name.eq_ignore_ascii_case(listed.as_str()) {
            let message = format!("GitHub spells `{listed}` as `{name}`");
            (Rule::RepositoryCase, message, "another case")
        } else {
            let message = format!("`{listed}` is named `{name}` now");
            (Rule::RepositoryRenamed, message, "an old name")
        };
        let found = Diagnostic::new(rule, place.clone(), message).label(label);
        // Quoting and escapes stay as they are; a name that is written with escapes needs a person.
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

    /// Takes the fix from renamings that would list a repository twice.
    fn without_colliding_fixes(&self, mut found: Vec<Found>) -> Vec<Found> {
        let mut names: HashMap<String, usize> = HashMap::new();
        for entry in &self.file.policy {
            *names.entry(entry.repo.key()).or_default() += 1;
        }
        let target = |finding: &Diagnostic| {
            let renamed = finding.rule == Rule::RepositoryRenamed;
            finding.fix.as_ref().filter(|_| renamed).map(|fix| fix.edits[0].text.to_lowercase())
        };
        let wrong = |found: &Found| match found {
            Found::Wrong(finding) => target(finding),
            Found::NotChecked(..) => None,
        };
        for name in found.iter().filter_map(wrong) {
            *names.entry(name).or_default() += 1;
        }
        for found in &mut found {
            let Found::Wrong(finding) = found else { continue };
            if target(finding).is_some_and(|name| names[&name] > 1) {
                finding.fix = None;
                finding.help = Some("its new name is listed, too: keep one of them".to_owned());
            }
        }
        found
    }

    /// Whether a workflow on the default branch receives what is dispatched, and one reports.
    async fn workflows(
        &self,
        entry: &Entry,
        repository: &Repository,
        place: &Span,
    ) -> Result<Vec<Found>, Error> {
        let receives = entry.is_dispatched_to();
        let reports = entry.level >= Level::L2;
        let wanted = |seen: Workflow| seen.receives >= receives && seen.reports >= reports;
        let repo = &entry.repo;
        let mut seen = Workflow::default();
        let paths = match self.lookup.workflows(&repository.full_name).await {
            Err(Error::Forbidden(why)) => {
                let why = format!("the workflows of `{repo}` can't be read: {why}");
                return Ok(vec![Found::NotChecked(Rule::WorkflowMissing, why)]);
            }
            other => other?,
        };
        for path in paths.iter().take(MAX_WORKFLOWS) {
            if wanted(seen) {
                break;
            }
            let text = self.lookup.file(&repository.full_name, path).await?;
            seen = seen.and(Workflow::read(&text.unwrap_or_default()));
        }
        let mut found = vec![];
        if seen.exposes_token {
            let message = format!(
                "a job of `{repo}` checks out upstream code and has `id-token: write`: any pull \
                 request gets tokens of its default branch"
            );
            let wrong = Diagnostic::new(Rule::TokenExposed, place.clone(), message);
            let help = "report from other jobs, as workflows-templates/downstream-ci.yml does";
            found.push(Found::Wrong(wrong.label("a token within reach of anybody").help(help)));
        }
        if wanted(seen) {
            return Ok(found);
        }
        let wrong = |message: String, help: &str| {
            let found = Diagnostic::new(Rule::WorkflowMissing, place.clone(), message);
            Found::Wrong(found.label("no such workflow").help(help))
        };
        if paths.len() > MAX_WORKFLOWS {
            let why = format!("`{repo}` has {} workflows, of which 100 are read", paths.len());
            found.push(Found::NotChecked(Rule::WorkflowMissing, why));
            return Ok(found);
        }
        if receives && !seen.receives {
            found.push(wrong(
                format!(
                    "no workflow on the default branch of `{repo}` starts on `repository_dispatch`"
                ),
                "workflows-templates/downstream-ci.yml has one",
            ));
        }
        if reports && !seen.reports {
            found.push(if seen.calls_others {
                let why = format!("the workflows of `{repo}` call others, which may report");
                Found::NotChecked(Rule::WorkflowMissing, why)
            } else {
                wrong(
                    format!(
                        "no workflow on the default branch of `{repo}` reports, at {}",
                        entry.level
                    ),
                    "add a step with the action `report-ci-result`",
                )
            });
        }
        Ok(found)
    }

    /// Whether the App is installed there and may do what its level needs.
    async fn installation(
        &self,
        entry: &Entry,
        repository: &Repository,
        place: &Span,
    ) -> Result<Vec<Found>, Error> {
        let Some(app) = &self.app else { return Ok(vec![]) };
        let repo = &entry.repo;
        let missing = |message: String| {
            let found = Diagnostic::new(Rule::AppNotInstalled, place.clone(), message);
            vec![Found::Wrong(found.label("not reached").help("ask its owner to install the App"))]
        };
        let installation = match app.installation(&repository.full_name).await {
            Err(Error::NotInstalled(_)) => {
                return Ok(missing(format!("the App isn't installed on `{repo}`")));
            }
            other => other?,
        };
        if installation.suspended_at.is_some() {
            return Ok(missing(format!("the App's installation on `{repo}` is suspended")));
        }
        let wanted = [
            // To dispatch, and to run jobs again from a check run.
            ("contents", entry.is_dispatched_to()),
            ("actions", entry.check_run() != CheckRun::Never),
        ];
        let lacks = |permission: &str| {
            let granted = installation.permissions.get(permission).map(String::as_str);
            !matches!(granted, Some("write" | "admin"))
        };
        let found = wanted.into_iter().filter(|(name, needed)| *needed && lacks(name));
        Ok(found
            .map(|(permission, _)| {
                let message = format!("the App lacks `{permission}: write` on `{repo}`");
                let found = Diagnostic::new(Rule::AppPermissionMissing, place.clone(), message);
                let help = "ask its owner to accept the App's new permissions";
                Found::Wrong(found.label("a permission is missing").help(help))
            })
            .collect())
    }

    async fn oncall(&self, oncall: &Oncall, places: &[Span]) -> Result<Vec<Found>, Error> {
        let (exists, what) = match oncall.as_str().split_once('/') {
            None => (self.lookup.user_exists(oncall.as_str()).await?, "login"),
            Some((org, slug)) => match self.lookup.team(org, slug).await? {
                Team::Exists => (true, "team"),
                Team::Missing => (false, "team"),
                // An organisation that isn't there has no teams to hide.
                Team::Hidden if !self.lookup.user_exists(org).await? => (false, "team"),
                Team::Hidden => {
                    let why =
                        format!("the teams of `{org}` need a token with `read:org` of a member");
                    return Ok(vec![Found::NotChecked(Rule::OncallNotFound, why)]);
                }
            },
        };
        if exists {
            return Ok(vec![]);
        }
        let wrong = |place: &Span| {
            let message = format!("GitHub has no {what} `{oncall}`");
            let found = Diagnostic::new(Rule::OncallNotFound, place.clone(), message);
            Found::Wrong(found.label("nobody").help("name a login or `org/team` that exists"))
        };
        Ok(places.iter().map(wrong).collect())
    }

    async fn device(&self, device: &Device, place: Span) -> Result<Vec<Found>, Error> {
        let (label, upstream) = (device.label(), self.upstream);
        match self.lookup.label_exists(upstream.as_str(), &label).await {
            Ok(true) => Ok(vec![]),
            Ok(false) => {
                let message = format!("`{upstream}` has no label `{label}`");
                let found = Diagnostic::new(Rule::LabelMissing, place, message);
                let help = "create it: without it nobody can ask for the device's check runs";
                Ok(vec![Found::Wrong(found.label("no label").help(help))])
            }
            Err(Error::Forbidden(why)) => {
                let why = format!("the labels of `{upstream}` can't be read: {why}");
                Ok(vec![Found::NotChecked(Rule::LabelMissing, why)])
            }
            Err(error) => Err(error),
        }
    }
}

fn lookup(
    args: &OnlineArgs,
    cache: Cache,
    env: &Env,
    printer: &Printer,
) -> Result<Lookup, Failure> {
    let token = match (&args.github_token, env.get(env_vars::GITHUB_TOKEN)) {
        (Some(token), _) => token.clone(),
        (None, Some(token)) => SecretString::from(token),
        (None, None) => {
            return Err(Failure::unexpected("no-github-token", "`--online` needs a GitHub token")
                .hint(
                    "pass `--github-token` or set `GITHUB_TOKEN`; reading public data is enough",
                ));
        }
    };
    printer.mask(secrecy::ExposeSecret::expose_secret(&token));
    Lookup::new(http()?, &api_url(env)?, &token, cache, Arc::new(Timestamp::now)).map_err(|error| {
        Failure::unexpected("github-client", "GitHub can't be asked").because(error)
    })
}

/// The App, when its identity is there.
fn app(env: &Env) -> Result<Option<App>, Failure> {
    let odd = |what: &str| Failure::unexpected("app-identity", what.to_owned());
    let key = match env.get(env_vars::GITHUB_APP_PRIVATE_KEY_FILE) {
        Some(path) => Some(std::fs::read_to_string(path).map_err(|error| {
            odd(&format!("`{path}`, the App's private key, can't be read")).because(error)
        })?),
        None => env.get(env_vars::GITHUB_APP_PRIVATE_KEY).map(str::to_owned),
    };
    let (Some(id), Some(key)) = (env.get(env_vars::GITHUB_APP_ID), key) else { return Ok(None) };
    let key = SecretString::from(key);
    let app = App::new(http()?, api_url(env)?, id, &key, Arc::new(Timestamp::now));
    app.map(Some).map_err(|error| odd("the App's identity can't be used").because(error))
}

fn http() -> Result<reqwest::Client, Failure> {
    crcr_github::http::client()
        .map_err(|error| Failure::unexpected("tls", "no HTTP client can be made").because(error))
}

fn api_url(env: &Env) -> Result<Url, Failure> {
    let url = env.get(env_vars::GITHUB_API_URL).unwrap_or("https://api.github.com");
    url.parse().map_err(|error: url::ParseError| {
        Failure::unexpected("api-url", "`GITHUB_API_URL` isn't a URL").because(error)
    })
}

/// `$XDG_CACHE_HOME/crcr/github.json`, or below `~/.cache`.
fn cache_file(env: &Env) -> Option<PathBuf> {
    let folder = env.get(env_vars::XDG_CACHE_HOME).map(PathBuf::from).filter(|f| f.is_absolute());
    let home = || Some(PathBuf::from(env.get(env_vars::HOME)?).join(".cache"));
    Some(folder.or_else(home)?.join("crcr/github.json"))
}

fn failure(error: Error) -> Failure {
    match &error {
        Error::RateLimited { until, .. } => {
            let message = format!("GitHub's rate limit is spent until {until}");
            Failure::unexpected("rate-limited", message)
                .because(error)
                .hint("run it again then; what GitHub answered so far is kept and costs nothing")
        }
        Error::Unauthorized(_) => {
            Failure::unexpected("github-token", "GitHub refused the credentials").because(error)
        }
        _ => Failure::unexpected("github-unavailable", "GitHub couldn't be asked about the file")
            .because(error)
            .hint("nothing is known to be missing; try again later"),
    }
}
