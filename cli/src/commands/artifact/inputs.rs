//! Converts the inputs of the artifact commands.

use crcr_artifacts::choose::{self, FallbackPolicy, StorePlan};
use crcr_artifacts::layout::PlaceholderValues;
use crcr_artifacts::source::JobIdentity;
use crcr_artifacts::store::github::GitHubStore;

use super::sources::{self, NO_V4_ARTIFACTS, is_enterprise};
use crate::cli::artifact::{FallbackArg, S3Args, S3ObjectArgs, UploadArgs};
use crate::env_vars::Env;
use crate::failure::Failure;
use crate::printer::Printer;

pub fn plan(args: &UploadArgs, env: &Env) -> StorePlan {
    let mode = sources::auth_mode(&args.s3, env);
    let fallback = match args.fallback {
        FallbackArg::Auto => FallbackPolicy::Auto,
        FallbackArg::Never => FallbackPolicy::Never,
        FallbackArg::Always => FallbackPolicy::Always,
    };
    choose::plan(mode, sources::bucket(&args.s3), fallback)
}

/// The S3 headers of new objects.
pub fn object_headers(args: &S3ObjectArgs) -> Result<Vec<(&'static str, String)>, Failure> {
    let all = [
        ("s3-acl", "x-amz-acl", &args.s3_acl),
        ("s3-sse", "x-amz-server-side-encryption", &args.s3_sse),
        (
            "s3-sse-kms-key-id",
            "x-amz-server-side-encryption-aws-kms-key-id",
            &args.s3_sse_kms_key_id,
        ),
        ("s3-storage-class", "x-amz-storage-class", &args.s3_storage_class),
    ];
    let mut headers = vec![];
    for (input, header, value) in all {
        let Some(value) = value.as_deref().map(str::trim).filter(|value| !value.is_empty()) else {
            continue;
        };
        if !value.bytes().all(|byte| byte.is_ascii_graphic()) {
            let text = format!("`{input}` (`{}`) isn't one word", value.escape_debug());
            return Err(Failure::user(input, text).hint("write it as S3's documentation does"));
        }
        headers.push((header, value.to_owned()));
    }
    Ok(headers)
}

/// The folder of the artifact in the bucket.
pub fn folder(args: &S3Args, job: &JobIdentity, name: &str) -> Result<String, Failure> {
    let layout = sources::layout(args)?;
    Ok(layout.render(&PlaceholderValues {
        repository: Some(&job.repository),
        run_id: Some(job.run_id),
        run_attempt: Some(job.run_attempt),
        job: Some(&job.key),
        name: Some(name),
    }))
}

/// GitHub's store, or why it can't be used.
pub fn github(env: &Env, printer: &Printer) -> Result<GitHubStore, String> {
    if is_enterprise(env) {
        return Err(NO_V4_ARTIFACTS.to_owned());
    }
    match sources::service(env, printer) {
        Ok(Some(service)) => Ok(service),
        Ok(None) => Err("this step has no runtime token of the job".to_owned()),
        Err(failure) => Err(format!("{failure}: {}", failure.causes().join(": "))),
    }
}
