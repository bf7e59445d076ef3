//! What `crcr oidc configure` hands to containers that a step starts, warnings about other settings, and
//! `crcr oidc drop`.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crcr_standin::runs::Run;
use crcr_testkit::s3::{Anonymous, S3Server};
use serde_json::{Value, json};

use crate::oidc_configure::{World, world};
use crate::support::{Crcr, Ran};

const KEYS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

fn env_file(ran: &Ran) -> String {
    fs::read_to_string(&ran.outputs["env-file"]).unwrap()
}

fn line<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

fn with_file(world: &World, run: Run) -> Crcr {
    world.step(&world.job(run)).arg("--env-file").arg("container.env")
}

#[cfg(unix)]
#[test]
fn container_of_a_step_gets_the_credentials_by_a_file_that_only_the_user_reads() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = world();
    let ran = with_file(&world, Run::push()).run().expect_code(0);
    let path = ran.outputs["env-file"].clone();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(path.starts_with(ran.path("runner").to_str().unwrap()), "{path}");
    let text = env_file(&ran);
    for name in KEYS.iter().chain(&["AWS_REGION", "AWS_DEFAULT_REGION", "CRCR_AUTH_MODE"]) {
        assert_eq!(line(&text, name), Some(&*ran.exported[*name]), "{text}");
        let options = &ran.outputs["container-options"];
        assert!(options.contains(&format!("--env {name}")), "{options}");
    }
    assert!(!ran.outputs["container-options"].contains('='), "names only, no secret");

    // In the file alone.
    let step = with_file(&world, Run::push()).arg("--output-env-credentials=false");
    let ran = step.run().expect_code(0);
    assert!(KEYS.iter().all(|name| !ran.exported.contains_key(*name)), "{}", ran.report());
    assert!(KEYS.iter().all(|name| line(&env_file(&ran), name).is_some()));
    assert_eq!(ran.outputs["container-options"], "");
}

#[test]
fn container_of_a_fork_gets_no_keys_and_sccache_off_wins_over_its_image() {
    let world = world();
    let s3 = S3Server::start("cache").unwrap();
    let step = || {
        let step = with_file(&world, Run::fork()).arg("--sccache-bucket").arg("cache");
        step.arg("--sccache-endpoint").arg(s3.url().as_str())
    };
    // What a container gets by the options is what it gets by the file.
    let file = || {
        let ran = step().run().expect_code(0);
        let text = env_file(&ran);
        let options: Vec<_> = ran.outputs["container-options"].split("--env ").skip(1).collect();
        let by_options = options.iter().map(|option| match option.trim_end().split_once('=') {
            Some((name, value)) => format!("{name}={value}\n"),
            None => format!("{}={}\n", option.trim_end(), ran.exported[option.trim_end()]),
        });
        assert_eq!(by_options.collect::<String>(), text);
        text
    };
    let text = file();
    assert!(KEYS.iter().all(|name| line(&text, name).is_none()), "{text}");
    assert_eq!(line(&text, "CRCR_AUTH_MODE"), Some("anonymous"));
    assert_eq!(line(&text, "AWS_EC2_METADATA_DISABLED"), Some("true"));
    assert_eq!(line(&text, "SCCACHE_MULTILEVEL_CHAIN"), Some("disk"));
    assert_eq!(line(&text, "SCCACHE_S3_NO_CREDENTIALS"), Some("false"));

    s3.rules(|rules| rules.anonymous = Anonymous::ReadAndList);
    let text = file();
    assert_eq!(line(&text, "SCCACHE_BUCKET"), Some("cache"));
    assert_eq!(line(&text, "SCCACHE_S3_RW_MODE"), Some("READ_ONLY"));
    assert_eq!(line(&text, "SCCACHE_MULTILEVEL_CHAIN"), Some("s3"), "not the image's own cache");
    assert_eq!(line(&text, "SCCACHE_S3_USE_SSL"), Some("false"));
}

/// The container has the workspace elsewhere, and its user may not make a folder of the runner's name.
#[cfg(unix)]
#[test]
fn container_gets_no_folder_of_this_machine_for_sccaches_disk() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = world();
    let s3 = S3Server::start("cache").unwrap();
    let (id, secret) = crcr_testkit::sts::key(1);
    s3.add_key(&id, &secret);
    let forks = |access| s3.rules(|rules| rules.anonymous = access);
    for (run, access, version, mode) in [
        (Run::push(), Anonymous::ReadAndList, "0.18.0", "rw"),
        (Run::fork(), Anonymous::ReadAndList, "0.18.0", "ro"),
        (Run::fork(), Anonymous::ReadAndList, "0.17.0", "disk"),
        (Run::fork(), Anonymous::Nothing, "0.18.0", "off"),
    ] {
        forks(access);
        let step = with_file(&world, run).arg("--sccache-dir").arg(".sccache");
        let step = step.arg("--sccache-bucket").arg("cache").arg("--sccache-endpoint");
        let step = step.arg(s3.url().as_str());
        let sccache = step.folder().join("sccache");
        fs::write(&sccache, format!("#!/bin/sh\necho sccache {version}\n")).unwrap();
        fs::set_permissions(&sccache, fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:/usr/bin:/bin", step.folder().display());
        let ran = step.env("PATH", &path).run().expect_code(0);
        assert_eq!(ran.outputs["sccache-mode"], mode, "{}", ran.report());
        assert!(ran.exported["SCCACHE_DIR"].ends_with(".sccache"), "{}", ran.report());
        let (text, options) = (env_file(&ran), &ran.outputs["container-options"]);
        assert_eq!(line(&text, "SCCACHE_DIR"), None, "{mode}: {text}");
        assert!(!options.contains("SCCACHE_DIR"), "{mode}: {options}");
        // Without any setting of the disk sccache refuses a chain with it.
        assert!(line(&text, "SCCACHE_MULTILEVEL_CHAIN").unwrap().starts_with("disk"), "{text}");
        assert_eq!(line(&text, "SCCACHE_LOCAL_RW_MODE"), Some("READ_WRITE"), "{mode}: {text}");
    }
}

/// A job that goes on after the step, by `continue-on-error`, must not find the machine's identity.
#[test]
fn env_file_that_cannot_be_written_fails_the_step_and_hides_the_machines_identity_all_the_same() {
    let world = world();
    let step = with_file(&world, Run::fork()).env("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token");
    fs::create_dir_all(step.folder().join("runner/container.env")).unwrap();
    let ran = step.run().expect_code(2);
    assert!(ran.stderr.contains("container.env` can't be written"), "{}", ran.report());
    assert_eq!((&*ran.outputs["mode"], &*ran.outputs["env-file"]), ("anonymous", ""));
    assert_eq!(ran.exported["AWS_WEB_IDENTITY_TOKEN_FILE"], "");
    assert_eq!(ran.exported["AWS_EC2_METADATA_DISABLED"], "true");
}

#[test]
fn env_file_outside_the_runners_own_folder_is_refused() {
    let world = world();
    for name in ["/etc/container.env", "../container.env", "a/../../b.env", "."] {
        let step = world.step(&world.job(Run::push())).arg("--env-file").arg(name);
        let ran = step.run().expect_code(2);
        assert!(ran.stderr.contains("isn't below `RUNNER_TEMP`"), "{name}: {}", ran.report());
        assert_eq!(ran.outputs["mode"], "error", "{}", ran.report());
        assert!(!ran.exported.contains_key("AWS_ACCESS_KEY_ID"), "{}", ran.report());
    }
    // A job that fails leaves no file of an earlier step.
    let step = with_file(&world, Run::push()).without("ACTIONS_ID_TOKEN_REQUEST_URL");
    let file = step.folder().join("runner/container.env");
    fs::write(&file, "AWS_ACCESS_KEY_ID=old\n").unwrap();
    let ran = step.run().expect_code(1);
    assert!(!ran.path("runner/container.env").exists());
    assert_eq!(ran.outputs["env-file"], "");
}

/// docker-compose's format `raw` is the one of `docker run --env-file`.
#[test]
#[ignore = "needs docker-compose"]
fn docker_reads_every_value_of_the_file_as_it_was_written() {
    let world = world();
    let ran = with_file(&world, Run::push()).run().expect_code(0);
    let compose = json!({ "services": { "build": { "image": "builder",
        "env_file": [{ "path": ran.outputs["env-file"], "format": "raw" }] } } });
    let mut child = Command::new("docker-compose")
        .args(["--file", "-", "config", "--format", "json"])
        .env("COMPOSE_PROJECT_NAME", "test")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(compose.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let read: Value = serde_json::from_slice(&output.stdout).unwrap();
    let read = read["services"]["build"]["environment"].as_object().unwrap();
    let text = env_file(&ran);
    assert_eq!(read.len(), text.lines().count());
    for (name, value) in read {
        assert_eq!(value.as_str(), line(&text, name), "{name}");
    }
    assert_eq!(read["AWS_SESSION_TOKEN"], *ran.exported["AWS_SESSION_TOKEN"]);
}

#[test]
fn dropped_credentials_are_found_by_no_later_step() {
    let world = world();
    let job = world.job(Run::push());
    let first = world.step(&job).arg("--env-file").arg("container.env").run().expect_code(0);
    let drop = |more: &[(&str, &str)]| {
        let step = Crcr::step(&["oidc", "drop"], "push", &json!({}));
        let step = first.exported.iter().fold(step, |step, (k, v)| step.env(k, v));
        let step = step.env("RUNNER_TEMP", first.path("runner").to_str().unwrap());
        more.iter().fold(step, |step, (k, v)| step.env(k, v)).run().expect_code(0)
    };
    let dropped = drop(&[]);
    for name in KEYS.iter().chain(&["CRCR_AUTH_ROLE_ARN", "CRCR_AUTH_FINGERPRINT"]) {
        assert_eq!(dropped.exported[*name], "", "{}", dropped.report());
    }
    assert_eq!(dropped.exported["CRCR_AUTH_MODE"], "anonymous");
    assert_eq!(dropped.exported["CRCR_AUTH_REASON"], "dropped");
    assert_eq!(dropped.exported["SCCACHE_MULTILEVEL_CHAIN"], "disk");
    assert!(!first.path("runner/container.env").exists(), "the file is gone");
    assert!(!dropped.stderr.contains("::warning"), "{}", dropped.report());

    // It can't take the permission away, and says so.
    let dropped = drop(&[("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "t")]);
    assert!(dropped.stderr.contains("has `id-token: write`"), "{}", dropped.report());

    // A later step asks for them again and isn't given the old ones.
    let mut later = first.exported.clone();
    later.extend(dropped.exported.clone());
    let again = later.iter().fold(world.step(&job), |step, (k, v)| step.env(k, v));
    let again = again.run().expect_code(0);
    assert_eq!(world.sts.granted().len(), 2);
    assert_ne!(again.exported["AWS_ACCESS_KEY_ID"], first.exported["AWS_ACCESS_KEY_ID"]);
}

#[test]
fn profile_in_the_environment_gets_a_warning_that_names_it_and_the_role() {
    let world = world();
    let step = || world.step(&world.job(Run::push()));
    for name in ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"] {
        let ran = step().env(name, "legacy").run().expect_code(0);
        for text in [&format!("`{name}` is `legacy`"), "arn:aws:iam::123456789012:role/ci"] {
            assert!(ran.stderr.contains(text), "{}", ran.report());
        }
    }
    let ran = step().run().expect_code(0);
    assert!(!ran.stderr.contains("::warning"), "{}", ran.report());
}

#[test]
fn changed_session_name_is_reported() {
    let world = world();
    let step =
        |name: &str| world.step(&world.job(Run::push())).env("INPUT_ROLE_SESSION_NAME", name);
    let ran = step("build: a b").run().expect_code(0);
    assert!(ran.stderr.contains("is called `build--a-b`"), "{}", ran.report());
    let ran = step("build-a").run().expect_code(0);
    assert!(!ran.stderr.contains("::warning"), "{}", ran.report());
}

#[test]
fn refusal_of_a_token_with_ids_says_that_the_trust_policy_needs_them() {
    let world = world();
    let run = Run { immutable_subject: true, ..Run::push() };
    let ran = world.step(&world.job(run.clone())).run().expect_code(1);
    assert_eq!(ran.outputs["reason"], "sts-denied");
    for text in ["sub: repo:acme@501/upstream@1001:ref:refs/heads/main", "since 2026-07-15"] {
        assert!(ran.stderr.contains(text), "{}", ran.report());
    }
    let ran = world.step(&world.job(run)).arg("--explain").run().expect_code(0);
    assert!(ran.stdout.contains("repo:acme@501/upstream@1001:…"), "{}", ran.report());
    assert!(ran.stdout.contains("repo:acme/upstream:…"), "{}", ran.report());
}
