//! `crcr relay restore`: puts a backup back, and says what it lacks.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crcr_relay::config::StoreUrl;
use crcr_relay::restore::{RestoreRecord, ResumedWork, mark_restored};
use crcr_results::ResultsUrl;
use crcr_store::redis::RedisPosition;
use crcr_store::{RedisStore, RedisUrl, SqliteStore, StateStore, StoreError, StoreRole, sqlite};
use jiff::Timestamp;
use serde_json::json;

use super::backup::{
    BackupFile, BackupManifest, FORMAT, MANIFEST, REDIS_FILE, RESULTS_FILE, STORE_FILE,
    check_snapshot, create_private, describe, folder_failure, sync_folder,
};
use super::{named_results, now, open_store, store_failure, store_url};
use crate::cli::DataFormat;
use crate::cli::relay::RestoreArgs;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::plural;

const MAX_MANIFEST_BYTES: u64 = 1 << 20;
/// How far two machines' clocks may be apart. The relay asks for webhooks from some time before a backup on.
const CLOCK_SKEW: Duration = Duration::from_secs(60);
const START_WITH_SNAPSHOT: &str = "start it with the snapshot first: with `appendonly yes` it reads its file of \
     changes instead; docs/operating/back-up.md has the steps";

pub async fn run(args: &RestoreArgs, env: &Env, printer: &Printer) -> Outcome {
    let (restored, resumed) = match (&args.folder, args.since) {
        (_, Some(since)) => mark_since(args, since, env).await?,
        (Some(folder), None) => {
            let manifest = read_whole_backup(folder)?;
            if args.check {
                print_check(args, &manifest, printer);
                return Ok(ExitCode::SUCCESS);
            }
            put_back(args, folder, manifest, env).await?
        }
        (None, None) => return Err(Failure::unexpected("usage", "no backup is named")),
    };
    let record = RestoreRecord { backup_at: restored.backup_at, restored_at: now() };
    let lost = record.out_of_reach(now());
    match args.format {
        DataFormat::Json => {
            let said = json!({
                "backup_at": restored.backup_at, "resumed": resumed, "out_of_reach": lost,
                "not_copied": restored.not_copied,
            });
            printer.data_line(&said.to_string());
        }
        DataFormat::Text => print_text(&restored, resumed, lost, env, printer),
    }
    Ok(ExitCode::SUCCESS)
}

/// Marks a store that was put back by other means.
async fn mark_since(
    args: &RestoreArgs,
    since: Timestamp,
    env: &Env,
) -> Result<(RestoredStore, ResumedWork), Failure> {
    if since >= now() {
        return Err(Failure::user("since", "`--since` isn't in the past"));
    }
    expect_markable(args, env).await?;
    let store = open_store(&args.store, env).await?;
    let headline = format!("marked: lacks what came since {since:.0}");
    let restored = RestoredStore { backup_at: since, not_copied: vec![], headline };
    Ok((restored, mark(&*store, since).await?))
}

/// What a server reads later from its snapshot would replace the mark. In SQLite, a store that isn't there can't be opened.
async fn expect_data(store: &RedisStore, url: &RedisUrl) -> Result<(), Failure> {
    if store.position().await.map_err(store_failure)?.sequence > 0 {
        return Ok(());
    }
    let what = format!("nothing is in this store: the Redis server {url} has no data of a relay");
    Err(Failure::user("redis", what).hint(START_WITH_SNAPSHOT))
}

/// The manifest of a backup, after a check of all its files.
fn read_whole_backup(folder: &Path) -> Result<BackupManifest, Failure> {
    let manifest = read_manifest(folder)?;
    for file in &manifest.files {
        check(folder, file)?;
    }
    let at = manifest.backup_at;
    if at > now() + CLOCK_SKEW {
        let what = format!("the backup says that it was made at {at:.0}, which is still to come");
        return Err(Failure::user("since", what).hint(
            "GitHub couldn't be asked for what came after it. Set this machine's clock; if that of the \
             backup was wrong, copy its files to their places and use `--since`",
        ));
    }
    Ok(manifest)
}

fn print_check(args: &RestoreArgs, manifest: &BackupManifest, printer: &Printer) {
    match args.format {
        DataFormat::Json => printer.data_line(&json!(manifest).to_string()),
        DataFormat::Text => {
            printer.data_line(&format!("whole: everything until {:.0}", manifest.backup_at));
            print_not_copied(&manifest.not_copied, printer);
        }
    }
}

/// Fails if a relay uses the store, or if it is a Redis server without data. A relay that runs would send dispatches
/// again whose jobs it hears of.
async fn expect_markable(args: &RestoreArgs, env: &Env) -> Result<(), Failure> {
    let path = match store_url(&args.store, env)? {
        StoreUrl::Sqlite(path) => path,
        StoreUrl::Redis(url) => {
            let store = RedisStore::open(&url).await.map_err(store_failure)?;
            expect_no_relay_on(&store).await?;
            return expect_data(&store, &url).await;
        }
    };
    match path.exists().then(|| sqlite::expect_no_server(&path)) {
        Some(Err(StoreError::InUse(_))) => {
            let what = format!("a relay is using `{}`", path.display());
            Err(Failure::user("in-use", what).hint("stop it, run this again, and start it"))
        }
        _ => Ok(()),
    }
}

async fn expect_no_relay_on(store: &RedisStore) -> Result<(), Failure> {
    if store.is_used_by_a_relay().await.map_err(store_failure)? {
        let hint = "stop every relay; if you have just stopped it, wait ten seconds";
        return Err(Failure::user("in-use", "a relay is using this store").hint(hint));
    }
    Ok(())
}

struct RestoredStore {
    backup_at: Timestamp,
    not_copied: Vec<String>,
    /// What was done, in the first line.
    headline: String,
}

async fn mark(store: &dyn StateStore, backup_at: Timestamp) -> Result<ResumedWork, Failure> {
    mark_restored(store, backup_at, now()).await.map_err(store_failure)
}

/// Puts the files in their places, all or none, once the store is marked as restored: a relay that started on it before
/// would not ask for what it lacks.
async fn put_back(
    args: &RestoreArgs,
    folder: &Path,
    manifest: BackupManifest,
    env: &Env,
) -> Result<(RestoredStore, ResumedWork), Failure> {
    let store = store_url(&args.store, env)?;
    let results = named_results(args.results.as_deref(), env)?;
    let has = |name: &str| manifest.files.iter().any(|file| file.name == name);
    let mut places = vec![];
    if has(RESULTS_FILE) {
        let Some(ResultsUrl::Sqlite(path)) = results else {
            let what =
                "the backup has results in a file of their own, and no place for them is named";
            return Err(Failure::user("results", what).hint("set `--results sqlite:PATH`"));
        };
        places.push((RESULTS_FILE, path));
    }
    match &store {
        StoreUrl::Sqlite(path) if has(STORE_FILE) => places.push((STORE_FILE, path.clone())),
        StoreUrl::Redis(_) if manifest.redis.is_some() => {}
        _ => {
            let what = "the backup is of another kind of store than `--store`";
            return Err(Failure::user("store", what).hint(
                "a backup of SQLite goes to sqlite:PATH, and one of Redis to a Redis server",
            ));
        }
    }
    for (_, path) in &places {
        expect_nothing_at(path)?;
    }
    let backup_at = manifest.backup_at;
    let (copies, resumed) = match &store {
        StoreUrl::Redis(url) => {
            // Before anything is written.
            let store = open_redis(url, manifest.redis.as_ref()).await?;
            expect_no_relay_on(&store).await?;
            (UnnamedCopies::new(folder, places)?, mark(&store, backup_at).await?)
        }
        StoreUrl::Sqlite(path) => {
            let copies = UnnamedCopies::new(folder, places)?;
            let resumed = mark_copy(&partial_of(path), backup_at).await?;
            (copies, resumed)
        }
    };
    copies.name_all()?;
    let headline = format!("restored: everything until {backup_at:.0}");
    Ok((RestoredStore { backup_at, not_copied: manifest.not_copied, headline }, resumed))
}

async fn mark_copy(path: &Path, backup_at: Timestamp) -> Result<ResumedWork, Failure> {
    // As a tool and not as a server, which would take facts out of the outbox that belong to other results.
    let store = SqliteStore::open(path, StoreRole::Tool).map_err(store_failure)?;
    let resumed = mark(&store, backup_at).await?;
    // It closes here, and moves its log into the file.
    drop(store);
    if with_end(path, "-wal").exists() {
        return Err(Failure::unexpected("store-unavailable", "the store can't be written whole")
            .hint("make space on its disk"));
    }
    let synced = File::options().write(true).open(path).and_then(|file| file.sync_all());
    synced.map_err(|error| folder_failure(path, error))?;
    Ok(resumed)
}

fn print_text(
    restored: &RestoredStore,
    resumed: ResumedWork,
    lost: Option<(Timestamp, Timestamp)>,
    env: &Env,
    printer: &Printer,
) {
    let backup_at = restored.backup_at;
    printer.data_line(&restored.headline);
    resumed_lines(resumed).iter().for_each(|line| printer.data_line(line));
    printer.data_line(
        "webhooks since then: the relay asks GitHub for them when it starts, and `crcr relay reconcile` does it \
         and lists them",
    );
    if let Some((from, to)) = lost {
        printer.data_line(&format!(
            "webhooks from {from:.0} to {to:.0}: GitHub doesn't deliver them again. New heads of open pull requests \
             are still found; pushes and labels of that time are not"
        ));
    }
    printer.data_line(
        "reports since then: lost, unless their dispatch is sent again. Operators' changes since then, such as \
         `crcr relay repository confirm`, have to be made again",
    );
    print_not_copied(&restored.not_copied, printer);
    // Only whether there is an archive matters here, so `CRCR_ARCHIVE_FILE` needn't be readable.
    if !matches!(env.setting(env_vars::CRCR_ARCHIVE), Ok(None)) {
        printer.data_line(&format!(
            "webhooks as rows: `crcr relay replay --from {backup_at:.0}` reads them from the archive"
        ));
    }
}

fn resumed_lines(resumed: ResumedWork) -> Vec<String> {
    let ResumedWork { waiting, sent_again, without_body } = resumed;
    let mut lines = vec![format!(
        "dispatches: {}, {} sent again five minutes from now",
        plural(waiting, "waits to be sent", "wait to be sent"),
        plural(sent_again, "was open and is", "were open and are"),
    )];
    if without_body > 0 {
        lines.push(format!(
            "dispatches: {}, but the payload isn't stored any more: press \"Re-run\" on the check runs",
            plural(without_body, "was open", "were open"),
        ));
    }
    lines
}

fn print_not_copied(not_copied: &[String], printer: &Printer) {
    for what in not_copied {
        printer.data_line(&format!("not in the backup: {what}"));
    }
}

fn read_manifest(folder: &Path) -> Result<BackupManifest, Failure> {
    let path = folder.join(MANIFEST);
    let broken = |what: String| {
        Failure::user("no-backup", what).hint("name the folder that `crcr relay backup` made")
    };
    let size = path
        .metadata()
        .map_err(|error| broken(format!("`{}` isn't a backup", folder.display())).because(error))?;
    if size.len() > MAX_MANIFEST_BYTES {
        return Err(broken(format!("`{}` is too large", path.display())));
    }
    let text = fs::read(&path).map_err(|error| folder_failure(&path, error))?;
    let manifest: BackupManifest = serde_json::from_slice(&text)
        .map_err(|error| broken(format!("`{}` can't be read", path.display())).because(error))?;
    if manifest.format != FORMAT {
        let what = format!("the backup was made by crcr {}, in another format", manifest.crcr);
        return Err(Failure::user("no-backup", what).hint("restore it with that version"));
    }
    Ok(manifest)
}

/// Whether a file of the backup is what was written, and this crcr can read it.
fn check(folder: &Path, file: &BackupFile) -> Result<(), Failure> {
    if ![STORE_FILE, RESULTS_FILE, REDIS_FILE].contains(&file.name.as_str()) {
        let what =
            format!("the backup names a file `{}` that this version doesn't know", file.name);
        return Err(
            Failure::user("no-backup", what).hint("restore it with the version that made it")
        );
    }
    let path = folder.join(&file.name);
    let found = describe(&path, &file.name)?;
    if found.sha256 != file.sha256 || found.bytes != file.bytes {
        let what =
            format!("`{}` isn't what the backup wrote: it was damaged or changed", path.display());
        return Err(Failure::unexpected("damaged", what).hint("use another backup"));
    }
    if file.name == REDIS_FILE {
        return check_snapshot(&path);
    }
    sqlite::check_database(&path).map(drop).map_err(|error| {
        let what = format!("`{}` can't be used", path.display());
        let failure = match error {
            StoreError::Newer { .. } => {
                Failure::user("no-backup", what).hint("restore it with the version that made it")
            }
            _ => Failure::unexpected("damaged", what),
        };
        failure.because(error)
    })
}

/// SQLite's log and index have the name of their database, with an end.
const ENDS: [&str; 3] = ["", "-wal", "-shm"];

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

fn partial_of(path: &Path) -> PathBuf {
    with_end(path, ".partial")
}

/// What is at the place of a database: its file, or one of those beside it.
fn found_at(path: &Path) -> Option<PathBuf> {
    // A link is something, too, wherever it leads: the store's place may be on another disk.
    let is_there = |path: &PathBuf| path.symlink_metadata().is_ok();
    ENDS.map(|end| with_end(path, end)).into_iter().find(is_there)
}

fn exists(there: &Path) -> Failure {
    let what = format!("`{}` exists, and a restore never overwrites", there.display());
    Failure::user("exists", what)
}

fn expect_nothing_at(path: &Path) -> Result<(), Failure> {
    let Some(there) = found_at(path) else { return Ok(()) };
    Err(exists(&there).hint(
        "stop the relay first, as a restore can't notice one whose files were moved away; then move that file and \
         those beside it away",
    ))
}

/// Copies beside their places. When this is dropped, they have the names of their places or none.
struct UnnamedCopies {
    places: Vec<PathBuf>,
}

impl UnnamedCopies {
    fn new(folder: &Path, files: Vec<(&str, PathBuf)>) -> Result<Self, Failure> {
        let mut copies = Self { places: vec![] };
        for (name, place) in files {
            let partial = partial_of(&place);
            copies.places.push(place.clone());
            // A restore that was killed may have left one, with a log that isn't this copy's.
            remove(&partial);
            let copied = copy_private(&folder.join(name), &partial);
            copied.map_err(|error| folder_failure(&place, error))?;
        }
        Ok(copies)
    }

    /// The results come first: a relay that starts in between makes a store of its own, which is noticed then.
    fn name_all(self) -> Result<(), Failure> {
        for (done, place) in self.places.iter().enumerate() {
            // What is at this place isn't of this restore.
            name_copy(place).inspect_err(|_| self.remove_first(done))?;
            sync_folder(folder_of(place)).map_err(|error| {
                self.remove_first(done + 1);
                folder_failure(place, error)
            })?;
        }
        Ok(())
    }

    fn remove_first(&self, count: usize) {
        self.places[..count].iter().for_each(|named| remove(named));
    }
}

/// Gives a copy its name, unless something has got that name since the restore began: SQLite would apply the log of a
/// store that a relay has made there to the copy.
fn name_copy(place: &Path) -> Result<(), Failure> {
    let taken = |there: &Path| {
        exists(there).hint(
            "a relay was started during the restore: stop it, move its files away, and restore again",
        )
    };
    if let Some(there) = found_at(place) {
        return Err(taken(&there));
    }
    link(&partial_of(place), place).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => taken(place),
        _ => folder_failure(place, error),
    })
}

/// Gives a file another name, which must be free: a rename would replace what is there.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    let linked = fs::hard_link(from, to);
    let has_no_links = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
    };
    // On such a disk, only the check just before protects what is there.
    if linked.as_ref().is_err_and(has_no_links) { fs::rename(from, to) } else { linked }
}

/// Copies a file so that only this user can read it, as payloads of private repositories may be in it.
fn copy_private(from: &Path, to: &Path) -> io::Result<()> {
    let folder = folder_of(to);
    if !folder.is_dir() {
        create_private(folder)?;
    }
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut copy = options.open(to)?;
    io::copy(&mut File::open(from)?, &mut copy)?;
    copy.sync_all()
}

impl Drop for UnnamedCopies {
    fn drop(&mut self) {
        self.places.iter().for_each(|place| remove(&partial_of(place)));
    }
}

/// Removes a database that is of no use.
fn remove(path: &Path) {
    for end in ENDS {
        let _ = fs::remove_file(with_end(path, end));
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

/// A Redis server, if it has everything that the backup has.
async fn open_redis(
    url: &RedisUrl,
    expected: Option<&RedisPosition>,
) -> Result<RedisStore, Failure> {
    let store = RedisStore::open(url).await.map_err(store_failure)?;
    let found = store.position().await.map_err(store_failure)?;
    if expected.is_none_or(|expected| !found.contains(expected)) {
        let what = format!("the Redis server {url} doesn't have what this backup has");
        return Err(Failure::user("redis", what).hint(START_WITH_SNAPSHOT));
    }
    Ok(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_that_a_relay_made_during_the_restore_is_neither_replaced_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (backup, new) = (folder.path().join("backup"), folder.path().join("new"));
        fs::create_dir(&backup).unwrap();
        for name in [RESULTS_FILE, STORE_FILE] {
            fs::write(backup.join(name), "of the backup").unwrap();
        }
        let copies = || {
            let places = [RESULTS_FILE, STORE_FILE].map(|name| (name, new.join(name)));
            UnnamedCopies::new(&backup, places.to_vec()).unwrap()
        };
        let count = || fs::read_dir(&new).unwrap().count();
        for end in ["", "-wal"] {
            let copies = copies();
            let own = with_end(&new.join(STORE_FILE), end);
            fs::write(&own, "of the relay").unwrap();
            let failure = copies.name_all().unwrap_err();
            assert_eq!(failure.code(), "exists");
            assert!(failure.help().unwrap().starts_with("a relay was started"), "{failure:?}");
            assert_eq!(fs::read_to_string(&own).unwrap(), "of the relay");
            fs::remove_file(&own).unwrap();
            assert_eq!(count(), 0, "the restore left something behind");
        }
        let linked = link(&backup.join(STORE_FILE), &backup.join(RESULTS_FILE));
        assert_eq!(linked.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        copies().name_all().unwrap();
        assert_eq!(count(), 2);
    }

    #[test]
    fn one_dispatch_is_spoken_of_in_the_singular() {
        let lines = |waiting, sent_again, without_body| {
            resumed_lines(ResumedWork { waiting, sent_again, without_body })
        };
        let rest = "sent again five minutes from now";
        let many = format!("dispatches: 0 wait to be sent, 2 were open and are {rest}");
        assert_eq!(lines(0, 2, 0), [many]);
        let one = format!("dispatches: 1 waits to be sent, 1 was open and is {rest}");
        let lost = "dispatches: 1 was open, but the payload isn't stored any more: press \"Re-run\" on the check runs";
        assert_eq!(lines(1, 1, 1), [one.as_str(), lost]);
    }
}
