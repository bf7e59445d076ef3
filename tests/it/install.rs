//! `actions/install/install.sh`, with releases on loopback.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_lc_rs::digest;
use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use crcr_standin::server::{Bound, Server};
use crcr_standin::traffic::Fault;
use crcr_testkit::fault::{FaultProxy, Rule};
use tempfile::TempDir;

const VERSION: &str = "9.8.7";
const TARGET: &str = "x86_64-unknown-linux-musl";
const SCRIPT: &str = "action/actions/install/install.sh";
const NO_RELEASE: &str = r#"{ "default": "", "sha256": {} }"#;
/// No waiting for a server that fails.
const AT_ONCE: (&str, &str) = ("CRCR_RETRY_SECONDS", "0");
const BINARY: &str = "#!/bin/sh\necho crcr 9.8.7\n";

/// A machine with the action on it and a server with one release.
struct Machine {
    folder: TempDir,
    releases: Server,
}

/// A binary as it is released.
fn packed(tool: &str, binary: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("packed");
    fs::write(&file, binary).unwrap();
    Command::new(tool).arg("-c").arg(&file).output().unwrap().stdout
}

/// A server of releases that gives this answer.
fn serve<A: IntoResponse + 'static>(
    answer: impl Fn() -> A + Clone + Send + Sync + 'static,
) -> Server {
    serve_as("xz", answer)
}

fn serve_as<A: IntoResponse + 'static>(
    form: &str,
    answer: impl Fn() -> A + Clone + Send + Sync + 'static,
) -> Server {
    let path = format!("/v{VERSION}/crcr-{VERSION}-{TARGET}.{form}");
    let router =
        Router::new().route(&path, get(move || std::future::ready(answer().into_response())));
    Bound::loopback().unwrap().serve(router).unwrap()
}

impl Machine {
    /// `released` is what the server has; the manifest knows the hash of `BINARY`.
    fn new(released: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let packed = packed("xz", released);
        let releases = serve(move || packed.clone());
        let machine = Self { folder, releases };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../actions/install/install.sh");
        fs::create_dir_all(machine.path("action/actions/install")).unwrap();
        fs::copy(script, machine.path(SCRIPT)).unwrap();
        let hash = hex::encode(digest::digest(&digest::SHA256, BINARY.as_bytes()));
        machine.write_manifest(&format!(
            r#"{{ "default": "{VERSION}", "sha256": {{ "{VERSION}/{TARGET}": "{hash}" }} }}"#
        ));
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_manifest(&self, text: &str) {
        fs::write(self.path("action/actions/install/manifest.json"), text).unwrap();
    }

    /// The machine with an action whose manifest is empty, and whose source is a real but small crate.
    fn without_a_release() -> Self {
        let machine = Self::new(BINARY);
        machine.write_manifest(NO_RELEASE);
        let lock = "version = 4\n\n[[package]]\nname = \"crcr\"\nversion = \"0.0.1\"\n";
        for (name, text) in [
            ("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"cli\"]\n"),
            ("Cargo.lock", lock),
            (
                "cli/Cargo.toml",
                "[package]\nname = \"crcr\"\nversion = \"0.0.1\"\nedition = \"2024\"\n",
            ),
            ("cli/src/main.rs", "fn main() { println!(\"crcr 0.0.1\"); }"),
            ("crates/README.md", ""),
            ("workflows-templates/README.md", ""),
        ] {
            let path = machine.path("action").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        machine
    }

    /// Programs on PATH before all others, as shell scripts.
    fn program(&self, name: &str, script: &str) {
        fs::create_dir_all(self.path("bin")).unwrap();
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A PATH with every program of this machine but these.
    fn path_without(&self, missing: &[&str]) -> String {
        let folder = self.path("programs");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        for programs in ["/bin", "/usr/bin"] {
            for entry in fs::read_dir(programs).unwrap().flatten() {
                let name = entry.file_name();
                if !missing.iter().any(|missing| *missing == name) {
                    let _ = std::os::unix::fs::symlink(entry.path(), folder.join(name));
                }
            }
        }
        folder.to_str().unwrap().to_owned()
    }

    fn cached(&self) -> PathBuf {
        self.path(&format!("cache/crcr/{VERSION}/{TARGET}/crcr"))
    }

    fn install(&self, inputs: &[(&str, &str)]) -> Output {
        self.command(inputs).output().unwrap()
    }

    fn command(&self, inputs: &[(&str, &str)]) -> Command {
        let path = std::env::join_paths([self.path("bin"), "/usr/bin".into(), "/bin".into()]);
        let mut command = Command::new("/bin/bash");
        command
            .arg(self.path(SCRIPT))
            .arg("--add-path")
            .env_clear()
            .env("PATH", path.unwrap())
            .env("RUNNER_TEMP", self.folder.path())
            .env("RUNNER_TOOL_CACHE", self.path("cache"))
            .env("GITHUB_OUTPUT", self.path("output"))
            .env("GITHUB_PATH", self.path("path"))
            .env("CRCR_DOWNLOAD_URL", self.releases.url().as_str())
            .envs(inputs.iter().copied());
        command
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The files in the tool cache.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return vec![] };
    entries
        .map(|entry| entry.unwrap().path())
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .collect()
}

#[test]
fn release_with_the_manifests_hash_is_installed_and_reused() {
    let machine = Machine::new(BINARY);
    let ran = machine.install(&[]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    let cached = machine.cached();
    assert_eq!(fs::read_to_string(&cached).unwrap(), BINARY);
    assert_eq!(machine.read("output"), format!("path={}\nversion={VERSION}\n", cached.display()));
    assert_eq!(machine.read("path"), format!("{}\n", cached.parent().unwrap().display()));
    assert_eq!(files(&machine.path("cache")), [cached], "nothing but the binary is left");

    let nowhere = [("CRCR_DOWNLOAD_URL", "http://127.0.0.1:1")];
    assert!(machine.install(&nowhere).status.success(), "the second time needs no network");
}

#[test]
fn modified_cached_binary_is_replaced() {
    let machine = Machine::new(BINARY);
    assert!(machine.install(&[]).status.success());
    fs::write(machine.cached(), "#!/bin/sh\necho crcr evil\n").unwrap();
    assert!(machine.install(&[]).status.success());
    assert_eq!(fs::read_to_string(machine.cached()).unwrap(), BINARY);
}

#[test]
fn download_with_a_wrong_hash_is_refused_and_deleted() {
    let machine = Machine::new("#!/bin/sh\ntouch ran; echo crcr evil\n");
    let ran = machine.install(&[]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(stderr(&ran).contains("error[hash-mismatch]"), "{}", stderr(&ran));
    assert_eq!(files(&machine.path("cache")), Vec::<PathBuf>::new());
    assert_eq!(machine.read("output") + &machine.read("path"), "");
}

#[test]
fn zip_bomb_of_a_release_is_cut_off() {
    let machine = Machine::new(&"0".repeat(80 << 20));
    let ran = machine.install(&[]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(stderr(&ran).contains("error[hash-mismatch]"), "{}", stderr(&ran));
    assert_eq!(files(&machine.path("cache")), Vec::<PathBuf>::new());
}

#[test]
fn missing_release_is_a_network_failure() {
    let machine = Machine::new(BINARY);
    let elsewhere = format!("{}elsewhere", machine.releases.url());
    let ran = machine.install(&[("CRCR_DOWNLOAD_URL", &elsewhere)]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(stderr(&ran).contains("error[download]"), "{}", stderr(&ran));
}

#[test]
fn truncated_release_is_refused_and_leaves_nothing() {
    let machine = Machine::new(BINARY);
    let whole = packed("xz", BINARY);
    let short = whole[..whole.len() / 2].to_vec();
    let server = serve(move || short.clone());
    let ran = machine.install(&[("CRCR_DOWNLOAD_URL", server.url().as_str())]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(stderr(&ran).contains("error[hash-mismatch]"), "{}", stderr(&ran));

    // The connection ends before what was announced: a fault of the network.
    let server = serve(|| {
        let body = futures_util::stream::iter([
            Ok(packed("xz", BINARY)[..9].to_vec()),
            Err(std::io::Error::other("cut")),
        ]);
        Response::builder().header("content-length", 1000).body(Body::from_stream(body)).unwrap()
    });
    let ran = machine.install(&[("CRCR_DOWNLOAD_URL", server.url().as_str()), AT_ONCE]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(stderr(&ran).contains("error[download]"), "{}", stderr(&ran));
    assert_eq!(files(&machine.path("cache")), Vec::<PathBuf>::new());
    assert_eq!(machine.read("output") + &machine.read("path"), "");
}

#[test]
fn machine_without_xz_takes_the_larger_form() {
    let machine = Machine::new(BINARY);
    let server = serve_as("gz", || packed("gzip", BINARY));
    let without_xz = machine.path_without(&["xz"]);
    let ran = machine
        .install(&[("CRCR_DOWNLOAD_URL", server.url().as_str()), ("PATH", without_xz.as_str())]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert_eq!(fs::read_to_string(machine.cached()).unwrap(), BINARY);
    let without = machine.path_without(&["xz", "gzip"]);
    let other = machine.path("other").to_str().unwrap().to_owned();
    let ran = machine.install(&[("PATH", &*without), ("RUNNER_TOOL_CACHE", &other)]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(stderr(&ran).contains("error[missing-tool]: `xz` and `gzip`"), "{}", stderr(&ran));
}

/// Installs from a server that fails so often, with no programs to download with but `tools`. Says how it
/// ended and how often the server was asked.
fn install_after(failure: Fault, times: usize, tools: &[&str]) -> (Output, usize) {
    let machine = Machine::new(BINARY);
    let proxy = FaultProxy::start(machine.releases.url()).unwrap();
    proxy.add(Rule::any(failure).times(times));
    let others: Vec<_> =
        ["curl", "node", "wget"].into_iter().filter(|tool| !tools.contains(tool)).collect();
    let mut path = machine.path_without(&others);
    if tools.contains(&"node") {
        path = format!("{path}:{}", node_folder());
    }
    let ran = machine.install(&[("CRCR_DOWNLOAD_URL", proxy.url().as_str()), ("PATH", &path)]);
    (ran, proxy.seen().len())
}

fn answer(status: u16, body: &str) -> Fault {
    let status = StatusCode::from_u16(status).unwrap();
    Fault::Answer { status, retry_after: None, body: body.to_owned() }
}

fn outages_are_waited_out_with(tool: &'static str) {
    const PAGE: &str = "\n<!DOCTYPE html><html><title>Sign in</title></html>";
    // The pauses before the fifth try are at least 11 seconds.
    let failures = [
        (answer(503, ""), 4),
        (Fault::Reset, 4),
        (answer(403, PAGE), 1),
        (answer(408, ""), 1),
        (answer(429, ""), 1),
        (answer(200, PAGE), 1),
    ];
    std::thread::scope(|scope| {
        for (failure, times) in failures {
            scope.spawn(move || {
                let (ran, calls) = install_after(failure.clone(), times, &[tool]);
                let told = stderr(&ran);
                assert!(ran.status.success(), "{failure:?}: {told}");
                assert_eq!(calls, times + 1, "{failure:?}");
                assert_eq!(told.matches("waiting, and trying again for up to 75 s: ").count(), 1);
                assert_eq!(told.lines().count(), 2, "{failure:?}: {told}");
            });
        }
    });
    let (ran, calls) = install_after(answer(404, ""), 1, &[tool]);
    assert_eq!((ran.status.code(), calls), (Some(2), 1), "{}", stderr(&ran));
    assert!(stderr(&ran).contains("404") && !stderr(&ran).contains("waiting"), "{}", stderr(&ran));
}

#[test]
fn server_that_fails_first_is_asked_again() {
    outages_are_waited_out_with("curl");
}

#[test]
#[ignore = "needs node and wget"]
fn server_that_fails_first_is_asked_again_by_node_and_wget() {
    outages_are_waited_out_with("node");
    outages_are_waited_out_with("wget");
}

/// A proxy that has the release at `releases.invalid`, and says how often it was asked for it. curl asks
/// for the address, node for a tunnel to it.
fn proxy() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut first_line = || {
                let lines = reader.by_ref().lines().map_while(Result::ok);
                let head: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
                head.into_iter().next().unwrap_or_default()
            };
            let mut line = first_line();
            if line.starts_with("CONNECT releases.invalid:80 ") {
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
                line = first_line().replacen("GET ", "GET http://releases.invalid", 1);
            }
            if line.starts_with("GET http://releases.invalid/v") {
                count.fetch_add(1, Ordering::SeqCst);
            }
            let body = packed("xz", BINARY);
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length:";
            let _ = write!(stream, "{head} {}\r\n\r\n", body.len());
            let _ = stream.write_all(&body);
        }
    });
    (url, asked)
}

#[test]
fn download_goes_through_the_proxy_of_the_job() {
    let machine = Machine::new(BINARY);
    let (proxy, asked) = proxy();
    let url = [("CRCR_DOWNLOAD_URL", "http://releases.invalid")];
    let ran = machine.install(&[url[0], ("http_proxy", &proxy)]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let other = machine.path("other").to_str().unwrap().to_owned();
    let ran = machine.install(&[url[0], AT_ONCE, ("RUNNER_TOOL_CACHE", &other)]);
    assert_eq!(ran.status.code(), Some(2), "the name exists only at the proxy");
}

#[test]
#[ignore = "needs node"]
fn node_downloads_through_the_proxy_of_the_job() {
    let machine = Machine::new(BINARY);
    let (proxy, asked) = proxy();
    let path = format!("{}:{}", machine.path_without(&["curl", "wget", "node"]), node_folder());
    let ran = machine.install(&[
        ("CRCR_DOWNLOAD_URL", "http://releases.invalid"),
        ("HTTP_PROXY", &proxy),
        ("PATH", &path),
    ]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[test]
fn jobs_on_one_runner_that_install_at_once_get_the_same_binary() {
    let machine = Machine::new(BINARY);
    let start = |_| machine.command(&[]).stderr(Stdio::piped()).spawn().unwrap();
    let jobs: Vec<_> = (0..4).map(start).collect();
    for job in jobs {
        let ran = job.wait_with_output().unwrap();
        assert!(ran.status.success(), "{}", stderr(&ran));
    }
    assert_eq!(files(&machine.path("cache")), [machine.cached()]);
    assert_eq!(fs::read_to_string(machine.cached()).unwrap(), BINARY);
}

#[test]
fn functions_that_an_earlier_step_exported_are_not_run() {
    let machine = Machine::new("#!/bin/sh\necho crcr evil\n");
    let planted = machine.path("planted").to_str().unwrap().to_owned();
    let good = hex::encode(digest::digest(&digest::SHA256, BINARY.as_bytes()));
    let body = format!("() {{ /usr/bin/touch {planted}; echo {good}; }}");
    let names = [
        "sha256sum",
        "shasum",
        "curl",
        "gzip",
        "xz",
        "head",
        "mv",
        "mktemp",
        "uname",
        "command",
        "unset",
        "set",
        "exec",
        "cd",
        "echo",
        "printf",
        "trap",
        "local",
        "return",
        "exit",
        "have",
    ];
    let mut command = machine.command(&[]);
    for name in names {
        command.env(format!("BASH_FUNC_{name}%%"), &body);
    }
    let ran = command.output().unwrap();
    assert_eq!(ran.status.code(), Some(1), "{}", stderr(&ran));
    assert!(stderr(&ran).contains("error[hash-mismatch]"), "{}", stderr(&ran));
    assert!(!machine.path("planted").exists(), "a planted function ran");
}

/// The step of the action as a runner starts it, with what the job exported.
#[test]
fn start_up_file_that_an_earlier_step_exported_is_not_run() {
    let machine = Machine::new(BINARY);
    let action = include_str!("../../actions/install/action.yml");
    let action: serde_yaml::Value = serde_yaml::from_str(action).unwrap();
    let step = &action["runs"]["steps"][0];
    let script = machine.path("step.sh");
    fs::write(&script, step["run"].as_str().unwrap()).unwrap();
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(machine.path(SCRIPT), mode).unwrap();
    let start_up = machine.path("start-up.sh");
    fs::write(&start_up, format!("touch {}\n", machine.path("planted").display())).unwrap();
    let run = |shell: &str| {
        let mut command = machine.command(&[]);
        let environment: Vec<_> =
            command.get_envs().map(|(k, v)| (k.to_owned(), v.unwrap().to_owned())).collect();
        command = crate::contracts::shell_command(shell, &script);
        command.env_clear().envs(environment).env("BASH_ENV", &start_up).env("ENV", &start_up);
        command.env("GITHUB_ACTION_PATH", machine.path("action/actions/install"));
        command.output().unwrap()
    };
    let ran = run(step["shell"].as_str().unwrap());
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert!(!machine.path("planted").exists(), "the start-up file ran");
    run("bash --noprofile --norc -e -o pipefail {0}");
    assert!(machine.path("planted").exists(), "in the runner's own shell it would run");
}

/// PATH with the Rust that runs this test.
fn with_cargo() -> String {
    let cargo = Path::new(env!("CARGO")).parent().unwrap();
    format!("{}:/usr/bin:/bin", cargo.display())
}

#[test]
fn source_is_built_once_and_cached_without_a_release() {
    let machine = Machine::without_a_release();
    let path = with_cargo();
    // What the job set for its own Rust code would break any build.
    let first = machine.install(&[("PATH", &path), ("RUSTFLAGS", "--nonsense")]);
    assert!(first.status.success(), "{}", stderr(&first));
    let told = stderr(&first);
    assert!(told.contains("built `crcr` from the action's source in "), "{told}");
    assert!(told.contains("using crcr 0.0.1 at "), "{told}");
    let built = files(&machine.path("cache"));
    assert_eq!(built.len(), 1, "nothing but the binary is left: {built:?}");
    assert!(machine.read("output").contains(&format!("path={}\n", built[0].display())));

    let again = machine.install(&[]);
    assert!(again.status.success(), "the second time needs no cargo: {}", stderr(&again));
    assert!(!stderr(&again).contains("built"), "{}", stderr(&again));

    let changed = "fn main() { println!(\"crcr 0.0.2\"); }";
    fs::write(machine.path("action/cli/src/main.rs"), changed).unwrap();
    let other = machine.install(&[("PATH", &path)]);
    assert!(stderr(&other).contains("using crcr 0.0.2 at "), "{}", stderr(&other));
}

#[test]
fn simultaneous_builds_do_not_disturb_each_other() {
    let machine = Machine::without_a_release();
    let path = with_cargo();
    let start = |_| machine.command(&[("PATH", path.as_str())]).stderr(Stdio::piped()).spawn();
    let jobs: Vec<_> = (0..3).map(start).collect();
    for job in jobs {
        let ran = job.unwrap().wait_with_output().unwrap();
        assert!(ran.status.success(), "{}", stderr(&ran));
    }
    assert_eq!(files(&machine.path("cache")).len(), 1);
}

#[test]
fn failed_build_shows_cargos_output_and_leaves_nothing() {
    let machine = Machine::without_a_release();
    fs::write(machine.path("action/cli/src/main.rs"), "fn main() { nonsense }").unwrap();
    let ran = machine.install(&[("PATH", &with_cargo())]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(stderr(&ran).contains("cannot find value `nonsense`"), "{}", stderr(&ran));
    assert!(stderr(&ran).contains("error[build-failed]"), "{}", stderr(&ran));
    assert_eq!(files(&machine.path("cache")), Vec::<PathBuf>::new());
    assert_eq!(machine.read("output") + &machine.read("path"), "");
}

#[test]
fn error_without_a_release_and_without_rust_has_a_hint() {
    let machine = Machine::without_a_release();
    let path = machine.path_without(&["cargo"]);
    let ran = machine.install(&[("PATH", &path)]);
    assert_eq!(ran.status.code(), Some(1));
    insta::assert_snapshot!(stderr(&ran));
    let ran = machine.install(&[("INPUT_INSTALL", "release")]);
    assert!(stderr(&ran).starts_with("error[no-release]"), "{}", stderr(&ran));
    let ran = machine.install(&[("INPUT_INSTALL", "maybe")]);
    assert!(stderr(&ran).starts_with("error[install]: the input `install`"), "{}", stderr(&ran));
}

#[test]
fn changed_settings_of_cargo_are_another_build() {
    let machine = Machine::without_a_release();
    let path = with_cargo();
    let build = || {
        let ran = machine.install(&[("PATH", &path)]);
        assert!(ran.status.success(), "{}", stderr(&ran));
        stderr(&ran).contains("built `crcr` from the action's source in ")
    };
    assert_eq!((build(), build()), (true, false));
    fs::create_dir(machine.path("action/.cargo")).unwrap();
    fs::write(machine.path("action/.cargo/config.toml"), "[env]\nA = \"1\"\n").unwrap();
    assert_eq!((build(), build()), (true, false));
    fs::write(machine.path("action/.cargo/config.toml"), "[env]\nA = \"2\"\n").unwrap();
    assert_eq!((build(), build()), (true, false));
}

#[test]
fn source_is_built_on_request_even_if_there_is_a_release() {
    let machine = Machine::without_a_release();
    let hash = "0".repeat(64);
    machine.write_manifest(&format!(
        r#"{{ "default": "{VERSION}", "sha256": {{ "{VERSION}/{TARGET}": "{hash}" }} }}"#
    ));
    let ran = machine.install(&[("PATH", &with_cargo()), ("INPUT_INSTALL", "source")]);
    assert!(stderr(&ran).contains("using crcr 0.0.1 at "), "{}", stderr(&ran));
}

#[test]
fn source_is_built_on_a_platform_without_a_release() {
    let machine = Machine::without_a_release();
    machine.write_manifest(&format!(r#"{{ "default": "{VERSION}", "sha256": {{}} }}"#));
    machine.program("uname", "[ $1 = -s ] && echo Plan9 || echo mips");
    let path = format!("{}:{}", machine.path("bin").display(), with_cargo());
    let ran = machine.install(&[("PATH", &path)]);
    let told = stderr(&ran);
    assert!(told.starts_with("there is no release for Plan9 on mips: building"), "{told}");
    assert!(ran.status.success(), "{told}");

    let ran = machine.install(&[("INPUT_INSTALL", "release"), ("PATH", &path)]);
    assert_eq!(ran.status.code(), Some(1));
    let told = stderr(&ran);
    assert!(told.starts_with("error[no-release]: there is no release for Plan9 on mips"), "{told}");
    assert!(told.contains("or name a binary that is already there"), "{told}");
}

#[test]
fn windows_on_arm_uses_the_x86_64_binary() {
    let machine = Machine::new(BINARY);
    machine.program("uname", "[ $1 = -s ] && echo MINGW64_NT-10.0-26100-ARM64 || echo aarch64");
    let ran = machine.install(&[("INPUT_VERSION", "1.0.0")]);
    assert!(stderr(&ran).contains("for x86_64-pc-windows-msvc"), "{}", stderr(&ran));
}

#[test]
fn read_only_tool_cache_is_skipped() {
    let machine = Machine::new(BINARY);
    let ran = machine.install(&[("RUNNER_TOOL_CACHE", "/dev/null/cache")]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert!(machine.path(&format!("crcr/{VERSION}/{TARGET}/crcr")).is_file());
}

#[test]
#[ignore = "needs node and wget"]
fn container_without_curl_or_root_certificates_downloads_with_other_tools() {
    let machine = Machine::new(BINARY);
    let folder = machine.path("other").to_str().unwrap().to_owned();
    for (missing, code) in
        [(&["curl", "wget", "node"][..], 1), (&["curl", "node"], 0), (&["curl", "wget"], 0)]
    {
        let _ = fs::remove_dir_all(&folder);
        let mut path = machine.path_without(missing);
        if missing.contains(&"wget") && !missing.contains(&"node") {
            path = format!("{path}:{}", node_folder());
        }
        let ran = machine.install(&[("PATH", &path), ("RUNNER_TOOL_CACHE", &folder)]);
        assert_eq!(ran.status.code(), Some(code), "{missing:?}: {}", stderr(&ran));
        if code == 1 {
            insta::assert_snapshot!(stderr(&ran));
        }
    }
    // 60: curl finds no root certificates.
    machine.program("curl", "exit 60");
    let _ = fs::remove_dir_all(&folder);
    let without = format!("{}:{}", machine.path("bin").display(), machine.path_without(&["node"]));
    let ran = machine.install(&[("PATH", &without), ("RUNNER_TOOL_CACHE", &folder)]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(stderr(&ran).contains("no root certificates"), "{}", stderr(&ran));
    let with = format!("{without}:{}", node_folder());
    let ran = machine.install(&[("PATH", &with), ("RUNNER_TOOL_CACHE", &folder)]);
    assert!(ran.status.success(), "node brings its own: {}", stderr(&ran));
}

/// The folder of this machine's node.
fn node_folder() -> String {
    let path = std::env::var_os("PATH").unwrap();
    let found = std::env::split_paths(&path).find(|folder| folder.join("node").is_file());
    found.expect("`node` is on PATH").to_str().unwrap().to_owned()
}

#[test]
fn fork_of_the_action_downloads_its_own_releases() {
    let machine = Machine::new(BINARY);
    machine.program("curl", "for last; do :; done; echo \"asked $last: error: 404\" >&2; exit 22");
    let inputs = [("CRCR_DOWNLOAD_URL", ""), ("CRCR_ACTION_REPOSITORY", "acme/crcr")];
    let ran = machine.install(&inputs);
    let url = "asked https://github.com/acme/crcr/releases/download/v9.8.7/crcr-9.8.7-";
    assert!(stderr(&ran).contains(url), "{}", stderr(&ran));
}

#[test]
fn version_must_be_in_the_manifest_and_cannot_leave_its_folder() {
    let machine = Machine::new(BINARY);
    let ran = machine.install(&[("INPUT_VERSION", "1.0.0"), ("GITHUB_ACTIONS", "true")]);
    assert_eq!(ran.status.code(), Some(1));
    insta::assert_snapshot!(stderr(&ran));
    let ran = machine.install(&[("INPUT_VERSION", "../../1")]);
    assert!(stderr(&ran).contains("error[version]"), "{}", stderr(&ran));
}

#[test]
fn named_binary_is_used_without_a_download_if_it_runs() {
    let machine = Machine::new(BINARY);
    let mine = env!("CARGO_BIN_EXE_crcr");
    let ran =
        machine.install(&[("INPUT_BINARY", mine), ("CRCR_DOWNLOAD_URL", "http://127.0.0.1:1")]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert!(machine.read("output").starts_with(&format!("path={mine}\n")));

    fs::write(machine.path("data"), "not a program").unwrap();
    let data = machine.path("data");
    let cases = [
        ("target/debug/crcr", "which is not an absolute path"),
        ("/nowhere/crcr", "which is not an executable file"),
        (data.to_str().unwrap(), "which is not an executable file"),
        ("/bin/false", "`/bin/false --version` fails"),
    ];
    for (binary, why) in cases {
        let ran = machine.install(&[("INPUT_BINARY", binary)]);
        assert_eq!(ran.status.code(), Some(1), "{binary}");
        assert!(stderr(&ran).contains(why), "{binary}: {}", stderr(&ran));
    }
}
