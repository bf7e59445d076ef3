//! `crcr relay restore`: puts a backup back, and says what it lacks.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use crcr_relay::config::StoreUrl;
use crcr_relay::restore::{RestoreRecord, ResumedWork, mark_restored};
use crcr_results::ResultsUrl;
use crcr_store::redis::RedisPosition;
use crcr_store::{RedisStore, RedisUrl, StateStore, StoreError, sqlite};
use jiff::Timestamp;
use serde_json::json;

use super::backup::{
    BackupFile, BackupManifest, FORMAT, MANIFEST, REDIS_FILE, RESULTS_FILE, STORE_FILE,
    check_snapshot, describe, folder_failure, sync_folder,
};
use super::{named_results, now, open_store, store_failure, store_url};
use crate::cli::DataFormat;
use crate::cli::relay::RestoreArgs;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

const MAX_MANIFEST_BYTES: u64 = 1 << 20;

pub async fn run(args: &RestoreArgs, env: &Env, printer: &Printer) -> Outcome {
    let (opened, restored) = match (&args.folder, args.since) {
        (_, Some(since)) => {
            if since >= now() {
                return Err(Failure::user("since", "`--since` isn't in the past"));
            }
            expect_no_relay(args, env)?;
            let restored = RestoredStore { backup_at: since, not_copied: vec![] };
            (open_store(&args.store, env).await?, restored)
        }
        (Some(folder), None) => {
            let manifest = read_manifest(folder)?;
            for file in &manifest.files {
                check(folder, file)?;
            }
            if args.check {
                let at = manifest.backup_at;
                match args.format {
                    DataFormat::Json => printer.data_line(&json!(manifest).to_string()),
                    DataFormat::Text => {
                        printer.data_line(&format!("whole: everything until {at:.0}"));
                    }
                }
                return Ok(ExitCode::SUCCESS);
            }
            put_back(args, folder, manifest, env).await?
        }
        (None, None) => return Err(Failure::unexpected("folder", "no backup is named")),
    };
    let resumed =
        mark_restored(opened.as_ref(), restored.backup_at, now()).await.map_err(store_failure)?;
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

/// A relay that runs would send dispatches again whose jobs it hears of. One on Redis can't be seen from here.
fn expect_no_relay(args: &RestoreArgs, env: &Env) -> Result<(), Failure> {
    let StoreUrl::Sqlite(path) = store_url(&args.store, env)? else { return Ok(()) };
    match path.exists().then(|| sqlite::expect_no_server(&path)) {
        Some(Err(StoreError::InUse(_))) => {
            let what = format!("a relay is using `{}`", path.display());
            Err(Failure::user("in-use", what).hint("stop it, run this again, and start it"))
        }
        _ => Ok(()),
    }
}

struct RestoredStore {
    backup_at: Timestamp,
    not_copied: Vec<String>,
}

/// Puts the files in their places, all or none, and opens the store.
async fn put_back(
    args: &RestoreArgs,
    folder: &Path,
    manifest: BackupManifest,
    env: &Env,
) -> Result<(Arc<dyn StateStore>, RestoredStore), Failure> {
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
    // Before anything is written.
    let on_redis: Option<Arc<dyn StateStore>> = match &store {
        StoreUrl::Redis(url) => Some(Arc::new(open_redis(url, manifest.redis.as_ref()).await?)),
        StoreUrl::Sqlite(_) => None,
    };
    // The results come first: while the store is missing, no relay can start on half a restore.
    for (done, (name, path)) in places.iter().enumerate() {
        place(&folder.join(name), path).inspect_err(|_| {
            for (_, placed) in &places[..done] {
                let _ = fs::remove_file(placed);
            }
        })?;
    }
    let opened = match on_redis {
        Some(store) => store,
        // As a tool and not as a server, which would take facts out of the outbox that belong to other results.
        None => open_store(&args.store, env).await?,
    };
    Ok((opened, RestoredStore { backup_at: manifest.backup_at, not_copied: manifest.not_copied }))
}

fn print_text(
    restored: &RestoredStore,
    resumed: ResumedWork,
    lost: Option<(Timestamp, Timestamp)>,
    env: &Env,
    printer: &Printer,
) {
    let backup_at = restored.backup_at;
    let ResumedWork { waiting, sent_again, without_body } = resumed;
    printer.data_line(&format!("restored: everything until {backup_at:.0}"));
    printer.data_line(&format!(
        "dispatches: {waiting} wait to be sent, {sent_again} were open and are sent again five minutes from now"
    ));
    if without_body > 0 {
        printer.data_line(&format!(
            "dispatches: {without_body} were open, and their payload isn't stored any more: press \"Re-run\" on \
             their check runs"
        ));
    }
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
    for what in &restored.not_copied {
        printer.data_line(&format!("not in the backup: {what}"));
    }
    // Only whether there is an archive matters here, so `CRCR_ARCHIVE_FILE` needn't be readable.
    if !matches!(env.setting(env_vars::CRCR_ARCHIVE), Ok(None)) {
        printer.data_line(&format!(
            "webhooks as rows: `crcr relay replay --from {backup_at:.0}` reads them from the archive"
        ));
    }
}

fn read_manifest(folder: &Path) -> Result<BackupManifest, Failure> {
    let path = folder.join(MANIFEST);
    let broken = |what: String| {
        Failure::user("backup", what).hint("name the folder that `crcr relay backup` made")
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
        return Err(Failure::user("backup", what).hint("restore it with that version"));
    }
    Ok(manifest)
}

/// Whether a file of the backup is what was written, and this crcr can read it.
fn check(folder: &Path, file: &BackupFile) -> Result<(), Failure> {
    if ![STORE_FILE, RESULTS_FILE, REDIS_FILE].contains(&file.name.as_str()) {
        let what =
            format!("the backup names a file `{}` that this version doesn't know", file.name);
        return Err(Failure::user("backup", what).hint("restore it with the version that made it"));
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
        Failure::unexpected("damaged", format!("`{}` can't be used", path.display())).because(error)
    })
}

fn expect_nothing_at(path: &Path) -> Result<(), Failure> {
    for end in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        let beside = PathBuf::from(name);
        if beside.exists() {
            let what = format!("`{}` exists, and a restore never overwrites", beside.display());
            return Err(Failure::user("exists", what)
                .hint("stop the relay, and move that file and those beside it away"));
        }
    }
    Ok(())
}

/// Copies a file so that it is either there and whole, or not there.
fn place(from: &Path, to: &Path) -> Result<(), Failure> {
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let folder = to.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let copied = fs::create_dir_all(folder)
        .and_then(|()| fs::copy(from, &partial))
        .and_then(|_| File::options().write(true).open(&partial)?.sync_all())
        .and_then(|()| fs::rename(&partial, to))
        .and_then(|()| sync_folder(folder));
    copied.map_err(|error| {
        // Whatever of it was written is of no use.
        let _ = fs::remove_file(&partial);
        folder_failure(to, error)
    })
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
        return Err(Failure::user("redis", what).hint(
            "start it with the backup's snapshot: with `appendonly yes` it reads its file of changes instead; \
             docs/operating/back-up.md has the steps",
        ));
    }
    Ok(store)
}
