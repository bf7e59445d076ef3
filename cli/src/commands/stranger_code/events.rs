//! Which part of an event is of a stranger.

use super::expression::{expressions, overlaps};
use super::scope::ContextReach;

/// Events that anybody may cause, and whose runs are on the default branch with its rights.
pub const STRANGERS_EVENTS: [&str; 12] = [
    "pull_request_target",
    "workflow_run",
    "issue_comment",
    "issues",
    "discussion",
    "discussion_comment",
    "check_run",
    "check_suite",
    "status",
    "fork",
    "watch",
    "gollum",
];

/// Whether the event's runs have the repository's own rights, whoever wrote the code that they check out.
pub fn is_privileged(event: &str) -> bool {
    STRANGERS_EVENTS.contains(&event)
        || ["repository_dispatch", "schedule", "workflow_dispatch"].contains(&event)
}

/// Events of which runs for a fork have no secret and a token that only reads.
pub const FORKS: [&str; 3] = ["pull_request", "pull_request_review", "pull_request_review_comment"];

/// Where an event names a pull request, whatever the event.
const PULL_REQUEST: [&str; 4] =
    ["github.event.pull_request", "github.event.number", "github.event.after", "github.head_ref"];

/// Addresses of what a pull request changes.
pub const DIFFS: [&str; 3] = [
    "github.event.pull_request.diff_url",
    "github.event.pull_request.patch_url",
    "github.event.issue.pull_request",
];

/// Where a privileged event names a stranger's repository, commit or pull request.
fn code_of(event: &str) -> &'static [&'static str] {
    match event {
        "repository_dispatch" => &["github.event.client_payload"],
        "pull_request_target" => &[
            "github.event.pull_request.head",
            "github.event.pull_request.diff_url",
            "github.event.pull_request.patch_url",
            "github.event.pull_request.merge_commit_sha",
            "github.event.pull_request.number",
            "github.event.number",
            "github.event.after",
            "github.head_ref",
        ],
        "workflow_run" => &[
            "github.event.workflow_run.head_sha",
            "github.event.workflow_run.head_branch",
            "github.event.workflow_run.head_commit",
            "github.event.workflow_run.head_repository",
            "github.event.workflow_run.pull_requests",
        ],
        "issue_comment" | "issues" => &["github.event.issue", "github.event.comment"],
        "discussion" | "discussion_comment" => &["github.event.discussion", "github.event.comment"],
        "check_run" => &["github.event.check_run"],
        "check_suite" => &["github.event.check_suite"],
        "status" => &["github.event.sha", "github.event.commit", "github.event.branches"],
        "fork" => &["github.event.forkee"],
        _ => &[],
    }
}

/// Where an event holds text that a stranger wrote.
fn text_of(event: &str) -> &'static [&'static str] {
    match event {
        "repository_dispatch" => &["github.event"],
        "pull_request_target" => {
            &["github.event.pull_request", "github.event.changes", "github.head_ref"]
        }
        "workflow_run" => &["github.event.workflow_run"],
        "issue_comment" | "issues" => {
            &["github.event.issue", "github.event.comment", "github.event.changes"]
        }
        "discussion" | "discussion_comment" => {
            &["github.event.discussion", "github.event.comment", "github.event.changes"]
        }
        // Anybody may review a pull request of a branch, whose runs have the repository's rights.
        "pull_request_review" | "pull_request_review_comment" => {
            &["github.event.review", "github.event.comment", "github.event.changes"]
        }
        // Many wikis can be edited by anybody.
        "gollum" => &["github.event.pages"],
        // Messages and authors come from the pull requests that were merged.
        "push" => &["github.event.head_commit", "github.event.commits"],
        "merge_group" => &["github.event.merge_group.head_commit"],
        _ => code_of(event),
    }
}

/// The last names of texts that GitHub makes, or that only maintainers choose.
const HARMLESS: [&str; 37] = [
    "number",
    "id",
    "node_id",
    "sha",
    "head_sha",
    "merge_commit_sha",
    "before",
    "after",
    "action",
    "state",
    "status",
    "conclusion",
    "event",
    "draft",
    "merged",
    "mergeable",
    "locked",
    "fork",
    "private",
    "login",
    "type",
    "author_association",
    "created_at",
    "updated_at",
    "closed_at",
    "merged_at",
    "run_number",
    "run_attempt",
    "run_started_at",
    "workflow_id",
    "full_name",
    "path",
    "additions",
    "deletions",
    "changed_files",
    "tree_id",
    "timestamp",
];

/// Parts of an event that the repository's own people choose.
const OWN_PARTS: [&str; 5] = ["base", "labels", "milestone", "assignees", "requested_reviewers"];

pub fn is_code(reach: &ContextReach, events: &[String]) -> bool {
    events.iter().any(|event| reach.overlaps(code_of(event)))
}

/// Whether a value may hold text of a stranger that is more than a number, a hash or a name without quotes.
pub fn is_text(reach: &ContextReach, events: &[String]) -> bool {
    reach.paths.iter().any(|path| {
        events.iter().any(|event| {
            text_of(event).iter().any(|pattern| overlaps(path, pattern))
                // A payload has what its sender likes.
                && (event == "repository_dispatch" || !is_harmless(path))
        })
    })
}

/// The last names of texts that may have several lines, and of what holds such texts.
const OF_LINES: [&str; 16] = [
    "*",
    "body",
    "message",
    "description",
    "github",
    "event",
    "client_payload",
    "pull_request",
    "issue",
    "comment",
    "review",
    "discussion",
    "pages",
    "workflow_run",
    "head_commit",
    "changes",
];

/// Whether a value may hold several lines that a stranger writes by the event itself. What was merged has been read.
pub fn is_lines(reach: &ContextReach, events: &[String]) -> bool {
    let is_by_stranger = |event: &&String| is_privileged(event) || FORKS.contains(&event.as_str());
    let events: Vec<_> = events.iter().filter(is_by_stranger).cloned().collect();
    let has_lines = |path: &&String| {
        path.contains(".client_payload.")
            || OF_LINES.contains(&path.rsplit('.').next().unwrap_or_default())
    };
    let paths = reach.paths.iter().filter(has_lines).cloned().collect();
    is_text(&ContextReach { paths, ..ContextReach::default() }, &events)
}

fn is_harmless(path: &str) -> bool {
    let (start, last) = path.rsplit_once('.').unwrap_or_default();
    (HARMLESS.contains(&last) && start != "github")
        || last.ends_with("url")
        || path.split('.').any(|part| OWN_PARTS.contains(&part))
        || path == "github.event.workflow_run.name"
}

/// Whether an event of a workflow may name a stranger's code.
pub fn name_strangers(events: &[String]) -> bool {
    events.iter().any(|event| !code_of(event).is_empty())
}

/// Whether a value is of a pull request that none of these events is about, so that it is empty in all of them.
pub fn is_empty_here(reach: &ContextReach, events: &[String]) -> bool {
    let is_fixed = |path: &String| path.starts_with("github.") || path.starts_with("secrets.");
    reach.overlaps(&PULL_REQUEST)
        && reach.paths.iter().all(is_fixed)
        && !is_code(reach, events)
        && !events.iter().any(|event| event == "pull_request_target")
}

/// A condition without `${{ }}`. `None` if there is anything else around them, such as the line break at the end of a
/// block of YAML: GitHub takes that for a text, and each text for true.
fn evaluated(condition: &str) -> Option<&str> {
    if !condition.contains("${{") {
        return Some(condition);
    }
    let inner = *expressions(condition).first()?;
    (condition.len() == "${{}}".len() + inner.len()).then_some(inner)
}

/// The events in which a job or a step with this condition runs for a stranger. Only conditions that are
/// joined by `&&` are read.
pub fn narrowed(events: &[String], condition: &str) -> Vec<String> {
    let mut events = events.to_vec();
    let Some(condition) = evaluated(condition) else { return events };
    let compact: String = condition.to_lowercase().split_whitespace().collect();
    if ["||", "!(", ")==", ")!="].iter().any(|part| compact.contains(part)) {
        return events;
    }
    for term in compact.split("&&") {
        let term = term.trim_start_matches('(').trim_end_matches(')');
        if let Some(only) = term.strip_prefix("github.event_name==") {
            events.retain(|event| event == only.trim_matches('\''));
        } else if let Some(other) = term.strip_prefix("github.event_name!=") {
            events.retain(|event| event != other.trim_matches('\''));
        }
        let mut sides: Vec<_> = term.split("==").collect();
        sides.sort_unstable();
        let own_pull = match sides[..] {
            [one, other] => {
                (one == "github.event.pull_request.head.repo.full_name"
                    && other == "github.repository")
                    || (one == "false" && other == "github.event.pull_request.head.repo.fork")
            }
            _ => term == "!github.event.pull_request.head.repo.fork",
        };
        let own_run = match sides[..] {
            [one, other] => {
                (one == "github.event.workflow_run.head_repository.full_name"
                    && other == "github.repository")
                    || (one == "'push'" && other == "github.event.workflow_run.event")
            }
            _ => false,
        };
        events.retain(|event| match event.as_str() {
            "pull_request_target" => !own_pull,
            "workflow_run" => !own_run,
            event => !(own_pull && FORKS.contains(&event)),
        });
    }
    events
}
