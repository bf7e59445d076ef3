//! Prints what each repository got and what the pull request shows. Fails if a repository got more or
//! less than its level grants.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crcr_domain::RepoName;
use crcr_domain::allowlist::AllowlistEntry;
use crcr_domain::checks::check_run::repo_of;
use crcr_standin::State;
use crcr_standin::world::CheckRun;
use serde_json::Value;

use super::demo_failure;
use super::demo_relay::DemoRelay;
use super::downstream::JobsOutcome;
use super::scenario::DemoScenario;
use crate::failure::Failure;
use crate::printer::Printer;

/// For results to get from the relay to the pull request and the pages.
const RESULTS_TIMEOUT: Duration = Duration::from_secs(20);

/// Waits for the results and prints them.
pub async fn show(
    scenario: &DemoScenario,
    done: &BTreeMap<RepoName, JobsOutcome>,
    state: &State,
    relay: &DemoRelay,
    printer: &Printer,
) -> Result<(), Failure> {
    let client = crcr_github::http::client()
        .map_err(|error| demo_failure("no HTTP client").because(error))?;
    let started = Instant::now();
    let seen = loop {
        let seen = PullRequestState::fetch(scenario, state, &client, relay).await?;
        let wrong: Vec<_> =
            scenario.targets().filter_map(|entry| seen.mismatch(scenario, entry, done)).collect();
        if wrong.is_empty() {
            break seen;
        }
        if started.elapsed() > RESULTS_TIMEOUT {
            return Err(demo_failure(format!(
                "after {} seconds the results don't match the levels: {}",
                RESULTS_TIMEOUT.as_secs(),
                wrong.join("; ")
            )));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    print_table(scenario, done, &seen, printer);
    let why = "without credentials an artifact goes to GitHub's own store, not to the bucket";
    printer.data(&format!("  {why};\n  a second job of each repository got the same bytes back\n"));
    print_check_runs(scenario, &seen, printer);
    Ok(())
}

struct PullRequestState {
    check_runs: Vec<CheckRun>,
    page: Value,
}

impl PullRequestState {
    async fn fetch(
        scenario: &DemoScenario,
        state: &State,
        client: &reqwest::Client,
        relay: &DemoRelay,
    ) -> Result<Self, Failure> {
        let unread = |error: reqwest::Error| {
            demo_failure("the pull request's page can't be read").because(error.without_url())
        };
        let url = relay.join(&format!("api/v1/pulls/{}", scenario.number))?;
        let request = client.get(url).timeout(Duration::from_secs(10));
        let bytes = request.send().await.map_err(unread)?.bytes().await.map_err(unread)?;
        let page = serde_json::from_slice(&bytes)
            .map_err(|error| demo_failure("the pull request's page isn't JSON").because(error))?;
        let check_runs = state.world.check_runs(scenario.upstream.as_str());
        Ok(Self { check_runs, page })
    }

    /// The outcome of the repository's job on its HUD page.
    fn outcome_on_page(&self, repo: &RepoName) -> Option<&str> {
        let backends = self.page["backends"].as_array()?;
        let of_repo = backends.iter().find(|backend| backend["repo"] == repo.as_str())?;
        of_repo.pointer("/jobs/0/outcome")?.as_str()
    }

    fn check_run_conclusion(&self, repo: &RepoName) -> Option<&str> {
        let of_repo =
            self.job_check_runs().find(|run| repo_of(&run.name) == Some(repo.as_str()))?;
        of_repo.conclusion.as_deref()
    }

    /// Check runs of jobs, without those of dispatches.
    fn job_check_runs(&self) -> impl Iterator<Item = &CheckRun> {
        self.check_runs.iter().filter(|run| !run.name.ends_with("/relay/dispatch"))
    }

    /// Describes what a repository has and its level doesn't grant, or the reverse.
    fn mismatch(
        &self,
        scenario: &DemoScenario,
        entry: &AllowlistEntry,
        done: &BTreeMap<RepoName, JobsOutcome>,
    ) -> Option<String> {
        let repo = &entry.repo;
        let recorded = done.get(repo).is_some_and(|done| done.report_outcome == "recorded");
        let rights = [
            ("a recorded report", recorded, entry.level.shows_results()),
            (
                "a result on the page",
                self.outcome_on_page(repo).is_some(),
                entry.level.shows_results(),
            ),
            (
                "a check run",
                self.check_run_conclusion(repo).is_some(),
                scenario.shows_check_run(entry),
            ),
        ];
        let (what, has, _) = rights.into_iter().find(|(_, has, granted)| has != granted)?;
        let has = if has { "has" } else { "lacks" };
        Some(format!("`{repo}` at {} {has} {what}", entry.level))
    }
}

fn print_table(
    scenario: &DemoScenario,
    done: &BTreeMap<RepoName, JobsOutcome>,
    seen: &PullRequestState,
    printer: &Printer,
) {
    let heads = [
        "repository",
        "level",
        "dispatched",
        "credentials",
        "tests",
        "artifact",
        "report",
        "page",
        "check run",
    ];
    let mut rows = vec![heads.map(str::to_owned)];
    for entry in scenario.allowlist.iter() {
        let (repo, level) = (entry.repo.to_string(), entry.level.to_string());
        let none = || "-".to_owned();
        let or_none = |text: Option<&str>| text.map_or_else(none, str::to_owned);
        rows.push(match done.get(&entry.repo) {
            Some(done) => [
                repo,
                level,
                "yes".to_owned(),
                done.credentials.clone(),
                done.conclusion.to_owned(),
                format!("{} ({})", done.store, done.store_reason),
                done.report_outcome.clone(),
                or_none(seen.outcome_on_page(&entry.repo)),
                or_none(seen.check_run_conclusion(&entry.repo)),
            ],
            None => [repo, level, "no".to_owned(), none(), none(), none(), none(), none(), none()],
        });
    }
    let widths: Vec<usize> = (0..heads.len())
        .map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0))
        .collect();
    for row in &rows {
        let cells: Vec<_> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        printer.data(&format!("  {}\n", cells.join("  ").trim_end()));
    }
}

fn print_check_runs(scenario: &DemoScenario, seen: &PullRequestState, printer: &Printer) {
    printer.data("\nCheck runs on the pull request\n");
    for run in seen.job_check_runs() {
        let repo = repo_of(&run.name).and_then(|name| name.parse::<RepoName>().ok());
        let level = repo.and_then(|repo| scenario.allowlist.get(&repo)).map(|entry| entry.level);
        let why = match level {
            Some(level) if level.blocks_merge() => format!("{level}, blocks the merge"),
            Some(level) => format!("{level}, requested by its device's label"),
            None => String::new(),
        };
        let verdict = run.conclusion.as_deref().unwrap_or(&run.status);
        printer.data(&format!("  {verdict:9}  {}  ({why})\n", run.name));
    }
    if seen.job_check_runs().next().is_none() {
        printer.data("  none: only L4, and L3 with the device's label, get check runs\n");
    }
}
