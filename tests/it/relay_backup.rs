//! The drill: a relay under load is backed up and killed, its disk is lost, and it is restored elsewhere.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crcr_domain::protocol::dispatch::DispatchStatus;
use crcr_relay::admin::deliveries;
use crcr_results::Window;
use crcr_results::sqlite::SqliteResults;
use crcr_standin::world::PullRequest;
use crcr_store::{RedisStore, SqliteStore, StateStore, StoreRole};
use crcr_testkit::redis::{RedisServer, RedisSettings};
use jiff::Timestamp;

use crate::relay_process::{Place, Running, UPSTREAM, eventually};

const ALLOWLIST: &str = "L2: [acme/two]\nL4:\n  - acme/four: [dave]\n";
/// How many webhooks are acknowledged before, during and after the backup, at least.
const ENOUGH: usize = 25;

struct Drill {
    place: Place,
    /// The ids of the webhooks that were answered 202, in that order.
    acknowledged: Mutex<Vec<String>>,
    /// Delivery and repository of reports that were answered 200.
    reported: Mutex<Vec<(String, String)>>,
    is_over: AtomicBool,
}

impl Drill {
    fn new(place: Place) -> Arc<Self> {
        let place = place.set("RATE_LIMIT_PER_MIN", "100000");
        Arc::new(Self {
            place,
            acknowledged: Mutex::default(),
            reported: Mutex::default(),
            is_over: AtomicBool::new(false),
        })
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    fn point_github_at(&self, relay: &Running) {
        let url = relay.url.join("github/webhook").unwrap();
        self.place.github.state().world.set_webhook_url(url);
    }

    /// Sends webhooks and reports until it is told to stop.
    async fn load(self: Arc<Self>, relay: url::Url) {
        let (client, state) = (reqwest::Client::new(), self.place.github.state());
        let mut number = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            number += 1;
            let head = format!("{:040x}", rand::random::<u128>());
            let pull = PullRequest::from_fork(number, UPSTREAM, &head, Timestamp::now());
            state.world.put_pull(UPSTREAM, pull);
            let payload = state.pull_request_payload(UPSTREAM, number, "opened");
            let delivery = state.world.delivery("pull_request", &payload);
            let answer = state.deliver(&delivery, false).await;
            if answer.is_none_or(|answer| answer.status != 202) {
                continue;
            }
            let run = 5000 + number;
            let sent = (delivery.id.as_str(), &payload);
            let report = self.place.report(&client, &relay, "acme/two", sent, run, Some("success"));
            let is_taken = report.send().await.is_ok_and(|answer| answer.status().is_success());
            if is_taken {
                let report = (delivery.id.clone(), "acme/two".to_owned());
                self.reported.lock().unwrap().push(report);
            }
            self.acknowledged.lock().unwrap().push(delivery.id);
        }
    }

    /// Loads a relay, makes a backup meanwhile, kills the relay, and returns what was acknowledged before the backup
    /// began.
    async fn up_to_the_crash(
        self: &Arc<Self>,
        backup: &Path,
    ) -> (Vec<String>, Vec<(String, String)>) {
        let mut relay = self.place.serve();
        relay.ready().await;
        self.point_github_at(&relay);
        let load = tokio::spawn(Arc::clone(self).load(relay.url.clone()));
        eventually("there was load", async || self.count() >= ENOUGH).await;
        let reported = self.reported.lock().unwrap().clone();
        let before = self.acknowledged.lock().unwrap().clone();
        let (copied, path) = (Arc::clone(self), backup.to_str().unwrap().to_owned());
        let (code, stdout, stderr) =
            tokio::task::spawn_blocking(move || copied.place.run(&["relay", "backup", &path]))
                .await
                .unwrap();
        assert_eq!(code, 0, "{stdout}{stderr}");
        assert!(stdout.contains("checked"), "{stdout}");
        let during = self.count();
        eventually("there was more load", async || self.count() >= during + ENOUGH).await;
        relay.kill();
        self.is_over.store(true, Ordering::Relaxed);
        load.await.unwrap();
        (before, reported)
    }

    /// Everything that was acknowledged is in the store and was dispatched, or replaced by a newer event.
    async fn check(&self, store: &dyn StateStore) {
        let acknowledged = self.acknowledged.lock().unwrap().clone();
        eventually("every acknowledged webhook is in the store and dispatched", async || {
            for id in &acknowledged {
                let Some(overview) = deliveries::delivery(store, id).await.unwrap() else {
                    return false;
                };
                let is_done = overview.dispatches.iter().all(|dispatch| {
                    // Those that were open at the backup are sent again in five minutes.
                    matches!(dispatch.status, DispatchStatus::Sent { .. } | DispatchStatus::Queued)
                });
                assert!(is_done && overview.dispatches.len() == 2, "{overview:?}");
            }
            true
        })
        .await;
        assert_eq!(deliveries::dead_letters(store, 10).await.unwrap(), []);
    }
}

fn lose_the_disk(folder: &Path) {
    for name in
        ["crcr.db", "crcr.db-wal", "crcr.db-shm", "results.db", "results.db-wal", "results.db-shm"]
    {
        // Not every store has each of them.
        let _ = fs::remove_file(folder.join(name));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_restored_on_another_disk_has_what_was_acknowledged_before_and_fetches_the_rest() {
    let drill = Drill::new(Place::new(&["acme/two", "acme/four"], ALLOWLIST));
    let place = &drill.place;
    let elsewhere = tempfile::tempdir().unwrap();
    let backup = elsewhere.path().join("backup");
    let (before, reported) = drill.up_to_the_crash(&backup).await;
    lose_the_disk(place.folder());

    let folder = backup.to_str().unwrap();
    let (code, stdout, stderr) = place.run(&["relay", "restore", folder, "--check"]);
    assert_eq!((code, stdout.starts_with("whole: everything until")), (0, true), "{stderr}");
    let path = elsewhere.path().join("new").join("crcr.db");
    let store = format!("sqlite:{}", path.display());
    let restore = ["relay", "restore", folder, "--store", &store];
    let (stdout, _) = place.run_to(0, &restore);
    assert!(stdout.contains("were open and are sent again"), "{stdout}");
    assert!(stdout.contains("the relay asks GitHub for them when it starts"), "{stdout}");
    let (code, _, stderr) = place.run(&restore);
    assert!(code == 1 && stderr.contains("a restore never overwrites"), "{stderr}");

    let restored = Arc::new(SqliteStore::open(&path, StoreRole::Tool).unwrap());
    for id in &before {
        let found = deliveries::delivery(&*restored, id).await.unwrap();
        assert!(found.is_some(), "{id} was acknowledged before the backup");
    }
    let window = Window::all(Timestamp::UNIX_EPOCH, Timestamp::MAX);
    let facts = SqliteResults::new(Arc::clone(&restored)).attempts(&window).unwrap();
    for (delivery, repo) in &reported {
        let is_stored = facts.iter().any(|fact| fact.delivery == *delivery && fact.repo == *repo);
        assert!(is_stored, "{delivery} was reported before the backup");
    }
    let relay = serve_on(place, &store);
    drill.point_github_at(&relay);
    relay.ready().await;
    drill.check(&*restored).await;
    let log = place.log();
    assert!(log.contains("the store was restored from a backup"), "{log}");
}

/// The relay with another store than that of the place.
fn serve_on(place: &Place, store: &str) -> Running {
    place.serve_with(&[("CRCR_STORE", store)])
}

#[test]
fn damaged_or_foreign_backup_is_refused_before_anything_is_written() {
    let place = Place::new(&[], "L1: []\n");
    let path = place.folder().join("crcr.db");
    drop(SqliteStore::open(&path, StoreRole::Server).unwrap());
    place.run_to(0, &["relay", "backup", "copy"]);
    let mode = fs::metadata(place.folder().join("copy")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "payloads of private repositories are in it");
    let (code, _, stderr) = place.run(&["relay", "backup", "copy"]);
    assert!(code == 1 && stderr.contains("a backup never overwrites"), "{stderr}");
    let (code, _, stderr) = place.run(&["relay", "backup", "none", "--store", "sqlite:no.db"]);
    assert!(code == 1 && stderr.contains("no database exists"), "{stderr}");
    assert!(!place.folder().join("none").exists() && !place.folder().join("none.partial").exists());

    let copy = place.folder().join("copy").join("crcr.db");
    let mut bytes = fs::read(&copy).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&copy, bytes).unwrap();
    let restore = ["relay", "restore", "copy", "--store", "sqlite:new.db"];
    let (code, _, stderr) = place.run(&restore);
    assert!(code == 2 && stderr.contains("it was damaged or changed"), "{stderr}");
    let (code, _, stderr) = place.run(&["relay", "restore", "."]);
    assert!(code == 1 && stderr.contains("isn't a backup"), "{stderr}");
    let manifest = place.folder().join("copy").join("backup.json");
    let hostile = fs::read_to_string(&manifest).unwrap().replace("crcr.db", "../allowlist.yml");
    fs::write(&manifest, hostile).unwrap();
    let (code, _, stderr) = place.run(&restore);
    assert!(code == 1 && stderr.contains("doesn't know"), "{stderr}");
    assert!(!place.folder().join("new.db").exists());
}

#[test]
fn restore_of_a_store_that_a_relay_uses_is_refused() {
    let place = Place::new(&[], "L1: []\n");
    let relay = SqliteStore::open(&place.folder().join("crcr.db"), StoreRole::Server).unwrap();
    let restore = ["relay", "restore", "--since", "2026-11-25T09:00Z"];
    let (code, _, stderr) = place.run(&restore);
    assert!(code == 1 && stderr.contains("error[in-use]: a relay is using"), "{stderr}");
    drop(relay);
    let (stdout, _) = place.run_to(0, &restore);
    assert!(stdout.starts_with("marked: lacks what came since 2026-11-25T09:00:00Z\n"), "{stdout}");
}

#[test]
fn restore_replaces_no_link_and_takes_no_backup_of_the_future() {
    let place = Place::new(&[], "L1: []\n");
    drop(SqliteStore::open(&place.folder().join("crcr.db"), StoreRole::Server).unwrap());
    place.run_to(0, &["relay", "backup", "copy"]);
    // The store was on another disk, and its file was moved away.
    let link = place.folder().join("new.db");
    std::os::unix::fs::symlink("elsewhere/crcr.db", &link).unwrap();
    let restore = ["relay", "restore", "copy", "--store", "sqlite:new.db"];
    let (code, _, stderr) = place.run(&restore);
    assert!(code == 1 && stderr.contains("a restore never overwrites"), "{stderr}");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    fs::remove_file(&link).unwrap();
    let manifest = place.folder().join("copy/backup.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let mut backup: serde_json::Value = serde_json::from_str(&text).unwrap();
    backup["backup_at"] =
        (Timestamp::now() + jiff::SignedDuration::from_hours(3)).to_string().into();
    fs::write(&manifest, backup.to_string()).unwrap();
    for check in [&[][..], &["--check"]] {
        let (code, _, stderr) = place.run(&[&restore[..3], check].concat());
        assert!(code == 1 && stderr.contains("which is still to come"), "{stderr}");
    }
    fs::write(&manifest, text).unwrap();
    place.run_to(0, &restore);
}

#[test]
fn restore_that_fails_half_way_leaves_nothing_behind_and_can_be_done_again() {
    let place = Place::new(&[], "L1: []\n");
    for name in ["crcr.db", "results.db"] {
        drop(SqliteStore::open(&place.folder().join(name), StoreRole::Server).unwrap());
    }
    let results = ["--results", "sqlite:results.db"];
    place.run_to(0, &[&["relay", "backup", "copy"], &results[..]].concat());
    let restore = |store: &str| {
        let results = ["--results", "sqlite:new-results.db"];
        place.run(&[&["relay", "restore", "copy", "--store", store], &results[..]].concat())
    };
    let (code, _, stderr) = restore("sqlite:allowlist.yml/crcr.db");
    assert!(code == 1 && stderr.contains("can't be used"), "{stderr}");
    assert!(!place.folder().join("new-results.db").exists());
    let (code, _, stderr) = restore("sqlite:new.db");
    assert_eq!(code, 0, "{stderr}");
    assert!(place.folder().join("new-results.db").exists());
}

#[test]
fn two_backups_into_one_folder_leave_each_other_alone() {
    let place = Place::new(&[], "L1: []\n");
    drop(SqliteStore::open(&place.database(), StoreRole::Server).unwrap());
    let partial = place.folder().join("copy.partial");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("crcr.db"), "half of it").unwrap();
    let other = fs::File::open(&partial).unwrap();
    other.try_lock().unwrap();
    let (code, _, stderr) = place.run(&["relay", "backup", "copy"]);
    assert!(
        code == 1 && stderr.contains("another backup is writing to `copy.partial`"),
        "{stderr}"
    );
    assert!(partial.join("crcr.db").exists());
    // It was killed.
    drop(other);
    place.run_to(0, &["relay", "backup", "copy"]);
    assert!(!partial.exists());
}

#[test]
fn folder_that_is_not_left_over_from_a_backup_is_not_removed() {
    let place = Place::new(&[], "L1: []\n");
    drop(SqliteStore::open(&place.database(), StoreRole::Server).unwrap());
    let partial = place.folder().join("copy.partial");
    fs::create_dir(&partial).unwrap();
    for name in ["crcr.db", "crcr.db-wal", "notes.txt"] {
        fs::write(partial.join(name), "kept").unwrap();
    }
    let (_, stderr) = place.run_to(1, &["relay", "backup", "copy"]);
    assert!(stderr.contains("`copy.partial` has `notes.txt`"), "{stderr}");
    assert_eq!(fs::read_dir(&partial).unwrap().count(), 3);
    fs::remove_file(partial.join("notes.txt")).unwrap();
    place.run_to(0, &["relay", "backup", "copy"]);
    assert!(!partial.exists());
}

#[test]
fn restored_store_can_be_read_by_its_user_only() {
    let place = Place::new(&[], "L1: []\n");
    drop(SqliteStore::open(&place.database(), StoreRole::Server).unwrap());
    place.run_to(0, &["relay", "backup", "copy"]);
    // As from a disk whose files are open to all.
    let copy = place.folder().join("copy/crcr.db");
    fs::set_permissions(copy, fs::Permissions::from_mode(0o644)).unwrap();
    place.run_to(0, &["relay", "restore", "copy", "--store", "sqlite:new/crcr.db"]);
    let mode = |name: &str| {
        let file = fs::metadata(place.folder().join(name)).unwrap();
        file.permissions().mode() & 0o777
    };
    assert_eq!((mode("new"), mode("new/crcr.db")), (0o700, 0o600));
}

#[test]
fn backup_of_a_newer_crcr_is_not_called_damaged() {
    let place = Place::new(&[], "L1: []\n");
    drop(SqliteStore::open(&place.database(), StoreRole::Server).unwrap());
    place.run_to(0, &["relay", "backup", "copy"]);
    let (copy, manifest) =
        (place.folder().join("copy/crcr.db"), place.folder().join("copy/backup.json"));
    let newer = rusqlite::Connection::open(&copy).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    drop(newer);
    let bytes = fs::read(&copy).unwrap();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &bytes);
    let mut backup: serde_json::Value =
        serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    backup["files"][0]["sha256"] = hex::encode(digest).into();
    backup["files"][0]["bytes"] = bytes.len().into();
    fs::write(&manifest, backup.to_string()).unwrap();
    let (_, stderr) = place.run_to(1, &["relay", "restore", "copy", "--check"]);
    for told in ["error[no-backup]", "schema version 99", "with the version that made it"] {
        assert!(stderr.contains(told), "{told} is not in {stderr}");
    }
}

/// A relay that started on such a store would not ask for what it lacks.
#[test]
fn restore_that_can_not_mark_the_store_leaves_nothing_behind() {
    let place = Place::new(&[], "L1: []\n");
    for name in ["crcr.db", "results.db"] {
        drop(SqliteStore::open(&place.folder().join(name), StoreRole::Server).unwrap());
    }
    let full = "CREATE TRIGGER full BEFORE INSERT ON record BEGIN SELECT RAISE(ABORT, 'full'); END";
    let store = rusqlite::Connection::open(place.database()).unwrap();
    store.execute(full, []).unwrap();
    drop(store);
    let run = |args: &[&str], results| place.run(&[args, &["--results", results]].concat());
    let (code, _, stderr) = run(&["relay", "backup", "copy"], "sqlite:results.db");
    assert_eq!(code, 0, "{stderr}");
    let restore = ["relay", "restore", "copy", "--store", "sqlite:new.db"];
    let (code, _, stderr) = run(&restore, "sqlite:new-results.db");
    assert!(code == 2 && stderr.contains("because: full"), "{stderr}");
    let names = fs::read_dir(place.folder()).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().starts_with("new")), "{names:?}");
}

/// As in Compose and Kubernetes.
#[test]
fn addresses_in_files_are_named_by_a_backup_and_found_by_an_import() {
    let place = Place::new(&[], "L1: []\n");
    drop(SqliteStore::open(&place.folder().join("crcr.db"), StoreRole::Server).unwrap());
    fs::write(place.folder().join("archive-address"), "s3://bucket/archive\n").unwrap();
    let run = |args: &[&str], address: &str| {
        fs::write(place.folder().join("address"), format!("{address}\n")).unwrap();
        let mut command = place.crcr(args);
        command.env_remove("CRCR_RESULTS").env("CRCR_RESULTS_FILE", "address");
        command.env("CRCR_ARCHIVE_FILE", "archive-address");
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let said =
        run(&["relay", "backup", "copy"], "clickhouse+https://crcr:secret@ch.test:8443/crcr");
    assert!(said.contains("not copied: the results in ClickHouse"), "{said}");
    assert!(!said.contains("secret"), "{said}");
    assert!(said.contains("not copied: the archive s3://bucket/archive:"), "{said}");
    let said = run(&["relay", "restore", "copy", "--check"], "sqlite:results.db");
    assert!(said.contains("not in the backup: the results in ClickHouse"), "{said}");
    run(&["relay", "backup", "once"], "sqlite:./crcr.db");
    assert!(!place.folder().join("once/results.db").exists(), "the store has them");
    drop(SqliteStore::open(&place.folder().join("results.db"), StoreRole::Server).unwrap());
    run(&["relay", "import", "-"], "sqlite:results.db");
}

/// The command knows no more of the relay's settings than it is told.
#[test]
fn backup_that_is_not_told_where_results_are_says_so_and_beside_redis_refuses() {
    let place = Place::new(&[], "L1: []\n");
    drop(SqliteStore::open(&place.folder().join("crcr.db"), StoreRole::Server).unwrap());
    let (stdout, _) = place.run_to(0, &["relay", "backup", "whole"]);
    assert!(!stdout.contains("not copied"), "the store has the results: {stdout}");
    let (stdout, _) = place.run_to(0, &["relay", "restore", "whole", "--check"]);
    assert!(!stdout.contains("not in the backup"), "{stdout}");

    // A relay has copied all of its facts to other results.
    let store = rusqlite::Connection::open(place.database()).unwrap();
    let facts = "INSERT INTO outbox (fact) VALUES ('copied'); DELETE FROM outbox";
    store.execute_batch(facts).unwrap();
    drop(store);
    let (stdout, _) = place.run_to(0, &["relay", "backup", "copy"]);
    let told = "not copied: results that the relay keeps, or kept, elsewhere";
    assert!(stdout.contains(told), "{stdout}");
    let (stdout, _) = place.run_to(0, &["relay", "restore", "copy", "--check"]);
    assert!(stdout.contains("not in the backup: results that the relay keeps"), "{stdout}");
    let (_, stdout, _) = place.run(&["relay", "backup", "all", "--results", "sqlite:crcr.db"]);
    assert!(!stdout.contains("not copied"), "{stdout}");
    let place = place.set("CRCR_STORE", "redis://127.0.0.1:1");
    let (code, _, stderr) = place.run(&["relay", "backup", "redis"]);
    assert!(code == 1 && stderr.contains("the relay's results aren't named"), "{code}: {stderr}");
    assert!(stderr.contains("`--results` or CRCR_RESULTS"), "{stderr}");
}

/// 4 MiB are too little for the copy of a larger store.
#[test]
fn backup_that_does_not_fit_leaves_nothing_behind() {
    let place = Place::new(&[], "L1: []\n");
    let path = place.folder().join("crcr.db");
    drop(SqliteStore::open(&path, StoreRole::Server).unwrap());
    let filler = rusqlite::Connection::open(&path).unwrap();
    filler.execute("INSERT INTO outbox (fact) VALUES (hex(randomblob(4000000)))", []).unwrap();
    drop(filler);
    let limited = "trap '' XFSZ; ulimit -f 4096; exec \"$@\"";
    let mut command = place.crcr(&["relay", "backup", "copy"]);
    let program = command.get_program().to_owned();
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", limited, "bash"]).arg(program).args(command.get_args()).env_clear();
    for (name, value) in command.get_envs() {
        shell.envs(value.map(|value| (name, value)));
    }
    command = shell;
    let output = command.current_dir(place.folder()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("the database can't be copied"), "{stderr}");
    // It is the backup's disk that is full.
    assert!(!stderr.contains("the store can't be used"), "{stderr}");
    let left: Vec<PathBuf> =
        fs::read_dir(place.folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.iter().all(|path| !path.to_string_lossy().contains("copy")), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs redis-server"]
async fn restore_of_a_redis_that_a_relay_uses_is_refused() {
    let redis = RedisServer::start(RedisSettings::default()).unwrap();
    let place = Place::new(&[], "L1: []\n").on_redis(&redis);
    let mut relay = place.serving().await;
    eventually("the relay looks for facts", async || {
        redis.command(&["EXISTS", "{crcr}:relay_seen"]).unwrap().trim() == "1"
    })
    .await;
    let restore = ["relay", "restore", "--since", "2026-11-25T09:00Z"];
    let (code, _, stderr) = place.run(&restore);
    assert!(code == 1 && stderr.contains("error[in-use]: a relay is using"), "{stderr}");
    assert!(stderr.contains("wait ten seconds"), "{stderr}");
    relay.kill();
    redis.command(&["DEL", "{crcr}:relay_seen", "{crcr}:outbox_reader"]).unwrap();
    place.run_to(0, &restore);
}

/// It was started without its snapshot, whose data would come without the mark.
#[test]
#[ignore = "needs redis-server"]
fn redis_without_any_data_is_not_marked_as_restored() {
    let redis = RedisServer::start(RedisSettings::default()).unwrap();
    let place = Place::new(&[], "L1: []\n").on_redis(&redis);
    let restore = ["relay", "restore", "--since", "2026-11-25T09:00Z"];
    for _ in 0..2 {
        let (_, stderr) = place.run_to(1, &restore);
        assert!(stderr.contains("error[redis]: nothing is in this store"), "{stderr}");
        assert!(stderr.contains("start it with the snapshot first"), "{stderr}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs redis-server"]
async fn redis_restored_from_its_snapshot_is_recognised_and_the_rest_is_fetched() {
    let mut redis = RedisServer::start(RedisSettings::default()).unwrap();
    let place = Place::new(&["acme/two", "acme/four"], ALLOWLIST).on_redis(&redis);
    let drill = Drill::new(place);
    let place = &drill.place;
    let elsewhere = tempfile::tempdir().unwrap();
    let backup = elsewhere.path().join("backup");
    let (before, _) = drill.up_to_the_crash(&backup).await;
    redis.kill().unwrap();
    lose_the_disk(place.folder());

    let folder = backup.to_str().unwrap();
    let other = RedisServer::start(RedisSettings::default()).unwrap();
    let url = other.url();
    let (code, _, stderr) = place.run(&["relay", "restore", folder, "--store", &url]);
    assert!(code == 1 && stderr.contains("doesn't have what this backup has"), "{stderr}");
    assert!(
        !place.folder().join("results.db").exists(),
        "nothing is written before that is checked"
    );
    // As the page says: the snapshot takes the place of the file of changes.
    let data = elsewhere.path().join("redis");
    fs::create_dir(&data).unwrap();
    fs::copy(backup.join("redis.rdb"), data.join("appendonly.aof")).unwrap();
    let arguments = vec!["--dir".to_owned(), data.to_str().unwrap().to_owned()];
    let mut again = RedisServer::start(RedisSettings { is_durable: true, arguments }).unwrap();
    let url = again.url();
    let restored = || place.run(&["relay", "restore", folder, "--store", &url]);
    // The snapshot says that a relay was running ten seconds ago or less.
    let (mut code, mut stdout, mut stderr) = restored();
    eventually("the relay isn't seen any more", async || {
        let is_seen = stderr.contains("error[in-use]");
        if is_seen {
            (code, stdout, stderr) = restored();
        }
        !is_seen
    })
    .await;
    assert_eq!(code, 0, "{stdout}{stderr}");
    let since = ["relay", "restore", "--since", "2999-01-01T00:00Z", "--store", &url];
    assert!(place.run(&since).2.contains("isn't in the past"));
    // Nothing waits to be written: a crash right after loses nothing.
    again.kill().unwrap();
    again.again().unwrap();
    let store = RedisStore::open(&crcr_store::RedisUrl::parse(&url).unwrap()).await.unwrap();
    for id in &before {
        let found = deliveries::delivery(&store, id).await.unwrap();
        assert!(found.is_some(), "{id} was acknowledged before the backup");
    }
    let relay = serve_on(place, &url);
    drill.point_github_at(&relay);
    relay.ready().await;
    drill.check(&store).await;
}
