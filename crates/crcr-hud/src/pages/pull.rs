//! `/pr/{number}`: the results of one pull request, for its author.

use std::collections::BTreeMap;

use crcr_domain::RepoName;
use crcr_domain::ci_data::pull_request::PullRequestState;
use crcr_domain::probes::Culprit;
use crcr_domain::results::facts::{AttemptFact, DispatchFact, DispatchFactStatus};
use crcr_domain::results::jobs_of_record;
use crcr_results::AttemptFilter;
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use jiff::Timestamp;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use super::commit::is_known;
use super::head::{NextStep, in_tree, out_of_tree};
use crate::address;
use crate::context::{Hud, PageError};
use crate::layout::{ago, commit_of, counted, culprit_list, short_sha};
use crate::model::head::{HeadFacts, InTreeJobs, PullBackend, blocking_state, checks_of_heads};
use crate::model::head_state::BackendOnHead;
use crate::query::given;
use crate::view::View;

/// Older heads that are listed.
const MAX_HEADS: usize = 50;

/// `?upstream=OWNER/REPO&head=SHA`; a part of the SHA is enough.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct PullHeadQuery {
    upstream: Option<String>,
    head: Option<String>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct PullModel {
    pub(crate) upstream: String,
    /// The one that pages are about unless they name another.
    #[serde(skip)]
    own_upstream: String,
    pub(crate) number: u64,
    /// Title, author and branches; `None` if no webhook of it is stored.
    pub(crate) pull_request: Option<PullRequestState>,
    /// The head that is shown.
    pub(crate) head_sha: String,
    /// When it was first heard of.
    pub(crate) head_at: Option<Timestamp>,
    /// Whether a newer head exists.
    pub(crate) is_older: bool,
    /// The commit that the head and its base branch have in common; `None` when unknown.
    pub(crate) merge_base: Option<String>,
    /// Whether there is a page of that commit.
    pub(crate) is_merge_base_known: bool,
    /// When the newest report on this head was received.
    pub(crate) newest: Option<Timestamp>,
    /// How many other heads are known.
    pub(crate) older_heads: usize,
    /// The newest heads, the newest first.
    pub(crate) heads: Vec<PullHead>,
    /// From L4 down to L1.
    pub(crate) backends: Vec<PullBackend>,
    #[serde(flatten)]
    pub(crate) jobs: InTreeJobs,
    /// What it broke after it had landed.
    pub(crate) culprits: Vec<Culprit>,
}

/// A commit that was the head of the pull request.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct PullHead {
    pub(crate) sha: String,
    /// When it was first heard of.
    pub(crate) at: Timestamp,
    /// The worst of what the backends at L4 say of it; `None` if none of them was told of it.
    pub(crate) state: Option<BackendOnHead>,
}

pub(crate) async fn build(
    hud: &Hud,
    number: u64,
    query: PullHeadQuery,
) -> Result<PullModel, PageError> {
    let upstream = hud.upstream_of(query.upstream.as_deref())?;
    let numbers = [number];
    let selection = ThingSelection::Number(number);
    let of_pull = ThingQuery { event: "pull_request", repository: upstream.as_str(), selection };
    let webhooks = async { hud.results.current_things(&of_pull).await };
    let ((attempts, dispatches), merge_bases, webhooks) = tokio::try_join!(
        hud.results.pull_request_facts(upstream.as_str(), &numbers, AttemptFilter::default()),
        hud.results.merge_bases(upstream.as_str(), &numbers),
        webhooks,
    )?;
    let pull_request = webhooks.iter().find_map(PullRequestState::from_row);
    let mut heads = heads(&attempts, &dispatches);
    let reported = || head(&dispatches).or_else(|| attempts.last().map(|r| r.head_sha.clone()));
    // Perhaps no backend was told of the newest head.
    let told = pull_request.as_ref().filter(|pull| !pull.head_sha.is_empty());
    if let Some(PullRequestState { head_sha: sha, received_at: at, .. }) = told
        && !heads.iter().any(|head| head.sha == *sha)
    {
        heads.insert(0, PullHead { sha: sha.clone(), at: *at, state: None });
    }
    let newest_head = match told.map(|pull| pull.head_sha.clone()).or_else(reported) {
        Some(head_sha) => Some(head_sha),
        None => head_of_run(hud, &upstream, number).await?,
    };
    let Some(newest_head) = newest_head else {
        let text = format!(
            "nothing is stored about pull request {number} of {upstream}: it is older than what is kept, or no backend was told of it"
        );
        return Err(PageError::NotFound(text));
    };
    let head_sha = match given(query.head.as_deref()) {
        None => newest_head.clone(),
        Some(prefix) => {
            let known = heads.iter().find(|head| head.sha.starts_with(&prefix.to_lowercase()));
            known.map(|head| head.sha.clone()).ok_or_else(|| {
                let text = format!("pull request {number} of {upstream} had no head `{prefix}`");
                PageError::NotFound(text)
            })?
        }
    };
    let merge_base = merge_bases.into_iter().find(|found| found.head_sha == head_sha);
    let is_merge_base_known = match &merge_base {
        Some(found) => is_known(hud, upstream.as_str(), &found.merge_base).await?,
        None => false,
    };
    let facts = HeadFacts {
        upstream: &upstream,
        head_sha: &head_sha,
        pull_request: Some(number),
        attempts: &attempts,
        dispatches: &dispatches,
        merge_base: merge_base.clone(),
    };
    let backends = facts.backends(hud).await?;
    let jobs = InTreeJobs::read(hud, &upstream, &head_sha).await?;
    let on_head = attempts.iter().filter(|row| row.head_sha == head_sha);
    let (head_at, older_heads) = (
        heads.iter().find(|head| head.sha == head_sha).map(|head| head.at),
        heads.len().saturating_sub(1),
    );
    heads.truncate(MAX_HEADS);
    add_states(hud, &upstream, &mut heads, &attempts, &dispatches).await?;
    let is_own = |one: &Culprit| {
        let suspect = one.suspect.as_ref().filter(|_| one.is_certain);
        one.upstream.eq_ignore_ascii_case(upstream.as_str())
            && suspect.and_then(|suspect| suspect.pull_request) == Some(number)
    };
    let culprits = (hud.probes)().await.culprits.into_iter().filter(is_own).collect();
    Ok(PullModel {
        culprits,
        upstream: upstream.as_str().to_owned(),
        own_upstream: hud.upstream.as_str().to_owned(),
        number,
        pull_request,
        head_at,
        is_older: head_sha != newest_head,
        is_merge_base_known,
        merge_base: merge_base.map(|found| found.merge_base),
        newest: on_head.map(|row| row.received_at).max(),
        older_heads,
        heads,
        head_sha,
        backends,
        jobs,
    })
}

/// The heads that were dispatched or reported, the newest first.
fn heads(attempts: &[AttemptFact], dispatches: &[DispatchFact]) -> Vec<PullHead> {
    let sent = dispatches.iter().map(|sent| (&sent.head_sha, sent.enqueued_at));
    let mut first: BTreeMap<&String, Timestamp> = BTreeMap::new();
    for (sha, at) in sent.chain(attempts.iter().map(|row| (&row.head_sha, row.dispatched_at))) {
        let known = first.entry(sha).or_insert(at);
        *known = at.min(*known);
    }
    let mut heads: Vec<PullHead> =
        first.into_iter().map(|(sha, at)| PullHead { sha: sha.clone(), at, state: None }).collect();
    heads.sort_by(|a, b| b.at.cmp(&a.at).then_with(|| a.sha.cmp(&b.sha)));
    heads
}

/// What each head got, as its own page says it.
async fn add_states(
    hud: &Hud,
    upstream: &RepoName,
    heads: &mut [PullHead],
    attempts: &[AttemptFact],
    dispatches: &[DispatchFact],
) -> Result<(), PageError> {
    let shas: Vec<String> = heads.iter().map(|head| head.sha.clone()).collect();
    let checks = checks_of_heads(hud, upstream, &shas).await?;
    let jobs = jobs_of_record(attempts, dispatches);
    for head in heads {
        head.state = blocking_state(hud, &head.sha, dispatches, &jobs, &checks);
    }
    Ok(())
}

/// The head of the newest dispatch that wasn't superseded.
fn head(dispatches: &[DispatchFact]) -> Option<String> {
    let current =
        dispatches.iter().filter(|dispatch| dispatch.status != DispatchFactStatus::Superseded);
    current
        .max_by_key(|dispatch| dispatch.enqueued_at)
        .or_else(|| dispatches.iter().max_by_key(|dispatch| dispatch.enqueued_at))
        .map(|dispatch| dispatch.head_sha.clone())
}

/// The head of a pull request that no backend was told of, from the webhooks of its runs.
async fn head_of_run(
    hud: &Hud,
    upstream: &RepoName,
    number: u64,
) -> Result<Option<String>, PageError> {
    let selection = ThingSelection::Number(number);
    let query = ThingQuery { event: "workflow_run", repository: upstream.as_str(), selection };
    let rows = hud.results.current_things(&query).await?;
    Ok(rows.into_iter().find(|row| !row.sha.is_empty()).map(|row| row.sha))
}

/// Whether a pull request has a page.
pub(crate) async fn has_page(
    hud: &Hud,
    upstream: &RepoName,
    number: u64,
) -> Result<bool, PageError> {
    let selection = ThingSelection::Number(number);
    let query = ThingQuery { event: "pull_request", repository: upstream.as_str(), selection };
    if !hud.results.current_things(&query).await?.is_empty() {
        return Ok(true);
    }
    let numbers = [number];
    let only = AttemptFilter::default();
    let (attempts, dispatches) =
        hud.results.pull_request_facts(upstream.as_str(), &numbers, only).await?;
    let is_told = !attempts.is_empty() || !dispatches.is_empty();
    Ok(is_told || head_of_run(hud, upstream, number).await?.is_some())
}

pub(crate) fn page(model: &PullModel, view: &View<'_>) -> Markup {
    let merge_base_url = merge_base_url(model, view);
    let next = NextStep {
        view,
        upstream: &model.upstream,
        pull_request: Some(model.number),
        head_sha: &model.head_sha,
        merge_base_url: merge_base_url.as_deref(),
        is_merged: model.pull_request.as_ref().is_some_and(|pull| pull.is_merged),
    };
    let title = model.pull_request.as_ref().map(|pull| pull.title.as_str()).unwrap_or_default();
    view.shell(
        &format!("#{} {title}", model.number),
        !model.is_older,
        &html! {
            div.title {
                h1 { bdi { @if title.is_empty() { (model.upstream) } @else { (title) } } " " span.muted { "#" (model.number) } }
                a href=(view.pull_url(&model.upstream, model.number)) rel="noreferrer" { "on GitHub" }
            }
            (facts(model, merge_base_url.as_deref()))
            @if model.is_older {
                p.note role="status" { "This is an older head. " a href=(head_address(model, None)) { "The current head" } }
            }
            (culprit_list(&model.culprits))
            (out_of_tree(&model.backends, &next))
            (reproduce(model, view))
            @if !model.jobs.in_tree.is_empty() { (in_tree(&model.jobs, &model.upstream)) }
            @if model.heads.len() > 1 { (other_heads(model)) }
        },
    )
}

/// The command that writes down how to repeat the first failure; it knows the newest head only.
fn reproduce(model: &PullModel, view: &View<'_>) -> Markup {
    let is_failed = |backend: &&PullBackend| backend.state == Some(BackendOnHead::Failed);
    let failed = model.backends.iter().find(is_failed).filter(|_| !model.is_older);
    html! { @if let (Some(backend), Some(hud)) = (failed, view.public_url) {
        p.detail {
            "To repeat the failure of " bdi { (backend.repo) } ": "
            code { "crcr reproduce " (model.number) " --upstream " (model.upstream) " --backend " (backend.repo) " --hud " (hud) }
        }
    } }
}

/// Its page, or GitHub's, if nothing is known of it.
fn merge_base_url(model: &PullModel, view: &View<'_>) -> Option<String> {
    let sha = model.merge_base.as_ref()?;
    Some(if model.is_merge_base_known {
        address::commit_of(&model.upstream, &model.own_upstream, sha)
    } else {
        view.commit_url(&model.upstream, sha)
    })
}

/// Who, from where to where, and which commit.
fn facts(model: &PullModel, merge_base_url: Option<&str>) -> Markup {
    html! {
        p.detail {
            bdi { (model.upstream) }
            @if let Some(pull) = &model.pull_request {
                @if !pull.author.is_empty() { " · by " bdi { (pull.author) } }
                @if !pull.branch.is_empty() { " · " bdi { (pull.branch) } @if !pull.base.is_empty() { " into " bdi { (pull.base) } } }
                @if pull.is_draft { " · draft" }
                @if pull.is_merged { " · merged" } @else if !pull.is_open { " · closed" }
                @for label in &pull.labels { " " span.tag { bdi { (label) } } }
            }
        }
        p.detail {
            "Head " (commit_of(&model.upstream, &model.own_upstream, &model.head_sha))
            @if let Some(at) = model.head_at { " from " (ago(at)) }
            @if let (Some(sha), Some(url)) = (&model.merge_base, merge_base_url) { " · merge base " a href=(url) { code { (short_sha(sha)) } } }
            @match model.newest {
                Some(newest) => { " · newest report " (ago(newest)) }
                None => " · no report yet",
            }
        }
    }
}

/// The page at another head; `None` for the current one.
fn head_address(model: &PullModel, head: Option<&str>) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("upstream", &model.upstream);
    if let Some(head) = head {
        query.append_pair("head", head);
    }
    format!("/pr/{}?{}", model.number, query.finish())
}

fn other_heads(model: &PullModel) -> Markup {
    html! {
        section aria-labelledby="heads" {
            h2 #heads { "Heads of this pull request" }
            ul.plain { @for head in &model.heads { li {
                @if head.sha == model.head_sha { code { (short_sha(&head.sha)) } " (shown)" }
                @else { a rel="nofollow" href=(head_address(model, Some(&short_sha(&head.sha)))) { code { (short_sha(&head.sha)) } } }
                @if let Some(state) = head.state { " " span.outcome.(state.class()) { span.glyph aria-hidden="true" { (state.glyph()) } " " (state.word()) } }
                " " span.detail { (ago(head.at)) }
            } } }
            @let more = (model.older_heads + 1).saturating_sub(model.heads.len());
            @if more > 0 { p.detail { (counted(more, "older head", "older heads")) " more: " code { "?head=SHA" } " shows one." } }
        }
    }
}
