//! `crcr artifact download`: downloads artifacts of a run from either store into a folder.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use crcr_artifacts::download::{
    self, DownloadError, DownloadRequest, DownloadResult, DownloadedArtifact,
};
use crcr_artifacts::fetch::FetchError;
use crcr_artifacts::find::pattern::NamePattern;
use crcr_artifacts::find::{ArtifactLocation, ArtifactSelection, ArtifactSources};
use crcr_artifacts::locator::{self, ArtifactTrust, Locator, MAX_OUTPUT_BYTES};
use crcr_artifacts::objects::ObjectsError;
use crcr_artifacts::store::ArtifactStoreError;
use crcr_artifacts::trust::{TrustRefusal, is_privileged};
use crcr_artifacts::unpack::OnCollision;

use super::stop_signal;
use crate::cli::artifact::{DigestMismatch, DownloadArgs, OnCollisionArg};
use crate::commands::artifact::sources::{
    DELETED_HINT, SummaryRow, files_text, github_url, not_found, run_of, s3_page, service,
    set_empty_outputs, sources, store_failed, summarize_failure, table, warn_instead,
};
use crate::commands::no_temporary_folder;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::{Printer, human_bytes};
use crate::runner::Runner;

/// In the step summary.
const MAX_ROWS: usize = 100;

pub const OUTPUTS: [&str; 9] = [
    "download-path",
    "store",
    "reason",
    "artifact-id",
    "artifact-url",
    "artifact-digest",
    "locator",
    "size",
    "files",
];

/// With more artifacts than this, their lines in the log are folded into a group.
const MAX_LINES: usize = 8;

/// Sets the outputs in any case.
pub async fn run(args: &DownloadArgs, env: &Env, printer: &Printer) -> Outcome {
    let runner = Runner::new(env, printer);
    if let Err(failure) = Box::pin(attempt(args, &runner, printer)).await {
        set_empty_outputs(&OUTPUTS, failure.code(), &runner, printer);
        let what = args.name.as_deref().or(args.pattern.as_deref()).unwrap_or("artifacts");
        summarize_failure(what, &failure, &runner, printer);
        if args.required {
            return Err(failure);
        }
        warn_instead(&failure, printer);
    }
    Ok(ExitCode::SUCCESS)
}

async fn attempt(args: &DownloadArgs, runner: &Runner, printer: &Printer) -> Result<(), Failure> {
    let (done, request) = Box::pin(fetch(args, runner, printer)).await?;
    report(&done, args, &request, printer, runner)
}

/// Downloads the selected artifacts, without setting outputs.
pub async fn fetch(
    args: &DownloadArgs,
    runner: &Runner,
    printer: &Printer,
) -> Result<(DownloadResult, DownloadRequest), Failure> {
    let env = runner.env();
    let run = run_of(&args.run, env)?;
    let select = select(args, printer)?;
    let service = service(env, printer)?;
    let sources = ArtifactSources { service, ..sources(&args.run, &args.s3, env, printer)? };
    let privileged = is_privileged(runner.event_name());
    let destination = destination(args, runner, privileged)?;
    let progress = Arc::new(printer.progress("downloading", 0));
    let (told, known) = (progress.clone(), progress.clone());
    let request = DownloadRequest {
        run,
        select,
        destination: destination.path.clone(),
        merge: args.merge_multiple,
        on_collision: match args.on_collision {
            OnCollisionArg::Error => OnCollision::Error,
            OnCollisionArg::Last => OnCollision::Last,
        },
        privileged,
        allow_fork: args.allow_fork,
        // In a privileged event a wrong digest is never accepted.
        digest_must_match: privileged || args.digest_mismatch == DigestMismatch::Error,
        keep_archives: args.skip_decompress,
        total: Box::new(move |bytes| known.set_total(bytes)),
        arrived: Arc::new(move |bytes| told.advance(bytes)),
    };
    // Each signed URL prints lines that mask it, so fold them.
    printer.group("download");
    let done = tokio::select! {
        done = download::download(&sources, &request) => {
            done.map_err(|error| failure(error, args.merge_multiple, env))
        }
        signal = stopped() => Err(signal),
    };
    progress.finish();
    printer.end_group();
    match done {
        Ok(done) => Ok((done, request)),
        Err(failure) => {
            if destination.fresh {
                // It is empty, because a failed download publishes nothing.
                let _ = std::fs::remove_dir(&destination.path);
            }
            Err(failure)
        }
    }
}

struct Destination {
    path: PathBuf,
    /// Whether this command has created it.
    fresh: bool,
}

fn destination(
    args: &DownloadArgs,
    runner: &Runner,
    privileged: bool,
) -> Result<Destination, Failure> {
    let home = runner.env().get(env_vars::HOME);
    let given = args.path.as_deref().map(str::trim).filter(|path| !path.is_empty());
    if let Some(path) = given {
        let below_home =
            path.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let path = match (below_home, home) {
            (Some(rest), Some(home)) => PathBuf::from(format!("{home}{rest}")),
            _ => PathBuf::from(path),
        };
        return Ok(Destination { path, fresh: false });
    }
    if privileged {
        let path = download::fresh_folder(&runner.temp_dir()).map_err(no_temporary_folder)?;
        return Ok(Destination { path, fresh: true });
    }
    Ok(Destination { path: PathBuf::from("."), fresh: false })
}

fn select(args: &DownloadArgs, printer: &Printer) -> Result<ArtifactSelection, Failure> {
    let named = args.name.as_ref().map(|_| "name");
    let named = named.or((!args.artifact_ids.is_empty()).then_some("artifact-ids"));
    if let (Some(named), Some(_)) = (named, &args.pattern) {
        printer.warning(&format!("`pattern` has no effect beside `{named}`"), None);
    }
    if let Some(text) = &args.locator {
        let locator = read_locator(text)?;
        if let Some(name) = args.name.as_deref().filter(|name| *name != locator.name) {
            let text = format!("the locator is for `{}`, and `{name}` is wanted", locator.name);
            return Err(Failure::user("locator-refused", text).hint("leave one of them out"));
        }
        return Ok(ArtifactSelection::Locator(Box::new(locator)));
    }
    if let Some(name) = &args.name {
        return Ok(ArtifactSelection::Name(name.clone()));
    }
    if args.artifact_ids.is_empty() {
        return args.pattern.as_deref().map_or(Ok(ArtifactSelection::All), |pattern| {
            Ok(ArtifactSelection::Pattern(name_pattern(pattern)?))
        });
    }
    let mut ids = Vec::new();
    let texts = args.artifact_ids.iter().flat_map(|text| text.split([',', '\n', ' ']));
    for text in texts.map(str::trim).filter(|text| !text.is_empty()) {
        let id = text.parse().map_err(|_| {
            Failure::user("artifact-ids", format!("`artifact-ids`: `{text}` isn't a number"))
                .hint("give values of the output `artifact-id` of uploads")
        })?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    if ids.is_empty() {
        return Err(Failure::user("artifact-ids", "`artifact-ids` names no number")
            .hint("give values of the output `artifact-id` of uploads"));
    }
    Ok(ArtifactSelection::Ids(ids))
}

pub fn name_pattern(pattern: &str) -> Result<NamePattern, Failure> {
    NamePattern::new(pattern).map_err(|error| {
        Failure::user("pattern", format!("`pattern` (`{pattern}`) isn't a glob"))
            .because(error)
            .hint("`*`, `?`, `[…]`, `{a,b}` and a first `!` have a meaning; `[[]` is a bracket")
    })
}

/// The input `locator`: the JSON itself, or the path of a file that holds it.
fn read_locator(text: &str) -> Result<Locator, Failure> {
    let refused = || {
        Failure::user("locator-refused", "`locator` can't be used")
            .hint("give the output `locator` of the upload, or the path of a file that holds it")
    };
    let text = text.trim();
    if text.starts_with('{') {
        return Locator::parse(text.as_bytes()).map_err(|error| refused().because(error));
    }
    let size = std::fs::metadata(text).map_err(|error| refused().because(error))?.len();
    if size > locator::MAX_BYTES as u64 {
        return Err(refused().because(locator::LocatorError::TooLarge(size as usize)));
    }
    let bytes = std::fs::read(text).map_err(|error| refused().because(error))?;
    Locator::parse(&bytes).map_err(|error| refused().because(error))
}

/// Waits for the signal that cancels the job. The download is dropped then, which cleans up.
async fn stopped() -> Failure {
    stop_signal().await;
    Failure::unexpected("cancelled", "the download was cancelled")
}

fn report(
    done: &DownloadResult,
    args: &DownloadArgs,
    request: &DownloadRequest,
    printer: &Printer,
    runner: &Runner,
) -> Result<(), Failure> {
    print_artifacts(done, args, printer);
    let path = std::path::absolute(&request.destination)
        .unwrap_or_else(|_| request.destination.clone())
        .components()
        .collect::<PathBuf>();
    printer.line(&format!("into {}", path.display()));
    let outputs = outputs(done, path.display().to_string(), request, runner.env());
    let outputs: Vec<_> = outputs.iter().map(|(name, value)| (*name, value.as_str())).collect();
    runner.set_outputs(&outputs)?;
    if done.artifacts.is_empty() { Ok(()) } else { summarize(done, request, runner) }
}

fn print_artifacts(done: &DownloadResult, args: &DownloadArgs, printer: &Printer) {
    let grouped = done.artifacts.len() > MAX_LINES;
    if grouped {
        printer.group(&format!("{} artifacts", done.artifacts.len()));
    }
    for artifact in &done.artifacts {
        if let Some(why) = &artifact.mismatch {
            let text = format!("`{}` isn't what was uploaded: {why}", artifact.found.name);
            match args.digest_mismatch {
                DigestMismatch::Ignore => {}
                DigestMismatch::Info => printer.line(&text),
                DigestMismatch::Warn | DigestMismatch::Error => printer.warning(&text, None),
            }
        }
        printer.line(&format!("{} {}", artifact.found.name, line(artifact)));
    }
    if grouped {
        printer.end_group();
    }
    if done.artifacts.is_empty() {
        printer.notice("no artifact matches: nothing was downloaded");
    }
}

fn outputs(
    done: &DownloadResult,
    path: String,
    request: &DownloadRequest,
    env: &Env,
) -> [(&'static str, String); OUTPUTS.len()] {
    let mut stores: Vec<_> = done.artifacts.iter().map(|one| one.found.store()).collect();
    stores.sort_unstable();
    stores.dedup();
    let sum =
        |of: fn(&DownloadedArtifact) -> u64| done.artifacts.iter().map(of).sum::<u64>().to_string();
    let single = (done.artifacts.len() == 1).then(|| &done.artifacts[0]);
    let id = single.and_then(|one| one.found.artifact_id());
    let locator = single.and_then(|one| one.found.locator.as_ref());
    let url = single.map(|one| url_of(one, request, env)).unwrap_or_default();
    let reason = if done.artifacts.is_empty() { "no-artifacts" } else { "ok" };
    [
        ("download-path", path),
        ("store", if stores.is_empty() { "none".to_owned() } else { stores.join(",") }),
        ("reason", reason.to_owned()),
        ("artifact-id", id.map(|id| id.to_string()).unwrap_or_default()),
        ("artifact-url", url),
        ("artifact-digest", single.map(|one| one.digest.hex()).unwrap_or_default()),
        ("locator", locator.map(|locator| locator.to_json(MAX_OUTPUT_BYTES)).unwrap_or_default()),
        ("size", sum(|one| one.size)),
        ("files", sum(|one| one.unpacked.files)),
    ]
}

/// A table of the artifacts in the step's summary.
fn summarize(
    done: &DownloadResult,
    request: &DownloadRequest,
    runner: &Runner,
) -> Result<(), Failure> {
    let texts: Vec<_> = done
        .artifacts
        .iter()
        .take(MAX_ROWS)
        .map(|one| {
            let trust =
                if one.trust == Some(ArtifactTrust::Fork) { "may be a stranger's" } else { "ok" };
            let bytes = (human_bytes(one.size), human_bytes(one.unpacked.bytes));
            let files = files_text(one.unpacked.files);
            (url_of(one, request, runner.env()), trust, files, format!("{} → {}", bytes.0, bytes.1))
        })
        .collect();
    let rows: Vec<_> = done
        .artifacts
        .iter()
        .zip(&texts)
        .map(|(one, (url, reason, files, size))| {
            let (name, store) = (&one.found.name, one.found.store());
            SummaryRow { name, url, store, reason, files, size }
        })
        .collect();
    let mut text = table(&rows);
    if let Some(more) = done.artifacts.len().checked_sub(MAX_ROWS).filter(|more| *more > 0) {
        text.push_str(&format!("\nand {more} more\n"));
    }
    runner.append_summary(&text)
}

/// The web page of an artifact.
fn url_of(artifact: &DownloadedArtifact, request: &DownloadRequest, env: &Env) -> String {
    match (&artifact.found.at, artifact.found.artifact_id()) {
        (ArtifactLocation::S3 { store, key }, _) => {
            let endpoint = store.endpoint().map(url::Url::as_str);
            s3_page(endpoint, store.region(), store.bucket(), key)
        }
        (_, Some(id)) => github_url(env, &request.run.repository, request.run.id, id),
        _ => String::new(),
    }
}

/// Store, sizes and digest of one artifact.
fn line(artifact: &DownloadedArtifact) -> String {
    let trust = match artifact.trust {
        Some(ArtifactTrust::Fork) => ", may be a stranger's",
        Some(ArtifactTrust::SameRepo) | None => "",
    };
    format!(
        "from {}: {}, {} fetched, {} unpacked{trust}, {}",
        artifact.found.store(),
        files_text(artifact.unpacked.files),
        human_bytes(artifact.size),
        human_bytes(artifact.unpacked.bytes),
        artifact.digest
    )
}

const FETCH_AGAIN: &str =
    "run the step again; if it fails again, look at the network and the proxy";

fn fetch_hint(error: &FetchError) -> &'static str {
    match error {
        FetchError::Length { .. } => {
            "something else is in its place now, or was sent in its place: upload it again"
        }
        FetchError::Store(ArtifactStoreError::NotFound { .. }) => DELETED_HINT,
        _ => FETCH_AGAIN,
    }
}

/// Converts an error to a message with a hint.
fn failure(error: DownloadError, merges: bool, env: &Env) -> Failure {
    let text = error.to_string();
    if error.is_disk_full() {
        let hint = match error {
            DownloadError::Fetch { .. } => {
                "free some space there: an archive lies beside `path` until it is unpacked"
            }
            _ => "free some space, or choose another `path`",
        };
        return Failure::user("disk-full", text).hint(hint);
    }
    match error {
        DownloadError::Find(error) => not_found(error, env),
        DownloadError::TrustUnknown => Failure::user("token-needed", text)
            .hint("in a privileged event pass `github-token` with `permissions: actions: read`"),
        DownloadError::Trust { why: TrustRefusal::Fork(_) | TrustRefusal::Event(_), .. } => {
            Failure::user("untrusted-artifact", text).hint(
                "`allow-fork: true` takes it; treat every byte of it as a stranger's, and never run \
                 it with this event's rights",
            )
        }
        DownloadError::Trust { .. } => Failure::user("untrusted-artifact", text)
            .hint("pass the output `locator` of the job that uploaded it"),
        DownloadError::Fetch {
            source: FetchError::Store(error), ..
        } => store_failed(error),
        DownloadError::Fetch { source, .. }
        | DownloadError::Objects { source: ObjectsError::Fetch { source, .. }, .. } => {
            Failure::unexpected("fetch", text).hint(fetch_hint(&source))
        }
        DownloadError::Objects { .. } => Failure::unexpected("fetch", text).hint(FETCH_AGAIN),
        DownloadError::Digest { .. } => Failure::unexpected("digest-mismatch", text)
            .hint("upload it again; `digest-mismatch: warn` would take it as it is"),
        DownloadError::Unpack { .. } => {
            Failure::user("artifact-refused", text).hint("nothing of it was written")
        }
        DownloadError::Collision { .. } => Failure::user("path-collision", text).hint(if merges {
            "without `merge-multiple` each artifact gets a folder of its own; `on-collision: last` takes the \
             later artifact's file"
        } else {
            "download one of them in a step of its own, into another `path`; `on-collision: last` takes the \
             later artifact's file"
        }),
        DownloadError::Publish(_) => Failure::user("destination", text)
            .hint("choose another `path`; what is there was left as it was"),
    }
}
