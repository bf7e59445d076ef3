//! What a job's report says beyond its result, as the pages of a head and of a backend show it.

use crcr_domain::protocol::callback::ReportDetails;
use maud::{Markup, html};
use serde::Serialize;

use crate::layout::external_link;

#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct JobDetails {
    pub(crate) url: Option<String>,
    /// Hardware, driver and image, as reported.
    pub(crate) environment: Option<String>,
    pub(crate) artifact_url: Option<String>,
    /// What was dropped from its reports or changed in them, and why.
    pub(crate) warnings: Vec<String>,
}

impl From<&ReportDetails> for JobDetails {
    fn from(report: &ReportDetails) -> Self {
        Self {
            url: report.url.clone(),
            environment: report.environment.clone(),
            artifact_url: report.artifact_url.clone(),
            warnings: report.warnings.clone(),
        }
    }
}

impl JobDetails {
    /// Whether [`Self::markup`] shows something.
    pub(crate) fn is_shown(&self) -> bool {
        self.environment.is_some() || self.artifact_url.is_some()
    }

    /// Each detail after a dot, to follow the job's name.
    pub(crate) fn markup(&self) -> Markup {
        html! {
            @if let Some(environment) = &self.environment { " · on " bdi { (environment) } }
            @if let Some(url) = &self.artifact_url { " · " (external_link(url, "artifact")) }
        }
    }
}
