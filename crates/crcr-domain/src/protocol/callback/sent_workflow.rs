//! The key `workflow` of a report, as `crcr report` sends it and OpenAPI describes it.

use schemars::JsonSchema;
use serde::Serialize;

use super::{FailedTest, TestCounts};
use crate::checks::lifecycle::Conclusion;
use crate::results::triage::TriageVerdict;

/// Numbers may be sent as texts, and lists as JSON texts.
#[derive(Serialize, JsonSchema)]
pub struct SentWorkflow<'a> {
    pub schema_version: &'static str,
    #[schemars(extend("enum" = ["in_progress", "completed"]))]
    pub status: &'static str,
    /// Needed with `completed`
    #[schemars(with = "Option<Conclusion>")]
    pub conclusion: Option<&'static str>,
    /// Of the workflow
    pub name: &'a str,
    #[schemars(extend("format" = "uri"))]
    pub url: String,
    /// A number on GitHub, a UUID elsewhere
    #[schemars(extend("type" = ["string", "integer"]))]
    pub run_id: &'a str,
    #[schemars(extend("type" = ["string", "integer"], "default" = 1))]
    pub run_attempt: String,
    pub job_name: &'a str,
    pub check_run_id: String,
    #[schemars(extend("format" = "date-time"))]
    pub started_at: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub completed_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_results: Option<TestCounts>,
    /// Names, or what `failed_tests_detail` has
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub failed_tests: Vec<FailedTest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<FailedTest>")]
    pub failed_tests_detail: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TriageVerdict")]
    pub triage_verdict: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "uri"))]
    pub artifact_url: Option<&'a str>,
    /// In which the job ended, such as `checkout`, `setup`, `build` or `test`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<&'a str>,
    /// Nothing else of the run will report
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub run_ended: bool,
}
