//! What a job knew of its test reports when it packed them. A fork's code may have written it: its
//! values explain rows, and the run, the repository and the conclusion never come from it.

use serde::{Deserialize, Serialize};

/// Its path in the zip of the reports.
pub const MANIFEST_FILE: &str = "crcr-job.json";
pub const MAX_MANIFEST_BYTES: usize = 16 << 20;
/// More suites of one report aren't listed.
pub const MAX_LISTED_SUITES: usize = 100;
const VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobManifest {
    pub version: u32,
    /// GitHub's number of the job, which is also that of its check run.
    pub job_id: Option<u64>,
    /// The key of the job in the workflow file.
    pub job: Option<String>,
    /// `success`, `failure` or `cancelled`, as it was when the reports were packed.
    pub job_status: Option<String>,
    pub reports: Vec<ManifestReport>,
    /// Patterns of reports that the job should have written and didn't.
    pub missing: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestReport {
    /// The path within the zip.
    pub path: String,
    /// Suites that began; at most [`MAX_LISTED_SUITES`].
    pub suites: Vec<String>,
    /// Those of them that have no end: they crashed, or were killed.
    pub open_suites: Vec<String>,
    pub problem: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("`{MANIFEST_FILE}` is larger than 16 MiB")]
    TooLarge,
    #[error("`{MANIFEST_FILE}` isn't what `crcr stats pack` writes: {0}")]
    Invalid(#[from] serde_json::Error),
    #[error("`{MANIFEST_FILE}` has version {0}; this crcr knows version {VERSION}")]
    Version(u32),
}

impl JobManifest {
    pub fn new(job_id: Option<u64>, job: Option<String>, job_status: Option<String>) -> Self {
        let (reports, missing) = (vec![], vec![]);
        Self { version: VERSION, job_id, job, job_status, reports, missing }
    }

    pub fn parse(json: &[u8]) -> Result<Self, ManifestError> {
        if json.len() > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLarge);
        }
        let manifest: Self = serde_json::from_slice(json)?;
        match manifest.version {
            VERSION => Ok(manifest),
            other => Err(ManifestError::Version(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_is_read_back_and_anything_else_is_refused() {
        let mut manifest = JobManifest::new(Some(7), Some("test".to_owned()), None);
        manifest.missing.push("*.xml".to_owned());
        let json = serde_json::to_vec(&manifest).unwrap();
        assert_eq!(JobManifest::parse(&json).unwrap(), manifest);
        for (json, reason) in [
            (&b"[]"[..], "isn't what"),
            (b"{\"version\":2,\"reports\":[],\"missing\":[]}", "has version 2"),
            (&b"[".repeat(100_000), "isn't what"),
            (&vec![b' '; MAX_MANIFEST_BYTES + 1], "larger than"),
        ] {
            let error = JobManifest::parse(json).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
