//! `crcr artifact upload`: stores files as an artifact, and sets outputs that say where it is.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crcr_artifacts::blocks::GrownFiles;
use crcr_artifacts::choose::{StorePlan, StoreReason};
use crcr_artifacts::collect::{self, CollectedFiles, FileQuery, LinkRule};
use crcr_artifacts::digest::Digest;
use crcr_artifacts::locator::{ArchiveFormat, ArtifactTrust, MAX_OUTPUT_BYTES, StoredPlace};
use crcr_artifacts::name;
use crcr_artifacts::source::{JobIdentity, UploadSource};
use crcr_artifacts::store;
use crcr_artifacts::store::s3::{S3Config, patience_before_fallback};
use crcr_artifacts::upload::{self, UploadError, UploadResult, UploadStores};
use crcr_artifacts::zip::write::DeflateLevel;
use crcr_github::http::RetryPolicy;
use jiff::Timestamp;
use secrecy::ExposeSecret as _;
use tokio_util::sync::CancellationToken;

use super::sources::{
    NO_V4_ARTIFACTS, SummaryRow, files_text, github_url, is_enterprise, s3_page, set_empty_outputs,
    store_hint, summarize_failure, table, warn_instead, with_hint,
};
use super::{inputs, stop_signal};
use crate::cli::artifact::{
    ArchiveArg, CompressionLevel, NoFiles, OnQuota, S3Checksum, SymlinksArg, UploadArgs,
};
use crate::commands::working_folder;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::{Printer, human_bytes};
use crate::runner::Runner;

/// The hint for a refusal by S3.
const S3_PERMISSIONS: &str = "the credentials need `s3:PutObject`, `s3:GetObject`, `s3:ListBucket` and \
                      `s3:AbortMultipartUpload` where the artifact goes, `s3:PutObjectAcl` for \
                      `s3-acl`, and `kms:GenerateDataKey` and `kms:Decrypt` on the bucket's KMS key; \
                      its policy may demand `s3-acl`, `s3-sse` or `s3-storage-class`";

/// How often the files are looked up when some of them change meanwhile.
const MAX_LOOK_UPS: u32 = 3;
/// The most files that one kind of message names.
const MAX_NAMED_FILES: usize = 20;

pub const OUTPUTS: [&str; 8] = [
    "store",
    "reason",
    "artifact-id",
    "artifact-url",
    "artifact-digest",
    "locator",
    "size",
    "files",
];

/// Sets the outputs in any case.
pub async fn run(args: &UploadArgs, env: &Env, printer: &Printer) -> Outcome {
    let runner = Runner::new(env, printer);
    let plan = inputs::plan(args, env);
    match Box::pin(attempt(args, plan, &runner, printer)).await {
        Ok(UploadEnd::Stored { source, uploaded }) => {
            match print_result(&source, &uploaded, &runner, printer) {
                Err(failure) if !args.required => {
                    printer.warning(&failure.with_causes(), failure.help());
                    Ok(ExitCode::SUCCESS)
                }
                outcome => outcome,
            }
        }
        Ok(UploadEnd::Nothing(reason)) => {
            set_empty_outputs(&OUTPUTS, &reason.to_string(), &runner, printer);
            Ok(ExitCode::SUCCESS)
        }
        Err(NotStored { reason, failure, .. }) => {
            let reason = reason.map(|reason| reason.to_string());
            let reason = reason.unwrap_or_else(|| failure.code().to_owned());
            set_empty_outputs(&OUTPUTS, &reason, &runner, printer);
            summarize_failure(
                args.name.as_deref().unwrap_or("artifact"),
                &failure,
                &runner,
                printer,
            );
            if args.required {
                return Err(failure);
            }
            warn_instead(&failure, printer);
            Ok(ExitCode::SUCCESS)
        }
    }
}

enum UploadEnd {
    Stored { source: Box<UploadSource>, uploaded: Box<UploadResult> },
    Nothing(StoreReason),
}

/// `reason` is the output, if one of its values fits.
struct NotStored {
    reason: Option<StoreReason>,
    failure: Failure,
    /// A file changed or vanished before it was read.
    is_change: bool,
}

impl From<Failure> for NotStored {
    fn from(failure: Failure) -> Self {
        Self { reason: None, failure, is_change: false }
    }
}

/// Looks the files up and stores them; again if one changes before it is read.
async fn attempt(
    args: &UploadArgs,
    plan: StorePlan,
    runner: &Runner,
    printer: &Printer,
) -> Result<UploadEnd, NotStored> {
    let mut left = MAX_LOOK_UPS - 1;
    loop {
        match Box::pin(attempt_once(args, plan, runner, printer)).await {
            Err(NotStored { failure, is_change: true, .. }) if left > 0 => {
                let causes = failure.causes().join(": ");
                printer
                    .warning(&format!("{causes}; the files are looked up again"), failure.help());
                left -= 1;
            }
            end => return end,
        }
    }
}

async fn attempt_once(
    args: &UploadArgs,
    plan: StorePlan,
    runner: &Runner,
    printer: &Printer,
) -> Result<UploadEnd, NotStored> {
    let env = runner.env();
    check_inputs(args)?;
    let fallback_max_bytes = inputs::fallback_max_bytes(args)?;
    let found = collect(args, env)?;
    warn_about_files(&found, printer);
    refuse_unreadable(args, &found, printer)?;
    if found.entries.is_empty() {
        return no_files(args, &found, printer);
    }
    lines_without_files(args, &found, printer)?;
    if env.get(env_vars::CRCR_AUTH_MODE) == Some("error") && args.s3.auth_mode.is_none() {
        let text =
            "`configure-oidc-fallback` failed in this job, so there are no credentials for S3";
        printer.warning(text, Some("its step says why; `auth-mode` chooses other credentials"));
    }
    let size = found.entries.iter().map(|entry| entry.size).sum();
    let name = artifact_name(args, &found);
    check_names(&name, &found)?;
    let job = job_identity(runner)?;
    let folder = inputs::folder(&args.s3, &job, &name)?;
    let stores = UploadStores {
        s3: match plan {
            StorePlan::S3ThenGitHub | StorePlan::S3Only => {
                let falls_back = plan == StorePlan::S3ThenGitHub
                    && fallback_max_bytes.is_none_or(|limit| size <= limit);
                s3_config(args, env, printer, falls_back.then_some(size))?
            }
            StorePlan::GitHub(_) => s3_config(args, env, printer, None).ok().flatten(),
            StorePlan::Impossible(_) => None,
        },
        folder,
        github: inputs::github(env, printer),
        publish_locator: args.publish_locator,
        fallback_max_bytes,
        presign: (args.s3_presign > 0).then(|| Duration::from_secs(args.s3_presign.into())),
    };
    let progress = Arc::new(printer.progress("upload", size));
    let advance = progress.clone();
    let source = UploadSource {
        name,
        job,
        marker_folder: runner.temp_dir().join("crcr").join("uploads"),
        root: found.root,
        entries: Arc::new(found.entries),
        level: match args.compression_level {
            CompressionLevel::Auto => DeflateLevel::Auto,
            CompressionLevel::Fixed(level) => DeflateLevel::Fixed(level),
        },
        archive: match args.archive {
            ArchiveArg::Zip => ArchiveFormat::Zip,
            ArchiveArg::None => ArchiveFormat::None,
        },
        overwrite: args.overwrite,
        retention_days: Some(args.retention_days).filter(|days| *days > 0),
        max_retention_days: max_retention_days(env),
        stop: stop_on_signal(),
        progress: Arc::new(move |bytes| advance.advance(bytes)),
        grown: GrownFiles::default(),
    };
    let done = Box::pin(upload::upload(&source, plan, &stores, Timestamp::now)).await;
    progress.finish();
    match done {
        Ok(uploaded) => {
            Ok(UploadEnd::Stored { source: Box::new(source), uploaded: Box::new(uploaded) })
        }
        Err(UploadError::Store(store::ArtifactStoreError::Quota { message, .. }))
            if args.on_quota == OnQuota::Warn =>
        {
            let text = format!("{}: {STORAGE_FULL}: {message}", not_stored_text(&source.name));
            printer.warning(&text, None);
            Ok(UploadEnd::Nothing(StoreReason::Quota))
        }
        Err(failed) => Err(not_stored(args, plan, &source.name, failed, env)),
    }
}

/// Refuses inputs that exclude each other.
fn check_inputs(args: &UploadArgs) -> Result<(), Failure> {
    if args.s3_presign > 0 && args.s3.s3_request_payer.is_some() {
        let text = "`s3-presign` can't be used with `s3-request-payer`";
        return Err(Failure::user("s3-presign", text)
            .hint("whoever downloads has to be charged, and needs credentials for that"));
    }
    if args.symlinks == SymlinksArg::Keep && args.archive == ArchiveArg::None {
        let text = "`symlinks: keep` needs `archive: zip`: an object of its own can't be a link";
        return Err(Failure::user("symlinks", text).hint("leave one of the two out"));
    }
    Ok(())
}

/// `falls_back`: the size of the files, if they go to GitHub when S3 fails.
fn s3_config(
    args: &UploadArgs,
    env: &Env,
    printer: &Printer,
    falls_back: Option<u64>,
) -> Result<Option<S3Config>, Failure> {
    let Some(config) = super::sources::s3(&args.s3, env, printer)? else { return Ok(None) };
    let region = args.region.as_deref().map(|region| region.trim().to_owned());
    let retry = match (super::sources::patience(env)?, falls_back) {
        (None, Some(size)) => RetryPolicy::CALL.within(patience_before_fallback(size)),
        _ => config.retry,
    };
    Ok(Some(S3Config {
        silence: super::sources::silence(env, retry)?,
        retry,
        checksum: args.s3_checksum == S3Checksum::Crc64nvme,
        object_headers: inputs::object_headers(&args.s3_objects)?,
        region: region.or(config.region.clone()),
        ..config
    }))
}

fn collect(args: &UploadArgs, env: &Env) -> Result<CollectedFiles, Failure> {
    let cwd = working_folder()?;
    let query = FileQuery {
        patterns: &args.path,
        cwd: &cwd,
        home: env.get(env_vars::HOME).map(Path::new),
        hidden: args.include_hidden_files,
        links: match args.symlinks {
            SymlinksArg::Keep => LinkRule::Keep,
            SymlinksArg::Follow => LinkRule::Follow,
        },
    };
    collect::collect(&query).map_err(|error| match error {
        collect::CollectError::Pattern(_) => Failure::user("bad-pattern", error.to_string())
            .hint("`*`, `**`, `?` and `[…]` have a meaning; `[*]` is a star, and `[[]` a bracket"),
        _ => Failure::user("unreadable", "the files can't be collected")
            .because(error)
            .hint("exclude it by a line of `path` that starts with `!`"),
    })
}

fn warn_about_files(found: &CollectedFiles, printer: &Printer) {
    let skipped = found.skipped.iter().map(|path| {
        format!("`{}` is left out: it is a broken link, or neither file nor folder", shown(path))
    });
    warn_of_files(skipped, None, printer);
    let loops = found.loops.iter().map(|path| {
        format!("`{}` is left out: it is a link to a folder that it is in", shown(path))
    });
    warn_of_files(loops, None, printer);
    let outside = found.outside.iter().map(|(link, target)| {
        format!("`{}` leads out of the working folder, to `{}`", shown(link), shown(target))
    });
    warn_of_files(
        outside,
        Some("its target is stored; exclude the link with `!` if that is not meant"),
        printer,
    );
    let collisions = found.case_collisions(MAX_NAMED_FILES + 1).into_iter().map(|path| {
        format!("`{}` differs from another path in upper and lower case only", path.escape_debug())
    });
    warn_of_files(collisions, Some("macOS and Windows can't unpack both; rename one"), printer);
}

const UNREADABLE_HINT: &str =
    "let the job's user read it, rename it, or exclude it by a line of `path` that starts with `!`";

/// What can't be read is left out with a warning, or fails the step as a missing file does.
fn refuse_unreadable(
    args: &UploadArgs,
    found: &CollectedFiles,
    printer: &Printer,
) -> Result<(), Failure> {
    if args.if_no_files_found != NoFiles::Error {
        let texts = found.unreadable.iter();
        let texts = texts.map(|(path, why)| format!("`{}` is left out: {why}", shown(path)));
        warn_of_files(texts, Some(UNREADABLE_HINT), printer);
        return Ok(());
    }
    let Some((path, why)) = found.unreadable.first() else { return Ok(()) };
    let text = match found.unreadable.len() - 1 {
        0 => format!("`{}` can't be stored: {why}", shown(path)),
        more => format!("`{}` and {more} more can't be stored: {why}", shown(path)),
    };
    Err(Failure::user("unreadable", text).hint(UNREADABLE_HINT))
}

/// Treats each line of `path` that matches nothing as `if-no-files-found` says.
fn lines_without_files(
    args: &UploadArgs,
    found: &CollectedFiles,
    printer: &Printer,
) -> Result<(), NotStored> {
    let text = |line: &String| format!("no files were found for `{}`", line.escape_debug());
    let hint = "check the line, or set `if-no-files-found` to `ignore` if it may match nothing";
    match args.if_no_files_found {
        NoFiles::Ignore => {}
        NoFiles::Warn => warn_of_files(found.unmatched.iter().map(text), Some(hint), printer),
        NoFiles::Error => {
            if let Some(line) = found.unmatched.first() {
                let failure =
                    Failure::user("no-files", format!("{}: nothing is stored", text(line)));
                let failure = failure.hint(hint);
                let reason = Some(StoreReason::NoFiles);
                return Err(NotStored { reason, ..failure.into() });
            }
        }
    }
    Ok(())
}

/// A path for a message.
fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

/// At most [`MAX_NAMED_FILES`] warnings.
fn warn_of_files(texts: impl Iterator<Item = String>, hint: Option<&str>, printer: &Printer) {
    for (count, text) in texts.enumerate() {
        if count == MAX_NAMED_FILES {
            printer.warning("there are more such files", None);
            return;
        }
        printer.warning(&text, hint);
    }
}

fn no_files(
    args: &UploadArgs,
    found: &CollectedFiles,
    printer: &Printer,
) -> Result<UploadEnd, NotStored> {
    let lines = args.path.iter().flat_map(|text| text.lines()).map(str::trim);
    let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return Err(Failure::user("no-path", "`path` has no pattern")
            .hint("name the files to store, one pattern a line")
            .into());
    }
    let patterns = lines.join(", ");
    let message = format!("no files were found for `{patterns}`: nothing is stored");
    let hint = match &found.left_out {
        Some(path) => {
            format!("`{}` is hidden: set `include-hidden-files` to take it", path.display())
        }
        None => "check `path`, and the step that makes the files".to_owned(),
    };
    match args.if_no_files_found {
        NoFiles::Ignore => printer.line(&message),
        NoFiles::Warn => printer.warning(&message, Some(&hint)),
        NoFiles::Error => {
            let failure = Failure::user("no-files", message).hint(hint);
            return Err(NotStored { reason: Some(StoreReason::NoFiles), ..failure.into() });
        }
    }
    Ok(UploadEnd::Nothing(StoreReason::NoFiles))
}

fn artifact_name(args: &UploadArgs, found: &CollectedFiles) -> String {
    match (&args.name, args.archive, found.entries.as_slice()) {
        (Some(name), ..) => name.trim().to_owned(),
        (None, ArchiveArg::None, [only]) => {
            only.path.rsplit('/').next().unwrap_or_default().to_owned()
        }
        _ => "artifact".to_owned(),
    }
}

/// Fails if a store forbids the name or a path; names at most [`MAX_NAMED_FILES`] paths.
fn check_names(name: &str, found: &CollectedFiles) -> Result<(), Failure> {
    if let Err(why) = name::check_name(name) {
        return Err(Failure::user(
            "bad-name",
            format!("an artifact can't be named `{}`: {why}", name.escape_debug()),
        )
        .hint("rename it: both stores must take the name"));
    }
    let bad: Vec<_> = found
        .entries
        .iter()
        .filter_map(|entry| Some((entry, name::check_path(&entry.path).err()?)))
        .collect();
    if bad.is_empty() {
        return Ok(());
    }
    let mut text = match bad.len() {
        1 => "a file has a path that an artifact can't hold".to_owned(),
        count => format!("{count} files have paths that an artifact can't hold"),
    };
    for (entry, why) in bad.iter().take(MAX_NAMED_FILES) {
        text.push_str(&format!("\n  `{}`: {why}", entry.path.escape_debug()));
    }
    Err(Failure::user("bad-path", text).hint("rename them, or exclude them with `!`"))
}

/// Outside GitHub Actions the values are made up, so that S3 can be used there too.
fn job_identity(runner: &Runner) -> Result<JobIdentity, Failure> {
    let env = runner.env();
    let number = |name| env.get(name).and_then(|text| text.parse().ok());
    let event = runner.event()?;
    let repository = runner.repository().unwrap_or("local/local").to_owned();
    let fork = event.pull_request.is_some_and(|pull_request| {
        pull_request.head.repo.is_none_or(|head| head.full_name != repository)
    });
    Ok(JobIdentity {
        repository,
        run_id: number(env_vars::GITHUB_RUN_ID).unwrap_or(0),
        run_attempt: number(env_vars::GITHUB_RUN_ATTEMPT).unwrap_or(1),
        key: env.get(env_vars::GITHUB_JOB).unwrap_or("local").to_owned(),
        leg: leg(env),
        check_run_id: number(env_vars::CRCR_CHECK_RUN_ID),
        trust: if fork { ArtifactTrust::Fork } else { ArtifactTrust::SameRepo },
    })
}

/// The leg of the job's matrix: its number and a hash of its values.
fn leg(env: &Env) -> Option<String> {
    let matrix = env.get(env_vars::CRCR_MATRIX).map(str::trim)?;
    let values: serde_json::Value = serde_json::from_str(matrix).ok()?;
    if values.as_object().is_none_or(serde_json::Map::is_empty) {
        return None;
    }
    // `Value` prints sorted keys and no white space, so equal values have equal hashes.
    let hash = Digest::of(values.to_string().as_bytes()).hex();
    let index: u64 = env.get(env_vars::CRCR_JOB_INDEX).and_then(|n| n.trim().parse().ok())?;
    Some(format!("{index}-{}", &hash[..16]))
}

/// The most days that GitHub keeps an artifact. It says 0 if nothing is configured.
fn max_retention_days(env: &Env) -> Option<u32> {
    let most: Option<u32> =
        env.get(env_vars::GITHUB_RETENTION_DAYS).and_then(|days| days.parse().ok());
    most.filter(|days| *days > 0)
}

/// Cancels the upload, which then cleans up, at Ctrl-C and at the SIGTERM of a cancelled job.
fn stop_on_signal() -> CancellationToken {
    let stop = CancellationToken::new();
    let cancelled = stop.clone();
    tokio::spawn(async move {
        stop_signal().await;
        cancelled.cancel();
    });
    stop
}

fn print_result(
    source: &UploadSource,
    done: &UploadResult,
    runner: &Runner,
    printer: &Printer,
) -> Outcome {
    for warning in &done.warnings {
        printer.warning(warning, None);
    }
    if let Some(refusal) = &done.refusal {
        let (name, reason) = (&source.name, done.reason);
        let text = format!("`{name}` went to GitHub's store instead of S3 ({reason}): {refusal}");
        printer.warning(&text, store_hint(refusal, S3_PERMISSIONS));
    }
    let store = done.locator.place.store();
    let page = page(done, runner.env());
    let url = match &done.download_url {
        Some(url) => url.expose_secret(),
        None => &page,
    };
    if let Some(url) = &done.download_url {
        printer.mask(url.expose_secret());
    }
    let id = done.stored.artifact_id.map(|id| id.to_string()).unwrap_or_default();
    let (digest, size) = (done.stored.digest.hex(), done.stored.size);
    let count = source.entries.len();
    let (before, after) = (human_bytes(source.raw_size()), human_bytes(size));
    let was = if done.stored.already_stored { "was there already" } else { "is stored" };
    printer.line(&format!(
        "`{}` {was} in {store} ({}): {}, {before}, {after} stored",
        source.name,
        done.reason,
        files_text(count as u64)
    ));
    if (source.archive, done.stored.archive) == (ArchiveFormat::None, ArchiveFormat::Zip) {
        let why = "as it is, GitHub takes only one file of the artifact's name that isn't a zip";
        let what = if count == 1 { "the file is" } else { "the files are" };
        printer.line(&format!("{what} in a zip, in spite of `archive: none`: {why}"));
    }
    printer.line(&page);
    let reason = done.reason.to_string();
    let (size, count) = (size.to_string(), count.to_string());
    let locator = done.locator.to_json(MAX_OUTPUT_BYTES);
    printer.group("Details of the artifact");
    printer.line(&format!("sha256 {digest}"));
    printer.line(&format!("locator {locator}"));
    printer.end_group();
    runner.set_outputs(&[
        ("store", store),
        ("reason", &reason),
        ("artifact-id", &id),
        ("artifact-url", url),
        ("artifact-digest", &digest),
        ("locator", &locator),
        ("size", &size),
        ("files", &count),
    ])?;
    let row = SummaryRow {
        name: &source.name,
        url: &page,
        store,
        reason: &reason,
        files: &files_text(source.entries.len() as u64),
        size: &format!("{before} → {after}"),
    };
    runner.append_summary(&table(&[row]))?;
    Ok(ExitCode::SUCCESS)
}

/// The web page of the artifact.
fn page(done: &UploadResult, env: &Env) -> String {
    let locator = &done.locator;
    match &locator.place {
        StoredPlace::GitHub { artifact_id } => {
            github_url(env, &locator.repository, locator.run_id, *artifact_id)
        }
        StoredPlace::S3 { bucket, key, endpoint, region } => {
            s3_page(endpoint.as_deref(), region.as_deref().unwrap_or("us-east-1"), bucket, key)
        }
    }
}

const STORAGE_FULL: &str = "GitHub's storage is full";

fn not_stored_text(name: &str) -> String {
    format!("the artifact `{name}` isn't stored")
}

fn not_stored(
    args: &UploadArgs,
    plan: StorePlan,
    name: &str,
    failed: UploadError,
    env: &Env,
) -> NotStored {
    let is_change = matches!(&failed, UploadError::Store(store::ArtifactStoreError::Source(error))
        if error.is_change());
    let reason = match (&failed, plan) {
        (UploadError::Store(store::ArtifactStoreError::Conflict { .. }), _) => None,
        (failed, StorePlan::GitHub(planned)) => failed.reason().or(Some(planned)),
        (failed, _) => failed.reason(),
    };
    let what = not_stored_text(name);
    let failure = match failed {
        UploadError::Store(error) => failure_of_store(error, what, args.overwrite, env),
        UploadError::NoGitHub { why, s3 } => {
            let why = anyhow::anyhow!("GitHub's store can't be used: {why}");
            let failure = Failure::unexpected("no-store", what);
            match s3 {
                Some(error) => {
                    let hint = store_hint(&error, S3_PERMISSIONS);
                    with_hint(failure.because(error).because(why), hint)
                }
                None => failure.because(why).hint(
                    "use the action `upload-artifact-with-fallback`, which hands over the runtime \
                     token, or give S3 credentials and `s3-bucket`",
                ),
            }
        }
        UploadError::Impossible(StoreReason::NoBucket) => Failure::unexpected("no-store", what)
            .because(failed)
            .hint("give `s3-bucket`, or set `fallback` to `auto`"),
        UploadError::Impossible(_) => Failure::unexpected("no-store", what).because(failed).hint(
            "run `configure-oidc-fallback` before this step, or set `fallback` to `auto`: a fork \
             has no credentials",
        ),
        UploadError::TooLargeToFallBack { s3, size, limit } => {
            let why = format!(
                "the files have {}, and `fallback-max-size` lets {} go to GitHub",
                human_bytes(size),
                human_bytes(limit)
            );
            let hint = store_hint(&s3, S3_PERMISSIONS);
            let failure = Failure::unexpected("no-store", what).because(s3);
            with_hint(failure.because(anyhow::anyhow!(why)), hint)
        }
        UploadError::Neither { s3, github } => {
            let hint = store_hint(&s3, S3_PERMISSIONS).or(store_hint(&github, S3_PERMISSIONS));
            let what = format!("{what}: neither store took it");
            with_hint(Failure::unexpected("no-store", what).because(s3).because(github), hint)
        }
    };
    NotStored { reason, is_change, ..failure.into() }
}

/// The failure of the only store that was tried.
fn failure_of_store(
    error: store::ArtifactStoreError,
    what: String,
    overwrites: bool,
    env: &Env,
) -> Failure {
    match error {
        store::ArtifactStoreError::Quota { message, .. } => Failure::unexpected(
            "quota",
            format!("{what}: {STORAGE_FULL}"),
        )
        .because(std::io::Error::other(message))
        .hint(
            "delete old artifacts, or set `on-quota` to `warn`; usage is counted anew every \
                     6 to 12 hours",
        ),
        error @ store::ArtifactStoreError::Conflict { .. } => {
            let or_overwrite = if overwrites { "" } else { ", or set `overwrite`" };
            Failure::user("conflict", what).because(error).hint(format!(
                "give each job, and each leg of a matrix, a name of its own{or_overwrite}"
            ))
        }
        store::ArtifactStoreError::Source(error) => Failure::user("unreadable", what)
            .because(error)
            .hint("files must stay as they are while they are uploaded"),
        error @ store::ArtifactStoreError::Stopped => {
            Failure::unexpected("stopped", what).because(error)
        }
        // Gitea and Forgejo have the service, so it is tried wherever the runner names one.
        error @ store::ArtifactStoreError::Refused { .. } if is_enterprise(env) => {
            Failure::unexpected("no-store", format!("{NO_V4_ARTIFACTS}, so {what}"))
                .because(error)
                .hint("give S3 credentials and `s3-bucket`: S3 alone takes artifacts there")
        }
        error => {
            let hint = store_hint(&error, S3_PERMISSIONS);
            with_hint(Failure::unexpected("no-store", what).because(error), hint)
        }
    }
}
