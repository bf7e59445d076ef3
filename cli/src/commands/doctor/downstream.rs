//! `crcr doctor downstream`: what a downstream repository needs before the allowlist can name it.
//!
//! What can't be seen with the credentials at hand is listed as not checked, and never as right.

use std::time::Duration;

use crcr_domain::probes::{DOWNSTREAM_FILE, ParsedDownstreamFile};
use crcr_github::http::RetryPolicy;
use crcr_github::lookup::cache::LookupCache;
use crcr_github::lookup::{GithubLookup, RepositoryInfo, Variable};
use crcr_github::runs::WorkflowRun;
use crcr_github::{GithubApp, GithubError, SecureUrl};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use url::Url;

use super::dry_dispatch::DryDispatch;
use super::report::{CheckReport, CheckResult};
use super::strangers::{self, listed};
use crate::cli::doctor::DownstreamArgs;
use crate::commands::github;
use crate::commands::stranger_code::{Exposure, WorkflowJudgement, WorkflowSet};
use crate::commands::workflow::{DispatchWorkflow, ScheduledWorkflow, WorkflowUse, starts_on};
use crate::env_vars::Env;
use crate::failure::Failure;
use crate::printer::Printer;

const MAX_WORKFLOWS: usize = 100;
/// A nightly run may be late, but one that was missed is noticed.
const NIGHTLY_AGE: SignedDuration = SignedDuration::from_hours(48);
/// A report shows that the way to the relay works if it isn't older.
const REPORT_AGE: SignedDuration = SignedDuration::from_hours(7 * 24);
const MAX_HUD_BYTES: usize = 8 * 1024 * 1024;
/// Somebody waits at a terminal, and the answer is one check of many.
const HUD_RETRY: RetryPolicy = RetryPolicy::CALL.within(Duration::from_secs(15));
const TEMPLATE: &str = "`crcr init downstream` writes one that is right";

struct DownstreamCheck<'a> {
    lookup: GithubLookup,
    app: Option<GithubApp>,
    args: &'a DownstreamArgs,
    env: &'a Env,
    repository: RepositoryInfo,
}

/// One workflow of the repository, with its file.
struct WorkflowFile {
    path: String,
    text: String,
}

/// Fails if GitHub can't be asked, so that an outage isn't reported as a finding.
pub async fn check(
    args: &DownstreamArgs,
    env: &Env,
    printer: &Printer,
) -> Result<CheckReport, Failure> {
    let lookup = github::lookup(None, LookupCache::default(), env, printer)?;
    let app = github::app(env)?;
    let name = args.repository.as_str();
    let failed = |error| github::lookup_failure(error, &format!("`{name}`"));
    let mut results = vec![];
    match lookup.repository(name).await.map_err(failed)? {
        None => results.push(CheckResult::error(
            "repository",
            format!("GitHub has no repository `{name}`, or the token can't see it"),
            "check the spelling; a private repository needs a token that sees it",
        )),
        Some(repository) => {
            let check = DownstreamCheck { lookup, app, args, env, repository };
            results.push(check.repository());
            results.extend(check.app().await.map_err(failed)?);
            let files = check.workflow_files().await.map_err(failed)?;
            let judged = check.stranger_code(&files).await.map_err(failed)?;
            results.extend(workflows(&files, &judged, check.env));
            results.push(check.downstream_file().await.map_err(failed)?);
            results.push(check.callback_variable(&files).await.map_err(failed)?);
            results.push(check.nightly(&files).await.map_err(failed)?);
            results.push(check.dispatch(&files).await.map_err(failed)?);
            results.push(relay_report(args).await?);
        }
    }
    Ok(CheckReport { subject: name.to_owned(), results })
}

impl DownstreamCheck<'_> {
    fn name(&self) -> &str {
        &self.repository.full_name
    }

    fn repository(&self) -> CheckResult {
        const CHECK: &str = "repository";
        let (name, named) = (self.name(), self.args.repository.as_str());
        if self.repository.archived {
            let message = format!("`{name}` is archived: no workflow runs there");
            return CheckResult::error(CHECK, message, "unarchive it, or name another one");
        }
        if name != named {
            let message = format!("GitHub calls `{named}` `{name}`");
            return CheckResult::warning(CHECK, message, "write it like that in the allowlist");
        }
        let branch = &self.repository.default_branch;
        CheckResult::ok(CHECK, format!("`{name}` with the default branch `{branch}`"))
    }

    async fn app(&self) -> Result<Vec<CheckResult>, GithubError> {
        const INSTALLED: &str = "app-installed";
        const PERMISSIONS: &str = "app-permissions";
        let Some(app) = &self.app else {
            return Ok(vec![
                CheckResult::not_checked(INSTALLED, self.needs_app("")),
                CheckResult::not_checked(PERMISSIONS, self.needs_app("")),
            ]);
        };
        let installation = match app.installation(self.name()).await {
            Err(GithubError::NotInstalled(_)) => {
                let message = format!("the App isn't installed on `{}`", self.name());
                return Ok(vec![
                    CheckResult::error(INSTALLED, message, "ask an owner to install it"),
                    CheckResult::not_checked(PERMISSIONS, "the App isn't installed"),
                ]);
            }
            other => other?,
        };
        let installed = match installation.suspended_at {
            Some(at) => CheckResult::error(
                INSTALLED,
                format!("the App's installation is suspended since {at:.0}"),
                "ask an owner to resume it",
            ),
            None => CheckResult::ok(INSTALLED, "the App is installed"),
        };
        let granted = |name: &str| {
            let level = installation.permissions.get(name).map(String::as_str);
            matches!(level, Some("write" | "admin"))
        };
        let fix = "ask an owner to accept the App's permissions";
        let permissions = if !granted("contents") {
            let message = "the App lacks `contents: write`, so that nothing can be dispatched";
            CheckResult::error(PERMISSIONS, message, fix)
        } else if !granted("actions") {
            let message = "the App lacks `actions: write`: at L3 and L4 nothing can be re-run";
            CheckResult::warning(PERMISSIONS, message, fix)
        } else {
            CheckResult::ok(PERMISSIONS, "`contents: write` and `actions: write`")
        };
        Ok(vec![installed, permissions])
    }

    /// Why a check needs somebody else, and what that person runs.
    fn needs_app(&self, flag: &str) -> String {
        let name = self.args.repository.as_str();
        format!(
            "it needs the App's own credentials, `GITHUB_APP_ID` and `GITHUB_APP_PRIVATE_KEY`: the upstream \
             maintainer, who has them, runs `crcr doctor downstream {name}{flag}`"
        )
    }

    async fn workflow_files(&self) -> Result<Vec<WorkflowFile>, GithubError> {
        let mut files = vec![];
        for path in self.lookup.workflows(self.name()).await?.into_iter().take(MAX_WORKFLOWS) {
            let text = self.lookup.file(self.name(), &path).await?.unwrap_or_default();
            files.push(WorkflowFile { path, text });
        }
        Ok(files)
    }

    /// What strangers' code and text reach in these workflows.
    async fn stranger_code(
        &self,
        files: &[WorkflowFile],
    ) -> Result<WorkflowJudgement, GithubError> {
        let mut set = WorkflowSet::new(Some(self.name()), self.args.upstream.as_str());
        set.expect_dispatches();
        set.add_ephemeral_runners(&self.args.ephemeral);
        files.iter().for_each(|file| set.add_workflow(&file.path, &file.text));
        if files.len() == MAX_WORKFLOWS {
            set.add_unknown(format!("what comes after {MAX_WORKFLOWS} workflows"));
        }
        github::add_actions(&mut set, &self.lookup, self.name()).await?;
        Ok(set.judge())
    }

    /// What the repository says that it takes. The relay goes on with the last good version of a broken file.
    async fn downstream_file(&self) -> Result<CheckResult, GithubError> {
        const CHECK: &str = "crcr-yml";
        let Some(text) = self.lookup.file(self.name(), DOWNSTREAM_FILE).await? else {
            let other_ending = DOWNSTREAM_FILE.replace(".yml", ".yaml");
            if self.lookup.file(self.name(), &other_ending).await?.is_some() {
                let message = format!(
                    "`{other_ending}` has no effect, as the relay reads `{DOWNSTREAM_FILE}`"
                );
                return Ok(CheckResult::warning(CHECK, message, "rename it"));
            }
            let message = format!(
                "there is no `{DOWNSTREAM_FILE}`, so every event is dispatched, and failures get no probe"
            );
            return Ok(CheckResult::info(CHECK, message));
        };
        let parsed = ParsedDownstreamFile::parse(text.as_bytes());
        if parsed.findings.errors() == 0 {
            return Ok(CheckResult::ok(CHECK, format!("`{DOWNSTREAM_FILE}` can be read")));
        }
        let message = format!("`{DOWNSTREAM_FILE}` has {}", parsed.findings.error_summary());
        let fix = "`crcr downstream validate` prints all of them; until then the relay goes on with the last \
                   good version, or dispatches everything";
        Ok(CheckResult::error(CHECK, message, fix))
    }

    /// The newest run that a schedule started of a workflow that has to do with upstream.
    async fn nightly(&self, files: &[WorkflowFile]) -> Result<CheckResult, GithubError> {
        const CHECK: &str = "nightly";
        let upstream = self.args.upstream.as_str();
        let text_of =
            |path: &str| files.iter().find(|file| file.path == path).map(|file| file.text.clone());
        let scheduled = files.iter().filter_map(|file| {
            let found = ScheduledWorkflow::read(&file.text, upstream, text_of)?;
            Some((&*file.path, found))
        });
        let scheduled: Vec<_> = scheduled.collect();
        let nightly = scheduled.iter().filter(|(_, found)| found.is_nightly);
        let paths: Vec<_> = nightly.map(|(path, _)| *path).collect();
        if paths.is_empty() && scheduled.iter().any(|(_, found)| found.calls_others) {
            let message = format!(
                "the scheduled workflows call others, which may report or check out `{upstream}`"
            );
            return Ok(CheckResult::not_checked(CHECK, message));
        }
        if paths.is_empty() {
            let message = format!(
                "no scheduled workflow on the default branch reports or checks out `{upstream}`"
            );
            return Ok(CheckResult::warning(
                CHECK,
                message,
                "a nightly run shows that a failure isn't the pull request's: `crcr init downstream \
                 --nightly` writes one",
            ));
        }
        let mut runs = vec![];
        for path in &paths {
            match self.lookup.newest_completed_run(self.name(), path, "schedule").await {
                Err(GithubError::Forbidden(why)) => {
                    let message = format!("the runs can't be listed: {why}");
                    return Ok(CheckResult::not_checked(CHECK, message));
                }
                newest => runs.extend(newest?),
            }
        }
        let run = runs.into_iter().max_by_key(started_at);
        let Some((run, at)) = run.and_then(|run| started_at(&run).map(|at| (run, at))) else {
            if let Some(young) = self.young_workflow(&paths).await? {
                return Ok(CheckResult::not_checked(CHECK, young));
            }
            let fix = "wait for the first night, or check that the workflow is enabled";
            return Ok(CheckResult::error(CHECK, "no scheduled run has ended yet", fix));
        };
        let conclusion = run.conclusion.as_deref().unwrap_or("without a conclusion");
        let message = format!("the newest scheduled run is of {at:.0}: {conclusion}");
        Ok(if Timestamp::now().duration_since(at) > NIGHTLY_AGE {
            let fix =
                "check that the workflow is enabled: GitHub stops schedules after 60 quiet days";
            CheckResult::error(CHECK, message, fix)
        } else if conclusion == "success" {
            CheckResult::ok(CHECK, message)
        } else {
            CheckResult::warning(CHECK, message, "make it pass before pull requests depend on it")
        })
    }

    /// Why a nightly workflow can't have run yet, if all of them are new.
    async fn young_workflow(&self, paths: &[&str]) -> Result<Option<String>, GithubError> {
        let mut newest: Option<Timestamp> = None;
        for path in paths {
            let since = match self.lookup.workflow_since(self.name(), path).await {
                Err(GithubError::Forbidden(_)) | Ok(None) => return Ok(None),
                Ok(Some(since)) => since,
                Err(error) => return Err(error),
            };
            newest = newest.max(Some(since));
        }
        let young = newest.filter(|since| Timestamp::now().duration_since(*since) <= NIGHTLY_AGE);
        Ok(young.map(|since| {
            format!("the workflow is there since {since:.0}: wait for its first night")
        }))
    }

    /// The relay's address, which a nightly run has from nowhere else.
    async fn callback_variable(&self, files: &[WorkflowFile]) -> Result<CheckResult, GithubError> {
        const CHECK: &str = "callback-variable";
        const NAME: &str = "CRCR_CALLBACK_URL";
        const FIX: &str = "set it to the relay's callback address in Settings, \"Secrets and variables\", \
                           \"Actions\", \"Variables\"; upstream's maintainers know it";
        let used = files.iter().filter(|file| file.text.contains("vars.CRCR_CALLBACK_URL"));
        let used: Vec<_> = used.collect();
        if used.is_empty() {
            let message = format!("no workflow reads the variable `{NAME}`");
            return Ok(CheckResult::info(CHECK, message));
        }
        let value = match self.lookup.variable(self.name(), NAME).await? {
            Variable::Value(value) => value,
            Variable::Hidden => {
                let message = format!(
                    "the variable `{NAME}` can't be seen with this token: that needs a token of \
                     somebody with access to the repository, with \"Variables: read\""
                );
                return Ok(CheckResult::not_checked(CHECK, message));
            }
            Variable::Missing => {
                let nightly = used.iter().find(|file| is_scheduled(&file.text));
                return Ok(match nightly {
                    Some(file) => CheckResult::error(
                        CHECK,
                        format!(
                            "`{}` reports to the variable `{NAME}`, which isn't set",
                            file.path
                        ),
                        FIX,
                    ),
                    None => CheckResult::warning(
                        CHECK,
                        format!(
                            "the variable `{NAME}` isn't set, so reports arrive only if the relay \
                             names its address in each dispatch"
                        ),
                        FIX,
                    ),
                });
            }
        };
        Ok(match value.trim().parse::<SecureUrl>() {
            Ok(url) => CheckResult::ok(CHECK, format!("`{NAME}` is {}", url.as_str())),
            Err(error) => CheckResult::error(CHECK, format!("the variable `{NAME}` {error}"), FIX),
        })
    }

    /// Sends a closed pull request, for which workflows start a run and skip its jobs.
    async fn dispatch(&self, files: &[WorkflowFile]) -> Result<CheckResult, GithubError> {
        const CHECK: &str = "dispatch";
        let Some(app) = &self.app else {
            return Ok(CheckResult::not_checked(CHECK, self.needs_app(" --dispatch")));
        };
        if !self.args.dispatch {
            let message = "`--dispatch` sends one, and waits for its run to report";
            return Ok(CheckResult::not_checked(CHECK, message));
        }
        let read = files.iter().filter_map(|file| DispatchWorkflow::read(&file.text));
        let dispatch = DryDispatch {
            app,
            repository: self.name(),
            upstream: &self.args.upstream,
            timeout: self.args.timeout,
            runs_name_delivery: read.into_iter().all(|workflow| workflow.names_delivery),
            env: self.env,
        };
        dispatch.send().await
    }
}

fn is_scheduled(text: &str) -> bool {
    serde_yaml::from_str::<serde_yaml::Value>(text)
        .is_ok_and(|workflow| starts_on(&workflow, "schedule"))
}

fn started_at(run: &WorkflowRun) -> Option<Timestamp> {
    run.run_started_at.or(run.created_at)
}

/// What the texts of the workflows say.
fn workflows(files: &[WorkflowFile], judged: &WorkflowJudgement, env: &Env) -> Vec<CheckResult> {
    let read = |file: &WorkflowFile| Some((file.path.clone(), DispatchWorkflow::read(&file.text)?));
    let dispatched: Vec<_> = files.iter().filter_map(read).collect();
    let all = files.iter().map(|file| WorkflowUse::read(&file.text));
    let all = all.fold(WorkflowUse::default(), WorkflowUse::union);
    if dispatched.is_empty() {
        let message = "no workflow on the default branch starts on `repository_dispatch`";
        let mut results = vec![CheckResult::error("workflow", message, TEMPLATE)];
        let exposures = Exposure::ALL.iter().map(|exposure| exposure.as_str());
        let checks = ["event-types", "id-token", "pinned"];
        for check in checks.into_iter().chain(exposures) {
            results.push(CheckResult::not_checked(check, "there is no such workflow"));
        }
        return results;
    }
    let paths: Vec<_> = dispatched.iter().map(|(path, _)| format!("`{path}`")).collect();
    let message = format!("`repository_dispatch` starts {}", paths.join(", "));
    let mut results = vec![CheckResult::ok("workflow", message), event_types(&dispatched)];
    results.push(id_token(&dispatched, all));
    results.extend(strangers::every_result(judged, env));
    let named = |found: fn(&DispatchWorkflow) -> &Vec<String>| -> Vec<String> {
        let of = |(path, workflow): &(String, DispatchWorkflow)| {
            found(workflow).iter().map(|name| format!("`{name}` in `{path}`")).collect::<Vec<_>>()
        };
        dispatched.iter().flat_map(of).collect()
    };
    let unpinned = named(|workflow| &workflow.unpinned);
    results.push(match unpinned.is_empty() {
        true => CheckResult::ok("pinned", "every action is pinned by commit"),
        false => CheckResult::error(
            "pinned",
            format!("not pinned by commit: {}", listed(&unpinned)),
            "pin them by a full commit: whoever moves a tag runs code with this job's rights",
        ),
    });
    results
}

fn event_types(dispatched: &[(String, DispatchWorkflow)]) -> CheckResult {
    const CHECK: &str = "event-types";
    let hears = |event: &str| {
        let hears = |types: &Vec<String>| types.iter().any(|heard| heard == event);
        dispatched.iter().any(|(_, workflow)| workflow.types.as_ref().is_none_or(hears))
    };
    let fix = "list both: `types: [pull_request, push]`";
    match (hears("pull_request"), hears("push")) {
        (true, true) => CheckResult::ok(CHECK, "`pull_request` and `push` are listened for"),
        (true, false) => {
            let message = "`push` isn't listened for, so that there is nothing to compare with";
            CheckResult::warning(CHECK, message, fix)
        }
        (false, _) => CheckResult::error(CHECK, "`pull_request` isn't listened for", fix),
    }
}

fn id_token(dispatched: &[(String, DispatchWorkflow)], all: WorkflowUse) -> CheckResult {
    const CHECK: &str = "id-token";
    let without = dispatched.iter().flat_map(|(path, workflow)| {
        workflow.reports_without_token.iter().map(move |job| format!("`{job}` in `{path}`"))
    });
    let without: Vec<_> = without.collect();
    if !without.is_empty() {
        let message = format!("jobs that report lack `id-token: write`: {}", listed(&without));
        let fix = "add `permissions: {id-token: write}` to them: the token proves who reports";
        return CheckResult::error(CHECK, message, fix);
    }
    if all.reports {
        return CheckResult::ok(CHECK, "every job that reports has `id-token: write`");
    }
    if all.calls_others {
        let message = "the workflows call other workflows or actions, which may report";
        return CheckResult::not_checked(CHECK, message);
    }
    let fix = "add a job with the action `report-ci-result` before asking for L2";
    CheckResult::warning(CHECK, "no job reports, which is enough for L1 only", fix)
}

/// Whether a relay has accepted a report of this repository, as its HUD says.
async fn relay_report(args: &DownstreamArgs) -> Result<CheckResult, Failure> {
    const CHECK: &str = "relay-report";
    let Some(hud) = &args.hud else {
        let message = "`--hud URL` asks a relay that dispatches to it already, such as a test relay: its \
                       operator knows the address";
        return Ok(CheckResult::not_checked(CHECK, message));
    };
    let answer = match ask_hud(hud, args.repository.as_str()).await {
        Ok(answer) => answer,
        Err(error) => {
            return Ok(CheckResult::not_checked(
                CHECK,
                format!("the HUD can't be asked: {error:#}"),
            ));
        }
    };
    let newest = answer["newest"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    let fix = "look at the log of the step that reports, and at the HUD's page of refused reports";
    Ok(match newest {
        None => CheckResult::error(CHECK, "the relay has accepted no report in seven days", fix),
        Some(at) if Timestamp::now().duration_since(at) > REPORT_AGE => {
            let message = format!("the newest report that the relay accepted is of {at:.0}");
            CheckResult::error(CHECK, message, fix)
        }
        Some(at) => CheckResult::ok(CHECK, format!("the relay accepted a report at {at:.0}")),
    })
}

async fn ask_hud(hud: &Url, repository: &str) -> anyhow::Result<Value> {
    let base: SecureUrl = hud.as_str().parse()?;
    let base = base.as_str().trim_end_matches('/').to_owned();
    let client = crcr_github::http::client()?;
    let url = format!("{base}/api/v1/repositories/{repository}?window=7d");
    let response = crcr_github::http::send(HUD_RETRY, || client.get(&url)).await?;
    Ok(crcr_github::http::read_json(response, MAX_HUD_BYTES).await?)
}
