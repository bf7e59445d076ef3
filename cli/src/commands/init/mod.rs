//! `crcr init …`: writes a workflow for this repository from the templates in `workflows-templates/`.

mod repository;
mod template;

use std::fs;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use self::repository::LocalRepository;
use self::template::{FilledWorkflow, check_value, filter_pattern, yaml_list, yaml_string};
use crate::cli::init::{
    AllowlistReviewArgs, DownstreamArgs, ForkBuildArgs, InitArgs, InitCommand, RunnerArgs,
    TestStatsArgs,
};
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

const FOLDER: &str = ".github/workflows";
/// The runner of the templates.
const TEMPLATE_RUNNER: &str = "ubuntu-latest";

/// The workflows to write, and what is left to do by hand, one sentence each.
struct InitPlan {
    workflows: Vec<FilledWorkflow>,
    next_steps: Vec<String>,
}

pub async fn run(command: InitCommand, env: &Env, printer: &Printer) -> Outcome {
    let (plan, init, top) = match &command {
        InitCommand::Downstream(args) => {
            let here = LocalRepository::find(&args.init, env, printer).await?;
            (downstream(args, &here).await?, &args.init, here.top)
        }
        InitCommand::ForkBuild(args) => {
            let here = LocalRepository::find(&args.init, env, printer).await?;
            (fork_build(args, &here).await?, &args.init, here.top)
        }
        InitCommand::AllowlistReview(args) => {
            let here = LocalRepository::find(&args.init, env, printer).await?;
            (allowlist_review(args, &here).await?, &args.init, here.top)
        }
        InitCommand::TestStats(args) => {
            let here = LocalRepository::find(&args.init, env, printer).await?;
            (test_stats(args, &here).await?, &args.init, here.top)
        }
    };
    if init.stdout {
        printer.data(&plan.workflows.iter().map(|workflow| &*workflow.text).collect::<String>());
        return Ok(ExitCode::SUCCESS);
    }
    write(&plan.workflows, &top, init, printer)?;
    printer.line("next:");
    for (n, step) in plan.next_steps.iter().enumerate() {
        printer.line(&format!("  {}. {step}", n + 1));
    }
    Ok(ExitCode::SUCCESS)
}

async fn downstream(
    args: &DownstreamArgs,
    here: &LocalRepository<'_>,
) -> Result<InitPlan, Failure> {
    let runners = runner_labels(&args.runner)?;
    let (repository, upstream) = (here.name(), args.upstream.as_str());
    let branch = here.default_branch(args.default_branch.default_branch.as_deref()).await;
    let pin = here.actions_pin().await?;
    let fill_common = |workflow: FilledWorkflow| {
        workflow
            .fill(
                "runs-on: ubuntu-latest\n    timeout-minutes: 120\n",
                &format!("runs-on: {runners}\n    timeout-minutes: 120\n"),
            )
            .fill(
                "environment: ubuntu-latest, Python",
                &format!("environment: {}, Python", args.runner.runners.join(" ")),
            )
    };
    let mut workflow = fill_common(template::DOWNSTREAM.pinned(&pin))
        .fill("for upstream pull requests", &format!("for pull requests of {upstream}"))
        .fill("name: upstream\n", &format!("name: {}\n", yaml_string(upstream)))
        .fill("repo:OWNER/REPO:", &format!("repo:{repository}:"));
    if let Some(branch) = &branch {
        check_value("default-branch", branch)?;
        workflow = workflow.fill(":ref:refs/heads/main", &format!(":ref:refs/heads/{branch}"));
    }
    let mut workflows = vec![workflow];
    if args.nightly {
        let name = format!("{upstream} nightly");
        let nightly = fill_common(template::DOWNSTREAM_NIGHTLY.pinned(&pin))
            .fill("newest upstream commit, beside", &format!("newest commit of {upstream}, beside"))
            .fill("name: upstream nightly\n", &format!("name: {}\n", yaml_string(&name)))
            .fill("UPSTREAM: pytorch/pytorch\n", &format!("UPSTREAM: {}\n", yaml_string(upstream)));
        workflows.push(nightly);
    }
    let it = if args.nightly { "both" } else { "it" };
    let branch = branch.map_or("the default branch".to_owned(), |branch| format!("`{branch}`"));
    let mut next_steps = vec![
        "change the steps `Build` and `Test` and the matrix to yours".to_owned(),
        format!("merge {it} to {branch}: GitHub starts `repository_dispatch` only there"),
        format!("ask the owner of `{upstream}` for its GitHub App, and install it here"),
        format!("`crcr doctor downstream {repository}` checks all of it"),
        format!("propose `- {repository}` under `L1:` in the allowlist of `{upstream}`"),
    ];
    if args.nightly {
        let step = "set the repository variable `CRCR_CALLBACK_URL` to the relay's callback address: \
                    nightly runs report there";
        next_steps.insert(3, step.to_owned());
    }
    next_steps.extend(actionlint_labels(&args.runner));
    Ok(InitPlan { workflows, next_steps })
}

async fn fork_build(args: &ForkBuildArgs, here: &LocalRepository<'_>) -> Result<InitPlan, Failure> {
    let runners = runner_labels(&args.runner)?;
    let repository = here.name();
    let branch = here.default_branch(args.default_branch.default_branch.as_deref()).await;
    let branch = branch.ok_or_else(|| {
        Failure::unexpected("default-branch", "this repository's default branch isn't known")
            .hint("name it: `--default-branch main`")
    })?;
    check_value("default-branch", &branch)?;
    let mut workflow = template::FORK_BUILD
        .pinned(&here.actions_pin().await?)
        .fill("repo:OWNER/REPO:", &format!("repo:{repository}:"))
        .fill("branches: [main]", &format!("branches: [{}]", filter_pattern(&branch)))
        .fill("runs-on: ubuntu-latest", &format!("runs-on: {runners}"));
    let mut missing = vec![];
    for (flag, variable, placeholder, value) in [
        (
            "role-to-assume",
            "AWS_ROLE",
            "arn:aws:iam::123456789012:role/ci-build",
            &args.role_to_assume,
        ),
        ("aws-region", "AWS_ROLE_REGION", "us-east-1", &args.aws_region),
        ("sccache-bucket", "CACHE_BUCKET", "example-compiler-cache", &args.sccache_bucket),
        ("s3-bucket", "ARTIFACT_BUCKET", "example-artifacts", &args.s3_bucket),
    ] {
        let Some(value) = value else {
            missing.push(format!("`{variable}`"));
            continue;
        };
        check_value(flag, value)?;
        workflow = workflow.fill(
            &format!("{variable}: {placeholder}\n"),
            &format!("{variable}: {}\n", yaml_string(value)),
        );
    }
    let mut next_steps = vec!["change the build and test steps to yours".to_owned()];
    if !missing.is_empty() {
        next_steps.insert(0, format!("set {} below `env:`", missing.join(", ")));
    }
    next_steps.push(format!(
        "let the role trust `repo:{repository}:pull_request` and \
         `repo:{repository}:ref:refs/heads/{branch}`"
    ));
    next_steps.push("open a pull request from a fork, and one from a branch".to_owned());
    next_steps.extend(actionlint_labels(&args.runner));
    Ok(InitPlan { workflows: vec![workflow], next_steps })
}

async fn allowlist_review(
    args: &AllowlistReviewArgs,
    here: &LocalRepository<'_>,
) -> Result<InitPlan, Failure> {
    check_value("file", &args.file)?;
    let runners = format!("runs-on: {}", runner_labels(&args.runner)?);
    let pin = here.actions_pin().await?;
    let on_runners = |workflow: FilledWorkflow| workflow.fill("runs-on: ubuntu-latest", &runners);
    let mut review = on_runners(template::ALLOWLIST_REVIEW.pinned(&pin));
    if args.file != ".github/allowlist.yml" {
        review = review
            .fill(
                "paths: [.github/allowlist.yml]",
                &format!("paths: [{}]", filter_pattern(&args.file)),
            )
            .fill(
                "          upstream: ${{ github.repository }}\n",
                &format!(
                    "          file: {}\n          upstream: ${{{{ github.repository }}}}\n",
                    yaml_string(&args.file)
                ),
            );
    }
    let mut next_steps = vec![
        format!("`crcr allowlist validate {}` shows what it would say", args.file),
        "merge both: the comment is posted by the workflow of the default branch".to_owned(),
        "for evidence from results, set the repository variable `CRCR_HUD_URL`".to_owned(),
    ];
    next_steps.extend(actionlint_labels(&args.runner));
    let comment = on_runners(template::ALLOWLIST_REVIEW_COMMENT.pinned(&pin));
    Ok(InitPlan { workflows: vec![review, comment], next_steps })
}

async fn test_stats(args: &TestStatsArgs, here: &LocalRepository<'_>) -> Result<InitPlan, Failure> {
    let mut names = args.workflows.clone();
    if names.is_empty() {
        names = here.workflows_with_tests()?;
    }
    for name in &names {
        check_value("workflow", name)?;
    }
    let runners = runner_labels(&args.runner)?;
    let workflow = template::TEST_STATS
        .pinned(&here.actions_pin().await?)
        .fill("runs-on: ubuntu-latest", &format!("runs-on: {runners}"))
        .fill("workflows: [ci]", &format!("workflows: {}", yaml_list(&names)));
    let mut next_steps = vec![
        format!("check that these are the workflows with tests: {}", names.join(", ")),
        "let their jobs pack reports with `actions/pack-test-reports`".to_owned(),
        "set the secret `CRCR_RESULTS` to the results store, and the variables \
         `ARTIFACT_BUCKET` and `AWS_REGION` if artifacts are on S3"
            .to_owned(),
        "merge it: `workflow_run` starts on the default branch only".to_owned(),
    ];
    next_steps.extend(actionlint_labels(&args.runner));
    Ok(InitPlan { workflows: vec![workflow], next_steps })
}

fn runner_labels(args: &RunnerArgs) -> Result<String, Failure> {
    for label in &args.runners {
        check_value("runner", label)?;
    }
    Ok(match &*args.runners {
        [label] => yaml_string(label),
        labels => yaml_list(labels),
    })
}

fn actionlint_labels(args: &RunnerArgs) -> Option<String> {
    let is_own = |label: &&String| label.as_str() != TEMPLATE_RUNNER && *label != "self-hosted";
    let labels: Vec<_> = args.runners.iter().filter(is_own).map(String::as_str).collect();
    (!labels.is_empty()).then(|| {
        format!(
            "if you use actionlint, list {} in `self-hosted-runner.labels` of .github/actionlint.yaml",
            labels.join(", ")
        )
    })
}

/// Writes the files whose content changes. Nothing is written before every existing file may be replaced.
fn write(
    workflows: &[FilledWorkflow],
    top: &Path,
    init: &InitArgs,
    printer: &Printer,
) -> Result<(), Failure> {
    let folder = workflow_folder(top)?;
    let mut changed = vec![];
    for workflow in workflows {
        let path = folder.join(workflow.file);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(not_written(&path, error)),
            Ok(_) if fs::read_to_string(&path).is_ok_and(|text| text == workflow.text) => {
                printer.line(&format!("`{FOLDER}/{}` is up to date", workflow.file));
                continue;
            }
            Ok(_) if init.force || may_replace(workflow.file) => {}
            Ok(_) => {
                let message = format!("`{FOLDER}/{}` exists and differs", workflow.file);
                return Err(Failure::user("file-exists", message)
                    .hint("compare it with the output of `--stdout`; `--force` replaces it"));
            }
        }
        changed.push((path, workflow));
    }
    for (path, workflow) in changed {
        // A rename replaces a symbolic link instead of writing through it.
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
        let file = builder.prefix(".crcr-init").tempfile_in(&folder);
        let mut file = file.map_err(|error| not_written(&path, error))?;
        file.write_all(workflow.text.as_bytes()).map_err(|error| not_written(&path, error))?;
        file.persist(&path).map_err(|error| not_written(&path, error.error))?;
        printer.line(&format!("wrote `{FOLDER}/{}`", workflow.file));
    }
    Ok(())
}

/// Creates the folder. A link in it must not lead out of the repository.
fn workflow_folder(top: &Path) -> Result<PathBuf, Failure> {
    let folder = top.join(FOLDER);
    fs::create_dir_all(&folder).map_err(|error| not_written(&folder, error))?;
    let real = |path: &Path| fs::canonicalize(path).map_err(|error| not_written(path, error));
    if !real(&folder)?.starts_with(real(top)?) {
        let message = format!("`{FOLDER}` is a link to a folder outside of this repository");
        return Err(Failure::user("outside-repository", message).hint("replace it by a folder"));
    }
    Ok(folder)
}

fn may_replace(file: &str) -> bool {
    let (mut stderr, stdin) = (std::io::stderr(), std::io::stdin());
    if !(stdin.is_terminal() && stderr.is_terminal()) {
        return false;
    }
    let _ = write!(stderr, "`{FOLDER}/{file}` exists and differs. Replace it? [y/N] ");
    let _ = stderr.flush();
    let mut answer = String::new();
    let read = stdin.lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

fn not_written(path: &Path, error: std::io::Error) -> Failure {
    Failure::user("not-written", format!("`{}` can't be written", path.display())).because(error)
}
