//! Whose code a checkout or a script brings.

use super::WorkflowSet;
use super::tests::{all, codes, with_rights};

/// Such as of a bot that opens a branch for an issue.
#[test]
fn branch_with_an_issues_number_in_its_name_is_the_repositorys_own() {
    let found = |before: &str, script: &str, number: &str| {
        let lines: String = script.lines().map(|line| format!("          {line}\n")).collect();
        let env = format!("        env: {{N: '${{{{ {number} }}}}'}}\n");
        codes(&with_rights("issue_comment", &format!("{before}      - run: |\n{lines}{env}")))
    };
    let number = "github.event.issue.number";
    for script in [
        "git checkout -b \"fix-$N\" && git push origin \"fix-$N\"",
        "git pull --rebase\ngit switch -c \"fix-$N\"\ngh pr create --body 'A pull request'",
        "git fetch origin \"refs/heads/issue/$N\" && git checkout FETCH_HEAD",
        "git checkout -b fix-${{ github.event.issue.number }}",
    ] {
        assert_eq!(found("", script, number), [""; 0], "{script}");
    }
    let by_output = "      - {id: a, run: 'echo number=$N >> $GITHUB_OUTPUT', env: {N: '${{ \
                     github.event.issue.number }}'}}\n";
    let own = "git checkout -b \"fix-$N\"";
    assert_eq!(found(by_output, own, "steps.a.outputs.number"), [""; 0]);
    for script in [
        "git fetch origin \"pull/$N/head\" && git checkout FETCH_HEAD",
        "git pull origin \"refs/pull/$N/merge\"",
        "git checkout $(gh pr view \"$N\" --json headRefOid -q .headRefOid)",
        "git fetch origin $(gh api repos/a/b/pulls/$N -q .head.sha)",
        "git clone \"$(gh issue view $N --json body -q .body)\"",
    ] {
        assert!(found("", script, number).contains(&"token-exposed"), "{script}");
    }
    let commit = "git fetch origin \"$N\" && git checkout FETCH_HEAD";
    let of_pull = by_output.replace("echo number=$N", "echo \"ref=$(./ref $N)\"");
    assert!(found(&of_pull, commit, "steps.a.outputs.ref").contains(&"token-exposed"));
    let by_variable = of_pull.replace("GITHUB_OUTPUT", "GITHUB_ENV");
    let fetches = "git fetch origin \"$ref\" && git checkout FETCH_HEAD";
    assert!(found(&by_variable, fetches, "github.run_id").contains(&"token-exposed"));
}

/// Who merges there may change this repository as well.
#[test]
fn branch_of_an_upstream_of_the_same_owner_is_read_code() {
    let is_strangers = |own: &str, event: &str, given: &str| {
        let mut set = WorkflowSet::new(Some(own), "pytorch/pytorch");
        let with = format!("{{repository: pytorch/pytorch, {given}}}");
        let step = format!("      - uses: actions/checkout@v7\n        with: {with}\n");
        let env = "env: {BRANCH: nightly, PULL: refs/pull/7/head}\n";
        set.add_workflow(".github/workflows/w.yml", &format!("{env}{}", with_rights(event, &step)));
        !set.judge().found.is_empty()
    };
    let by_hand = "workflow_dispatch";
    for given in [
        "path: pytorch",
        "ref: nightly",
        "ref: 'release/${{ inputs.version }}'",
        "ref: refs/heads/viable/strict",
        "ref: '${{ env.BRANCH }}'",
    ] {
        assert!(!is_strangers("pytorch/tools", by_hand, given), "{given}");
        assert!(is_strangers("acme/backend", by_hand, given), "{given}");
    }
    for given in [
        "ref: '${{ inputs.sha }}'",
        "ref: 'refs/${{ inputs.ref }}'",
        "ref: pull/7/head",
        "ref: '${{ env.PULL }}'",
    ] {
        assert!(is_strangers("pytorch/tools", by_hand, given), "{given}");
    }
    assert!(is_strangers("pytorch/tools", "repository_dispatch", "path: pytorch"));
}

#[test]
fn action_that_sets_a_commits_status_brings_no_code() {
    let found = |action: &str| {
        let given = "{sha: '${{ github.event.pull_request.head.sha }}'}";
        let step = format!("      - {{uses: {action}, with: {given}}}\n");
        all(&with_rights("pull_request_target", &step))
    };
    for action in ["acme/set-commit-status-action@v2", "acme/find-comment@v3"] {
        assert_eq!(found(action), (vec![], vec![]), "{action}");
    }
    assert_eq!(found("acme/build@v1").1.len(), 1);
}
