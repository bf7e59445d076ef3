//! What the recorded results say to a repository that goes up.

use crcr_domain::allowlist::ParseOutcome;
use crcr_domain::allowlist::diff::{Change, ChangeKind, changes};
use crcr_domain::diagnostic::{Diagnostic, Rule};
use crcr_domain::results::criteria::{
    Evidence, Window as Facts, at_level_since, demotion, demotion_from, promotion, promotion_from,
};
use crcr_domain::results::{Criteria, Criterion, Verdict};
use crcr_domain::{Allowlist, Level};
use crcr_relay::results::{self, Results, ResultsError, ResultsUrl, Window};
use crcr_relay::store::Role;
use jiff::{SignedDuration, Timestamp};

use crate::failure::Failure;

/// How far back the time at a level is looked for.
const LOOK_BACK_DAYS: i64 = 366;

/// Reviews every promotion by the facts up to `until` in the store at `place`: `sqlite:PATH` or a
/// path.
pub async fn review(
    base: &Allowlist,
    head: &ParseOutcome,
    place: &str,
    until: Timestamp,
) -> Result<Vec<Diagnostic>, Failure> {
    let unreadable = |why: anyhow::Error| {
        Failure::unexpected("results-unreadable", format!("the results in `{place}` can't be read"))
            .because(why)
            .hint("name the relay's store: `sqlite:PATH`")
    };
    let url = if place.contains(':') { place.to_owned() } else { format!("sqlite:{place}") };
    let url = ResultsUrl::parse(&url).map_err(|what| unreadable(anyhow::anyhow!(what)))?;
    let results =
        results::open(&url, Role::Tool).await.map_err(|error| unreadable(error.into()))?;
    let mut found = vec![];
    for change in changes(base, &head.policy) {
        if change.kind() == ChangeKind::Promoted {
            let finding = promoted(&change, head, &*results, until).await;
            found.extend(finding.map_err(|error| unreadable(error.into()))?);
        }
    }
    Ok(found)
}

async fn promoted(
    change: &Change<'_>,
    head: &ParseOutcome,
    results: &dyn Results,
    until: Timestamp,
) -> Result<Option<Diagnostic>, ResultsError> {
    let (Some(before), Some(after)) = (change.before, change.after) else { return Ok(None) };
    let criteria = Criteria::default();
    let read = |from| Window { from, to: until, repo: Some(after.repo.as_str().to_owned()) };
    let place = head.policy.position(&after.repo).map(|at| head.places[at].repo.clone());
    let span = place.unwrap_or_else(|| head.source.span(0..0));
    let step = format!("`{}` goes up from {} to {}", after.repo, before.level, after.level);
    let page = permalink(after.repo.as_str(), until);
    if after.level == Level::L2 {
        // Before L2 nothing but a signal is asked for.
        let from = promotion_from(until, &criteria);
        let silent = results.callbacks(&read(from)).await?.is_empty();
        let message = format!("{step}, and never reported in {} days", criteria.promotion_days);
        let found = Diagnostic::new(Rule::NoEvidence, span, message).label("no signal");
        return Ok(silent.then(|| found.help(format!("the evidence: {page}"))));
    }
    let stays = before.level >= Level::L3;
    let from =
        if stays { demotion_from(until, &criteria) } else { promotion_from(until, &criteria) };
    let mut attempts = results.attempts(&read(from)).await?;
    // Promotions rest on pull requests; nightly runs have a page of their own.
    attempts.retain(|row| matches!(row.event.as_str(), "pull_request" | "push"));
    if attempts.is_empty() {
        let found = Diagnostic::new(Rule::NoEvidence, span, format!("{step} without any results"));
        return Ok(Some(found.label("no results").help(format!("the evidence: {page}"))));
    }
    let dispatches = results.dispatches(&read(from)).await?;
    let facts = Facts { attempts: &attempts, dispatches: &dispatches, until };
    let evidence = if stays {
        demotion(facts, &criteria)
    } else {
        let start = until - SignedDuration::from_hours(24 * LOOK_BACK_DAYS);
        let since = at_level_since(&results.dispatches(&read(start)).await?, Level::L2);
        promotion(facts, since, &criteria)
    };
    let of = |verdict| -> Vec<String> {
        evidence.iter().filter(|e| e.verdict == verdict).map(told).collect()
    };
    let (unmet, unknown) = (of(Verdict::NotMet), of(Verdict::Unknown));
    let (rule, message) = if !unmet.is_empty() {
        (Rule::CriteriaNotMet, format!("{step}, and doesn't meet: {}", unmet.join("; ")))
    } else if !unknown.is_empty() {
        (Rule::NoEvidence, format!("{step} with too few results for: {}", unknown.join("; ")))
    } else {
        return Ok(None);
    };
    let found = Diagnostic::new(rule, span, message);
    Ok(Some(found.label("not shown to be ready").help(format!("the evidence: {page}"))))
}

/// The page of the evidence; its window ends when this one does.
fn permalink(repo: &str, until: Timestamp) -> String {
    let second = Timestamp::from_second(until.as_second()).unwrap_or(until);
    format!("/crcr/{repo}/level?to={second} on the relay")
}

/// `CI job pass rate 85.7 % of 320, target 90 %`.
fn told(evidence: &Evidence) -> String {
    let (title, n) = (evidence.criterion.title(), evidence.n);
    let target = amount(evidence.criterion, evidence.target);
    match evidence.value {
        Some(value) => {
            let value = amount(evidence.criterion, value);
            // Days are their own number of samples.
            let days = matches!(evidence.criterion, Criterion::TimeAtL2 | Criterion::Coverage);
            let of = if days { String::new() } else { format!(" of {n}") };
            format!("{title} {value}{of}, target {target}")
        }
        None => format!("{title}, target {target}"),
    }
}

fn amount(criterion: Criterion, value: f64) -> String {
    match criterion {
        Criterion::TimeAtL2 | Criterion::Coverage => format!("{value:.0} days"),
        Criterion::Queue | Criterion::EndToEnd => format!("{:.0} min", value / 60.0),
        Criterion::Overrun | Criterion::Timeouts | Criterion::JobPass => {
            format!("{:.1} %", value * 100.0)
        }
    }
}
