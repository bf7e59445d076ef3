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

    fn neutral_reason(&self) -> &'static str {
        if self.keeps_failing {
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
    summary.push_str(context.neutral_reason());
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
    summary.push_str(context.neutral_reason());
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
mod tests {
    use super::*;
    use crate::protocol::callback::{FailedTest, TestCounts};

    fn job() -> JobId {
        JobId {
            run_id: "12".to_owned(),
            run_attempt: 1,
            workflow: "CI".to_owned(),
            job: Some("test / linux".to_owned()),
        }
    }

    fn context(level: Level) -> CheckRunContext<'static> {
        CheckRunContext {
            repo: "acme/backend",
            level,
            oncalls: &[],
            server_url: "https://github.com",
            pull_request: Some(7),
            page: None,
            blame: None,
            keeps_failing: false,
            nonblocking: None,
        }
    }

    fn content(
        context: &CheckRunContext<'_>,
        state: JobState,
        details: &ReportDetails,
    ) -> CheckRunContent {
        let shown = ShownJob {
            id: &job(),
            state,
            details,
            ended_without_proof: false,
            is_foreign: false,
            failed_before: false,
        };
        job_content(context, &shown)
    }

    #[test]
    fn neutral_title_says_why_it_is_neutral() {
        let reason = "The worst of its runs and jobs: failure".to_owned();
        let state = HeadState::Ended(Conclusion::Failure);
        let verdict = HeadVerdict { state, run: None, is_foreign: false, reason };
        let open = CheckRunContext { keeps_failing: true, ..context(Level::L4) };
        let shown = dispatch_content(&open, &verdict);
        let title = shown.title;
        assert!(title.starts_with("Neutral, because this backend's infrastructure"), "{title}");
        assert!(shown.summary.contains("has failed several times in a row"), "{}", shown.summary);
        let soft = CheckRunContext { nonblocking: Some(Conclusion::Neutral), ..context(Level::L3) };
        let title = dispatch_content(&soft, &verdict).title;
        assert!(title.starts_with("Neutral, because failures at L3 block nobody"), "{title}");
        let title = dispatch_content(&context(Level::L4), &verdict).title;
        assert_eq!(title, verdict.reason);
    }

    #[test]
    fn failed_job_elsewhere_says_that_rerun_does_not_reach_it() {
        let (id, details) = (job(), ReportDetails::default());
        let shown = ShownJob {
            id: &id,
            state: JobState::Completed(Conclusion::Failure),
            details: &details,
            ended_without_proof: false,
            is_foreign: true,
            failed_before: false,
        };
        let content = job_content(&context(Level::L4), &shown);
        assert!(content.summary.contains("retry the job in its own CI"), "{}", content.summary);
        assert_eq!(content.external_id.as_deref(), Some("build-12:7"));
        assert_eq!(content.details_url, None, "a build's number is no run of GitHub");
    }

    #[test]
    fn whose_fault_a_failure_is_stands_in_its_text_and_cannot_format_it() {
        let blame = Some("Infrastructure: it failed in `x` @all [a](https://b.c)`, before");
        let ended = JobState::Completed(Conclusion::Failure);
        let known = CheckRunContext { blame, ..context(Level::L4) };
        let shown = content(&known, ended, &ReportDetails::default());
        let line = "by the other results: `Infrastructure: it failed in 'x' @all [a](https://b.c)', before`";
        assert!(shown.summary.contains(line), "{}", shown.summary);
    }

    #[test]
    fn with_a_public_address_every_check_run_links_the_pull_requests_page() {
        let page = Some("https://relay.test/pr/7");
        let known = CheckRunContext { page, ..context(Level::L4) };
        let ended = JobState::Completed(Conclusion::Success);
        let shown = content(&known, ended, &ReportDetails::default());
        assert!(shown.summary.contains("https://relay.test/pr/7"), "{}", shown.summary);
        assert!(shown.details_url.unwrap().ends_with("/actions/runs/12"), "the run stays in front");
        let reason = "Dispatched".to_owned();
        let waiting =
            HeadVerdict { state: HeadState::Queued, run: None, is_foreign: false, reason };
        let shown = dispatch_content(&known, &waiting);
        assert_eq!(shown.details_url.as_deref(), page, "there is no run yet");
        assert!(shown.summary.contains("https://relay.test/pr/7"), "{}", shown.summary);
        let shown = dispatch_content(&context(Level::L4), &waiting);
        assert_eq!(shown.details_url, None);
    }

    #[test]
    fn a_name_leads_back_to_its_repository() {
        assert_eq!(repo_of(&job_name("acme/backend", &job())), Some("acme/backend"));
        assert_eq!(repo_of(&dispatch_name("acme/backend")), Some("acme/backend"));
        for foreign in ["lint", "crcr/", "crcr/acme", "crcr/acme/backend", "crcr//backend/x"] {
            assert_eq!(repo_of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn no_two_jobs_share_a_check_run_and_none_has_the_dispatchs() {
        let named = |workflow: &str, name: &str| {
            let id = JobId { workflow: workflow.to_owned(), job: Some(name.to_owned()), ..job() };
            job_name("acme/backend", &id)
        };
        let long = "x".repeat(200);
        let names = [
            named("a/b", "c"),
            named("a", "b/c"),
            named("a%2Fb", "c"),
            named("a%252Fb", "c"),
            named("relay", "dispatch"),
            named(&long, &long),
            named(&long, &format!("{}y", &long[1..])),
            dispatch_name("acme/backend"),
        ];
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:#?}");
        assert!(names.iter().all(|name| name.chars().count() <= NAME_CHARS));
        assert_eq!(named("CI", "test / linux"), "crcr/acme/backend/CI/test / linux");
    }

    #[test]
    fn texts_of_any_length_fit() {
        let name = "é".repeat(200);
        let failed = FailedTest {
            name: name.clone(),
            file: Some(name.repeat(400)),
            ..FailedTest::default()
        };
        let details = ReportDetails { failed_tests: vec![failed; 50], ..ReportDetails::default() };
        let ended = JobState::Completed(Conclusion::Failure);
        let shown = content(&context(Level::L4), ended, &details);
        assert!(shown.summary.len() <= 65_535, "GitHub counts bytes");
        let reason = "why ".repeat(1000);
        let verdict =
            HeadVerdict { state: HeadState::Queued, run: None, is_foreign: false, reason };
        assert!(
            dispatch_content(&context(Level::L4), &verdict).title.chars().count() <= TITLE_CHARS
        );
    }

    #[test]
    fn a_reference_leads_back_to_its_run() {
        assert_eq!(external_id("12", Some(7)), "12:7");
        assert_eq!(run_of("12:7"), Some(12));
        assert_eq!(run_of("12"), Some(12));
        assert_eq!(run_of("0190a1b2-aaaa:7"), None);
        assert_eq!(run_of(""), None);
    }

    #[test]
    fn failure_text_lists_tests_and_oncalls_without_mentions() {
        let details = ReportDetails {
            tests: Some(TestCounts { passed: 9, failed: 1, skipped: 0, total: 10 }),
            failed_tests: vec![FailedTest {
                name: "test_add`@everyone`\n# big".to_owned(),
                file: Some("test_ops.py".to_owned()),
                message: None,
                ..FailedTest::default()
            }],
            ..ReportDetails::default()
        };
        let oncalls = ["alice".to_owned()];
        let context = CheckRunContext { oncalls: &oncalls, ..context(Level::L4) };
        let shown = content(&context, JobState::Completed(Conclusion::Failure), &details);
        assert_eq!(shown.status, CheckRunStatus::Completed(Conclusion::Failure));
        insta::assert_snapshot!(format!("{}\n\n{}", shown.title, shown.summary));
    }

    #[test]
    fn title_of_a_job_says_how_it_ended_and_whether_that_is_proven() {
        use JobState::{Completed, Dispatched, InProgress, Lost, NeverStarted};
        let (id, mut details) = (job(), ReportDetails::default());
        details.tests = Some(TestCounts { passed: 9, failed: 0, skipped: 1, total: 10 });
        let titled = |state, ended_without_proof, failed_before| {
            let shown = ShownJob {
                id: &id,
                state,
                details: &details,
                ended_without_proof,
                is_foreign: false,
                failed_before,
            };
            let shown = job_content(&context(Level::L4), &shown);
            let asks_for_a_retry = shown.summary.contains("press *Re-run*");
            (shown.status, shown.title, asks_for_a_retry)
        };
        let ended = CheckRunStatus::Completed;
        let unproven = "Its end was reported without proof, so its result isn't shown";
        let lost = "No result: it started and its end was never reported";
        for (state, without_proof, failed_before, status, title, asks) in [
            (Dispatched, false, true, CheckRunStatus::Queued, "Queued", false),
            (InProgress, false, true, CheckRunStatus::InProgress, "In progress", false),
            (Dispatched, true, false, ended(Conclusion::Cancelled), unproven, true),
            (InProgress, true, false, ended(Conclusion::Cancelled), unproven, true),
            (NeverStarted, false, false, ended(Conclusion::TimedOut), lost, true),
            (Lost, false, false, ended(Conclusion::TimedOut), lost, true),
            (
                Completed(Conclusion::Success),
                false,
                false,
                ended(Conclusion::Success),
                "Success",
                false,
            ),
            (
                Completed(Conclusion::Success),
                false,
                true,
                ended(Conclusion::Success),
                "Passed after a retry",
                false,
            ),
            (
                Completed(Conclusion::Failure),
                false,
                true,
                ended(Conclusion::Failure),
                "Failure",
                true,
            ),
        ] {
            let expected = (status, title.to_owned(), asks);
            assert_eq!(titled(state, without_proof, failed_before), expected, "{state:?}");
        }
    }

    #[test]
    fn failing_tests_that_are_not_listed_are_counted() {
        let summary = |named: usize, more_failed_tests| {
            let failed_tests = (0..named)
                .map(|n| FailedTest { name: format!("test_{n}"), ..FailedTest::default() })
                .collect();
            let details =
                ReportDetails { failed_tests, more_failed_tests, ..ReportDetails::default() };
            content(&context(Level::L4), JobState::Completed(Conclusion::Failure), &details).summary
        };
        let unnamed = "failing tests aren't named";
        for (named, more, told) in [
            (0, 3, Some("\n3 failing tests aren't named")),
            (2, 3, Some("- and 3 more\n")),
            (SHOWN_TESTS, 1, Some("- and 1 more\n")),
            (SHOWN_TESTS + 2, 3, Some("- and 5 more\n")),
            (SHOWN_TESTS, 0, None),
            (0, 0, None),
        ] {
            let text = summary(named, more);
            match told {
                Some(line) => assert!(text.contains(line), "{named} {more}: {text}"),
                None => assert!(!text.contains(unnamed) && !text.contains("- and"), "{text}"),
            }
            assert_eq!(text.contains(unnamed), named == 0 && more > 0, "{text}");
        }
    }

    #[test]
    fn refused_rerun_is_told_before_the_result_from_before() {
        let ended = JobState::Completed(Conclusion::Failure);
        let mut shown = content(&context(Level::L4), ended, &ReportDetails::default());
        let before = shown.clone();
        let refused = RefusedRerun {
            run_id: 12,
            at: jiff::Timestamp::UNIX_EPOCH,
            reason: "403 `no`".to_owned(),
        };
        add_refused_rerun(&mut shown, &refused);
        assert_eq!(shown.title, "Re-run refused by GitHub. Failure");
        let told =
            "GitHub refused to re-run run 12 at 1970-01-01 00:00 UTC: `403 'no'`. What is shown";
        assert!(shown.summary.starts_with(told), "{}", shown.summary);
        assert!(shown.summary.ends_with(&before.summary), "{}", shown.summary);
        assert_eq!(shown.status, before.status);
    }

    #[test]
    fn withdrawn_check_run_ends_and_says_why() {
        use CheckRunVisibility::{
            NoneAtLevel, NoneForEvent, NoneOfEvents, NoneWithoutLabel, Shown,
        };
        let level = context(Level::L3);
        for (why, expected) in [
            (NoneWithoutLabel, (Conclusion::Skipped, "No label asks for this backend")),
            (NoneOfEvents, (Conclusion::Neutral, "doesn't take such events any more")),
            (NoneAtLevel(None), (Conclusion::Neutral, "was removed from the allowlist")),
            (NoneAtLevel(Some(Level::L2)), (Conclusion::Neutral, "The repository is at L2 now")),
        ] {
            let shown = withdrawn_content(&level, Some("12"), why).unwrap();
            assert_eq!(shown.status, CheckRunStatus::Completed(expected.0));
            assert!(shown.title.contains(expected.1), "{}", shown.title);
            assert_eq!(shown.external_id.as_deref(), Some("12:7"));
        }
        assert_eq!(withdrawn_content(&level, None, Shown), None);
        assert_eq!(withdrawn_content(&level, None, NoneForEvent), None);
    }

    #[test]
    fn only_results_at_l4_block_the_merge_and_the_others_say_so() {
        let ended = JobState::Completed(Conclusion::Failure);
        for level in [Level::L1, Level::L2, Level::L3, Level::L4] {
            let shown = content(&context(level), ended, &ReportDetails::default()).summary;
            let is_harmless = shown.contains("This result does not block the merge.");
            assert_eq!(is_harmless, level != Level::L4, "{level}: {shown}");
        }
    }

    #[test]
    fn the_real_conclusion_is_shown_below_l4_unless_softened() {
        let ended = JobState::Completed(Conclusion::Failure);
        for (level, nonblocking, expected) in [
            (Level::L3, None, Conclusion::Failure),
            (Level::L3, Some(Conclusion::Neutral), Conclusion::Neutral),
            (Level::L4, Some(Conclusion::Neutral), Conclusion::Failure),
        ] {
            let context = CheckRunContext { nonblocking, ..context(level) };
            let shown = content(&context, ended, &ReportDetails::default());
            assert_eq!(shown.status, CheckRunStatus::Completed(expected), "{level:?}");
        }
    }

    #[test]
    fn conclusions_reserved_for_github_are_never_sent() {
        for conclusion in Conclusion::BEST_TO_WORST {
            let sent = CheckRunStatus::Completed(conclusion).conclusion().unwrap();
            let lets_through = ["success", "neutral", "skipped"].contains(&sent);
            assert_eq!(lets_through, conclusion.is_good(), "{conclusion}");
            assert!(!["stale", "startup_failure"].contains(&sent));
        }
    }

    #[test]
    fn an_open_check_run_has_a_status_and_no_conclusion() {
        for (status, name, is_open) in [
            (CheckRunStatus::Queued, "queued", true),
            (CheckRunStatus::InProgress, "in_progress", true),
            (CheckRunStatus::Completed(Conclusion::Success), "completed", false),
        ] {
            assert_eq!((status.status(), status.is_open()), (name, is_open));
            assert_eq!(status.conclusion().is_none(), is_open);
        }
    }
}
