//! Whether those who have to approve promotions to L3 and L4 did, as GitHub says.

use crcr_domain::allowlist::ParseOutcome;
use crcr_domain::allowlist::diff::{RepositoryRename, changes};
use crcr_domain::diagnostic::{Diagnostic, Rule};
use crcr_domain::{Allowlist, AllowlistEntry, Level, RepoName};
use crcr_github::GithubError;
use crcr_github::lookup::GithubLookup;
use crcr_github::lookup::cache::LookupCache;
use secrecy::SecretString;

use crate::cli::allowlist::{ApprovalArgs, ApprovalTeam};
use crate::commands::{github, oidc};
use crate::env_vars::Env;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::runner::Runner;

/// Adds a finding for each promotion to L3 or L4 that isn't approved, and for `events` there that begin check runs. Does
/// nothing without a rule, and asks GitHub only if there is such a change.
pub async fn review(
    args: &ApprovalArgs,
    token: Option<&SecretString>,
    upstream: &RepoName,
    (base, renames): (&Allowlist, &[RepositoryRename]),
    head: &mut ParseOutcome,
    (env, printer): (&Env, &Printer),
) -> Result<(), Failure> {
    let promoted = promotions(base, &head.policy, renames);
    let Some(number) = args.pull_request.filter(|_| args.has_rule() && !promoted.is_empty()) else {
        return Ok(());
    };
    let lookup = github::lookup(token, LookupCache::default(), env, printer)?;
    if is_approved(args, &lookup, upstream, number).await? {
        return Ok(());
    }
    let wanted = match (&args.approval_label, &args.approval_team) {
        (Some(label), None) => format!("the label `{label}`"),
        (None, Some(team)) => format!("a member of `{team}` to approve its newest commit"),
        (Some(label), Some(team)) => {
            format!("the label `{label}`, or a member of `{team}` to approve its newest commit")
        }
        (None, None) => return Ok(()),
    };
    for (repo, what) in promoted {
        let level = head.policy.get(&repo).map_or(Level::L3, |entry| entry.level);
        let at = head.policy.position(&repo);
        let span = at.map_or_else(|| head.source.span(0..0), |at| head.places[at].repo.clone());
        let message = format!("`{repo}` {what} {level} without approval");
        let finding = Diagnostic::new(Rule::PromotionNotApproved, span, message)
            .label("not approved")
            .help(format!("{upstream}#{number} needs {wanted}"));
        head.findings.extend([finding]);
    }
    Ok(())
}

/// The entries that go up to L3 or L4, or begin check runs there, and the words for it.
fn promotions(
    base: &Allowlist,
    head: &Allowlist,
    renames: &[RepositoryRename],
) -> Vec<(RepoName, &'static str)> {
    changes(base, head, renames)
        .iter()
        .filter_map(|change| {
            let level = |entry: &AllowlistEntry| entry.level;
            let after = change.after.map(level);
            let what = if change.before.map(level) < after {
                "goes up to"
            } else if change.gains_check_runs() {
                "gets check runs at"
            } else {
                return None;
            };
            (after >= Some(Level::L3)).then(|| (change.repo().clone(), what))
        })
        .collect()
}

/// Says that nobody has to approve a fork's promotions. A workflow that takes the rule from a variable has none there,
/// and nobody would notice.
pub fn tell_missing_rule(
    args: &ApprovalArgs,
    base: (&Allowlist, &[RepositoryRename]),
    head: &ParseOutcome,
    runner: &Runner,
    printer: &Printer,
) {
    let (base, renames) = base;
    let is_promotion = || !promotions(base, &head.policy, renames).is_empty();
    let is_fork = || oidc::job_facts(runner).is_ok_and(|facts| facts.has_no_secrets());
    if !args.has_rule() && is_promotion() && is_fork() {
        printer.notice(
            "no approval rule is set for promotions to L3 and L4. If the workflow takes it from a variable, a fork's \
             run has none: write the label itself into the workflow",
        );
    }
}

/// A label or a review is enough. GitHub lets only people with triage rights set labels.
async fn is_approved(
    args: &ApprovalArgs,
    lookup: &GithubLookup,
    upstream: &RepoName,
    number: u64,
) -> Result<bool, Failure> {
    let repo = upstream.as_str();
    let ask = |error: GithubError| github::lookup_failure(error, "the pull request");
    let pull = lookup.pull(repo, number).await.map_err(ask)?.ok_or_else(|| {
        let text = format!("{repo} has no pull request {number} that the token can see");
        Failure::unexpected("pull-request-not-found", text)
            .hint("check `--pull-request` and `--upstream`")
    })?;
    if let Some(label) = &args.approval_label
        && pull.labels.iter().any(|known| known.eq_ignore_ascii_case(label))
    {
        return Ok(true);
    }
    let Some(ApprovalTeam { org, slug }) = &args.approval_team else { return Ok(false) };
    for login in lookup.approvers(repo, number, &pull.head_sha).await.map_err(ask)? {
        match lookup.is_member(org, slug, &login).await.map_err(ask)? {
            Some(true) => return Ok(true),
            Some(false) => {}
            None => {
                let text = format!("the token can't see who is in the team `{org}/{slug}`");
                return Err(Failure::unexpected("team-hidden", text)
                    .hint("use a token of a member with `read:org`, or a label as the rule"));
            }
        }
    }
    Ok(false)
}
