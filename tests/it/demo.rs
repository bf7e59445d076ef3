//! `crcr demo`: the first thing that people run after building the binary.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crcr_standin::StandIn;
use crcr_standin::world::PullRequest;

use crate::support::{Crcr, Ran};

/// How long a demo may take in an unoptimised build on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

fn demo(args: &[&str]) -> Ran {
    let started = Instant::now();
    let ran = Crcr::new(&[&["demo", "--exit"], args].concat()).run();
    assert!(started.elapsed() < BOUND, "it took {:?}", started.elapsed());
    assert_eq!(left_behind(&ran.path("")), Vec::<String>::new());
    ran
}

/// What is in the folder for temporary files.
fn left_behind(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The cells of the line that starts with `first`.
fn row(ran: &Ran, first: &str) -> String {
    let line = ran.stdout.lines().find(|line| line.trim_start().starts_with(first));
    let line = line.unwrap_or_else(|| panic!("no `{first}`: {}", ran.report()));
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn fixture(name: &str) -> String {
    format!("{}/../tests/fixtures/allowlist/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn demo_shows_for_every_level_what_it_grants() {
    let ran = demo(&[]).expect_code(0);
    assert!(ran.stdout.contains("the only part that isn't real"), "{}", ran.report());
    for (first, rest) in [
        ("oidc configure", "mode=anonymous, reason=fork, expected=true"),
        ("artifact download", "store=github: the second job has the same bytes"),
        ("ember-", "L1 yes anonymous (foreign-repo) success github (anonymous) ignored - -"),
        ("dune-", "L2 yes anonymous (foreign-repo) success github (anonymous) recorded passed -"),
        ("basalt-", "failure github (anonymous) recorded test_failed failure"),
        ("aurora-", "success github (anonymous) recorded passed success"),
        (
            "failure",
            "crcr/basalt-example/torch-basalt/upstream/test (L3, requested by its device's label)",
        ),
        ("success", "crcr/aurora-example/torch-aurora/upstream/test (L4, blocks the merge)"),
    ] {
        let found = row(&ran, first);
        assert!(found.ends_with(rest), "{found}");
    }
    assert!(row(&ran, "artifact upload").contains("store=github, reason=anonymous"));
}

#[test]
fn demo_takes_an_allowlist_and_a_pull_request_from_files() {
    let github = StandIn::start().unwrap();
    let state = github.state();
    let (upstream, sha) = ("pytorch/pytorch", "5e".repeat(20));
    state.world.install(upstream);
    let mut pull = PullRequest::from_fork(160_000, upstream, &sha, state.clock.now());
    pull.labels.insert("ciflow/crcr/crcr-test".to_owned());
    state.world.put_pull(upstream, pull);
    let payload = state.pull_request_payload(upstream, 160_000, "synchronize");
    let folder = tempfile::tempdir().unwrap();
    let event = folder.path().join("event.json");
    fs::write(&event, payload.to_string()).unwrap();

    let allowlist = fixture("valid/pytorch.yml");
    let ran = demo(&["--allowlist", &allowlist, "--event", event.to_str().unwrap()]).expect_code(0);
    assert!(ran.stdout.contains("pytorch/pytorch#160000"), "{}", ran.report());
    for repo in [
        "riseproject-dev/pytorch-ci",
        "NVIDIA-dev/pytorch-oot-internal",
        "NVIDIA/pytorch-windows-ci",
        "google-pytorch/torch_tpu",
        "RBLN-SW/torch-rbln",
    ] {
        let found = row(&ran, repo);
        assert!(found.contains(" L1 yes ") && found.ends_with("ignored - -"), "{found}");
    }
    for repo in [
        "TorchedHat/pytorch-redhat-ci",
        "Ascend/pytorch",
        "torch-spyre/torch-spyre",
        "vllm-project/",
    ] {
        let found = row(&ran, repo);
        assert!(found.contains(" L2 yes ") && found.ends_with("recorded passed -"), "{found}");
    }
    let found = row(&ran, "pytorch/crcr-test");
    assert!(found.contains(" L3 yes ") && found.ends_with("recorded passed success"), "{found}");
}

#[test]
fn demo_rejects_unusable_files_before_it_starts() {
    let broken = fixture("invalid/tab-indents.yml");
    assert!(Path::new(&broken).exists());
    let ran = demo(&["--allowlist", &broken]).expect_code(1);
    assert!(ran.stderr.contains("error[demo-allowlist]: the relay would refuse"), "{}", ran.stderr);
    assert!(ran.stderr.contains("because: line "), "{}", ran.stderr);
    assert!(ran.stderr.contains("crcr allowlist validate"), "{}", ran.stderr);

    let ran = demo(&["--allowlist", "absent.yml"]).expect_code(1);
    assert!(ran.stderr.contains("`absent.yml` can't be read"), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: `--allowlist` takes an allowlist"), "{}", ran.stderr);

    let folder = tempfile::tempdir().unwrap();
    let event = folder.path().join("event.json");
    for (text, told) in
        [("{", "isn't JSON"), ("{\"action\":\"opened\"}", "isn't a `pull_request` webhook")]
    {
        fs::write(&event, text).unwrap();
        let ran = demo(&["--event", event.to_str().unwrap()]).expect_code(1);
        assert!(ran.stderr.contains(told), "{}", ran.stderr);
    }
}

/// What a visitor looks for on the pages of the demo: a blocked pull request, a red branch, a flaky, a failing, a
/// new and a quarantined test, a long queue, causes of failures, a backend that fails its level.
#[cfg(unix)]
const CONTENT: &[(&str, &[&str])] = &[
    ("", &["is blocked by", "is red on", "In the last 24 hours: "]),
    ("prs", &["blocked by", "Green", "margaret-example"]),
    ("crcr", &["fails its level", "meets its level", "dune-example/torch-dune"]),
    ("crcr/aurora-example/torch-aurora", &["Criteria of its level", "nightly"]),
    ("crcr/basalt-example/torch-basalt/level", &["not met"]),
    ("hud", &["example/torch"]),
    ("hud/example/torch/main", &["linux / test", "torch-aurora", "by "]),
    ("tests", &["test_seed_per_device", "quarantined", "@grace-example"]),
    ("tests?show=failing", &["TestOps.test_matmul_strided"]),
    ("tests?show=new", &["/test/example/torch?id="]),
    ("quarantine", &["test_transformer_*", "in 3 days", "its failure doesn't count"]),
    ("failures", &["pytest: failed test", "lost communication", "CUDA out of memory"]),
    ("trends", &["Longest queue", "linux.8xlarge.gpu", "Time to signal"]),
];

#[test]
#[cfg(unix)]
fn demo_pages_stay_open_until_ctrl_c() {
    let mut run = Crcr::new(&["demo", "--history", "30d"]);
    let folder = run.folder().to_owned();
    let command: &mut Command = run.command();
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let mut text = String::new();
    while !text.contains("Press Ctrl-C to stop") {
        let line = receiver.recv_timeout(3 * BOUND);
        let Ok(line) = line else {
            let _ = child.kill();
            panic!("it told no more than: {text}");
        };
        text.push_str(&line);
        text.push('\n');
    }
    assert!(text.contains("generated results of the last 30 days"), "{text}");
    let link = |name: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    for (name, holds) in [
        ("what needs you", "Red branches"),
        ("all backends", "dune-example/torch-dune"),
        ("the pull request", "test_moons"),
        ("one backend", "aurora-example/torch-aurora"),
    ] {
        let page = get(&link(name));
        assert!(page.starts_with("HTTP/1.1 200"), "{page}");
        assert!(page.contains(holds), "{name}: {page}");
    }
    let first = link("what needs you");
    for (path, shown) in CONTENT {
        let page = get(&format!("{first}{path}"));
        assert!(page.starts_with("HTTP/1.1 200"), "/{path}: {page}");
        for text in *shown {
            assert!(page.contains(text), "/{path} doesn't show {text}: {page}");
        }
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    // The channel closes when the process has ended.
    loop {
        match receiver.recv_timeout(BOUND) {
            Ok(_) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                panic!("Ctrl-C didn't end it");
            }
        }
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(left_behind(&folder), Vec::<String>::new());
}

fn get(url: &str) -> String {
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
