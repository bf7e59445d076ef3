//! What everybody got: the table, and what the pull request shows. A level that got more or less
//! than it grants is an error.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crcr_domain::RepoName;
use crcr_domain::allowlist::Entry;
use crcr_domain::check_run::repo_of;
use crcr_standin::State;
use crcr_standin::world::CheckRun;
use serde_json::Value;

use super::downstream::Done;
use super::failed;
use super::input::Input;
use super::relay::Running;
use crate::failure::Failure;
use crate::printer::Printer;

/// How long results may take from the relay to the pull request and the pages.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for the results and prints them.
pub async fn show(
    input: &Input,
    done: &BTreeMap<RepoName, Done>,
    state: &State,
    relay: &Running,
    printer: &Printer,
) -> Result<(), Failure> {
    let client =
        crcr_github::http::client().map_err(|error| failed("no HTTP client").because(error))?;
    let started = Instant::now();
    let seen = loop {
        let seen = Seen::now(input, state, &client, relay).await?;
        let wrong: Vec<_> =
            input.targets().filter_map(|entry| seen.wrong(input, entry, done)).collect();
        if wrong.is_empty() {
            break seen;
        }
        if started.elapsed() > PATIENCE {
            return Err(failed(format!(
                "after {} seconds the results aren't as the levels grant: {}",
                PATIENCE.as_secs(),
                wrong.join("; ")
            )));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    table(input, done, &seen, printer);
    let why = "without credentials an artifact goes to GitHub's own store, not to the bucket";
    printer.data(&format!("  {why};\n  a second job of each repository got the same bytes back\n"));
    pull_request(input, &seen, printer);
    Ok(())
}

/// What is to be seen at one moment.
struct Seen {
    check_runs: Vec<CheckRun>,
    page: Value,
}

impl Seen {
    async fn now(
        input: &Input,
        state: &State,
        client: &reqwest::Client,
        relay: &Running,
    ) -> Result<Self, Failure> {
        let unread = |error: reqwest::Error| {
            failed("the pull request's page can't be read").because(error.without_url())
        };
        let url = relay.at(&format!("api/v1/pulls/{}", input.number))?;
        let request = client.get(url).timeout(Duration::from_secs(10));
        let bytes = request.send().await.map_err(unread)?.bytes().await.map_err(unread)?;
        let page = serde_json::from_slice(&bytes)
            .map_err(|error| failed("the pull request's page isn't JSON").because(error))?;
        let check_runs = state.world.check_runs(input.upstream.as_str());
        Ok(Self { check_runs, page })
    }

    /// The outcome of the repository's job on the page.
    fn on_page(&self, repo: &RepoName) -> Option<&str> {
        let backends = self.page["backends"].as_array()?;
        let of_repo = backends.iter().find(|backend| backend["repo"] == repo.as_str())?;
        of_repo.pointer("/jobs/0/outcome")?.as_str()
    }

    /// The verdict of the repository's job on the pull request.
    fn check_run(&self, repo: &RepoName) -> Option<&str> {
        let of_repo = self.jobs().find(|run| repo_of(&run.name) == Some(repo.as_str()))?;
        of_repo.conclusion.as_deref()
    }

    /// The check runs of jobs, without those that stand for a dispatch.
    fn jobs(&self) -> impl Iterator<Item = &CheckRun> {
        self.check_runs.iter().filter(|run| !run.name.ends_with("/relay/dispatch"))
    }

    /// What a repository has that its level doesn't grant, or the reverse.
    fn wrong(
        &self,
        input: &Input,
        entry: &Entry,
        done: &BTreeMap<RepoName, Done>,
    ) -> Option<String> {
        let repo = &entry.repo;
        let recorded = done.get(repo).is_some_and(|done| done.outcome == "recorded");
        let rights = [
            ("a recorded report", recorded, entry.level.shows_results()),
            ("a result on the page", self.on_page(repo).is_some(), entry.level.shows_results()),
            ("a check run", self.check_run(repo).is_some(), input.shows_check_run(entry)),
        ];
        let (what, has, _) = rights.into_iter().find(|(_, has, granted)| has != granted)?;
        let has = if has { "has" } else { "lacks" };
        Some(format!("`{repo}` at {} {has} {what}", entry.level))
    }
}

fn table(input: &Input, done: &BTreeMap<RepoName, Done>, seen: &Seen, printer: &Printer) {
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
    for entry in input.allowlist.iter() {
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
                format!("{} ({})", done.store, done.why),
                done.outcome.clone(),
                or_none(seen.on_page(&entry.repo)),
                or_none(seen.check_run(&entry.repo)),
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

fn pull_request(input: &Input, seen: &Seen, printer: &Printer) {
    printer.data("\nThe pull request shows these check runs\n");
    for run in seen.jobs() {
        let repo = repo_of(&run.name).and_then(|name| name.parse::<RepoName>().ok());
        let level = repo.and_then(|repo| input.allowlist.get(&repo)).map(|entry| entry.level);
        let why = match level {
            Some(level) if level.blocks_merge() => format!("{level}, blocks the merge"),
            Some(level) => format!("{level}, by the label of its device"),
            None => String::new(),
        };
        let verdict = run.conclusion.as_deref().unwrap_or(&run.status);
        printer.data(&format!("  {verdict:9}  {}  ({why})\n", run.name));
    }
    if seen.jobs().next().is_none() {
        printer.data("  none: only L4, and L3 with the label of its device, have them\n");
    }
}
