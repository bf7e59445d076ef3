//! What a failed job came to when it was run again.

use crcr_domain::RepoName;
use crcr_domain::ci_data::workflow::{CiState, WorkflowJob};
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use maud::{Markup, html};

use super::JobModel;
use crate::address;
use crate::context::{Hud, PageError};

/// The newest later attempt that passed of a job that failed. GitHub gives each attempt of a job an id of its own.
pub(crate) async fn passed_later(
    hud: &Hud,
    repo: &RepoName,
    model: &JobModel,
) -> Result<Option<WorkflowJob>, PageError> {
    let has_failed = model.job.as_ref().is_none_or(|job| job.state.is_failure());
    let shas = [model.sha().to_owned()];
    let Some((_, name)) = model.name().filter(|_| has_failed && !shas[0].is_empty()) else {
        return Ok(None);
    };
    let selection = ThingSelection::Commits(&shas);
    let query = ThingQuery { event: "workflow_job", repository: repo.as_str(), selection };
    let rows = hud.results.current_things(&query).await?;
    let (run_id, attempt) = model.run();
    let passed = rows.iter().filter_map(WorkflowJob::from_row).filter(|job| {
        (job.run_id, &*job.name) == (run_id, name)
            && job.run_attempt > attempt
            && job.state == CiState::Passed
    });
    Ok(passed.max_by_key(|job| job.run_attempt))
}

pub(crate) fn note(model: &JobModel) -> Markup {
    html! { @if let Some(job) = &model.passed_later {
        p.note.good role="status" {
            strong { a href=(address::failure(&model.repository, job.id)) { "Passed in attempt " (job.run_attempt) } }
            " of the same run, on the same commit."
        }
    } }
}
