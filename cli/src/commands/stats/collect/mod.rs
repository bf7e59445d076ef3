//! `crcr stats collect`: the test reports of a run as rows.
//!
//! It runs with the repository's rights on what a pull request has left behind: the run is known from
//! the event or the API, nothing in an artifact is executed, and no file is written by a name from an
//! artifact.

mod archive;
mod known_reports;
mod read;
mod rows;
mod summary;

use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use crcr_artifacts::fetch::FetchError;
use crcr_artifacts::find::{ArtifactSources, FoundArtifact, SourceRun};
use crcr_artifacts::store::ArtifactStoreError;
use crcr_aws::object_store::ObjectStore;
use crcr_cidata::test_rows::{ARTIFACT_KINDS, ReportArtifact};
use crcr_domain::ci_data::test_row::TestedRun;
use crcr_github::GithubError;
use crcr_github::runs::{WorkflowJob, WorkflowRun};
use crcr_github::runs_artifacts::ActionsApi;
use crcr_results::test_runs::StoredRun;
use crcr_results::{Results, ResultsUrl};
use jiff::Timestamp;
use tokio::sync::mpsc;

use self::read::{QuarantinedFile, ReadCounts, ReceiverGone, ReportReader};
use self::rows::{RowFiles, RowWriter};
use crate::cli::DataFormat;
use crate::cli::artifact::{RunArgs, S3Args};
use crate::cli::stats::CollectArgs;
use crate::commands::artifact::sources;
use crate::commands::no_temporary_folder;
use crate::commands::oidc::builds_default_branch;
use crate::commands::quarantine::read_committed;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::plural;
use crate::runner::Runner;

/// Where a job's reports are in a bucket, unless `--s3-prefix` says something else.
const S3_PREFIX: &str = "{owner}/{repo}/{run_id}/{run_attempt}/artifact";
/// More than a whole artifact may unpack to.
const MAX_ARCHIVE_BYTES: u64 = 4 << 30;
/// Reports that wait to be written. A report can be large.
const WAITING_REPORTS: usize = 2;

pub async fn run(args: &CollectArgs, env: &Env, printer: &Printer) -> Outcome {
    let runner = Runner::new(env, printer);
    let results = open_results(args, env).await?;
    let files = match args.rows.as_deref().filter(|_| !args.dry_run) {
        Some(url) => {
            let store = ObjectStore::open(url).await.map_err(|error| {
                Failure::user("rows", format!("`--rows` (`{url}`) can't be used")).because(error)
            })?;
            Some(RowFiles::new(store)?)
        }
        None => None,
    };
    let (run, is_fork, jobs, source) = match &args.dir {
        Some(folder) => {
            if !folder.is_dir() {
                let text = format!("`--dir` (`{}`) isn't a folder", folder.display());
                return Err(Failure::user("dir", text).hint("name the folder that has the reports"));
            }
            let run = offline_run(args, results.as_deref(), printer).await?;
            (run, true, None, ReportPlace::Folder(folder.clone()))
        }
        None => {
            let sources = open_sources(args, env, printer)?;
            let (run, is_fork) = identify(args, &runner, sources.rest.as_ref()).await?;
            let jobs = match &sources.rest {
                Some(api) => Some(jobs(api, &run).await?),
                None => None,
            };
            (run, is_fork, jobs, ReportPlace::Artifacts(Box::new(sources)))
        }
    };
    let run = Arc::new(run);
    let (sender, receiver) = mpsc::channel(WAITING_REPORTS);
    let mut reader = ReportReader::new(run.clone(), is_fork, jobs, sender);
    reader.job.clone_from(&args.job);
    reader.is_attempt_chosen = args.dir.is_none() || args.run_attempt.is_some();
    let quarantine = read_committed(args.quarantine_file.as_deref(), env, printer);
    let mut writer = RowWriter::new(run.clone(), files, results, quarantine);
    let write = async {
        // Dropped at an error, which ends the reader.
        let mut receiver = receiver;
        while let Some(report) = receiver.recv().await {
            writer.add(report).await?;
        }
        Ok::<(), Failure>(())
    };
    let (read, written) = tokio::join!(read_all(reader, source, &run, &runner), write);
    written?;
    let read = read?;
    writer.finish().await?;
    report(args, &writer, &read, &runner, printer)
}

/// What was read, apart from the rows.
struct ReadResult {
    counts: ReadCounts,
    quarantined: Vec<QuarantinedFile>,
    /// Artifacts that can't be fetched now.
    unreachable: Vec<String>,
}

enum ReportPlace {
    Folder(std::path::PathBuf),
    Artifacts(Box<ArtifactSources>),
}

async fn read_all(
    reader: ReportReader,
    place: ReportPlace,
    run: &TestedRun,
    runner: &Runner,
) -> Result<ReadResult, Failure> {
    let mut unreachable = vec![];
    let reader = match place {
        ReportPlace::Folder(folder) => {
            blocking(reader, move |reader| reader.read_folder(&folder)).await?
        }
        ReportPlace::Artifacts(sources) => {
            read_artifacts(reader, &sources, run, runner, &mut unreachable).await?
        }
    };
    let Some(reader) = reader else {
        return Ok(ReadResult { counts: ReadCounts::default(), quarantined: vec![], unreachable });
    };
    Ok(ReadResult { counts: reader.counts, quarantined: reader.quarantined, unreachable })
}

async fn read_artifacts(
    mut reader: ReportReader,
    sources: &ArtifactSources,
    run: &TestedRun,
    runner: &Runner,
    unreachable: &mut Vec<String>,
) -> Result<Option<ReportReader>, Failure> {
    let source_run = SourceRun {
        repository: run.repository.clone(),
        id: run.run_id,
        own: false,
        first_attempt: false,
    };
    let found = sources.of_attempt(&source_run, run.run_attempt, &ARTIFACT_KINDS).await;
    let (found, expired) = found.map_err(|error| sources::not_found(error, runner.env()))?;
    let folder = tempfile::Builder::new().prefix("crcr-collect-").tempdir_in(runner.temp_dir());
    let folder = folder.map_err(no_temporary_folder)?;
    let mut labels = std::collections::HashSet::new();
    for artifact in found {
        let name = artifact.name.clone();
        let Some(parsed) = ReportArtifact::parse(&name, run.run_attempt) else { continue };
        // Where a job stored its reports in both stores, the bucket's come first.
        if !labels.insert((parsed.kind, parsed.label.clone())) {
            continue;
        }
        if artifact.size.is_some_and(|size| size > MAX_ARCHIVE_BYTES) {
            reader.quarantine(&name, &"cap `artifact-size`: more than 4 GiB");
            continue;
        }
        let path = folder.path().join("artifact");
        match fetch(sources, &source_run, &artifact, &path).await {
            Ok(disk) => {
                let next =
                    blocking(reader, move |reader| reader.read_archive(&name, &parsed, disk));
                let Some(next) = next.await? else { return Ok(None) };
                reader = next;
            }
            Err(error) if is_for_now(&error) => {
                let text = format!("`{name}` can't be fetched: {error}");
                reader.quarantine(&name, &error);
                unreachable.push(text);
            }
            Err(error) => reader.quarantine(&name, &error),
        }
        // The next artifact needs the room.
        let _ = std::fs::remove_file(&path);
    }
    let is_any_lost = expired.iter().any(|name| {
        let parsed = ReportArtifact::parse(name, run.run_attempt);
        parsed.is_some_and(|parsed| !labels.contains(&(parsed.kind, parsed.label)))
    });
    // The row of a failed job without a failure would stay when its report is read after all, or stand beside the
    // failures that were read before the report expired.
    if !unreachable.is_empty() || is_any_lost {
        return Ok(Some(reader));
    }
    blocking(reader, ReportReader::add_jobs_without_report).await
}

async fn fetch(
    sources: &ArtifactSources,
    run: &SourceRun,
    artifact: &FoundArtifact,
    path: &Path,
) -> Result<crcr_artifacts::blob_file::BlobFile, FetchError> {
    sources.fetch_to(run, artifact, path).await
}

/// Whether the same artifact may be readable later.
fn is_for_now(error: &FetchError) -> bool {
    match error {
        FetchError::Store(ArtifactStoreError::NotFound { .. })
        | FetchError::Length { .. }
        | FetchError::Range
        | FetchError::Digest => false,
        FetchError::Store(_)
        | FetchError::Broken { .. }
        | FetchError::Changed
        | FetchError::Disk { .. } => true,
    }
}

/// Runs `work` on a thread that may block. `None` if the receiver of the rows is gone.
async fn blocking(
    mut reader: ReportReader,
    work: impl FnOnce(&mut ReportReader) -> Result<(), ReceiverGone> + Send + 'static,
) -> Result<Option<ReportReader>, Failure> {
    let done = tokio::task::spawn_blocking(move || {
        let read = work(&mut reader);
        read.ok().map(|()| reader)
    });
    done.await
        .map_err(|error| Failure::unexpected("collect", "the reports can't be read").because(error))
}

async fn open_results(args: &CollectArgs, env: &Env) -> Result<Option<Arc<dyn Results>>, Failure> {
    let url = match &args.results {
        Some(url) => Some(url.clone()),
        None => env.setting(env_vars::CRCR_RESULTS)?,
    };
    let Some(url) = url.filter(|_| !args.dry_run) else { return Ok(None) };
    let url = ResultsUrl::parse(&url)
        .map_err(|what| Failure::user("results", format!("`--results`: {what}")))?;
    let unusable = |error| {
        Failure::unexpected("results-unwritable", "the results can't be written")
            .because(anyhow::Error::from(error))
            .hint("check `results`")
    };
    let results = crcr_results::open_or_create(&url).await.map_err(unusable)?;
    results.prepare().await.map_err(unusable)?;
    Ok(Some(results))
}

fn open_sources(
    args: &CollectArgs,
    env: &Env,
    printer: &Printer,
) -> Result<ArtifactSources, Failure> {
    let run = RunArgs { github_token: args.github_token.clone(), repository: None, run_id: None };
    let prefix = args.s3.s3_prefix.clone().unwrap_or_else(|| S3_PREFIX.to_owned());
    let s3 = S3Args { s3_prefix: Some(prefix), ..args.s3.clone() };
    sources::sources(&run, &s3, env, printer)
}

/// The run that the flags name, else the one whose end started this workflow; and whether it is a
/// fork's.
async fn identify(
    args: &CollectArgs,
    runner: &Runner,
    api: Option<&ActionsApi>,
) -> Result<(TestedRun, bool), Failure> {
    if let (Some(repository), Some(id), Some(attempt)) = (&args.repo, args.run_id, args.run_attempt)
    {
        let api = api.ok_or_else(|| {
            Failure::user("token-needed", "which run this is can't be known without a token")
                .hint("pass `github-token` with `permissions: actions: read`, or read a folder with `--dir`")
        })?;
        let run = api.run_attempt(repository, id, attempt).await.map_err(unknown_run)?;
        let branch = api.default_branch(repository).await.map_err(unknown_run)?;
        return Ok(tested_run(repository, attempt, &run, &branch));
    }
    let no_run = || {
        Failure::unexpected("no-run", "this isn't a workflow started by `workflow_run`")
            .hint("name the run with `--repo`, `--run-id` and `--run-attempt`")
    };
    if runner.event_name() != "workflow_run" {
        return Err(no_run());
    }
    let event = runner.event()?;
    let (run, repository) = event.workflow_run.zip(event.repository).ok_or_else(no_run)?;
    let attempt = u32::try_from(run.run_attempt.max(1)).map_err(|_| no_run())?;
    Ok(tested_run(&repository.full_name, attempt, &run, &repository.default_branch))
}

fn unknown_run(error: GithubError) -> Failure {
    let text = "GitHub doesn't tell about the run";
    match error {
        GithubError::NotFound(_) | GithubError::Forbidden(_) => {
            Failure::user("run-not-found", text)
                .hint("check `repo`, `run-id` and `run-attempt`; the token needs `actions: read`")
        }
        _ => Failure::unexpected("github-unavailable", text),
    }
    .because(error)
}

fn tested_run(
    repository: &str,
    run_attempt: u32,
    run: &WorkflowRun,
    default_branch: &str,
) -> (TestedRun, bool) {
    let head = run.head_repository.as_ref();
    let is_fork = head.is_none_or(|head| !head.full_name.eq_ignore_ascii_case(repository));
    let is_its_branch = run.head_branch.as_deref() == Some(default_branch);
    let is_default = builds_default_branch(&run.event, is_its_branch);
    let tested = TestedRun {
        repository: repository.to_owned(),
        workflow_id: run.workflow_id,
        workflow: run.name.clone(),
        run_id: run.id,
        run_attempt,
        head_branch: run.head_branch.clone(),
        head_sha: run.head_sha.clone().filter(|_| tests_its_commit(&run.event)),
        on_default_branch: !is_fork && is_default,
        started_at: run.run_started_at.or(run.created_at).unwrap_or_else(Timestamp::now),
    };
    (tested, is_fork)
}

/// Whether a run of this event tests the commit that GitHub names for it. For a relay's dispatch it is the default
/// branch's, whichever pull request is tested. A test that fails for one and passes for another would look flaky.
fn tests_its_commit(event: &str) -> bool {
    ["push", "schedule", "workflow_dispatch", "merge_group", "release", "create"].contains(&event)
        || event.starts_with("pull_request")
}

/// The run that the flags describe.
async fn offline_run(
    args: &CollectArgs,
    results: Option<&dyn Results>,
    printer: &Printer,
) -> Result<TestedRun, Failure> {
    let required = || Failure::unexpected("usage", "`--dir` needs `--repo`");
    let repository = args.repo.clone().ok_or_else(required)?;
    let run_id = args.run_id.unwrap_or_else(|| {
        // In milliseconds: a loop over folders would collect two of them in one second as one run.
        let run_id = Timestamp::now().as_millisecond().unsigned_abs();
        printer.notice(&format!(
            "the reports are those of run {run_id}: with `--run-id {run_id}` they can be collected again \
             without counting twice"
        ));
        run_id
    });
    let run_attempt = args.run_attempt.unwrap_or(1);
    let stored = match results {
        Some(results) => {
            let stored = results.stored_run(&repository, run_id, run_attempt).await;
            stored.map_err(|error| {
                Failure::unexpected("results-unreadable", "the results can't be read")
                    .because(error)
            })?
        }
        None => None,
    };
    if let Some(stored) = &stored {
        check_stored_run(args, run_id, stored)?;
    }
    if !args.on_default_branch && results.is_some() {
        printer.notice(
            "the results count as another branch's: `--all-branches` of `crcr stats` shows them, and \
             `--on-default-branch` counts them for the default branch",
        );
    }
    // The rows of a run belong to one day and one commit, whenever it is collected again.
    let stored_start = stored.as_ref().map(|stored| stored.started_at);
    let started_at = args.started_at.or(stored_start).unwrap_or_else(Timestamp::now);
    let stored_sha = stored.and_then(|stored| stored.head_sha);
    Ok(TestedRun {
        repository,
        workflow_id: None,
        workflow: None,
        run_id,
        run_attempt,
        head_branch: args.branch.clone(),
        head_sha: args.sha.clone().or(stored_sha),
        on_default_branch: args.on_default_branch,
        started_at,
    })
}

/// Refuses flags that say something else of a run than its stored rows, which wouldn't be changed.
fn check_stored_run(args: &CollectArgs, run_id: u64, stored: &StoredRun) -> Result<(), Failure> {
    let kind = match (&args.sha, &stored.head_sha) {
        _ if args.on_default_branch != stored.on_default_branch => {
            if stored.on_default_branch {
                "the default branch's"
            } else {
                "another branch's"
            }
        }
        (Some(sha), Some(other)) if sha != other => "another commit's",
        (Some(_), None) => "one without a commit",
        _ => return Ok(()),
    };
    Err(Failure::user("run-differs", format!("run {run_id} was collected as {kind}"))
        .hint("give it another `--run-id`"))
}

async fn jobs(api: &ActionsApi, run: &TestedRun) -> Result<HashMap<u64, WorkflowJob>, Failure> {
    let jobs = api.attempt_jobs(&run.repository, run.run_id, run.run_attempt).await;
    let jobs = jobs.map_err(unknown_run)?;
    Ok(jobs.into_iter().map(|job| (job.id, job)).collect())
}

fn report(
    args: &CollectArgs,
    writer: &RowWriter,
    read: &ReadResult,
    runner: &Runner,
    printer: &Printer,
) -> Outcome {
    let ReadResult { counts, quarantined, unreachable } = read;
    runner.append_summary(&writer.collected.markdown(counts, quarantined))?;
    match args.format {
        DataFormat::Json => {
            printer.data_json(&format!("{}\n", summary::json(counts, quarantined)));
        }
        DataFormat::Text => {
            printer.data_line(&format!(
                "{} in {}, {}",
                super::counts(&counts.tally),
                plural(counts.files, "report", "reports"),
                plural(counts.rows, "row", "rows"),
            ));
        }
    }
    for file in quarantined.iter().take(100) {
        printer.warning(&format!("`{}` isn't counted: {}", file.file, file.reason), None);
    }
    if quarantined.len() > 100 {
        let more = format!("{} more files or artifacts aren't counted", quarantined.len() - 100);
        printer.warning(&more, None);
    }
    if runner.env().get(env_vars::GITHUB_OUTPUT).is_some() {
        let tally = &counts.tally;
        let outputs = [
            ("tests", tally.tests),
            ("failed", tally.failures + tally.errors),
            ("flaky", tally.flaky),
            ("files", counts.files),
            ("rows", counts.rows),
            ("quarantined", counts.quarantined),
        ];
        let outputs = outputs.map(|(name, number)| (name, number.to_string()));
        runner.set_outputs(&outputs.each_ref().map(|(name, number)| (*name, &**number)))?;
    }

    if let Some(first) = unreachable.first() {
        let artifacts = plural(unreachable.len(), "artifact", "artifacts");
        let text = format!("{artifacts} can't be fetched; the first: {first}");
        return Err(Failure::unexpected("artifact-unreachable", text)
            .hint("collect the run again: rows that are there already aren't duplicated"));
    }
    if counts.files == 0 {
        if counts.quarantined > 0 || args.dir.is_some() {
            return Err(Failure::user("no-reports", "no report could be read")
                .hint("reports are `.xml`, `.trx` and `.json` files, in folders or in zips"));
        }
        printer.notice("the run has no test reports");
    }
    let is_refused = args.strict && counts.quarantined > 0;
    Ok(if is_refused { ExitCode::from(1) } else { ExitCode::SUCCESS })
}
