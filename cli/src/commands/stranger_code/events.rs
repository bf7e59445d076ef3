//! Which part of an event is of a stranger.

use crcr_artifacts::trust::STRANGERS_EVENTS;

use super::expression::{expressions, overlaps};
use super::scope::{ContextReach, FETCHED_TEXT};

/// A `repository_dispatch` whose sender may write to the repository. It isn't the relay, nor a workflow of the repository
/// that hands on what strangers wrote.
pub const OWN_DISPATCH: &str = "repository_dispatch of its own";

/// Whether the event's runs have the repository's own rights, whoever wrote the code that they check out.
pub fn is_privileged(event: &str) -> bool {
    STRANGERS_EVENTS.contains(&event)
        || ["repository_dispatch", OWN_DISPATCH, "schedule", "workflow_dispatch"].contains(&event)
}

/// Events of which runs for a fork have no secret and a token that only reads.
pub const FORKS: [&str; 3] = ["pull_request", "pull_request_review", "pull_request_review_comment"];

/// Events that only run code of the repository itself. The `on` of a workflow doesn't prove that one of them started it:
/// a fork's pull request brings its own copy of the file, which may have the same name and other events.
const OF_READ_CODE: [&str; 4] = ["merge_group", "push", "release", "schedule"];

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
        // What such senders hand on of a comment or a pull request.
        OWN_DISPATCH => &[
            "github.event.client_payload.comment",
            "github.event.client_payload.github.payload.comment",
            "github.event.client_payload.github.payload.issue",
            "github.event.client_payload.github.payload.pull_request.head",
            "github.event.client_payload.github.payload.pull_request.number",
            "github.event.client_payload.issue",
            "github.event.client_payload.pull_request.diff_url",
            "github.event.client_payload.pull_request.head",
            "github.event.client_payload.pull_request.merge_commit_sha",
            "github.event.client_payload.pull_request.number",
            "github.event.client_payload.pull_request.patch_url",
            "github.event.client_payload.slash_command",
        ],
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
        OWN_DISPATCH => &[
            "github.event.client_payload.comment",
            "github.event.client_payload.github.payload",
            "github.event.client_payload.issue",
            "github.event.client_payload.pull_request",
            "github.event.client_payload.slash_command",
        ],
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
        // Notes that GitHub writes have the titles of pull requests.
        "release" => &["github.event.release.body"],
        _ => code_of(event),
    }
}

/// The last names of texts that GitHub makes, or that only maintainers choose.
const HARMLESS: [&str; 38] = [
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
    "permission",
    "role_name",
    "created_at",
    "updated_at",
    "closed_at",
    "merged_at",
    "run_number",
    "run_attempt",
    "run_started_at",
    "workflow_id",
    "full_name",
    "additions",
    "deletions",
    "changed_files",
    "tree_id",
    "timestamp",
];

/// Parts of an event that the repository's own people choose.
const OWN_PARTS: [&str; 5] = ["base", "labels", "milestone", "assignees", "requested_reviewers"];

/// Whether jobs of a privileged event may write the cache unless `cache-mode` says it. Where anybody can cause the
/// event, and the run is on the default branch, they may not.
///
/// <https://github.blog/changelog/2026-06-26-read-only-actions-cache-for-untrusted-triggers/>
pub fn may_save_caches(event: &str) -> bool {
    // GitHub doesn't count these, which Apps send, among its low-trust events.
    let of_apps = ["check_run", "check_suite", "status"];
    is_privileged(event) && (!STRANGERS_EVENTS.contains(&event) || of_apps.contains(&event))
}

/// Whether anybody may cause the event, with the rights of the repository.
pub fn is_caused_by_strangers(event: &str) -> bool {
    STRANGERS_EVENTS.contains(&event)
        || ["pull_request_review", "pull_request_review_comment"].contains(&event)
}

pub fn is_code(reach: &ContextReach, events: &[String]) -> bool {
    let is_one =
        |event: &String, path: &String| code_of(event).iter().any(|of| is_part(event, path, of));
    events.iter().any(|event| reach.paths.iter().any(|path| is_one(event, path)))
}

/// Whether a context may have a stranger's words in an event. The whole payload of a dispatch of the repository's own
/// doesn't count as theirs: whoever sends it decides.
fn is_part(event: &str, path: &str, pattern: &str) -> bool {
    let is_whole = event == OWN_DISPATCH && "github.event.client_payload".starts_with(path);
    !is_whole && overlaps(path, pattern)
}

/// Whether a value may hold text of a stranger that is more than a number, a hash or a name without quotes.
pub fn is_text(reach: &ContextReach, events: &[String]) -> bool {
    reach.paths.iter().any(|path| {
        events.iter().any(|event| {
            if path == FETCHED_TEXT {
                return is_caused_by_strangers(event);
            }
            text_of(event).iter().any(|pattern| is_part(event, path, pattern))
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

/// Whether somebody else than the repository's people may write what the event holds. What was merged has been read.
pub fn is_by_stranger(event: &str) -> bool {
    is_privileged(event) || FORKS.contains(&event)
}

/// Whether a value may hold several lines that a stranger writes by the event itself.
pub fn is_lines(reach: &ContextReach, events: &[String]) -> bool {
    let events: Vec<_> = events.iter().filter(|event| is_by_stranger(event)).cloned().collect();
    let has_lines = |path: &&String| {
        // A command is the first line of a comment.
        (path.contains(".client_payload.") && !path.contains(".client_payload.slash_command"))
            || OF_LINES.contains(&path.rsplit('.').next().unwrap_or_default())
    };
    let paths = reach.paths.iter().filter(has_lines).cloned().collect();
    is_text(&ContextReach { paths, ..ContextReach::default() }, &events)
}

fn is_harmless(path: &str) -> bool {
    let (start, last) = path.rsplit_once('.').unwrap_or_default();
    // The name of a wiki's page is in its address.
    let is_address = last.ends_with("url") && !path.contains(".pages.");
    (HARMLESS.contains(&last) && start != "github")
        || is_address
        || path.split('.').any(|part| OWN_PARTS.contains(&part))
        || ["github.event.workflow_run.name", "github.event.workflow_run.path"].contains(&path)
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

/// The events in which a job or a step with this condition runs for a stranger.
pub fn narrowed(events: &[String], condition: &str) -> Vec<String> {
    let Some(condition) = evaluated(condition) else { return events.to_vec() };
    let compact: String = condition.to_lowercase().split_whitespace().collect();
    let may_run = |event: &&String| holds(&compact, event, 0) != Some(false);
    events.iter().filter(may_run).cloned().collect()
}

/// Whether a job or a step with this condition runs for merged pull requests only, whose code has been read. Their titles
/// and branches' names may not.
pub fn requires_merge(condition: &str) -> bool {
    const MERGED: &str = "github.event.pull_request.merged";
    let Some(condition) = evaluated(condition) else { return false };
    let compact: String = condition.to_lowercase().split_whitespace().collect();
    let is_merged = |part: &&str| {
        let part = in_brackets(part).unwrap_or(*part);
        part.strip_suffix("==true").unwrap_or(part) == MERGED
    };
    parts(&compact, "||").len() == 1 && parts(&compact, "&&").iter().any(is_merged)
}

/// Brackets in brackets. More aren't read.
const MAX_DEPTH: usize = 50;

/// Whether a condition holds for a stranger in an event, as far as that can be said. It has no spaces and no capitals.
fn holds(condition: &str, event: &str, depth: usize) -> Option<bool> {
    if depth > MAX_DEPTH {
        return None;
    }
    let all = |operator: &str, decides: bool| {
        let parts = parts(condition, operator);
        (parts.len() > 1).then(|| {
            let mut each = parts.iter().map(|part| holds(part, event, depth + 1));
            let whole = each.clone();
            match each.any(|one| one == Some(decides)) {
                true => Some(decides),
                false => whole.collect::<Option<Vec<_>>>().map(|_| !decides),
            }
        })
    };
    if let Some(known) = all("||", true).or_else(|| all("&&", false)) {
        return known;
    }
    if let Some(inner) = in_brackets(condition) {
        return holds(inner, event, depth + 1);
    }
    if let Some(inner) = condition.strip_prefix('!').and_then(in_brackets) {
        return holds(inner, event, depth + 1).map(|known| !known);
    }
    match condition {
        "true" => return Some(true),
        "false" => return Some(false),
        "!github.event.pull_request.head.repo.fork" => return of_forks(event).then_some(false),
        _ if of_merge(event) && asks_for_other_ref(condition) => return Some(false),
        _ => {}
    }
    let (equal, (one, other)) = match (condition.split_once("=="), condition.split_once("!=")) {
        (Some(sides), None) => (true, sides),
        (None, Some(sides)) => (false, sides),
        _ => return None,
    };
    let sides = [(one, other), (other, one)];
    let is = |one: &str, other: &str| sides.contains(&(one, other));
    let literal = |context: &str| {
        let (_, text) = sides.iter().find(|(side, _)| *side == context)?;
        text.strip_prefix('\'')?.strip_suffix('\'')
    };
    let (name, of_ref) = (literal("github.event_name"), literal("github.ref"));
    let same = match event {
        OWN_DISPATCH if name.is_some() => name == Some("repository_dispatch"),
        _ if name.is_some() => name == Some(event),
        _ if of_merge(event) && of_ref.is_some_and(|name| !name.starts_with("refs/pull/")) => false,
        _ if of_merge(event)
            && literal("github.ref_name").is_some_and(|name| !name.ends_with("/merge")) =>
        {
            false
        }
        "workflow_run"
            if is("github.event.workflow_run.head_repository.full_name", "github.repository")
                || literal("github.event.workflow_run.event")
                    .is_some_and(|name| OF_READ_CODE.contains(&name)) =>
        {
            false
        }
        _ if of_forks(event)
            && (is("github.event.pull_request.head.repo.full_name", "github.repository")
                || is("github.event.pull_request.head.repo.fork", "false")) =>
        {
            false
        }
        _ => return None,
    };
    Some(same == equal)
}

fn of_forks(event: &str) -> bool {
    event == "pull_request_target" || of_merge(event)
}

/// Whether `github.ref` is `refs/pull/N/merge` in the event's runs.
fn of_merge(event: &str) -> bool {
    FORKS.contains(&event)
}

/// Whether a condition asks whether the run is of a branch or of a tag.
fn asks_for_other_ref(condition: &str) -> bool {
    let rest = condition.strip_prefix("startswith(github.ref,'refs/");
    let kind = rest.and_then(|rest| rest.strip_suffix("')")).filter(|kind| !kind.contains('\''));
    kind.is_some_and(|kind| !kind.starts_with("pull"))
}

/// The values that an expression such as `C && 'a' || 'b'` may have for a stranger in one of these events, as one
/// expression.
pub fn alternatives(events: &[String], expression: &str) -> String {
    let lower = expression.to_lowercase();
    let mut found = vec![];
    for event in events {
        add_alternatives(&lower, event, 0, &mut found);
    }
    found.join(" || ")
}

/// Adds them for one event, and returns whether one of them is the value for certain.
fn add_alternatives<'a>(
    expression: &'a str,
    event: &str,
    depth: usize,
    found: &mut Vec<&'a str>,
) -> bool {
    for alternative in parts(expression, "||").into_iter().map(str::trim) {
        if let Some(inner) = in_brackets(alternative).filter(|_| depth < MAX_DEPTH) {
            if add_alternatives(inner, event, depth + 1, found) {
                return true;
            }
            continue;
        }
        let all = parts(alternative, "&&");
        let Some((value, conditions)) = all.split_last() else { continue };
        let known = conditions.iter().map(|condition| {
            let compact: String = condition.split_whitespace().collect();
            holds(&compact, event, 0)
        });
        let known: Vec<_> = known.collect();
        if known.contains(&Some(false)) {
            continue;
        }
        let value = value.trim();
        found.push(value);
        let fixed = value.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
        let is_fixed = fixed.is_some_and(|text| !text.is_empty() && !text.contains('\''));
        if is_fixed && known.iter().all(|one| *one == Some(true)) {
            return true;
        }
    }
    false
}

/// The inside of brackets that are around all of a text.
fn in_brackets(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('(')?.strip_suffix(')')?;
    let (mut depth, mut quoted) = (0, false);
    for c in inner.chars() {
        match c {
            '\'' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            return None;
        }
    }
    Some(inner)
}

/// The parts of a condition around an operator that is in no brackets and no text.
fn parts<'a>(condition: &'a str, operator: &str) -> Vec<&'a str> {
    let (mut found, mut start, mut depth, mut quoted) = (vec![], 0, 0, false);
    for (at, c) in condition.char_indices() {
        match c {
            '\'' => quoted = !quoted,
            '(' | '[' if !quoted => depth += 1,
            ')' | ']' if !quoted => depth -= 1,
            _ if depth == 0 && !quoted && condition[at..].starts_with(operator) && at >= start => {
                found.push(&condition[start..at]);
                start = at + operator.len();
            }
            _ => {}
        }
    }
    found.push(&condition[start..]);
    found
}
