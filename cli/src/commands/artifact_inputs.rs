//! What the inputs and the environment of an artifact command mean.

use crcr_artifacts::choose::{self, Fallback, Plan};
use crcr_artifacts::layout::Facts;
use crcr_artifacts::store::github::GitHubStore;
use crcr_artifacts::upload::Run;

use super::artifact_sources::{self, NO_V4, is_enterprise};
use crate::cli::artifact::{FallbackArg, S3Args, UploadArgs};
use crate::env_vars::Env;
use crate::failure::Failure;
use crate::printer::Printer;

pub fn plan(args: &UploadArgs, env: &Env) -> Plan {
    let mode = artifact_sources::auth_mode(&args.s3, env);
    let fallback = match args.fallback {
        FallbackArg::Auto => Fallback::Auto,
        FallbackArg::Never => Fallback::Never,
        FallbackArg::Always => Fallback::Always,
    };
    choose::plan(mode, artifact_sources::bucket(&args.s3), fallback)
}

/// The folder of the artifact in the bucket.
pub fn folder(
    args: &S3Args,
    run: &Run,
    attempt: u64,
    job: &str,
    name: &str,
) -> Result<String, Failure> {
    let layout = artifact_sources::layout(args)?;
    Ok(layout.render(&Facts {
        repository: Some(&run.repository),
        run_id: Some(run.run_id),
        run_attempt: Some(attempt),
        job: Some(job),
        name: Some(name),
    }))
}

/// GitHub's store, or why it can't be used.
pub fn github(env: &Env, printer: &Printer) -> Result<GitHubStore, String> {
    if is_enterprise(env) {
        return Err(NO_V4.to_owned());
    }
    match artifact_sources::service(env, printer) {
        Ok(Some(service)) => Ok(service),
        Ok(None) => Err("this step has no runtime token of the job".to_owned()),
        Err(failure) => Err(format!("{failure}: {}", failure.causes().join(": "))),
    }
}
