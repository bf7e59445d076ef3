//! The recipe: what the HUD and GitHub say about a failure, as text, JSON and markdown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crcr_domain::RepoName;
use serde::{Deserialize, Serialize};

use super::test_command::{self, RecipeTest};
use crate::cli::allowlist::ReviewFormat;
use crate::cli::reproduce::ReproduceArgs;
use crate::commands::git::is_commit;
use crate::escape::{escape_markdown, neutralize};
use crate::failure::Failure;

/// Failing tests of a job that are listed; the HUD has the rest.
const MAX_TESTS: usize = 50;
const MAX_TEXT: usize = 300;

/// The fields of the HUD's `/api/v1/pulls/NUMBER` that are read.
#[derive(Debug, Deserialize)]
pub struct HudPull {
    upstream: Option<String>,
    head_sha: String,
    merge_base: Option<String>,
    #[serde(default)]
    backends: Vec<HudBackend>,
}

#[derive(Debug, Deserialize)]
struct HudBackend {
    repo: String,
    #[serde(default)]
    jobs: Vec<HudJob>,
}

#[derive(Debug, Deserialize)]
struct HudJob {
    name: String,
    outcome: Option<String>,
    #[serde(default)]
    attempts: u64,
    url: Option<String>,
    #[serde(default)]
    failed_tests: Vec<RecipeTest>,
    environment: Option<String>,
    artifact_url: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Recipe {
    version: u32,
    pub upstream: String,
    pub pull_request: u64,
    pub head_sha: String,
    merge_base: Option<String>,
    pub backend: String,
    jobs: Vec<RecipeJob>,
    /// The workflows of the failed runs.
    pub workflows: Vec<RunPins>,
    /// Why some workflow isn't known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflows_unknown: Option<String>,
    checkout_command: String,
}

#[derive(Debug, Serialize)]
struct RecipeJob {
    name: String,
    outcome: String,
    attempts: u64,
    log: Option<String>,
    environment: Option<String>,
    artifact: Option<String>,
    failed_tests: Vec<RecipeTest>,
    /// How many failing tests are left out.
    more_tests: usize,
    /// A guess from the names of the tests; nobody reported it.
    test_command: Option<String>,
}

/// The workflow of a run, and what it depends on.
#[derive(Debug, Serialize)]
pub struct RunPins {
    pub run: u64,
    pub path: String,
    /// The backend's commit that the workflow is from.
    pub commit: String,
    pub uses: BTreeSet<String>,
    /// The commits that the tags and branches in `uses` name now, which may differ from those that ran.
    pub commits: BTreeMap<String, String>,
    /// The runner labels of each job, as the workflow writes them.
    pub runs_on: BTreeMap<String, String>,
}

impl Recipe {
    pub fn of(pull: HudPull, args: &ReproduceArgs) -> Result<Self, Failure> {
        let odd = |what: &str| {
            Failure::unexpected("hud-answer", format!("the HUD's answer has no {what}"))
                .hint("check that `--hud` is the address of a HUD of crcr")
        };
        if !is_commit(&pull.head_sha) {
            return Err(odd("commit as `head_sha`"));
        }
        let named = args.upstream.as_ref().map(ToString::to_string);
        let upstream = named.or(pull.upstream).filter(|name| RepoName::new(name).is_ok());
        let upstream = &*upstream.ok_or_else(|| odd("repository as `upstream`"))?;
        let backend = args.backend.as_str();
        let number = args.number;
        let of_backend = pull.backends.into_iter().find(|it| it.repo.eq_ignore_ascii_case(backend));
        let of_backend = of_backend.ok_or_else(|| {
            let message = format!("`{backend}` has no results of {upstream}#{number}");
            Failure::user("no-results", message)
                .hint("the HUD's page of the pull request lists the backends that have")
        })?;
        let names = of_backend.jobs.iter().map(|job| bounded(&job.name)).collect::<Vec<_>>();
        let wanted = |job: &HudJob| match (&args.job, job.outcome.as_deref()) {
            (Some(name), _) => job.name == *name,
            (None, None | Some("passed" | "passed_after_rerun" | "superseded")) => false,
            (None, Some(_)) => true,
        };
        let jobs: Vec<_> =
            of_backend.jobs.into_iter().filter(wanted).map(RecipeJob::from).collect();
        if jobs.is_empty() {
            let message = match &args.job {
                Some(name) => format!("`{backend}` has no job `{}`", bounded(name)),
                None => format!("no job of `{backend}` failed on {upstream}#{number}"),
            };
            let known = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            return Err(Failure::user("no-failure", message)
                .hint(format!("name a job by `--job`; there are: {known}")));
        }
        let head_sha = pull.head_sha;
        Ok(Self {
            version: 1,
            upstream: upstream.to_owned(),
            pull_request: number,
            checkout_command: format!(
                "crcr checkout --path upstream --repository {upstream} --sha {head_sha}"
            ),
            head_sha,
            merge_base: pull.merge_base.filter(|sha| is_commit(sha)),
            // The same name as `backend`, in the spelling of the allowlist.
            backend: of_backend.repo,
            jobs,
            workflows: vec![],
            workflows_unknown: None,
        })
    }

    /// The runs of the backend that its jobs link to.
    pub fn run_ids(&self) -> BTreeSet<u64> {
        let own = |path: &str| {
            let mut parts = path.trim_start_matches('/').split('/');
            let (owner, repo) = (parts.next()?, parts.next()?);
            let is_own = format!("{owner}/{repo}").eq_ignore_ascii_case(&self.backend);
            let kind = (parts.next()?, parts.next()?);
            if !is_own || kind != ("actions", "runs") {
                return None;
            }
            parts.next()?.parse().ok()
        };
        let urls = self.jobs.iter().filter_map(|job| url::Url::parse(job.log.as_ref()?).ok());
        urls.filter_map(|url| own(url.path())).collect()
    }

    pub fn render(&self, format: ReviewFormat) -> String {
        match format {
            ReviewFormat::Text => neutralize(&self.text()).into_owned(),
            ReviewFormat::Json => {
                let value = serde_json::to_value(self).expect("a recipe is always JSON");
                format!("{value:#}\n")
            }
            ReviewFormat::Markdown => self.markdown(),
        }
    }

    /// The lines of a job as names and values.
    fn facts(job: &RecipeJob) -> Vec<(&'static str, &str)> {
        let is_unknown = job.test_command.is_none() && !job.failed_tests.is_empty();
        let unknown =
            is_unknown.then_some("not known: the report doesn't tell how its tests are run");
        let known = [
            ("log", job.log.as_deref()),
            ("environment", job.environment.as_deref()),
            ("artifact", job.artifact.as_deref()),
            ("guess", job.test_command.as_deref()),
            ("command", unknown),
        ];
        known.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    fn text(&self) -> String {
        let mut out = format!("{}#{} on {}\n", self.upstream, self.pull_request, self.backend);
        let merge_base = self.merge_base.as_deref().unwrap_or("unknown");
        let _ = writeln!(out, "  head         {}", self.head_sha);
        let _ = writeln!(out, "  merge base   {merge_base}");
        let _ = writeln!(out, "  check out    {}", self.checkout_command);
        for job in &self.jobs {
            let attempts = if job.attempts > 1 {
                format!(", {} attempts", job.attempts)
            } else {
                String::new()
            };
            let _ = writeln!(out, "\njob {}: {}{attempts}", job.name, job.outcome);
            for (name, value) in Self::facts(job) {
                let _ = writeln!(out, "  {name:<12} {value}");
            }
            for test in &job.failed_tests {
                let _ = writeln!(out, "  failed       {}", test.line());
            }
            if job.more_tests > 0 {
                let _ = writeln!(out, "  and {} more failing tests", job.more_tests);
            }
        }
        for pins in &self.workflows {
            let _ = writeln!(out, "\nworkflow {} at {} (run {})", pins.path, pins.commit, pins.run);
            for (job, labels) in &pins.runs_on {
                let _ = writeln!(out, "  runs on      {job}: {labels}");
            }
            for uses in &pins.uses {
                let _ = writeln!(out, "  uses         {}", pins.used(uses));
            }
        }
        if let Some(why) = &self.workflows_unknown {
            let _ = writeln!(out, "\nworkflow: not known, because {why}");
        }
        out
    }

    fn markdown(&self) -> String {
        let mut out = format!(
            "### {}#{} on {}\n\n- head `{}`\n- merge base {}\n- check out: `{}`\n",
            escape_markdown(&self.upstream),
            self.pull_request,
            escape_markdown(&self.backend),
            self.head_sha,
            self.merge_base.as_ref().map_or("unknown".to_owned(), |sha| format!("`{sha}`")),
            self.checkout_command,
        );
        for job in &self.jobs {
            let (name, outcome) = (escape_markdown(&job.name), escape_markdown(&job.outcome));
            let _ = writeln!(out, "\n#### {name}: {outcome}\n");
            for (name, value) in Self::facts(job) {
                let _ = writeln!(out, "- {name}: {}", escape_markdown(value));
            }
            for test in &job.failed_tests {
                let _ = writeln!(out, "- failed: {}", escape_markdown(&test.line()));
            }
            if job.more_tests > 0 {
                let _ = writeln!(out, "- and {} more failing tests", job.more_tests);
            }
        }
        for pins in &self.workflows {
            let path = escape_markdown(&pins.path);
            let _ = writeln!(out, "\n#### {path} at `{}`\n", escape_markdown(&pins.commit));
            for (job, labels) in &pins.runs_on {
                let text = escape_markdown(&format!("{job}: {labels}"));
                let _ = writeln!(out, "- runs on {text}");
            }
            for uses in &pins.uses {
                let _ = writeln!(out, "- uses {}", escape_markdown(&pins.used(uses)));
            }
        }
        if let Some(why) = &self.workflows_unknown {
            let _ = writeln!(out, "\nThe workflow isn't known: {}", escape_markdown(why));
        }
        out
    }
}

impl RunPins {
    /// An action, with the commit that its tag names now.
    fn used(&self, uses: &str) -> String {
        match self.commits.get(uses) {
            Some(commit) => format!("{uses} (now {commit})"),
            None => uses.to_owned(),
        }
    }
}

impl From<HudJob> for RecipeJob {
    fn from(job: HudJob) -> Self {
        let text = |text: Option<String>| text.map(|text| bounded(&text));
        let https = |url: Option<String>| {
            url.filter(|url| url::Url::parse(url).is_ok_and(|url| url.scheme() == "https"))
        };
        let all = job.failed_tests.len();
        let tests = job.failed_tests.into_iter().take(MAX_TESTS).map(|test| RecipeTest {
            name: bounded(&test.name),
            classname: text(test.classname),
            file: text(test.file),
            message: text(test.message),
        });
        let failed_tests: Vec<_> = tests.collect();
        Self {
            name: bounded(&job.name),
            outcome: bounded(&job.outcome.unwrap_or("running".to_owned())),
            attempts: job.attempts,
            log: https(job.url).as_deref().map(bounded),
            environment: text(job.environment),
            artifact: https(job.artifact_url).as_deref().map(bounded),
            test_command: test_command::guess(&failed_tests),
            more_tests: all - failed_tests.len(),
            failed_tests,
        }
    }
}

/// One line of at most [`MAX_TEXT`] characters without control characters.
fn bounded(text: &str) -> String {
    let line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut kept: String = line.take(MAX_TEXT + 1).collect();
    if kept.chars().count() > MAX_TEXT {
        kept.pop();
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_broken_lines_are_bounded() {
        assert_eq!(bounded("a\nb\u{1b}[2J"), "a b [2J");
        assert_eq!(bounded(&"x".repeat(9999)).chars().count(), MAX_TEXT + 1);
    }
}
