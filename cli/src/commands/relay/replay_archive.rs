//! `crcr relay replay --from`: archived webhooks become rows of the results again.

use std::mem;
use std::process::ExitCode;

use crcr_aws::object_store::ObjectStore;
use crcr_cidata::webhook_archive::{ArchiveError, ArchivedWebhook, WebhookArchive};
use crcr_domain::RepoName;
use crcr_domain::ci_data::webhook::{WebhookRow, is_private};
use crcr_domain::results::facts::{Fact, MergeBaseFact};
use crcr_results::Results;
use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::{create_results, results_failure};
use crate::cli::relay::ReplayArgs;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::plural;

/// Objects that are read at the same time. Each has at most 25 MB in memory.
const CONCURRENT_READS: usize = 16;
const ROWS_PER_WRITE: usize = 500;
/// Later bad objects are only counted.
const MAX_WARNINGS: u64 = 100;

/// Exit code 1 if an object can't be read; the others are replayed.
pub async fn run(args: &ReplayArgs, from: Timestamp, env: &Env, printer: &Printer) -> Outcome {
    let until = args.until.unwrap_or_else(Timestamp::now);
    if until <= from {
        return Err(Failure::user("until", "`--until` isn't after `--from`"));
    }
    let (archive, events) = open(args, env).await?;
    let private = match env.setting(env_vars::CRCR_JOB_LOGS)?.as_deref() {
        Some("all") => PrivateRows::All,
        _ => PrivateRows::Of(upstream(env)?),
    };
    let mut replay = ArchiveReplay::default();
    let results = match args.dry_run {
        true => None,
        false => Some(create_results(args.results.as_deref(), env).await?),
    };
    for day in days(from, until) {
        for event in &events {
            let keys = archive.keys(event, day).await.map_err(unreadable)?;
            let progress = printer.progress(&format!("{day} {event}"), keys.len() as u64);
            let mut webhooks = stream::iter(&keys)
                .map(|key| read_row(&archive, key, (from, until), &private))
                .buffer_unordered(CONCURRENT_READS);
            while let Some(read) = webhooks.next().await {
                progress.advance(1);
                replay.add(read, printer);
                if replay.rows.len() + replay.merge_bases.len() == ROWS_PER_WRITE {
                    replay.write(results.as_deref()).await?;
                }
            }
            progress.finish();
        }
    }
    replay.write(results.as_deref()).await?;
    let ArchiveReplay { webhooks, unreadable, .. } = replay;
    let done = match args.dry_run {
        true => plural(webhooks, "webhook can be replayed", "webhooks can be replayed"),
        false => plural(webhooks, "webhook was replayed", "webhooks were replayed"),
    };
    printer.data_line(&format!("{done}, {unreadable} can't be read"));
    Ok(if unreadable == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The archive, and the events whose webhooks are replayed.
async fn open(args: &ReplayArgs, env: &Env) -> Result<(WebhookArchive, Vec<String>), Failure> {
    let url = match &args.archive {
        Some(url) => Some(url.clone()),
        None => env.setting(env_vars::CRCR_ARCHIVE)?,
    };
    let url = url.ok_or_else(|| {
        Failure::user("archive", "no archive is named")
            .hint("set `--archive` or CRCR_ARCHIVE to the relay's archive")
    })?;
    let store = ObjectStore::open(&url)
        .await
        .map_err(|error| Failure::user("archive", "`--archive` can't be used").because(error))?;
    let archive = WebhookArchive::new(store);
    let mut events = archive.events().await.map_err(unreadable)?;
    if let Some(event) = &args.event {
        events.retain(|known| known == event);
    }
    if events.is_empty() {
        let what = match &args.event {
            Some(event) => format!("`{url}` has no webhook of the event `{event}`"),
            None => format!("`{url}` has no webhooks"),
        };
        return Err(
            Failure::user("archive", what).hint("give `--archive` exactly as the relay has it")
        );
    }
    Ok((archive, events))
}

/// What isn't written yet, and how much has been read.
#[derive(Default)]
struct ArchiveReplay {
    rows: Vec<WebhookRow>,
    merge_bases: Vec<Fact>,
    webhooks: u64,
    unreadable: u64,
}

impl ArchiveReplay {
    /// Takes an object of the archive, or warns that it can't be read.
    fn add(&mut self, read: Result<Option<ReplayedObject>, String>, printer: &Printer) {
        match read {
            Ok(Some(ReplayedObject::Webhook(row))) => {
                self.webhooks += 1;
                self.rows.push(row);
            }
            Ok(Some(ReplayedObject::MergeBase(fact))) => {
                self.merge_bases.push(Fact::MergeBase(fact));
            }
            Ok(None) => {}
            Err(what) => {
                self.unreadable += 1;
                if self.unreadable <= MAX_WARNINGS {
                    printer.warning(&what, None);
                }
            }
        }
    }

    async fn write(&mut self, results: Option<&dyn Results>) -> Result<(), Failure> {
        let (rows, facts) = (mem::take(&mut self.rows), mem::take(&mut self.merge_bases));
        let Some(results) = results else { return Ok(()) };
        results.append_webhooks(rows).await.map_err(results_failure)?;
        results.append(facts).await.map_err(results_failure)
    }
}

/// What an object of the archive becomes.
enum ReplayedObject {
    Webhook(WebhookRow),
    MergeBase(MergeBaseFact),
}

/// Private repositories whose webhooks become rows, as the relay itself decides it.
enum PrivateRows {
    All,
    Of(RepoName),
}

fn upstream(env: &Env) -> Result<RepoName, Failure> {
    let name = env.setting(env_vars::UPSTREAM_REPO)?;
    RepoName::new(name.as_deref().unwrap_or("pytorch/pytorch")).map_err(|error| {
        Failure::user("settings", "UPSTREAM_REPO isn't a repository").because(error)
    })
}

/// `None` if the webhook was received at another time of the day, or is of a private repository.
async fn read_row(
    archive: &WebhookArchive,
    key: &str,
    (from, until): (Timestamp, Timestamp),
    private: &PrivateRows,
) -> Result<Option<ReplayedObject>, String> {
    let webhook = archive.read(key).await.map_err(|error| match error {
        ArchiveError::Damaged { .. } => error.to_string(),
        error => format!("`{key}`: {error}"),
    })?;
    let ArchivedWebhook { head, body } = webhook;
    if head.key() != key {
        return Err(format!("`{key}` says that it is `{}`", head.key()));
    }
    if head.received_at < from || until <= head.received_at {
        return Ok(None);
    }
    let replayed = if head.event == MergeBaseFact::EVENT {
        serde_json::from_slice(&body)
            .map(ReplayedObject::MergeBase)
            .map_err(|error| error.to_string())
    } else {
        let row = WebhookRow::new(&head.event, &head.delivery, head.received_at, &body);
        if let (Ok(row), PrivateRows::Of(upstream)) = (&row, private)
            && is_private(&body)
            && !row.repository.eq_ignore_ascii_case(upstream.as_str())
        {
            return Ok(None);
        }
        row.map(ReplayedObject::Webhook).map_err(|error| error.to_string())
    };
    replayed.map(Some).map_err(|error| format!("`{key}`: {error}"))
}

/// The UTC days that the time span covers, at least in part.
fn days(from: Timestamp, until: Timestamp) -> impl Iterator<Item = Date> {
    let day = |time: Timestamp| time.to_zoned(TimeZone::UTC).date();
    let last = day(until);
    std::iter::successors(Some(day(from)), |day| day.tomorrow().ok())
        .take_while(move |day| *day <= last)
}

fn unreadable(error: ArchiveError) -> Failure {
    Failure::unexpected("archive-unreadable", "the archive can't be read").because(error)
}
