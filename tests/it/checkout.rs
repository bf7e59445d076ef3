//! `crcr checkout` with the real git, against git's own HTTP server.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
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
    /// How many requests are answered by `outage_status` before the next one is served.
    outage: Arc<AtomicUsize>,
    outage_status: Arc<AtomicUsize>,
    /// The content type and the body of that answer.
    outage_text: Arc<Mutex<[&'static str; 2]>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let authorizations = Arc::new(Mutex::new(Vec::new()));
        let (folder, seen) = (root.path().to_owned(), Arc::clone(&authorizations));
        let outage = Arc::new(AtomicUsize::new(0));
        let outage_status = Arc::new(AtomicUsize::new(503));
        let outage_text = Arc::new(Mutex::new(["text/html", "<html></html>"]));
        let (down, status) = (Arc::clone(&outage), Arc::clone(&outage_status));
        let text = Arc::clone(&outage_text);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                if down.load(Ordering::Relaxed) > 0 {
                    down.fetch_sub(1, Ordering::Relaxed);
                    let _ = stream.read(&mut [0; 4096]);
                    let status = status.load(Ordering::Relaxed);
                    let [kind, body] = *text.lock().unwrap();
                    let length = body.len();
                    let _ = write!(
                        stream,
                        "HTTP/1.1 {status} No\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\
                         connection: close\r\n\r\n{body}"
                    );
                    continue;
                }
                serve(stream, &folder, &seen);
            }
        });
        Self { url, root, authorizations, outage, outage_status, outage_text }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
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
            "authorization" if authorization.is_empty() => authorization = value.to_owned(),
            "authorization" => authorization.push_str(&format!(", {value}")),
            _ => {}
        }
    }
    seen.lock().unwrap().push(authorization);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    if target.contains("/info/lfs/") {
        return serve_lfs(stream, &target, &body, root);
    }
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
    if status.starts_with("404") {
        // As GitHub says it; the program's own answer has no text.
        let _ = write!(stream, "content-type: text/plain\r\n\r\nRepository not found.");
        return;
    }
    let _ = stream.write_all(&answer);
}

/// The batch API of Git LFS, and the files in the folder `lfs`:
/// <https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md>
fn serve_lfs(mut stream: TcpStream, target: &str, body: &[u8], root: &Path) {
    let answer = if target.ends_with("/objects/batch") {
        let asked: Value = serde_json::from_slice(body).unwrap();
        let base =
            format!("http://{}{}", stream.local_addr().unwrap(), target.trim_end_matches("batch"));
        let objects = asked["objects"].as_array().unwrap().iter().map(|object| {
            let href = format!("{base}{}", object["oid"].as_str().unwrap());
            json!({ "oid": object["oid"], "size": object["size"],
                "actions": { "download": { "href": href } } })
        });
        let objects: Vec<_> = objects.collect();
        json!({ "transfer": "basic", "objects": objects }).to_string().into_bytes()
    } else {
        fs::read(root.join("lfs").join(target.rsplit('/').next().unwrap())).unwrap()
    };
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/vnd.git-lfs+json\r\n\
         content-length: {}\r\n\r\n",
        answer.len()
    );
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
    pub(crate) work: TempDir,
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

    pub(crate) fn event(&self) -> Value {
        json!({ "client_payload": { "delivery_id": "d", "payload": {
            "repository": { "full_name": "acme/upstream" },
            "pull_request": { "number": 7, "head": {
                "sha": self.head, "repo": { "full_name": "contributor/upstream" } } },
        } } })
    }

    fn checkout(&self, args: &[&str]) -> Crcr {
        self.checkout_of(args, &self.event())
    }

    pub(crate) fn checkout_of(&self, args: &[&str], event: &Value) -> Crcr {
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

/// git before 2.38 reads `safe.directory` only from files, which this one does.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs root"]
fn folder_of_another_user_can_be_checked_out_into_by_an_older_git() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    let upstream = Upstream::new();
    let run = upstream.checkout(&[]);
    let (tools, home) = (run.folder().join("tools"), run.folder().join("home"));
    for folder in [&tools, &home] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(home.join(".gitconfig"), "[crcr]\n\ttest = own\n[safe]\n\tdirectory =\n").unwrap();
    let path = std::env::var("PATH").unwrap();
    let script = format!(
        "#!/bin/sh\nexport GIT_CONFIG_PARAMETERS=$(echo \"$GIT_CONFIG_PARAMETERS\" | sed 's/safe.directory/crcr.ignored/')\n\
         PATH='{path}' git config crcr.test >> '{}/seen'\nPATH='{path}' exec git \"$@\"\n",
        tools.display()
    );
    fs::write(tools.join("git"), script).unwrap();
    fs::set_permissions(tools.join("git"), fs::Permissions::from_mode(0o755)).unwrap();
    chown(run.folder().join("workspace"), Some(65_534), Some(65_534)).unwrap();
    let run = run.env("PATH", &format!("{}:{path}", tools.display()));
    let ran = run.env("HOME", home.to_str().unwrap()).run().expect_code(0);
    assert_eq!(fs::read_to_string(ran.path("workspace/change.txt")).unwrap(), "change");
    let seen = fs::read_to_string(tools.join("seen")).unwrap();
    assert!(!seen.is_empty() && seen.lines().all(|line| line == "own"), "{seen}");
}

/// git before 2.31, as in Debian 11, takes settings from no variable of a name and a number.
#[test]
fn token_reaches_the_server_by_an_older_git() {
    use std::os::unix::fs::PermissionsExt as _;
    let upstream = Upstream::new();
    let run = upstream.checkout(&[]).env("INPUT_TOKEN", "s3cr3t-token");
    let tools = run.folder().join("tools");
    fs::create_dir_all(&tools).unwrap();
    let path = std::env::var("PATH").unwrap();
    let script = format!("#!/bin/sh\nunset GIT_CONFIG_COUNT\nPATH='{path}' exec git \"$@\"\n");
    fs::write(tools.join("git"), script).unwrap();
    fs::set_permissions(tools.join("git"), fs::Permissions::from_mode(0o755)).unwrap();
    run.env("PATH", &format!("{}:{path}", tools.display())).run().expect_code(0);
    let seen = upstream.server.authorizations.lock().unwrap();
    assert!(!seen.is_empty() && seen.iter().all(|header| header.starts_with("basic ")), "{seen:?}");
}

/// On a runner that keeps its folders.
#[test]
fn folder_of_a_job_that_was_stopped_right_after_git_init_is_used_again() {
    use std::os::unix::fs::PermissionsExt as _;
    let upstream = Upstream::new();
    let run = upstream.checkout(&[]);
    let tools = run.folder().join("tools");
    fs::create_dir_all(&tools).unwrap();
    let path = std::env::var("PATH").unwrap();
    let script = format!("#!/bin/sh\nPATH='{path}' git \"$@\"\nexit 1\n");
    fs::write(tools.join("git"), script).unwrap();
    fs::set_permissions(tools.join("git"), fs::Permissions::from_mode(0o755)).unwrap();
    let stopped = run.env("PATH", &format!("{}:{path}", tools.display())).run().expect_code(2);
    assert!(stopped.path("workspace/.git/HEAD").exists(), "{}", stopped.report());

    let next = upstream.checkout(&[]);
    fs::rename(stopped.path("workspace/.git"), next.folder().join("workspace/.git")).unwrap();
    let ran = next.run().expect_code(0);
    assert_eq!(head_of(&ran, "workspace"), upstream.head);
    let address = git(&ran.path("workspace"), &["remote", "get-url", "origin"]);
    assert_eq!(address, format!("{}/acme/upstream", upstream.server.url));
}

#[test]
fn what_was_set_for_another_repository_changes_nothing() {
    let upstream = Upstream::new();
    let run = upstream.checkout(&["--path", "src", "--token", "secret-token"]);
    let folder = run.folder().to_owned();
    let header =
        format!("[http \"{}/\"]\n\textraheader = AUTHORIZATION: basic b2xk\n", upstream.server.url);
    fs::write(folder.join("gitconfig"), header).unwrap();
    let text = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let run = run
        .env("GIT_CONFIG_GLOBAL", &text("gitconfig"))
        .env("GIT_OBJECT_DIRECTORY", &text("objects"))
        .env("GIT_INDEX_FILE", &text("index"))
        .env("GIT_CONFIG_PARAMETERS", "'http.proxy=http://127.0.0.1:1'");
    let ran = run.run().expect_code(0);
    assert_eq!(head_of(&ran, "workspace/src"), upstream.head);
    assert!(!ran.path("objects").exists() && !ran.path("index").exists());
    let seen = upstream.server.authorizations.lock().unwrap();
    assert!(!seen.is_empty() && seen.iter().all(|one| !one.contains("b2xk")), "{seen:?}");
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

    let run = upstream.checkout(&["--path", "file"]);
    fs::write(run.folder().join("workspace/file"), "mine").unwrap();
    let ran = run.run().expect_code(1);
    assert!(ran.stderr.contains("set the input `path`"), "{}", ran.report());

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

#[test]
fn folder_outside_of_the_workspace_is_refused_before_anything_is_fetched() {
    let upstream = Upstream::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let outside = elsewhere.path().join("x");
    for path in ["../x", "a/../../x", outside.to_str().unwrap(), "link/x", ".git/x", "a/.git"] {
        let run = upstream.checkout(&["--path", path]);
        let workspace = run.folder().join("workspace");
        std::os::unix::fs::symlink(elsewhere.path(), workspace.join("link")).unwrap();
        let ran = run.run().expect_code(1);
        assert!(ran.stderr.contains("[checkout-folder]"), "{path}: {}", ran.report());
        assert!(ran.stderr.contains("`--path`"), "{path}: {}", ran.report());
        assert!(!ran.path("x").exists() && !outside.exists(), "{path}");
    }
    assert!(upstream.server.authorizations.lock().unwrap().is_empty(), "nobody was asked");
    for path in [".", "./src"] {
        upstream.checkout(&["--path", path]).run().expect_code(0);
    }
}

#[test]
fn hash_of_an_annotated_tag_checks_out_the_commit_that_it_names() {
    let upstream = Upstream::new();
    let here = upstream.work.path();
    git(here, &["tag", "-a", "-m", "first", "v0.9", "main"]);
    git(here, &["push", "-q", "origin", "v0.9"]);
    let tag = git(here, &["rev-parse", "v0.9"]);
    let args = ["--repository", "acme/upstream", "--sha", &tag];
    let ran = upstream.checkout(&args).run().expect_code(0);
    let commit = git(here, &["rev-parse", "main"]);
    assert_eq!(head_of(&ran, "workspace"), commit);
    assert_eq!(ran.outputs["sha"], commit);
}

#[test]
fn whole_history_comes_with_the_upstreams_tags() {
    let upstream = Upstream::new();
    let here = upstream.work.path();
    git(here, &["tag", "v1.0", "main"]);
    git(here, &["tag", "-a", "-m", "first", "v0.9", "main~1"]);
    git(here, &["push", "-q", "origin", "--tags"]);
    let ran = upstream.checkout(&["--path", "src", "--fetch-depth", "0"]).run().expect_code(0);
    let folder = ran.path("workspace/src");
    assert_eq!(git(&folder, &["describe", "--tags"]).split('-').next(), Some("v1.0"));
    assert_eq!(git(&folder, &["tag", "--list"]), "v0.9\nv1.0");
    assert_eq!(head_of(&ran, "workspace/src"), upstream.head);
    let ran = upstream.checkout(&["--path", "src"]).run().expect_code(0);
    assert_eq!(git(&ran.path("workspace/src"), &["tag", "--list"]), "");
}

#[test]
fn sparse_checkout_has_the_named_folders_and_fetches_no_other_files() {
    let upstream = Upstream::new();
    let here = upstream.work.path();
    git(&upstream.server.path("acme/upstream"), &["config", "uploadpack.allowFilter", "true"]);
    git(here, &["checkout", "-q", "topic"]);
    for (name, text) in [("a/one.txt", "1"), ("a/b/two.txt", "2"), ("big/three.txt", "3")] {
        fs::create_dir_all(here.join(name).parent().unwrap()).unwrap();
        fs::write(here.join(name), text).unwrap();
    }
    git(here, &["add", "."]);
    git(here, &["commit", "-q", "-m", "folders"]);
    git(here, &["push", "-q", "-f", "origin", "topic:refs/pull/7/head"]);
    let mut event = upstream.event();
    event["client_payload"]["payload"]["pull_request"]["head"]["sha"] =
        json!(git(here, &["rev-parse", "HEAD"]));
    let ran = upstream.checkout_of(&["--sparse-checkout", "a\n"], &event).run().expect_code(0);
    let there = |name: &str| ran.path(&format!("workspace/{name}")).exists();
    assert!(there("a/one.txt") && there("a/b/two.txt") && there("base.txt"));
    assert!(!there("big/three.txt"));
    let missing = git(
        &ran.path("workspace"),
        &["rev-list", "--objects", "--missing=print", "--no-object-names", "HEAD"],
    );
    assert_eq!(missing.lines().filter(|line| line.starts_with('?')).count(), 1, "{missing}");
    assert!(!ran.stderr.contains("sparse-checkout"), "{}", ran.report());

    let folders = "a/b/\nA/c\na/one.txt";
    let ran = upstream.checkout_of(&["--sparse-checkout", folders], &event).run().expect_code(0);
    assert!(ran.stderr.contains("has no folder `A/c`, `a/one.txt`"), "{}", ran.report());

    let ran = upstream.checkout_of(&["--filter", "blob:none"], &event).run().expect_code(0);
    assert!(ran.path("workspace/big/three.txt").exists(), "files are fetched when they are needed");
    let config = fs::read_to_string(ran.path("workspace/.git/config")).unwrap();
    assert!(config.contains("partialclonefilter = blob:none"), "{config}");
    for (flag, value) in [
        ("--filter", "blob:none --upload-pack=x"),
        ("--filter", "sparse:oid=x"),
        ("--filter", "foo"),
        ("--sparse-checkout", "*.txt"),
        ("--sparse-checkout", "/a"),
        ("--sparse-checkout", "a/../../x"),
    ] {
        upstream.checkout_of(&[flag, value], &event).run().expect_code(1);
    }
}

#[test]
fn outage_of_some_seconds_is_survived_and_not_called_a_missing_commit() {
    let upstream = Upstream::new();
    // Pauses of 1, 2 and 4 seconds, less jitter: more than the three tries of other failures.
    upstream.server.outage.store(3, Ordering::Relaxed);
    let ran = upstream.checkout(&[]).run().expect_code(0);
    assert_eq!(head_of(&ran, "workspace"), upstream.head);
    assert!(ran.stderr.contains("503") && ran.stderr.contains("trying again"), "{}", ran.report());
    assert!(!ran.stderr.contains("force-push"), "{}", ran.report());

    // A proxy answers with a page, whatever its status.
    for status in [200, 302, 404, 403] {
        upstream.server.outage_status.store(status, Ordering::Relaxed);
        upstream.server.outage.store(3, Ordering::Relaxed);
        let ran = upstream.checkout(&[]).run().expect_code(0);
        for of_commit in ["set `token`", "force-push"] {
            assert!(!ran.stderr.contains(of_commit), "{}", ran.report());
        }
    }
    // GitHub says why it refuses, and goes on to.
    *upstream.server.outage_text.lock().unwrap() = ["text/plain", "Write access not granted."];
    upstream.server.outage.store(99, Ordering::Relaxed);
    let ran = upstream.checkout(&[]).run().expect_code(2);
    assert!(ran.stderr.contains("set `token`"), "{}", ran.report());
    assert_eq!(upstream.server.outage.swap(0, Ordering::Relaxed), 98, "it is asked once");

    let gone = upstream.event().to_string().replace(&upstream.head, &"1".repeat(40));
    let ran = upstream.checkout_of(&[], &serde_json::from_str(&gone).unwrap()).run().expect_code(2);
    assert!(ran.stderr.contains("force-push"), "{}", ran.report());
    assert!(ran.stderr.contains("s: `git fetch` failed: "), "the wait's reason: {}", ran.report());
}

/// The leftovers of a container's root, where the runner is somebody else.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs root"]
fn leftovers_of_another_user_are_named_with_what_to_do() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    use std::os::unix::process::CommandExt as _;
    const NOBODY: u32 = 65_534;
    let upstream = Upstream::new();
    let mut run = upstream.checkout(&["--path", "src"]);
    let folder = run.folder().to_owned();
    let source = folder.join("workspace/src");
    fs::create_dir_all(source.join("build/out")).unwrap();
    git(&source, &["init", "-q"]);
    let url = format!("{}/acme/upstream", upstream.server.url);
    git(&source, &["remote", "add", "origin", &url]);
    fs::write(source.join("build/out/left.o"), "x").unwrap();
    let mut owned = vec![folder.clone()];
    while let Some(path) = owned.pop() {
        if path.ends_with("out") {
            continue;
        }
        chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        if path.is_dir() {
            owned.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    run.command().uid(NOBODY).gid(NOBODY);
    let ran = run.run().expect_code(1);
    for text in ["workspace/src/build/out` belongs to the user 0", "sudo rm -rf"] {
        assert!(ran.stderr.contains(text), "{}", ran.report());
    }
}

#[test]
fn forks_head_is_refused_where_the_run_has_the_base_repositorys_secrets() {
    let upstream = Upstream::new();
    let own = git(upstream.work.path(), &["rev-parse", "main"]);
    let base = git(upstream.work.path(), &["rev-parse", "main~1"]);
    let head = upstream.head.clone();
    let fork = "contributor/upstream";
    let pull = |repository: Value| {
        json!({ "repository": { "full_name": "acme/upstream", "default_branch": "main" },
            "pull_request": { "number": 7, "merge_commit_sha": "5".repeat(40),
                "head": { "sha": head, "ref": "topic", "repo": repository },
                "base": { "sha": base, "ref": "main", "repo": { "full_name": "acme/upstream" } } } })
    };
    let run_of = |event: &str, repository: &str| {
        json!({ "repository": { "full_name": "acme/upstream", "default_branch": "main" },
            "workflow_run": { "id": 1, "event": event, "head_sha": head,
                "head_repository": { "full_name": repository } } })
    };
    let comment = json!({ "repository": { "full_name": "acme/upstream", "default_branch": "main" },
        "issue": { "number": 7, "pull_request": {} } });
    let forked = || pull(json!({ "full_name": fork }));
    let other = "3".repeat(40);
    let cases = [
        ("pull_request_target", forked(), fork, &*head, true),
        ("pull_request_target", forked(), "Contributor/Upstream", &*other, true),
        ("pull_request_target", forked(), "acme/upstream", &*head, true),
        ("pull_request_target", forked(), "acme/upstream", &"5".repeat(40), true),
        // An older head of the same pull request.
        ("pull_request_target", forked(), "acme/upstream", &*other, true),
        ("pull_request_target", pull(Value::Null), "acme/upstream", &*head, true),
        ("pull_request_target", forked(), "acme/upstream", &*own, false),
        ("pull_request_target", forked(), "acme/upstream", &*base, false),
        ("pull_request_target", forked(), "acme/tools", &*other, false),
        // Every fork has the commits of all.
        ("pull_request_target", forked(), "another/upstream", &*other, true),
        ("pull_request_target", forked(), "another/upstream", &*head, true),
        (
            "pull_request_target",
            pull(json!({ "full_name": "acme/fork" })),
            "acme/fork",
            &*head,
            true,
        ),
        (
            "pull_request_target",
            pull(json!({ "full_name": "acme/upstream" })),
            "acme/upstream",
            &*head,
            false,
        ),
        (
            "pull_request_target",
            pull(json!({ "full_name": "acme/upstream" })),
            "acme/upstream",
            &*other,
            true,
        ),
        ("workflow_run", run_of("pull_request", fork), fork, &*head, true),
        ("workflow_run", run_of("pull_request", fork), "acme/upstream", &*head, true),
        ("workflow_run", run_of("pull_request", "acme/upstream"), "acme/upstream", &*head, false),
        ("workflow_run", run_of("pull_request", "acme/upstream"), "acme/upstream", &*other, true),
        ("workflow_run", run_of("push", "acme/upstream"), "acme/upstream", &*head, false),
        // Somebody's comment started the run before; its head is the default branch's.
        ("workflow_run", run_of("issue_comment", "acme/upstream"), "acme/upstream", &*other, true),
        ("workflow_run", run_of("issue_comment", "acme/upstream"), fork, &*other, true),
        ("workflow_run", run_of("workflow_run", "acme/upstream"), fork, &*other, true),
        // A relay's dispatch, whose run has built an upstream pull request.
        ("workflow_run", run_of("repository_dispatch", "acme/upstream"), fork, &*other, true),
        (
            "workflow_run",
            run_of("repository_dispatch", "acme/upstream"),
            "acme/upstream",
            &*head,
            false,
        ),
        ("issue_comment", comment.clone(), "acme/upstream", &*head, true),
        ("issue_comment", comment.clone(), "acme/upstream", &*own, false),
        ("issue_comment", comment.clone(), fork, &*head, true),
        ("issue_comment", comment.clone(), fork, &*own, true),
        ("issue_comment", comment.clone(), "acme/tools", &*other, false),
        ("gollum", comment.clone(), "acme/upstream", &*head, true),
        ("gollum", comment.clone(), "acme/upstream", &*own, false),
        ("check_suite", comment, "acme/upstream", &*head, true),
        ("pull_request", forked(), "acme/upstream", &*head, false),
        ("workflow_dispatch", json!({}), "acme/upstream", &*head, false),
    ];
    for (event, payload, repository, sha, refused) in cases {
        let step = |allow: bool| {
            let args = ["checkout", "--repository", repository, "--sha", sha];
            let run = Crcr::step(&args, event, &payload);
            let workspace = run.folder().join("workspace");
            fs::create_dir_all(&workspace).unwrap();
            run.env("GITHUB_WORKSPACE", workspace.to_str().unwrap())
                .env("GITHUB_SERVER_URL", &upstream.server.url)
                .env("GITHUB_SHA", &own)
                .env("INPUT_ALLOW_UNSAFE_PR_CHECKOUT", if allow { "true" } else { "" })
                .run()
        };
        let asked = upstream.server.authorizations.lock().unwrap().len();
        let ran = step(false);
        let is_refused = ran.stderr.contains("unsafe-pr-checkout");
        assert_eq!(is_refused, refused, "{event} {repository} {sha}: {}", ran.report());
        if refused {
            assert_eq!(ran.code, 1);
            assert_eq!(upstream.server.authorizations.lock().unwrap().len(), asked);
            assert!(!step(true).stderr.contains("unsafe-pr-checkout"), "it is allowed on request");
        }
    }
}
