//! `crcr allowlist explain`: what a repository receives, what is shown, what blocks, and why.

use std::fmt::Write as _;
use std::process::ExitCode;

use crcr_domain::{CheckRun, Entry, EventKind, Level, RepoName};
use serde_json::json;

use super::input::Input;
use crate::cli::DataFormat;
use crate::cli::allowlist::{DEFAULT_FILE, EventName, ExplainArgs};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

/// One right of a repository for one event, and the reason.
struct Answer {
    key: &'static str,
    title: &'static str,
    yes: bool,
    why: String,
}

/// Prints the explanation to stdout. A repository that isn't listed is exit code 1.
pub fn run(args: &ExplainArgs, printer: &Printer) -> Outcome {
    let input = Input::read(args.file.as_deref().unwrap_or(DEFAULT_FILE))?;
    let outcome = input.parse_valid(&args.upstream, printer)?;
    let Some(at) = outcome.policy.position(&args.repo) else {
        return Err(not_listed(&args.repo, &input.name, &args.upstream));
    };
    let place = outcome.places[at].repo.start;
    let place = format!("{}:{}:{}", input.name, place.line, place.column);
    let Some(entry) = outcome.policy.get(&args.repo) else {
        return Err(not_listed(&args.repo, &input.name, &args.upstream));
    };
    let answers = answers(entry, args.event, &args.label);
    match args.format {
        DataFormat::Text => printer.data(&text(entry, args, &place, &answers)),
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
            for answer in &answers {
                document[answer.key] = json!({"value": answer.yes, "why": answer.why});
            }
            printer.data(&format!("{document:#}\n"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn not_listed(repo: &RepoName, file: &str, upstream: &RepoName) -> Failure {
    if repo == upstream {
        return Failure::user("not-listed", format!("`{repo}` is the upstream repository itself"))
            .hint("its events are what the listed repositories receive");
    }
    Failure::user("not-listed", format!("`{repo}` isn't listed in `{file}`")).hint(
        "it receives nothing and its reports are refused; it enters at L1, by a change of the file",
    )
}

impl EventName {
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

fn answers(entry: &Entry, event: EventName, labels: &[String]) -> [Answer; 4] {
    let (level, name) = (entry.level, event.name());
    let subscribed = match event {
        EventName::MergeGroup => entry.takes_merge_groups(),
        _ => entry.events.contains(event.kind()),
    };
    let started_there = event.kind() == EventKind::Nightly;
    let receives = subscribed && !started_there;
    let why_receives = if !subscribed && event == EventName::MergeGroup {
        format!("only L4 gets `{name}` unasked, and its `events` don't list it")
    } else if !subscribed {
        format!("its `events` leave `{}` out", event.kind())
    } else if event == EventName::MergeGroup {
        "L4 gets it, and who lists it in `events`".to_owned()
    } else if started_there {
        format!("nobody dispatches `{name}`: the repository starts these runs by itself")
    } else {
        format!("every level receives `{name}`")
    };
    let shown = level.shows_results() && subscribed;
    let why_shown = if !subscribed {
        format!("its `events` leave `{}` out", event.kind())
    } else if level.shows_results() {
        format!("results are shown from L2 on, and it is at {level}")
    } else {
        format!("results are shown from L2 on, and it is at {level}: its reports are ignored")
    };
    let (check, why_check) = match event {
        EventName::MergeGroup if subscribed && entry.level >= Level::L3 => {
            (true, "the queue waits for the checks of the group's own commit".to_owned())
        }
        EventName::MergeGroup => {
            (false, "check runs begin at L3, where it gets the event".to_owned())
        }
        _ => check_run(entry, event == EventName::PullRequest, name, labels),
    };
    let blocks = check && level.blocks_merge();
    let why_blocks = if blocks {
        "a failing check run at L4 blocks, where upstream requires it".to_owned()
    } else if level.blocks_merge() {
        "there is no check run that could".to_owned()
    } else {
        format!("only L4 blocks, and it is at {level}")
    };
    [
        answer("receives_event", "receives the event", receives, why_receives),
        answer("shown_on_hud", "shown on the HUD", shown, why_shown),
        answer("check_run", "check run", check, why_check),
        answer("blocks_merge", "blocks the merge", blocks, why_blocks),
    ]
}

fn answer(key: &'static str, title: &'static str, yes: bool, why: String) -> Answer {
    Answer { key, title, yes, why }
}

fn check_run(
    entry: &Entry,
    on_pull_request: bool,
    event: &str,
    labels: &[String],
) -> (bool, String) {
    if !entry.events.contains(EventKind::PullRequest) {
        return (false, "its `events` leave `pull_request` out".to_owned());
    }
    if !on_pull_request {
        return (false, format!("`{event}` has no pull request to put one on"));
    }
    let label = entry.device.as_ref().map(|device| device.label()).unwrap_or_default();
    let labelled = labels.iter().any(|given| given.eq_ignore_ascii_case(&label));
    let why = match entry.check_run() {
        CheckRun::Never => format!("check runs begin at L3, and it is at {}", entry.level),
        CheckRun::Always => "L4 always gets one".to_owned(),
        CheckRun::WhenLabelled if labelled => format!("the pull request carries `{label}`"),
        CheckRun::WhenLabelled => {
            format!("at L3 only when the pull request carries `{label}`")
        }
    };
    (entry.check_run().applies(labelled), why)
}

fn text(entry: &Entry, args: &ExplainArgs, place: &str, answers: &[Answer]) -> String {
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
        EventName::PullRequest => writeln!(out, "For a `{event}` {labels}:"),
        _ => writeln!(out, "For a `{event}`:"),
    };
    for Answer { title, yes, why, .. } in answers {
        let _ = writeln!(out, "  {title:18}  {:3}  {why}", if *yes { "yes" } else { "no" });
    }
    let names: Vec<_> = entry.oncalls.iter().map(ToString::to_string).collect();
    let whom = if names.is_empty() { "nobody".to_owned() } else { names.join(", ") };
    let _ = writeln!(out, "  {:18}  {whom}", "oncall");
    out
}
