//! The real sccache with the variables that `crcr oidc configure` exports, and S3 on loopback.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use crcr_standin::runs::Run;
use crcr_testkit::s3::{Anonymous, S3Server};
use crcr_testkit::sts;

use crate::oidc_configure::{World, world};
use crate::support::Ran;

/// sccache with a server of its own, stopped at the end.
struct Sccache<'a> {
    folder: &'a Path,
    server: tempfile::TempDir,
    env: BTreeMap<String, String>,
}

impl<'a> Sccache<'a> {
    fn new(folder: &'a Path, configured: &Ran) -> Self {
        Self::on(&[], folder, configured)
    }

    /// In a job or image that has these variables, before those of the step.
    fn on(machine: &[(&str, &str)], folder: &'a Path, configured: &Ran) -> Self {
        let server = tempfile::tempdir().unwrap();
        let mut env: BTreeMap<String, String> =
            machine.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        env.extend(configured.exported.clone());
        Self { folder, server, env }
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new("sccache");
        command
            .args(args)
            .current_dir(self.folder)
            .env_clear()
            .env("SCCACHE_DIR", self.server.path().join("disk"))
            .envs(&self.env)
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.server.path());
        command.env("SCCACHE_SERVER_UDS", self.server.path().join("socket")).output().unwrap()
    }

    fn compile(&self, name: &str) {
        self.try_compile(name).unwrap_or_else(|error| panic!("{error}\n{:?}", self.env));
    }

    fn try_compile(&self, name: &str) -> Result<(), String> {
        let object = name.replace(".c", ".o");
        // Otherwise a failed compilation could look like a success.
        let _ = std::fs::remove_file(self.folder.join(&object));
        let output = self.run(&["cc", "-c", name, "-o", &object]);
        match output.status.success() && self.folder.join(object).exists() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Hits, misses and the place of the cache, by sccache's own count.
    fn stats(&self) -> (u64, u64, String) {
        let output = self.run(&["--show-stats", "--stats-format", "json"]);
        let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let count = |name: &str| {
            let counts = stats["stats"][name]["counts"].as_object().unwrap();
            counts.values().filter_map(serde_json::Value::as_u64).sum()
        };
        (count("cache_hits"), count("cache_misses"), stats["cache_location"].to_string())
    }
}

impl Drop for Sccache<'_> {
    fn drop(&mut self) {
        self.run(&["--stop-server"]);
    }
}

fn configure(world: &World, s3: &S3Server, run: Run, mode: &str) -> Ran {
    configure_on(&[], world, s3, run, mode)
}

/// On a machine that has these variables.
fn configure_on(
    machine: &[(&str, &str)],
    world: &World,
    s3: &S3Server,
    run: Run,
    mode: &str,
) -> Ran {
    let step = world.step(&world.job(run));
    let step = machine.iter().fold(step, |step, (name, value)| step.env(name, value));
    let step = step.arg("--sccache-bucket").arg("cache").arg("--sccache-key-prefix").arg("v1");
    let ran = step.arg("--sccache-endpoint").arg(s3.url().as_str()).run().expect_code(0);
    assert_eq!(ran.outputs["sccache-mode"], mode, "{}", ran.report());
    ran
}

#[test]
#[ignore = "needs sccache and cc"]
fn fork_reads_the_sccache_that_the_repository_writes() {
    let world = world();
    let s3 = S3Server::start("cache").unwrap();
    let (id, secret) = sts::key(1);
    s3.add_key(&id, &secret);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.c"), "int answer(void) { return 42; }\n").unwrap();
    std::fs::write(folder.path().join("b.c"), "int other(void) { return 43; }\n").unwrap();

    let writer = configure(&world, &s3, Run::push(), "rw");
    {
        let sccache = Sccache::new(folder.path(), &writer);
        sccache.compile("a.c");
        let (hits, misses, place) = sccache.stats();
        assert_eq!((hits, misses), (0, 1), "{place}");
        assert!(place.contains("s3"), "{place}");
    }
    let written = s3.keys();
    assert!(
        written.iter().any(|key| key.starts_with("v1/default-branch/") && !key.ends_with("_check"))
    );

    s3.rules(|rules| rules.anonymous = Anonymous::ReadAndList);
    let reader = configure(&world, &s3, Run::fork(), "ro");
    {
        let sccache = Sccache::new(folder.path(), &reader);
        sccache.compile("a.c");
        assert_eq!(sccache.stats().0, 1, "the fork reads what the repository wrote");
        sccache.compile("b.c");
        assert_eq!(s3.keys(), written, "and writes nothing");
    }

    // A pod with an identity of its own: what puts that away doesn't keep sccache from starting.
    let pod = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token"),
        ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/pod"),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.170.23/v1/credentials"),
        ("AWS_PROFILE", "runner"),
    ];
    let reader_in_pod = configure_on(&pod, &world, &s3, Run::fork(), "ro");
    {
        let mut sccache = Sccache::new(folder.path(), &reader_in_pod);
        for (name, value) in pod {
            sccache.env.entry(name.to_owned()).or_insert(value.to_owned());
        }
        sccache.compile("a.c");
        assert_eq!(sccache.stats().0, 1, "it reads the cache as on any other machine");
        assert_eq!(s3.keys(), written);
    }

    // Where sccache's server would refuse to start, it has the disk alone, and compiles.
    s3.rules(|rules| rules.anonymous = Anonymous::Nothing);
    let off = configure(&world, &s3, Run::fork(), "off");
    {
        let sccache = Sccache::new(folder.path(), &off);
        sccache.compile("b.c");
        assert!(!sccache.stats().2.contains("s3"));
    }
    let mut forced = Sccache::new(folder.path(), &reader);
    let _ = std::fs::remove_file(folder.path().join("a.o"));
    assert!(!forced.run(&["cc", "-c", "a.c", "-o", "a.o"]).status.success(), "the probe is needed");
    forced.env.insert("AWS_ACCESS_KEY_ID".to_owned(), String::new());
    s3.rules(|rules| rules.anonymous = Anonymous::ReadAndList);
    let refused = forced.run(&["cc", "-c", "a.c", "-o", "a.o"]);
    assert!(!refused.status.success(), "a defined key is refused, as `off` foresees");
}

/// What a bucket, another cache or an odd setting in the job's `env:` or the image does to a fork.
fn settings_of_jobs_and_images(s3: &S3Server) -> Vec<Vec<(&'static str, String)>> {
    let url = s3.url().as_str().trim_end_matches('/').to_owned();
    let bucket = || {
        vec![
            ("SCCACHE_BUCKET", "cache".to_owned()),
            ("SCCACHE_REGION", "us-east-1".to_owned()),
            ("SCCACHE_ENDPOINT", url.clone()),
        ]
    };
    let with = |name, value: &str| [bucket(), vec![(name, value.to_owned())]].concat();
    let dead = "http://127.0.0.1:1";
    vec![
        bucket(),
        with("SCCACHE_S3_NO_CREDENTIALS", "true"),
        with("SCCACHE_S3_NO_CREDENTIALS", ""),
        with("SCCACHE_MULTILEVEL_CHAIN", "disk,s3"),
        vec![("SCCACHE_BUCKET", "cache".to_owned())],
        vec![("SCCACHE_ENDPOINT", dead.to_owned()), ("SCCACHE_S3_USE_SSL", "true".to_owned())],
        vec![("SCCACHE_S3_ENABLE_VIRTUAL_HOST_STYLE", "true".to_owned())],
        vec![("SCCACHE_S3_KEY_PREFIX", "elsewhere".to_owned())],
        vec![("SCCACHE_REDIS_ENDPOINT", "redis://127.0.0.1:1".to_owned())],
        vec![("SCCACHE_MEMCACHED_ENDPOINT", "tcp://127.0.0.1:1".to_owned())],
        vec![("SCCACHE_GHA_ENABLED", "true".to_owned())],
        vec![("SCCACHE_WEBDAV_ENDPOINT", dead.to_owned())],
        vec![("SCCACHE_GCS_BUCKET", "b".to_owned()), ("SCCACHE_GCS_KEY_PATH", "/key".to_owned())],
        vec![("SCCACHE_GCS_KEY_PATH", "/key".to_owned())],
    ]
}

#[test]
#[ignore = "needs sccache and cc"]
fn a_forks_compilation_works_whatever_cache_the_job_or_the_image_has_set() {
    let world = world();
    let s3 = S3Server::start("cache").unwrap();
    let (id, secret) = sts::key(1);
    s3.add_key(&id, &secret);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.c"), "int answer(void) { return 42; }\n").unwrap();
    let writer = configure(&world, &s3, Run::push(), "rw");
    Sccache::new(folder.path(), &writer).compile("a.c");
    for settings in settings_of_jobs_and_images(&s3) {
        let machine: Vec<_> = settings.iter().map(|(name, value)| (*name, &**value)).collect();
        // The bucket refuses, with the input and without it.
        s3.rules(|rules| rules.anonymous = Anonymous::Nothing);
        let given = configure_on(&machine, &world, &s3, Run::fork(), "off");
        Sccache::on(&machine, folder.path(), &given).compile("a.c");
        let step = world.step(&world.job(Run::fork())).without("ACTIONS_RUNTIME_TOKEN");
        let step = machine.iter().fold(step, |step, (k, v)| step.env(k, v));
        let without = step.run().expect_code(0);
        assert_eq!(without.outputs["sccache-mode"], "off", "{}", without.report());
        Sccache::on(&machine, folder.path(), &without).compile("a.c");
        // The step fails, or can't read its inputs, and the job goes on.
        for (run, changes, code, mode) in [
            (Run::push(), &[("ACTIONS_ID_TOKEN_REQUEST_URL", "")][..], 1, "error"),
            (Run::fork(), &[("INPUT_ON_UNAVAILABLE", "fail")], 1, "anonymous"),
            (Run::fork(), &[("INPUT_TIMEOUT", "abc")], 2, "error"),
            (
                Run::push(),
                &[("INPUT_TIMEOUT", "abc"), ("INPUT_ON_UNAVAILABLE", "degrade")],
                0,
                "anonymous",
            ),
        ] {
            let step = world.step(&world.job(run)).without("ACTIONS_RUNTIME_TOKEN");
            let set = machine.iter().chain(changes);
            let ran = set.fold(step, |step, (k, v)| step.env(k, v)).run().expect_code(code);
            let told = (&*ran.outputs["mode"], &*ran.outputs["sccache-mode"]);
            assert_eq!(told, (mode, "off"), "{}", ran.report());
            Sccache::on(&machine, folder.path(), &ran).compile("a.c");
        }
        // The bucket can be read: it is used, and no other cache.
        s3.rules(|rules| rules.anonymous = Anonymous::ReadAndList);
        let reader = configure_on(&machine, &world, &s3, Run::fork(), "ro");
        let sccache = Sccache::on(&machine, folder.path(), &reader);
        sccache.compile("a.c");
        assert_eq!(sccache.stats().0, 1, "{machine:?} {:?}", reader.exported);
    }
}

#[test]
#[ignore = "needs sccache and cc"]
fn bucket_that_the_job_itself_names_is_read_by_forks_and_written_with_credentials() {
    let world = world();
    let s3 = S3Server::start("cache").unwrap();
    let (id, secret) = sts::key(1);
    s3.add_key(&id, &secret);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.c"), "int answer(void) { return 42; }\n").unwrap();
    // With `SCCACHE_S3_NO_CREDENTIALS: true` for all, sccache refuses the credentials of a branch.
    let machine = [
        ("SCCACHE_BUCKET", "cache"),
        ("SCCACHE_REGION", "us-east-1"),
        ("SCCACHE_ENDPOINT", s3.url().as_str()),
        ("SCCACHE_S3_KEY_PREFIX", "own"),
        ("SCCACHE_S3_NO_CREDENTIALS", "true"),
    ];
    let ran = |run: Run| {
        let step = world.step(&world.job(run));
        machine.iter().fold(step, |step, (k, v)| step.env(k, v)).run().expect_code(0)
    };
    let branch = ran(Run::push());
    assert_eq!(branch.outputs["sccache-mode"], "own", "{}", branch.report());
    Sccache::on(&machine, folder.path(), &branch).compile("a.c");
    let written = s3.keys();
    assert!(written.iter().any(|key| key.starts_with("own/") && !key.ends_with("_check")));
    s3.rules(|rules| rules.anonymous = Anonymous::ReadAndList);
    let fork = ran(Run::fork());
    assert_eq!(fork.outputs["sccache-mode"], "ro", "{}", fork.report());
    let sccache = Sccache::on(&machine, folder.path(), &fork);
    sccache.compile("a.c");
    assert_eq!((sccache.stats().0, s3.keys()), (1, written));
}

#[test]
#[ignore = "needs sccache and cc"]
fn poisoned_object_of_a_pull_request_is_never_read_by_the_default_branch() {
    let world = world();
    let s3 = S3Server::start("cache").unwrap();
    for n in 1..=3 {
        let (id, secret) = sts::key(n);
        s3.add_key(&id, &secret);
    }
    s3.rules(|rules| rules.anonymous = Anonymous::ReadAndList);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.c"), "int answer(void) { return 42; }\n").unwrap();
    let object = || std::fs::read(folder.path().join("a.o")).unwrap();
    let pull_request = configure(&world, &s3, Run::same_repository(), "rw");
    Sccache::new(folder.path(), &pull_request).compile("a.c");
    let good = object();

    // What another source compiles to is put where the cache has this one.
    std::fs::write(folder.path().join("b.c"), "int answer(void) { return 666; }\n").unwrap();
    let before = s3.keys();
    Sccache::new(folder.path(), &pull_request).compile("b.c");
    let is_object = |key: &&String| key.contains("pull-requests/") && !key.ends_with("_check");
    let victim = before.iter().find(is_object).unwrap().clone();
    let keys = s3.keys();
    let evil = keys.iter().find(|key| is_object(key) && !before.contains(key)).unwrap();
    s3.tamper(&victim, &s3.object(evil).unwrap()).unwrap();
    {
        let again = Sccache::new(folder.path(), &pull_request);
        again.compile("a.c");
        assert_eq!(again.stats().0, 1);
        assert_ne!(object(), good, "a pull request compiles in what is there");
    }

    let calls = s3.calls().len();
    let events = [("push", "refs/heads/main"), ("schedule", "refs/heads/main")];
    for (event, git_ref) in events {
        let run = Run { event: event.into(), git_ref: git_ref.into(), ..Run::push() };
        let default = configure(&world, &s3, run, "rw");
        Sccache::new(folder.path(), &default).compile("a.c");
        assert_eq!(object(), good, "{event}");
    }
    let fork = configure(&world, &s3, Run::fork(), "ro");
    Sccache::new(folder.path(), &fork).compile("a.c");
    assert_eq!(object(), good, "a fork");
    let asked: Vec<_> = s3.calls()[calls..].iter().map(|(_, key)| key.clone()).collect();
    assert!(!asked.iter().any(|key| key.contains("pull-requests")), "{asked:?}");
}

#[test]
#[ignore = "needs sccache and cc"]
fn forks_second_build_finds_what_its_first_one_compiled_and_writes_nothing_to_the_bucket() {
    const FILES: usize = 20;
    let world = world();
    let s3 = S3Server::start("cache").unwrap();
    s3.rules(|rules| rules.anonymous = Anonymous::ReadAndList);
    let folder = tempfile::tempdir().unwrap();
    for n in 0..FILES {
        let text = format!("int answer{n}(void) {{ return {n}; }}\n");
        std::fs::write(folder.path().join(format!("{n}.c")), text).unwrap();
    }
    let disk = folder.path().join("kept");
    let mut hits = vec![];
    for _ in 0..2 {
        let step = world.step(&world.job(Run::fork())).arg("--sccache-bucket").arg("cache");
        let step = step.arg("--sccache-endpoint").arg(s3.url().as_str());
        let path = std::env::var("PATH").unwrap();
        let fork = step.env("PATH", &path).arg("--sccache-dir").arg(disk.to_str().unwrap()).run();
        let fork = fork.expect_code(0);
        // Releases before 0.18 can't have both.
        let version = Command::new("sccache").arg("--version").output().unwrap();
        let old = String::from_utf8_lossy(&version.stdout).contains(" 0.16.");
        assert_eq!(fork.outputs["sccache-mode"], if old { "disk" } else { "ro" });
        let sccache = Sccache::new(folder.path(), &fork);
        for n in 0..FILES {
            sccache.compile(&format!("{n}.c"));
        }
        hits.push(sccache.stats().0);
    }
    assert_eq!(hits, [0, FILES as u64]);
    assert_eq!(s3.keys(), Vec::<String>::new());
}
