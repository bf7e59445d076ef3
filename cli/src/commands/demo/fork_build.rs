//! The build of a fork's pull request: it gets no OIDC token, and continues without credentials.

use std::path::Path;

use crcr_standin::StandIn;
use crcr_standin::runs::Run;

use super::runner_job::RunnerJob;
use crate::env_vars::Env;
use crate::failure::Failure;
use crate::printer::Printer;

const ROLE: &str = "arn:aws:iam::123456789012:role/ci-build";

/// Runs the three steps of `workflows-templates/fork-build.yml` and prints their outputs.
pub async fn run(
    github: &StandIn,
    folder: &Path,
    env: &Env,
    printer: &Printer,
) -> Result<(), Failure> {
    let runs = &github.state().runs;
    let run = Run { id: runs.free_id(), ..Run::fork() };
    let event = run.payload();
    let id = runs.add(run);
    let first = runs.add_job(id, "build");
    let second = runs.add_job(id, "test");
    let mut build = RunnerJob::new(github.state(), &first, &event, folder.join("build"), env)?;
    let mut test = RunnerJob::new(github.state(), &second, &event, folder.join("test"), env)?;
    build.write_file("dist/kernel.so", &vec![0x7f; 200_000])?;
    build.write_file("dist/README", b"built by the demo\n")?;

    printer.data("The build of a pull request from a fork, which gets no token\n");
    let step = build.run_step(&[
        "oidc",
        "configure",
        "--role-to-assume",
        ROLE,
        "--aws-region",
        "us-east-1",
    ]);
    let step = step.await?;
    printer.data(&format!(
        "  oidc configure     mode={}, reason={}, expected={}\n",
        step.output("mode"),
        step.output("reason"),
        step.output("expected"),
    ));
    let upload = ["artifact", "upload", "--name", "build", "--path", "dist"];
    let upload = [&upload[..], &["--s3-bucket", "example-artifacts"]].concat();
    let step = build.run_step(&upload).await?;
    printer.data(&format!(
        "  artifact upload    store={}, reason={}: {} files, {} bytes\n",
        step.output("store"),
        step.output("reason"),
        step.output("files"),
        step.output("size"),
    ));
    let locator = step.output("locator").to_owned();
    let download = ["artifact", "download", "--name", "build", "--path", "build"];
    let download = [&download[..], &["--s3-bucket", "example-artifacts", "--locator", &locator]];
    let step = test.run_step(&download.concat()).await?;
    test.expect_same_files(&build, "dist", "build", &["kernel.so", "README"])?;
    let store = step.output("store");
    printer
        .data(&format!("  artifact download  store={store}: the second job has the same bytes\n"));
    Ok(())
}
