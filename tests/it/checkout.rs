//! `crcr checkout` with the real git, against git's own HTTP server.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Crcr, Ran};

/// A server of bare repositories: `git http-backend` behind a listener.
pub(crate) struct Server {
    pub(crate) url: String,
    root: TempDir,
    /// The `Authorization` headers that came, one a request.
    authorizations: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let authorizations = Arc::new(Mutex::new(Vec::new()));
        let (folder, seen) = (root.path().to_owned(), Arc::clone(&authorizations));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &folder, &seen);
            }
        });
        Self { url, root, authorizations }
    }

    /// The bare repository `name`, which shows every branch and `refs/pull/*`.
    pub(crate) fn bare(&self, name: &str) -> PathBuf {
        let path = self.root.path().join(name);
        git(self.root.path(), &["init", "-q", "--bare", "-b", "main", path.to_str().unwrap()]);
        git(&path, &["config", "uploadpack.allowReachableSHA1InWant", "true"]);
        path
    }
}

fn serve(stream: TcpStream, root: &Path, seen: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    if reader.read_line(&mut line).is_err() || line.is_empty() {
        return;
    }
    let mut parts = line.split_whitespace();
    let (method, target) = (parts.next().unwrap().to_owned(), parts.next().unwrap().to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut backend = Command::new("git");
    backend
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REQUEST_METHOD", method)
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query);
    let (mut length, mut authorization) = (0, String::new());
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        let Some((name, value)) = header.trim().split_once(": ") else { break };
        match name.to_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "content-type" => _ = backend.env("CONTENT_TYPE", value),
            "content-encoding" => _ = backend.env("HTTP_CONTENT_ENCODING", value),
            "git-protocol" => _ = backend.env("GIT_PROTOCOL", value),
            "authorization" => authorization = value.to_owned(),
            _ => {}
        }
    }
    seen.lock().unwrap().push(authorization);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let mut child = backend
        .env("CONTENT_LENGTH", length.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&body).unwrap();
    let answer = child.wait_with_output().unwrap().stdout;
    let text = String::from_utf8_lossy(&answer);
    let status = text.lines().next().and_then(|line| line.strip_prefix("Status: "));
    let status = status.unwrap_or("200 OK").to_owned();
    let mut stream = stream;
    let _ = write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\n");
    let _ = stream.write_all(&answer);
}

/// git without the user's own settings, in `folder`.
pub(crate) fn git(folder: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args(args)
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .envs(["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"].map(|name| (name, "A")))
        .envs(["GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"].map(|name| (name, "a@example.org")))
        .output()
        .unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// `acme/upstream` with a base of two commits and pull request 7 from a fork.
pub(crate) struct Upstream {
    pub(crate) server: Server,
    work: TempDir,
    pub(crate) head: String,
}

impl Upstream {
    pub(crate) fn new() -> Self {
        let server = Server::start();
        let bare = server.bare("acme/upstream");
        let work = tempfile::tempdir().unwrap();
        let here = work.path();
        git(here, &["init", "-q", "-b", "main"]);
        git(here, &["remote", "add", "origin", bare.to_str().unwrap()]);
        for text in ["one", "two"] {
            fs::write(here.join("base.txt"), text).unwrap();
            git(here, &["add", "."]);
            git(here, &["commit", "-q", "-m", text]);
        }
        git(here, &["checkout", "-q", "-b", "topic"]);
        fs::write(here.join("change.txt"), "change").unwrap();
        git(here, &["add", "."]);
        git(here, &["commit", "-q", "-m", "change"]);
        let head = git(here, &["rev-parse", "HEAD"]);
        git(here, &["checkout", "-q", "-b", "merge", "main"]);
        git(here, &["merge", "-q", "--no-ff", "-m", "merge", "topic"]);
        git(
            here,
            &["push", "-q", "origin", "main", "topic:refs/pull/7/head", "merge:refs/pull/7/merge"],
        );
        Self { server, work, head }
    }

    fn event(&self) -> Value {
        json!({ "client_payload": { "delivery_id": "d", "payload": {
            "repository": { "full_name": "acme/upstream" },
            "pull_request": { "number": 7, "head": {
                "sha": self.head, "repo": { "full_name": "contributor/upstream" } } },
        } } })
    }

    fn checkout(&self, args: &[&str]) -> Crcr {
        self.checkout_of(args, &self.event())
    }

    fn checkout_of(&self, args: &[&str], event: &Value) -> Crcr {
        let run = Crcr::step(&[&["checkout"], args].concat(), "repository_dispatch", event);
        let workspace = run.folder().join("workspace");
        fs::create_dir_all(&workspace).unwrap();
        run.env("GITHUB_WORKSPACE", workspace.to_str().unwrap())
            .env("GITHUB_SERVER_URL", &self.server.url)
    }
}

fn head_of(ran: &Ran, folder: &str) -> String {
    git(&ran.path(folder), &["rev-parse", "HEAD"])
}

#[test]
fn dispatched_commit_is_checked_out_shallow() {
    let upstream = Upstream::new();
    let ran = upstream.checkout(&["--path", "src"]).run().expect_code(0);
    assert_eq!(head_of(&ran, "workspace/src"), upstream.head);
    assert_eq!(git(&ran.path("workspace/src"), &["rev-list", "--count", "HEAD"]), "1");
    assert_eq!(fs::read_to_string(ran.path("workspace/src/change.txt")).unwrap(), "change");
    assert_eq!(ran.outputs["sha"], upstream.head);
    assert_eq!(ran.outputs["pull-request"], "7");
    assert_eq!(ran.outputs["repository"], "acme/upstream");
}

#[test]
fn merge_groups_commit_is_checked_out() {
    let upstream = Upstream::new();
    let event = json!({ "client_payload": { "delivery_id": "d", "payload": {
        "action": "checks_requested", "repository": { "full_name": "acme/upstream" },
        "merge_group": { "head_sha": upstream.head, "base_ref": "refs/heads/main" },
    } } });
    let ran = upstream.checkout_of(&["--path", "src"], &event).run().expect_code(0);
    assert_eq!(head_of(&ran, "workspace/src"), upstream.head);
    assert_eq!(ran.outputs["pull-request"], "");
}

/// The workspace belongs to the runner's user, and in a container the job's is root.
#[test]
fn folder_of_another_user_can_be_checked_out_into() {
    let upstream = Upstream::new();
    let run = upstream.checkout(&["--path", "src"]).env("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1");
    let ran = run.run().expect_code(0);
    assert_eq!(head_of(&ran, "workspace/src"), upstream.head);
}

#[test]
fn merge_result_is_checked_out_on_request() {
    let upstream = Upstream::new();
    let ran = upstream.checkout(&["--merge"]).run().expect_code(0);
    assert_eq!(git(&ran.path("workspace"), &["rev-parse", "HEAD^2"]), upstream.head);
    assert_eq!(ran.outputs["head-sha"], upstream.head);
    assert_ne!(ran.outputs["sha"], upstream.head);

    let mut moved = upstream.event();
    let older = git(upstream.work.path(), &["rev-parse", "main"]);
    moved["client_payload"]["payload"]["pull_request"]["head"]["sha"] = json!(older);
    let ran = upstream.checkout_of(&["--merge"], &moved).run().expect_code(1);
    assert!(ran.stderr.contains("other-commit"), "{}", ran.report());
}

#[test]
fn commit_in_the_inputs_needs_no_event() {
    let upstream = Upstream::new();
    let sha = git(upstream.work.path(), &["rev-parse", "main"]);
    let args = ["--repository", "acme/upstream", "--sha", &sha, "--fetch-depth", "0"];
    let ran = upstream.checkout_of(&args, &json!({})).run().expect_code(0);
    assert_eq!(head_of(&ran, "workspace"), sha);
    assert_eq!(git(&ran.path("workspace"), &["rev-list", "--count", "HEAD"]), "2");
}

#[test]
fn token_is_sent_to_the_server_and_stored_nowhere() {
    let upstream = Upstream::new();
    let ran = upstream.checkout(&[]).env("INPUT_TOKEN", "s3cr3t-token").run().expect_code(0);
    let seen = upstream.server.authorizations.lock().unwrap().clone();
    // base64 of `x-access-token:s3cr3t-token`.
    let basic = "eC1hY2Nlc3MtdG9rZW46czNjcjN0LXRva2Vu";
    assert!(seen.iter().all(|header| *header == format!("basic {basic}")), "{seen:?}");
    let config = fs::read_to_string(ran.path("workspace/.git/config")).unwrap();
    assert!(!config.contains("extraheader") && !config.contains(basic), "{config}");
    let log: String = ran.stderr.lines().filter(|line| !line.starts_with("::add-mask::")).collect();
    assert!(!log.contains("s3cr3t") && !log.contains(basic), "{log}");
}

#[test]
fn submodules_are_fetched_only_over_the_network() {
    let upstream = Upstream::new();
    let library = upstream.server.bare("acme/library");
    let there = tempfile::tempdir().unwrap();
    git(there.path(), &["init", "-q", "-b", "main"]);
    fs::write(there.path().join("lib.txt"), "library").unwrap();
    git(there.path(), &["add", "."]);
    git(there.path(), &["commit", "-q", "-m", "library"]);
    git(there.path(), &["push", "-q", library.to_str().unwrap(), "main"]);
    let commit = git(there.path(), &["rev-parse", "HEAD"]);
    let here = upstream.work.path();
    git(here, &["checkout", "-q", "topic"]);
    let with = |url: &str| {
        let text = format!("[submodule \"lib\"]\n\tpath = lib\n\turl = {url}\n");
        fs::write(here.join(".gitmodules"), text).unwrap();
        git(here, &["update-index", "--add", "--cacheinfo", &format!("160000,{commit},lib")]);
        git(here, &["add", ".gitmodules"]);
        git(here, &["commit", "-q", "-m", "library"]);
        git(here, &["push", "-q", "-f", "origin", "topic:refs/pull/7/head"]);
        let mut event = upstream.event();
        event["client_payload"]["payload"]["pull_request"]["head"]["sha"] =
            json!(git(here, &["rev-parse", "HEAD"]));
        upstream.checkout_of(&["--submodules", "recursive"], &event).run()
    };
    let ran = with(&format!("{}/acme/library", upstream.server.url)).expect_code(0);
    assert_eq!(fs::read_to_string(ran.path("workspace/lib/lib.txt")).unwrap(), "library");
    // The SSH address of the same server is asked over https.
    let host = upstream.server.url.trim_start_matches("http://");
    let ran = with(&format!("git@{host}:acme/library")).expect_code(0);
    assert_eq!(fs::read_to_string(ran.path("workspace/lib/lib.txt")).unwrap(), "library");
    // The one of github.com isn't on another server; no protocol but this server's is allowed here.
    let ran = with("git@github.com:acme/library").expect_code(2);
    assert!(ran.stderr.contains("transport 'https' not allowed"), "{}", ran.report());
    let ran = with(there.path().to_str().unwrap()).expect_code(2);
    assert!(ran.stderr.contains("not allowed"), "{}", ran.report());
}

#[test]
fn malformed_payload_never_reaches_git() {
    let upstream = Upstream::new();
    let cases: [(&str, Value, &str); 6] = [
        ("/pull_request/head/sha", json!("--upload-pack=touch x"), "bad-sha"),
        ("/pull_request/head/sha", json!("main"), "bad-sha"),
        ("/repository/full_name", json!("../../etc"), "bad-repository"),
        ("/repository/full_name", json!("--config=x/y"), "bad-repository"),
        ("/pull_request/head/repo/full_name", json!("a/b.git?x"), "bad-repository"),
        ("/pull_request/number", json!("7; rm"), "client-payload"),
    ];
    for (pointer, value, code) in cases {
        let mut event = upstream.event();
        *event["client_payload"]["payload"].pointer_mut(pointer).unwrap() = value;
        let ran = upstream.checkout_of(&["--path", "src"], &event).run().expect_code(1);
        assert!(ran.stderr.contains(&format!("[{code}]")), "{pointer}: {}", ran.report());
        assert!(!ran.path("workspace/src").exists(), "nothing was begun");
    }
    assert!(upstream.server.authorizations.lock().unwrap().is_empty(), "nobody was asked");
}

#[test]
fn deleted_branch_and_missing_event_are_errors_with_a_hint() {
    let upstream = Upstream::new();
    let deleted = json!({ "client_payload": { "payload": {
        "repository": { "full_name": "acme/upstream" }, "after": "0".repeat(40) } } });
    let ran = upstream.checkout_of(&[], &deleted).run().expect_code(1);
    assert!(ran.stderr.contains("the push deleted the branch"), "{}", ran.report());
    let ran = upstream.checkout_of(&[], &json!({})).run().expect_code(1);
    assert!(ran.stderr.contains("repository_dispatch"), "{}", ran.report());
}

#[test]
fn folder_with_other_content_is_not_emptied() {
    let upstream = Upstream::new();
    let run = upstream.checkout(&["--path", "src"]);
    let folder = run.folder().join("workspace/src");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("mine.txt"), "mine").unwrap();
    let ran = run.run().expect_code(1);
    assert_eq!(fs::read_to_string(ran.path("workspace/src/mine.txt")).unwrap(), "mine");

    // An earlier checkout of the same repository is: a runner that keeps its folders.
    let run = upstream.checkout(&["--path", "src"]);
    let folder = run.folder().join("workspace/src");
    fs::create_dir_all(&folder).unwrap();
    git(&folder, &["init", "-q"]);
    let url = format!("{}/acme/upstream", upstream.server.url);
    git(&folder, &["remote", "add", "origin", &url]);
    git(&folder, &["config", "core.fsmonitor", "touch fsmonitor-ran"]);
    fs::write(folder.join("old.txt"), "old").unwrap();
    let ran = run.run().expect_code(0);
    assert!(!ran.path("workspace/src/old.txt").exists());
    assert!(!ran.path("workspace/src/fsmonitor-ran").exists());
}
