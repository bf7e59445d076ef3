//! `crcr relay deliveries`: lists deliveries and dead letters, and redelivers them.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use crcr_domain::RepoName;
use crcr_relay::admin::dead_letters::{self, DeadLetterGroup};
use crcr_relay::admin::deliveries::{self, DeliveryOverview};
use crcr_store::StateStore;
use serde_json::json;

use super::{now, open_store, store_failure};
use crate::cli::DataFormat;
use crate::cli::relay::DeliveriesCommand;
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::plural;

pub async fn run(command: DeliveriesCommand, env: &Env, printer: &Printer) -> Outcome {
    match command {
        DeliveriesCommand::List { store, limit, format } => {
            list(&*open_store(&store, env).await?, limit, format, printer).await?;
        }
        DeliveriesCommand::Show { id, store, format } => {
            show(&*open_store(&store, env).await?, &id, format, printer).await?;
        }
        DeliveriesCommand::Discard { key: None, repo, store } => {
            let repo =
                repo.ok_or_else(|| Failure::user("repo", "neither a task nor `--repo` is named"))?;
            let store = open_store(&store, env).await?;
            let discarded = dead_letters::discard_of_repository(&*store, &repo).await;
            let count = discarded.map_err(store_failure)?;
            let tasks = plural(count, "task", "tasks");
            let were = if count == 1 { "was" } else { "were" };
            printer.data_line(&format!("{tasks} of `{repo}` {were} discarded"));
        }
        DeliveriesCommand::Discard { key: Some(key), store, .. } => {
            let store = open_store(&store, env).await?;
            if !store.discard_dead_task(&key).await.map_err(store_failure)? {
                return Err(Failure::user("task", format!("`{key}` isn't the key of a dead task"))
                    .hint("`crcr relay deliveries list` shows the keys of dead tasks"));
            }
            printer.data_line("1 task was discarded");
        }
        DeliveriesCommand::Redeliver { id, repo, store, .. } => {
            let lookup = |name: &str| env.get(name).map(str::to_owned);
            let keep = crcr_relay::config::status_ttl(&lookup).map_err(|problem| {
                Failure::user("settings", format!("{}: {}", problem.name, problem.what))
            })?;
            let store = open_store(&store, env).await?;
            match id {
                Some(id) => redeliver(&*store, &id, repo.as_ref(), keep, printer).await?,
                None => redeliver_all(&*store, keep, printer).await?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(
    store: &dyn StateStore,
    limit: usize,
    format: DataFormat,
    printer: &Printer,
) -> Result<(), Failure> {
    let found = deliveries::newest(store, limit).await.map_err(store_failure)?;
    let dead = deliveries::dead_letters(store, limit).await.map_err(store_failure)?;
    match format {
        DataFormat::Json => {
            printer.data_line(&json!({ "deliveries": found, "dead": dead }).to_string());
        }
        DataFormat::Text => {
            found.iter().for_each(|overview| printer.data_line(&summary_line(overview)));
            for group in dead_letters::groups(store).await.map_err(store_failure)? {
                printer.data_line(&group_line(&group));
            }
            if found.is_empty() && dead.is_empty() {
                printer.notice("no webhook is stored");
            }
        }
    }
    Ok(())
}

async fn show(
    store: &dyn StateStore,
    id: &str,
    format: DataFormat,
    printer: &Printer,
) -> Result<(), Failure> {
    let found = deliveries::delivery(store, id).await.map_err(store_failure)?;
    let overview = found.ok_or_else(|| unknown_delivery(id))?;
    let explanations = deliveries::explanations(store, &overview).await.map_err(store_failure)?;
    match format {
        DataFormat::Json => {
            let mut document = json!(overview);
            document["explanations"] = json!(explanations);
            printer.data_line(&document.to_string());
        }
        DataFormat::Text => {
            printer.data_line(&details_text(&overview));
            explanations.iter().for_each(|line| printer.data_line(&format!("  {line}")));
        }
    }
    Ok(())
}

async fn redeliver(
    store: &dyn StateStore,
    id: &str,
    repo: Option<&RepoName>,
    keep: Duration,
    printer: &Printer,
) -> Result<(), Failure> {
    if deliveries::delivery(store, id).await.map_err(store_failure)?.is_none() {
        return Err(unknown_delivery(id));
    }
    let redelivered = deliveries::redeliver(store, id, repo, now(), keep).await;
    let count = redelivered.map_err(store_failure)?;
    let dispatches = plural(count, "dispatch was", "dispatches were");
    printer.data_line(&format!("{dispatches} put back into the queue"));
    Ok(())
}

async fn redeliver_all(
    store: &dyn StateStore,
    keep: Duration,
    printer: &Printer,
) -> Result<(), Failure> {
    let all = deliveries::redeliver_all(store, now(), keep).await.map_err(store_failure)?;
    let tasks = plural(all.requeued, "task was", "tasks were");
    printer.data_line(&format!("{tasks} put back into the queue"));
    if all.too_old > 0 {
        let not_sent = plural(
            all.too_old,
            "dispatch of an event older than a day wasn't",
            "dispatches of events older than a day weren't",
        );
        let what_to_do = "redeliver by the id of the delivery, or discard";
        printer.data_line(&format!("{not_sent}: {what_to_do}"));
    }
    Ok(())
}

/// Dead letters of one cause.
fn group_line(group: &DeadLetterGroup) -> String {
    match &group.repository {
        Some(repository) if group.count > 1 => format!(
            "given up: {} tasks `{}` of {repository} since {:.0} ({})",
            group.count, group.kind, group.oldest, group.cause
        ),
        _ if group.count > 1 => format!(
            "given up: {} tasks `{}` since {:.0}, such as {} ({})",
            group.count, group.kind, group.oldest, group.key, group.cause
        ),
        _ => format!("given up: {} ({})", group.key, group.cause),
    }
}

fn unknown_delivery(id: &str) -> Failure {
    Failure::user("delivery", format!("no delivery `{id}` is stored"))
        .hint("`crcr relay deliveries list` shows the newest; they are kept for 35 days")
}

fn summary_line(overview: &DeliveryOverview) -> String {
    let delivery = &overview.delivery;
    let mut counts: Vec<(&str, usize)> = vec![];
    for dispatch in &overview.dispatches {
        let status = dispatch.status.as_str();
        match counts.iter_mut().find(|(known, _)| *known == status) {
            Some((_, count)) => *count += 1,
            None => counts.push((status, 1)),
        }
    }
    let counts: Vec<_> = counts.iter().map(|(status, count)| format!("{count} {status}")).collect();
    let about = match delivery.pull_request {
        Some(number) => format!("{} #{number}", delivery.event),
        None => delivery.event.clone(),
    };
    let counts = if counts.is_empty() { "no dispatch".to_owned() } else { counts.join(", ") };
    format!("{} {:.0} {about}: {counts}", delivery.id, delivery.received_at)
}

fn details_text(overview: &DeliveryOverview) -> String {
    let mut text = summary_line(overview);
    let _ = write!(text, "\nhead {}", overview.delivery.head_sha);
    if let Some(by) = &overview.delivery.superseded_by {
        let _ = write!(text, "\nsuperseded by {by}");
    }
    for dispatch in &overview.dispatches {
        let _ = write!(
            text,
            "\n  {} {} {} after {} {}",
            dispatch.level,
            dispatch.repo,
            dispatch.status.as_str(),
            dispatch.tries,
            if dispatch.tries == 1 { "try" } else { "tries" }
        );
        if let Some(error) = &dispatch.last_error {
            let _ = write!(text, ": {error}");
        }
    }
    text
}
