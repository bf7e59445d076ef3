//! `/crcr/deliveries`, for operators: deliveries, their dispatches, and dead tasks.

use std::collections::BTreeMap;

use crcr_hud::View;
use crcr_hud::layout::{commit_link, time};
use crcr_store::TaskView;
use maud::{Markup, html};

use crate::admin::HOME;
use crate::admin::dead_letters::DeadLetterGroup;
use crate::admin::deliveries::{DeliveryBoard, DeliveryOverview, LISTED, MAX_LISTED};
use crate::repository_pins::Pin;

/// `note` is the result of the last button.
pub(crate) fn page(
    view: &View<'_>,
    board: &DeliveryBoard,
    note: Option<&str>,
    can_log_out: bool,
) -> Markup {
    view.shell(
        "Deliveries",
        note.is_none(),
        &html! {
            div.title {
                h1 { "Deliveries" }
                @if can_log_out {
                    form method="post" action="/crcr/logout" { button.quiet { "Log out" } }
                }
            }
            @if let Some(note) = note { p.note role="status" { (note) } }
            dl.cards {
                div { dt { "Waiting" } dd { (board.depth.ready) } }
                div { dt { "Worked on" } dd { (board.depth.leased) } }
                div { dt { "Coming again" } dd { (board.retries.len()) } }
                div { dt { "Given up" } dd.outcome.bad[board.depth.dead > 0] { (board.depth.dead) } }
            }
            @if !board.changed_repositories.is_empty() {
                section aria-labelledby="changed" {
                    h2 #changed { "Names that belong to another repository" }
                    p { "Their dispatches and reports are refused. Confirm only what its owners told you." }
                    (changed(&board.changed_repositories))
                }
            }
            section aria-labelledby="dead" {
                div.title {
                    h2 #dead { "Given up" }
                    @if !board.given_up.is_empty() {
                        form method="post" action=(HOME) {
                            button name="all" value="true" { "Try all of them again" }
                        }
                    }
                }
                @if board.given_up.is_empty() { p.muted { "Nothing was given up." } }
                @else { (given_up(&board.given_up)) }
            }
            section aria-labelledby="retries" {
                h2 #retries { "Coming again" }
                @if board.retries.is_empty() { p.muted { "No task waits for another try." } }
                @else { (coming_again(&board.retries)) }
            }
            section aria-labelledby="webhooks" {
                h2 #webhooks { "Webhooks" }
                @if board.deliveries.is_empty() { p.muted { "None was accepted in the last 35 days." } }
                @else {
                    div.scroll tabindex="0" role="region" aria-label="Table of webhooks" { table {
                        thead { tr {
                            th scope="col" { "Delivery" } th scope="col" { "When" } th scope="col" { "Event" }
                            th scope="col" { "Dispatches" } th scope="col" { span.hidden { "Redeliver" } }
                        } }
                        tbody { @for overview in &board.deliveries { (delivery(overview)) } }
                    } }
                    @if board.deliveries.len() == LISTED {
                        p.pager { a href=(format!("{HOME}?limit={MAX_LISTED}")) { "The newest " (MAX_LISTED) } }
                    }
                }
            }
        },
    )
}

fn changed(pins: &[Pin]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Table of names that belong to another repository" { table {
            thead { tr {
                th scope="col" { "Repository" } th scope="col" { "Number" }
                th scope="col" { "Number now" } th scope="col" { "Seen" }
                th scope="col" { span.hidden { "Confirm" } }
            } }
            tbody { @for pin in pins { @if let Some(change) = &pin.changed { tr {
                th scope="row" { bdi { (pin.repo) } }
                td { (pin.repository_id) }
                td { (change.repository_id) }
                td { (time(change.seen_at)) }
                td { form method="post" action="/crcr/repositories" {
                    input type="hidden" name="repo" value=(pin.repo);
                    button name="repository_id" value=(change.repository_id) { "Confirm" }
                } }
            } } } }
        } }
    }
}

/// One row for each cause at each repository.
fn given_up(groups: &[DeadLetterGroup]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Table of what was given up" { table {
            thead { tr {
                th scope="col" { "Task" } th scope="col" { "How many" } th scope="col" { "Since" }
                th scope="col" { "Last error" } th scope="col" { span.hidden { "Again" } }
            } }
            tbody { @for group in groups { tr {
                th scope="row" {
                    (group.kind.replace('_', " "))
                    div.detail { code { @match &group.repository {
                        Some(repository) if group.count > 1 => (repository),
                        _ => (parts(&group.key)),
                    } } }
                }
                td { (group.count) }
                td { (time(group.oldest)) }
                td.message { bdi { (group.cause) } }
                td { form method="post" action=(HOME) {
                    @if group.count == 1 {
                        button name="task" value=(group.key) { "Try again" } " "
                        button.quiet name="discard" value=(group.key) { "Discard" }
                    } @else if let Some(repository) = &group.repository {
                        button.quiet name="discard_repository" value=(repository) {
                            "Discard all of " (repository)
                        }
                    }
                } }
            } } }
        } }
    }
}

fn coming_again(tasks: &[TaskView]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Table of what comes again" { table {
            thead { tr {
                th scope="col" { "Task" } th scope="col" { "Tries" } th scope="col" { "Next try" }
                th scope="col" { "Last error" }
            } }
            tbody { @for task in tasks { tr {
                th scope="row" { (task.kind().replace('_', " ")) div.detail { code { (parts(&task.key)) } } }
                td { (task.failed) }
                td { (time(task.due_at)) }
                td.message { bdi { (task.last_error.as_deref().unwrap_or("–")) } }
            } } }
        } }
    }
}

/// A task's key without its kind, for display.
fn parts(key: &str) -> String {
    match serde_json::from_str::<Vec<String>>(key) {
        Ok(parts) => parts.get(1..).unwrap_or_default().join(" "),
        Err(_) => key.to_owned(),
    }
}

fn delivery(overview: &DeliveryOverview) -> Markup {
    let delivery = &overview.delivery;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for dispatch in &overview.dispatches {
        *counts.entry(dispatch.status.as_str()).or_default() += 1;
    }
    let failed = overview.dispatches.iter().filter(|dispatch| dispatch.status.can_be_redelivered());
    let failed: Vec<_> = failed.collect();
    html! {
        tr {
            th scope="row" { code { (delivery.id) } }
            td { (time(delivery.received_at)) }
            td {
                (delivery.event)
                @if let Some(number) = delivery.pull_request { " " a href=(format!("/pr/{number}")) { "#" (number) } }
                @if !delivery.head_sha.is_empty() { " " (commit_link(&delivery.head_sha)) }
                @if let Some(by) = &delivery.superseded_by { div.detail { "replaced by " code { (by) } } }
            }
            td.message {
                @if counts.is_empty() { span.muted { "none" } }
                @for (status, count) in &counts { span.tag { (count) " " (status) } " " }
                @if !failed.is_empty() {
                    ul.plain.detail { @for dispatch in &failed { li {
                        bdi { (dispatch.repo) } ": " (dispatch.status.as_str()) ", " (dispatch.tries) " tries"
                        @if let Some(error) = &dispatch.last_error { " – " bdi { (error) } }
                    } } }
                }
            }
            td { @if !failed.is_empty() {
                form method="post" action=(HOME) {
                    button name="delivery" value=(delivery.id) { "Redeliver" }
                }
            } }
        }
    }
}
