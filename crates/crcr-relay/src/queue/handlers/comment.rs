//! Calls the oncalls of a repository to a pull request: one comment per pull request and
//! repository, ever.

use std::fmt::Write as _;

use crcr_domain::RepoName;
use crcr_domain::check_run::code;
use crcr_store::{Batch, read};

use crate::queue::task::{Fail, Outcome};
use crate::relay::Relay;
use crate::state_records;

/// Comments, unless somebody did: the relay, or the deployed bot with the same marker.
pub async fn run(
    relay: &Relay,
    number: u64,
    repo: &RepoName,
    check_run: &str,
) -> Result<Outcome, Fail> {
    let upstream = &relay.config.upstream;
    let key = state_records::called(upstream, number, repo);
    let known = read::<bool>(relay.store.as_ref(), key).await?;
    if known.value == Some(true) {
        return Ok(Outcome::Done);
    }
    let allowlist = relay.allowlist.get().ok_or_else(|| Fail::retry("no allowlist yet"))?;
    let Some(entry) = allowlist.get(repo).filter(|entry| !entry.oncalls.is_empty()) else {
        return Ok(Outcome::Done);
    };
    let marker = format!("<!-- crcr-oncall:{repo} -->");
    let comments = relay.app.comments(upstream.as_str(), number).await?;
    if !comments.iter().any(|comment| comment.body.contains(&marker)) {
        let mut text = format!("{marker}\n");
        for oncall in &entry.oncalls {
            let _ = write!(text, "@{oncall} ");
        }
        let _ = write!(
            text,
            "{} failed in {} on this pull request. Please have a look.",
            code(check_run),
            code(repo.as_str())
        );
        if let Some(page) = relay.config.pull_request_page(number) {
            let _ = write!(text, " All results: {page}");
        }
        relay.app.create_comment(upstream.as_str(), number, &text).await?;
    }
    let mut batch = Batch::default();
    batch.update(&known, &true, relay.expiry());
    relay.commit(batch).await?;
    Ok(Outcome::Done)
}
