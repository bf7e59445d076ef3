//! Runs `crcr relay serve` as a process with GitHub's stand-in.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crcr_standin::StandIn;
use crcr_testkit::redis::RedisServer;
use jiff::Timestamp;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tempfile::TempDir;
use url::Url;

pub(crate) const UPSTREAM: &str = "acme/upstream";

/// A folder, GitHub with the App installed, and the settings of a relay between them.
pub(crate) struct Place {
    pub(crate) github: StandIn,
    folder: TempDir,
    settings: BTreeMap<String, String>,
}

/// A relay that serves; killed when it is dropped.
pub(crate) struct Running {
    child: Child,
    pub(crate) url: Url,
    pub(crate) admin: Option<Url>,
}

impl Place {
    pub(crate) fn new(targets: &[&str], allowlist: &str) -> Self {
        let github = StandIn::start().unwrap();
        let world = &github.state().world;
        // These tests must not reach the hourly limit.
        world.limit(10_000_000, Timestamp::now() + Duration::from_secs(24 * 3600));
        world.install(UPSTREAM);
        for repo in targets {
            world.install(repo);
        }
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("allowlist.yml"), allowlist).unwrap();
        let app = world.app();
        let origin = github.state().origin();
        let settings = [
            ("GITHUB_APP_ID", app.id.as_str()),
            ("GITHUB_APP_SECRET", &app.webhook_secret),
            ("GITHUB_APP_PRIVATE_KEY", &app.private_key),
            ("GITHUB_API_URL", origin),
            ("CRCR_OIDC_ISSUERS", origin),
            ("ALLOWLIST_URL", "file:allowlist.yml"),
            ("UPSTREAM_REPO", UPSTREAM),
            ("CRCR_LISTEN", "127.0.0.1:0"),
            ("CRCR_ADMIN_LISTEN", "127.0.0.1:0"),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Self { github, folder, settings }
    }

    pub(crate) fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.insert(name.to_owned(), value.to_owned());
        self
    }

    /// With the state in Redis, and the results in a file.
    pub(crate) fn on_redis(self, redis: &RedisServer) -> Self {
        self.set("CRCR_STORE", &redis.url()).set("CRCR_RESULTS", "sqlite:results.db")
    }

    /// Moves a setting into a file that `NAME_FILE` names.
    pub(crate) fn move_to_file(mut self, name: &str) -> Self {
        let value = self.settings.remove(name).unwrap();
        let path = self.folder().join(name.to_lowercase());
        fs::write(&path, format!("{value}\n")).unwrap();
        self.set(&format!("{name}_FILE"), path.to_str().unwrap())
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.folder().join("crcr.db")
    }

    /// What every relay here has written to stderr.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder().join("relay.log")).unwrap_or_default()
    }

    /// The report of a job called `test`, which is running if it has no conclusion.
    pub(crate) fn report(
        &self,
        client: &reqwest::Client,
        relay: &Url,
        repo: &str,
        (delivery, payload): (&str, &Value),
        run: u64,
        conclusion: Option<&str>,
    ) -> reqwest::RequestBuilder {
        let status = if conclusion.is_some() { "completed" } else { "in_progress" };
        let body = json!({
            "event_type": "pull_request", "delivery_id": delivery, "payload": payload,
            "workflow": {
                "schema_version": "1", "status": status, "conclusion": conclusion, "name": "CI",
                "run_id": run.to_string(), "run_attempt": "1", "job_name": "test",
            }
        });
        let state = self.github.state();
        let now = Timestamp::now().as_second();
        let claims = json!({
            "iss": state.origin(), "aud": "pytorch-cross-repo-ci-relay", "iat": now, "nbf": now,
            "exp": now + 300, "jti": format!("{:x}", rand::random::<u128>()), "repository": repo,
            "repository_id": state.world.add_repo(repo).to_string(), "run_id": run.to_string(),
            "run_attempt": "1", "event_name": "repository_dispatch", "ref": "refs/heads/main",
        });
        let token = state.oidc.sign(&claims);
        let url = relay.join("github/callback").unwrap();
        client.post(url).bearer_auth(token).body(body.to_string())
    }

    /// The binary in the folder, with these settings and nothing else.
    pub(crate) fn crcr(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crcr"));
        command.args(args).env_clear().envs(&self.settings).current_dir(self.folder());
        crate::support::keep_coverage(&mut command);
        command
    }

    /// Exit code, stdout and stderr of a command that ends by itself.
    pub(crate) fn run(&self, args: &[&str]) -> (i32, String, String) {
        let output = self.crcr(args).stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
    }

    /// Stdout and stderr of a command that ends with this exit code.
    pub(crate) fn run_to(&self, expected: i32, args: &[&str]) -> (String, String) {
        let (code, stdout, stderr) = self.run(args);
        assert_eq!(code, expected, "{stderr}");
        (stdout, stderr)
    }

    /// A relay that is ready.
    pub(crate) async fn serving(&self) -> Running {
        let relay = self.serve();
        relay.ready().await;
        relay
    }

    /// Starts the relay; reads both addresses from its output.
    pub(crate) fn serve(&self) -> Running {
        self.serve_with(&[])
    }

    /// With settings of its own.
    pub(crate) fn serve_with(&self, settings: &[(&str, &str)]) -> Running {
        let log = self.folder().join("relay.log");
        let log = File::options().create(true).append(true).open(log).unwrap();
        let command = &mut self.crcr(&["relay", "serve"]);
        command.envs(settings.iter().copied());
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut address = |start: &str| {
            let line = lines.next().unwrap_or_else(|| panic!("no `{start}`: {}", self.log()));
            Url::parse(line.unwrap().strip_prefix(start).unwrap()).unwrap()
        };
        let url = address("listening on ");
        let with_admin = self.settings["CRCR_ADMIN_LISTEN"] != "off";
        let admin = with_admin.then(|| address("operators on "));
        Running { child, url, admin }
    }
}

impl Running {
    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn terminate(&self) {
        let id = self.child.id().to_string();
        let kill = Command::new("sh").args(["-c", "kill -TERM \"$1\"", "sh", &id]).status();
        assert!(kill.unwrap().success());
    }

    /// The exit code, within `bound`.
    pub(crate) async fn end(&mut self, bound: Duration) -> i32 {
        let until = Instant::now() + bound;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < until, "it still runs after {bound:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the relay says that it is ready.
    pub(crate) async fn ready(&self) {
        let url = self.url.join("readyz").unwrap();
        eventually("the relay is ready", async || {
            reqwest::get(url.clone()).await.is_ok_and(|answer| answer.status() == StatusCode::OK)
        })
        .await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `is_so`, for half a minute.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so().await {
        assert!(Instant::now() < until, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
