//! `crcr artifact merge`: merges several artifacts of this run into one.

use std::fs;
use std::path::{Path, PathBuf};

use crcr_artifacts::collect::{FileQuery, LinkRule, collect};
use crcr_artifacts::download::{self, DownloadedArtifact};
use crcr_artifacts::find::ArtifactLocation;
use crcr_artifacts::find::pattern::NamePattern;

use super::sources::{service, set_empty_outputs, summarize_failure};
use super::{download as download_command, upload};
use crate::cli::artifact::{
    ArchiveArg, DigestMismatch, DownloadArgs, FallbackArg, MergeArgs, NoFiles, OnCollisionArg,
    OnQuota, RunArgs, SymlinksArg, UploadArgs,
};
use crate::commands::no_temporary_folder;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::plural;
use crate::runner::Runner;

/// Downloads the matching artifacts, uploads them as one, and deletes them if `delete-merged` is set.
pub async fn run(args: &MergeArgs, env: &Env, printer: &Printer) -> Outcome {
    let runner = Runner::new(env, printer);
    let (folder, parts) = match Box::pin(fetch_parts(args, &runner, printer)).await {
        Ok(fetched) => fetched,
        Err(failure) => {
            let failure = hint_at_collision(args, env, failure);
            set_empty_outputs(&upload::OUTPUTS, failure.code(), &runner, printer);
            summarize_failure(&args.name, &failure, &runner, printer);
            return Err(failure);
        }
    };
    let upload = upload_args(args, &folder.content());
    let is_whole = is_whole(args, &folder.content(), printer);
    let outcome = Box::pin(upload::run(&upload, env, printer)).await;
    let outcome = outcome.map_err(|failure| match failure.code() {
        "conflict" => failure.hint(
            "give `name` another value, such as one with `${{ github.run_attempt }}` in it, or \
             delete the artifact of that name first: `merge` replaces none",
        ),
        _ => failure,
    });
    if outcome.is_ok() && args.delete_merged && is_whole {
        for part in parts.iter().filter(|part| part.found.name != args.name) {
            if let Err(why) = delete(part, env, printer).await {
                let text = format!("`{}` is merged and can't be deleted: {why}", part.found.name);
                printer.warning(&text, None);
            }
        }
    }
    outcome
}

/// Whether the result has every file of the artifacts; warns if not.
fn is_whole(args: &MergeArgs, content: &Path, printer: &Printer) -> bool {
    let query = FileQuery {
        patterns: &[content.to_string_lossy().into_owned()],
        cwd: content,
        home: None,
        hidden: args.include_hidden_files,
        links: LinkRule::Keep,
    };
    // The upload tells of what can't be collected.
    let left_out = collect(&query).ok().and_then(|found| found.left_out);
    let Some(hidden) = &left_out else { return true };
    let hidden = hidden.strip_prefix(content).unwrap_or(hidden).to_string_lossy();
    let but = if args.delete_merged { ", so the artifacts are merged and not deleted" } else { "" };
    printer.warning(
        &format!("`{}` is hidden and left out{but}", hidden.escape_debug()),
        Some("set `include-hidden-files` to take files and folders whose name starts with a dot"),
    );
    false
}

/// What to do about a path in two artifacts. In a later attempt `pattern` may match what an earlier one has merged.
fn hint_at_collision(args: &MergeArgs, env: &Env, failure: Failure) -> Failure {
    if failure.code() != "path-collision" {
        return failure;
    }
    let first = env.get(env_vars::GITHUB_RUN_ATTEMPT).is_none_or(|attempt| attempt == "1");
    let matches = NamePattern::new(&args.pattern).is_ok_and(|pattern| pattern.matches(&args.name));
    if first || !matches {
        return failure
            .hint("with `separate-directories: true` each artifact gets a folder of its own");
    }
    let (name, pattern) = (args.name.escape_debug(), args.pattern.escape_debug());
    failure.hint(format!(
        "an earlier attempt of this run may have stored `{name}`, which `pattern` (`{pattern}`) \
         matches, too: choose a pattern that leaves it out"
    ))
}

/// A temporary folder, removed when it is dropped.
struct PartsFolder(PathBuf);

impl PartsFolder {
    fn content(&self) -> PathBuf {
        self.0.join("content")
    }
}

impl Drop for PartsFolder {
    fn drop(&mut self) {
        // Errors don't matter: the runner empties its temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

async fn fetch_parts(
    args: &MergeArgs,
    runner: &Runner,
    printer: &Printer,
) -> Result<(PartsFolder, Vec<DownloadedArtifact>), Failure> {
    let folder = download::fresh_folder(&runner.temp_dir()).map_err(no_temporary_folder)?;
    let folder = PartsFolder(folder);
    let content = folder.content();
    let download = DownloadArgs {
        name: None,
        path: Some(content.to_string_lossy().into_owned()),
        pattern: Some(args.pattern.clone()),
        artifact_ids: vec![],
        merge_multiple: !args.separate_directories,
        skip_decompress: false,
        required: true,
        on_collision: OnCollisionArg::Error,
        digest_mismatch: DigestMismatch::Error,
        locator: None,
        allow_fork: false,
        run: RunArgs { github_token: None, repository: None, run_id: None },
        s3: args.s3.clone(),
    };
    let (done, _) = Box::pin(download_command::fetch(&download, runner, printer)).await?;
    if done.artifacts.is_empty() {
        let text = format!("no artifact of this run matches `{}`", args.pattern);
        return Err(Failure::user("no-artifacts", text)
            .hint("`crcr artifact list` prints what is there; the uploads must have ended"));
    }
    if let ([only], true) = (done.artifacts.as_slice(), args.separate_directories) {
        // A single artifact is unpacked without a folder of its own.
        let (aside, own) = (folder.0.join("aside"), content.join(&only.found.name));
        let moved = fs::rename(&content, &aside)
            .and_then(|()| fs::create_dir(&content))
            .and_then(|()| fs::rename(&aside, &own));
        moved.map_err(no_temporary_folder)?;
    }
    for part in &done.artifacts {
        printer.line(&format!("`{}` from {}", part.found.name, part.found.store()));
    }
    Ok((folder, done.artifacts))
}

fn upload_args(args: &MergeArgs, content: &Path) -> UploadArgs {
    UploadArgs {
        name: Some(args.name.clone()),
        path: vec![content.to_string_lossy().into_owned()],
        if_no_files_found: NoFiles::Error,
        retention_days: args.retention_days,
        compression_level: args.compression_level,
        overwrite: false,
        include_hidden_files: args.include_hidden_files,
        symlinks: SymlinksArg::Keep,
        archive: ArchiveArg::Zip,
        s3: args.s3.clone(),
        s3_objects: args.s3_objects.clone(),
        region: None,
        s3_checksum: args.s3_checksum,
        s3_presign: 0,
        fallback: FallbackArg::Auto,
        fallback_max_size: None,
        required: true,
        publish_locator: false,
        on_quota: OnQuota::Fail,
    }
}

async fn delete(part: &DownloadedArtifact, env: &Env, printer: &Printer) -> Result<(), String> {
    match &part.found.at {
        ArtifactLocation::S3 { store, key } => {
            let locator = part.found.locator.as_deref();
            match store.delete_artifact(key, locator).await {
                0 => Ok(()),
                left => {
                    let left = plural(left, "object is left", "objects are left");
                    Err(format!("{left}: deleting needs `s3:DeleteObject`"))
                }
            }
        }
        ArtifactLocation::Service(_) | ArtifactLocation::Rest(_) => {
            let service = service(env, printer).map_err(|failure| failure.message().to_owned())?;
            let service = service.ok_or("this step has no runtime token of the job")?;
            let service = service.service();
            let deleted = match &part.found.at {
                ArtifactLocation::Service(there) => service.delete(&there.ids, &there.name).await,
                _ => service.delete_own(&part.found.name).await,
            };
            deleted.map_err(|error| error.to_string())
        }
    }
}
