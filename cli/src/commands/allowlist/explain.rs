//! `crcr allowlist explain`: what a repository receives, what is shown, what blocks a merge, and why.

use std::fmt::Write as _;
use std::process::ExitCode;

use crcr_domain::{AllowlistEntry, CheckRunPolicy, EventKind, Level, RepoName};
use serde_json::json;

use crate::cli::DataFormat;
use crate::cli::allowlist::{ExplainArgs, ExplainEvent};
use crate::commands::allowlist_file::AllowlistFile;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

/// Whether a repository has one of the rights for an event, and why.
struct GrantedRight {
    key: &'static str,
    title: &'static str,
    yes: bool,
    why: String,
}

/// Prints the explanation to stdout. Exit code 1 if the repository isn't listed.
pub fn run(args: &ExplainArgs, printer: &Printer) -> Outcome {
    let input = AllowlistFile::read(args.file.name())?;
    let outcome = input.parse_valid(&args.file.upstream, printer)?;
    let Some(at) = outcome.policy.position(&args.repo) else {
        return Err(not_listed(&args.repo, &input.name, &args.file.upstream));
    };
    let place = outcome.places[at].repo.start;
    let place = format!("{}:{}:{}", input.name, place.line, place.column);
    let Some(entry) = outcome.policy.get(&args.repo) else {
        return Err(not_listed(&args.repo, &input.name, &args.file.upstream));
    };
    let rights = granted_rights(entry, args.event, &args.label);
    match args.format {
        DataFormat::Text => printer.data_text(&text(entry, args, &place, &rights)),
        DataFormat::Json => {
            let mut document = json!({
                "version": 1,
                "repository": entry.repo,
                "level": entry.level,
                "device": entry.device,
                "oncalls": entry.oncalls,
                "events": entry.events,
                "event": args.event.name(),
                "labels": args.label,
                "listed_at": place,
            });
            for right in &rights {
                document[right.key] = json!({"value": right.yes, "why": right.why});
            }
            printer.data_json(&format!("{document:#}\n"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn not_listed(repo: &RepoName, file: &str, upstream: &RepoName) -> Failure {
    if repo == upstream {
        return Failure::user("not-listed", format!("`{repo}` is the upstream repository itself"))
            .hint("the listed repositories receive its events");
    }
    Failure::user("not-listed", format!("`{repo}` isn't listed in `{file}`"))
        .hint("it receives nothing and its reports are refused; to take part, add it at L1")
}

impl ExplainEvent {
    fn name(self) -> &'static str {
        match self {
            Self::PullRequest => "pull_request",
            Self::Push => "push",
            Self::MergeGroup => "merge_group",
            Self::Nightly => "nightly",
            Self::Periodic => "periodic",
        }
    }

    fn kind(self) -> EventKind {
        match self {
            Self::PullRequest | Self::Push => EventKind::PullRequest,
            Self::MergeGroup => EventKind::MergeGroup,
            Self::Nightly | Self::Periodic => EventKind::Nightly,
        }
    }
}

fn granted_rights(
    entry: &AllowlistEntry,
    event: ExplainEvent,
    labels: &[String],
) -> [GrantedRight; 4] {
    let (level, name) = (entry.level, event.name());
    let subscribed = match event {
        ExplainEvent::MergeGroup => entry.takes_merge_groups(),
        _ => entry.events.contains(event.kind()),
    };
    let started_there = event.kind() == EventKind::Nightly;
    let receives = subscribed && !started_there;
    let why_receives = if !subscribed && event == ExplainEvent::MergeGroup {
        format!("below L4 only repositories that list `{name}` in `events` get it")
    } else if !subscribed {
        format!("its `events` don't include `{}`", event.kind())
    } else if event == ExplainEvent::MergeGroup {
        "L4 always gets it, and so does everyone who lists it in `events`".to_owned()
    } else if started_there {
        format!("`{name}` isn't dispatched: the repository starts these runs itself")
    } else {
        format!("every level receives `{name}`")
    };
    let shown = level.shows_results() && subscribed;
    let why_shown = if !subscribed {
        format!("its `events` don't include `{}`", event.kind())
    } else if level.shows_results() {
        format!("results are shown from L2 on, and it is at {level}")
    } else {
        format!("results are shown from L2 on, and it is at {level}, so its reports are ignored")
    };
    let (check, why_check) = match event {
        ExplainEvent::MergeGroup if subscribed && entry.level >= Level::L3 => {
            (true, "the merge queue waits for checks on the group's own commit".to_owned())
        }
        ExplainEvent::MergeGroup => {
            (false, "check runs need L3 and a subscription to the event".to_owned())
        }
        _ => check_run(entry, event == ExplainEvent::PullRequest, name, labels),
    };
    let blocks = check && level.blocks_merge();
    let why_blocks = if blocks {
        "a failing check run at L4 blocks if upstream requires the check".to_owned()
    } else if level.blocks_merge() {
        "there is no check run that could block".to_owned()
    } else {
        format!("only L4 blocks, and it is at {level}")
    };
    [
        right("receives_event", "receives the event", receives, why_receives),
        right("shown_on_hud", "shown on the HUD", shown, why_shown),
        right("check_run", "check run", check, why_check),
        right("blocks_merge", "blocks the merge", blocks, why_blocks),
    ]
}

fn right(key: &'static str, title: &'static str, yes: bool, why: String) -> GrantedRight {
    GrantedRight { key, title, yes, why }
}

fn check_run(
    entry: &AllowlistEntry,
    on_pull_request: bool,
    event: &str,
    labels: &[String],
) -> (bool, String) {
    if !entry.events.contains(EventKind::PullRequest) {
        return (false, "its `events` don't include `pull_request`".to_owned());
    }
    if !on_pull_request {
        return (false, format!("`{event}` has no pull request"));
    }
    let label = entry.device.as_ref().map(|device| device.label()).unwrap_or_default();
    let labelled = labels.iter().any(|given| given.eq_ignore_ascii_case(&label));
    let why = match entry.check_run() {
        CheckRunPolicy::Never => format!("check runs begin at L3, and it is at {}", entry.level),
        CheckRunPolicy::Always => "L4 always gets one".to_owned(),
        CheckRunPolicy::WhenLabelled if labelled => {
            format!("the pull request has the label `{label}`")
        }
        CheckRunPolicy::WhenLabelled => {
            format!("at L3 only if the pull request has the label `{label}`")
        }
    };
    (entry.check_run().applies(labelled), why)
}

fn text(
    entry: &AllowlistEntry,
    args: &ExplainArgs,
    place: &str,
    rights: &[GrantedRight],
) -> String {
    let mut out = format!("{} is at {} ({})", entry.repo, entry.level, entry.level.title());
    if let Some(device) = &entry.device {
        let _ = write!(out, ", device {device}");
    }
    let _ = writeln!(out, ", listed at {place}");
    let labels = match args.label.as_slice() {
        [] => "without labels".to_owned(),
        labels => format!("with {}", labels.join(", ")),
    };
    let event = args.event.name();
    let _ = match args.event {
        ExplainEvent::PullRequest => writeln!(out, "For a `{event}` {labels}:"),
        _ => writeln!(out, "For a `{event}`:"),
    };
    for GrantedRight { title, yes, why, .. } in rights {
        let _ = writeln!(out, "  {title:18}  {:3}  {why}", if *yes { "yes" } else { "no" });
    }
    let names: Vec<_> = entry.oncalls.iter().map(ToString::to_string).collect();
    let oncalls = if names.is_empty() { "nobody".to_owned() } else { names.join(", ") };
    let _ = writeln!(out, "  {:18}  {oncalls}", "oncall");
    out
}
