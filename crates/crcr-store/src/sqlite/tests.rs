use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use super::*;
use crate::{NewTask, conformance};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_store_passes_the_suite_of_all_stores() {
    let folder = tempfile::tempdir().unwrap();
    let count = AtomicU32::new(0);
    conformance::check_all(async || {
        let name = format!("{}.db", count.fetch_add(1, Ordering::Relaxed));
        SqliteStore::open(&folder.path().join(name), StoreRole::Server).unwrap()
    })
    .await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn nothing_is_acknowledged_while_the_file_or_its_log_is_not_at_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["crcr.db", "crcr.db-wal"].map(|name| folder.path().join(name));
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(&names[0], &link).unwrap();
    let store = SqliteStore::open(&link, StoreRole::Server).unwrap();
    let now = timestamp(1_800_000_000_000);
    let commit = async |name: &str| {
        let tasks = vec![task(name.to_owned(), "l", now)];
        store.commit(WriteBatch { tasks, ..WriteBatch::default() }, now).await
    };
    assert_eq!(store.health().weaker_promise, None);
    assert_eq!(commit("before").await.unwrap(), crate::CommitOutcome::Done);
    for (path, named) in [(&names[0], "link.db` was"), (&names[1], "crcr.db-wal` was")] {
        let away = folder.path().join("away");
        std::fs::rename(path, &away).unwrap();
        let told = store.health().weaker_promise.unwrap();
        assert!(told.contains(named) && told.contains("moved, deleted or replaced"), "{told}");
        let refused = commit("away").await.unwrap_err().to_string();
        assert!(refused.contains(&told), "{refused}");
        std::fs::write(path, "another file").unwrap();
        assert_eq!(store.health().weaker_promise.as_ref(), Some(&told));
        assert!(commit("replaced").await.is_err(), "{named}");
        std::fs::rename(&away, path).unwrap();
        assert_eq!(store.health().weaker_promise, None);
        assert_eq!(commit("back").await.unwrap(), crate::CommitOutcome::Done);
    }
}

#[tokio::test]
async fn read_only_store_creates_and_changes_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a #1%20?.db");
    let names = || {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let Err(missing) = SqliteStore::read_only(&path) else { panic!("there is no such file") };
    let missing = missing.to_string();
    assert!(missing.ends_with("`: No such file or directory (os error 2)"), "{missing}");
    assert!(names().is_empty(), "nothing is created");
    let now = timestamp(1_800_000_000_000);
    let mark = |n: u8| WriteBatch {
        tasks: vec![NewTask {
            key: StoreKey::new(&[&n.to_string()]),
            lane: "l".to_owned(),
            payload: String::new(),
            due_at: now,
        }],
        ..WriteBatch::default()
    };
    let server = SqliteStore::open(&path, StoreRole::Server).unwrap();
    server.commit(mark(1), now).await.unwrap();
    let beside = SqliteStore::read_only(&path).unwrap();
    assert_eq!(beside.tasks(None, 9).await.unwrap().len(), 1, "what is in the log is read");
    assert!(beside.commit(mark(2), now).await.is_err());
    drop((beside, server));
    let (before, bytes) = (names(), std::fs::read(&path).unwrap());
    let alone = SqliteStore::read_only(&path).unwrap();
    assert_eq!(alone.tasks(None, 9).await.unwrap().len(), 1);
    drop(alone);
    assert_eq!((names(), std::fs::read(&path).unwrap()), (before, bytes));
    std::fs::write(folder.path().join("other.db"), "").unwrap();
    assert!(SqliteStore::read_only(&folder.path().join("other.db")).is_err(), "no relay's");
}

#[test]
fn file_that_cannot_be_opened_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "x".repeat(8192)).unwrap();
    let in_no_folder = folder.path().join("missing").join("crcr.db");
    for (path, why) in [(in_no_folder, ""), (text, "not a database"), (folder.path().into(), "")] {
        for opened in [
            SqliteStore::open(&path, StoreRole::Server),
            SqliteStore::open(&path, StoreRole::Tool),
            SqliteStore::read_only(&path),
        ] {
            let Err(error) = opened else { panic!("{} was opened", path.display()) };
            let error = error.to_string();
            let named = format!("the store can't be used: `{}`: ", path.display());
            assert!(error.starts_with(&named) && error.contains(why), "{error}");
        }
    }
}

fn task(name: String, lane: &str, due_at: Timestamp) -> NewTask {
    let key = StoreKey::new(&[&name]);
    NewTask { key, lane: lane.to_owned(), payload: String::new(), due_at }
}

#[tokio::test]
async fn long_backlog_of_one_lane_does_not_slow_leases() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("crcr.db"), StoreRole::Server).unwrap();
    let now = timestamp(1_800_000_000_000);
    let busy: HashMap<_, _> = [("full".to_owned(), 8)].into();
    let request = LeaseRequest {
        now,
        until: now,
        max_tasks: 1,
        max_per_lane: 8,
        busy_lanes: busy,
        ..LeaseRequest::default()
    };
    let add = async |tasks: Vec<NewTask>| {
        store.commit(WriteBatch { tasks, ..WriteBatch::default() }, now).await.unwrap();
    };
    // The fastest of many: a busy machine delays some of them, a scan of all tasks delays each.
    let fastest_lease = async || {
        let mut fastest = Duration::MAX;
        for n in 0..100 {
            add(vec![task(format!("other-{n}"), "other", now)]).await;
            let started = std::time::Instant::now();
            assert_eq!(store.lease_tasks(request.clone()).await.unwrap().len(), 1);
            fastest = fastest.min(started.elapsed());
        }
        fastest
    };
    let alone = fastest_lease().await;
    add((0..60_000).map(|n| task(format!("full-{n}"), "full", now)).collect()).await;
    let beside = fastest_lease().await;
    assert!(beside < 4 * alone + Duration::from_millis(2), "{beside:?} after {alone:?}");
}

#[tokio::test]
async fn slow_queries_do_not_block_look_ups_by_key() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("crcr.db"), StoreRole::Server).unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let pages: Vec<_> = (0..2 * SLOW_READERS)
        .map(|_| {
            let held = Arc::clone(&held);
            let page = store.read_slowly(move |_| {
                let released = held.lock().recv();
                Ok(released.is_err())
            });
            Box::pin(page)
        })
        .collect();
    let mut pages = futures_util::future::join_all(pages);
    // The pages have begun.
    assert!(futures_util::poll!(&mut pages).is_pending());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let keys = [StoreKey::new(&["a"])];
    let found = tokio::time::timeout(Duration::from_secs(5), store.records(&keys));
    assert_eq!(found.await.expect("the webhook isn't kept waiting").unwrap(), [None]);
    drop(release);
    pages.await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn second_server_is_rejected_by_whatever_name_it_opens_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crcr.db");
    let first = SqliteStore::open(&path, StoreRole::Server).unwrap();
    let (symbolic, hard) = (folder.path().join("symbolic.db"), folder.path().join("hard.db"));
    std::os::unix::fs::symlink(&path, &symbolic).unwrap();
    std::fs::hard_link(&path, &hard).unwrap();
    // There is no lock file that somebody could remove.
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!names.into_iter().any(|name| name.to_string_lossy().contains("lock")));
    for path in [&path, &symbolic, &hard] {
        assert!(matches!(SqliteStore::open(path, StoreRole::Server), Err(StoreError::InUse(_))));
        // Another process has another table of its locks, and meets that of the system.
        let file = path.display().to_string();
        let other = std::process::Command::new("flock").args(["-n", &file, "true"]).status();
        assert!(!other.expect("util-linux is installed").success(), "{file}");
    }
    drop(first);
    drop(SqliteStore::open(&symbolic, StoreRole::Server).unwrap());
}

#[tokio::test]
async fn second_server_is_rejected_and_leases_of_a_dead_server_are_due_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crcr.db");
    let first = SqliteStore::open(&path, StoreRole::Server).unwrap();
    assert!(matches!(SqliteStore::open(&path, StoreRole::Server), Err(StoreError::InUse(_))));
    assert!(SqliteStore::open(&path, StoreRole::Tool).is_ok(), "tools may look beside it");
    let now = timestamp(1_800_000_000_000);
    let task = NewTask {
        key: StoreKey::new(&["t"]),
        lane: "l".to_owned(),
        payload: String::new(),
        due_at: now,
    };
    first.commit(WriteBatch { tasks: vec![task], ..WriteBatch::default() }, now).await.unwrap();
    let until = now + Duration::from_secs(3600);
    let request =
        LeaseRequest { now, until, max_tasks: 1, max_per_lane: 1, ..LeaseRequest::default() };
    assert_eq!(first.lease_tasks(request.clone()).await.unwrap().len(), 1);
    drop(first);
    let second = SqliteStore::open(&path, StoreRole::Server).unwrap();
    assert_eq!(second.lease_tasks(request).await.unwrap().len(), 1);
}

#[tokio::test]
async fn large_facts_are_read_from_the_outbox_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open_with_outbox(&folder.path().join("crcr.db")).unwrap();
    conformance::large_facts_are_read_in_parts(&store).await;
}
