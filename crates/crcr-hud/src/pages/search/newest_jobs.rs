//! What the search finds of jobs that ended lately: their machines and their steps.

use std::collections::BTreeSet;

use crcr_domain::ci_data::webhook::WebhookRow;
use crcr_domain::ci_data::workflow::{WorkflowJob, steps_of};
use crcr_results::ci_times::EndedJobsQuery;
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use jiff::{SignedDuration, Timestamp};

use super::{HitKind, JOB_DAYS, MAX_OF_A_KIND, SearchHit, has_text};
use crate::address;
use crate::context::{Hud, PageError};
use crate::layout::short_sha;

/// Jobs that failed last, and jobs that ended last: they are looked at.
const MAX_NEWEST_JOBS: usize = 200;

/// The upstream repository's jobs that failed last, and then those that ended last.
pub(crate) struct NewestJobs {
    repository: String,
    jobs: Vec<NewestJob>,
}

struct NewestJob {
    job: WorkflowJob,
    /// Its steps' names; only the first job of a name has them, because runs of one job have the same steps.
    steps: Vec<String>,
}

impl NewestJobs {
    pub(crate) async fn read(hud: &Hud) -> Result<Self, PageError> {
        let repository = hud.upstream.as_str();
        let (mut jobs, mut seen, mut names) = (vec![], BTreeSet::new(), BTreeSet::new());
        for only_failed in [true, false] {
            let asked = EndedJobsQuery {
                repository: repository.to_owned(),
                runner: None,
                job: None,
                only_failed,
                from: hud.now() - SignedDuration::from_hours(24 * JOB_DAYS),
                to: Timestamp::MAX,
                to_id: None,
                limit: MAX_NEWEST_JOBS,
            };
            let ended = hud.results.ended_jobs(&asked).await?;
            let ids: Vec<String> = ended.iter().map(|job| job.id.to_string()).collect();
            let selection = ThingSelection::Ids(&ids);
            let query = ThingQuery { event: "workflow_job", repository, selection };
            for row in hud.results.current_things(&query).await? {
                let Some(job) = WorkflowJob::from_row(&row).filter(|job| seen.insert(job.id))
                else {
                    continue;
                };
                let is_first = names.insert((job.workflow.clone(), job.name.clone()));
                let steps = if is_first { step_names(&row) } else { vec![] };
                jobs.push(NewestJob { job, steps });
            }
        }
        Ok(Self { repository: repository.to_owned(), jobs })
    }

    /// Whether this is the whole name of a step.
    pub(crate) fn have_step(&self, text: &str) -> bool {
        let lower = text.to_lowercase();
        self.jobs.iter().flat_map(NewestJob::all_steps).any(|step| step.to_lowercase() == lower)
    }

    /// The jobs with the text in the name of a step: of each, the newest that failed in it, or else the newest.
    pub(crate) fn with_step(&self, text: &str) -> Vec<SearchHit> {
        let (lower, mut seen) = (text.to_lowercase(), BTreeSet::new());
        let failed = self.jobs.iter().flat_map(|of| of.failed_step().map(|step| (step, &of.job)));
        let others =
            self.jobs.iter().flat_map(|of| of.steps.iter().map(move |step| (&**step, &of.job)));
        let found = failed.chain(others).filter(|(step, job)| {
            has_text(step, &lower) && seen.insert((*step, &*job.workflow, &*job.name))
        });
        found.take(MAX_OF_A_KIND).map(|(step, job)| self.hit(HitKind::Step, step, job)).collect()
    }

    /// The jobs on a machine with the text in its name, those that failed first. Pages write its labels behind it.
    pub(crate) fn on_machine(&self, text: &str) -> Vec<SearchHit> {
        let lower = text.to_lowercase();
        let found = self.jobs.iter().filter_map(|of| {
            let machine = of.job.runner.as_deref()?;
            let shown = || format!("{machine} ({})", of.job.asked_for()).to_lowercase();
            let is_found = has_text(machine, &lower) || shown() == lower;
            is_found.then(|| self.hit(HitKind::Machine, machine, &of.job))
        });
        found.take(MAX_OF_A_KIND).collect()
    }

    fn hit(&self, kind: HitKind, found: &str, job: &WorkflowJob) -> SearchHit {
        let sha = short_sha(&job.head_sha);
        SearchHit {
            kind,
            path: address::failure(&self.repository, job.id),
            name: format!("{found}: {} / {} on {sha}", job.workflow, job.name),
        }
    }
}

impl NewestJob {
    fn failed_step(&self) -> Option<&str> {
        self.job.failed_step.as_deref()
    }

    fn all_steps(&self) -> impl Iterator<Item = &str> {
        self.failed_step().into_iter().chain(self.steps.iter().map(String::as_str))
    }
}

fn step_names(row: &WebhookRow) -> Vec<String> {
    steps_of(row).into_iter().map(|step| step.name).filter(|name| !name.is_empty()).collect()
}
