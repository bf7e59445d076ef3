//! Whether a stranger's code made an artifact, and whether a workflow with more rights than the fork's
//! author may use it.
//!
//! <https://securitylab.github.com/resources/github-actions-preventing-pwn-requests/>

use crcr_github::runs::WorkflowRun;

use crate::locator::ArtifactTrust;

/// Whether workflows of this event have the base repository's secrets while they work on a fork's
/// contribution.
pub fn is_privileged(event: &str) -> bool {
    matches!(event, "workflow_run" | "pull_request_target" | "issue_comment")
}

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

/// Whether runs of this event belong to the repository and its default branch, and may build the code of anybody: a
/// relay's dispatch is for an upstream pull request. `pull_request_target` isn't one: GitHub's record of such a run
/// names the fork.
fn may_build_anybodys_code(event: &str) -> bool {
    event != "pull_request_target"
        && (event == "repository_dispatch" || STRANGERS_EVENTS.contains(&event))
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TrustRefusal {
    #[error("a fork's code (`{0}`) made this artifact, and nobody has allowed that")]
    Fork(String),
    #[error(
        "a run of `{0}`, which may have built anybody's code, made this artifact, and nobody has allowed that"
    )]
    Event(String),
    #[error("its locator says `same-repo`, but GitHub says that `{0}` made it")]
    Label(String),
    /// There is no digest, or whoever can replace the artifact can replace the digest too.
    #[error("in this event its digest must come from a job's output or from GitHub's record")]
    Digest,
}

/// The trust of the code that `run` of `repository` worked on, and the repository it came from.
fn run_trust(run: &WorkflowRun, repository: &str) -> (ArtifactTrust, String) {
    match &run.head_repository {
        Some(head) if head.full_name.eq_ignore_ascii_case(repository) => {
            (ArtifactTrust::SameRepo, head.full_name.clone())
        }
        Some(head) => (ArtifactTrust::Fork, head.full_name.clone()),
        // GitHub gives no name for a deleted repository, and this one exists.
        None => (ArtifactTrust::Fork, "a deleted repository".to_owned()),
    }
}

/// Decides on an artifact of `run`, which may be the job's `own`, in a privileged event. GitHub's record of the run counts,
/// not `label`, which the uploader wrote: a fork's artifact labelled `same-repo` is refused even if forks
/// are allowed. In a run that may build anybody's code an honest uploader writes that label, too.
pub fn check(
    run: &WorkflowRun,
    repository: &str,
    own: bool,
    label: Option<ArtifactTrust>,
    independent_digest: bool,
    allow_fork: bool,
) -> Result<ArtifactTrust, TrustRefusal> {
    let (trust, head) = run_trust(run, repository);
    if trust == ArtifactTrust::Fork && label == Some(ArtifactTrust::SameRepo) {
        return Err(TrustRefusal::Label(head));
    }
    if trust == ArtifactTrust::Fork && !allow_fork {
        return Err(TrustRefusal::Fork(head));
    }
    let is_anybodys = !own && may_build_anybodys_code(&run.event);
    if is_anybodys && !allow_fork {
        return Err(TrustRefusal::Event(run.event.clone()));
    }
    if !independent_digest {
        return Err(TrustRefusal::Digest);
    }
    Ok(if is_anybodys { ArtifactTrust::Fork } else { trust })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(head: Option<&str>) -> WorkflowRun {
        let head = head.map(|name| serde_json::json!({"full_name": name}));
        serde_json::from_value(serde_json::json!({"id": 1, "head_repository": head})).unwrap()
    }

    #[test]
    fn events_with_the_base_repositorys_secrets_are_privileged() {
        for event in ["workflow_run", "pull_request_target", "issue_comment"] {
            assert!(is_privileged(event));
        }
        for event in ["push", "pull_request", "schedule", ""] {
            assert!(!is_privileged(event));
        }
    }

    #[test]
    fn trust_comes_from_githubs_record_not_from_the_locator() {
        let (same, fork) = (Some(ArtifactTrust::SameRepo), Some(ArtifactTrust::Fork));
        let evil = || "evil/up".to_owned();
        for (head, label, independent, allowed, verdict) in [
            (Some("acme/up"), same, true, false, Ok(ArtifactTrust::SameRepo)),
            (Some("Acme/Up"), None, true, false, Ok(ArtifactTrust::SameRepo)),
            (Some("acme/up"), fork, true, false, Ok(ArtifactTrust::SameRepo)),
            (Some("acme/up"), same, false, true, Err(TrustRefusal::Digest)),
            (Some("evil/up"), fork, true, false, Err(TrustRefusal::Fork(evil()))),
            (Some("evil/up"), fork, true, true, Ok(ArtifactTrust::Fork)),
            (Some("evil/up"), None, true, true, Ok(ArtifactTrust::Fork)),
            (Some("evil/up"), same, true, true, Err(TrustRefusal::Label(evil()))),
            (Some("evil/up"), fork, false, true, Err(TrustRefusal::Digest)),
            (None, None, true, false, Err(TrustRefusal::Fork("a deleted repository".to_owned()))),
        ] {
            let given = check(&run(head), "acme/up", false, label, independent, allowed);
            assert_eq!(given, verdict, "{head:?} {label:?} {independent} {allowed}");
        }
    }

    #[test]
    fn artifact_of_a_run_that_may_build_anybodys_code_is_a_strangers() {
        let (same, stranger) = (Some(ArtifactTrust::SameRepo), Some(ArtifactTrust::Fork));
        for (event, own, allowed, taken_as) in [
            ("push", false, false, same),
            ("pull_request", false, false, same),
            ("pull_request_target", false, false, same),
            ("workflow_dispatch", false, false, same),
            ("repository_dispatch", false, false, None),
            ("workflow_run", false, false, None),
            ("issue_comment", false, false, None),
            ("repository_dispatch", false, true, stranger),
            ("issue_comment", false, true, stranger),
            // Another job of the same run knows what it runs.
            ("repository_dispatch", true, false, same),
            ("workflow_run", true, false, same),
        ] {
            let run = WorkflowRun { event: event.to_owned(), ..run(Some("acme/up")) };
            let given = check(&run, "acme/up", own, same, true, allowed);
            let verdict = taken_as.ok_or_else(|| TrustRefusal::Event(event.to_owned()));
            assert_eq!(given, verdict, "{event} {own} {allowed}");
        }
    }
}
