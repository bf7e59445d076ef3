//! `crcr logs fetch`: the log of a job.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use crcr_github::GithubError;
use crcr_github::http::RetryPolicy;
use crcr_github::job_logs::JobLogBody;
use crcr_github::runs_artifacts::ActionsApi;

use crate::cli::logs::FetchArgs;
use crate::commands::artifact::sources::client;
use crate::commands::github;
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::{Printer, human_bytes};

pub async fn run(args: &FetchArgs, env: &Env, printer: &Printer) -> Outcome {
    let token = github::token(None, env, printer).ok_or_else(|| {
        Failure::unexpected(
            "no-github-token",
            "GitHub shows logs only with a token, and none is set",
        )
        .hint("set GITHUB_TOKEN to a token with `actions: read`")
    })?;
    let api = ActionsApi::new(client(env)?, github::api_url(env)?, token)
        .map_err(|error| Failure::unexpected("api-url", "GitHub can't be asked").because(error))?
        .with_retry(RetryPolicy::PATIENT);
    let body = api.job_log(args.repo.as_str(), args.job).await;
    let body = body.map_err(|error| failed(args, error))?;
    let max = args.max_size.saturating_mul(1024 * 1024);
    if args.output == "-" {
        copy(args, body, io::stdout().lock(), max).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let path = Path::new(&args.output);
    let unwritable = |error: io::Error| {
        Failure::unexpected("file-unwritable", format!("`{}` can't be written", args.output))
            .because(error)
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let file =
        tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).map_err(unwritable)?;
    let size = copy(args, body, &file, max).await?;
    file.persist(path).map_err(|error| unwritable(error.error))?;
    printer.line(&format!("{} of log in `{}`", human_bytes(size), args.output));
    Ok(ExitCode::SUCCESS)
}

/// Returns the size of the log, in bytes.
async fn copy(
    args: &FetchArgs,
    mut body: JobLogBody,
    mut out: impl io::Write,
    max: u64,
) -> Result<u64, Failure> {
    let mut size = 0;
    while let Some(piece) = body.next().await.map_err(|error| failed(args, error))? {
        size += piece.len() as u64;
        if size > max {
            let text = format!("the log of job {} is larger than {}", args.job, human_bytes(max));
            return Err(Failure::user("log-too-large", text).hint("allow more with `--max-size`"));
        }
        match out.write_all(&piece).and_then(|()| out.flush()) {
            Ok(()) => {}
            // Whoever reads stdout has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            Err(error) => {
                let what = "the log can't be written";
                return Err(Failure::unexpected("file-unwritable", what).because(error));
            }
        }
    }
    Ok(size)
}

fn failed(args: &FetchArgs, error: GithubError) -> Failure {
    let text = format!("the log of job {} of `{}` can't be fetched", args.job, args.repo);
    match &error {
        GithubError::NotFound(_) => Failure::user("log-not-found", text)
            .hint("GitHub deletes logs after their retention, 90 days by default; a job that never started has none"),
        GithubError::Unauthorized(_) | GithubError::Forbidden(_) => {
            Failure::user("log-forbidden", text).hint("the token needs `actions: read`")
        }
        _ => Failure::unexpected("log-unavailable", text),
    }
    .because(error)
}
