//! `crcr levels sync`: demotions and promotions as pull requests upstream.

use std::fs;

use crcr_domain::results::facts::Fact;
use crcr_standin::StandIn;
use crcr_standin::generate::{ALLOWLIST, facts};
use crcr_standin::traffic::Fault;
use crcr_standin::world::{PullRequest, World};
use crcr_store::{SqliteStore, StateStore as _, StoreRole, WriteBatch};
use jiff::Timestamp;
use serde_json::Value;
use tempfile::TempDir;

use crate::relay_process::Place;
use crate::support::{Crcr, Ran};

const UPSTREAM: &str = "up/stream";
const FILE: &str = ".github/allowlist.yml";
const TO: &str = "2026-09-15T12:00:00Z";
const BRANCH: &str = "crcr-demotion/basalt-example/torch-basalt";
/// Nobody passes more often than always.
const STRICT: &str = "job-pass-share: 1";
const EASY: &str = "{queue-seconds: 1e6, overrun-share: 1, end-to-end-seconds: 1e6,
                     timeout-share: 1, job-pass-share: 0}";
/// Only what is behind the comment marks differs from the generated allowlist.
const COMMENTED: &str = "\
# Who takes part.
L1:
  - ember-example/torch-ember   # new

L2:
  # Both since spring.
  - cedar-example/torch-cedar
  - dune-example/torch-dune

L3:
  basalt:
      basalt-example/torch-basalt:   [basalt-oncall]  # night shift
L4:
  - aurora-example/torch-aurora: [aurora-oncall, aurora-backup]
";

/// An upstream with an allowlist, and a store of results.
struct Upstream {
    github: StandIn,
    token: String,
    results: TempDir,
}

impl Upstream {
    async fn new(facts: Vec<Fact>) -> Self {
        let github = StandIn::start().unwrap();
        let write = [("contents", "write"), ("pull_requests", "write")];
        let token = github.state().world.job_token(UPSTREAM, &write);
        github.state().world.put_file(UPSTREAM, FILE, COMMENTED);
        let results = tempfile::tempdir().unwrap();
        store(&results.path().join("crcr.db"), facts).await;
        Self { github, token, results }
    }

    async fn with_results() -> Self {
        Self::new(generated()).await
    }

    fn world(&self) -> &World {
        &self.github.state().world
    }

    fn sync(&self, criteria: &str, args: &[&str]) -> Ran {
        let store = self.results.path().join("crcr.db");
        let run = Crcr::new(&["levels", "sync", "--upstream", UPSTREAM, "--to", TO]);
        fs::write(run.folder().join("criteria.yml"), criteria).unwrap();
        let mut run = run
            .arg("--results")
            .arg(store.to_str().unwrap())
            .arg("--criteria=criteria.yml")
            .arg("--hud-url=https://hud.test")
            .arg("--device=aurora-example/torch-aurora=mica")
            .env("GITHUB_API_URL", self.github.state().origin())
            .env("GITHUB_TOKEN", &self.token);
        for arg in args {
            run = run.arg(arg);
        }
        run.run()
    }

    /// Runs it and returns `action` of each repository.
    fn actions(&self, criteria: &str, args: &[&str]) -> Vec<String> {
        let args = [args, &["--format", "json"]].concat();
        let ran = self.sync(criteria, &args).expect_code(0);
        let steps = json(&ran)["steps"].clone();
        let text = |step: &Value| {
            let name = step["repository"].as_str().unwrap().split('-').next().unwrap().to_owned();
            format!("{name} {}", step["action"].as_str().unwrap())
        };
        steps.as_array().unwrap().iter().map(text).collect()
    }

    fn open_pull(&self) -> Option<PullRequest> {
        self.world().pulls(UPSTREAM).into_iter().find(|p| p.open && p.head_ref == BRANCH)
    }

    fn file_of(&self, branch: &str) -> String {
        String::from_utf8(self.world().file_at(UPSTREAM, branch, FILE).unwrap()).unwrap()
    }

    /// Calls that change something upstream.
    fn writes(&self) -> usize {
        self.world().calls().iter().filter(|call| call.method != "GET").count()
    }
}

fn generated() -> Vec<Fact> {
    facts(7, TO.parse().unwrap(), 35, 6, "pytorch/pytorch")
}

async fn store(path: &std::path::Path, facts: Vec<Fact>) {
    let store = SqliteStore::open(path, StoreRole::Server).unwrap();
    let to: Timestamp = TO.parse().unwrap();
    store.commit(WriteBatch { facts, ..WriteBatch::default() }, to).await.unwrap();
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.report()))
}

#[tokio::test]
async fn failing_backend_gets_one_labelled_pull_request_that_moves_only_its_line() {
    let up = Upstream::with_results().await;
    assert_eq!(up.actions(STRICT, &[]), ["basalt open", "aurora open"]);
    let pull = up.open_pull().unwrap();
    assert_eq!(pull.title, "[crcr] Demote basalt-example/torch-basalt from L3 to L2");
    assert_eq!((&*pull.base_ref, &*pull.author), ("main", "github-actions[bot]"));
    assert!(pull.labels.contains("crcr-auto-demotion"));
    let moved = "  - basalt-example/torch-basalt:   [basalt-oncall]  # night shift\n";
    let expected = COMMENTED
        .replace("      basalt-example/torch-basalt:   [basalt-oncall]  # night shift\n", "")
        .replace("torch-dune\n", &format!("torch-dune\n{moved}"));
    assert_eq!(up.file_of(BRANCH), expected);
    for told in [
        "| CI job pass rate | 9",
        "](<https://hud.test/crcr/basalt-example/torch-basalt/level?level=L3&from=2026-09-08T12:00:00Z",
        "Oncalls: @basalt-oncall\n",
        "the relay makes no new check runs",
    ] {
        assert!(pull.body.contains(told), "{told}\n{}", pull.body);
    }
    // From L4, where the device is a setting.
    let aurora = up.file_of("crcr-demotion/aurora-example/torch-aurora");
    assert!(
        aurora
            .contains("  mica:\n    aurora-example/torch-aurora: [aurora-oncall, aurora-backup]\n")
    );
}

#[tokio::test]
async fn second_run_changes_nothing() {
    let up = Upstream::with_results().await;
    up.actions(STRICT, &[]);
    let (pulls, writes) = (up.world().pulls(UPSTREAM), up.writes());
    assert_eq!(up.actions(STRICT, &[]), ["basalt keep", "aurora keep"]);
    assert_eq!((up.world().pulls(UPSTREAM), up.writes()), (pulls, writes));
}

#[tokio::test]
async fn dry_run_says_what_it_would_do_and_changes_nothing() {
    let up = Upstream::with_results().await;
    let ran = up.sync(STRICT, &["--dry-run"]).expect_code(0);
    let told = "open     demotion of basalt-example/torch-basalt from L3 to L2: doesn't meet";
    assert!(ran.stdout.starts_with("dry run: nothing was changed\n"), "{}", ran.report());
    assert!(ran.stdout.contains(told), "{}", ran.report());
    assert_eq!((up.writes(), up.world().branches(UPSTREAM)), (0, vec![]));
}

#[tokio::test]
async fn changed_allowlist_upstream_rebuilds_the_branch_without_closing_its_pull_request() {
    let up = Upstream::with_results().await;
    up.actions(STRICT, &[]);
    let number = up.open_pull().unwrap().number;
    // A change of the neighbouring line would be a conflict.
    let changed =
        COMMENTED.replace("  - dune-example/torch-dune\n", "  - dune-example/torch-dune # quiet\n");
    up.world().put_file(UPSTREAM, FILE, changed.clone());
    assert_eq!(up.actions(STRICT, &[]), ["basalt update", "aurora update"]);
    assert_eq!(up.open_pull().unwrap().number, number);
    let text = up.file_of(BRANCH);
    assert!(text.contains("torch-dune # quiet\n  - basalt-example/torch-basalt:"), "{text}");
    // Changes to other files can't conflict.
    up.world().put_file(UPSTREAM, "README.md", "new");
    assert_eq!(up.actions(STRICT, &[]), ["basalt keep", "aurora keep"]);
}

#[tokio::test]
async fn changed_evidence_changes_the_text_of_the_pull_request() {
    let up = Upstream::with_results().await;
    up.actions(STRICT, &[]);
    let commit = up.open_pull().unwrap().head_sha;
    let changed = "{job-pass-share: 1, queue-seconds: 1}";
    assert_eq!(up.actions(changed, &[]), ["basalt update", "aurora update"]);
    let pull = up.open_pull().unwrap();
    assert!(pull.body.contains("&lt; 0 min") && pull.head_sha == commit, "{}", pull.body);
}

#[tokio::test]
async fn recovered_backend_keeps_its_level_and_its_branch_is_deleted() {
    let up = Upstream::with_results().await;
    up.actions(STRICT, &[]);
    let number = up.open_pull().unwrap().number;
    assert_eq!(up.actions(EASY, &[]), ["basalt close", "aurora close"]);
    assert_eq!(up.world().branches(UPSTREAM), [""; 0]);
    let pull = up.world().pull(UPSTREAM, number).unwrap();
    assert!(
        !pull.open && pull.body.starts_with("Closed: `basalt-example/torch-basalt` meets every")
    );
    assert_eq!(up.actions(EASY, &[]), [""; 0]);
    // It fails again, so it gets another one.
    assert_eq!(up.actions(STRICT, &[]), ["basalt open", "aurora open"]);
}

#[tokio::test]
async fn pull_request_whose_description_is_as_long_as_github_takes_is_closed() {
    let up = Upstream::with_results().await;
    up.actions(STRICT, &[]);
    let number = up.open_pull().unwrap().number;
    up.world().change_pull(UPSTREAM, number, |pull| pull.body = "é".repeat(65_536));
    assert_eq!(up.actions(EASY, &[]), ["basalt close", "aurora close"]);
    let pull = up.world().pull(UPSTREAM, number).unwrap();
    assert!(!pull.open && pull.body.starts_with("Closed: ") && pull.body.ends_with('é'));
}

#[tokio::test]
async fn backend_without_results_is_listed_and_never_demoted() {
    let up = Upstream::new(vec![]).await;
    assert_eq!(up.actions(STRICT, &[]), ["basalt no_data", "aurora no_data"]);
    assert_eq!(up.writes(), 0);
}

#[tokio::test]
async fn missing_results_leave_an_open_demotion_open() {
    let mut up = Upstream::with_results().await;
    up.actions(STRICT, &[]);
    up.results = tempfile::tempdir().unwrap();
    store(&up.results.path().join("crcr.db"), vec![]).await;
    assert_eq!(up.actions(STRICT, &[]), ["basalt no_data", "aurora no_data"]);
    assert!(up.open_pull().is_some());
}

#[tokio::test]
async fn broken_allowlist_upstream_is_exit_1_and_changes_nothing() {
    let up = Upstream::with_results().await;
    up.actions(STRICT, &[]);
    let writes = up.writes();
    up.world().put_file(UPSTREAM, FILE, format!("{COMMENTED}L4:\n"));
    let ran = up.sync(EASY, &[]).expect_code(1);
    assert!(ran.stdout.is_empty(), "{}", ran.report());
    for told in ["error[duplicate-key]", "error[invalid-allowlist]", "up/stream:.github"] {
        assert!(ran.stderr.contains(told), "{told}\n{}", ran.report());
    }
    assert_eq!(up.writes(), writes);
}

#[tokio::test]
async fn entry_that_shares_a_line_is_blocked_and_the_others_are_synced() {
    let up = Upstream::with_results().await;
    let flow = COMMENTED.replace(
        "  - aurora-example/torch-aurora: [aurora-oncall, aurora-backup]\n",
        "  - {aurora-example/torch-aurora: [aurora-oncall]}\n",
    );
    up.world().put_file(UPSTREAM, FILE, flow);
    let ran = up.sync(STRICT, &[]).expect_code(1);
    assert!(
        ran.stdout.contains("blocked  demotion of aurora-example/torch-aurora"),
        "{}",
        ran.report()
    );
    assert!(ran.stdout.contains("isn't on lines of its own"), "{}", ran.report());
    assert!(up.open_pull().is_some());
}

#[tokio::test]
async fn declined_demotion_isnt_opened_again_until_the_backend_has_recovered() {
    let up = Upstream::with_results().await;
    up.actions(STRICT, &[]);
    up.world().close_pull(UPSTREAM, up.open_pull().unwrap().number);
    assert_eq!(up.actions(STRICT, &[])[0], "basalt declined");
    assert!(up.open_pull().is_none());
    up.actions(EASY, &[]);
    assert_eq!(up.actions(STRICT, &[])[0], "basalt open");
}

#[tokio::test]
async fn merged_demotion_leaves_no_branch() {
    let up = Upstream::with_results().await;
    up.actions(STRICT, &[]);
    up.world().merge_pull(UPSTREAM, up.open_pull().unwrap().number);
    // The file has changed, so the other pull request is rebuilt.
    assert_eq!(up.actions(STRICT, &[]), ["aurora update"]);
    assert_eq!(up.world().branches(UPSTREAM), ["crcr-demotion/aurora-example/torch-aurora"]);
}

#[tokio::test]
async fn pull_request_of_a_fork_with_the_branchs_name_is_neither_closed_nor_taken_for_ours() {
    let up = Upstream::with_results().await;
    let fork = PullRequest {
        head_repository: Some("up/fork-of-stream".to_owned()),
        head_ref: BRANCH.to_owned(),
        ..PullRequest::from_fork(7, UPSTREAM, &"c".repeat(40), TO.parse().unwrap())
    };
    up.world().put_pull(UPSTREAM, fork.clone());
    assert_eq!(up.actions(STRICT, &[])[0], "basalt open");
    up.actions(EASY, &[]);
    assert_eq!(up.world().pull(UPSTREAM, 7), Some(fork));
}

#[tokio::test]
async fn interrupted_run_is_continued() {
    for route in ["POST /repos/up/stream/pulls", "POST /repos/up/stream/issues/*"] {
        let up = Upstream::with_results().await;
        up.world().fail(route, 2, Fault::status(502));
        let ran = up.sync(STRICT, &[]).expect_code(2);
        assert!(ran.stdout.contains("failed   demotion of basalt"), "{}", ran.report());
        up.actions(STRICT, &[]);
        assert!(up.open_pull().unwrap().labels.contains("crcr-auto-demotion"));
        assert_eq!(up.world().pulls(UPSTREAM).len(), 2);
        assert_eq!(up.actions(STRICT, &[]), ["basalt keep", "aurora keep"]);
    }
}

#[tokio::test]
async fn promotions_are_opened_on_request_and_need_a_device() {
    let up = Upstream::with_results().await;
    assert_eq!(up.actions(EASY, &[]), [""; 0]);
    let ran = up.sync(EASY, &["--promotions"]).expect_code(1);
    let told = "cedar-example/torch-cedar from L2 to L3: at L3 it needs a device";
    assert!(ran.stdout.contains(told), "{}", ran.report());
    let devices = [
        "--promotions",
        "--device=cedar-example/torch-cedar=basalt",
        "--device=dune-example/torch-dune=new",
    ];
    assert_eq!(up.actions(EASY, &devices), ["cedar open", "dune open"]);
    let text = up.file_of("crcr-promotion/cedar-example/torch-cedar");
    assert!(text.contains("# night shift\n      cedar-example/torch-cedar:\nL4:"), "{text}");
    let pulls = up.world().pulls(UPSTREAM);
    assert!(pulls.iter().all(|pull| pull.labels.contains("crcr-auto-promotion")));
    assert_eq!(up.actions(STRICT, &devices)[2..], ["cedar close", "dune close"]);
}

#[tokio::test]
async fn url_of_a_hud_is_enough_and_its_evidence_is_the_stores() {
    let place = Place::new(&[], ALLOWLIST);
    store(&place.database(), generated()).await;
    let relay = place.serving().await;
    let write = [("contents", "write"), ("pull_requests", "write")];
    let token = place.github.state().world.job_token(UPSTREAM, &write);
    place.github.state().world.put_file(UPSTREAM, FILE, COMMENTED);
    let sync = |results: &str| {
        let args = ["levels", "sync", "--upstream", UPSTREAM, "--to", TO, "--dry-run"];
        let run = Crcr::new(&args).arg("--results").arg(results);
        let run = run.arg("--promotions").arg("--device=cedar-example/torch-cedar=basalt");
        let run = run.arg("--hud-url=https://hud.test");
        run.env("GITHUB_API_URL", place.github.state().origin()).env("GITHUB_TOKEN", &token).run()
    };
    let hud = sync(relay.url.as_str()).expect_code(0);
    let direct = sync(place.database().to_str().unwrap()).expect_code(0);
    assert_eq!(hud.stdout, direct.stdout);
    let gone = sync("http://127.0.0.1:9/").expect_code(2);
    assert!(gone.stderr.contains("error[results-unreadable]"), "{}", gone.report());
}
