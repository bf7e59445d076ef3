//! Converts the inputs of the artifact commands.

use crcr_artifacts::choose::{self, FallbackPolicy, StorePlan};
use crcr_artifacts::layout::PlaceholderValues;
use crcr_artifacts::source::JobIdentity;
use crcr_artifacts::store::github::GitHubStore;

use super::sources;
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

/// The most bytes that go to GitHub when S3 fails, such as `500MB`, `2 GiB` or `1048576`.
pub fn fallback_max_bytes(args: &UploadArgs) -> Result<Option<u64>, Failure> {
    let Some(text) = args.fallback_max_size.as_deref().map(str::trim) else { return Ok(None) };
    if text.is_empty() {
        return Ok(None);
    }
    bytes(text).map(Some).ok_or_else(|| {
        let text = format!("`fallback-max-size` (`{}`) isn't a size", text.escape_debug());
        let hint = "write a whole number and a unit: `B`, `KB`, `MB`, `GB`, `KiB`, `MiB` or `GiB`";
        Failure::user("fallback-max-size", text).hint(hint)
    })
}

fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
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
    match sources::service(env, printer) {
        Ok(Some(service)) => Ok(service),
        Ok(None) => Err("this step has no runtime token of the job".to_owned()),
        Err(failure) => Err(failure.with_causes()),
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn size_has_a_decimal_or_a_binary_unit() {
        for (text, size) in [
            ("0", Some(0)),
            ("1048576", Some(1 << 20)),
            ("500MB", Some(500_000_000)),
            ("2 GiB", Some(2 << 30)),
            ("7kib", Some(7168)),
            ("1.5GB", None),
            ("-1", None),
            ("GB", None),
            ("5 apples", None),
            ("99999999999 GiB", None),
        ] {
            assert_eq!(bytes(text), size, "{text}");
        }
    }
}
