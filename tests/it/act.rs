//! The actions and the fork-build template, run by a real workflow runner on loopback services.
//!
//! act gives every step its own `ACTIONS_RUNTIME_*`. Here those are wrong, and only the stand-in for
//! `actions/github-script` has the right ones. So an upload works only if the action passes them from
//! that step to the next.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use axum::Router;
use axum::routing::post;
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::server::{Bound, Server};
use crcr_testkit::s3::{ACCESS_KEY, Anonymous, S3Server, SECRET_KEY};
use serde_yaml::Value;
use tempfile::TempDir;

pub(crate) const GITHUB_SCRIPT: &str =
    "actions/github-script@ed597411d8f924073f98dfc5c65a23a2325f34cd";
/// What the templates keep compiled files with; `tests/peers/cache` stands for it.
const CACHE: &str = "actions/cache@27d5ce7f107fe9357f9df03efb73ab90386fccae";
pub(crate) const BUCKET: &str = "example-artifacts";
const KEY: &str = "pull-requests/acme/upstream/4242/build/artifacts.zip";

/// Everything outside of the workflow: GitHub, STS, S3, and a checkout on disk.
pub(crate) struct Outside {
    folder: TempDir,
    pub(crate) github: StandIn,
    pub(crate) sts: Server,
    pub(crate) s3: S3Server,
    pub(crate) run: Run,
    pub(crate) payload: serde_json::Value,
    /// Further arguments of act.
    pub(crate) options: Vec<String>,
    /// Whether another workflow calls the one under test.
    reusable: bool,
    /// Its file in `workflows-templates/`.
    template: &'static str,
    /// Stands for the build.
    pub(crate) build: &'static str,
}

/// The result of a workflow run.
pub(crate) struct Ran {
    pub(crate) succeeded: bool,
    pub(crate) log: String,
}

impl Outside {
    pub(crate) fn new(run: Run) -> Self {
        let github = StandIn::start().unwrap();
        let s3 = S3Server::start(BUCKET).unwrap();
        s3.rules(|rules| rules.anonymous = Anonymous::ReadAndList);
        let answer = format!(
            r#"<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
            <AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{ACCESS_KEY}</AccessKeyId>
            <SecretAccessKey>{SECRET_KEY}</SecretAccessKey><SessionToken>session</SessionToken>
            <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials><AssumedRoleUser>
            <AssumedRoleId>AROA:build</AssumedRoleId>
            <Arn>arn:aws:sts::123456789012:assumed-role/ci-build/build</Arn></AssumedRoleUser>
            </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"#
        );
        let router = Router::new().route("/", post(move || std::future::ready(answer.clone())));
        let sts = Bound::loopback().unwrap().serve(router).unwrap();
        Self {
            folder: tempfile::tempdir().unwrap(),
            github,
            sts,
            s3,
            payload: run.payload(),
            run,
            options: vec![],
            reusable: false,
            template: "fork-build.yml",
            build: BUILD,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_workflow(&self) {
        let text = read(&format!("workflows-templates/{}", self.template));
        let mut workflow =
            adapted(&text, self.sts.url().as_str(), self.s3.url().as_str(), self.build);
        workflow["env"]["CACHE_BUCKET"] = BUCKET.into();
        let mut on = serde_yaml::Mapping::new();
        on.insert(
            if self.reusable { "workflow_call" } else { &*self.run.event }.into(),
            Value::Null,
        );
        workflow["on"] = on.into();
        self.write("build.yml", &serde_yaml::to_string(&workflow).unwrap());
        if self.reusable {
            self.write("caller.yml", &CALLER.replace("EVENT", &self.run.event));
        }
    }

    /// Adds a workflow to the checkout.
    pub(crate) fn write(&self, name: &str, workflow: &str) {
        let folder = self.path("checkout/.github/workflows");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), workflow).unwrap();
    }

    /// Puts the actions where act looks for them, unless they are there. The rest of the source isn't:
    /// act copies the whole folder.
    pub(crate) fn copy_actions(&self) {
        let to = self.path("crcr/actions");
        if !to.exists() {
            copy(&root().join("actions"), &to);
            fs::copy(root().join("action.yml"), self.path("crcr/action.yml")).unwrap();
        }
    }

    pub(crate) fn act(&self, handed_over: &BTreeMap<&str, String>, token: bool) -> Ran {
        self.write_workflow();
        self.run(handed_over, token)
    }

    /// Runs the workflows of the checkout; `handed_over` is what JavaScript actions alone get from
    /// the runner, and `token` whether jobs can ask for an OIDC token.
    pub(crate) fn run(&self, handed_over: &BTreeMap<&str, String>, token: bool) -> Ran {
        let checkout = self.path("checkout");
        fs::create_dir_all(self.path("home")).unwrap();
        if !checkout.join(".git").exists() {
            git(&checkout, &["init", "--quiet", "--initial-branch", "main"]);
            git(&checkout, &["remote", "add", "origin", "https://github.com/acme/upstream.git"]);
            git(&checkout, &["add", "--all"]);
            git(&checkout, &["commit", "--quiet", "--message", "build"]);
        }
        self.copy_actions();
        fs::write(self.path("event.json"), self.payload.to_string()).unwrap();
        let variables = self.path("runner-variables.json");
        fs::write(&variables, serde_json::to_string(handed_over).unwrap()).unwrap();

        let script = root().join("tests/peers/github-script");
        let mut act = Command::new("act");
        act.arg(&self.run.event).arg("--eventpath").arg(self.path("event.json"));
        act.args(["--actor", &self.run.actor, "--platform", "ubuntu-latest=-self-hosted"]);
        act.args(["--no-cache-server", "--pull=false"]).args(&self.options);
        act.arg("--local-repository").arg(format!("{GITHUB_SCRIPT}={}", script.display()));
        let cache = root().join("tests/peers/cache");
        act.arg("--local-repository").arg(format!("{CACHE}={}", cache.display()));
        let crcr = self.path("crcr");
        act.arg("--local-repository").arg(format!("pytorch/crcr@v1={}", crcr.display()));
        let mut env = BTreeMap::from([
            ("ACTIONS_RUNTIME_TOKEN", "poison".to_owned()),
            ("ACTIONS_RESULTS_URL", "http://127.0.0.1:1/".to_owned()),
            ("GITHUB_RUN_ID", self.run.id.to_string()),
            ("GITHUB_REF", self.run.git_ref.clone()),
            ("GITHUB_BASE_REF", self.run.base_ref.clone()),
            ("STANDIN_CACHES", self.path("caches").to_str().unwrap().to_owned()),
            ("GITHUB_RUN_ATTEMPT", self.run.attempt.to_string()),
            ("GITHUB_API_URL", self.github.state().origin().to_owned()),
            ("STANDIN_RUNNER_VARIABLES", variables.to_str().unwrap().to_owned()),
        ]);
        let job = self.github.state().runs.add_job(self.run.id, "build");
        let given = self.github.state().job_environment(&job);
        for name in ["ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"] {
            if let Some(value) = given.get(name).filter(|_| token) {
                env.insert(name, value.clone());
            }
        }
        for (name, value) in env {
            act.arg("--env").arg(format!("{name}={value}"));
        }
        act.current_dir(&checkout).env_clear();
        act.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", self.path("home"));
        act.env("XDG_CACHE_HOME", self.path("home/.cache")).env("TMPDIR", self.folder.path());
        act.stdin(Stdio::null());
        let output = act.output().expect("`act` is installed by tests/setup");
        let log = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        Ran { succeeded: output.status.success(), log }
    }

    /// What a real runner gives JavaScript actions of a job of this run.
    pub(crate) fn runner_variables(&self) -> BTreeMap<&'static str, String> {
        self.github.state().runs.add(self.run.clone());
        let job = self.github.state().runs.add_job(self.run.id, "build");
        let mut variables = self.github.state().job_environment(&job);
        variables.retain(|name, _| ["ACTIONS_RUNTIME_TOKEN", "ACTIONS_RESULTS_URL"].contains(name));
        variables
    }

    pub(crate) fn on_github(&self) -> Vec<String> {
        let artifacts = self.github.state().artifacts.all();
        artifacts.into_iter().map(|artifact| artifact.name).collect()
    }
}

/// A workflow that calls the one under test.
const CALLER: &str = "
on: EVENT
permissions: {}
jobs:
  call:
    permissions:
      contents: read
      id-token: write
    uses: ./.github/workflows/build.yml
";

/// Replaces the build; prints the credentials and the cache settings that it gets.
pub(crate) const BUILD: &str = r#"
mkdir -p build
echo built > build/tool
chmod +x build/tool
echo "build: mode=$CRCR_AUTH_MODE key=${AWS_ACCESS_KEY_ID+defined} caches=$SCCACHE_MULTILEVEL_CHAIN"
echo "build: token=$ACTIONS_RUNTIME_TOKEN handed=${CRCR_RUNTIME_TOKEN+defined}"
echo "build: pod=${AWS_WEB_IDENTITY_TOKEN_FILE-none}"
echo 1 > sccache-stats.txt
"#;

/// Replaces the tests: checks that this job has the first job's files, mode bits included.
const TEST: &str = r#"test -x build/tool && echo "test: $(cat build/tool)""#;

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A workflow of the template for builds as a repository would have it: services on loopback, the binary under test,
/// and a build of one line.
pub(crate) fn adapted(text: &str, sts: &str, s3: &str, build: &str) -> Value {
    let mut workflow: Value = serde_yaml::from_str(text).unwrap();
    for (_, job) in workflow["jobs"].as_mapping_mut().unwrap() {
        // No container engine is needed here.
        job.as_mapping_mut().unwrap().remove("container");
        for step in job["steps"].as_sequence_mut().unwrap() {
            let uses = step.get("uses").and_then(Value::as_str).unwrap_or_default().to_owned();
            if uses.starts_with("pytorch/crcr/") {
                let with = step["with"].as_mapping_mut().unwrap();
                let mut set = |name: &str, value: &str| {
                    with.insert(name.into(), value.into());
                };
                set("binary", binary());
                if uses.contains("configure-oidc-fallback") {
                    set("sts-endpoint", sts);
                    set("sccache-endpoint", s3);
                } else {
                    set("s3-endpoint", s3);
                }
            }
            let script = match step.get("name").and_then(Value::as_str) {
                Some("Build with sccache") => build,
                // tests/setup has installed it.
                Some("Install sccache") => "sccache --version",
                Some("Test") => TEST,
                _ => continue,
            };
            step["run"] = script.into();
        }
    }
    for_act(&mut workflow);
    workflow
}

/// Takes out of a workflow what GitHub knows and act doesn't: `cache-mode`, and environments without a deployment.
pub(crate) fn for_act(workflow: &mut Value) {
    for (_, job) in workflow["jobs"].as_mapping_mut().unwrap() {
        job.as_mapping_mut().unwrap().remove("cache-mode");
        if let Some(name) = job.get("environment").and_then(|environment| environment.get("name")) {
            job["environment"] = name.clone();
        }
    }
}

/// The binary for steps of act, which loses what a failing process printed last: it closes the terminal without
/// waiting until that was read (`HostEnvironment.exec` of v0.2.89). So the end of a failure waits for a moment.
pub(crate) fn binary() -> &'static str {
    static WRAPPER: LazyLock<String> = LazyLock::new(|| {
        let binary = env!("CARGO_BIN_EXE_crcr");
        let script =
            format!("#!/bin/sh\n'{binary}' \"$@\" || {{ code=$?; sleep 1; exit $code; }}\n");
        let path = Path::new(binary).with_file_name("crcr-of-act");
        // Whole at once: another run of the tests may be using it.
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap()).unwrap();
        file.write_all(script.as_bytes()).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        file.as_file().set_permissions(executable).unwrap();
        file.persist(&path).unwrap();
        path.to_str().unwrap().to_owned()
    });
    &WRAPPER
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

pub(crate) fn git(folder: &Path, args: &[&str]) {
    let status = Command::new("git")
        .args(["-c", "user.name=octocat", "-c", "user.email=octocat@example.com"])
        .args(["-c", "commit.gpgsign=false"])
        .args(args)
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .status()
        .unwrap();
    assert!(status.success(), "git {args:?}");
}

pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(&path, &to).unwrap();
        }
    }
}

/// A pull request whose job gets no token: everything works without S3 and is stored at GitHub.
fn builds_without_credentials(run: Run, reason: &str, expected: bool) {
    let outside = Outside::new(run);
    let variables = outside.runner_variables();
    let Ran { succeeded, log } = outside.act(&variables, true);
    assert!(succeeded, "{log}");
    for line in [
        "::set-output:: mode=anonymous",
        &format!("::set-output:: reason={reason}"),
        &format!("::set-output:: expected={expected}"),
        "build: mode=anonymous key= caches=disk",
        "build: token=poison handed=\n",
        "::set-output:: store=github",
        "test: built",
    ] {
        assert!(log.contains(line), "{line}\n{log}");
    }
    assert!(!log.contains(&variables["ACTIONS_RUNTIME_TOKEN"]), "the token is in the log");
    assert!(outside.on_github().contains(&"build".to_owned()), "{:?}", outside.on_github());
    assert_eq!(outside.s3.keys(), Vec::<String>::new());
}

#[test]
#[ignore = "needs act and node"]
fn fork_builds_uploads_and_downloads_without_credentials() {
    builds_without_credentials(Run::fork(), "fork", true);
}

#[test]
#[ignore = "needs act and node"]
fn dependabot_builds_uploads_and_downloads_without_credentials() {
    builds_without_credentials(Run::dependabot(), "dependabot", false);
}

#[test]
#[ignore = "needs act and node"]
fn branch_uploads_to_s3_with_oidc() {
    let outside = Outside::new(Run::same_repository());
    let Ran { succeeded, log } = outside.act(&outside.runner_variables(), true);
    assert!(succeeded, "{log}");
    for line in [
        "::set-output:: mode=oidc",
        "build: mode=oidc key=defined caches=disk,s3",
        "::set-output:: store=s3",
        "test: built",
    ] {
        assert!(log.contains(line), "{line}\n{log}");
    }
    assert!(!log.contains(SECRET_KEY), "the secret key is in the log");
    assert!(outside.s3.keys().contains(&KEY.to_owned()), "{:?}", outside.s3.keys());
    assert!(!outside.on_github().contains(&"build".to_owned()), "{:?}", outside.on_github());
}

#[test]
#[ignore = "needs act and node"]
fn branch_without_id_token_permission_fails_and_names_it() {
    let outside = Outside::new(Run::same_repository());
    let Ran { succeeded, log } = outside.act(&outside.runner_variables(), false);
    assert!(!succeeded, "{log}");
    assert!(log.contains("id-token: write"), "{log}");
    assert!(log.contains("::set-output:: reason=no-permission"), "{log}");
    assert!(!log.contains("test: built"), "{log}");
}

/// It belongs to the base branch, so GitHub would have given a token, had the workflow asked.
#[test]
#[ignore = "needs act and node"]
fn pull_request_target_without_id_token_permission_fails_and_names_it() {
    let outside = Outside::new(Run { event: "pull_request_target".to_owned(), ..Run::fork() });
    let Ran { succeeded, log } = outside.act(&outside.runner_variables(), false);
    assert!(!succeeded, "{log}");
    assert!(log.contains("id-token: write"), "{log}");
    assert!(log.contains("::set-output:: reason=no-permission"), "{log}");
}

#[test]
#[ignore = "needs act and node"]
fn reusable_workflow_uploads_to_s3_and_names_the_permission_that_its_caller_lacks() {
    let mut outside = Outside::new(Run::same_repository());
    outside.reusable = true;
    let Ran { succeeded, log } = outside.act(&outside.runner_variables(), true);
    assert!(succeeded, "{log}");
    for line in ["::set-output:: mode=oidc", "::set-output:: store=s3", "test: built"] {
        assert!(log.contains(line), "{line}\n{log}");
    }
    let mut outside = Outside::new(Run::same_repository());
    outside.reusable = true;
    let Ran { succeeded, log } = outside.act(&outside.runner_variables(), false);
    assert!(!succeeded, "{log}");
    assert!(log.contains("for a reusable workflow to the caller's job too"), "{log}");
}

/// The template for Actions Runner Controller, in a pod with a role of its own, on the only scale set that there is.
fn arc(run: Run, scale_set: &str) -> (Outside, Ran) {
    let mut outside = Outside::new(run);
    outside.template = "fork-build-arc.yml";
    outside.options = [
        "--platform".to_owned(),
        format!("{scale_set}=-self-hosted"),
        "--env".to_owned(),
        "AWS_WEB_IDENTITY_TOKEN_FILE=/var/run/secrets/token".to_owned(),
        "--env".to_owned(),
        "AWS_ROLE_ARN=arn:aws:iam::123456789012:role/pod".to_owned(),
    ]
    .to_vec();
    let ran = outside.act(&outside.runner_variables(), true);
    (outside, ran)
}

#[test]
#[ignore = "needs act and node"]
fn arc_template_builds_forks_without_the_pods_identity_and_branches_with_oidc() {
    let (outside, Ran { succeeded, log }) = arc(Run::fork(), "linux-forks");
    assert!(succeeded, "{log}");
    for line in [
        "::set-output:: mode=anonymous",
        "build: mode=anonymous key= caches=disk",
        "build: pod=\n",
        "::set-output:: store=github",
    ] {
        assert!(log.contains(line), "{line}\n{log}");
    }
    for name in ["build", "build-logs"] {
        assert!(outside.on_github().contains(&name.to_owned()), "{:?}", outside.on_github());
    }

    let (outside, Ran { succeeded, log }) = arc(Run::same_repository(), "linux-builders");
    assert!(succeeded, "{log}");
    for line in ["build: mode=oidc key=defined caches=disk,s3", "::set-output:: store=s3"] {
        assert!(log.contains(line), "{line}\n{log}");
    }
    assert!(outside.s3.keys().contains(&KEY.to_owned()), "{:?}", outside.s3.keys());
}

#[test]
#[ignore = "needs act and node"]
fn arc_template_as_it_is_runs_no_fork_on_the_builders_scale_set() {
    let (outside, Ran { log, .. }) = arc(Run::fork(), "linux-builders");
    assert!(!log.contains("build: mode="), "{log}");
    assert_eq!(outside.on_github(), Vec::<String>::new());
}

#[test]
#[ignore = "needs act and node"]
fn upload_without_the_runtime_token_fails() {
    let outside = Outside::new(Run::fork());
    outside.runner_variables();
    let Ran { succeeded, log } = outside.act(&BTreeMap::new(), true);
    assert!(!succeeded, "the poisoned variables were enough\n{log}");
    for text in [
        "the artifact `build` isn't stored",
        "the runtime token isn't one of GitHub Actions",
        "use the action `upload-artifact-with-fallback`, which hands over the runtime token",
    ] {
        assert!(log.contains(text), "{text}\n{log}");
    }
    assert_eq!(outside.on_github(), Vec::<String>::new());
}
