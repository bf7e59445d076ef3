//! `crcr relay backup`: a folder with a checked copy of the relay's data.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use aws_lc_rs::digest;
use crcr_relay::config::StoreUrl;
use crcr_results::ResultsUrl;
use crcr_store::redis::{RedisPosition, RedisSnapshot};
use crcr_store::{RedisStore, SqliteStore, StoreError, sqlite};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{has_bytes, named_results, now, store_failure, store_url};
use crate::cli::DataFormat;
use crate::cli::relay::BackupArgs;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

/// The file that makes a folder a backup. It is written last.
pub(crate) const MANIFEST: &str = "backup.json";
pub(crate) const STORE_FILE: &str = "crcr.db";
pub(crate) const RESULTS_FILE: &str = "results.db";
pub(crate) const REDIS_FILE: &str = "redis.rdb";
/// A snapshot of a large server takes minutes.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(3600);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BackupManifest {
    pub(crate) format: u32,
    /// Everything that was acknowledged before is in the backup.
    pub(crate) backup_at: Timestamp,
    /// The version of the crcr that made it.
    pub(crate) crcr: String,
    /// The copies in the folder.
    pub(crate) files: Vec<BackupFile>,
    /// What the Redis server had, if the state is on one.
    pub(crate) redis: Option<RedisPosition>,
    /// What isn't in the folder, and what to do about it.
    pub(crate) not_copied: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BackupFile {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

pub(crate) const FORMAT: u32 = 1;

pub async fn run(args: &BackupArgs, env: &Env, printer: &Printer) -> Outcome {
    let store = store_url(&args.store, env)?;
    let results = named_results(args.results.as_deref(), env)?;
    if results.is_none() && matches!(store, StoreUrl::Redis(_)) {
        let what = "the relay's results aren't named, and Redis doesn't have them";
        return Err(Failure::user("results", what).hint(
            "set `--results` or CRCR_RESULTS to the value that `crcr relay serve` has: it requires one beside Redis",
        ));
    }
    if args.folder.exists() {
        let what = format!("`{}` exists, and a backup never overwrites", args.folder.display());
        return Err(Failure::user("folder", what).hint("name a folder that doesn't exist yet"));
    }
    // Only a whole backup gets the name of the folder.
    let partial = partial_of(&args.folder);
    if partial.exists() {
        drop(locked(&partial)?);
        expect_unfinished_backup(&partial)?;
        fs::remove_dir_all(&partial).map_err(|error| folder_failure(&partial, error))?;
    }
    create_private(&partial).map_err(|error| folder_failure(&partial, error))?;
    let _lock = locked(&partial)?;
    let made = make(&partial, &store, results.as_ref(), env).await;
    let manifest = match made.and_then(|manifest| {
        finish(&partial, &args.folder, &manifest)?;
        Ok(manifest)
    }) {
        Ok(manifest) => manifest,
        Err(failure) => {
            // What is left over is removed by the next backup into the same folder.
            let _ = fs::remove_dir_all(&partial);
            return Err(failure);
        }
    };
    match args.format {
        DataFormat::Json => printer.data_line(&json!(manifest).to_string()),
        DataFormat::Text => print_text(&args.folder, &manifest, printer),
    }
    Ok(ExitCode::SUCCESS)
}

fn print_text(folder: &Path, manifest: &BackupManifest, printer: &Printer) {
    printer.data_line(&format!("{}: everything until {:.0}", folder.display(), manifest.backup_at));
    for file in &manifest.files {
        printer.data_line(&format!("  {}, {} bytes, checked", file.name, file.bytes));
    }
    for what in &manifest.not_copied {
        printer.data_line(&format!("  not copied: {what}"));
    }
}

async fn make(
    folder: &Path,
    store: &StoreUrl,
    results: Option<&ResultsUrl>,
    env: &Env,
) -> Result<BackupManifest, Failure> {
    let mut manifest = BackupManifest {
        format: FORMAT,
        backup_at: now(),
        crcr: env!("CARGO_PKG_VERSION").to_owned(),
        files: vec![],
        redis: None,
        not_copied: vec![],
    };
    // The store comes first: its outbox may have facts that the results get meanwhile, and never the reverse.
    copy_store(store, folder, &mut manifest).await?;
    copy_results(store, results, folder, &mut manifest).await?;
    if let Some(archive) = env.setting(env_vars::CRCR_ARCHIVE)? {
        let how = match archive.starts_with("file:") {
            true => "copy the folder after this command, such as with rsync",
            false => "turn on the bucket's versioning or replication",
        };
        manifest
            .not_copied
            .push(format!("the archive {archive}: nothing in it ever changes; {how}"));
    }
    Ok(manifest)
}

async fn copy_store(
    store: &StoreUrl,
    folder: &Path,
    manifest: &mut BackupManifest,
) -> Result<(), Failure> {
    let url = match store {
        StoreUrl::Sqlite(path) => return copy_database(path, folder, STORE_FILE, manifest).await,
        StoreUrl::Redis(url) => url,
    };
    let store = RedisStore::open(url).await.map_err(store_failure)?;
    let snapshot = store.snapshot(SNAPSHOT_LIMIT).await.map_err(|error| {
        Failure::unexpected("snapshot", "Redis can't be asked for a snapshot").because(error).hint(
            "the user needs `+bgsave`; where the command doesn't exist, take your provider's snapshot",
        )
    })?;
    copy_snapshot(&snapshot, folder, manifest)?;
    manifest.redis = Some(snapshot.position);
    Ok(())
}

/// Copies results that aren't part of the store, or names them.
async fn copy_results(
    store: &StoreUrl,
    results: Option<&ResultsUrl>,
    folder: &Path,
    manifest: &mut BackupManifest,
) -> Result<(), Failure> {
    let is_separate = |path: &PathBuf| match store {
        // However it is spelled.
        StoreUrl::Sqlite(same) => fs::canonicalize(same).ok() != fs::canonicalize(path).ok(),
        StoreUrl::Redis(_) => true,
    };
    match results {
        Some(ResultsUrl::Sqlite(path)) if is_separate(path) => {
            copy_database(path, folder, RESULTS_FILE, manifest).await?;
        }
        Some(ResultsUrl::ClickHouse(_)) => manifest.not_copied.push(
            "the results in ClickHouse: use its own BACKUP DATABASE, after this command".to_owned(),
        ),
        None if has_used_outbox(&folder.join(STORE_FILE))? => manifest.not_copied.push(
            "results that the relay keeps, or kept, elsewhere: `crcr relay backup` needs the relay's `CRCR_RESULTS`"
                .to_owned(),
        ),
        Some(ResultsUrl::Sqlite(_)) | None => {}
    }
    Ok(())
}

/// Whether facts have ever waited in this copy of a store to be copied to results elsewhere. SQLite remembers the last id
/// of the outbox, also when that is empty again.
fn has_used_outbox(copy: &Path) -> Result<bool, Failure> {
    const SQL: &str = "SELECT count(*) > 0 FROM sqlite_sequence WHERE name = 'outbox'";
    let store = SqliteStore::read_only(copy).map_err(store_failure)?;
    let found =
        store.slow_readers().with(|connection| connection.query_row(SQL, [], |row| row.get(0)));
    found.map_err(store_failure)
}

async fn copy_database(
    from: &Path,
    folder: &Path,
    name: &str,
    manifest: &mut BackupManifest,
) -> Result<(), Failure> {
    if !has_bytes(from) {
        let what = format!("no database exists at `{}`", from.display());
        return Err(Failure::user("store", what)
            .hint("use the values of the relay's `--store` and `--results`"));
    }
    let (from, to) = (from.to_owned(), folder.join(name));
    let copied = tokio::task::spawn_blocking({
        let to = to.clone();
        move || sqlite::copy_database(&from, &to)
    });
    let what = "the database can't be copied";
    copied.await.map_err(|error| Failure::unexpected("backup", what).because(error))?.map_err(
        |error| {
            Failure::unexpected("backup", what).because(match error {
                // Perhaps it is the copy's disk that is full, and not the store's.
                StoreError::Unavailable(why) => anyhow::Error::msg(why),
                other => other.into(),
            })
        },
    )?;
    manifest.files.push(describe(&to, name)?);
    Ok(())
}

/// Copies the file that Redis has written, if it is on this machine. Another server's file may be at the same path
/// here.
fn copy_snapshot(
    snapshot: &RedisSnapshot,
    folder: &Path,
    manifest: &mut BackupManifest,
) -> Result<(), Failure> {
    let started = manifest.backup_at;
    let named = snapshot.path.as_deref();
    let written = named.filter(|path| is_written_since(path, started));
    let own = match written {
        Some(path) => contains(path, snapshot.position.epoch.as_bytes())
            .map_err(|error| folder_failure(path, error))?
            .then_some(path),
        None => None,
    };
    let Some(path) = own else {
        let file = named.map_or("its snapshot".to_owned(), |path| format!("`{}`", path.display()));
        manifest.not_copied.push(format!(
            "Redis: copy {file} from its machine now; with its own sha256sum beside it it can be checked"
        ));
        return Ok(());
    };
    let to = folder.join(REDIS_FILE);
    let copied = fs::copy(path, &to).and_then(|_| File::open(&to)?.sync_all());
    copied.map_err(|error| {
        Failure::unexpected("backup", format!("`{}` can't be copied", path.display()))
            .because(error)
    })?;
    check_snapshot(&to)?;
    manifest.files.push(describe(&to, REDIS_FILE)?);
    Ok(())
}

fn is_written_since(path: &Path, started: Timestamp) -> bool {
    let written = path.metadata().and_then(|meta| meta.modified());
    let written = written.ok().and_then(|at| Timestamp::try_from(at).ok());
    // File systems store whole seconds at worst.
    written.is_some_and(|at| at + Duration::from_secs(2) >= started)
}

/// Whether a file has these bytes somewhere.
fn contains(path: &Path, wanted: &[u8]) -> io::Result<bool> {
    let (mut file, mut buffer) = (File::open(path)?, vec![0; 1 << 20]);
    let (size, mut kept) = (wanted.len().max(1), 0);
    loop {
        let count = file.read(&mut buffer[kept..])?;
        let filled = kept + count;
        if buffer[..filled].windows(size).any(|part| part == wanted) {
            return Ok(true);
        }
        if count == 0 {
            return Ok(false);
        }
        // They may begin at the end of this part.
        kept = filled.min(size - 1);
        buffer.copy_within(filled - kept..filled, 0);
    }
}

/// A snapshot begins with `REDIS` and a version, and ends with 0xff and a checksum of eight bytes.
pub(crate) fn check_snapshot(path: &Path) -> Result<(), Failure> {
    let bad = || {
        let what = format!("`{}` isn't a whole snapshot of Redis", path.display());
        Failure::unexpected("damaged", what).hint("`redis-check-rdb` says more")
    };
    let mut file = File::open(path).map_err(|error| folder_failure(path, error))?;
    let mut start = [0; 9];
    file.read_exact(&mut start).map_err(|_| bad())?;
    io::Seek::seek(&mut file, io::SeekFrom::End(-9)).map_err(|_| bad())?;
    let mut end = [0; 9];
    file.read_exact(&mut end).map_err(|_| bad())?;
    let is_whole = start.starts_with(b"REDIS") && end[0] == 0xff;
    is_whole.then_some(()).ok_or_else(bad)
}

pub(crate) fn describe(path: &Path, name: &str) -> Result<BackupFile, Failure> {
    let read = || -> io::Result<(u64, String)> {
        let mut file = File::open(path)?;
        let mut context = digest::Context::new(&digest::SHA256);
        let (mut bytes, mut buffer) = (0, vec![0; 1 << 20]);
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok((bytes, hex::encode(context.finish()))),
                count => {
                    context.update(&buffer[..count]);
                    bytes += count as u64;
                }
            }
        }
    };
    let (bytes, sha256) = read().map_err(|error| folder_failure(path, error))?;
    Ok(BackupFile { name: name.to_owned(), bytes, sha256 })
}

/// A folder of this name may be one that somebody needs.
fn expect_unfinished_backup(partial: &Path) -> Result<(), Failure> {
    // SQLite has further files beside a database, whose names begin like its own.
    let is_of_backup = |name: &str| {
        name.starts_with(STORE_FILE)
            || name.starts_with(RESULTS_FILE)
            || [REDIS_FILE, MANIFEST].contains(&name)
    };
    let names = || -> io::Result<Vec<OsString>> {
        fs::read_dir(partial)?.map(|entry| Ok(entry?.file_name())).collect()
    };
    let names = names().map_err(|error| folder_failure(partial, error))?;
    match names.iter().find(|name| !name.to_str().is_some_and(is_of_backup)) {
        None => Ok(()),
        Some(other) => {
            let (folder, other) = (partial.display(), other.display());
            let what = format!("`{folder}` has `{other}`, so it isn't left over from a backup");
            Err(Failure::user("folder", what).hint("move it away, or name another folder"))
        }
    }
}

/// Makes a folder that only this user can enter: payloads of private repositories may be in it.
pub(crate) fn create_private(folder: &Path) -> io::Result<()> {
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// The lock of a backup that isn't finished: another one into the same folder would remove it. `None` where folders can't
/// be locked, such as on some network file systems.
fn locked(partial: &Path) -> Result<Option<File>, Failure> {
    let Ok(folder) = File::open(partial) else { return Ok(None) };
    match folder.try_lock() {
        Ok(()) => Ok(Some(folder)),
        Err(TryLockError::WouldBlock) => {
            let what = format!("another backup is writing to `{}`", partial.display());
            Err(Failure::user("folder", what).hint("wait for its end, or name another folder"))
        }
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Writes the manifest, and gives the folder its name once everything in it is on disk.
fn finish(partial: &Path, folder: &Path, manifest: &BackupManifest) -> Result<(), Failure> {
    let text = serde_json::to_vec_pretty(manifest).expect("a manifest is always JSON");
    let written = || -> io::Result<()> {
        let path = partial.join(MANIFEST);
        fs::write(&path, text)?;
        File::open(&path)?.sync_all()?;
        sync_folder(partial)?;
        fs::rename(partial, folder)?;
        sync_folder(folder.parent().filter(|it| *it != Path::new("")).unwrap_or(Path::new(".")))
    };
    written().map_err(|error| folder_failure(folder, error))
}

/// So that a power cut doesn't lose a new name.
#[cfg(unix)]
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(not(unix))]
pub(crate) fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

fn partial_of(folder: &Path) -> PathBuf {
    let mut name = folder.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    folder.with_file_name(name)
}

pub(crate) fn folder_failure(path: &Path, error: io::Error) -> Failure {
    let is_full = error.kind() == io::ErrorKind::StorageFull;
    let failure =
        Failure::user("folder", format!("`{}` can't be used", path.display())).because(error);
    if is_full { failure.hint("make space on its disk, or name another place") } else { failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disk_has_a_hint_and_a_wrong_path_speaks_for_itself() {
        let hint = |kind: io::ErrorKind| {
            folder_failure(Path::new("copy"), kind.into()).help().map(str::to_owned)
        };
        assert!(hint(io::ErrorKind::StorageFull).unwrap().contains("make space"));
        assert_eq!(hint(io::ErrorKind::NotADirectory), None);
    }

    #[test]
    fn snapshot_of_another_server_at_the_same_path_is_named_and_not_copied() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dump.rdb");
        let position = RedisPosition { epoch: "0123456789abcdef".repeat(2), sequence: 7 };
        let snapshot = RedisSnapshot { position, path: Some(path.clone()) };
        for (epoch, is_copied) in [(snapshot.position.epoch.clone(), true), ("5".repeat(32), false)]
        {
            let mut bytes = b"REDIS0011".to_vec();
            // It lies across two parts of what is read.
            bytes.resize((1 << 20) - 9, b'.');
            bytes.extend(epoch.bytes());
            bytes.extend([0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
            fs::write(&path, bytes).unwrap();
            let mut manifest = BackupManifest {
                format: FORMAT,
                backup_at: now(),
                crcr: String::new(),
                files: vec![],
                redis: None,
                not_copied: vec![],
            };
            copy_snapshot(&snapshot, folder.path(), &mut manifest).unwrap();
            let found = (manifest.files.len(), manifest.not_copied.len());
            assert_eq!(found, if is_copied { (1, 0) } else { (0, 1) }, "{manifest:?}");
        }
    }
}
