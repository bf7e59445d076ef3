//! Check runs on upstream pull requests: names, ids and texts.

use std::fmt::Write as _;

use crate::allowlist::level::Level;
use crate::checks::lifecycle::{Conclusion, JobState};
use crate::checks::verdict::{HeadState, HeadVerdict};
use crate::protocol::callback::{JobId, ReportDetails, SHOWN_TESTS};
use crate::protocol::dispatch::{CheckRunVisibility, RefusedRerun};
use crate::text::{breaks_text, fnv1a};

/// GitHub documents no limit for names.
const NAME_CHARS: usize = 250;
const TITLE_CHARS: usize = 250;
/// GitHub's limit is 65,535 bytes, although its documentation counts characters (github/docs#35252).
const SUMMARY_BYTES: usize = 60_000;
/// The run id in the `external_id` of a dispatch without a known run.
pub const NO_RUN: u64 = 0;

/// The name of a job's check run: `crcr/<owner>/<repo>/<workflow>/<job>`.
///
/// In the workflow's name `/` becomes `%2F` and `%` becomes `%25`, so that names are unique and differ
/// from the dispatch's. The job's name comes last and needs no escaping.
pub fn job_name(repo: &str, job: &JobId) -> String {
    name_of_job(repo, &job.workflow, job.job.as_deref())
}

/// [`job_name`] of the job `job` of `workflow`.
pub fn name_of_job(repo: &str, workflow: &str, job: Option<&str>) -> String {
    let workflow = workflow.replace('%', "%25").replace('/', "%2F");
    let name = format!("crcr/{repo}/{workflow}/{}", job.unwrap_or("None"));
    let name = name.replace(breaks_text, " ");
    if name == dispatch_name(repo) {
        return format!("{name} (job)");
    }
    if name.chars().count() <= NAME_CHARS {
        return name;
    }
    // A hash of the whole name keeps shortened names unique.
    format!("{}… {:016x}", truncate_chars(&name, NAME_CHARS - 18), fnv1a(&name))
}

fn truncate_chars(text: &str, chars: usize) -> &str {
    text.char_indices().nth(chars).map_or(text, |(end, _)| &text[..end])
}

fn truncate_bytes(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// The name of the check run of the dispatch itself.
pub fn dispatch_name(repo: &str) -> String {
    format!("crcr/{repo}/relay/dispatch")
}

/// The downstream repository in the name of a check run.
pub fn repo_of(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("crcr/")?;
    let (owner, rest) = rest.split_once('/')?;
    let (repo, _) = rest.split_once('/')?;
    let end = owner.len() + 1 + repo.len();
    (!owner.is_empty() && !repo.is_empty()).then(|| &name["crcr/".len().."crcr/".len() + end])
}

/// `<run id>:<pull request>`, or the run id alone.
pub fn external_id(run_id: &str, pull_request: Option<u64>) -> String {
    match pull_request {
        Some(number) => format!("{run_id}:{number}"),
        None => run_id.to_owned(),
    }
}

/// The `external_id` of a run elsewhere than on GitHub. A build's number isn't taken for a run of GitHub.
fn foreign_external_id(run_id: &str, pull_request: Option<u64>) -> String {
    let is_number = run_id.bytes().all(|byte| byte.is_ascii_digit());
    let prefix = if is_number { "build-" } else { "" };
    external_id(&format!("{prefix}{run_id}"), pull_request)
}

/// The run id in an `external_id`, if it is a number and so a run on GitHub.
pub fn run_of(external_id: &str) -> Option<u64> {
    external_id.split(':').next()?.parse().ok()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckRunContent {
    pub status: CheckRunStatus,
    pub title: String,
    pub summary: String,
    pub details_url: Option<String>,
    /// Identifies the run for re-runs.
    pub external_id: Option<String>,
}

/// A check run's status and conclusion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case", tag = "status", content = "conclusion")]
pub enum CheckRunStatus {
    Queued,
    InProgress,
    Completed(Conclusion),
}

impl CheckRunStatus {
    pub fn status(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InProgress => "in_progress",
            Self::Completed(_) => "completed",
        }
    }

    pub fn is_open(self) -> bool {
        !matches!(self, Self::Completed(_))
    }

    /// The conclusion to send. Only GitHub can set `stale` and `startup_failure`; they become `timed_out`
    /// and `failure`, because `neutral` would allow a merge.
    pub fn conclusion(self) -> Option<&'static str> {
        match self {
            Self::Completed(Conclusion::Stale) => Some("timed_out"),
            Self::Completed(Conclusion::StartupFailure) => Some("failure"),
            Self::Completed(conclusion) => Some(conclusion.as_str()),
            Self::Queued | Self::InProgress => None,
        }
    }
}

/// Everything that the text of a check run depends on besides the result.
#[derive(Debug, Clone, Copy)]
pub struct CheckRunContext<'a> {
    pub repo: &'a str,
    pub level: Level,
    pub oncalls: &'a [String],
    /// GitHub's address, such as `https://github.com`.
    pub server_url: &'a str,
    pub pull_request: Option<u64>,
    /// URL of the pull request's HUD page.
    pub page: Option<&'a str>,
    /// Whose fault a failure is, in one sentence.
    pub blame: Option<&'a str>,
    /// Whether the backend's infrastructure failed, as it did on the dispatches before. Then nobody is blocked by it.
    pub keeps_failing: bool,
    /// Replaces failures below L4, if set.
    pub nonblocking: Option<Conclusion>,
}

/// What is shown of a job.
#[derive(Debug, Clone, Copy)]
pub struct ShownJob<'a> {
    pub id: &'a JobId,
    pub state: JobState,
    pub details: &'a ReportDetails,
    /// Its end was reported without proof.
    pub ended_without_proof: bool,
    /// It ran elsewhere than on GitHub.
    pub is_foreign: bool,
    /// An earlier attempt of it failed.
    pub failed_before: bool,
}

impl CheckRunContext<'_> {
    /// The URL of a run: on GitHub for numeric ids, else the reported one.
    fn run_url(&self, run_id: &str, reported: Option<&str>, is_foreign: bool) -> Option<String> {
        if !is_foreign && run_id.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(format!("{}/{}/actions/runs/{run_id}", self.server_url, self.repo));
        }
        reported.map(str::to_owned)
    }

    fn link(&self) -> String {
        let link = |page| format!("\nAll backends on this pull request: {page}\n");
        self.page.map(link).unwrap_or_default()
    }

    fn neutral_reason(&self, shown: CheckRunStatus) -> &'static str {
        if self.keeps_failing && shown == CheckRunStatus::Completed(Conclusion::Neutral) {
            "\nNeutral: the infrastructure of this backend has failed several times in a row, so its failures block \
             nobody until it works again.\n"
        } else {
            ""
        }
    }

    /// The title of an ended check run, which says why it isn't what was found.
    fn completed_title(&self, status: CheckRunStatus, found: Conclusion, title: String) -> String {
        match status {
            CheckRunStatus::Completed(shown) if shown != found && self.keeps_failing => {
                format!("Neutral, because this backend's infrastructure keeps failing. {title}")
            }
            CheckRunStatus::Completed(shown) if shown != found => {
                format!("Neutral, because failures at {} block nobody. {title}", self.level)
            }
            _ => title,
        }
    }

    fn completed_status(&self, conclusion: Conclusion) -> CheckRunStatus {
        if self.keeps_failing && !conclusion.is_good() {
            return CheckRunStatus::Completed(Conclusion::Neutral);
        }
        let softened = self.nonblocking.filter(|_| self.level < Level::L4 && !conclusion.is_good());
        CheckRunStatus::Completed(softened.unwrap_or(conclusion))
    }
}

/// The check run of a job.
pub fn job_content(context: &CheckRunContext<'_>, shown: &ShownJob<'_>) -> CheckRunContent {
    let ShownJob { id: job, state, details, .. } = *shown;
    let url = context.run_url(&job.run_id, details.url.as_deref(), shown.is_foreign);
    let (status, title) = job_status(context, shown);
    let mut summary = format!("{} workflow", code(context.repo));
    let _ = match &url {
        Some(url) => writeln!(summary, ": {url}"),
        None => writeln!(summary, " {}", code(&job.workflow)),
    };
    summary.push_str(&context.link());
    if let Some(tests) = details.tests {
        let _ = writeln!(
            summary,
            "\n{} tests: {} passed, {} failed, {} skipped",
            tests.total, tests.passed, tests.failed, tests.skipped
        );
    }
    if details.failed_tests.is_empty() && details.more_failed_tests > 0 {
        let _ = writeln!(
            summary,
            "\n{} failing tests aren't named: the backend has sent too many texts today",
            details.more_failed_tests
        );
    }
    if !details.failed_tests.is_empty() {
        summary.push_str("\nFailing tests:\n");
        for test in details.failed_tests.iter().take(SHOWN_TESTS) {
            let _ = write!(summary, "- {}", code(&test.name));
            if let Some(file) = &test.file {
                let _ = write!(summary, " in {}", code(file));
            }
            summary.push('\n');
        }
        let more =
            details.failed_tests.len().saturating_sub(SHOWN_TESTS) + details.more_failed_tests;
        if more > 0 {
            let _ = writeln!(summary, "- and {more} more");
        }
    }
    if let Some(blame) = context.blame {
        // It may quote what a job has reported.
        let _ = writeln!(summary, "\nWhose fault, by the other results: {}", code(blame));
    }
    let failed = state.conclusion().is_some_and(|conclusion| !conclusion.is_good());
    summary.push_str(context.neutral_reason(status));
    if matches!(status, CheckRunStatus::Completed(_)) && (failed || state.is_open()) {
        summary.push_str(&next_steps(context, shown.is_foreign));
    }
    CheckRunContent {
        status,
        title: truncate_chars(&title, TITLE_CHARS).to_owned(),
        summary: truncate_bytes(&summary, SUMMARY_BYTES).to_owned(),
        details_url: url.or(context.page.map(str::to_owned)),
        external_id: Some(run_external_id(context, &job.run_id, shown.is_foreign)),
    }
}

fn run_external_id(context: &CheckRunContext<'_>, run_id: &str, is_foreign: bool) -> String {
    if is_foreign {
        foreign_external_id(run_id, context.pull_request)
    } else {
        external_id(run_id, context.pull_request)
    }
}

fn job_status(context: &CheckRunContext<'_>, shown: &ShownJob<'_>) -> (CheckRunStatus, String) {
    let ended = |found, title: String| {
        let status = context.completed_status(found);
        (status, context.completed_title(status, found, title))
    };
    match shown.state {
        JobState::Dispatched | JobState::InProgress if shown.ended_without_proof => ended(
            Conclusion::Cancelled,
            "Its end was reported without proof, so its result isn't shown".to_owned(),
        ),
        JobState::Dispatched => (CheckRunStatus::Queued, "Queued".to_owned()),
        JobState::InProgress => (CheckRunStatus::InProgress, "In progress".to_owned()),
        JobState::NeverStarted | JobState::Lost => ended(
            Conclusion::TimedOut,
            "No result: it started and its end was never reported".to_owned(),
        ),
        JobState::Completed(Conclusion::Success) if shown.failed_before => {
            ended(Conclusion::Success, "Passed after a retry".to_owned())
        }
        JobState::Completed(conclusion) => {
            ended(conclusion, conclusion_title(conclusion, shown.details))
        }
    }
}

/// The check run of the dispatch.
pub fn dispatch_content(context: &CheckRunContext<'_>, verdict: &HeadVerdict) -> CheckRunContent {
    let reason = verdict.reason.clone();
    let (status, title) = match verdict.state {
        HeadState::Queued => (CheckRunStatus::Queued, reason),
        HeadState::Running => (CheckRunStatus::InProgress, reason),
        HeadState::Ended(found) => {
            let status = context.completed_status(found);
            (status, context.completed_title(status, found, reason))
        }
    };
    let run = verdict.run.as_deref();
    let url = run.and_then(|run| context.run_url(run, None, verdict.is_foreign));
    let mut summary = format!("{}: {}\n", code(context.repo), verdict.reason);
    if let Some(url) = &url {
        let _ = writeln!(summary, "\nWorkflow: {url}");
    }
    summary.push_str(&context.link());
    summary.push_str(context.neutral_reason(status));
    if matches!(verdict.state, HeadState::Ended(conclusion) if !conclusion.is_good()) {
        summary.push_str(&next_steps(context, verdict.is_foreign));
    }
    let external_id = match run {
        Some(run) => run_external_id(context, run, verdict.is_foreign),
        None => external_id(&NO_RUN.to_string(), context.pull_request),
    };
    CheckRunContent {
        status,
        title: truncate_chars(&title, TITLE_CHARS).to_owned(),
        summary: truncate_bytes(&summary, SUMMARY_BYTES).to_owned(),
        details_url: url.or(context.page.map(str::to_owned)),
        external_id: Some(external_id),
    }
}

/// What the person who pressed "Re-run" has to know when GitHub refused it. The first sentence of the title, so that it
/// is seen in the list of checks.
pub fn add_refused_rerun(shown: &mut CheckRunContent, refused: &RefusedRerun) {
    let title = format!("Re-run refused by GitHub. {}", shown.title);
    truncate_chars(&title, TITLE_CHARS).clone_into(&mut shown.title);
    let text = format!(
        "GitHub refused to re-run run {} at {}: {}. What is shown is the result from before. Push a commit, or \
         re-run it in the backend's repository.\n\n{}",
        refused.run_id,
        refused.at.strftime("%Y-%m-%d %H:%M UTC"),
        code(truncate_chars(&refused.reason, 300)),
        shown.summary
    );
    truncate_bytes(&text, SUMMARY_BYTES).clone_into(&mut shown.summary);
}

/// Replaces an open check run that must no longer be shown.
pub fn withdrawn_content(
    context: &CheckRunContext<'_>,
    run: Option<&str>,
    why: CheckRunVisibility,
) -> Option<CheckRunContent> {
    let (conclusion, reason) = match why {
        CheckRunVisibility::Shown | CheckRunVisibility::NoneForEvent => return None,
        // It was removed, or the backend's level or device has changed.
        CheckRunVisibility::NoneWithoutLabel => (
            Conclusion::Skipped,
            "No label asks for this backend; results go to the HUD only".to_owned(),
        ),
        CheckRunVisibility::NoneOfEvents => (
            Conclusion::Neutral,
            "The repository's entry in the allowlist doesn't take such events any more".to_owned(),
        ),
        CheckRunVisibility::NoneAtLevel(None) => (
            Conclusion::Neutral,
            "The repository was removed from the allowlist; its results aren't shown".to_owned(),
        ),
        CheckRunVisibility::NoneAtLevel(Some(level)) => (
            Conclusion::Neutral,
            format!("The repository is at {level} now; results go to the HUD only"),
        ),
    };
    let run = run.map(str::to_owned);
    Some(dispatch_content(
        context,
        &HeadVerdict { state: HeadState::Ended(conclusion), run, is_foreign: false, reason },
    ))
}

fn conclusion_title(conclusion: Conclusion, details: &ReportDetails) -> String {
    let word = conclusion.as_str().replace('_', " ");
    let mut letters = word.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase()).unwrap_or_default();
    let mut title = format!("{first}{}", letters.as_str());
    if let Some(tests) = details.tests.filter(|tests| tests.failed > 0) {
        let _ = write!(title, ": {} of {} tests failed", tests.failed, tests.total);
    }
    title
}

fn next_steps(context: &CheckRunContext<'_>, is_foreign: bool) -> String {
    let mut text = if is_foreign {
        "\nTo run it again, retry the job in its own CI, which isn't GitHub Actions: *Re-run* on this check doesn't \
         reach it."
            .to_owned()
    } else {
        "\nTo run it again, press *Re-run* on this check.".to_owned()
    };
    if !context.oncalls.is_empty() {
        // As inline code, so that nobody is mentioned.
        let names: Vec<_> = context.oncalls.iter().map(|name| code(name)).collect();
        let _ = write!(text, " To ask: {}.", names.join(", "));
    }
    if context.level < Level::L4 {
        text.push_str(" This result does not block the merge.");
    }
    text.push('\n');
    text
}

/// Untrusted text as inline code, which can't contain links, mentions or a closing backquote.
pub fn code(text: &str) -> String {
    let inner: String = text
        .chars()
        .map(|c| {
            if c == '`' {
                '\''
            } else if c.is_control() {
                ' '
            } else {
                c
            }
        })
        .collect();
    format!("`{}`", if inner.trim().is_empty() { "?" } else { inner.trim() })
}

#[cfg(test)]
mod tests;
