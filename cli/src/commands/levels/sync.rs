//! `crcr levels sync`: pull requests upstream that demote and promote repositories by their results.
//!
//! Nothing is remembered between runs: the branches and pull requests upstream say what was done, so a run
//! that was interrupted is continued by the next one.

use std::fmt::Write as _;
use std::process::ExitCode;

use crcr_domain::allowlist::edit::move_entry;
use crcr_domain::allowlist::level::Device;
use crcr_domain::allowlist::{MAX_BYTES, ParseOutcome};
use crcr_domain::results::{CriterionVerdict, RepoReview};
use crcr_domain::{AllowlistEntry, Level, RepoName};
use crcr_github::GithubError;
use crcr_github::branches_pulls::{BranchHead, OwnPull, RepositoryApi};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use super::reviewer::LevelReviewer;
use crate::cli::DataFormat;
use crate::cli::levels::SyncArgs;
use crate::commands::allowlist_file::AllowlistFile;
use crate::commands::github;
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum SyncAction {
    /// A pull request was opened, or would be with `--dry-run`.
    Open,
    Update,
    Close,
    /// The pull request is as it should be.
    Keep,
    /// Somebody closed the pull request, and its branch is still there.
    Declined,
    /// Too few results to decide.
    NoData,
    /// The entry can't be moved by an edit of the text.
    Blocked,
    Failed,
}

impl SyncAction {
    fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Update => "update",
            Self::Close => "close",
            Self::Keep => "keep",
            Self::Declined => "declined",
            Self::NoData => "no data",
            Self::Blocked => "blocked",
            Self::Failed => "failed",
        }
    }
}

#[derive(Debug, Serialize)]
struct SyncStep {
    repository: String,
    change: ChangeDirection,
    action: SyncAction,
    /// `None` when the repository isn't listed any more.
    from: Option<Level>,
    to: Option<Level>,
    /// Number of the pull request; `None` when there is none yet.
    pull_request: Option<u64>,
    why: String,
    /// The evidence on the HUD.
    permalink: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum ChangeDirection {
    Demote,
    Promote,
}

/// What all pull requests in one direction have in common.
struct SyncKind<'a> {
    change: ChangeDirection,
    branch_prefix: &'a str,
    label: &'a str,
}

/// The allowlist upstream at the commit that pull requests are based on.
struct UpstreamFile {
    base: String,
    base_sha: String,
    parsed: ParseOutcome,
}

struct LevelSync<'a> {
    args: &'a SyncArgs,
    api: RepositoryApi,
    reviewer: LevelReviewer,
    file: UpstreamFile,
}

/// The pull request that a repository should have.
struct WantedPull {
    to: Level,
    /// The whole allowlist after the move.
    text: String,
    title: String,
    body: String,
}

pub async fn run(args: &SyncArgs, env: &Env, printer: &Printer) -> Outcome {
    let api = repository_api(args, env, printer)?;
    let reviewer = LevelReviewer::open(&args.results, &args.options).await?;
    let file = read_upstream(args, &api, printer).await?;
    let to = args.to.unwrap_or_else(last_midnight);
    let mut reviews = vec![];
    for entry in &file.parsed.policy {
        if entry.level.shows_results() || args.promotions {
            reviews.push(reviewer.review(&entry.repo, entry.level, (None, to)).await?);
        }
    }
    let sync = LevelSync { args, api, reviewer, file };
    let mut kinds = vec![SyncKind {
        change: ChangeDirection::Demote,
        branch_prefix: &args.demotion_branch,
        label: &args.demotion_label,
    }];
    kinds.extend(args.promotions.then_some(SyncKind {
        change: ChangeDirection::Promote,
        branch_prefix: &args.promotion_branch,
        label: &args.promotion_label,
    }));
    let mut steps = vec![];
    for kind in &kinds {
        sync.sync_kind(kind, &reviews, &mut steps).await?;
    }
    let text = match args.format {
        DataFormat::Text => text(&steps, args.dry_run),
        DataFormat::Json => {
            let document = json!({
                "version": 1, "upstream": args.upstream, "base": sync.file.base_sha, "to": to,
                "dry_run": args.dry_run, "steps": steps,
            });
            format!("{document:#}\n")
        }
    };
    printer.data_as(args.format, &text);
    let has = |action| steps.iter().any(|step| step.action == action);
    Ok(ExitCode::from(match () {
        () if has(SyncAction::Failed) => 2,
        () if has(SyncAction::Blocked) => 1,
        () => 0,
    }))
}

/// Whole days give the same evidence in every run of a day.
fn last_midnight() -> Timestamp {
    let now = Timestamp::now().as_second();
    Timestamp::from_second(now - now.rem_euclid(86_400)).expect("earlier than now")
}

fn repository_api(args: &SyncArgs, env: &Env, printer: &Printer) -> Result<RepositoryApi, Failure> {
    let token = github::token(args.github_token.as_ref(), env, printer).ok_or_else(|| {
        Failure::unexpected("no-github-token", "GitHub can't be asked without a token")
            .hint("set `GITHUB_TOKEN` to a token with `contents: write` and `pull-requests: write`")
    })?;
    RepositoryApi::new(github::http()?, &github::api_url(env)?, token, args.upstream.as_str())
        .map_err(|error| Failure::unexpected("api-url", "GitHub can't be asked").because(error))
}

/// Fails without changing anything if the allowlist upstream is missing or has errors.
async fn read_upstream(
    args: &SyncArgs,
    api: &RepositoryApi,
    printer: &Printer,
) -> Result<UpstreamFile, Failure> {
    let (upstream, path) = (&args.upstream, &args.allowlist_path);
    let base = match &args.base {
        Some(base) => base.clone(),
        None => api.default_branch().await.map_err(github_failure)?,
    };
    let base_sha = api.branch_head(&base).await.map_err(github_failure)?.ok_or_else(|| {
        Failure::user("no-such-branch", format!("`{upstream}` has no branch `{base}`"))
            .hint("name the branch that pull requests target with `--base`")
    })?;
    let bytes = api.file(path, &base_sha, MAX_BYTES).await.map_err(github_failure)?;
    let bytes = bytes.ok_or_else(|| {
        Failure::user("no-allowlist", format!("`{upstream}` has no `{path}` on `{base}`"))
            .hint("name the file with `--allowlist-path`")
    })?;
    let file = AllowlistFile {
        name: format!("{upstream}:{path}"),
        bytes: bytes.to_vec(),
        elsewhere: None,
    };
    let parsed = file.parse_valid(upstream, printer)?;
    Ok(UpstreamFile { base, base_sha, parsed })
}

fn github_failure(error: GithubError) -> Failure {
    Failure::unexpected("github-unavailable", "GitHub didn't do what `crcr levels sync` needs")
        .because(error)
        .hint("nothing is lost: the next run continues where this one stopped")
}

impl LevelSync<'_> {
    /// Brings all pull requests of one direction up to date.
    async fn sync_kind(
        &self,
        kind: &SyncKind<'_>,
        reviews: &[RepoReview],
        steps: &mut Vec<SyncStep>,
    ) -> Result<(), Failure> {
        let prefix = format!("{}/", kind.branch_prefix);
        let branches = self.api.branches_with(&prefix).await.map_err(github_failure)?;
        let mut branches: Vec<(RepoName, BranchHead)> = branches
            .into_iter()
            .filter_map(|head| {
                Some((RepoName::new(head.branch.strip_prefix(&prefix)?).ok()?, head))
            })
            .collect();
        for review in reviews {
            let entry = RepoName::new(&review.repo)
                .ok()
                .and_then(|repo| self.file.parsed.policy.get(&repo))
                .expect("reviews are of listed repositories");
            let at = branches.iter().position(|(repo, _)| *repo == entry.repo);
            let branch = at.map(|at| branches.swap_remove(at).1);
            steps.extend(self.sync_entry(kind, entry, review, branch).await);
        }
        // Branches of repositories that have left the allowlist, or are at L1.
        for (repo, head) in branches {
            let level = self.file.parsed.policy.get(&repo).map(|entry| entry.level);
            let why = match level {
                Some(level) => format!("`{repo}` is at {level} now"),
                None => format!("`{repo}` isn't listed any more"),
            };
            let mut step = SyncStep {
                repository: repo.to_string(),
                change: kind.change,
                action: SyncAction::Close,
                from: level,
                to: None,
                pull_request: None,
                why,
                permalink: None,
            };
            let closed = self.close(&head, &mut step).await;
            steps.extend(finished(step, closed));
        }
        Ok(())
    }

    async fn sync_entry(
        &self,
        kind: &SyncKind<'_>,
        entry: &AllowlistEntry,
        review: &RepoReview,
        branch: Option<BranchHead>,
    ) -> Option<SyncStep> {
        let to = review.proposal().filter(|to| {
            (*to > entry.level) == (kind.change == ChangeDirection::Promote) && review.has_results()
        });
        let mut step = SyncStep {
            repository: entry.repo.to_string(),
            change: kind.change,
            action: SyncAction::Keep,
            from: Some(entry.level),
            to,
            pull_request: None,
            why: String::new(),
            permalink: Some(self.reviewer.link(review)),
        };
        if let Some(to) = to {
            let result = match self.wanted(kind, entry, review, to) {
                Ok(wanted) => self.open_or_update(kind, entry, &wanted, branch, &mut step).await,
                Err(why) => {
                    (step.action, step.why) = (SyncAction::Blocked, why);
                    Ok(true)
                }
            };
            return finished(step, result);
        }
        let answer = match kind.change {
            ChangeDirection::Demote => review.staying(),
            ChangeDirection::Promote => review.promotion(),
        };
        let is_decided_here = answer.is_some();
        let is_undecided = answer.is_some_and(|(_, verdict)| {
            !review.has_results() || verdict == CriterionVerdict::Unknown
        });
        if is_undecided {
            step.action = SyncAction::NoData;
            step.why = if review.has_results() {
                "too few results to decide".to_owned()
            } else {
                "no results in this window".to_owned()
            };
            return Some(step);
        }
        let head = branch?;
        step.action = SyncAction::Close;
        step.why = match kind.change {
            ChangeDirection::Demote if is_decided_here => {
                format!("`{}` meets every criterion of {} again", entry.repo, entry.level)
            }
            ChangeDirection::Promote if is_decided_here => {
                format!("`{}` doesn't meet the criteria for a promotion any more", entry.repo)
            }
            _ => format!("`{}` is at {} now", entry.repo, entry.level),
        };
        let closed = self.close(&head, &mut step).await;
        finished(step, closed)
    }

    /// `Err` says why the entry can't be moved.
    fn wanted(
        &self,
        kind: &SyncKind<'_>,
        entry: &AllowlistEntry,
        review: &RepoReview,
        to: Level,
    ) -> Result<WantedPull, String> {
        let AllowlistEntry { repo, level: from, .. } = entry;
        let named = self.args.device.iter().find(|named| named.repo == *repo);
        let device: Option<&Device> = named.map(|named| &named.device);
        if to == Level::L3 && device.is_none() {
            return Err(format!("at L3 it needs a device: name it with `--device {repo}=DEVICE`"));
        }
        let moved = move_entry(&self.file.parsed, repo, to, device, &self.args.upstream);
        let text = moved.map_err(|error| error.to_string())?;
        let verb = match kind.change {
            ChangeDirection::Demote => "Demote",
            ChangeDirection::Promote => "Promote",
        };
        let title = format!("[crcr] {verb} {repo} from {from} to {to}");
        let body = self.body(kind, entry, review, to);
        Ok(WantedPull { to, text, title, body })
    }

    fn body(
        &self,
        kind: &SyncKind<'_>,
        entry: &AllowlistEntry,
        review: &RepoReview,
        to: Level,
    ) -> String {
        let AllowlistEntry { repo, level: from, oncalls, .. } = entry;
        let (reason, effect) = match kind.change {
            ChangeDirection::Demote => (
                format!("`{repo}` doesn't meet the criteria of {from}, so this moves it to {to}."),
                if *from == Level::L3 {
                    format!(
                        "While this is open, the relay makes no new check runs for `{repo}`. \
                         Dispatches and the HUD go on.\n\n"
                    )
                } else {
                    String::new()
                },
            ),
            ChangeDirection::Promote => (
                format!(
                    "`{repo}` meets every criterion for {to}, so this moves it up from {from}."
                ),
                String::new(),
            ),
        };
        let names: Vec<_> = oncalls.iter().map(|name| format!("@{name}")).collect();
        let names = if names.is_empty() { "nobody".to_owned() } else { names.join(", ") };
        format!(
            "{reason}\n{}\nOncalls: {names}\n\n{effect}`crcr levels sync` keeps this pull request up \
             to date, rewrites its branch, and closes it when the results no longer ask for it. Close \
             it to decline.\n",
            self.reviewer.markdown(review)
        )
    }

    /// Returns false if there was nothing to do.
    async fn open_or_update(
        &self,
        kind: &SyncKind<'_>,
        entry: &AllowlistEntry,
        wanted: &WantedPull,
        head: Option<BranchHead>,
        step: &mut SyncStep,
    ) -> Result<bool, GithubError> {
        let (api, path) = (&self.api, &self.args.allowlist_path);
        let from = entry.level;
        let name = format!("{}/{}", kind.branch_prefix, entry.repo);
        let branch = head.as_ref().map_or(&*name, |head| &head.branch);
        let pulls = match &head {
            Some(head) => api.pulls_of(&head.branch).await?,
            None => vec![],
        };
        let open = pulls.iter().find(|pull| pull.is_open);
        step.pull_request = open.map(|pull| pull.number);
        if let (Some(head), Some(newest), None) = (&head, pulls.first(), open)
            && !newest.is_merged
            && newest.head_sha == head.sha
        {
            step.action = SyncAction::Declined;
            step.pull_request = Some(newest.number);
            step.why = format!("#{} was closed without a merge", newest.number);
            return Ok(true);
        }
        let in_branch = match &head {
            Some(head) => api.file(path, &head.sha, MAX_BYTES).await?,
            None => None,
        };
        // Only the allowlist is compared: other changes upstream can't conflict with one to this file.
        let is_rebuilt = in_branch.as_deref() != Some(wanted.text.as_bytes());
        let is_edited = open.is_some_and(|open| !says(open, wanted));
        let lacks_label =
            open.is_none_or(|open| !open.labels.iter().any(|label| *label == kind.label));
        step.action = match open {
            None => SyncAction::Open,
            Some(_) if is_rebuilt || is_edited || lacks_label => SyncAction::Update,
            Some(_) => SyncAction::Keep,
        };
        let to = wanted.to;
        step.why = match step.action {
            SyncAction::Update if is_rebuilt => "the allowlist upstream has changed".to_owned(),
            SyncAction::Update if is_edited => "the evidence has changed".to_owned(),
            SyncAction::Update => format!("the label `{}` was missing", kind.label),
            _ if to < from => format!("doesn't meet the criteria of {from}"),
            _ => format!("meets every criterion for {to}"),
        };
        if self.args.dry_run {
            return Ok(true);
        }
        if is_rebuilt {
            let base = &self.file.base_sha;
            let commit = api.commit_file(base, path, &wanted.text, &wanted.title).await?;
            match &head {
                Some(_) => api.move_branch(branch, &commit).await?,
                None => api.create_branch(branch, &commit).await?,
            }
        }
        let number = match open {
            Some(open) => {
                if is_edited {
                    api.edit_pull(open.number, &wanted.title, &wanted.body).await?;
                }
                open.number
            }
            None => api.open_pull(branch, &self.file.base, &wanted.title, &wanted.body).await?,
        };
        step.pull_request = Some(number);
        if lacks_label {
            api.add_label(number, kind.label).await?;
        }
        Ok(true)
    }

    /// Closes the open pull request of a branch and deletes the branch.
    async fn close(&self, head: &BranchHead, step: &mut SyncStep) -> Result<bool, GithubError> {
        let pulls = self.api.pulls_of(&head.branch).await?;
        let open = pulls.iter().find(|pull| pull.is_open);
        step.pull_request = open.map(|pull| pull.number);
        if !self.args.dry_run {
            if let Some(open) = open {
                let body = format!("Closed: {}.\n\n---\n{}", step.why, open.body);
                self.api.close_pull(open.number, &body).await?;
            }
            self.api.delete_branch(&head.branch).await?;
        }
        // Deleting a branch that is left over from a merge isn't worth a line.
        Ok(open.is_some())
    }
}

/// Whether the pull request has this title and body. GitHub returns line ends as CR LF once a person has
/// edited the text.
fn says(pull: &OwnPull, wanted: &WantedPull) -> bool {
    pull.title == wanted.title
        && pull.body.replace("\r\n", "\n").trim_end() == wanted.body.trim_end()
}

/// The step with the outcome of its calls; `None` if there was nothing to do.
fn finished(mut step: SyncStep, result: Result<bool, GithubError>) -> Option<SyncStep> {
    match result {
        Ok(is_news) => is_news.then_some(step),
        Err(error) => {
            step.why = format!("{} was planned: {error}", step.action.as_str());
            step.action = SyncAction::Failed;
            Some(step)
        }
    }
}

fn text(steps: &[SyncStep], dry_run: bool) -> String {
    let mut out = String::new();
    if dry_run {
        out.push_str("dry run: nothing was changed\n");
    }
    if steps.is_empty() {
        out.push_str("the results ask for no change\n");
    }
    for step in steps {
        let verb = match step.change {
            ChangeDirection::Demote => "demotion",
            ChangeDirection::Promote => "promotion",
        };
        let levels = match (step.from, step.to) {
            (Some(from), Some(to)) => format!(" from {from} to {to}"),
            _ => String::new(),
        };
        let pull = step.pull_request.map(|number| format!(" (#{number})")).unwrap_or_default();
        let action = step.action.as_str();
        let _ =
            writeln!(out, "{action:8} {verb} of {}{levels}{pull}: {}", step.repository, step.why);
    }
    out
}
