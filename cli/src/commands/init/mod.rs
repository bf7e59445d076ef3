//! `crcr init …`: writes a workflow for this repository from the templates in `workflows-templates/`.

mod aws;
mod repository;
mod template;

use std::fs;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crcr_aws::names::{AwsRegion, BucketName, RoleArn};
use crcr_domain::probes::DOWNSTREAM_FILE;
use crcr_github::artifact::is_enterprise_server;

use self::repository::{LocalRepository, TestedWorkflows};
use self::template::{
    FilledWorkflow, aws_name, check_value, filter_pattern, path_below, yaml_list, yaml_string,
};
use crate::cli::allowlist::DEFAULT_FILE as ALLOWLIST;
use crate::cli::init::{
    AllowlistReviewArgs, DownstreamArgs, ForkBuildArgs, InitArgs, InitCommand, RunnerArgs,
    TestStatsArgs,
};
use crate::commands::stranger_code::is_hosted_label;
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

const FOLDER: &str = ".github/workflows";
const TEMPLATE_RUNNER: &str = "ubuntu-latest";

/// The files to write, and what is left to do by hand, one sentence each.
struct InitPlan {
    files: Vec<PlannedFile>,
    next_steps: Vec<String>,
}

struct PlannedFile {
    /// From the top of the repository.
    path: String,
    text: String,
}

impl PlannedFile {
    fn new(folder: &str, name: &str, text: String) -> Self {
        Self { path: format!("{folder}/{name}"), text }
    }
}

impl InitPlan {
    fn of_workflows(workflows: Vec<FilledWorkflow>, next_steps: Vec<String>, server: &str) -> Self {
        let file = |workflow: FilledWorkflow| {
            let workflow = workflow.for_server(server);
            PlannedFile::new(FOLDER, workflow.file, workflow.text)
        };
        Self { files: workflows.into_iter().map(file).collect(), next_steps }
    }
}

pub async fn run(command: InitCommand, env: &Env, printer: &Printer) -> Outcome {
    match &command {
        InitCommand::Aws(args) => {
            let init = InitArgs {
                repository: args.repository.clone(),
                actions: String::new(),
                force: args.force,
                stdout: args.stdout,
            };
            let here = LocalRepository::find(&init, env, printer).await?;
            finish(&aws::plan(args, &here, env, printer).await?, &init, &here.top, printer)
        }
        InitCommand::Downstream(args) => {
            let here = LocalRepository::find(&args.init, env, printer).await?;
            finish(&downstream(args, &here).await?, &args.init, &here.top, printer)
        }
        InitCommand::ForkBuild(args) => {
            let here = LocalRepository::find(&args.init, env, printer).await?;
            finish(&fork_build(args, &here).await?, &args.init, &here.top, printer)
        }
        InitCommand::AllowlistReview(args) => {
            let here = LocalRepository::find(&args.init, env, printer).await?;
            finish(&allowlist_review(args, &here).await?, &args.init, &here.top, printer)
        }
        InitCommand::TestStats(args) => {
            let here = LocalRepository::find(&args.init, env, printer).await?;
            finish(&test_stats(args, &here).await?, &args.init, &here.top, printer)
        }
    }
}

/// Prints the files, or writes them and prints what is left to do.
fn finish(plan: &InitPlan, init: &InitArgs, top: &Path, printer: &Printer) -> Outcome {
    if init.stdout {
        printer.data(&plan.files.iter().map(|file| &*file.text).collect::<String>());
        return Ok(ExitCode::SUCCESS);
    }
    write(&plan.files, top, init, printer)?;
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
    let environment = format!("{}, Python ${{{{ matrix.python }}}}", args.runner.runners.join(" "));
    let is_plain = args.runner.runners.iter().all(|label| yaml_string(label) == *label);
    let environment = if is_plain { environment } else { yaml_string(&environment) };
    let fill_common = |workflow: FilledWorkflow| {
        workflow
            .fill(
                "runs-on: ubuntu-latest\n    timeout-minutes: 120\n",
                &format!("runs-on: {runners}\n    timeout-minutes: 120\n"),
            )
            .fill(
                "environment: ubuntu-latest, Python ${{ matrix.python }}",
                &format!("environment: {environment}"),
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
    if !is_enterprise_server(here.server()) {
        next_steps.push(ACTIONLINT_CACHE_MODE.to_owned());
    }
    let mut plan = InitPlan::of_workflows(workflows, next_steps, here.server());
    // One that is there is somebody's decision. What is printed is a workflow, and goes into one file.
    if !args.init.stdout && fs::symlink_metadata(here.top.join(DOWNSTREAM_FILE)).is_err() {
        let text = include_str!("crcr.yml").to_owned();
        plan.files.push(PlannedFile { path: DOWNSTREAM_FILE.to_owned(), text });
    }
    Ok(plan)
}

/// Names that AWS can't have given are refused before anything is asked or written.
fn check_aws_names(args: &ForkBuildArgs) -> Result<(), Failure> {
    let region = args.aws_region.as_deref();
    let region = region.map(|name| aws_name("aws-region", AwsRegion::new(name))).transpose()?;
    let roles =
        [("role-to-assume", &args.role_to_assume), ("pull-request-role", &args.pull_request_role)];
    for (flag, role) in roles {
        let Some(role) = role else { continue };
        let role = aws_name(flag, RoleArn::new(role))?;
        region.as_ref().map(|region| aws_name(flag, role.check_region(region))).transpose()?;
    }
    if args.role_to_assume.is_some() && args.role_to_assume == args.pull_request_role {
        let message = "`--role-to-assume` and `--pull-request-role` name one role";
        return Err(Failure::user("aws-name", message)
            .hint("name two: pull requests must not write what the default branch reads"));
    }
    for (flag, bucket) in [("sccache-bucket", &args.sccache_bucket), ("s3-bucket", &args.s3_bucket)]
    {
        bucket.as_deref().map(|name| aws_name(flag, BucketName::new(name))).transpose()?;
    }
    Ok(())
}

async fn fork_build(args: &ForkBuildArgs, here: &LocalRepository<'_>) -> Result<InitPlan, Failure> {
    check_aws_names(args)?;
    let runners = runner_labels(&args.runner)?;
    let repository = here.name();
    let branch = here.default_branch(args.default_branch.default_branch.as_deref()).await;
    let branch = match branch {
        Some(branch) => branch,
        None => return Err(here.no_default_branch().await),
    };
    check_value("default-branch", &branch)?;
    let (owner, name) = repository.split_once('/').unwrap_or_default();
    let mut workflow = template::FORK_BUILD
        .pinned(&here.actions_pin().await?)
        .fill("repo:OWNER/REPO:", &format!("repo:{repository}:"))
        .fill("repo:OWNER@ID/REPO@ID:", &format!("repo:{owner}@ID/{name}@ID:"))
        .fill("branches: [main]", &format!("branches: [{}]", filter_pattern(&branch)))
        .fill("'refs/heads/main'", &format!("'refs/heads/{}'", branch.replace('\'', "''")))
        .fill("runs-on: ubuntu-latest", &format!("runs-on: {runners}"));
    let mut missing = vec![];
    let role = |class: &str| format!("arn:aws:iam::123456789012:role/crcr-acme.app-{class}");
    for (variable, placeholder, value) in [
        ("AWS_ROLE", role("default-branch"), &args.role_to_assume),
        ("AWS_PULL_REQUEST_ROLE", role("pull-requests"), &args.pull_request_role),
        ("AWS_ROLE_REGION", "us-east-1".to_owned(), &args.aws_region),
        ("CACHE_BUCKET", "example-compiler-cache".to_owned(), &args.sccache_bucket),
        ("ARTIFACT_BUCKET", "example-artifacts".to_owned(), &args.s3_bucket),
    ] {
        let Some(value) = value else {
            missing.push(format!("`{variable}`"));
            continue;
        };
        workflow = workflow.fill(
            &format!("{variable}: {placeholder}\n"),
            &format!("{variable}: {}\n", yaml_string(value)),
        );
    }
    let mut next_steps = vec!["change the build and test steps to yours".to_owned()];
    if !missing.is_empty() {
        let values = missing.join(", ");
        next_steps
            .insert(0, format!("set {values} below `env:`; `crcr init aws` writes what they name"));
    }
    next_steps.push(format!(
        "create the environments `ci` and `ci-pull-request`, and admit only `{branch}` to `ci`"
    ));
    next_steps.push(format!(
        "let each role trust its environment and nothing else: `repo:{repository}:environment:ci` and \
         `repo:{repository}:environment:ci-pull-request`, or with the numbers of a newer repository \
         `repo:{owner}@ID/{name}@ID:environment:…`"
    ));
    if is_enterprise_server(here.server()) {
        next_steps.push(ENTERPRISE_FORKS.to_owned());
    }
    if args.runner.runners.iter().any(|label| !is_hosted_label(label)) {
        next_steps.push(OWN_RUNNERS_FOR_FORKS.to_owned());
    }
    next_steps.push("open a pull request from a fork, and one from a branch".to_owned());
    next_steps.extend(actionlint_labels(&args.runner));
    Ok(InitPlan::of_workflows(vec![workflow], next_steps, here.server()))
}

async fn allowlist_review(
    args: &AllowlistReviewArgs,
    here: &LocalRepository<'_>,
) -> Result<InitPlan, Failure> {
    let file = path_below("file", &args.file, ALLOWLIST)?;
    let runners = format!("runs-on: {}", runner_labels(&args.runner)?);
    let pin = here.actions_pin().await?;
    let on_runners = |workflow: FilledWorkflow| workflow.fill("runs-on: ubuntu-latest", &runners);
    let mut review = on_runners(template::ALLOWLIST_REVIEW.pinned(&pin));
    let mut comment = on_runners(template::ALLOWLIST_REVIEW_COMMENT.pinned(&pin));
    if file != ALLOWLIST {
        let paths = format!("paths: [{}]", filter_pattern(&file));
        let upstream = "          upstream: ${{ github.repository }}\n";
        let with_file = format!("          file: {}\n{upstream}", yaml_string(&file));
        review = review.fill(&format!("paths: [{ALLOWLIST}]"), &paths).fill(upstream, &with_file);
        let constant = format!("const file = {};", serde_json::Value::from(&*file));
        comment = comment.fill(&format!("const file = '{ALLOWLIST}';"), &constant);
    }
    for (variable, flag, value) in [
        ("HUD", "hud", args.hud.as_ref().map(|url| url.as_str())),
        ("APPROVAL_LABEL", "approval-label", args.approval_label.as_deref()),
    ] {
        let Some(value) = value else { continue };
        check_value(flag, value)?;
        let line = format!("  {variable}: {} #", yaml_string(value));
        review = review.fill(&format!("  {variable}: \"\" #"), &line);
    }
    let mut next_steps = vec![
        format!("`crcr allowlist validate {file}` shows what it would say"),
        "merge both: the comment is posted by the workflow of the default branch".to_owned(),
    ];
    if args.hud.is_none() {
        let step =
            "for evidence from results, give `--hud URL`, or write the HUD's address below `env:`";
        next_steps.push(step.to_owned());
    }
    next_steps.push(match &args.approval_label {
        Some(label) => format!(
            "create the label `{label}`: whoever has triage rights can approve promotions to L3 and L4 with it"
        ),
        None => "nobody has to approve promotions to L3 and L4 yet: give `--approval-label LABEL`, or write it \
                 below `env:`"
            .to_owned(),
    });
    next_steps.extend(actionlint_labels(&args.runner));
    Ok(InitPlan::of_workflows(vec![review, comment], next_steps, here.server()))
}

async fn test_stats(args: &TestStatsArgs, here: &LocalRepository<'_>) -> Result<InitPlan, Failure> {
    let TestedWorkflows { names, nameless } = match args.workflows.is_empty() {
        true => here.workflows_with_tests()?,
        false => TestedWorkflows { names: args.workflows.clone(), nameless: vec![] },
    };
    for name in &names {
        check_value("workflow", name)?;
    }
    // GitHub takes each name of `workflow_run` for a pattern: an unescaped `C++` fails every run of the repository.
    let patterns: Vec<_> = names.iter().map(|name| filter_pattern(name)).collect();
    let runners = runner_labels(&args.runner)?;
    let workflow = template::TEST_STATS
        .pinned(&here.actions_pin().await?)
        .fill("runs-on: ubuntu-latest", &format!("runs-on: {runners}"))
        .fill("workflows: [ci]", &format!("workflows: [{}]", patterns.join(", ")));
    let mut next_steps = vec![
        format!("check that these are the workflows with tests: {}", names.join(", ")),
        "let their jobs pack reports with `actions/pack-test-reports`".to_owned(),
        "set the secret `CRCR_RESULTS` to the results store, and the variables \
         `ARTIFACT_BUCKET` and `AWS_REGION` if artifacts are on S3"
            .to_owned(),
        "merge it: `workflow_run` starts on the default branch only".to_owned(),
    ];
    if !nameless.is_empty() {
        let step = format!(
            "give {} a fixed `name:` and run this again, if they have tests: workflows are listed by names",
            nameless.join(", ")
        );
        next_steps.insert(1, step);
    }
    next_steps.extend(actionlint_labels(&args.runner));
    Ok(InitPlan::of_workflows(vec![workflow], next_steps, here.server()))
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

const ENTERPRISE_FORKS: &str = "GitHub Enterprise Server has no artifacts of version 4, and a fork no credentials for S3: there, let one \
                                job build and test, and give the upload `required: false`";

const OWN_RUNNERS_FOR_FORKS: &str = "forks' pull requests run on these runners, too: let each take one job, have no identity and be gone \
                                     then, or give forks GitHub's runners; crcr's docs/self-hosted.md has both";

/// actionlint 1.7.12 is older than the key, and fails.
const ACTIONLINT_CACHE_MODE: &str = "if you use actionlint and it says `unexpected key \"cache-mode\"`: GitHub has had the \
                                     key since 2026-09-10, and it protects your cache; list that text in \
                                     `paths: '**/*.yml': ignore:` of .github/actionlint.yaml";

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
    files: &[PlannedFile],
    top: &Path,
    init: &InitArgs,
    printer: &Printer,
) -> Result<(), Failure> {
    let mut changed = vec![];
    for file in files {
        let shown = &file.path;
        let path = folder_of(file, top)?;
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(not_written(&path, error)),
            Ok(_) if fs::read_to_string(&path).is_ok_and(|text| text == file.text) => {
                printer.line(&format!("`{shown}` is up to date"));
                continue;
            }
            Ok(_) if init.force || may_replace(shown) => {}
            Ok(_) => {
                let message = format!("`{shown}` exists and differs");
                return Err(Failure::user("file-exists", message)
                    .hint("compare it with the output of `--stdout`; `--force` replaces it"));
            }
        }
        changed.push((path, file));
    }
    for (path, planned) in changed {
        // A rename replaces a symbolic link instead of writing through it.
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
        let file = builder.prefix(".crcr-init").tempfile_in(path.parent().unwrap_or(top));
        let mut file = file.map_err(|error| not_written(&path, error))?;
        file.write_all(planned.text.as_bytes()).map_err(|error| not_written(&path, error))?;
        file.persist(&path).map_err(|error| not_written(&path, error.error))?;
        printer.line(&format!("wrote `{}`", planned.path));
    }
    Ok(())
}

/// Creates the folder of a file; returns the file's path. A link on the way must not lead out of the repository.
fn folder_of(file: &PlannedFile, top: &Path) -> Result<PathBuf, Failure> {
    let (below, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let folder = top.join(below);
    fs::create_dir_all(&folder).map_err(|error| not_written(&folder, error))?;
    let real = |path: &Path| fs::canonicalize(path).map_err(|error| not_written(path, error));
    if !real(&folder)?.starts_with(real(top)?) {
        let message = format!("`{below}` is a link to a folder outside of this repository");
        return Err(Failure::user("outside-repository", message).hint("replace it by a folder"));
    }
    Ok(folder.join(name))
}

fn may_replace(file: &str) -> bool {
    let (mut stderr, stdin) = (std::io::stderr(), std::io::stdin());
    if !(stdin.is_terminal() && stderr.is_terminal()) {
        return false;
    }
    let _ = write!(stderr, "`{file}` exists and differs. Replace it? [y/N] ");
    let _ = stderr.flush();
    let mut answer = String::new();
    let read = stdin.lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

fn not_written(path: &Path, error: std::io::Error) -> Failure {
    Failure::unexpected("file-unwritable", format!("`{}` can't be written", path.display()))
        .because(error)
}
