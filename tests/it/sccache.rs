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
        let server = tempfile::tempdir().unwrap();
        Self { folder, server, env: configured.exported.clone() }
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new("sccache")
            .args(args)
            .current_dir(self.folder)
            .env_clear()
            .envs(&self.env)
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.server.path())
            .env("SCCACHE_DIR", self.server.path().join("disk"))
            .env("SCCACHE_SERVER_UDS", self.server.path().join("socket"))
            .output()
            .unwrap()
    }

    fn compile(&self, name: &str) {
        let object = name.replace(".c", ".o");
        // Otherwise a failed compilation could look like a success.
        let _ = std::fs::remove_file(self.folder.join(&object));
        let output = self.run(&["cc", "-c", name, "-o", &object]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(self.folder.join(object).exists());
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

    let writer = configure(&world, &s3, Run::same_repository(), "rw");
    {
        let sccache = Sccache::new(folder.path(), &writer);
        sccache.compile("a.c");
        let (hits, misses, place) = sccache.stats();
        assert_eq!((hits, misses), (0, 1), "{place}");
        assert!(place.contains("s3"), "{place}");
    }
    let written = s3.keys();
    assert!(written.iter().any(|key| key.starts_with("v1/") && !key.ends_with("_check")));

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

    // Where sccache's server would refuse to start, it isn't told of the bucket, and compiles.
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
